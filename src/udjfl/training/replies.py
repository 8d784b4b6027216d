"""Turn what clients return, results of an engine or single replies, into columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from udjfl.engine import LocalResult
from udjfl.errors import ReportError
from udjfl.methods.reports import EXTRAS, NOT_FINITE
from udjfl.training.clients import Replies


def training_columns(results: Sequence[LocalResult], extras: Collection[str]) -> dict[str, Tensor]:
    """Return what training says of each client beside its delta; one result per model."""
    columns = {"losses": results[0].losses, "steps": results[0].steps}
    if len(results) > 1 or "losses_of_each" in extras:
        columns["losses_of_each"] = torch.stack([result.losses for result in results], dim=1)
    if results[0].first_deltas is not None:
        firsts = [r.first_deltas.cpu() for r in results if r.first_deltas is not None]
        columns["first_deltas"] = torch.cat(firsts, dim=1)
    return columns


def join_deltas(results: Sequence[LocalResult]) -> Tensor:
    """Return the deltas [K, D] of the models side by side, end to end."""
    if len(results) == 1:
        return results[0].deltas.cpu()
    return torch.cat([result.deltas for result in results], dim=1).cpu()


@dataclass(frozen=True)
class ClientReply:
    """One client's reply as it came from outside: any value may be missing or have any shape."""

    id: str
    delta: Tensor | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Tensor | None = None


def stack_replies(
    replies: Sequence[ClientReply],
    *,
    round: int,
    n_parameters: int,
    numbers: Collection[str],
    extras: Collection[str],
    n_buffers: int = 0,
    has_update: bool = True,
    max_update_norm: float | None = None,
    absent: Mapping[str, str] | None = None,
    errors: Mapping[str, ReportError] | None = None,
) -> Replies:
    """Stack single replies into columns; a reply of the wrong shape becomes an error.

    `numbers` and `extras` name what every reply must have; anything else in it is ignored.
    A reply to a probe has no update.
    """
    usable: list[ClientReply] = []
    rejected = dict(errors or {})
    shapes: dict[str, tuple[int, ...]] = {}
    for reply in replies:
        try:
            if has_update:
                _check_update(reply, n_parameters, n_buffers, round)
            _check_values(reply, n_parameters, numbers, extras, shapes, round)
            _check_norm(reply, max_update_norm, round)
        except ReportError as error:
            rejected.setdefault(reply.id, error)
            continue
        usable.append(reply)
    columns: dict[str, Tensor] = {}
    deltas = buffers = None
    if usable:
        for name in sorted(numbers):
            values = [reply.numbers[name] for reply in usable]
            columns[name] = torch.tensor(values, dtype=torch.float64)
        for name in sorted(extras):
            columns[name] = torch.stack([reply.extras[name] for reply in usable])
        if has_update:
            deltas = torch.stack([r.delta for r in usable if r.delta is not None])
        if n_buffers:
            buffers = torch.stack([r.buffers for r in usable if r.buffers is not None])
    ids = [reply.id for reply in usable]
    return Replies(ids, deltas, columns, buffers, absent or {}, rejected)


def _check_update(reply: ClientReply, n_parameters: int, n_buffers: int, round: int) -> None:
    """Raise a `ReportError` if the update or the buffers have the wrong shape."""
    if reply.delta is None or reply.delta.shape != (n_parameters,):
        shape = [0] if reply.delta is None else list(reply.delta.shape)
        problem = f"has shape {shape}; the model has {n_parameters} numbers"
        raise ReportError(reply.id, "deltas", problem, round)
    buffers = torch.zeros(0) if reply.buffers is None else reply.buffers
    if buffers.shape != (n_buffers,):
        problem = f"has shape {list(buffers.shape)}; the model has {n_buffers}"
        raise ReportError(reply.id, "buffers", problem, round)


def _check_values(
    reply: ClientReply,
    n_parameters: int,
    numbers: Collection[str],
    extras: Collection[str],
    shapes: dict[str, tuple[int, ...]],
    round: int,
) -> None:
    """Raise a `ReportError` if a value is missing, or an extra has the wrong shape.

    Extras whose shape is not known must agree: `shapes` has those of the first client.
    """
    missing = [name for name in sorted(numbers) if name not in reply.numbers]
    missing += [name for name in sorted(extras) if name not in reply.extras]
    if missing:
        problem = "is missing; the method needs it of every client"
        raise ReportError(reply.id, missing[0], problem, round)
    known = {"[N": (), "[N, D": (n_parameters,)}
    for name in sorted(extras):
        shape = tuple(reply.extras[name].shape)
        axes = EXTRAS.get(name, "").partition("]")[0]
        expected = known[axes] if axes in known else shapes.setdefault(name, shape)
        if shape != expected:
            problem = f"has shape {list(shape)}, not {list(expected)}"
            raise ReportError(reply.id, name, problem, round)


def _check_norm(reply: ClientReply, max_update_norm: float | None, round: int) -> None:
    if max_update_norm is None or reply.delta is None:
        return
    norm = float(reply.delta.to(torch.float64).norm())
    if max_update_norm < norm < float("inf"):
        problem = f"has length {norm:.4g}, above max_update_norm, {max_update_norm:g}"
        raise ReportError(reply.id, "deltas", problem, round)


def find_bad_buffers(replies: Replies, round: int) -> dict[int, ReportError]:
    """Return an error for each row whose buffers are not finite."""
    if replies.buffers is None or not replies.buffers.numel():
        return {}
    bad = (~torch.isfinite(replies.buffers).all(dim=1)).nonzero().flatten().tolist()
    problem = f"{NOT_FINITE}; check the client's data"
    return {row: ReportError(replies.ids[row], "buffers", problem, round) for row in bad}

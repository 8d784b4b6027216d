"""Turn what clients return, results of an engine or single replies, into columns."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from udjfl.engine import LocalResult
from udjfl.errors import ReportError
from udjfl.methods.reports import EXTRAS, NOT_FINITE
from udjfl.training.clients import Replies
from udjfl.training.limits import ReplyLimits


def training_columns(
    results: Sequence[LocalResult], personal: Sequence[LocalResult], extras: Collection[str]
) -> dict[str, Tensor]:
    """Return what training says of each client beside its delta.

    There is one result per model, and one more if clients trained personal models.
    """
    columns = {"losses": results[0].losses, "steps": results[0].steps}
    if len(results) > 1 or "losses_of_each" in extras:
        columns["losses_of_each"] = torch.stack([result.losses for result in results], dim=1)
    if results[0].first_deltas is not None:
        firsts = [r.first_deltas.cpu() for r in results if r.first_deltas is not None]
        columns["first_deltas"] = torch.cat(firsts, dim=1)
    if personal:
        columns["personal_deltas"] = personal[0].deltas.cpu()
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
    limits: ReplyLimits | None = None,
    absent: Mapping[str, str] | None = None,
    errors: Mapping[str, ReportError] | None = None,
) -> Replies:
    """Stack single replies into columns; a reply of the wrong shape becomes an error.

    `numbers` and `extras` name what every reply must have; anything else in it is ignored.
    A reply to a probe has no update. What is beyond the limits becomes an error too.
    """
    limits = limits or ReplyLimits()
    usable: list[ClientReply] = []
    rejected = dict(errors or {})
    shapes: dict[str, tuple[int, ...]] = {}
    for reply in replies:
        problems = _find_problems(
            reply, n_parameters, n_buffers if has_update else None, numbers, extras, shapes
        )
        problem = next(problems, None) or limits.find_problem(
            reply.id,
            {name: reply.numbers[name] for name in numbers if name in reply.numbers},
            {name: reply.extras[name] for name in extras if name in reply.extras},
        )
        if problem is None:
            usable.append(reply)
        else:
            rejected.setdefault(reply.id, ReportError(reply.id, *problem, round))
    if "losses" in numbers:
        large = limits.find_large_losses([reply.numbers["losses"] for reply in usable])
        usable = _reject(usable, "losses", large, round, rejected)
    if has_update:
        long = limits.find_long_updates([r.delta for r in usable if r.delta is not None])
        usable = _reject(usable, "deltas", long, round, rejected)
    columns: dict[str, Tensor] = {}
    deltas = buffers = None
    if usable:
        columns = {
            name: torch.tensor([r.numbers[name] for r in usable], dtype=torch.float64)
            for name in sorted(numbers)
        }
        columns |= {name: torch.stack([r.extras[name] for r in usable]) for name in sorted(extras)}
        if has_update:
            deltas = torch.stack([r.delta for r in usable if r.delta is not None])
        if n_buffers:
            buffers = torch.stack([r.buffers for r in usable if r.buffers is not None])
    return Replies([r.id for r in usable], deltas, columns, buffers, absent or {}, rejected)


def _find_problems(
    reply: ClientReply,
    n_parameters: int,
    n_buffers: int | None,
    numbers: Collection[str],
    extras: Collection[str],
    shapes: dict[str, tuple[int, ...]],
) -> Iterator[tuple[str, str]]:
    """Yield what is missing or has the wrong shape: the field, and what is wrong with it.

    Each check needs the ones before it to have passed. `n_buffers` is None for a reply without
    update. Extras whose shape is not known must agree: `shapes` has those of the first client.
    """
    if n_buffers is not None:
        delta, buffers = (torch.zeros(0) if t is None else t for t in (reply.delta, reply.buffers))
        if reply.delta is None or delta.shape != (n_parameters,):
            yield "deltas", f"has shape {list(delta.shape)}; the model has {n_parameters} numbers"
        if buffers.shape != (n_buffers,):
            yield "buffers", f"has shape {list(buffers.shape)}; the model has {n_buffers}"
    for needed, sent in ((numbers, reply.numbers), (extras, reply.extras)):
        for name in sorted(set(needed) - sent.keys()):
            yield name, "is missing; the method needs it of every client"
    known = {"[N": (), "[N, D": (n_parameters,)}
    for name in sorted(extras):
        shape = tuple(reply.extras[name].shape)
        axes = EXTRAS.get(name, "").partition("]")[0]
        expected = known[axes] if axes in known else shapes.setdefault(name, shape)
        if shape != expected:
            yield name, f"has shape {list(shape)}, not {list(expected)}"


def _reject(
    replies: Sequence[ClientReply],
    field: str,
    problems: Mapping[int, str],
    round: int,
    rejected: dict[str, ReportError],
) -> list[ClientReply]:
    """Return the replies without a problem; the others are added to the errors."""
    for index, problem in problems.items():
        client = replies[index].id
        rejected.setdefault(client, ReportError(client, field, problem, round))
    return [reply for index, reply in enumerate(replies) if index not in problems]


def find_bad_buffers(replies: Replies, round: int) -> dict[int, ReportError]:
    """Return an error for each row whose buffers are not finite."""
    if replies.buffers is None or not replies.buffers.numel():
        return {}
    bad = (~torch.isfinite(replies.buffers).all(dim=1)).nonzero().flatten().tolist()
    problem = f"{NOT_FINITE}; check the client's data"
    return {row: ReportError(replies.ids[row], "buffers", problem, round) for row in bad}

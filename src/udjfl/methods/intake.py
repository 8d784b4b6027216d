"""From what single clients sent to one `Reports`: nothing unusable gets past here, in the simulator or on a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from udjfl._ids import id_sort_key
from udjfl.data._contiguous import table_of
from udjfl.errors import ReportError
from udjfl.methods._linalg import finite_rows
from udjfl.methods.reports import EXTRAS, NOT_FINITE, Reports, number_problem

BadReportPolicy = Literal["fail", "exclude"]
SHARES = ("accuracies",)
NEVER_NEGATIVE = ("squared_losses", "gradient_norms", "group_gaps", "losses_of_each")


@dataclass(frozen=True)
class ClientReport:
    """What one client sent in one round; None where it was not asked for that."""

    id: str
    delta: Tensor
    loss: float | None
    size: float | None
    uncertainty: float | None
    steps: float | None = 1.0
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def numbers(self) -> dict[str, float | None]:
        """The single numbers, by their names in `Reports`."""
        return {
            "losses": self.loss,
            "sizes": self.size,
            "uncertainties": self.uncertainty,
            "steps": self.steps,
        }


def collect(
    sent: Sequence[ClientReport],
    all_ids: Sequence[str],
    n_parameters: int,
    round: int,
    lr: float,
    momentum: float,
    policy: BadReportPolicy = "fail",
    needs: Collection[str] | None = None,
    model: Tensor | None = None,
    owed: Collection[str] | None = None,
    max_update_norm: float | None = None,
) -> tuple[Reports | None, dict[str, str]]:
    """The usable reports as one, and for each client left out the reason. None if nothing usable came.

    With policy 'fail' the first unusable report raises `ReportError`; with 'exclude' the round goes on without it. A client
    that reports twice keeps its place with its first usable report. `needs` names the extras that every client owes, and
    whatever else one sends is ignored; left out, all owe what any of them sent. `owed` is the same for losses, sizes,
    uncertainties and steps; what nobody owes is left out of the result. `model` is the server's own. A delta longer than
    `max_update_norm` is unusable.
    """
    place = {name: row for row, name in enumerate(all_ids)}
    sent = sorted(sent, key=lambda report: id_sort_key(report.id))
    usable: dict[str, ClientReport] = {}
    excluded: dict[str, str] = {}
    expected = {name for report in sent for name in report.extras} if needs is None else set(needs)
    columns = (
        {name for r in sent for name, value in r.numbers.items() if value is not None}
        if owed is None
        else set(owed)
    )
    table = table_of([report.delta for report in sent])
    finite = (
        finite_rows(table).tolist()
        if table is not None
        else [bool(finite_rows(r.delta[None])[0]) for r in sent]
    )
    for report, is_finite in zip(sent, finite, strict=True):
        error = (
            _problem(report, place, usable, n_parameters, round)
            or _number_problem(report, columns, is_finite, max_update_norm, round)
            or _extra_problem(report, expected, usable, n_parameters, round)
        )
        if error is None:
            usable[report.id] = report
        elif policy == "fail":
            raise error
        else:
            excluded[report.id] = str(error)
    if not usable:
        return None, excluded
    kept = list(usable.values())
    numbers = {
        name: torch.tensor([r.numbers[name] for r in kept], dtype=torch.float64) for name in columns
    }
    return Reports(
        ids=list(usable),
        deltas=table
        if table is not None and len(kept) == len(sent)
        else _table([r.delta for r in kept]),
        lr=lr,
        momentum=momentum,
        client_indices=torch.tensor([place[name] for name in usable]),
        model=model,
        round=round,
        extras={
            name: _table([torch.as_tensor(r.extras[name]) for r in kept])
            for name in sorted(expected)
        },
        deltas_are_finite=True,
        **numbers,
    ), excluded


def _table(rows: Sequence[Tensor]) -> Tensor:
    """The rows as one table; if they already lie one after another in memory, that memory and no copy of it."""
    table = table_of(rows)
    return torch.stack(list(rows)) if table is None else table


def _problem(
    report: ClientReport,
    place: Mapping[str, int],
    usable: Mapping[str, ClientReport],
    n_parameters: int,
    round: int,
) -> ReportError | None:
    if report.id not in place:
        return ReportError(report.id, "id", "does not belong to this federation", round)
    if report.id in usable:
        return ReportError(
            report.id, "id", "reported twice in one round; the first report was kept", round
        )
    if report.delta.shape != (n_parameters,):
        shape = list(report.delta.shape)
        return ReportError(
            report.id, "deltas", f"has shape {shape}; the model has {n_parameters} numbers", round
        )
    if report.buffers.numel() and not torch.isfinite(report.buffers).all():
        return ReportError(
            report.id,
            "buffers",
            "has values that are NaN or infinite; check the client's data",
            round,
        )
    return None


def _number_problem(
    report: ClientReport,
    owed: Collection[str],
    delta_is_finite: bool,
    max_update_norm: float | None,
    round: int,
) -> ReportError | None:
    if not delta_is_finite:
        return ReportError(report.id, *NOT_FINITE, round)
    for name in sorted(owed):
        if report.numbers[name] is None:
            return ReportError(
                report.id, name, "is missing; the method needs it of every client", round
            )
    problem = number_problem(
        {
            name: value
            for name, value in report.numbers.items()
            if name in owed and value is not None
        }
    )
    if problem:
        return ReportError(report.id, *problem, round)
    if (
        max_update_norm is not None
        and (length := float(report.delta.to(torch.float64).norm())) > max_update_norm
    ):
        return ReportError(
            report.id,
            "deltas",
            f"has length {length:.4g}, above max_update_norm, {max_update_norm:g}",
            round,
        )
    return None


def _extra_problem(
    report: ClientReport,
    expected: set[str],
    usable: Mapping[str, ClientReport],
    n_parameters: int,
    round: int,
) -> ReportError | None:
    for name in sorted(expected):
        if name not in report.extras:
            return ReportError(
                report.id, name, "is missing; the method needs it of every client", round
            )
        value = torch.as_tensor(report.extras[name])
        problem = _value_problem(name, value)
        if problem:
            return ReportError(report.id, name, problem, round)
        # What is known by name has a shape of its own; else the first client's counts.
        of_one = EXTRAS.get(name, "").partition("]")[0]
        first = next(iter(usable.values()), report)
        shapes = {"[N": (), "[N, D": (n_parameters,)}
        shape = shapes.get(of_one, torch.as_tensor(first.extras[name]).shape)
        if value.shape != shape:
            return ReportError(
                report.id, name, f"has shape {list(value.shape)}, not {list(shape)}", round
            )
    return None


def _value_problem(name: str, value: Tensor) -> str | None:
    if value.is_floating_point() and not torch.isfinite(value).all():
        return "has values that are NaN or infinite"
    if name in SHARES and not ((value >= 0) & (value <= 1)).all():
        return "must be from 0 to 1"
    if name in NEVER_NEGATIVE and not (value >= 0).all():
        return "cannot be negative"
    return None

"""One round of federated learning, wherever the clients are.

    1. choose clients    the method selects them; some cannot be reached
    2. probe             methods that plan ask for losses or gradients before training
    3. plan              the method may change local training in this round
    4. train             clients train on their own data and report
    5. aggregate         the method turns the usable reports into a step
    6. step              the server subtracts it, or what its optimiser makes of it, from its model
    7. record            everything worth knowing about the round, one value per record

Several methods that train in lockstep share step 4: `open_round` does the steps before it and
`close_round` those after it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from udjfl.errors import DivergedError, QuorumError, ReportError, SettingsError
from udjfl.methods import Plan, Reports, State
from udjfl.methods.collect import collect
from udjfl.training.clients import Clients, Replies, TrainRequest
from udjfl.training.records import Record, diagnostic_records
from udjfl.training.replies import find_bad_buffers
from udjfl.training.server_state import ServerState
from udjfl.training.service import Checkpoints, keep_checkpoint, keep_every
from udjfl.training.state import Run

logger = logging.getLogger("udjfl")


@dataclass(frozen=True)
class OpenRound:
    """A round before training: the request (None: no client is left), and the records so far."""

    request: TrainRequest | None
    state: State
    records: list[Record]


@dataclass(frozen=True)
class RoundResult:
    """The server after a round, and the round's records."""

    server: ServerState
    records: list[Record]


def run_round(run: Run, server: ServerState, clients: Clients) -> RoundResult:
    """Run one round."""
    opened = open_round(run, server, clients)
    # 4. train
    replies = Replies() if opened.request is None else clients.train(opened.request)
    return close_round(run, server, clients, opened, replies)


def open_round(run: Run, server: ServerState, clients: Clients) -> OpenRound:
    """Choose clients, probe them and plan: everything in a round before training."""
    round, state = server.round + 1, server.state
    # 1. choose clients
    attendance = clients.reach(round, run.select_clients(round, state))
    indices = attendance.client_indices
    requested = [run.ids[index] for index in indices]
    records = _absence_records(round, attendance.absent, attendance.excluded, requested)
    if not indices:
        check_quorum(run, round, 0, records)
        return OpenRound(None, state, records)
    models = run.models_to_send(server.vector, state, indices)
    request = TrainRequest(round, indices, models, server.buffers)
    # 2. probe
    probe: Reports | None = None
    if run.method.probes:
        replies = clients.probe(request, run.method.probes)
        nothing = torch.zeros(len(replies.ids), len(server.vector), dtype=server.vector.dtype)
        probe, _, errors = _collect(run, server, request, replace(replies, deltas=nothing))
        records += _absence_records(round, replies.absent, errors, probe.ids if probe else ())
        check_quorum(run, round, 0 if probe is None else len(probe), records)
        left = set() if probe is None else set(probe.client_indices.tolist())
        request = request.keep(left)
    if not request.client_indices:
        return OpenRound(None, state, records)
    # 3. plan
    state, plan = _check_plan(run, run.method.plan(state, probe))
    run.check_plan(plan, request.models[0].shape[-1])
    return OpenRound(replace(request, plan=plan), state, records)


def close_round(
    run: Run, server: ServerState, clients: Clients, opened: OpenRound, replies: Replies
) -> RoundResult:
    """Aggregate the replies, take the step and record: everything in a round after training."""
    round, state, request = server.round + 1, opened.state, opened.request
    if request is None:
        return RoundResult(replace(server, round=round, state=state), opened.records)
    replies = _mix_losses(run, server, state, replies)
    reports, rows, errors = _collect(run, server, request, replies)
    records = opened.records + _absence_records(
        round, replies.absent, errors, reports.ids if reports else ()
    )
    check_quorum(run, round, 0 if reports is None else len(reports), records)
    if reports is None:
        return RoundResult(replace(server, round=round, state=state), records)
    if "validation_accuracies" in run.extras:
        scores = clients.score(run.method.models_to_score(state, reports), server.buffers)
        reports = reports.with_extra("validation_accuracies", scores)
    # 5. aggregate
    state, step, diagnostics = _check_outcome(run, run.method.aggregate(state, reports), reports)
    # 6. step
    optimizer, step = run.spec.server_optimizer.transform(server.optimizer, step)
    vector = apply_step(run, server.vector, step, round)
    buffers = server.buffers
    if buffers.numel() and replies.buffers is not None:  # their mean, weighted by examples
        buffers = (reports.sizes / reports.sizes.sum()) @ replies.buffers[rows]
    # 7. record
    losses = {"train_loss": reports.losses} if reports.has("losses") else {}
    scored = {"score": reports.extras["scores"]} if "scores" in reports.extras else {}
    norm = {"step_norm": step.to(torch.float64).norm()}
    records += diagnostic_records(round, reports.ids, {**losses, **scored, **diagnostics, **norm})
    _log_warnings(run, reports, diagnostics)
    kept = _keep_model(run, server, reports)
    return RoundResult(ServerState(round, vector, buffers, state, kept, optimizer), records)


def _keep_model(run: Run, server: ServerState, reports: Reports) -> State:
    """Keep the model that clients received and scored, for a service that chooses among them."""
    after = server.round  # the initial model is never served
    if not isinstance(run.spec.service, Checkpoints) or after == 0:
        return server.kept
    if after % keep_every(run.settings.rounds, server.vector):
        return server.kept
    scores, clients = reports.extras["scores"], reports.client_indices
    return keep_checkpoint(server.kept, after, server.vector, scores, clients, len(run.ids))


def _check_outcome(
    run: Run, outcome: Any, reports: Reports
) -> tuple[State, Tensor, Mapping[str, Tensor]]:
    """Return what `aggregate` returned, or say in words what is wrong with it."""
    wrong = None
    if not isinstance(outcome, tuple) or len(outcome) != 3:
        wrong = f"{_describe(outcome)} in place of (state, step, diagnostics)"
    elif not _is_state(outcome[0]):
        wrong = f"{_describe(outcome[0])} as state; it must be a dictionary of tensors"
    elif not isinstance(outcome[1], Tensor) or not outcome[1].is_floating_point():
        wrong = f"{_describe(outcome[1])} as step; it must be a tensor of real numbers"
    elif not _is_state(outcome[2]):
        wrong = f"{_describe(outcome[2])} as diagnostics; they must be a dictionary of tensors"
    else:
        for name, value in outcome[2].items():
            if value.shape not in ((), (len(reports),)) or value.is_complex():
                wrong = (
                    f"{_describe(value)} as diagnostic {name!r}; give one number, or one for each "
                    f"of the {len(reports)} reporting clients"
                )
    if wrong is not None:
        raise SettingsError(f"{run.method.label}: aggregate returned {wrong}")
    state, step, diagnostics = outcome
    return state, step, diagnostics


def _check_plan(run: Run, planned: Any) -> tuple[State, Plan]:
    """Return what `plan` returned, or say in words what is wrong with it."""
    is_pair = isinstance(planned, tuple) and len(planned) == 2
    if not is_pair or not _is_state(planned[0]) or not isinstance(planned[1], Plan):
        raise SettingsError(
            f"{run.method.label}: plan returned {_describe(planned)}; return (state, Plan(...)), "
            "the state a dictionary of tensors"
        )
    state, plan = planned
    return state, plan


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(item, Tensor) for key, item in value.items()
    )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


def apply_step(run: Run, vector: Tensor, step: Tensor, round: int) -> Tensor:
    """Subtract the step from the model, after checking its shape and that it is finite."""
    if step.shape != vector.shape:
        raise SettingsError(
            f"{run.method.label}: its step has shape {list(step.shape)}; "
            f"it must have one number per parameter, {list(vector.shape)}"
        )
    step = step.to(vector)
    moved = vector - step
    # A sum is finite only if all its terms are: it nearly always answers the question. A step that
    # is not finite makes a model that is not.
    if not math.isfinite(float(moved.sum())) and not torch.isfinite(moved).all():
        what = "the model is" if torch.isfinite(step).all() else "the server's step is"
        raise DivergedError(
            f"{run.method.label}: {what} not finite in round {round}; "
            "try a smaller lr or another step rule"
        )
    return moved


def check_quorum(run: Run, round: int, usable: int, records: list[Record]) -> None:
    """Stop the run if fewer clients than the quorum have a usable report."""
    if usable >= run.spec.quorum:
        return
    reasons = [
        str(r.value) if r.metric == "excluded" else f"{r.client}: {r.value}"
        for r in records
        if r.metric in ("absent", "excluded")
    ]
    raise QuorumError(
        f"round {round}: {usable} usable reports, fewer than the quorum of {run.spec.quorum} "
        f"({'; '.join(reasons)}). The run is as it was after round {round - 1}; start the missing "
        "clients and resume it from its folder, or lower the quorum"
    )


def _collect(
    run: Run, server: ServerState, request: TrainRequest, replies: Replies
) -> tuple[Reports | None, list[int], dict[str, ReportError]]:
    """Build `Reports` as `collect` does; raise the first error if the settings say so."""
    errors = dict(replies.errors)
    reports: Reports | None = None
    rows: list[int] = []
    if replies.deltas is not None and len(replies.ids):
        reports, rows, unusable = collect(
            replies.ids,
            replies.deltas,
            replies.columns,
            all_ids=run.ids,
            round=request.round,
            lr=run.lr(request.round),
            momentum=run.momentum(request.plan),
            model=server.vector,
            rejected=find_bad_buffers(replies, request.round),
            is_regression=run.is_regression,
        )
        errors |= unusable
    if errors and run.settings.on_bad_report == "fail":
        raise next(iter(errors.values()))
    return reports, rows, errors


def _absence_records(
    round: int,
    absent: Mapping[str, str],
    unusable: Mapping[str, str | ReportError],
    used: Iterable[str],
) -> list[Record]:
    """Return why clients are left out; one that is `used` all the same gets a warning."""
    used = set(used)
    records = [Record(round, client, "absent", reason) for client, reason in absent.items()]
    return records + [
        Record(round, client, "warning" if client in used else "excluded", str(reason))
        for client, reason in unusable.items()
    ]


def _mix_losses(run: Run, server: ServerState, state: State, replies: Replies) -> Replies:
    """Add one loss per client where several models train: weighted by its shares of them."""
    each = replies.columns.get("losses_of_each")
    if each is None or each.shape[1:] != (run.method.n_models,):
        return replies
    served = run.method.served(state, server.vector)
    if served is None:
        shares = torch.full_like(each, 1 / each.shape[1])
    else:
        indices = [run.ids.index(name) for name in replies.ids]
        shares = served.shares[torch.tensor(indices)].to(each)
    columns = {**replies.columns, "losses": (shares * each).sum(dim=1)}
    return replace(replies, columns=columns)


def _log_warnings(run: Run, reports: Reports, diagnostics: Mapping[str, Tensor]) -> None:
    """Log the method's warnings about this round, each distinct one once per run."""
    found = run.method.warning(reports.ids, dict(diagnostics))
    for warning in found if isinstance(found, list | tuple) else [found]:
        if warning is not None and warning not in run.logged_warnings:
            run.logged_warnings.add(warning)
            logger.warning("%s", warning, extra={"warning": warning})

"""From clients' replies to one `Reports`: who is away is recorded, what cannot be used stops the run or is left out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import torch
from flwr.app import Message
from torch import Tensor

from udjfl.errors import ReportError
from udjfl.flower.errors import QuorumError, absence, error_text
from udjfl.flower.ground import Ground
from udjfl.flower.messages import NUMBERS, Facts, Reply
from udjfl.flower.post import Post
from udjfl.flower.registration import Meeting
from udjfl.methods import Plan, Reports, State
from udjfl.methods.intake import ClientReport, collect
from udjfl.training.asking import mean_buffers
from udjfl.training.rounds import Server
from udjfl.training.run_folder import Record

LATE = "did not reply in time"
NOT_HERE = "is not connected"
Read = dict[int, list[Reply]]


@dataclass
class Round:
    """A round on its way: which clients (by their places) are asked, and what is known and to be recorded so far."""

    t: int
    server: Server
    rows: list[int]
    state: State
    records: list[Record]
    plan: Plan = field(default_factory=Plan)
    excluded: dict[str, str] = field(default_factory=dict)


class Reading:
    """Reads the replies of a run's clients."""

    def __init__(
        self,
        facts: Facts,
        ground: Ground,
        meeting: Meeting,
        post: Post,
        max_update_norm: float | None,
    ) -> None:
        self.facts, self.ground, self.meeting, self.post = facts, ground, meeting, post
        self.ids, self.policy, self.max_update_norm = (
            ground.ids,
            facts.settings.on_bad_report,
            max_update_norm,
        )

    def read(self, now: Round, replies: Iterable[Message], n_buffers: int = 0) -> Read:
        """What each client that was asked replied, by its place, with so many buffers; who did not is recorded as absent."""
        row_at = {
            self.meeting.nodes[self.ids[row]]: row
            for row in now.rows
            if self.ids[row] in self.meeting.nodes
        }
        away = dict.fromkeys(row_at.values(), LATE)
        read: Read = {}
        for reply in replies:
            row = row_at.get(self.post.node_of(reply))
            if row is None:
                continue  # of a node that was not asked
            reason = absence(reply)
            if reason is not None:
                away[row] = reason
                continue
            away.pop(row, None)
            try:
                read.setdefault(row, []).append(
                    _with_buffers(readable(reply, self.ids[row], now.t), n_buffers, now.t)
                )
            except ReportError as error:
                if self.policy == "fail":
                    raise
                now.excluded[self.ids[row]] = str(error)
        for row, reason in away.items():
            now.records.append(Record(now.t, self.ids[row], "absent", reason))
            self.meeting.lose(self.ids[row])
        return {row: found for row, found in sorted(read.items()) if found}

    def probed(self, now: Round, replies: Iterable[Message]) -> Reports | None:
        """What clients say before they train, as reports of updates that are zero."""
        probes = self.facts.method.probes
        names = probes - {"losses"}
        owed = (self.ground.owed - {"losses", "steps"}) | (probes & {"losses"})
        none = torch.zeros_like(now.server.vector)
        sent = [
            replace(report, delta=none)
            for report in self._reports(now, self.read(now, replies), names)
        ]
        return self._collected(now, sent, names, owed, None)

    def trained(self, now: Round, replies: Iterable[Message]) -> tuple[Reports | None, Tensor]:
        """What clients say after training, and the mean of their buffers."""
        read = self.read(now, replies, len(now.server.buffers))
        names = frozenset(self.ground.terms.extras - {"validation_accuracies"})
        owed = self.ground.owed | ({"losses"} if "losses_of_each" in names else frozenset())
        reports = self._collected(
            now, self._reports(now, read, names), names, owed, self.max_update_norm
        )
        before = now.server.buffers
        if reports is None or not len(before):
            return reports, before
        first = {
            self.ids[row]: found[0].tensors["buffers"].to(torch.float64)
            for row, found in read.items()
        }
        return reports, mean_buffers(
            reports, reports.ids, torch.stack([first[name] for name in reports.ids]), before
        )

    def _reports(self, now: Round, read: Read, names: Collection[str]) -> list[ClientReport]:
        """What clients sent in this round, with what the server knows of them from before."""
        return [
            self._report(now, row, reply, names) for row, found in read.items() for reply in found
        ]

    def _report(self, now: Round, row: int, reply: Reply, names: Collection[str]) -> ClientReport:
        client, size, dtype = self.ids[row], self.ground.roster.sizes[row], now.server.vector.dtype
        extras = reply.extras(names, dtype)
        loss, each = reply.numbers.get(NUMBERS["losses"]), extras.get("losses_of_each")
        if each is not None and each.shape == (self.facts.method.n_models,):
            loss = float(
                self.ground.terms.mixed_losses(each[None], now.server.vector, now.state, [row])[0]
            )
        delta, buffers = reply.tensor("delta", dtype), reply.tensor("buffers", torch.float64)
        return ClientReport(
            client,
            torch.zeros(0, dtype=dtype) if delta is None else delta,
            loss,
            None if size != size else size,
            self.meeting.uncertainties.get(client),
            reply.numbers.get(NUMBERS["steps"]),
            extras,
            torch.zeros(0) if buffers is None else buffers,
        )

    def _collected(
        self,
        now: Round,
        sent: list[ClientReport],
        names: Collection[str],
        owed: Collection[str],
        longest: float | None,
    ) -> Reports | None:
        s = self.facts.settings
        momentum = 0.0 if now.plan.one_full_step else s.momentum
        reports, unusable = collect(
            sent,
            self.ids,
            len(now.server.vector),
            now.t,
            s.lr,
            momentum,
            self.policy,
            needs=names,
            model=now.server.vector,
            owed=owed,
            max_update_norm=longest,
        )
        now.excluded |= unusable
        return reports

    def scores(
        self, t: int, replies: Iterable[Message], records: list[Record]
    ) -> dict[str, tuple[float, float]]:
        """Loss and accuracy (0 to 1) of the clients that could be evaluated; why the others could not is recorded."""
        found: dict[str, tuple[float, float]] = {}
        reasons = dict.fromkeys(self.ids, NOT_HERE) | dict.fromkeys(self.meeting.nodes, LATE)
        late = set(self.meeting.nodes)
        for reply in replies:
            client = self.meeting.client_at(self.post.node_of(reply))
            if client is None:
                continue
            reason = absence(reply)
            if reason is not None:
                reasons[client] = reason
                continue
            late.discard(client)
            try:
                found[client] = _score(readable(reply, client, t), t)
            except ReportError as error:
                if self.policy == "fail":
                    raise
                reasons[client] = str(error)
        records += [
            Record(t, name, "not_evaluated", reasons[name])
            for name in self.ids
            if name not in found
        ]
        for client in late:
            self.meeting.lose(client)
        return found


def check_quorum(
    now: Round, reports: Reports | None, quorum: int, out: str | os.PathLike[str] | None
) -> None:
    """Stop if fewer clients than the quorum have a usable report in this round."""
    usable = 0 if reports is None else len(reports)
    if usable >= quorum:
        return
    why = [
        f"{record.client}: {record.value}"
        for record in now.records
        if record.metric in ("absent", "excluded")
    ]
    why += now.excluded.values()
    go_on = (
        f"start the missing clients and resume from {out}"
        if out
        else "keep a run in a folder to resume it"
    )
    raise QuorumError(
        f"round {now.t}: {usable} usable reports, fewer than the quorum of {quorum} ({'; '.join(why)}). "
        f"The run is as it was after round {now.t - 1}; {go_on}, or lower the quorum"
    )


def readable(message: Message, client: str, t: int) -> Reply:
    """The reply of the node that introduced itself as this client, known to be that client's and of this round."""
    if message.has_error():
        raise ReportError(client, "reply", error_text(message), t)
    reply = Reply.read(message.content, client, t)
    if reply.id != client:
        raise ReportError(
            client,
            "id",
            f"is {reply.id!r} in its reply, and was {client!r} before; a client keeps its id",
            t,
        )
    if reply.about.get("round") != t:
        raise ReportError(
            client,
            "round",
            f"is {reply.about.get('round')!r} in its reply; the server is in round {t}",
            t,
        )
    return reply


def _with_buffers(reply: Reply, count: int, t: int) -> Reply:
    found = reply.tensors.get("buffers", torch.zeros(0))
    if found.shape != (count,):
        raise ReportError(
            reply.id, "buffers", f"has shape {list(found.shape)}; the model has {count}", t
        )
    return reply


def _score(reply: Reply, t: int) -> tuple[float, float]:
    loss, accuracy = reply.numbers.get("test-loss"), reply.numbers.get("test-accuracy")
    if loss is None or accuracy is None or not 0 <= accuracy <= 1:
        raise ReportError(reply.id, "test accuracy", f"is {accuracy}; it must be from 0 to 1", t)
    return loss, accuracy

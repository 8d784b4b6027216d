"""Round after round, several methods side by side: what they ask of the same clients is computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from udjfl.engine import LocalResult
from udjfl.errors import DivergedError, NotDefinedError, ReportError
from udjfl.training.rounds import Evaluated, Loop, Opened, Progress, Server, evaluation
from udjfl.training.run_folder import History, Record, RunFolder

# What can stop one method of several without touching the others.
Failure = DivergedError | ReportError | NotDefinedError
FAILURES = (DivergedError, ReportError, NotDefinedError)


@dataclass
class Player:
    """One method on its way: where its server is, what it has recorded, and what stopped it, if something did."""

    loop: Loop
    server: Server
    history: History
    folder: RunFolder | None
    progress: Progress | None
    notes: list[str]
    failure: Failure | None = None
    evaluated: Evaluated | None = None  # of the last round, if it was played here

    @property
    def rounds(self) -> int:
        return self.loop.settings.rounds

    @property
    def is_playing(self) -> bool:
        return self.failure is None and self.server.round < self.rounds

    def keep(self, records: list[Record]) -> None:
        """Write down a round that was played."""
        t = self.server.round
        self.history.records.extend(records)
        if self.folder:
            self.folder.append(records)
            if t % self.loop.settings.checkpoint_every == 0 or t == self.rounds:
                self.folder.save_checkpoint(t, self.server.tensors())
        if self.progress:
            self.progress("training", t, self.rounds)


def play(players: Sequence[Player]) -> None:
    """All rounds that are left, of methods on one federation. One that fails keeps its error and leaves the others alone.

    Methods that are behind (one that was stopped earlier than the others) catch up first: only those in the same round see the
    same batches, and can share them.
    """
    for player in players:
        if player.progress and player.server.round:
            player.progress("resumed", player.server.round, player.rounds)
    late: _Late | None = None
    try:
        while playing := [player for player in players if player.is_playing]:
            now = min(player.server.round for player in playing)
            late = _one_round([player for player in playing if player.server.round == now], late)
    finally:  # whatever stops the next round, this one was played
        if late:
            late.settle()


class _Late:
    """A round that was played and is still being evaluated: `evaluated` waits for that. It is then written down."""

    def __init__(self, records: Sequence[tuple[Player, list[Record]]]) -> None:
        self.records = records
        self.seen = [
            (player, own)
            for player, own in records
            if player.loop.is_evaluated(player.server.round)
        ]
        follows = any(player.is_playing for player, _ in records)
        self.evaluated = evaluation(
            [p.loop for p, _ in self.seen], [p.server for p, _ in self.seen], follows
        )

    def settle(self) -> None:
        """Write the round down, once."""
        records, self.records = self.records, ()
        if not records:
            return
        for (player, own), found in zip(self.seen, self.evaluated(), strict=True):
            player.evaluated = found
            own += player.loop.evaluation_records(player.server.round, found)
        for player, own in records:
            player.keep(own)


def _one_round(players: Sequence[Player], late: _Late | None) -> _Late:
    """Play a round, and meanwhile settle the one before. Its own evaluation may be under way when this returns."""
    opened = [(player, half) for player in players if (half := _begun(player)) is not None]
    results = _trained(opened)
    if late:
        late.settle()
    records: list[tuple[Player, list[Record]]] = []
    for place, (player, half) in enumerate(opened):
        try:
            player.server, own = player.loop.finish(player.server, half, results[place])
            records.append((player, own))
        except FAILURES as error:
            player.failure = error.with_traceback(None)  # which would keep the round's tables alive
    return _Late(records)


def _begun(player: Player) -> Opened | None:
    try:
        return player.loop.begin(player.server)
    except FAILURES as error:
        player.failure = error.with_traceback(None)  # which would keep the round's tables alive
        return None


def _trained(opened: Sequence[tuple[Player, Opened]]) -> dict[int, list[LocalResult]]:
    """The results of everybody's jobs, by place; jobs for the same engine are handed over together."""
    by_engine: dict[int, list[int]] = {}
    for place, (player, _) in enumerate(opened):
        by_engine.setdefault(id(player.loop.engine), []).append(place)
    results: dict[int, list[LocalResult]] = {}
    for places in by_engine.values():
        jobs = [job for place in places for job in opened[place][1].jobs]
        done = iter(opened[places[0]][0].loop.engine.train_many(jobs))
        for place in places:
            results[place] = [next(done) for _ in opened[place][1].jobs]
    return results

"""Any method of the registry as a strategy of Flower: the same rounds as in the simulator, with clients that are elsewhere."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from udjfl._ids import id_sort_key
from udjfl.engine import one_thread
from udjfl.errors import SettingsError
from udjfl.flower import folder as folders
from udjfl.flower import messages as wire
from udjfl.flower.data import ServerData
from udjfl.flower.ground import Ground, refuse, settled
from udjfl.flower.messages import Facts
from udjfl.flower.post import Post
from udjfl.flower.reading import NOT_HERE, Reading, Round, check_quorum
from udjfl.flower.registration import Meeting
from udjfl.methods import Method, Reports
from udjfl.models import ModelChoice, describe
from udjfl.settings import TrainingSettings
from udjfl.training.asking import Answers
from udjfl.training.keeping import finished, run_folder
from udjfl.training.result import Result
from udjfl.training.rounds import Evaluated, Server, Steps, evaluation_records
from udjfl.training.run_folder import Record

logger = logging.getLogger("udjfl")


class MethodStrategy(Strategy):
    """A Flower strategy that runs a method as the simulator does: same federation, seed and settings, same numbers.

    method, settings, seed   as in `udjfl.simulate`; but clients drop out by themselves here
    clients                  how many to wait for; whoever is there then are the clients of the run
    quorum                   fewest usable reports for a round to count; None: more than half of those asked
    timeout                  seconds that clients have for each exchange; wait_timeout: for all to come
    out, resume              the run folder, and whether to go on with the run that is there
    server_data              the server's own data, and the shape of the clients'; without, clients tell the shape
    report_uncertainties     ask for uncertainties even if the method does without, so that the metrics can rank clients
    model                    as in `udjfl.simulate`, the same as in the clients' app; None: the one that settings name
    max_update_norm          a longer update is unusable; None: any finite one is used
    reference                the folder of a finished FedAvg run, with which the metrics include psi

    A client that is away misses the round, and is in its records as absent, with the reason; one whose reply cannot be used
    stops the run or is excluded, by `settings.on_bad_report`. With fewer usable reports than the quorum the run stops, and can
    be resumed from its folder, with nothing lost but that round. `start` leaves what `udjfl.simulate` returns in `result`.
    """

    def __init__(
        self,
        method: Method,
        *,
        settings: TrainingSettings,
        clients: int,
        seed: int = 0,
        quorum: int | None = None,
        timeout: float = 3600.0,
        wait_timeout: float = 600.0,
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        server_data: ServerData | None = None,
        report_uncertainties: bool = False,
        model: ModelChoice | None = None,
        max_update_norm: float | None = None,
        reference: str | os.PathLike[str] | None = None,
    ) -> None:
        asked = max(1, round(settings.participation * clients))
        self.quorum = asked // 2 + 1 if quorum is None else quorum
        refuse(method, settings, server_data, clients, self.quorum)
        name = settings.model if model is None else ""
        if model is not None:
            settings = settings.model_copy(update={"model": describe(model)})
        self.facts = Facts(method, settings, seed, name, report_uncertainties)
        self.text = self.facts.text()
        self.method, self.settings, self.seed, self.model = method, settings, seed, model
        self.clients, self.timeout, self.wait_timeout = clients, timeout, wait_timeout
        self.out, self.resume, self.server_data = out, resume, server_data
        self.max_update_norm, self.reference = max_update_norm, reference
        self.post = Post()
        self.meeting = Meeting(self.facts, self.post, timeout, wait_timeout)
        self.steps = Steps(method, settings)
        self.result: Result | None = None
        # From `prepare` on:
        self.ground: Ground
        self.reading: Reading
        self.keeper: folders.Keeper
        self.server: Server
        self.current: Round | None = None
        self.evaluated: Evaluated | None = None
        self.written: dict[str, float] = {}  # uncertainties in the folder

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Play the rounds that are left. Only `grid` is to be given: the strategy has its own of all the others."""
        others = {
            "initial_arrays": initial_arrays,
            "num_rounds": num_rounds,
            "timeout": timeout,
            "train_config": train_config,
            "evaluate_config": evaluate_config,
            "evaluate_fn": evaluate_fn,
        }
        mistakes = [
            f"{name}: leave it out; MethodStrategy has its own"
            for name, value in others.items()
            if value is not None
        ]
        if mistakes:
            raise SettingsError(mistakes)
        with one_thread():
            self.prepare(grid)
            try:
                while self.server.round < self.settings.rounds:
                    self._play(grid)
                if self.evaluated is None:  # the run was over before
                    self._evaluate(grid, self.server.round)
                self.result = self._finish()
            finally:
                self.keeper.checkpoint()  # so that whatever stopped the run costs no more than one round
        return FlowerResult(arrays=ArrayRecord(self.result.model.state_dict()))

    def prepare(self, grid: Grid) -> None:
        """Meet the clients, and be where the run begins or was stopped. Nothing is written before all is known to fit."""
        self.summary()
        if self.out is not None and not self.resume:
            folders.check_free(self.out)
        known = folders.members(self.out) if self.out is not None and self.resume else None
        if known is None:
            self._meet(grid)
        else:
            agreed, sizes = known
            self.ground = settled(self.facts, agreed, sizes, self.server_data, self.model)
            self.meeting.close(
                replace(agreed, model=wire.signature(self.ground.module)), list(sizes), sizes, 1
            )
            self.meeting.wait(grid, min(self.clients, len(sizes)), self.wait_timeout, 1)
        roster = self.ground.roster
        self.before = (
            None
            if self.reference is None
            else folders.reference_accuracies(self.reference, roster, self.seed)
        )
        folder = None
        if self.out is not None:
            about = folders.description(
                self.facts, roster, self.ground.module, self.max_update_norm
            )
            folder = run_folder(self.out, about, self.resume)
            folders.kept_uncertainties(folder, self.meeting)
        self.keeper = folders.Keeper(self.settings, self.ground.first, folder)
        self.server = self.keeper.server
        self.reading = Reading(
            self.facts, self.ground, self.meeting, self.post, self.max_update_norm
        )
        self.meeting.measure(grid, self.server.round + 1)
        self._keep_uncertainties()

    def _meet(self, grid: Grid) -> None:
        """Wait for the clients of a new run, and see that they agree."""
        self.meeting.wait(grid, self.clients, self.wait_timeout, 1)
        self.meeting.require(self.clients, self.wait_timeout)
        found = {
            name: self.meeting.known[name] for name in sorted(self.meeting.nodes, key=id_sort_key)
        }
        agreed = next(iter(found.values()))
        if self.server_data is not None:
            own = self.server_data
            agreed = replace(agreed, input_shape=own.input_shape, n_classes=own.n_classes)
        sizes = {name: one.size for name, one in found.items()}
        self.ground = settled(self.facts, agreed, sizes, self.server_data, self.model)
        self.meeting.close(
            replace(agreed, model=wire.signature(self.ground.module)), list(found), {}, 1
        )
        self.meeting.require(self.clients, self.wait_timeout)

    def _play(self, grid: Grid) -> None:
        t = self.server.round + 1
        messages = self.configure_train(t, self.arrays, ConfigRecord(), grid)
        self.aggregate_train(t, self.post.exchange(grid, messages, self.timeout))
        if self.steps.is_evaluated(t):
            self._evaluate(grid, t)
        assert self.current is not None
        self.keeper.keep(self.server, self.current.records)
        self.current = None
        logger.info("Round %d of %d is done.", t, self.settings.rounds)

    def _evaluate(self, grid: Grid, t: int) -> None:
        messages = self.configure_evaluate(t, self.arrays, ConfigRecord(), grid)
        self.aggregate_evaluate(t, self.post.exchange(grid, messages, self.timeout))

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """The question of a round: a message to each client that is asked and there."""
        self.meeting.greet(grid, server_round)
        self._keep_uncertainties()
        self.current = now = self._opened(server_round)
        if now.rows:
            vectors = self.ground.terms.sent(self.server.vector, now.state, now.rows)
            probed = self._probed(grid, now, vectors) if self.method.probes else None
            now.state, now.plan = self.method.plan(now.state, probed)
            shared = wire.arrays({**self._shared(vectors), **wire.pull(now.plan)})
        contents = {}
        for place, row in enumerate(now.rows):
            client = self.ground.ids[row]
            if client in self.meeting.nodes and client not in now.excluded:
                own = {**_own(vectors, place), **wire.multiplier(now.plan, row)}
                about = {"round": server_round, **wire.plan_numbers(now.plan)}
                contents[self.meeting.nodes[client]] = wire.question(
                    self.text, {**shared, **own}, about
                )
        now.rows = [
            row for row in now.rows if self.meeting.nodes.get(self.ground.ids[row]) in contents
        ]
        return self.post.messages(wire.TRAIN, contents, self.timeout)

    def _opened(self, t: int) -> Round:
        """Who is asked in this round, and who of them is there."""
        asked, _ = self.ground.terms.participants(t, self.server.state)
        names = {row: self.ground.ids[row] for row in asked}
        records = [record._replace(round=t) for record in self.meeting.said]
        self.meeting.said = []
        said = {record.client for record in records}
        here = [row for row, name in names.items() if name in self.meeting.nodes]
        away = [
            name for name in names.values() if name not in self.meeting.nodes and name not in said
        ]
        records += [Record(t, name, "absent", NOT_HERE) for name in away]
        return Round(t, self.server, here, self.server.state, records)

    def _probed(self, grid: Grid, now: Round, vectors: list[Tensor]) -> Reports | None:
        """What clients say before they train: a second exchange in the round."""
        shared = wire.arrays(self._shared(vectors))
        contents = {
            self.meeting.nodes[self.ground.ids[row]]: wire.question(
                self.text, {**shared, **_own(vectors, place)}, {"round": now.t}
            )
            for place, row in enumerate(now.rows)
        }
        messages = self.post.messages(wire.PROBE, contents, self.timeout)
        probed = self.reading.probed(now, self.post.exchange(grid, messages, self.timeout))
        check_quorum(now, probed, self.quorum, self.out)
        return probed

    def _shared(self, vectors: list[Tensor]) -> dict[str, Tensor]:
        """What all clients get alike: the model (or models, end to end), unless each has its own; and the buffers."""
        return {
            **({"model": self.server.vector} if vectors[0].ndim == 1 else {}),
            **self._buffers(),
        }

    def _buffers(self) -> dict[str, Tensor]:
        return {"buffers": self.server.buffers} if len(self.server.buffers) else {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """What the replies of a round make of the model. The numbers are in the run's records, not in Flower's."""
        now = self.current
        if now is None or now.t != server_round:
            raise SettingsError(
                f"round {server_round} was not configured; call configure_train first"
            )
        reports, buffers = self.reading.trained(now, replies)
        check_quorum(now, reports, self.quorum, self.out)
        if reports is not None and "validation_accuracies" in self.ground.terms.extras:
            scoring = self.ground.scoring
            reports = self.ground.terms.scored(
                reports, now.state, self.server.buffers, scoring.engine, scoring.validation
            )
        self.server, records = self.steps.stepped(
            self.server, Answers(reports, buffers, now.excluded, now.state)
        )
        now.records += records
        self.evaluated = None
        return self.arrays, MetricRecord()

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """A message to each client that is there, with the model that it uses, or those that it mixes."""
        served = self.method.served(self.server.state, self.server.vector)
        shared = wire.arrays(
            {**({"model": self.server.vector} if served is None else {}), **self._buffers()}
        )
        contents = {}
        for row, client in enumerate(self.ground.ids):
            if client not in self.meeting.nodes:
                continue
            own: dict[str, Tensor] = {}
            if served is not None:
                held = served.shares[row] > 0
                own = {"model": served.models[held], "shares": served.shares[row][held]}
            contents[self.meeting.nodes[client]] = wire.question(
                self.text, {**shared, **own}, {"round": server_round}
            )
        return self.post.messages(wire.EVALUATE, contents, self.timeout)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        """Each client's loss and accuracy, and those of the server's own test data, into the run's records."""
        records = [] if self.current is None else self.current.records
        found = self.reading.scores(server_round, replies, records)
        losses: list[float | None] = [
            found[name][0] if name in found else None for name in self.ground.ids
        ]
        accuracies: list[float | None] = [
            100 * found[name][1] if name in found else None for name in self.ground.ids
        ]
        loss, accuracy = self.ground.scoring.everybody(self.server)
        self.evaluated = Evaluated([*losses, loss], [*accuracies, accuracy])
        told = evaluation_records(server_round, self.ground.ids, self.evaluated)
        records += [record for record in told if record.client is None or record.client in found]
        return MetricRecord()

    def summary(self) -> None:
        """Say what is about to run."""
        asked = sorted({*self.method.asked, *self.method.probes} - {"validation_accuracies"})
        logger.info(
            "%s for %d rounds with %d clients, at least %d reports a round; clients send their updates%s.",
            self.method.label,
            self.settings.rounds,
            self.clients,
            self.quorum,
            "".join(f", {name}" for name in asked),
        )

    @property
    def arrays(self) -> ArrayRecord:
        """The server's model as one vector, and its buffers."""
        return wire.packed({"model": self.server.vector, **self._buffers()})

    def _keep_uncertainties(self) -> None:
        if (
            self.keeper.folder is not None
            and self.facts.tells_uncertainty
            and self.meeting.uncertainties != self.written
        ):
            self.written = dict(self.meeting.uncertainties)
            folders.keep_uncertainties(
                self.keeper.folder, self.facts, self.ground.roster, self.meeting
            )

    def _finish(self) -> Result:
        assert self.evaluated is not None, "the last round is always evaluated"
        ground, notes = self.ground, list(self.ground.notes)
        missing = [
            name
            for name, v in zip(ground.ids, self.evaluated.accuracies, strict=False)
            if v is None
        ]
        if missing:
            notes.append(
                f"Not evaluated after the last round, and in no metric: {', '.join(missing)}."
            )
        known = folders.uncertainty(self.facts, ground.roster, self.meeting)
        return finished(
            self.method,
            self.seed,
            ground.module,
            self.server,
            self.evaluated,
            ground.ids,
            known,
            self.keeper.everything(),
            self.keeper.folder,
            notes,
            self.before,
            ground.scoring.why_no_global,
        )


def _own(vectors: list[Tensor], place: int) -> dict[str, Tensor]:
    """The model of the client at this place of those asked, where each has its own."""
    return {"model": vectors[0][place]} if vectors[0].ndim == 2 else {}

"""Any method as a Flower strategy: the rounds of `udjfl.training`, with clients elsewhere."""

import hashlib
import json
import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from udjfl._ids import sort_ids
from udjfl.engine import one_thread
from udjfl.errors import NotDefinedError, SettingsError, StorageError
from udjfl.flower.client_info import ClientInfo
from udjfl.flower.data import ServerData
from udjfl.flower.exchange import Exchange
from udjfl.flower.messages import model_signature
from udjfl.flower.registration import ClientRegistry
from udjfl.flower.remote_clients import RemoteClients
from udjfl.flower.server_evaluation import ServerEvaluation
from udjfl.methods import SERVER_SIDE, Method
from udjfl.models import ModelChoice, describe
from udjfl.settings import TrainingSettings
from udjfl.training.evaluation import Evaluation
from udjfl.training.federation_info import FederationInfo
from udjfl.training.finish import finish_run
from udjfl.training.inputs import STORED_TYPES
from udjfl.training.lifecycle import RunLog, describe_run, open_run_folder
from udjfl.training.references import reference_accuracies, reference_scores
from udjfl.training.result import Result
from udjfl.training.round import run_round
from udjfl.training.run_folder import RunFolder
from udjfl.training.server_state import initial_state
from udjfl.training.service import check_service, parse_service
from udjfl.training.state import Run, RunSpec, count_selected
from udjfl.uncertainty import Uncertainty

logger = logging.getLogger("udjfl")
NAME = "flower"
# Far more than honest clients need: up to 5.6 with few examples, or few classes, at some of them.
MAX_UPDATE_RATIO = 100.0


class MethodStrategy(Strategy):
    """A Flower strategy that runs a method as the simulator does.

    The same federation, seed and settings give the same numbers.

    method, settings, seed   as in `udjfl.simulate`; but clients drop out by themselves here
    clients                  how many to wait for; those that come are the clients of the run
    quorum                   fewest usable reports for a round to count; None: more than half of
                             those asked
    timeout, wait_timeout    seconds that clients have for each exchange, and to register
    out, resume              the run folder, and whether to continue the run that is there
    server_data              the server's own data, and the shape of the clients'; without it,
                             clients report the shape
    report_uncertainties     ask for uncertainties even if the method does not need them, so that
                             the metrics can rank clients
    model                    as in `udjfl.simulate`, the same as in the clients' app; None: the one
                             that the settings name
    max_update_norm          a longer update is unusable; None: any finite update is used
    max_update_ratio         the same, as a multiple of the median length of the round's updates, if
                             there are three or more
    record_scores            ask for scores even if the method does not need them, so that the run
                             can be the reference of a budget
    reference                the folder of a finished FedAvg run, with which the metrics include psi

    A client that is away misses the round, and is recorded as absent with the reason. One whose
    reply cannot be used stops the run or is excluded, by `settings.on_bad_report`. With fewer
    usable reports than the quorum the run stops, and can be resumed from its folder, with nothing
    lost but that round. `start` leaves what `udjfl.simulate` returns in `result`.
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
        record_scores: bool = False,
        max_update_ratio: float | None = MAX_UPDATE_RATIO,
    ) -> None:
        quorum = count_selected(settings, clients) // 2 + 1 if quorum is None else quorum
        check_supported(method, settings, server_data, clients, quorum)
        if model is not None:
            settings = settings.model_copy(update={"model": describe(model)})
        self.spec = RunSpec(
            method,
            settings,
            seed,
            model,
            report_uncertainties,
            quorum,
            max_update_norm,
            record_scores,
            max_update_ratio,
        )
        self.clients, self.timeout, self.wait_timeout = clients, timeout, wait_timeout
        self.out, self.resume, self.server_data = out, resume, server_data
        self.reference = reference
        self.result: Result | None = None
        self._folder: RunFolder | None = None

    def start(self, grid: Grid, *arguments: object, **keywords: object) -> FlowerResult:
        """Run the rounds that are left. The strategy has its own values of all other arguments."""
        if arguments or keywords:
            names = ", ".join(keywords) or "all arguments but grid"
            raise SettingsError(f"{names}: leave it out; MethodStrategy has its own")
        with one_thread():
            try:
                self.prepare(grid)
                self.result = self._run_rounds()
            finally:
                if self._folder is not None:
                    self._folder.unlock()
        return FlowerResult(arrays=ArrayRecord(self.result.model.state_dict()))

    def _run_rounds(self) -> Result:
        evaluation: Evaluation | None = None
        try:
            while self.log.server.round < self.spec.settings.rounds:
                evaluation = self.run_round()
            if evaluation is None:  # the run was over before
                evaluation = self.remote.evaluate(self.log.server)
        finally:  # whatever stopped the run costs no more than one round
            self.log.save_checkpoint()
        return finish_run(
            self.run,
            self.module,
            self.log,
            evaluation,
            self.registry.known_uncertainty(self.run.ids),
            self.notes,
            self._reference,
        )

    def run_round(self) -> Evaluation | None:
        """Run one round and write it down; return its evaluation, if it is the last one.

        Clients evaluate the model of another round while they train in the next one, and its
        evaluation is written down with that.
        """
        result = run_round(self.run, self.log.server, self.remote)
        round, evaluation = result.server.round, None
        records = [*self.remote.evaluation.take_records(), *result.records]
        if round == self.spec.settings.rounds:
            evaluation = self.remote.evaluate(result.server)
            records += evaluation.records(round)
        elif self.run.is_evaluated(round):
            self.remote.evaluation.postpone(result.server)
        self.log.write(result.server, records)
        self._save_uncertainties()
        logger.info("Round %d of %d is done.", round, self.spec.settings.rounds)
        return evaluation

    def prepare(self, grid: Grid) -> None:
        """Register the clients, and restore the run; nothing is written before all fits."""
        self.summary()
        if self.out is not None and not self.resume and RunFolder(Path(self.out)).holds_a_run:
            raise StorageError(
                f"{self.out} already holds a run; continue it with resume = true, or choose "
                "another folder"
            )
        self.registry = ClientRegistry(self.spec, grid, self.timeout, self.wait_timeout)
        members = read_members(self.out) if self.out is not None and self.resume else None
        agreed, sizes = members or self._wait_for_all()
        federation = FederationInfo(
            tuple(sizes),
            tuple(math.nan if size is None else float(size) for size in sizes.values()),
            torch.zeros(2, *agreed.input_shape, dtype=STORED_TYPES[agreed.input_type]),
            agreed.n_classes,
            agreed.has_groups,
            self.server_data is not None and self.server_data.validation is not None,
            labels_are_numbers=agreed.n_classes == 0,
        )
        self.run = Run(self.spec, federation)
        self.module, server, self.notes = initial_state(
            self.run,
            self.spec.build_model(federation),
            reference_scores(self.reference, self.run.ids),
        )
        expected = replace(agreed, model=model_signature(self.module))
        self.registry.freeze(expected, list(sizes), {} if members is None else sizes)
        if members is None:
            self.registry.check_enough(self.clients)
        else:
            self.registry.wait_for(min(self.clients, len(sizes)))
        score = self.spec.task(federation).score.kind
        self._reference = reference_accuracies(self.reference, self.run.ids, self.spec.seed, score)
        if self.out is not None:
            self._folder = open_run_folder(self.out, self._describe(), self.resume)
            load_uncertainties(self._folder, self.registry)
        self.log = RunLog(self.spec.settings, server, self._folder)
        demands = self.spec.demands(self.run.federation)
        evaluation = ServerEvaluation(self.module, self.server_data, self.spec.method, demands)
        exchange = Exchange(self.run, self.registry, self.timeout)
        self.remote = RemoteClients(self.run, exchange, evaluation, len(server.buffers))
        if self._lacks_evaluation():
            self.remote.evaluation.postpone(self.log.server)
        self.registry.round = self.log.server.round + 1
        self.registry.request_uncertainties()
        self._save_uncertainties()

    def _lacks_evaluation(self) -> bool:
        """Return whether the run was stopped before its last round was evaluated."""
        round = self.log.server.round
        if not 0 < round < self.spec.settings.rounds or not self.run.is_evaluated(round):
            return False
        return not any(
            record.round == round and record.metric == "test_accuracy"
            for record in self.log.history().records
        )

    def _wait_for_all(self) -> tuple[ClientInfo, dict[str, float | None]]:
        """Wait for all clients; return what they agree on, and how many examples each has."""
        self.registry.wait_for(self.clients)
        self.registry.check_enough(self.clients)
        infos = [self.registry.infos[name] for name in sort_ids(self.registry.nodes)]
        agreed, sizes = infos[0], {info.client: info.size for info in infos}
        if self.server_data is not None:
            own = self.server_data
            agreed = replace(agreed, input_shape=own.input_shape, n_classes=own.n_classes)
        return agreed, sizes

    def _describe(self) -> dict[str, Any]:
        """Describe the run as far as the server knows it."""
        federation = self.run.federation
        shared = {
            "input_shape": list(federation.input_shape),
            "n_classes": federation.n_classes,
            "has_groups": federation.has_groups,
        }
        kind = federation.inputs.describe().get("input_type")
        shared |= {} if kind is None else {"input_type": kind}
        digest = hashlib.sha256(json.dumps([federation.ids, shared], sort_keys=True).encode())
        description = {
            "name": NAME,
            "fingerprint": digest.hexdigest(),
            "clients": [
                {"id": name, "train": None if math.isnan(size) else int(size)}
                for name, size in zip(federation.ids, federation.sizes, strict=True)
            ],
            **shared,
        }
        return describe_run(
            self.run,
            self.module,
            description,
            flower={
                "report_uncertainties": self.spec.report_uncertainties,
                "max_update_norm": self.spec.max_update_norm,
                "max_update_ratio": self.spec.max_update_ratio,
                **({"record_scores": True} if self.spec.record_scores else {}),
            },
            reference=reference_scores(self.reference, self.run.ids),
        )

    def _save_uncertainties(self) -> None:
        """Write the uncertainties reported so far into the run folder."""
        folder = self.log.folder
        if folder is None or not self.spec.needs_uncertainties:
            return
        reported = [name for name in self.run.ids if name in self.registry.uncertainties]
        content = {**self.registry.known_uncertainty(self.run.ids).as_dict(), "told": reported}
        if folder.read_json("uncertainty.json") != content:
            folder.write_json("uncertainty.json", content)

    def summary(self) -> None:
        """Log what is about to run."""
        method = self.spec.method
        logger.info(
            "%s for %d rounds with %d clients, at least %d reports a round; clients send their "
            "updates%s.",
            method.label,
            self.spec.settings.rounds,
            self.clients,
            self.spec.quorum,
            "".join(f", {name}" for name in sorted({*method.needs, *method.probes} - SERVER_SIDE)),
        )
        service = self.spec.service
        if service is not None:
            logger.info(
                "With the service %s clients also send their uncertainty and, %s.",
                service.kind,
                service.sends,
            )

    def _reject_call(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise SettingsError("MethodStrategy runs whole rounds itself: call start(grid)")

    # The parts of Flower's own `start`, which this strategy replaces.
    configure_train = aggregate_train = _reject_call
    configure_evaluate = aggregate_evaluate = _reject_call


def check_supported(
    method: Method,
    settings: TrainingSettings,
    data: ServerData | None,
    clients: int,
    quorum: int,
) -> None:
    """Raise an error, before anything is sent, for what cannot be run across machines."""
    mistakes = []
    if clients < 1:
        mistakes.append(f"clients: is {clients}; give how many there are")
    elif not 1 <= quorum <= (asked := count_selected(settings, clients)):
        mistakes.append(
            f"quorum: is {quorum}; give a number from 1 to {asked}, of the clients asked in a round"
        )
    try:
        service = parse_service(settings.service)
    except SettingsError as error:
        mistakes += error.mistakes
    if settings.drop_out:
        mistakes.append("drop-out: leave it at 0; across machines clients drop out by themselves")
    if mistakes:
        raise SettingsError(mistakes)
    check_service(service, method)
    if method.needs_alone:
        raise NotDefinedError(
            f"{method.label}: reads the scores of clients alone, which are known in the simulator "
            "only; choose another floor or advantage"
        )
    if "validation_accuracies" in method.needs and (data is None or data.validation is None):
        raise NotDefinedError(
            f"{method.name}: scores clients' models on data of the server's own, and the server "
            "has none (it cannot take those of clients, which stay with them); give "
            "ServerData(validation=(x, y)), or choose another method"
        )
    if method.n_models > 1 and "losses" in method.needs:
        raise NotDefinedError(
            f"{method.name}: trains {method.n_models} models; it has to ask for losses_of_each, "
            "not losses"
        )


def read_members(
    out: str | os.PathLike[str],
) -> tuple[ClientInfo, dict[str, float | None]] | None:
    """Read from a run folder what its clients agreed on, and how many examples each reported."""
    if not RunFolder(Path(out)).holds_a_run:
        return None
    folder = RunFolder.open(out)
    federation = folder.read_settings("federation")["federation"]
    try:
        agreed = ClientInfo(
            client="",
            input_shape=tuple(int(size) for size in federation["input_shape"]),
            n_classes=int(federation["n_classes"]),
            has_groups=bool(federation["has_groups"]),
            model="",
            size=None,
            input_type=str(federation.get("input_type", "float32")),
        )
        return agreed, {str(client["id"]): client["train"] for client in federation["clients"]}
    except (KeyError, TypeError, ValueError):
        raise StorageError(
            f"{folder.path} holds a run that was not made across machines; choose another folder"
        ) from None


def load_uncertainties(folder: RunFolder, registry: ClientRegistry) -> None:
    """Restore the uncertainties that clients reported to this run before."""
    content = folder.read_json("uncertainty.json")
    if content is None:
        return
    try:
        values = {k: v for k, v in content["values"].items() if k in content["told"]}
        known = Uncertainty.from_dict({**content, "values": values})
        epistemic = content["epistemic"] or {}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StorageError(
            f"{folder.path / 'uncertainty.json'} is damaged; delete it and resume: clients are "
            "asked for them again"
        ) from None
    registry.uncertainties = dict(known.values)
    registry.unreliable = set(known.unreliable)
    registry.epistemic = {name: value for name, value in epistemic.items() if value is not None}

"""The app of a client: it trains, measures and evaluates on its own data, and sends what the run's method declares.

What leaves a client, once: its id, the shape of an example, the number of classes, whether there is a sensitive attribute, the
names and shapes of its model; the number of train examples, if the method needs it (or the model has buffers, whose mean is by
examples); its uncertainty, if the method needs it or `report-uncertainties` is set. In each round: the change of the model, and
of losses, steps and the rest only what the method names in `asked`, `probes` and, with a sensitive attribute, `needs_groups`.
After evaluated rounds: loss and accuracy on its test part. The client reads that list from the method itself, not from the
server's question.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from udjfl.data import Examples
from udjfl.engine import Engine, EvaluationSet, TrainJob, make_engine, one_thread, probe
from udjfl.errors import DataError, SettingsError
from udjfl.flower import messages as wire
from udjfl.flower.data import ClientData
from udjfl.flower.messages import NUMBERS, Facts
from udjfl.models import ModelChoice
from udjfl.training.asking import Roster, Terms, joined_deltas, of_training
from udjfl.training.rounds import adapted, fitting_model
from udjfl.uncertainty import measure

KEPT = "udjfl-uncertainty"
Work = Callable[["LocalClient", Message, Context], RecordDict]


def client_app(model: ModelChoice, data: Callable[[Context], ClientData]) -> ClientApp:
    """The app of a client.

    `model` is what `udjfl.simulate` takes, the same as the server's; the run's configuration may name another. `data` is
    called with Flower's context for every message: it returns this client's data, for example those in a folder that
    `context.node_config` names, always the same.
    """
    app = ClientApp()

    def handler(work: Work) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            with one_thread():
                client = LocalClient(
                    model, _checked(data(context)), Facts.read(wire.config_of(message.content))
                )
                return Message(work(client, message, context), reply_to=message)

        return handle

    app.query("introduce")(handler(lambda client, _, __: client.introduction()))
    app.query("uncertainty")(handler(lambda client, _, context: client.uncertainty(context)))
    app.query("probe")(handler(lambda client, message, _: client.probed(message.content)))
    app.train()(handler(lambda client, message, _: client.trained(message.content)))
    app.evaluate()(handler(lambda client, message, _: client.evaluated(message.content)))
    return app


def _checked(given: object) -> ClientData:
    if not isinstance(given, ClientData):
        raise DataError(
            f"the client's data function returned {type(given).__name__}; it must return udjfl.flower.ClientData"
        )
    return given


class LocalClient:
    """One client at work. Made anew for every message: nothing is remembered but the uncertainty, in Flower's context."""

    def __init__(self, model: ModelChoice, data: ClientData, facts: Facts) -> None:
        self.facts, self.id, self.federation = facts, data.id, data.federation
        self.model: ModelChoice = facts.model or model
        self.roster = Roster.of(self.federation)
        self.terms = Terms(self.roster, facts.method, facts.settings, facts.seed)
        self.plain = fitting_model(self.roster, facts.settings, facts.seed, self.model)

    @functools.cached_property
    def engine(self) -> Engine:
        module = adapted(self.facts.method, self.plain, self.facts.seed)
        return make_engine(module, self.federation.clients, self.facts.settings.engine, workers=1)

    def introduction(self) -> RecordDict:
        """Who this is."""
        module = adapted(self.facts.method, self.plain, self.facts.seed)
        has_buffers = any(buffer.numel() for buffer in module.buffers())
        tells_size = "sizes" in self.facts.owed(has_buffers)
        about = {
            "input-shape": list(self.roster.input_shape),
            "n-classes": self.roster.n_classes,
            "has-groups": self.roster.has_groups,
            "model": wire.signature(module),
        }
        return wire.answer(
            self.id, {}, {NUMBERS["sizes"]: self.federation.sizes[0]} if tells_size else {}, about
        )

    def uncertainty(self, context: Context) -> RecordDict:
        """How uncertain its data are: measured once in a run, and kept."""
        if not self.facts.tells_uncertainty:
            raise SettingsError(
                f"{self.facts.method.name}: does not need uncertainties, and report-uncertainties is not set"
            )
        if KEPT not in context.state:
            # A client that cannot measure it says so; what follows from that is for the server to decide.
            settings = self.facts.settings.model_copy(update={"on_bad_report": "exclude"})
            engine = make_engine(self.plain, self.federation.clients, settings.engine, workers=1)
            found = measure(self.federation, engine, settings, self.facts.seed, self.model)
            numbers = {NUMBERS["uncertainties"]: found.values[self.id]}
            if found.epistemic is not None and self.facts.report_uncertainties:
                numbers["epistemic"] = found.epistemic[self.id]
            context.state[KEPT] = MetricRecord(dict(numbers))
        kept = context.state.metric_records[KEPT]
        return wire.answer(self.id, {}, {name: float(kept[name]) for name in kept}, {})  # type: ignore[arg-type]

    def probed(self, content: RecordDict) -> RecordDict:
        """What the method must know before clients train."""
        tensors, names = wire.unpacked(content), self.facts.method.probes
        values = probe(self.engine, self._vectors(tensors)[0], self._buffers(tensors), [0], names)
        return self._reply(content, {}, values, names)

    def trained(self, content: RecordDict) -> RecordDict:
        """One round of local training."""
        tensors, facts = wire.unpacked(content), self.facts
        config = wire.config_of(content)
        vectors, buffers = self._vectors(tensors), self._buffers(tensors)
        values = probe(self.engine, vectors[0], buffers, [0], self.terms.extras)
        work = self.terms.planned(wire.read_plan(tensors, config), [0])
        address = (facts.seed, "batches", int(config["round"]))  # type: ignore[arg-type]
        results = self.engine.train_many(
            [TrainJob(vector, buffers, [0], work, address) for vector in vectors]
        )
        values |= of_training(results, self.terms.extras)
        sent = {"delta": joined_deltas(results)[0]}
        if results[0].buffers.numel():
            sent["buffers"] = results[0].buffers[0]
        return self._reply(content, sent, values, facts.method.asked | self.terms.extras)

    def evaluated(self, content: RecordDict) -> RecordDict:
        """Loss and accuracy on its own test part, of one model or of its mixture of several."""
        tensors = wire.unpacked(content)
        test, buffers = self.federation.clients[0].test, self._buffers(tensors)
        loss, accuracy = self._scores(tensors, buffers, test)
        return wire.answer(
            self.id, {}, {"test-loss": loss, "test-accuracy": accuracy}, self._round(content)
        )

    def _scores(
        self, tensors: dict[str, Tensor], buffers: Tensor, test: Examples
    ) -> tuple[float, float]:
        if "shares" in tensors:
            return self.engine.evaluate_mixture(tensors["model"], tensors["shares"], buffers, test)
        losses, accuracies = self.engine.evaluate(tensors["model"], buffers, EvaluationSet([test]))
        return float(losses[0]), float(accuracies[0])

    def _vectors(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        return list(tensors["model"].view(self.facts.method.n_models, -1))

    def _buffers(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors.get("buffers", torch.zeros(0, dtype=torch.float64))

    def _round(self, content: RecordDict) -> dict[str, int]:
        return {"round": int(wire.config_of(content)["round"])}  # type: ignore[arg-type]

    def _reply(
        self,
        content: RecordDict,
        sent: dict[str, Tensor],
        values: dict[str, Tensor],
        declared: frozenset[str],
    ) -> RecordDict:
        """A reply with those of the values that are declared, and no others."""
        of_round = {"losses", "steps"}
        numbers = {
            NUMBERS[name]: float(values[name][0]) for name in of_round & declared & values.keys()
        }
        extras = {
            f"extra.{name}": value[0]
            for name, value in values.items()
            if name in declared and name not in of_round
        }
        return wire.answer(self.id, {**sent, **extras}, numbers, self._round(content))

"""The app of a client: it trains, measures and evaluates on its own data.

Sent once: its id, the shape of an example, the number of classes, whether there is a sensitive
attribute, the names and shapes of its model; the number of training examples, if the method needs
it (or the model has buffers, whose mean is weighted by examples); its uncertainty, if the method
needs it or `report-uncertainties` is set. Sent in each round: the change of the model, and of
losses, steps and the rest only what the method names in `needs`, `probes` and, with a sensitive
attribute, `needs_groups`. Sent after evaluated rounds: loss and accuracy on its test part. The
client reads that list from the method itself, not from the server's request.

Never sent: the evidence for the uncertainty (accuracy alone, label entropy, flags). Remarks on it
are logged here.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from udjfl.engine import Engine, EvaluationSet, TrainJob, make_engine, one_thread, probe
from udjfl.errors import DataError, SettingsError
from udjfl.flower.data import ClientData
from udjfl.flower.messages import (
    NUMBERS,
    config_of,
    make_reply,
    model_signature,
    read_plan,
    read_spec,
    required_numbers,
    tensors_of,
)
from udjfl.models import ModelChoice
from udjfl.training.replies import join_deltas, training_columns
from udjfl.training.state import FederationInfo, Run, RunSpec
from udjfl.uncertainty import measure

logger = logging.getLogger("udjfl")
UNCERTAINTY_KEY = "udjfl-uncertainty"
Handler = Callable[["MessageHandler", Message, Context], RecordDict]


def client_app(model: ModelChoice, data: Callable[[Context], ClientData]) -> ClientApp:
    """Return the app of a client.

    `model` is as in `udjfl.simulate`, the same as the server's; the run's configuration may name
    another. `data` is called with Flower's context for every message and returns this client's
    data, always the same: for example those in a folder that `context.node_config` names.
    """
    app = ClientApp()

    def handle_with(handler: Handler) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            with one_thread():
                client = MessageHandler(
                    model, _check_data(data(context)), read_spec(message.content)
                )
                return Message(handler(client, message, context), reply_to=message)

        return handle

    app.query("introduce")(handle_with(lambda client, _, __: client.introduce()))
    app.query("uncertainty")(handle_with(lambda client, _, context: client.measure(context)))
    app.query("probe")(handle_with(lambda client, message, _: client.probe(message.content)))
    app.train()(handle_with(lambda client, message, _: client.train(message.content)))
    app.evaluate()(handle_with(lambda client, message, _: client.evaluate(message.content)))
    return app


def _check_data(given: object) -> ClientData:
    if not isinstance(given, ClientData):
        raise DataError(
            f"the client's data function returned {type(given).__name__}; "
            "it must return udjfl.flower.ClientData"
        )
    return given


class MessageHandler:
    """Handles one message to a client; only the uncertainty is kept, in Flower's context."""

    def __init__(self, model: ModelChoice, data: ClientData, spec: RunSpec) -> None:
        self.spec, self.id, self.federation = spec, data.id, data.federation
        self.model: ModelChoice = spec.model or model
        self.run = Run(
            RunSpec(spec.method, spec.settings, spec.seed, self.model, spec.report_uncertainties),
            FederationInfo.of(self.federation),
        )
        self.base_model = self.run.spec.build_model(self.run.federation)

    @functools.cached_property
    def engine(self) -> Engine:
        """An engine with this client's data."""
        module = self.run.spec.adapt_model(self.base_model)
        return make_engine(module, self.federation.clients, self.spec.settings.engine, workers=1)

    def introduce(self) -> RecordDict:
        """Describe the client."""
        module = self.run.spec.adapt_model(self.base_model)
        has_buffers = any(buffer.numel() for buffer in module.buffers())
        info = self.run.federation
        values = {
            "input-shape": list(info.input_shape),
            "n-classes": info.n_classes,
            "has-groups": info.has_groups,
            "model": model_signature(module),
        }
        sends_size = "sizes" in required_numbers(self.spec, has_buffers)
        numbers = {NUMBERS["sizes"]: self.federation.sizes[0]} if sends_size else {}
        return make_reply(self.id, {}, numbers, values)

    def measure(self, context: Context) -> RecordDict:
        """Measure how uncertain the client's data are, once in a run."""
        if not self.spec.needs_uncertainties:
            raise SettingsError(
                f"{self.spec.method.name}: does not need uncertainties, and report-uncertainties "
                "is not set"
            )
        if UNCERTAINTY_KEY not in context.state:
            # If it cannot be measured, the server decides what follows from that.
            settings = self.spec.settings.model_copy(update={"on_bad_report": "exclude"})
            clients = self.federation.clients
            engine = make_engine(self.base_model, clients, settings.engine, workers=1)
            result = measure(self.federation, engine, settings, self.spec.seed, self.model)
            for note in result.notes():
                logger.warning("The uncertainty of this client's data: %s", note)
            numbers = {NUMBERS["uncertainties"]: result.values[self.id]}
            if result.epistemic is not None and self.spec.report_uncertainties:
                numbers["epistemic"] = result.epistemic[self.id]
            context.state[UNCERTAINTY_KEY] = MetricRecord(dict(numbers))
        kept = context.state.metric_records[UNCERTAINTY_KEY]
        numbers = {name: float(kept[name]) for name in kept}  # type: ignore[arg-type]
        return make_reply(self.id, {}, numbers, {})

    def probe(self, content: RecordDict) -> RecordDict:
        """Measure what the method must know before clients train."""
        tensors, names = tensors_of(content), self.spec.method.probes
        model = self._models(tensors)[0]
        columns = probe(self.engine, model, _buffers(tensors), [0], names)
        return self._reply(content, {}, columns, names)

    def train(self, content: RecordDict) -> RecordDict:
        """Train for one round."""
        tensors, config = tensors_of(content), config_of(content)
        models, buffers, extras = self._models(tensors), _buffers(tensors), self.run.extras
        columns = probe(self.engine, models[0], buffers, [0], extras)
        training = self.run.local_training(read_plan(tensors, config), [0])
        address = (self.spec.seed, "batches", _round(content))
        jobs = [TrainJob(model, buffers, [0], training, address) for model in models]
        results = self.engine.train_many(jobs)
        columns |= training_columns(results, extras)
        sent = {"delta": join_deltas(results)[0]}
        if results[0].buffers.numel():
            sent["buffers"] = results[0].buffers[0]
        return self._reply(content, sent, columns, self.spec.method.needs | extras)

    def evaluate(self, content: RecordDict) -> RecordDict:
        """Evaluate one model, or a mixture of several, on the client's test part."""
        tensors = tensors_of(content)
        test, buffers = self.federation.clients[0].test, _buffers(tensors)
        if "shares" in tensors:
            loss, accuracy = self.engine.evaluate_mixture(
                tensors["model"], tensors["shares"], buffers, test
            )
        else:
            scores = self.engine.evaluate(tensors["model"], buffers, EvaluationSet([test]))
            loss, accuracy = (float(values[0]) for values in scores)
        numbers = {"test-loss": loss, "test-accuracy": accuracy}
        return make_reply(self.id, {}, numbers, {"round": _round(content)})

    def _models(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        return list(tensors["model"].view(self.spec.method.n_models, -1))

    def _reply(
        self,
        content: RecordDict,
        sent: dict[str, Tensor],
        columns: dict[str, Tensor],
        declared: frozenset[str],
    ) -> RecordDict:
        """Make a reply with those of the columns that are declared, and no others."""
        single = {"losses", "steps"} & declared & columns.keys()
        numbers = {NUMBERS[name]: float(columns[name][0]) for name in single}
        extras = {
            f"extra.{name}": column[0]
            for name, column in columns.items()
            if name in declared and name not in ("losses", "steps")
        }
        return make_reply(self.id, {**sent, **extras}, numbers, {"round": _round(content)})


def _buffers(tensors: dict[str, Tensor]) -> Tensor:
    return tensors.get("buffers", torch.zeros(0, dtype=torch.float64))


def _round(content: RecordDict) -> int:
    return int(config_of(content)["round"])  # type: ignore[arg-type]

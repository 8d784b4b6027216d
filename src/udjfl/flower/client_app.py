"""The app of a client: it trains, measures and evaluates on its own data.

Sent once: its id, the shape of an example, the number of classes, whether there is a sensitive
attribute, the names and shapes of its model; the number of training examples, if the method needs
it (or the model has buffers, whose mean is weighted by examples); its uncertainty, if the method
needs it or `report-uncertainties` is set. Sent in each round: the change of the model, and of
losses, steps and the rest only what the method names in `needs`, `probes` and, with a sensitive
attribute, `needs_groups`. Sent after evaluated rounds: loss and accuracy (in a regression R2) on
its test part; after the last one also the score that is judged, if it is another, and its interval.
The client reads that list from the method itself, not from the server's request.

With a service, its uncertainty is sent too, and, for service=checkpoints, in each round the score
of the received model, after the last round that of the final one. For service=prior-..., its term
of the sum that the mean class frequencies come from is sent after the last round: the server needs
no more than the sum, but it can compute from the term how many examples of each class the client
has. The client then moves the model to its own class frequencies itself.

A node's `disclose` restricts all this further (`disclosure`). Of an error that is not udjfl's own,
only the type is sent.

Never sent: the evidence for the uncertainty (accuracy alone, label entropy, flags). Remarks on it
are logged here.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from udjfl.engine import Demands, Engine, EvaluationSet, make_engine, one_thread, probe
from udjfl.errors import SettingsError
from udjfl.flower.data import ClientData, check_returned
from udjfl.flower.disclosure import (
    EVALUATIONS,
    Disclosure,
    needed_disclosures,
    releasable_text,
    releasing_errors,
)
from udjfl.flower.messages import (
    EVALUATE_ROUND,
    EVALUATED,
    EVALUATION_ERROR,
    NUMBERS,
    judged_numbers,
    make_reply,
    model_signature,
    read_plan,
    read_spec,
    required_numbers,
)
from udjfl.flower.service import make_fact, own_offset
from udjfl.flower.tensors import tensors_of, values_of
from udjfl.models import ModelChoice
from udjfl.training.federation_info import FederationInfo
from udjfl.training.judging import Judge, check_score
from udjfl.training.replies import join_deltas, training_columns
from udjfl.training.state import Run
from udjfl.uncertainty import measure

logger = logging.getLogger("udjfl")
UNCERTAINTY_KEY = "udjfl-uncertainty"


class MessageHandler:
    """Handles one message to a client; only the uncertainty is kept, in Flower's context."""

    def __init__(
        self, model: ModelChoice, data: ClientData, content: RecordDict, context: Context
    ) -> None:
        self.id, self.context = data.id, context
        self.config, self.tensors = values_of(content), tensors_of(content)
        self.buffers = self.tensors.get("buffers", torch.zeros(0, dtype=torch.float64))
        spec = read_spec(content)
        self.federation = data.federation.hold_out(spec.settings.holdout, spec.seed)
        self.model = spec.model or model
        self.spec = replace(spec, model=self.model)
        self.run = Run(self.spec, FederationInfo.of(self.federation))
        self.base_model = self.spec.build_model(self.run.federation)

    @functools.cached_property
    def engine(self) -> Engine:
        """An engine with this client's data."""
        module = self.spec.adapt_model(self.base_model)
        demands = self.spec.demands(self.run.federation)
        engine = self.spec.settings.engine
        return make_engine(module, self.federation.clients, engine, workers=1, demands=demands)

    def introduce(self) -> RecordDict:
        """Describe the client, unless the run needs more than its node discloses."""
        module = self.spec.adapt_model(self.base_model)
        has_buffers = any(buffer.numel() for buffer in module.buffers())
        needed = needed_disclosures(self.run, has_buffers)
        Disclosure.of(self.context.node_config).check(needed)
        check_score(self.federation, self.spec.settings)
        info = self.run.federation
        values = {
            "input-shape": list(info.input_shape),
            "input-type": str(info.sample.dtype).removeprefix("torch."),
            "n-classes": info.n_classes,
            "has-groups": info.has_groups,
            "model": model_signature(module),
        }
        sends_size = "sizes" in required_numbers(self.spec, has_buffers)
        numbers = {NUMBERS["sizes"]: self.federation.sizes[0]} if sends_size else {}
        return make_reply(self.id, {}, numbers, values)

    def measure(self) -> RecordDict:
        """Measure how uncertain the client's data are, once in a run."""
        if not self.spec.needs_uncertainties:
            raise SettingsError(
                f"{self.spec.method.name}: does not need uncertainties, and report-uncertainties "
                "is not set"
            )
        state = self.context.state
        if UNCERTAINTY_KEY not in state:
            # If it cannot be measured, the server decides what follows from that.
            settings = self.spec.settings.model_copy(update={"on_bad_report": "exclude"})
            engine = make_engine(
                self.base_model,
                self.federation.clients,
                settings.engine,
                workers=1,
                demands=Demands(self.spec.task(self.run.federation).criterion),
            )
            result = measure(self.federation, engine, settings, self.spec.seed, self.model)
            for note in result.notes():
                logger.warning("The uncertainty of this client's data: %s", note)
            numbers = {NUMBERS["uncertainties"]: result.values[self.id]}
            if result.epistemic is not None and self.spec.report_uncertainties:
                numbers["epistemic"] = result.epistemic[self.id]
            if self.id in result.uninformative:
                numbers["unreliable"] = 1.0
            state[UNCERTAINTY_KEY] = MetricRecord(dict(numbers))
        kept = state.metric_records[UNCERTAINTY_KEY]
        numbers = {name: float(kept[name]) for name in kept}  # type: ignore[arg-type]
        return make_reply(self.id, {}, numbers, {})

    def probe(self) -> RecordDict:
        """Measure what the method must know before clients train."""
        names = self.spec.method.probes
        return self._reply({}, self._measure_at_model(names), names)

    def train(self) -> RecordDict:
        """Train for one round."""
        extras = self.run.extras
        columns = self._measure_at_model(extras)
        plan, models = read_plan(self.tensors, self.config), self._models
        jobs = self.run.training_jobs(plan, [0], models, self.buffers, self._round)
        results = self.engine.train_many(jobs)
        columns |= training_columns(results[: len(models)], results[len(models) :], extras)
        sent = {"delta": join_deltas(results[: len(models)])[0]}
        if results[0].buffers.numel():
            sent["buffers"] = results[0].buffers[0]
        scores, problem = self._evaluate_on_the_way()
        return self._reply(sent, columns, self.spec.method.needs | extras, scores, problem)

    def evaluate(self) -> RecordDict:
        """Evaluate one model, or a mixture of several, on the client's test part."""
        service, facts = self.spec.service, dict[str, Tensor]()
        numbers = self._evaluate(self.tensors)
        if self._round == self.spec.settings.rounds:
            numbers |= self._judge()
            if service is not None and "shares" not in self.tensors:
                n_classes, model = self.federation.n_classes, self.tensors["model"]
                facts = make_fact(service, self.engine, n_classes, model, self.buffers)
        return make_reply(self.id, facts, numbers, {"round": self._round})

    def _evaluate(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """Return loss and accuracy, on the client's test part, of the model in these tensors."""
        test, model = self.federation.clients[0].test, tensors["model"]
        buffers = tensors.get("buffers", torch.zeros(0, dtype=torch.float64))
        if "shares" in tensors:
            client, n_classes = self.federation.clients[0], self.federation.n_classes
            offset = own_offset(tensors, client, n_classes)
            loss, accuracy = self.engine.evaluate_mixture(
                model, tensors["shares"], buffers, test, offset
            )
        else:
            losses, accuracies = self.engine.evaluate(model, buffers, EvaluationSet([test]))
            loss, accuracy = float(losses[0]), float(accuracies[0])
        return {"test-loss": loss, "test-accuracy": accuracy}

    def _evaluate_on_the_way(self) -> tuple[dict[str, float], dict[str, str]]:
        """Evaluate an earlier round's model, if asked to; return numbers, or the reason for none.

        What prevents it does not prevent training.
        """
        if EVALUATE_ROUND not in self.config:
            return {}, {}
        given = {
            name.removeprefix(EVALUATED): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(EVALUATED)
        }
        try:
            Disclosure.of(self.context.node_config).check({EVALUATIONS})
            return self._evaluate(given or self.tensors), {}
        except Exception as error:  # the server decides what follows from it
            return {}, {EVALUATION_ERROR: releasable_text(error)}

    def _judge(self) -> dict[str, float]:
        """Return the score that is judged, if it is not accuracy, and its interval."""
        score = self.spec.task(self.run.federation).score
        if score.kind.is_share:
            return {}
        client, model = self.federation.clients[0], self.tensors["model"]
        judge = Judge(score, self.engine, self.federation, self.spec.seed)
        judged = judge.judge_client(
            self.id,
            model if model.ndim == 2 else model[None],
            self.tensors.get("shares", torch.ones(1)),
            self.buffers,
            client.test,
            own_offset(self.tensors, client, self.federation.n_classes),
        )
        return judged_numbers(judged)

    @property
    def _models(self) -> list[Tensor]:
        return list(self.tensors["model"].view(self.spec.method.n_models, -1))

    @property
    def _round(self) -> int:
        return int(self.config["round"])

    def _measure_at_model(self, names: frozenset[str]) -> dict[str, Tensor]:
        return probe(self.engine, self._models[0], self.buffers, [0], names)

    def _reply(
        self,
        sent: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
        declared: frozenset[str],
        scores: Mapping[str, float] | None = None,
        problem: Mapping[str, str] | None = None,
    ) -> RecordDict:
        """Make a reply with those of the columns that are declared, and no others."""
        numbers = {
            NUMBERS[name]: float(columns[name][0])
            for name in {"losses", "steps"} & declared & columns.keys()
        }
        extras = {
            f"extra.{name}": column[0]
            for name, column in columns.items()
            if name in declared and name not in ("losses", "steps")
        }
        values = {"round": self._round, **(problem or {})}
        return make_reply(self.id, {**sent, **extras}, {**numbers, **(scores or {})}, values)


def client_app(model: ModelChoice, data: Callable[[Context], ClientData]) -> ClientApp:
    """Return the app of a client.

    `model` is as in `udjfl.simulate`, the same as the server's; the run's configuration may name
    another. `data` is called with Flower's context for every message and returns this client's
    data, always the same: for example those in a folder that `context.node_config` names.
    """
    app = ClientApp()

    def handle_with(
        reply: Callable[[MessageHandler], RecordDict],
    ) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            kind = message.metadata.message_type
            with one_thread(), releasing_errors(kind, context.node_config):
                own = check_returned(data(context), ClientData, "client")
                handler = MessageHandler(model, own, message.content, context)
                disclosure = Disclosure.of(context.node_config)
                return Message(disclosure.release(kind, reply(handler)), reply_to=message)

        return handle

    app.query("introduce")(handle_with(MessageHandler.introduce))
    app.query("uncertainty")(handle_with(MessageHandler.measure))
    app.query("probe")(handle_with(MessageHandler.probe))
    app.train()(handle_with(MessageHandler.train))
    app.evaluate()(handle_with(MessageHandler.evaluate))
    return app

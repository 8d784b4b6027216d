"""The rounds of one method: where it begins, what to ask clients, what to make of their answers. And evaluation.

`Steps` is what holds wherever the clients are; `Loop` plays rounds with clients in this process.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from udjfl._threads import aside
from udjfl.engine import EvaluationSet, LocalResult, TrainJob, check_device
from udjfl.errors import DivergedError, NotDefinedError, SettingsError
from udjfl.methods import Method, Reports, ServedModels, Setup, State
from udjfl.models import ModelChoice, buffers_to_vector, build, check_fit, to_vector, trainable
from udjfl.seeds import torch_stream
from udjfl.settings import TrainingSettings
from udjfl.training.asking import Answers, Asking, Question, Roster
from udjfl.training.run_folder import Record

logger = logging.getLogger("udjfl")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Server:
    """All that passes from one round to the next."""

    round: int
    vector: Tensor
    buffers: Tensor
    state: State

    def tensors(self) -> dict[str, Tensor]:
        named = {f"state.{name}": value for name, value in self.state.items()}
        return {"vector": self.vector, "buffers": self.buffers, **named}

    @staticmethod
    def from_tensors(round: int, tensors: Mapping[str, Tensor]) -> Server:
        state = {
            name.removeprefix("state."): t
            for name, t in tensors.items()
            if name.startswith("state.")
        }
        return Server(round, tensors["vector"], tensors["buffers"], state)


Beginning = tuple[nn.Module, Server, list[str]]


def beginning(
    roster: Roster,
    method: Method,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None,
    plain: nn.Module,
) -> Beginning:
    """The network that this method trains, the server before round 1, and what the method has to say about it all."""
    module = adapted(method, plain, seed)
    starts = [to_vector(module)]
    for number in range(1, method.n_models):
        another = fitting_model(roster, settings, seed, model, f"model {number}")
        starts.append(
            to_vector(method.adapt(another, torch_stream(seed, "adapt", method.name, number)))
        )
    setup = Setup(
        ids=roster.ids,
        sizes=torch.tensor(roster.sizes, dtype=torch.float64),
        model=torch.cat(starts),
        layers=tuple(p.numel() for p in trainable(module)),
        participation=settings.participation,
        drop_out=settings.drop_out,
        has_groups=roster.has_groups,
        has_validation=roster.has_validation,
    )
    server = Server(0, setup.model, buffers_to_vector(module), method.init(setup))
    if len(server.buffers) and method.served(server.state, server.vector) is not None:
        raise NotDefinedError(
            f"model: has buffers (such as batch norm's), and {method.title} trains several models, which cannot share them; "
            "use a model without"
        )
    return module, server, method.notes(setup)


def adapted(method: Method, plain: nn.Module, seed: int) -> nn.Module:
    """The network that a method trains in place of this one."""
    return method.adapt(plain, torch_stream(seed, "adapt", method.name))


def fitting_model(
    roster: Roster,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None = None,
    purpose: str = "model",
) -> nn.Module:
    """The initial model of a run, known to fit the data and the device; another one for another purpose."""
    check_device(settings.device)
    module = build(
        model or settings.model,
        roster.input_shape,
        roster.n_classes,
        seed,
        hidden=settings.hidden,
        weight_norm=settings.weight_norm,
        purpose=purpose,
    )
    check_fit(module, roster.sample, roster.n_classes)
    return module


@dataclass(frozen=True)
class Opened:
    """A round half-way: what is recorded so far, and what clients are asked (None: nobody answers)."""

    records: list[Record]
    question: Question | None

    @property
    def jobs(self) -> list[TrainJob]:
        return [] if self.question is None else self.question.jobs


@dataclass(frozen=True)
class Evaluated:
    """Loss, and accuracy in percent, on each client's test data and (last) on the global test set.

    The last is None for a method that has no model for everybody.
    """

    losses: Sequence[float | None]
    accuracies: Sequence[float | None]


class Steps:
    """What a server does with a round's answers, and what it writes down."""

    def __init__(self, method: Method, settings: TrainingSettings) -> None:
        self.method, self.settings = method, settings
        self.floor_said = False

    def stepped(self, server: Server, answers: Answers) -> tuple[Server, list[Record]]:
        """Aggregate and step. Returns the next server and what to record."""
        t, vector, state = server.round + 1, server.vector, answers.state
        records = [
            Record(t, client, "excluded", reason) for client, reason in answers.excluded.items()
        ]
        if answers.reports is not None:
            state, step, diagnostics = self.method.aggregate(state, answers.reports)
            self._check_step(step, vector, t)
            vector = vector - step.to(vector)
            records += self._records(t, answers.reports, step, diagnostics)
        return Server(t, vector, answers.buffers, state), records

    def is_evaluated(self, t: int) -> bool:
        """Whether the model is evaluated after this round."""
        return t % self.settings.eval_every == 0 or t == self.settings.rounds

    def _check_step(self, step: Tensor, vector: Tensor, t: int) -> None:
        if step.shape != vector.shape:
            raise SettingsError(
                f"{self.method.label}: its step has shape {list(step.shape)}; "
                f"it must have one number per parameter, {list(vector.shape)}"
            )
        if not torch.isfinite(step).all():
            raise DivergedError(
                f"{self.method.label}: the server's step is not finite in round {t}; try a smaller lr or another step rule"
            )

    def _records(
        self, t: int, reports: Reports, step: Tensor, diagnostics: Mapping[str, Tensor]
    ) -> list[Record]:
        losses = zip(reports.ids, reports.losses.tolist(), strict=True)
        records = [
            Record(t, c, "train_loss", v) for c, v in losses if v == v
        ]  # NaN: clients were not asked for it
        for name, values in diagnostics.items():
            if name == "floored":
                self._say_floored(
                    [c for c, v in zip(reports.ids, values.tolist(), strict=True) if v]
                )
            if values.ndim == 0:
                records.append(Record(t, None, name, _plain(float(values))))
            else:
                records += [
                    Record(t, c, name, _plain(v))
                    for c, v in zip(reports.ids, values.tolist(), strict=True)
                ]
        records.append(Record(t, None, "step_norm", float(step.to(torch.float64).norm())))
        return records

    def _say_floored(self, clients: Sequence[str]) -> None:
        if clients and not self.floor_said:
            self.floor_said = True
            logger.warning(
                "%s: the uncertainty of %s is below a hundredth of the largest; the floor is used in its place, "
                "so that one client does not get everything.",
                self.method.label,
                ", ".join(clients),
            )


def evaluation_records(t: int, ids: Sequence[str], evaluated: Evaluated) -> list[Record]:
    """What to record of an evaluation of these clients and, last, of everybody."""
    who = [*ids, None]
    return [
        Record(t, client, metric, _plain(value))
        for metric, values in (
            ("test_accuracy", evaluated.accuracies),
            ("test_loss", evaluated.losses),
        )
        for client, value in zip(who, values, strict=True)
    ]


class Loop(Steps):
    """The rounds of one method with clients that are here. Holds what stays the same from round to round."""

    def __init__(self, asking: Asking) -> None:
        super().__init__(asking.method, asking.settings)
        self.asking, self.seed = asking, asking.seed
        self.federation, self.engine, self.uncertainty = (
            asking.federation,
            asking.engine,
            asking.uncertainty,
        )
        federation, engine = self.federation, self.engine
        self.client_tests = [client.test.on(engine.device) for client in federation.clients]
        self.global_test = EvaluationSet([federation.test.on(engine.device)])
        self.tests = EvaluationSet([*self.client_tests, federation.test.on(engine.device)])

    def begin(self, server: Server) -> Opened:
        """The first half of a round: who is asked, and what."""
        t = server.round + 1
        asked, answering = self.asking.participants(t, server.state)
        answers = set(answering)
        records = [
            Record(t, self.federation.ids[row], "absent", 1.0)
            for row in asked
            if row not in answers
        ]
        if not answering:
            return Opened(records, None)
        return Opened(
            records, self.asking.question(t, server.vector, server.buffers, server.state, answering)
        )

    def finish(
        self, server: Server, opened: Opened, results: Sequence[LocalResult]
    ) -> tuple[Server, list[Record]]:
        """The second half: collect, aggregate, step. Returns the next server and what to record."""
        if opened.question is None:
            return replace(server, round=server.round + 1), opened.records
        after, records = self.stepped(server, self.asking.answers(opened.question, results))
        return after, opened.records + records

    def evaluation_records(self, t: int, evaluated: Evaluated) -> list[Record]:
        return evaluation_records(t, self.federation.ids, evaluated)

    def can_be_aside(self, server: Server) -> bool:
        """Whether this model can be evaluated while others are trained; one of several that are mixed cannot."""
        return (
            self.engine.evaluates_aside and self.method.served(server.state, server.vector) is None
        )

    def evaluate_served(self, server: Server, served: ServedModels) -> Evaluated:
        """Each client with the model it is served."""
        pairs: list[tuple[float | None, float | None]] = []
        for shares, test in zip(served.shares, self.client_tests, strict=True):
            loss, accuracy = self.engine.evaluate_mixture(
                served.models, shares, server.buffers, test
            )
            pairs.append((loss, 100 * accuracy))
        if self.method.global_model:
            shared_loss, shared_accuracy = self.engine.evaluate(
                server.vector, server.buffers, self.global_test
            )
            pairs.append((float(shared_loss[0]), 100 * float(shared_accuracy[0])))
        else:
            pairs.append((None, None))
        return Evaluated([loss for loss, _ in pairs], [accuracy for _, accuracy in pairs])


def evaluate(loops: Sequence[Loop], servers: Sequence[Server]) -> list[Evaluated]:
    """What each loop's clients get from its model; loops of one federation. Models of one engine are evaluated together."""
    found: dict[int, Evaluated] = {}
    shared: dict[int, list[int]] = {}
    for place, (loop, server) in enumerate(zip(loops, servers, strict=True)):
        served = loop.method.served(server.state, server.vector)
        if served is not None:
            found[place] = loop.evaluate_served(server, served)
        else:
            shared.setdefault(id(loop.engine), []).append(place)
    for places in shared.values():
        models = [(servers[place].vector, servers[place].buffers) for place in places]
        first = loops[places[0]]
        for place, (losses, accuracies) in zip(
            places, first.engine.evaluate_many(models, first.tests), strict=True
        ):
            found[place] = Evaluated(losses.tolist(), (100 * accuracies).tolist())
    return [found[place] for place in range(len(loops))]


def evaluation(
    loops: Sequence[Loop], servers: Sequence[Server], training_follows: bool
) -> Callable[[], list[Evaluated]]:
    """`evaluate`, under way: beside the training that follows, where the engines allow it. What is returned waits for it."""
    work = functools.partial(evaluate, loops, servers)
    if (
        loops
        and training_follows
        and all(loop.can_be_aside(server) for loop, server in zip(loops, servers, strict=True))
    ):
        return aside(work)
    found = work()
    return lambda: found


def _plain(value: float | None) -> float | None:
    """JSON has no NaN or infinity; a value that is neither finite nor an error is recorded as missing."""
    return value if value is not None and abs(value) < float("inf") else None

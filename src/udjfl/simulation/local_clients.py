"""Clients in this process, reached through an engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from udjfl.data import Examples, Federation
from udjfl.engine import (
    Engine,
    EvaluationJob,
    EvaluationSet,
    LocalResult,
    TrainJob,
    evaluate_together,
    expected_accuracy,
    probe,
)
from udjfl.methods import ServedModels
from udjfl.seeds import numpy_stream
from udjfl.training.clients import Attendance, Replies, TrainRequest
from udjfl.training.evaluation import Evaluation, JudgedScores
from udjfl.training.judging import Judge, join_judged
from udjfl.training.replies import join_deltas, training_columns
from udjfl.training.server_state import ServerState
from udjfl.training.service import PriorService, class_term
from udjfl.training.serving import Serving, serve
from udjfl.training.state import Run
from udjfl.uncertainty import Uncertainty

DROPPED_OUT = "dropped out"


@dataclass(frozen=True)
class PreparedTraining:
    """Training jobs of a request, as `Run.training_jobs`, and what is known before they run."""

    jobs: list[TrainJob]
    columns: dict[str, Tensor]


class LocalClients:
    """The clients of a federation in this process, for one run: see `training.clients.Clients`."""

    def __init__(
        self, run: Run, federation: Federation, engine: Engine, uncertainty: Uncertainty
    ) -> None:
        self.run, self.federation, self.engine = run, federation, engine
        self.uncertainty = uncertainty

    def reach(self, round: int, client_indices: Sequence[int]) -> Attendance:
        """Let clients drop out at random, as the settings say."""
        chance = self.run.settings.drop_out
        if chance == 0:
            return Attendance(client_indices)
        draws = numpy_stream(self.run.seed, "drop-out", round).random(len(self.run.ids))
        ids = self.run.ids
        absent = {ids[index]: DROPPED_OUT for index in client_indices if draws[index] < chance}
        return Attendance([i for i in client_indices if ids[i] not in absent], absent)

    def probe(self, request: TrainRequest, names: Collection[str]) -> Replies:
        """Measure quantities at the models in the request."""
        return self._replies(request, self._probe(request, names))

    def train(self, request: TrainRequest) -> Replies:
        """Train the clients for one round."""
        prepared = self.prepare(request)
        return self.read(request, prepared, self.engine.train_many(prepared.jobs))

    @property
    def reads_scores(self) -> bool:
        """True if clients report how they score the received model."""
        return "scores" in self.run.extras

    def prepare(self, request: TrainRequest, scores: Tensor | None = None) -> PreparedTraining:
        """Measure what the method reads of the received model, and make the training jobs.

        `scores` has the scores of all clients of the federation, if they are known already.
        """
        indices = list(request.client_indices)
        jobs = self.run.training_jobs(
            request.plan, indices, request.models, request.buffers, request.round
        )
        if scores is None:
            return PreparedTraining(jobs, self._probe(request, self.run.extras))
        sizes = self.engine.score_set(range(len(self.run.ids))).sizes.cpu()
        known = {"scores": scores[indices], "score_sizes": sizes[indices]}
        columns = {name: column for name, column in known.items() if name in self.run.extras}
        others = self.run.extras.difference(known)
        return PreparedTraining(jobs, columns | self._probe(request, others))

    def read(
        self, request: TrainRequest, prepared: PreparedTraining, results: Sequence[LocalResult]
    ) -> Replies:
        """Turn the results of the training jobs into replies."""
        n = len(request.models)
        trained = training_columns(results[:n], results[n:], self.run.extras)
        columns = {**prepared.columns, **trained}
        return self._replies(request, columns, join_deltas(results[:n]), results[0].buffers.cpu())

    def score(self, models: Tensor, buffers: Tensor) -> Tensor:
        """Return the models' accuracies on the server's validation data."""
        pairs = [(model, buffers) for model in models]
        scores = self.engine.evaluate_many(pairs, self._validation)
        return torch.cat([accuracies for _, accuracies in scores])

    def evaluate(self, server: ServerState) -> Evaluation:
        """Evaluate what each client is served, with expected accuracies where they are known."""
        (evaluation,) = evaluate_async([(self, server)], training_follows=False)()
        return self.complete(server, evaluation)

    def complete(self, server: ServerState, evaluation: Evaluation) -> Evaluation:
        """Add what only the last round has: the service, and expected accuracies.

        Expected accuracies, of clients whose test labels have a known distribution, are a second
        forward pass over their test parts.
        """
        served = self.run.method.served(server.state, server.vector)
        serving = self._serve(server)
        if serving is not None:
            served = serving.models
            scores = {
                name: self._evaluate_served(server, served, self.run.ids.index(name))
                for name in serving.changed
            }
            evaluation = evaluation.with_served(serving, scores)
        if served is None:
            served = ServedModels(server.vector[None], torch.ones(len(self.run.ids), 1))
        expected = {
            name: expected_accuracy(
                self.engine, served.models, served.shares[i], server.buffers, test, served.offset(i)
            )
            for i, (name, test) in enumerate(zip(self.run.ids, self._client_tests, strict=True))
            if test.label_probabilities is not None
        }
        groups = {
            name: self._count_groups(server, served, index)
            for index, name in enumerate(self.run.ids)
            if self._client_tests[index].group is not None
            and not self.federation.labels_are_numbers
        }
        judged = None if self._judge.score.kind.is_share else self._judge_served(server, served)
        return replace(evaluation.with_expected(expected), groups=groups or None, judged=judged)

    @functools.cached_property
    def _judge(self) -> Judge:
        score = self.run.spec.task(self.run.federation).score
        return Judge(score, self.engine, self.federation, self.run.seed)

    def _judge_served(self, server: ServerState, served: ServedModels) -> JudgedScores:
        """Compute the score that is judged of what clients are served, with intervals."""
        clients = {
            name: self._judge.judge_client(
                name,
                served.models,
                served.shares[index],
                server.buffers,
                test,
                served.offset(index),
            )
            for index, (name, test) in enumerate(zip(self.run.ids, self._client_tests, strict=True))
        }
        shared = None
        if self.run.method.global_model:
            test = self.federation.test.on(self.engine.device)
            shared = self._judge.judge_shared(server.vector, server.buffers, test)
        return join_judged(clients, shared)

    def _count_groups(
        self, server: ServerState, served: ServedModels, index: int
    ) -> dict[str, tuple[int, int]]:
        """Return (right, all) predictions of what a client is served, by group."""
        test, shares, offset = self._client_tests[index], served.shares[index], served.offset(index)
        predicted = self.engine.mix_predictions(
            served.models, shares, server.buffers, test, offset
        ).argmax(dim=1)
        assert test.group is not None, "only used where there are groups"
        is_right, group = (predicted == test.y).cpu(), test.group.cpu()
        return {
            str(number): (int(is_right[group == number].sum()), int((group == number).sum()))
            for number in sorted(set(group.tolist()))
        }

    def _evaluate_served(
        self, server: ServerState, served: ServedModels, index: int
    ) -> tuple[float, float]:
        """Return loss and accuracy, 0 to 1, of what a client is served on its test part."""
        return self.engine.evaluate_mixture(
            served.models,
            served.shares[index],
            server.buffers,
            self._client_tests[index],
            served.offset(index),
        )

    def _serve(self, server: ServerState) -> Serving | None:
        """Return what the service gives to each client; None without a service."""
        service, clients = self.run.spec.service, self.federation.clients
        if service is None:
            return None
        if isinstance(service, PriorService):
            facts = [class_term(c.train.y, self.federation.n_classes) for c in clients]
        else:
            data = self.engine.score_set(range(len(clients)))
            facts = list(self.engine.evaluate(server.vector, server.buffers, data)[1][:, None])
        by_client = dict(zip(self.run.ids, facts, strict=True))
        return serve(self.run, server, by_client, self.uncertainty.readings)

    def evaluate_mixtures(self, server: ServerState) -> Evaluation | None:
        """Evaluate each client with the models it is served; None: all have the server's model."""
        served = self.run.method.served(server.state, server.vector)
        if served is None:
            return None
        scores = [
            self._evaluate_served(server, served, index) for index in range(len(self.run.ids))
        ]
        shared = None
        if self.run.method.global_model:
            losses, accuracies = self.engine.evaluate(
                server.vector, server.buffers, self._shared_test
            )
            shared = (float(losses[0]), float(accuracies[0]))
        return Evaluation.from_fractions(
            self.run.ids, [loss for loss, _ in scores], [share for _, share in scores], shared
        )

    @functools.cached_property
    def all_tests(self) -> EvaluationSet:
        """The test parts of all clients and, last, the shared test set."""
        shared = self.federation.test.on(self.engine.device)
        return EvaluationSet([*self._client_tests, shared], is_kept=True)

    @functools.cached_property
    def _client_tests(self) -> list[Examples]:
        return [client.test.on(self.engine.device) for client in self.federation.clients]

    @functools.cached_property
    def _shared_test(self) -> EvaluationSet:
        return EvaluationSet([self.federation.test.on(self.engine.device)])

    @functools.cached_property
    def _validation(self) -> EvaluationSet:
        """The server's validation data or, without any, all clients' training data together."""
        data = self.federation.validation
        if data is None:
            data = Examples.concatenate([client.train for client in self.federation.clients])
        return EvaluationSet([data.on(self.engine.device)])

    def _probe(self, request: TrainRequest, names: Collection[str]) -> dict[str, Tensor]:
        indices = list(request.client_indices)
        return probe(self.engine, request.models[0], request.buffers, indices, names)

    def _replies(
        self,
        request: TrainRequest,
        columns: Mapping[str, Tensor],
        deltas: Tensor | None = None,
        buffers: Tensor | None = None,
    ) -> Replies:
        """Add the sizes and uncertainties, which are known from the start."""
        indices, known = list(request.client_indices), self._known_columns
        if len(indices) < len(self.run.ids):
            known = {name: column[indices] for name, column in known.items()}
        ids = [self.run.ids[index] for index in indices]
        return Replies(ids, deltas, {**columns, **known}, buffers)

    @functools.cached_property
    def _known_columns(self) -> dict[str, Tensor]:
        readings = self.uncertainty.readings
        values = [readings[name] for name in self.run.ids]
        return {
            "sizes": torch.tensor(self.federation.sizes, dtype=torch.float64),
            "uncertainties": torch.tensor(values, dtype=torch.float64),
        }


def score_together(
    requests: Sequence[tuple[LocalClients, TrainRequest]],
) -> list[Tensor | None]:
    """Return the scores that all clients give the models of several requests, together.

    None for a request whose clients report no scores, or receive models of their own.
    """
    alike: dict[int, list[int]] = {}
    for number, (clients, request) in enumerate(requests):
        if clients.reads_scores and len(request.models) == 1 and request.models[0].ndim == 1:
            alike.setdefault(id(clients.engine), []).append(number)
    jobs = []
    for numbers in alike.values():
        clients = requests[numbers[0]][0]
        received = [requests[number][1] for number in numbers]
        models = [(request.models[0], request.buffers) for request in received]
        data = clients.engine.score_set(range(len(clients.run.ids)))
        jobs.append((clients.engine, EvaluationJob(models, data)))
    scores: list[Tensor | None] = [None] * len(requests)
    for numbers, own in zip(alike.values(), evaluate_together(jobs, False)(), strict=True):
        for number, (_, accuracies) in zip(numbers, own, strict=True):
            scores[number] = accuracies
    return scores


def evaluate_async(
    pairs: Sequence[tuple[LocalClients, ServerState]], training_follows: bool
) -> Callable[[], list[Evaluation]]:
    """Start evaluating the models of several methods; the function returned waits for it.

    Models of one engine are evaluated together; where it pays, during the training that follows.
    """
    finished: dict[int, Evaluation] = {}
    alike: dict[int, list[int]] = {}
    for number, (clients, server) in enumerate(pairs):
        mixtures = clients.evaluate_mixtures(server)
        if mixtures is None:
            alike.setdefault(id(clients.engine), []).append(number)
        else:
            finished[number] = mixtures
    jobs = []
    for numbers in alike.values():
        clients = pairs[numbers[0]][0]
        models = [(pairs[number][1].vector, pairs[number][1].buffers) for number in numbers]
        jobs.append((clients.engine, EvaluationJob(models, clients.all_tests)))
    scores = evaluate_together(jobs, training_follows and not finished)

    def wait() -> list[Evaluation]:
        for numbers, own in zip(alike.values(), scores(), strict=True):
            for number, (losses, accuracies) in zip(numbers, own, strict=True):
                *each, shared = zip(losses.tolist(), accuracies.tolist(), strict=True)
                finished[number] = Evaluation.from_fractions(
                    pairs[number][0].run.ids,
                    [loss for loss, _ in each],
                    [accuracy for _, accuracy in each],
                    shared,
                )
        return [finished[number] for number in range(len(pairs))]

    return wait

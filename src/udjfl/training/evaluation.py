"""`Evaluation`: how well a model serves each client and, on the shared test set, everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from udjfl.training.records import Record, client_records, finite_or_none
from udjfl.training.serving import Serving


@dataclass(frozen=True)
class ServedEvaluation:
    """The outcome of a service, and test loss and accuracy (percent) of what clients are served."""

    serving: Serving
    losses: Mapping[str, float]
    accuracies: Mapping[str, float]

    def records(self, round: int) -> list[Record]:
        """Return the records of what clients are served."""
        own = {"served_accuracy": self.accuracies, "served_loss": self.losses}
        named: dict[str, Mapping[str, float]] = {**own, **self.serving.facts}
        return [
            record
            for metric, values in named.items()
            for record in client_records(round, metric, values, values.values())
        ]


@dataclass(frozen=True)
class JudgedScores:
    """The score that is judged, where it is not accuracy: by client and on the shared test set.

    `intervals` are 95% bootstrap intervals over the clients' test examples.
    """

    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    shared: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Test loss and accuracy (in percent) of one model, by client id and on the shared test set.

    The global values are None for a method without a single model, or without a shared test set
    (`no_global_reason`). `not_evaluated` has the reason for each client without values.
    `expected_accuracies` (in percent) are those of clients whose test labels were drawn from known
    distributions, without the noise of the draw, with the models that they are served; None
    without such clients, and before the last round. `served` is there after the last round of a run
    with a service; all other values are those of the common model. `groups` are (right, all)
    predictions by client and group of a sensitive attribute, with the models that clients are
    served; None without one, and before the last round. `judged` is there after the last round if
    another score than accuracy is judged.
    """

    losses: Mapping[str, float]
    accuracies: Mapping[str, float]
    global_loss: float | None = None
    global_accuracy: float | None = None
    not_evaluated: Mapping[str, str] = field(default_factory=dict)
    no_global_reason: str | None = None
    expected_accuracies: Mapping[str, float] | None = None
    served: ServedEvaluation | None = None
    groups: Mapping[str, Mapping[str, tuple[int, int]]] | None = None
    judged: JudgedScores | None = None

    @staticmethod
    def from_fractions(
        ids: Sequence[str],
        losses: Sequence[float],
        accuracies: Sequence[float],
        shared: tuple[float, float] | None,
        not_evaluated: Mapping[str, str] | None = None,
        no_global_reason: str | None = None,
    ) -> Evaluation:
        """Build an evaluation from accuracies between 0 and 1; `shared` is (loss, accuracy)."""
        return Evaluation(
            dict(zip(ids, losses, strict=True)),
            {name: 100 * value for name, value in zip(ids, accuracies, strict=True)},
            None if shared is None else shared[0],
            None if shared is None else 100 * shared[1],
            not_evaluated or {},
            no_global_reason,
        )

    def with_expected(self, fractions: Mapping[str, float]) -> Evaluation:
        """Return the same evaluation with expected accuracies, given between 0 and 1."""
        percent = {name: 100 * value for name, value in fractions.items()}
        return replace(self, expected_accuracies=percent or None)

    def with_served(
        self, serving: Serving, changed: Mapping[str, tuple[float, float]]
    ) -> Evaluation:
        """Return the same evaluation with what a service gives to each client.

        `changed` has loss and accuracy, 0 to 1, of the clients that are served something else than
        the common model, and could evaluate it; for the others they are those of the common model.
        """
        losses, accuracies = {}, {}
        for name, accuracy in self.accuracies.items():
            if name in changed:
                losses[name], accuracies[name] = changed[name][0], 100 * changed[name][1]
            elif name not in serving.changed:
                losses[name], accuracies[name] = self.losses[name], accuracy
        return replace(self, served=ServedEvaluation(serving, losses, accuracies))

    def records(self, round: int) -> list[Record]:
        """Return the records of this evaluation."""
        records = [Record(round, c, "not_evaluated", why) for c, why in self.not_evaluated.items()]
        for metric, values, shared in (
            ("test_accuracy", self.accuracies, self.global_accuracy),
            ("test_loss", self.losses, self.global_loss),
        ):
            records += client_records(round, metric, values, values.values())
            records.append(Record(round, None, metric, finite_or_none(shared)))
        if self.served is not None:
            records += self.served.records(round)
        if self.judged is not None:
            values = self.judged.values
            records += client_records(round, "judged_score", values, values.values())
            records.append(Record(round, None, "judged_score", finite_or_none(self.judged.shared)))
        expected = self.expected_accuracies or {}
        records += [Record(round, c, "expected_accuracy", v) for c, v in expected.items()]
        return records

"""`Evaluation`: how well a model serves each client and, on the shared test set, everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from udjfl.training.records import Record, client_records, finite_or_none


@dataclass(frozen=True)
class Evaluation:
    """Test loss and accuracy (in percent) of one model, by client id and on the shared test set.

    The global values are None for a method without a single model, or without a shared test set
    (`no_global_reason`). `not_evaluated` has the reason for each client without values.
    """

    losses: Mapping[str, float]
    accuracies: Mapping[str, float]
    global_loss: float | None = None
    global_accuracy: float | None = None
    not_evaluated: Mapping[str, str] = field(default_factory=dict)
    no_global_reason: str | None = None

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

    def records(self, round: int) -> list[Record]:
        """Return the records of this evaluation."""
        records = [Record(round, c, "not_evaluated", why) for c, why in self.not_evaluated.items()]
        for metric, values, shared in (
            ("test_accuracy", self.accuracies, self.global_accuracy),
            ("test_loss", self.losses, self.global_loss),
        ):
            records += client_records(round, metric, values, values.values())
            records.append(Record(round, None, metric, finite_or_none(shared)))
        return records

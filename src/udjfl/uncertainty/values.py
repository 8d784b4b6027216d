"""The uncertainties of a federation's clients, and the evidence for them, as values to keep.

Run folders hold them in `uncertainty.json`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor

# A model can be certain to the last bit, as for a client with one class: its uncertainty is small,
# not zero.
SMALLEST = 1e-12

ONE_CLASS = "one class"
ALMOST_ONE_CLASS = "almost one class"
INDISTINCT = "Uncertainties that cannot be told apart"  # how a note begins
LEARNED_NOTHING = "learned nothing"
COPIES = "copies"
TINY = "tiny"
# An uncertainty so many times that of every other client, or so many times less, stands out.
FAR = 5.0
# Flags of clients whose uncertainty must not be read as the quality of their data, and why.
REASONS = {
    ONE_CLASS: "all its labels are one class, so there is nothing to be uncertain about",
    ALMOST_ONE_CLASS: "nine in ten of its labels or more are one class, so they carry little "
    "entropy whatever the features say",
    LEARNED_NOTHING: "the model trained alone predicts unseen examples no better than the class "
    "frequencies do, so the features explain nothing, or could not be learned",
    COPIES: "most of its examples are copies of one another or of another client's, so a model has "
    "seen what it is tested on",
}


SAID_SO = "the client itself says so"
PUBLISHED = ("paper", "entropy")  # one measure under two names
# Cross-fitting measures log losses: a model that has learned nothing from noisy labels, or from
# features that were not scaled, does worse than a guess.
WORSE_THAN_A_GUESS = 2.0


@dataclass(frozen=True)
class ClientEvidence:
    """The facts behind a client's uncertainty; None where the measure does not tell.

    size               number of train examples
    label_entropy      entropy of their class frequencies, in nats: uncertainty without features
    majority_share     share of the most frequent class
    held_out_accuracy  share of right predictions on examples that the model did not see; in a
                       regression R^2
    held_out_loss      mean log loss on those, calibrated; in a regression the squared error
    seen_loss          mean log loss on examples that the model saw
    standard_error     of the uncertainty, from its spread over the examples
    interval           95% interval of the uncertainty: of sampling, and of the model's own error
    held_out_score     the score that is judged, on examples that the model did not see, if it is
                       not accuracy
    flags              short remarks; `REASONS` explains those that forbid to read u as quality
    indistinct_from    the client with the next higher uncertainty, if the difference may be chance
    """

    size: int
    label_entropy: float
    majority_share: float
    held_out_accuracy: float | None = None
    held_out_loss: float | None = None
    seen_loss: float | None = None
    standard_error: float | None = None
    interval: tuple[float, float] | None = None
    flags: tuple[str, ...] = ()
    indistinct_from: str | None = None
    held_out_score: float | None = None


def largest_uncertainty(kind: str, n_classes: int) -> float:
    """Return the largest value that a measure can have; infinite for a regression."""
    if n_classes < 2:
        return math.inf
    if kind == "confidence":
        return 1 - 1 / n_classes
    return math.log(n_classes) * (WORSE_THAN_A_GUESS if kind == "crossfit" else 1.0)


@dataclass(frozen=True)
class Uncertainty:
    """One number per client, in client order, and how it was measured; NaN where it failed.

    `evidence` is None if the numbers were given, or come from clients elsewhere; then `unreliable`
    are the clients that said of theirs that it does not tell the quality of their data.
    """

    kind: str
    values: dict[str, float]
    epistemic: dict[str, float] | None = None
    evidence: dict[str, ClientEvidence] | None = None
    unreliable: tuple[str, ...] = ()

    @property
    def untrusted(self) -> dict[str, str]:
        """The clients whose uncertainty must not be read as quality, each with the reason."""
        reasons = {
            name: [REASONS[flag] for flag in client.flags if flag in REASONS]
            for name, client in (self.evidence or {}).items()
        }
        reported = dict.fromkeys(self.unreliable, SAID_SO)
        return reported | {name: "; ".join(own) for name, own in reasons.items() if own}

    @property
    def uninformative(self) -> tuple[str, ...]:
        """The clients whose labels carry (almost) no entropy."""
        flagged = [
            name
            for name, client in (self.evidence or {}).items()
            if {ONE_CLASS, ALMOST_ONE_CLASS}.intersection(client.flags)
        ]
        return (*self.unreliable, *flagged)

    @property
    def readings(self) -> dict[str, float]:
        """The values as methods and metrics read them.

        A client whose labels are (nearly) one class is certain whatever its data are: it counts as
        the median of the others, so that it is neither rewarded nor held back. The paper's measure
        is read as it is.
        """
        replaced = set(self.uninformative)
        left = {name: value for name, value in self.values.items() if name not in replaced}
        known = [value for value in left.values() if math.isfinite(value)]
        if self.kind in PUBLISHED or not known:
            return self.values
        middle = statistics.median(known)
        return {name: left.get(name, middle) for name in self.values}

    @property
    def accuracy_alone(self) -> dict[str, float] | None:
        """The accuracy, in percent, of clients' own models on examples that these did not see.

        If another score is judged, that one.
        """
        known = {
            name: client.held_out_score
            if client.held_out_score is not None
            else 100 * client.held_out_accuracy
            for name, client in (self.evidence or {}).items()
            if client.held_out_accuracy is not None
        }
        return known or None

    def notes(self) -> list[str]:
        """Return short sentences for readers of tables, one for each thing to beware of."""
        evidence, readings, far = self.evidence or {}, self.readings, self.far
        notes = []
        for flag in (*REASONS, TINY):
            names = [name for name, client in evidence.items() if flag in client.flags]
            if names:
                notes.append(_NOTES[flag].format(names=", ".join(names)))
        replaced = [name for name in self.uninformative if readings[name] != self.values[name]]
        if replaced:
            notes.append(
                f"Uncertainties that count as the median of the others: {', '.join(replaced)}."
            )
        pairs = [
            f"{name} and {client.indistinct_from}"
            for name, client in evidence.items()
            if client.indistinct_from is not None
        ]
        if pairs:
            notes.append(f"{INDISTINCT}: {'; '.join(pairs)}.")
        if far:
            notes.append(
                "Uncertainties far from those of all other clients, which an error or a lie would "
                f"explain as well: {', '.join(far)}."
            )
        return notes

    @property
    def far(self) -> tuple[str, ...]:
        """The clients whose uncertainty, as it is read, is far from that of every other client."""
        known = sorted((v, name) for name, v in self.readings.items() if math.isfinite(v))
        if len(known) < 3 or self.kind in PUBLISHED:
            return ()
        (lowest, low), (second, _), *_ = known
        (last_but_one, _), (highest, high) = known[-2:]
        found = [low] if lowest * FAR < second else []
        return (*found, *([high] if highest > FAR * last_but_one else []))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with null in place of NaN."""
        evidence = self.evidence
        return {
            "kind": self.kind,
            "values": without_nan(self.values),
            "epistemic": without_nan(self.epistemic),
            "evidence": None
            if evidence is None
            else {name: dataclasses.asdict(client) for name, client in evidence.items()},
            **({"unreliable": list(self.unreliable)} if self.unreliable else {}),
        }

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> Uncertainty:
        """Read what `as_dict` returns; a ValueError, TypeError or KeyError if it is none."""

        def numbers(column: Mapping[str, float | None] | None) -> dict[str, float] | None:
            if column is None:
                return None
            return {
                name: math.nan if value is None else value for name, value in dict(column).items()
            }

        columns = {"values": numbers(kept["values"]), "epistemic": numbers(kept.get("epistemic"))}
        return _stored_type().validate_python({**kept, **columns})


@functools.cache
def _stored_type() -> TypeAdapter[Uncertainty]:
    """Return what checks the types of stored uncertainties, which may be somebody else's."""
    return TypeAdapter(Uncertainty)


_NOTES = {
    ONE_CLASS: "One class only, so the uncertainty says nothing about the data: {names}.",
    ALMOST_ONE_CLASS: "Nearly all labels are one class, so a low uncertainty does not mean good "
    "data: {names}.",
    LEARNED_NOTHING: "Trained alone, no better than the class frequencies, so a high uncertainty "
    "does not mean bad data: {names}.",
    COPIES: "Mostly copies of examples, so the uncertainty is that of fewer data: {names}.",
    TINY: "So few examples that the uncertainty is a guess: {names}.",
}


def without_nan(values: Mapping[str, float] | None) -> dict[str, float | None] | None:
    """Replace numbers that are not finite by None."""
    return (
        None
        if values is None
        else {name: value if math.isfinite(value) else None for name, value in values.items()}
    )


def mean_uncertainty(values: Tensor) -> float:
    """Return the mean over examples, but not less than the smallest uncertainty; NaN stays NaN."""
    mean = float(values.mean())
    return SMALLEST if mean < SMALLEST else mean

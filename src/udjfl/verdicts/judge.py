"""Verdicts on methods, decided over paired seeds.

kept              the measure moved as the theory wants, its beneficiaries gained, nobody paid
kept at a price   the same, but the mean or others lost significantly, within the budget
over budget       the mean of the clients' accuracies fell by more than the budget, or a client
                  below a limit of its own that it was promised
levelled down     the measure moved, but because others fell: the beneficiaries did not gain
opposite          the measure moved against the theory
at its ceiling    FedAvg already has nearly all that the measure can show
not decided       too few seeds to tell, or no effect

Harm that looks like justice is never a success: where no client gains, no verdict is `kept`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from udjfl.statistics import (
    FEWEST_SEEDS,
    SIGNIFICANT,
    PairedTest,
    correct_tests,
    correction_factors,
    seeds_needed,
)
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.verdicts.changes import Change
from udjfl.verdicts.evidence import MARGIN, Evidence
from udjfl.verdicts.sentences import JudgedEvidence, format_points, write_sentence

VerdictKind = Literal[
    "kept",
    "kept at a price",
    "over budget",
    "levelled down",
    "opposite",
    "at its ceiling",
    "not decided",
]
KINDS: tuple[VerdictKind, ...] = get_args(VerdictKind)
# Under FedAvg, beyond these: r can hardly fall, STD hardly fall, a percentage hardly rise.
CEILING_R, CEILING_STD, CEILING_SCORE = -0.95, 0.5, 99.5

R = "pearson_r"
NO_TEST = PairedTest(None, None, None, 0)
CHANCE = 2.0  # points; a mean that is no further above that of a guess counts as one


@dataclass(frozen=True)
class Verdict:
    """The answer to "was the theory delivered?" for one method.

    kind      one word or a few, some of `KINDS`
    sentence  the reasons in plain words; begins with the kind
    numbers   everything that it rests on, as plain values
    """

    theory: str
    kind: VerdictKind
    sentence: str
    numbers: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "theory": self.theory,
            "kind": self.kind,
            "sentence": self.sentence,
            "numbers": self.numbers,
        }


def judge(evidence: Sequence[Evidence]) -> list[Verdict]:
    """Decide on all the evidence of one table; the tests of the measures are corrected together.

    So are the tests of r that desert's measure has beside it.
    """
    tests = [one.measure.test for one in evidence]
    beside = [one.beside[R].test if R in one.beside else NO_TEST for one in evidence]
    columns = (correct_tests(tests), correction_factors(tests), correct_tests(beside))
    return [_judge(*row) for row in zip(evidence, *columns, strict=True)]


def _judge(
    evidence: Evidence, corrected_p: float | None, factor: int | None, r_p: float | None
) -> Verdict:
    kind = decide(evidence, corrected_p, r_p)
    judged = JudgedEvidence(
        evidence,
        None if evidence.measure.test.always_same else corrected_p,
        find_payers(evidence),
        _count_seeds(evidence, factor),
        find_broken_limits(evidence),
    )
    return Verdict(evidence.theory, kind, write_sentence(kind, judged), judged.as_dict())


def decide(evidence: Evidence, corrected_p: float | None, r_p: float | None = None) -> VerdictKind:
    """Return the kind of verdict; `corrected_p` is that of the measure's test, `r_p` that of r."""
    test, budget = evidence.measure.test, evidence.budget
    if test.is_significant(corrected_p):
        if evidence.moved < 0 or _loses_r(evidence, r_p):
            return "opposite"
        if not _beneficiaries_rose(evidence):
            return "levelled down"
        if evidence.mean.difference < -budget or find_broken_limits(evidence):
            return "over budget"
        return "kept at a price" if _has_a_price(evidence) else "kept"
    interval = evidence.mean.test.ci95
    beyond = test.n >= FEWEST_SEEDS and interval is not None and interval[1] < -budget
    if beyond or find_broken_limits(evidence):
        return "over budget"
    return "at its ceiling" if _is_at_ceiling(evidence) else "not decided"


def _loses_r(evidence: Evidence, corrected_p: float | None) -> bool:
    """Tell if accuracy follows uncertainty less closely, which a steeper slope can hide.

    Not where r stays at its ceiling, near -1: there a change of r says nothing.
    """
    r = evidence.beside.get(R)
    if evidence.theory != "desert" or r is None or r.after is None:
        return False
    return r.after > CEILING_R and r.test.shows_rise(corrected_p)


def _beneficiaries_rose(evidence: Evidence) -> bool:
    """Tell if the measure moved through a gain of the beneficiaries, not only the others' fall.

    Rawls asks for a gain whose interval is above 0. Egalitarian and desert are also content if the
    beneficiaries lose nothing on average, and gain no less than the others lose.
    """
    if not evidence.somebody_gains:
        return False
    if evidence.theory == "utilitarian":
        return True
    gain, interval = evidence.gain.difference, evidence.gain.test.ci95
    if interval is not None and interval[0] > 0:
        return True
    others = evidence.others.difference if evidence.others else 0.0
    return evidence.theory != "rawls" and gain >= 0 and gain + others >= 0


def _has_a_price(evidence: Evidence) -> bool:
    groups = [evidence.mean, *([evidence.others] if evidence.others else [])]
    return any(group.test.shows_fall() for group in groups) or bool(find_payers(evidence))


def find_payers(evidence: Evidence) -> dict[str, float]:
    """Return the clients that lose significantly and their losses, the largest first.

    The tests of all clients are corrected together: with many, some would lose by chance.
    """
    return _find_falls(evidence.clients.values())


def find_broken_limits(evidence: Evidence) -> dict[str, float]:
    """Return the clients that end significantly below their limits, and by how much.

    The tests of all clients are corrected together.
    """
    return _find_falls(evidence.limits.values())


def _find_falls(changes: Iterable[Change]) -> dict[str, float]:
    """Return the changes that are falls, corrected together, the largest first."""
    every = list(changes)
    corrected = correct_tests([change.test for change in every])
    falls = {
        change.title: change.difference
        for change, p in zip(every, corrected, strict=True)
        if change.test.shows_fall(p)
    }
    return dict(sorted(falls.items(), key=lambda item: item[1]))


def _is_at_ceiling(evidence: Evidence) -> bool:
    """Tell if FedAvg leaves hardly any room to improve."""
    measure = evidence.beside[R] if evidence.theory == "desert" else evidence.measure
    before = measure.before
    if before is None or measure.test.n < FEWEST_SEEDS or evidence.theory == "rawls":
        return False
    if evidence.theory == "desert":
        return before <= CEILING_R
    if evidence.theory == "egalitarian":
        return before <= CEILING_STD
    return evidence.score.percent and before >= CEILING_SCORE


def _count_seeds(evidence: Evidence, factor: int | None) -> int | None:
    """Return how many seeds would decide, at the level that the correction leaves this test."""
    if evidence.measure.test.p is None or factor is None:
        return None
    return seeds_needed(evidence.measure.differences, SIGNIFICANT / factor)


def left_out_reason(
    mean: float | None,
    reference_mean: float | None,
    budget: float = MARGIN,
    n_classes: int | None = None,
    score: ScoreKind = ACCURACY,
) -> str | None:
    """Return why a method is left out of rankings, or None if it is ranked.

    mean, reference_mean  mean score of the clients, of the method and of FedAvg, over seeds, turned
                          so that higher is better, and in the unit of gains
    budget                how much worse than FedAvg's it may be
    n_classes             a mean less than two points above 100 / n_classes is that of a guess
    score                 what is judged
    """
    if mean is None or reference_mean is None:
        return None
    if n_classes and mean <= 100 / n_classes + CHANCE:
        return f"at chance, a mean of {format_points(mean)}% with {n_classes} classes"
    loss = reference_mean - mean
    if loss > budget:
        where = "below" if score.better > 0 else "worse than"
        amount = format_points(loss) if score.percent else score.say_gain(format_points(loss))
        limit = f"{budget:g}" if score.percent else score.say_gain(f"{budget:g}")
        return f"its mean is {amount} {where} FedAvg's, budget {limit}"
    return None

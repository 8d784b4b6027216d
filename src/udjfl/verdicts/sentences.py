"""Verdicts in plain words: what moved, who gained, who paid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from udjfl.statistics import FEWEST_SEEDS, MOST_SEEDS, PairedTest
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.verdicts.changes import Change
from udjfl.verdicts.evidence import UNSEEN, Evidence


@dataclass(frozen=True)
class JudgedEvidence:
    """Evidence, with what a verdict adds to it.

    corrected_p  of the measure, after the correction over its table; None where there is none
    payers       clients that lose significantly, and their losses
    seeds        how many seeds would decide; None if that is not known, or above 1000
    broken       clients that end significantly below the limit that they were promised
    """

    evidence: Evidence
    corrected_p: float | None
    payers: dict[str, float]
    seeds: int | None
    broken: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        e = self.evidence
        return {
            "measure": {
                "title": e.measure.title,
                "should": "rise" if e.better > 0 else "fall",
                **e.measure.as_dict(),
                "p_holm": self.corrected_p,
            },
            "beneficiaries": list(e.beneficiaries),
            "gain": e.gain.as_dict(),
            "gain_others": None if e.others is None else e.others.as_dict(),
            "mean_accuracy": e.mean.as_dict(),
            "global_accuracy": None if e.shared is None else e.shared.as_dict(),
            **({} if e.score == ACCURACY else {"score": e.score.title}),
            "budget": e.budget,
            "client_gains": {name: c.test.difference for name, c in e.clients.items()},
            "payers": self.payers,
            **({"limits": self._limits_to_dict()} if e.limits else {}),
            "seeds_needed": self.seeds,
            **{key: change.as_dict() for key, change in e.beside.items()},
        }

    def _limits_to_dict(self) -> dict[str, Any]:
        above = {name: change.as_dict() for name, change in self.evidence.limits.items()}
        return {"above": above, "broken": self.broken}


def write_sentence(kind: str, judged: JudgedEvidence) -> str:
    """Return the verdict and its reasons, in one or two sentences."""
    return f"{kind}: {_WRITERS[kind](judged)}."


def format_p(test: PairedTest, p: float | None) -> str:
    """Return p as text; never as 0."""
    if test.always_same:
        return f"always the same on {test.n} seeds"
    if p is None:
        return ""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def format_points(value: float | None, digits: int = 1, sign: str = "") -> str:
    """Return a number with few digits; sums that differ in the last bits only look the same."""
    # Adding zero turns -0.0 into 0.0.
    return "–" if value is None else f"{round(round(value, 6), digits) + 0.0:{sign}.{digits}f}"


def _interval(e: Evidence, test: PairedTest, scales: int = 1) -> str:
    """Return an interval, cut at so many times the length of the score's scale."""
    if test.ci95 is None:
        return ""
    largest = scales * (e.score.largest_gain or math.inf)
    ends = [format_points(max(-largest, min(largest, end))) for end in test.ci95]
    return f"95% interval {ends[0]} to {ends[1]}"


def _in_brackets(*parts: str) -> str:
    shown = ", ".join(part for part in parts if part)
    return f" ({shown})" if shown else ""


def _from_to(change: Change, verb: str, digits: int = 1, sign: str = "") -> str:
    """Say from where to where a number goes, or that it stays."""
    before, after = format_points(change.before, digits), format_points(change.after, digits)
    if before == after:
        return f"stays at {after}{sign}"
    return f"{verb} from {before}{sign} to {after}{sign}".strip()


def _sign(e: Evidence) -> str:
    """Return what stands behind each number that is a share of FedAvg's mean."""
    return "" if e.score.percent else e.score.gain_unit


def _join(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


def _then(score: ScoreKind, first: str, *clauses: str) -> str:
    """Add a second sentence, if there is one; a client's id at its beginning stays as it is."""
    second = _join(*clauses)
    if second.startswith(("the ", f"{score.title} ", "mean ")):
        second = second[0].upper() + second[1:]
    return f"{first}. {second}" if second else first


# --- clauses


def _gain(e: Evidence) -> str:
    """Say what the beneficiaries gained, and the others."""
    if e.theory == "utilitarian" or not e.gain.differences:
        return ""
    difference = e.gain.difference
    amount = format_points(difference, sign="+")
    verb, shown = ("gains", amount) if difference > 0 else ("loses", amount[1:])
    change = f"{verb} {e.score.say_gain(shown)}"
    if amount == "+0.0":
        change = "neither gains nor loses"
    text = f"{e.beneficiary} {change}{_in_brackets(_interval(e, e.gain.test))}"
    if e.others is not None:
        others = "the upper half" if e.theory == "egalitarian" else "the others"
        text += f", {others} {format_points(e.others.difference, sign='+')}{_sign(e)}"
    return text


def _measure(judged: JudgedEvidence) -> str:
    """Say what the measure did."""
    e, change = judged.evidence, judged.evidence.measure
    up, p = change.difference >= 0, format_p(change.test, judged.corrected_p)
    word, amount = "rises" if up else "falls", format_points(abs(change.difference))
    sign = _sign(e)
    if e.theory == "rawls":
        return f"Psi {word} by {amount}{sign}{_in_brackets(_interval(e, change.test, 2), p)}"
    if e.theory == "desert":
        r, gap = e.beside["pearson_r"], e.beside["gap"]
        return (
            f"the slope {_from_to(change, 'flattens' if up else 'steepens')} {e.score.gain_unit} "
            f"per unit of uncertainty{_in_brackets(p)}, the gap {_from_to(gap, 'goes', 1, sign)}, "
            f"r {_from_to(r, 'goes', 2)}"
        )
    if e.theory == "egalitarian":
        plain, p = e.beside["std"], _in_brackets(p)
        if change.title == plain.title:
            return f"STD {_from_to(plain, word, 1, sign)}{p}"
        noise = f"with it {_from_to(plain, '')}"
        return f"STD without test noise {_from_to(change, word)}{p}, {noise}"
    what = f"global {e.score.title}" if e.shared else f"mean {e.score.title}"
    if e.score.better < 0:
        word = "improves" if up else "worsens"
    interval = _interval(e, change.test)
    return f"{what} {word} by {e.score.say_gain(amount)}{_in_brackets(interval, p)}"


def _mean(e: Evidence) -> str:
    """Say what the mean of the clients' accuracies did, beside the budget and the global score."""
    difference, test, sign = e.mean.difference, e.mean.test, _sign(e)
    shared, budget = "", f"the budget of {e.budget:g}{sign}"
    if e.shared is not None and e.theory != "utilitarian":
        change = format_points(e.shared.difference, sign="+")
        shared = _in_brackets(f"global {e.score.title} {change}{sign}")
    lost = f"{format_points(-difference)}{sign}{shared}"
    if difference < -e.budget:
        return f"the mean loses {lost}, more than {budget}"
    if e.mean.title == e.measure.title:
        return ""  # said already
    reach = f", within {budget}" if test.shows_fall() else ""
    if difference < 0 and test.ci95 is not None and test.ci95[0] < -e.budget:
        end = format_points(max(-(e.score.largest_gain or math.inf), test.ci95[0]))
        reach = f", but its interval reaches {end}{sign}, beyond {budget}"
    if test.shows_fall():
        return f"the mean loses {lost}{reach}"
    amount = f"{format_points(difference, sign='+')}{sign}{shared}"
    if test.shows_rise():
        return f"the mean gains {amount}"
    return f"the mean changes by {amount}, not significantly{reach}"


def _payers(judged: JudgedEvidence) -> str:
    """Name the clients that pay: those that lose significantly, else the one that loses most."""
    losses = judged.payers
    if not losses:
        change = min(judged.evidence.clients.values(), key=lambda change: change.difference)
        losses = {change.title: change.difference} if change.difference < -UNSEEN else {}
    sign = _sign(judged.evidence)
    shown = [f"{name} ({format_points(loss)}{sign})" for name, loss in losses.items()]
    if not shown:
        return ""
    first, *more = [text.replace(" (", " pays most (", 1) for text in shown[:1]] + shown[1:3]
    rest = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return f"{first}{', then ' if more else ''}{', '.join(more)}{rest}"


def _limits(judged: JudgedEvidence) -> str:
    """Name the clients that end below their limits; say of those by chance that it may be so."""
    limits = judged.evidence.limits
    below = {n: c.difference for n, c in limits.items() if c.difference < -UNSEEN}
    undecided = {name: value for name, value in below.items() if name not in judged.broken}
    sign = _sign(judged.evidence)
    broken = f"below its limit: {_list_losses(judged.broken, sign)}" if judged.broken else ""
    listed = _list_losses(undecided, sign)
    return _join(broken, f"below its limit, not significantly: {listed}" if undecided else "")


def _list_losses(losses: Mapping[str, float], sign: str) -> str:
    return ", ".join(f"{name} ({format_points(loss)}{sign})" for name, loss in losses.items())


# --- one function for each kind


def _kept(judged: JudgedEvidence) -> str:
    """Lead with the measure; for Rawls its two numbers are the gains."""
    e = judged.evidence
    return _join(
        "" if e.theory == "rawls" else _measure(judged), _gain(e), _mean(e), _limits(judged)
    )


def _kept_at_a_price(judged: JudgedEvidence) -> str:
    return _join(_kept(judged), _payers(judged))


def _over_budget(judged: JudgedEvidence) -> str:
    e = judged.evidence
    first = _join(_mean(e), _limits(judged), _payers(judged))
    return _then(e.score, first, _measure(judged), _gain(e))


def _levelled_down(judged: JudgedEvidence) -> str:
    e = judged.evidence
    why = "because others fall" if e.somebody_gains else "no client gains"
    if e.somebody_gains and e.gain.difference > 0:
        why = f"not clearly by a gain of {e.beneficiary}"
    first = f"{_measure(judged)}, but {why}"
    return _then(e.score, first, _gain(e), _mean(e), _limits(judged), _payers(judged))


def _opposite(judged: JudgedEvidence) -> str:
    e = judged.evidence
    less = f"{e.score.title} follows uncertainty less closely" if e.moved > 0 else ""
    return _join(_measure(judged), less, _gain(e), _harm(e), _limits(judged))


def _at_its_ceiling(judged: JudgedEvidence) -> str:
    e = judged.evidence
    if e.theory == "desert":
        r = format_points(e.beside["pearson_r"].before, 2)
        head = f"under FedAvg r is already {r} and can hardly fall"
    elif e.theory == "egalitarian":
        head = "under FedAvg clients hardly differ by more than test noise"
    else:
        head = f"FedAvg already reaches {format_points(e.measure.before)}%"
    return _then(e.score, head, _measure(judged), _gain(e), _harm(e), _limits(judged))


def _not_decided(judged: JudgedEvidence) -> str:
    e, test = judged.evidence, judged.evidence.measure.test
    if test.n == 0:
        return f"{e.measure.title} has no value to compare"
    if test.n > 1 and test.p is None and not test.always_same:
        return f"no difference from FedAvg on any of {test.n} seeds"
    if test.n < FEWEST_SEEDS:
        seeds = "1 seed decides" if test.n == 1 else f"{test.n} seeds decide"
        enough = f"{seeds} nothing, at least {FEWEST_SEEDS} are needed"
    elif judged.seeds is None:
        enough = f"no effect visible, more than {MOST_SEEDS} seeds would be needed"
    else:
        enough = f"{test.n} seeds do not decide this, about {judged.seeds} would"
    gains = _gain(e) if e.theory == "rawls" else ""  # its measure in two numbers
    return _then(e.score, f"{_measure(judged)}: {enough}", gains, _harm(e), _limits(judged))


def _harm(e: Evidence) -> str:
    """Say what the mean did if it lost, decidedly or by more than the budget."""
    lost = e.mean.test.shows_fall() or e.mean.difference < -e.budget
    return _mean(e) if lost else ""


_WRITERS = {
    "kept": _kept,
    "kept at a price": _kept_at_a_price,
    "over budget": _over_budget,
    "levelled down": _levelled_down,
    "opposite": _opposite,
    "at its ceiling": _at_its_ceiling,
    "not decided": _not_decided,
}

"""Whether what the paper says of its tables is so in ours, tested over seeds.

A claim is a set of orderings, each "this value is higher than that one". Each is a paired t-test over seeds, two-sided, and
counts at p < 0.05. What that gives for the claim as a whole:

- A claim that needs all its orderings holds if every one is significant. That is an intersection-union test: the claim is
  false if any one ordering is, and each of them is tested at 0.05, so nothing has to be corrected.
- It does not hold if any one is significantly the other way round. There the chance to err grows with the number of
  orderings, so their p go through Holm's correction first.
- A claim that needs only one of its orderings is the mirror image: corrected to hold, uncorrected not to.

Values that are equal on every seed refute a strict ordering without a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from udjfl.paper.tables import Table
from udjfl.statistics import Paired, paired

SIGNIFICANT = 0.05
EQUAL = "equal on every seed, as one algorithm under two names is on clients of equal size"

Outcome = Literal["holds", "does not hold", "not decidable at this number of seeds", "not tested"]


@dataclass(frozen=True)
class Point:
    """A value in a table: the row's name and the metric. Without a row it is the number 0."""

    row: str | None
    metric: str


@dataclass(frozen=True)
class Order:
    """The claim that one value is strictly higher than another."""

    higher: Point
    lower: Point


@dataclass(frozen=True)
class Claim:
    """Something the paper says of its tables.

    `says` is in our words, `where` is the place in the paper, `test` is what would bear it out. `need`: whether all orderings
    have to hold, or any one. `data` is the data set it is said of, None for all.
    """

    id: str
    theory: str
    where: str
    says: str
    test: str
    orders: tuple[Order, ...]
    need: Literal["all", "any"] = "all"
    data: str | None = None


@dataclass(frozen=True)
class Comparison:
    """One ordering in our numbers and in the paper's: higher minus lower, so positive agrees with the claim.

    `test` is None if there is nothing to test, and `why` says why. `holm` is the p after correction within the claim.
    """

    order: Order
    test: Paired | None
    why: str | None
    published_difference: float | None
    holm: float | None = None

    @property
    def equal(self) -> bool:
        """The same value on each of several seeds."""
        return self.test is not None and self.test.n >= 2 and self.test.p is None

    def agrees(self, p: float | None) -> bool:
        """Significantly as claimed, by this p."""
        return _signed(self.test, p) > 0

    def contradicts(self, p: float | None) -> bool:
        """Significantly the other way round by this p, or equal."""
        return self.equal or _signed(self.test, p) < 0

    @property
    def p(self) -> float | None:
        return None if self.test is None else self.test.p

    def as_dict(self) -> dict[str, Any]:
        test = self.test
        return {
            "higher": _plain(self.order.higher),
            "lower": _plain(self.order.lower),
            "difference": None if test is None else test.difference,
            "ci95": None if test is None or test.ci95 is None else list(test.ci95),
            "p": self.p,
            "p_holm": self.holm,
            "n": 0 if test is None else test.n,
            "unsupported_reason": self.why,
            "published_difference": self.published_difference,
        }


@dataclass(frozen=True)
class Verdict:
    """What became of a claim. `published_agrees`: whether the paper's own means bear it out; None if they are not there."""

    claim: Claim
    outcome: Outcome
    reason: str
    comparisons: tuple[Comparison, ...]
    published_agrees: bool | None

    def as_dict(self) -> dict[str, Any]:
        claim = self.claim
        return {
            "id": claim.id,
            "theory": claim.theory,
            "where": claim.where,
            "claim": claim.says,
            "test": claim.test,
            "need": claim.need,
            "outcome": self.outcome,
            "reason": self.reason,
            "published_agrees": self.published_agrees,
            "comparisons": [comparison.as_dict() for comparison in self.comparisons],
        }


def judged(claims: Sequence[Claim], table: Table) -> list[Verdict]:
    """A verdict for each claim that is made of this table's data."""
    return [_judge(claim, table) for claim in claims if claim.data in (None, table.published_for)]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: the smallest of m times m, the next times m - 1, and so on, never falling, at most 1.

    A missing p counts in m, as what could have been tested, and stays missing.

    >>> holm([0.01, 0.04, 0.02])  # 0.01 * 3, 0.02 * 2, and 0.04 * 1, none below the one before
    [0.03, 0.04, 0.04]
    """
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[place] = largest
    return adjusted


def _judge(claim: Claim, table: Table) -> Verdict:
    raw = [_compare(order, table) for order in claim.orders]
    corrected = holm([comparison.p for comparison in raw])
    comparisons = tuple(
        Comparison(one.order, one.test, one.why, one.published_difference, p)
        for one, p in zip(raw, corrected, strict=True)
    )
    outcome = _all(comparisons) if claim.need == "all" else _any(comparisons)
    differences = [comparison.published_difference for comparison in comparisons]
    agrees = _published_all(differences) if claim.need == "all" else _published_any(differences)
    return Verdict(claim, outcome, _reason(outcome, comparisons, table), comparisons, agrees)


def _all(comparisons: Sequence[Comparison]) -> Outcome:
    if any(one.contradicts(one.holm) for one in comparisons):
        return "does not hold"
    if any(one.test is None for one in comparisons):
        return "not tested"
    return (
        "holds"
        if all(one.agrees(one.p) for one in comparisons)
        else "not decidable at this number of seeds"
    )


def _any(comparisons: Sequence[Comparison]) -> Outcome:
    if any(one.agrees(one.holm) for one in comparisons):
        return "holds"
    if any(one.test is None for one in comparisons):
        return "not tested"
    refuted = all(one.contradicts(one.p) for one in comparisons)
    return "does not hold" if refuted else "not decidable at this number of seeds"


def _published_all(differences: Sequence[float | None]) -> bool | None:
    if any(difference is not None and difference <= 0 for difference in differences):
        return False
    return None if None in differences else True


def _published_any(differences: Sequence[float | None]) -> bool | None:
    if any(difference is not None and difference > 0 for difference in differences):
        return True
    return None if None in differences else False


def _compare(order: Order, table: Table) -> Comparison:
    higher, lower = _values(order.higher, table), _values(order.lower, table)
    published = _published(order.higher, table), _published(order.lower, table)
    difference = (
        None if published[0] is None or published[1] is None else published[0] - published[1]
    )
    if isinstance(higher, str) or isinstance(lower, str):
        missing = [found for found in (higher, lower) if isinstance(found, str)]
        return Comparison(order, None, " ".join(dict.fromkeys(missing)), difference)
    test = paired(higher, lower)
    if test.n == 0:
        return Comparison(
            order,
            None,
            f"{order.higher.row} and {order.lower.row} have no seed in common.",
            difference,
        )
    return Comparison(order, test, None, difference)


def _values(point: Point, table: Table) -> Sequence[float | None] | str:
    """One value for each seed, or why there is none."""
    if point.row is None:
        return [0.0] * len(table.seeds)
    row = table.find(point.row)
    if row is None:
        return f"{point.row} was not run."
    summary = table.value(row, point.metric)
    if summary.n:
        return summary.values
    if row.failed:
        return f"{point.row} failed: {next(iter(row.failed.values()))}"
    return f"{point.row} has no {point.metric}."


def _published(point: Point, table: Table) -> float | None:
    if point.row is None:
        return 0.0 if table.published_for else None
    found = table.published_rows().get(point.row, {}).get(point.metric)
    return None if found is None else found.mean


def _reason(outcome: Outcome, comparisons: Sequence[Comparison], table: Table) -> str:
    """A sentence or two: how many comparisons decided it, and what stood in the way."""
    count = len(comparisons)
    support = sum(one.agrees(one.p) for one in comparisons)
    equal = sum(one.equal for one in comparisons)
    against = sum(one.contradicts(one.holm) for one in comparisons) - equal
    if outcome == "not tested":
        return _missing(comparisons, table)
    if outcome == "does not hold":
        told = f"{against} of {count} significantly the other way." if against else ""
        told += f" {equal} of {count} {EQUAL}." if equal else ""
    else:
        told = f"{support} of {count} significantly as claimed."
    fewest = min(one.test.n for one in comparisons if one.test is not None)
    if fewest < len(table.seeds):
        told += f" Some have values on {fewest} of {len(table.seeds)} seeds only."
    return told.strip()


def _missing(comparisons: Sequence[Comparison], table: Table) -> str:
    """Why claims are not tested, each reason once."""
    points = [
        point
        for one in comparisons
        if one.test is None
        for point in (one.order.higher, one.order.lower)
    ]
    absent = dict.fromkeys(
        point.row for point in points if point.row is not None and table.find(point.row) is None
    )
    told = [f"Not run: {'; '.join(absent)}."] if absent else []
    others = [
        found
        for point in points
        if point.row not in absent and isinstance(found := _values(point, table), str)
    ]
    disjoint = [one.why for one in comparisons if one.why and not (others or absent)]
    return " ".join([*told, *dict.fromkeys(others), *dict.fromkeys(disjoint)])


def _signed(test: Paired | None, p: float | None) -> int:
    """1 or -1 for a significant difference, else 0."""
    if test is None or test.difference is None or p is None or p >= SIGNIFICANT:
        return 0
    return 1 if test.difference > 0 else -1


def _plain(point: Point) -> dict[str, str | None]:
    return {"row": point.row, "metric": point.metric}

"""Tests over seeds of what the paper says of its tables.

A claim is a set of orderings, each "this value is higher than that one". Each ordering is a paired
t-test over seeds, two-sided, and counts at p < 0.05. The verdict on the claim as a whole:

- A claim that needs all its orderings holds if every one is significant. That is an
  intersection-union test: the claim is false if any one ordering is, and each of them is tested at
  0.05, so no correction is needed.
- It does not hold if any one ordering is significantly reversed. There the chance of an error grows
  with the number of orderings, so their p go through Holm's correction first.
- A claim that needs only one of its orderings is the mirror image: corrected to hold, uncorrected
  not to.

Values that are equal on every seed refute a strict ordering without a test.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from udjfl.paper.tables import Table
from udjfl.statistics import PairedTest, holm, paired_test

SIGNIFICANT = 0.05
EQUAL = "equal on every seed, as one algorithm under two names is on clients of equal size"

VerdictOutcome = Literal[
    "holds", "does not hold", "not decidable at this number of seeds", "not tested"
]


@dataclass(frozen=True)
class Point:
    """A value in a table: the row's name and the metric. Without a row it is the number 0."""

    row: str | None
    metric: str


@dataclass(frozen=True)
class Order:
    """The statement that one value is strictly higher than another."""

    higher: Point
    lower: Point


@dataclass(frozen=True)
class Claim:
    """A statement of the paper about its tables.

    where  the place in the paper
    says   the statement, in our words
    test   what would confirm it
    need   "all" orderings have to hold, or "any" one
    data   the data set that the statement is about; None: all
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
class OrderTest:
    """One ordering in our numbers and in the paper's.

    Differences are higher minus lower, so that a positive one agrees with the claim.

    test             None if there is nothing to test; `untested_reason` then gives the reason
    holm             p after Holm's correction within the claim
    """

    order: Order
    test: PairedTest | None
    untested_reason: str | None
    published_difference: float | None
    holm: float | None = None

    @property
    def p(self) -> float | None:
        """Two-sided p without correction."""
        return None if self.test is None else self.test.sort_p

    @property
    def equal(self) -> bool:
        """True if both values are the same on each of several seeds."""
        return self.test is not None and self.test.n >= 2 and self.p is None

    @property
    def support(self) -> float:
        """A number from -1, certainly reversed, to 1, certainly as claimed."""
        if self.test is None or self.test.difference is None or self.p is None:
            return 0.0
        return math.copysign(1 - self.p, self.test.difference)

    def agrees(self, p: float | None) -> bool:
        """Return True if the difference is significantly as claimed, by this p."""
        return p is not None and p < SIGNIFICANT and self.support > 0

    def contradicts(self, p: float | None) -> bool:
        """Return True if the difference is significantly reversed by this p, or always zero."""
        return self.equal or (p is not None and p < SIGNIFICANT and self.support < 0)

    def as_dict(self) -> dict[str, Any]:
        test = self.test
        return {
            **asdict(self.order),
            "difference": None if test is None else test.difference,
            "ci95": None if test is None or test.ci95 is None else list(test.ci95),
            "p": self.p,
            "p_holm": self.holm,
            "n": 0 if test is None else test.n,
            "untested_reason": self.untested_reason,
            "published_difference": self.published_difference,
        }


@dataclass(frozen=True)
class Verdict:
    """The result of testing a claim.

    `published_agrees` tells if the paper's own means agree with it; None if they are not published.
    """

    claim: Claim
    outcome: VerdictOutcome
    reason: str
    order_tests: tuple[OrderTest, ...]
    published_agrees: bool | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.claim.id,
            "theory": self.claim.theory,
            "where": self.claim.where,
            "claim": self.claim.says,
            "test": self.claim.test,
            "need": self.claim.need,
            "outcome": self.outcome,
            "reason": self.reason,
            "published_agrees": self.published_agrees,
            "comparisons": [test.as_dict() for test in self.order_tests],
        }


def judge_claims(claims: Sequence[Claim], table: Table) -> list[Verdict]:
    """Test each claim that is made of this table's data."""
    return [_judge(claim, table) for claim in claims if claim.data in (None, table.published_for)]


def _judge(claim: Claim, table: Table) -> Verdict:
    uncorrected = [_test_order(order, table) for order in claim.orders]
    corrected = holm([test.p for test in uncorrected])
    tests = tuple(replace(test, holm=p) for test, p in zip(uncorrected, corrected, strict=True))
    outcome = _decide(claim.need, tests)
    agreements = [
        None if test.published_difference is None else test.published_difference > 0
        for test in tests
    ]
    # One failure decides a claim that needs all, one success a claim that needs any.
    decisive = claim.need == "any"
    agrees = decisive if decisive in agreements else None if None in agreements else not decisive
    return Verdict(claim, outcome, _reason(outcome, tests, table), tests, agrees)


def _decide(need: str, tests: Sequence[OrderTest]) -> VerdictOutcome:
    """Decide by one ordering with correction, or by all without: see the head of this file."""
    sides: list[tuple[VerdictOutcome, Callable[[OrderTest, float | None], bool]]]
    sides = [("does not hold", OrderTest.contradicts), ("holds", OrderTest.agrees)]
    (by_one, one_decides), (by_all, all_decide) = sides if need == "all" else sides[::-1]
    if any(one_decides(test, test.holm) for test in tests):
        return by_one
    if any(test.test is None for test in tests):
        return "not tested"
    decided = all(all_decide(test, test.p) for test in tests)
    return by_all if decided else "not decidable at this number of seeds"


def _test_order(order: Order, table: Table) -> OrderTest:
    higher, no_higher = _values(order.higher, table)
    lower, no_lower = _values(order.lower, table)
    test, reasons = paired_test(higher, lower), [no_higher, no_lower]
    if test.n == 0 and not any(reasons):
        reasons = [f"{order.higher.row} and {order.lower.row} have no seed in common."]
    reason = " ".join(dict.fromkeys(filter(None, reasons))) or None
    claimed, other = _published(order.higher, table), _published(order.lower, table)
    difference = None if claimed is None or other is None else claimed - other
    return OrderTest(order, None if reason else test, reason, difference)


def _values(point: Point, table: Table) -> tuple[Sequence[float | None], str]:
    """Return one value for each seed, and the reason if there is none on any seed."""
    if point.row is None:
        return [0.0] * len(table.seeds), ""
    row = table.find(point.row)
    if row is None:
        return [None] * len(table.seeds), f"{point.row} was not run."
    summary, reason = table.value(row, point.metric), f"has no {point.metric}."
    if row.failed:
        reason = f"failed: {next(iter(row.failed.values()))}"
    return summary.values, "" if summary.n else f"{point.row} {reason}"


def _published(point: Point, table: Table) -> float | None:
    if point.row is None:
        return 0.0 if table.published_for else None
    number = table.published_rows().get(point.row, {}).get(point.metric)
    return None if number is None else number.mean


def _reason(outcome: VerdictOutcome, tests: Sequence[OrderTest], table: Table) -> str:
    """Return a sentence or two: how many orderings decided the outcome, and what prevented it."""
    if outcome == "not tested":
        return _missing(tests, table)
    count = len(tests)
    if outcome == "does not hold":
        equal = sum(test.equal for test in tests)
        reversed_ = sum(test.contradicts(test.holm) for test in tests) - equal
        reason = f"{reversed_} of {count} significantly the other way." if reversed_ else ""
        reason += f" {equal} of {count} {EQUAL}." if equal else ""
    else:
        support = sum(test.agrees(test.p) for test in tests)
        reason = f"{support} of {count} significantly as claimed."
    fewest = min(test.test.n for test in tests if test.test is not None)
    if fewest < len(table.seeds):
        reason += f" Some have values on {fewest} of {len(table.seeds)} seeds only."
    return reason.strip()


def _missing(tests: Sequence[OrderTest], table: Table) -> str:
    """Return why orderings are not tested, each reason once."""
    untested = [test for test in tests if test.test is None]
    points = [point for test in untested for point in (test.order.higher, test.order.lower)]
    absent = dict.fromkeys(
        point.row for point in points if point.row is not None and table.find(point.row) is None
    )
    reasons = [f"Not run: {'; '.join(absent)}."] if absent else []
    reasons += [_values(point, table)[1] for point in points if point.row not in absent]
    if not any(reasons):
        reasons = [test.untested_reason or "" for test in untested]
    return " ".join(dict.fromkeys(filter(None, reasons)))

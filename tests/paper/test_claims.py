"""Verdicts on the paper's claims: the logic by hand, and the verdicts on the paper's means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from udjfl.paper.claims import (
    DISTRIBUTION_CLAIMS,
    RESULTS_CLAIMS,
    SOLO_CLAIMS,
    judge_table,
)
from udjfl.paper.tables import (
    DistributionsTable,
    ResultsTable,
    Row,
    SoloTable,
    Table,
)
from udjfl.paper.verdicts import Claim, Order, Point, Verdict, judge_claims
from udjfl.statistics import summarise

COMMON: dict[str, Any] = {"data": "mine", "profile": "paper", "rounds": 500}
Values = list[float | None]


def solo(*clients: Values, metric: str = "uncertainty") -> SoloTable:
    rows = tuple(
        Row(name=f"client {number}", values={metric: summarise(values)})
        for number, values in enumerate(clients, start=1)
    )
    seeds = tuple(range(len(clients[0])))
    return SoloTable(rows=rows, seeds=seeds, published_for=None, same_data=False, **COMMON)


def rising(*clients: Values) -> Verdict:
    return next(
        verdict
        for verdict in judge_table(solo(*clients))
        if verdict.claim.id == "solo-uncertainty-rises"
    )


def with_no_rows(kind: type[Table], published_for: str | None) -> Any:
    return kind(rows=(), seeds=(0,), published_for=published_for, same_data=False, **COMMON)


def test_a_claim_holds_if_every_step_is_significant() -> None:
    # Each client is above the one before by 1, 2, 3, 1.1, ... on every seed alike or nearly so.
    verdict = rising([1, 2, 3], [2, 3, 4], [4, 5, 6], [5, 6.1, 7], [7, 8, 9])
    assert verdict.outcome == "holds"
    assert [one.test.n for one in verdict.order_tests if one.test] == [3, 3, 3, 3]
    assert [round(one.test.difference or 0, 3) for one in verdict.order_tests if one.test] == [
        1,
        2,
        1.033,
        1.967,
    ]


def test_a_claim_is_undecided_if_one_step_is_not_significant() -> None:
    verdict = rising(
        [1, 2, 3], [2, 3, 4], [4, 5, 6], [3, 8, 6], [13, 18, 16]
    )  # the third step is -1, 3, 0
    assert verdict.outcome == "not decidable at this number of seeds"
    assert verdict.reason.startswith("3 of 4 ")


def test_a_claim_does_not_hold_if_one_step_is_reversed() -> None:
    verdict = rising([1, 2, 3], [2, 3, 4], [4, 5, 6], [3, 4, 5], [13, 14, 15])
    assert verdict.outcome == "does not hold"
    assert verdict.reason == "1 of 4 significantly the other way."


def test_a_claim_is_not_tested_without_a_row() -> None:
    verdict = rising([1, 2, 3], [2, 3, 4], [4, 5, 6], [5, 6, 7])
    assert verdict.outcome == "not tested"
    assert verdict.reason == "Not run: client 5."


def test_one_reversed_step_refutes_even_if_a_row_is_missing() -> None:
    assert rising([1, 2, 3], [2, 3, 4], [4, 5, 6], [3, 4, 5]).outcome == "does not hold"


def test_equal_values_refute_a_strict_claim() -> None:
    verdict = rising([1, 2, 3], [2, 3, 4], [2, 3, 4], [5, 6, 7], [6, 7, 8])
    assert verdict.outcome == "does not hold"
    assert "one algorithm" in verdict.reason
    assert [one.equal for one in verdict.order_tests] == [False, True, False, False]


def test_one_seed_decides_nothing() -> None:
    assert rising([1], [2], [3], [4], [5]).outcome == "not decidable at this number of seeds"
    assert rising([1], [1], [1], [1], [1]).outcome == "not decidable at this number of seeds"


def test_a_failed_seed_is_left_out_and_reported() -> None:
    verdict = rising([1, 2, 3], [2, 3, 4], [4, None, 6], [5, 6, 7], [6, 7, 8])
    assert verdict.outcome == "holds"
    assert "2 of 3 seeds only" in verdict.reason


def test_a_row_that_always_failed_gives_its_reason() -> None:
    clients = [
        Row(name="client 1", values={}, failed={0: "diverged"}),
        *(Row(name=f"client {n}", values={"uncertainty": summarise([n])}) for n in range(2, 6)),
    ]
    table = SoloTable(
        rows=tuple(clients), seeds=(0,), published_for=None, same_data=False, **COMMON
    )
    verdict = judge_table(table)[0]
    assert (verdict.outcome, verdict.reason) == ("not tested", "client 1 failed: diverged")


def test_rows_without_a_common_seed_are_not_tested() -> None:
    verdict = rising([1, None], [None, 3], [4, 5], [5, 6], [6, 7])
    assert verdict.outcome == "not tested"
    assert "no seed in common" in verdict.reason


def test_a_reversal_is_corrected_for_the_number_of_comparisons() -> None:
    # Reversed by 0.691, 1, 1.309: t = sqrt(3) / 0.309 = 5.605 with 2 degrees of freedom, p = 0.030.
    # The other steps are -1, 3, 0 and so on: undecided. Four comparisons: 4 * 0.030 = 0.12.
    steps = [[-1, 3, 0], [3, 0, -1], [0, -1, 3], [-0.691, -1, -1.309]]
    clients: list[list[float]] = [[0.0, 0.0, 0.0]]
    for step in steps:
        clients.append([before + change for before, change in zip(clients[-1], step, strict=True)])
    verdict = rising(*[list(values) for values in clients])
    assert verdict.order_tests[3].p == pytest.approx(0.0304, abs=1e-4)
    assert verdict.order_tests[3].holm == pytest.approx(4 * 0.0304, abs=4e-4)
    assert verdict.outcome == "not decidable at this number of seeds"
    alone = Claim(
        "x",
        "none",
        "",
        "",
        "",
        (Order(Point("client 5", "uncertainty"), Point("client 4", "uncertainty")),),
    )
    assert (
        judge_claims([alone], solo(*[list(values) for values in clients]))[0].outcome
        == "does not hold"
    )


def dirty(*clients: Values) -> Verdict:
    values = {f"client_{number}": summarise(of) for number, of in enumerate(clients, start=1)}
    seeds = tuple(range(len(clients[0])))
    row = Row(name="dirty", values=values)
    table = DistributionsTable(
        rows=(row,), seeds=seeds, published_for=None, same_data=False, **COMMON
    )
    return next(
        verdict for verdict in judge_table(table) if verdict.claim.id == "dirty-client-not-ahead"
    )


def test_a_claim_that_needs_any_ordering() -> None:
    low: Values = [1, 2, 3]
    assert dirty([9, 10, 11], low, low, low, [5, 6, 7]).outcome == "holds"
    assert dirty(low, low, low, low, [5, 6, 7]).outcome == "does not hold"
    assert (
        dirty([3, 9, 6], low, low, low, [5, 6, 7]).outcome
        == "not decidable at this number of seeds"
    )
    assert (
        dirty([5, 6, 7], low, low, low, [5, 6, 7]).outcome == "does not hold"
    )  # a tie is not above


def test_any_one_of_several_orderings_is_corrected_for_their_number() -> None:
    # Client 1 is above client 5 by 0.691, 1, 1.309: p = 0.030 as above, four times that corrected.
    undecided: Values = [4, 9, 6]
    verdict = dirty([5.691, 7, 8.309], undecided, undecided, undecided, [5, 6, 7])
    assert verdict.order_tests[0].p == pytest.approx(0.0304, abs=1e-4)
    assert verdict.outcome == "not decidable at this number of seeds"


def test_zero_is_something_to_compare_with() -> None:
    def verdict(psi: Values) -> Verdict:
        row = Row(theory="rawls", name="UDJ-FL: beta=5, gamma=1", values={"psi": summarise(psi)})
        table = ResultsTable(
            rows=(row,), seeds=(0, 1, 2), published_for=None, same_data=False, **COMMON
        )
        return next(one for one in judge_table(table) if one.claim.id == "rawls-benefits-most")

    assert verdict([3.0, 3.1, 2.9]).outcome == "holds"
    assert verdict([-3.0, -3.1, -2.9]).outcome == "does not hold"
    assert verdict([3.0, 3.1, 2.9]).published_agrees is None


CONTRADICTED = {
    "dirty-mnist": {
        "utilitarian-tenth-attends",
        "rawls-benefits-at-all",
    },  # 82.07 < 84.63; 86.60 < 87.33
    "cure-tsr": {
        "utilitarian-weights-matter",
        "rawls-benefits-at-all",
    },  # 98.39 is not above 98.39; 87.50 < 93.63
}


@pytest.mark.parametrize("data", ["dirty-mnist", "cure-tsr"])
def test_which_claims_the_papers_own_means_contradict(data: str) -> None:
    verdicts = judge_table(with_no_rows(ResultsTable, data)) + judge_table(
        with_no_rows(SoloTable, data)
    )
    assert {verdict.outcome for verdict in verdicts} == {"not tested"}
    # The paper prints no training losses.
    unknown = {verdict.claim.id for verdict in verdicts if verdict.published_agrees is None}
    assert unknown == {"solo-train-loss-rises"}
    assert {
        verdict.claim.id for verdict in verdicts if verdict.published_agrees is False
    } == CONTRADICTED[data]


def test_the_means_of_appendix_a_agree_with_its_claims() -> None:
    verdicts = judge_table(with_no_rows(DistributionsTable, "dirty-mnist"))
    assert {verdict.published_agrees for verdict in verdicts} == {True}
    elsewhere = judge_table(with_no_rows(DistributionsTable, "cure-tsr"))
    assert {verdict.published_agrees for verdict in elsewhere} == {None}


def test_claims_about_the_other_data_set_are_left_out() -> None:
    ids = {
        data: {verdict.claim.id for verdict in judge_table(with_no_rows(ResultsTable, data))}
        for data in ("dirty-mnist", "cure-tsr", None)
    }
    assert ids["dirty-mnist"] - ids["cure-tsr"] == {
        "utilitarian-highest-dirty-mnist",
        "utilitarian-tenth-above-zero",
        "utilitarian-tenth-attends",
        "rawls-second-dirty-mnist",
        "rawls-afl-first-dirty-mnist",
    }
    assert ids["cure-tsr"] - ids["dirty-mnist"] == {
        "utilitarian-highest-cure-tsr",
        "rawls-highest-cure-tsr",
    }
    assert ids[None] == ids["dirty-mnist"] & ids["cure-tsr"]


def test_to_be_first_does_not_refute_second() -> None:
    claims = {claim.id: claim for claim in RESULTS_CLAIMS}
    second = claims["rawls-second-dirty-mnist"]
    ours = "UDJ-FL: beta=5, gamma=1"
    assert {order.higher.row for order in second.orders} == {ours}
    assert "AFL" not in {order.lower.row for order in second.orders}
    first = claims["rawls-afl-first-dirty-mnist"]
    assert ("AFL", ours) in [(order.higher.row, order.lower.row) for order in first.orders]


def test_first_and_second_are_each_compared_with_the_rest() -> None:
    claim = next(claim for claim in RESULTS_CLAIMS if claim.id == "desert-first-and-second")
    first, second = "UDJ-FL: beta=per-client, gamma=0", "UDJ-FL: beta=per-client, gamma=-1"
    assert [(order.higher.row, order.lower.row) for order in claim.orders] == [
        (second, first),
        ("CFFL", first),
        ("CFFL", second),
    ]


def test_every_claim_has_a_name_of_its_own() -> None:
    ids = [claim.id for claim in (*RESULTS_CLAIMS, *SOLO_CLAIMS, *DISTRIBUTION_CLAIMS)]
    assert len(set(ids)) == len(ids)
    assert all(claim.orders for claim in (*RESULTS_CLAIMS, *SOLO_CLAIMS, *DISTRIBUTION_CLAIMS))


def test_a_verdict_carries_its_numbers() -> None:
    plain = json.loads(
        json.dumps(rising([1, 2, 3], [2, 3, 5], [4, 5, 6], [5, 6, 7], [7, 8, 9]).as_dict())
    )
    first = plain["comparisons"][0]
    assert first["higher"] == {"row": "client 2", "metric": "uncertainty"}
    assert first["difference"] == pytest.approx(4 / 3)
    assert first["ci95"][0] < 4 / 3 < first["ci95"][1]
    assert 0 < first["p"] < 0.1
    assert first["n"] == 3

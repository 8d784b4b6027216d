"""A budget from sums over clients is the rule of `aggregate`, round after round."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from udjfl.methods import UDJ, Reports, Setup, State
from udjfl.methods.budget_sums import BudgetSums, play_round

N, D, ROUNDS = 5, 6, 12
SIZES = torch.tensor([40.0, 60, 10, 80, 30], dtype=torch.float64)
UNCERTAINTIES = torch.tensor([0.3, 0.2, 0.9, 0.001, 0.5], dtype=torch.float64)  # one is floored
ALONE = torch.tensor([0.7, 0.5, 0.4, 0.8, 0.6], dtype=torch.float64)
RULES = [
    *(UDJ(theory=theory, budget=2) for theory in ("rawls", "egalitarian", "utilitarian", "desert")),
    UDJ(theory="desert", budget=2, cap=1.0),
    UDJ(theory="rawls", budget=100, cap=0.7),  # the price falls to 0
    UDJ(theory="rawls", budget=0, client_budget=1, floor="alone", advantage="alone"),
    UDJ(theory="rawls", budget=2, advantage="fedavg"),
    UDJ(theory="egalitarian", budget=1, client_budget=3, caution=0),
    UDJ(theory="utilitarian", budget=0, limit=80),
]


def draw_rounds(present: list[list[int]]) -> tuple[Tensor, list[Reports]]:
    """Return FedAvg's scores by round, unknown of absent clients, and the reports of the rounds."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    reference = torch.full((len(present), N), math.nan, dtype=torch.float64)
    reports = []
    for number, rows in enumerate(present):
        reference[number, rows] = 0.6 + 0.3 * draw(len(rows))
        extras = {
            "scores": 0.5 + 0.4 * draw(len(rows)),
            "score_sizes": 20 + 10 * torch.tensor(rows, dtype=torch.float64),
        }
        reports.append(
            Reports(
                [f"c{row}" for row in rows],
                draw(len(rows), D) - 0.5,
                sizes=SIZES[rows],
                uncertainties=UNCERTAINTIES[rows],
                client_indices=torch.tensor(rows, dtype=torch.float64),
                extras=extras,
                round=number + 1,
            )
        )
    return reference, reports


def report_of(reports: Reports, row: int) -> Reports:
    """Return the report of one client, who knows of no others."""
    return Reports(
        [reports.ids[row]],
        reports.deltas[[row]],
        sizes=reports.sizes[[row]],
        uncertainties=reports.uncertainties[[row]],
        client_indices=[0],
        extras={name: values[[row]] for name, values in reports.extras.items()},
        round=reports.round,
    )


def setup_of(rows: list[int], reference: Tensor) -> Setup:
    return Setup(
        [f"c{row}" for row in rows],
        SIZES[rows],
        torch.zeros(D),
        reference=reference[:, rows],
        alone=ALONE[rows],
    )


def maxima_of(rule: UDJ, state: State, reports: Reports) -> dict[str, Tensor]:
    """Return the maxima over clients; only their values, not whose they are."""
    values = {
        "alone": -state["alone"],
        "fedavg": -state["reference_scores"],
    }.get(rule.advantage or "", state["uncertainties"])
    threshold = values[~values.isnan()].max()
    return {"threshold": threshold, "largest_uncertainty": reports.uncertainties.max()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
@pytest.mark.parametrize("partial", [False, True], ids=["all", "some absent"])
def test_sums_of_client_terms_give_the_same_steps(rule: UDJ, partial: bool) -> None:
    everybody = list(range(N))
    absent = [[], [2], [0, 4], [], [1], [3], [2, 3], [], [4], [0, 1, 3], [], [2]]
    present = [[r for r in everybody if not partial or r not in gone] for gone in absent]
    reference, rounds = draw_rounds(present)
    state = rule.init(setup_of(everybody, reference))
    form = BudgetSums(rule)
    server = form.server_start()
    clients = [form.client_start(setup_of([row], reference)) for row in everybody]
    for rows, reports in zip(present, rounds, strict=True):
        state, step, _ = rule.aggregate(state, reports)
        single = [report_of(reports, row) for row in range(len(rows))]
        maxima = maxima_of(rule, state, reports)
        server, own, ours = play_round(form, server, [clients[r] for r in rows], single, maxima)
        for row, kept in zip(rows, own, strict=True):
            clients[row] = kept
        torch.testing.assert_close(ours, step, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(server["price"], state["price"], rtol=1e-9, atol=1e-12)
        for name in ("client_prices", "tilts", "scores"):
            together = torch.cat([client[name] for client in clients])
            torch.testing.assert_close(together, state[name], rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("limit", [None, 80])
def test_a_client_without_a_reference_adds_nothing_unless_the_limit_needs_none(
    limit: float | None,
) -> None:
    reference, (first, *_) = draw_rounds([[0, 1, 2, 3, 4]])
    reference[:] = math.nan
    form = BudgetSums(UDJ(theory="utilitarian", budget=0, limit=limit))
    _, terms = form.client_scores(form.client_start(setup_of([1], reference)), report_of(first, 1))
    score = float(first.extras["scores"][1])
    known = [1.0, score, 0.0, score * (1 - score) / 30]
    assert terms.tolist() == pytest.approx([0.0] * 4 if limit is None else known)


def test_the_price_stays_until_a_client_is_known_and_moves_with_one() -> None:
    # One client at 1/2 where FedAvg has 3/4: with a budget of 5 points and no error, the goal is
    # 0.7, and 5 (0.7 - 0.5) = 1 is added to the price of 1.
    form = BudgetSums(UDJ(theory="rawls", budget=5))
    server, _ = form.update_price(form.server_start(), torch.zeros(4, dtype=torch.float64))
    assert server["price"] == 1
    changes = torch.tensor([1.0, 0.5, 0.75, 0.0], dtype=torch.float64)
    server, common = form.update_price(server, changes)
    assert float(server["price"]) == pytest.approx(2)
    assert common["mean_score"] == 0.5


def test_sums_are_in_double_precision() -> None:
    form = BudgetSums(UDJ(theory="rawls", budget=5))
    reference, _ = draw_rounds([[0, 1]])
    states = form.server_start(), form.client_start(setup_of([1], reference))
    assert all(value.dtype == torch.float64 for state in states for value in state.values())


def test_clients_that_share_the_largest_weight_are_not_capped() -> None:
    # Of 3, 3, 2, 2 no one has half: the others of the first have 3 + 2 + 2. So of 3, 3, 1, 1.
    form, report = BudgetSums(UDJ(theory="rawls", budget=5)), Reports(["a"], [[1.0]])
    for low in (2.0, 1.0):
        weights = [torch.tensor(v, dtype=torch.float64) for v in (3.0, 3.0, low, low)]
        told = [form.client_below(v, weights[0]) for v in weights]
        common = {name: sum(own[name] for own in told) for name in ("below", "at")}
        for v in weights:
            terms = form.client_update(v, report, {**common, "largest": weights[0]}, 0.5)
            assert terms["weight"] == v
    # 9, 1, 1, 2 would: half of all is 4, beside the others' 1 + 1 + 2.
    common = {"below": torch.tensor(4.0), "at": torch.tensor(1.0), "largest": torch.tensor(9.0)}
    terms = form.client_update(torch.tensor(9.0, dtype=torch.float64), report, common, 0.5)
    assert terms["weight"] == 4


def test_a_client_alone_is_followed() -> None:
    reference, (first, *_) = draw_rounds([[1]])
    rule = UDJ(theory="utilitarian", budget=2)
    form, maxima = BudgetSums(rule), {"largest_uncertainty": first.uncertainties.max()}
    clients = [form.client_start(setup_of([1], reference))]
    _, _, step = play_round(form, form.server_start(), clients, [report_of(first, 0)], maxima)
    torch.testing.assert_close(step, first.deltas[0])


def test_what_leaves_a_client_is_the_same_whatever_the_others_do() -> None:
    """The terms of the scores are of the client's own numbers alone."""
    reference, (first, *_) = draw_rounds([[0, 1, 2, 3, 4]])
    form = BudgetSums(UDJ(theory="rawls", budget=2))
    own = form.client_start(setup_of([1], reference))
    _, terms = form.client_scores(own, report_of(first, 1))
    score = float(first.extras["scores"][1])
    expected = [1.0, score, float(reference[0, 1]), score * (1 - score) / 30]
    assert terms.tolist() == pytest.approx(expected)
    # In the next round it adds what changed: nothing, if its score is the same again.
    kept, _ = form.client_scores(own, report_of(first, 1))
    _, change = form.client_scores(kept, report_of(first, 1))
    assert change.tolist() == pytest.approx([0.0] * 4)

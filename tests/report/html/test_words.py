"""The accounts in words: from the numbers, honest about chance, no theory called right."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from paired_comparison import compare_gains

import udjfl
from udjfl.methods import THEORIES, UDJ, Method
from udjfl.report.html.material import Material
from udjfl.report.html.words import (
    PROMISES,
    explain_measures,
    explain_terms,
    introduce,
    write_accounts,
)
from udjfl.simulation.comparison import Comparison
from udjfl.tasks import ACCURACY
from udjfl.verdicts import KINDS


def make_material(comparison: Comparison) -> Material:
    return Material("by hand", comparison.seeds, comparison.rows, comparison, "")


def accounts_of(gains: list[float], method: Method | None = None, seeds: int = 5) -> list:
    method = method or UDJ(theory="rawls", budget=2)
    return write_accounts(make_material(compare_gains({method: gains}, seeds=seeds)))


def test_who_gained_and_who_paid_is_said_with_intervals() -> None:
    [account] = accounts_of([-1.0, -1.0, -1.0, 0.0, 6.0])
    assert account.kind == "kept at a price"
    assert re.match(r"client-5 \+6\.\d \(\d\.\d to \d\.\d\)\.", account.gained)
    assert "client-1 -1" in account.paid
    assert account.price.startswith("Mean of the clients +0.6")


def test_every_account_has_a_heading_of_its_own() -> None:
    """Variants of one theory, one of them with a service, and a method of two theories."""
    gains = [0.0, 1.0, 0.0, 0.0, 6.0]
    specs = (
        *("rawls:budget=2", "rawls:budget=5", "rawls:budget=2:advantage=fedavg", "rawls"),
        *("rawls:beta=2", "qffl"),
    )
    comparison = compare_gains({udjfl.method(spec): gains for spec in specs})
    rows = (*comparison.rows, replace(comparison.rows[1], service="shift"))
    titles = [each.title for each in write_accounts(make_material(replace(comparison, rows=rows)))]
    assert len(titles) == len(set(titles)) == 8
    assert "Rawls, for at most 2 points of the mean" in titles
    assert "Rawls (advantage=fedavg), for at most 2 points of the mean" in titles
    assert {"q-FFL, rawls", "q-FFL, utilitarian"} <= set(titles)


def test_chance_is_called_chance() -> None:
    [account] = accounts_of([0.0] * 5)
    assert "chance" in account.gained
    assert "chance" in account.paid


def test_few_seeds_decide_nothing() -> None:
    [account] = accounts_of([-1.0, -1.0, -1.0, 0.0, 6.0], seeds=3)
    assert "fewer than 5 decide nothing" in account.sure


def test_budgets_come_first() -> None:
    comparison = compare_gains(
        {UDJ(theory="desert"): [1.0] * 5, UDJ(theory="rawls", budget=2): [0.5] * 5}
    )
    assert [a.theory for a in write_accounts(make_material(comparison))] == ["rawls", "desert"]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-20, 0), min_size=5, max_size=5))
def test_harm_to_all_is_never_told_as_a_success(gains: list[float]) -> None:
    [account] = accounts_of(gains)
    assert not account.kind.startswith("kept")
    assert "+" not in account.gained


def test_every_theory_and_every_verdict_is_explained() -> None:
    assert set(PROMISES) == set(explain_measures(ACCURACY)) == set(THEORIES)
    terms = explain_terms(ACCURACY)
    explained = " ".join([*terms, *terms.values()]).lower()
    for kind in KINDS:
        assert kind.removesuffix(" at a price") in explained
    for symbol in ("psi", "std", "slope and r", "gap", "p", "budget", "seed"):
        assert symbol in {term.lower() for term in terms}


def test_no_theory_is_called_right() -> None:
    measures, terms = explain_measures(ACCURACY), explain_terms(ACCURACY)
    text = " ".join([*PROMISES.values(), *measures.values(), *terms.values()]).lower()
    assert not re.search(r"\b(right|fairest|best theory|correct theory|just one)\b", text)


def test_the_introduction_names_what_is_compared() -> None:
    material = make_material(compare_gains({UDJ(theory="rawls"): [0.0] * 5}))
    assert introduce(material).startswith("5 clients trained one model together on by hand.")
    assert "one method" in introduce(material)

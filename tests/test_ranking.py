"""Methods in order for each theory: direction, ties, and methods without a value."""

from __future__ import annotations

import io

import pytest
from conftest import make_federation
from rich.console import Console

import udjfl
from udjfl.methods import THEORIES, FedAvg, method
from udjfl.report.comparison_table import comparison_view
from udjfl.statistics import THEORY_METRIC, Summary, metric_of, ranked, summarise


def entries(key: str, *means: float | None) -> list[dict[str, Summary]]:
    return [{key: summarise([mean])} for mean in means]


def test_every_theory_has_its_measure() -> None:
    assert set(THEORY_METRIC) == set(THEORIES)
    assert [metric_of(theory).key for theory in THEORIES] == [
        "psi",
        "std",
        "global_accuracy",
        "pearson_r",
    ]


@pytest.mark.parametrize(
    ("theory", "best_first"), [("rawls", [1, 0, 2]), ("egalitarian", [2, 0, 1])]
)
def test_best_comes_first(theory: str, best_first: list[int]) -> None:
    order = ranked(theory, entries(THEORY_METRIC[theory], 1.0, 3.0, -2.0))
    assert [place.entry for place in order] == best_first
    assert [place.rank for place in order] == [1, 2, 3]


def test_equals_share_the_better_place() -> None:
    order = ranked("utilitarian", entries("global_accuracy", 90.0, 95.0, 90.0, 80.0))
    assert [(place.entry, place.rank) for place in order] == [(1, 1), (0, 2), (2, 2), (3, 4)]


def test_no_value_no_rank() -> None:
    order = ranked("utilitarian", entries("global_accuracy", None, 95.0, None))
    assert [(place.entry, place.rank) for place in order] == [(1, 1), (0, None), (2, None)]


@pytest.fixture(scope="module")
def comparison() -> udjfl.Comparison:
    settings = udjfl.CompareSettings(rounds=2, hidden=5, uncertainty_epochs=2, seeds=[0, 1])
    methods = [FedAvg(), method("rawls"), method("desert"), method("focus")]
    return udjfl.compare(settings, federation=make_federation(), methods=methods)


def test_rankings_in_the_document(comparison: udjfl.Comparison) -> None:
    rankings = comparison.as_dict()["rankings"]
    assert list(rankings) == list(THEORIES)
    assert (rankings["egalitarian"]["metric"], rankings["egalitarian"]["better"]) == (
        "std",
        "lower",
    )
    for theory, ranking in rankings.items():
        assert sorted(row["method"] for row in ranking["order"]) == [
            "fedavg",
            "focus",
            "udj",
            "udj",
        ]
        means = [row["mean"] for row in ranking["order"] if row["mean"] is not None]
        assert means == sorted(means, reverse=ranking["better"] == "higher")
        serving = {row["label"] for row in ranking["order"] if row["serves"]}
        assert (
            serving
            == {
                "rawls": {"UDJ-FL rawls"},
                "egalitarian": set(),
                "utilitarian": {"FedAvg"},
                "desert": {"UDJ-FL desert", "FOCUS"},
            }[theory]
        )
        assert all(len(row["ci95"]) == 2 for row in ranking["order"] if row["mean"] is not None)
    last = rankings["utilitarian"]["order"][-1]
    assert (last["method"], last["rank"], last["mean"], last["grade"]) == (
        "focus",
        None,
        None,
        "recalled",
    )


def test_rankings_on_the_screen(comparison: udjfl.Comparison) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(comparison_view(comparison))
    text = console.export_text()
    ranking = text[text.index("Ranked for each theory") :]
    assert (
        ranking.count("• ") == 5
    )  # four methods that serve a theory, and the line that says what the dot means
    assert "FOCUS (recalled)" in ranking
    assert "no value" in ranking
    assert "– FOCUS has no global model" in text
    assert "– This method has no single model to test" in text

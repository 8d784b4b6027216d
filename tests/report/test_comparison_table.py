"""Tables of one run and of a comparison: no number is lost, at any width."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from paired_comparison import compare_gains
from rich.console import Console
from small_runs import make_federation

import udjfl
from udjfl.methods import THEORIES
from udjfl.metrics import table_metrics
from udjfl.report.comparison_table import EXPECTED, GRADES, comparison_view, result_view
from udjfl.report.html.material import Material
from udjfl.report.html.tables import client_table
from udjfl.statistics import summarise
from udjfl.tasks.scores import make_score
from udjfl.training.small_test_parts import RULE

TINY: dict[str, Any] = {"model": "logistic", "rounds": 1, "uncertainty_epochs": 1}


def printed(view: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("clients", [5, 20])
def test_a_comparison_table_loses_no_number(width: int, clients: int) -> None:
    federation = make_federation(n_clients=clients, n=6)
    comparison = udjfl.compare(federation, ["fedavg", *THEORIES], seeds=2, **TINY)
    shown = printed(comparison_view(comparison), width)
    assert "…" not in shown
    words = shown.split()
    assert {
        "FedAvg",
        "Rawls",
        "Egalitarian",
        "Utilitarian",
        "Desert",
        *comparison.rows[0].client_scores,
    } <= set(words)
    numbers = {word.strip("*+") for word in words}
    for row in comparison.rows:
        shown_metrics = [row.metrics[metric.key] for metric in table_metrics()]
        summaries = [*row.client_scores.values(), *shown_metrics]
        assert {f"{round(s.mean, 2) + 0.0:.2f}" for s in summaries if s.mean is not None} <= numbers


def test_a_client_may_be_called_anything() -> None:
    """Square brackets are markup to the library that draws the tables."""
    odd = ["ward[a]", "[bold]", "[/]"]
    plain = make_federation()
    federation = udjfl.Federation.from_arrays(
        {
            name: (c.train.x, c.train.y, c.test.x, c.test.y)
            for name, c in zip(odd, plain.clients, strict=True)
        },
        test=(plain.test.x, plain.test.y),
    )
    result = udjfl.simulate(federation, "rawls", **TINY)
    comparison = udjfl.compare(federation, "rawls", seeds=1, **TINY)
    for shown in (printed(result_view(result), 100), printed(comparison_view(comparison), 100)):
        assert all(name in shown for name in odd)


def test_what_is_undefined_says_why() -> None:
    alone = make_federation(n_clients=1)
    comparison = udjfl.compare(alone, "rawls", seeds=1, **TINY)
    shown = " ".join(printed(comparison_view(comparison), 100).split())
    assert "there is only one client" in shown
    assert "A correlation needs at least two clients" in shown
    shown = " ".join(printed(result_view(udjfl.simulate(alone, "rawls", **TINY)), 100).split())
    assert "A correlation needs at least two clients" in shown


@pytest.fixture(scope="module")
def comparison() -> udjfl.Comparison:
    return udjfl.compare(make_federation(), "rawls,focus,cffl", seeds=2, **TINY)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_block_names_the_methods(comparison: udjfl.Comparison, width: int) -> None:
    """In few columns the metrics stand in several blocks; all have the column of methods."""
    shown = printed(comparison_view(comparison), width)
    assert all(len(line) <= width for line in shown.splitlines())
    metrics = shown[: shown.index("Fewer than 5 seeds")]
    blocks = metrics.count("Method")
    assert blocks == 1 if width == 120 else blocks <= 2
    assert blocks == 2 or width > 60
    for name in ("FedAvg", "Rawls", "FOCUS", "CFFL"):
        assert metrics.count(name) == blocks, name
    assert "±" in metrics


def test_the_grades_are_explained_where_one_is_doubtful(comparison: udjfl.Comparison) -> None:
    shown = printed(comparison_view(comparison), 120)
    assert GRADES in shown  # FOCUS is recalled
    plain = udjfl.compare(make_federation(), "rawls", seeds=1, **TINY)
    assert GRADES not in printed(comparison_view(plain), 120)


RAWLS = udjfl.method("rawls")


def test_a_star_needs_five_seeds_and_the_correction() -> None:
    gains = {RAWLS: (-3, 0, 0, 0, 3)}
    shown = printed(comparison_view(compare_gains(gains)), 120)
    assert "71.00*" in shown  # client-5: 68 + 3, with an interval of 0.2 to both sides
    # One method, eight columns.
    assert "Holm's correction for the 8 tests of this table" in " ".join(shown.split())
    few = printed(comparison_view(compare_gains(gains, seeds=4)), 120)
    assert "*" not in few
    assert "Fewer than 5 seeds: no difference is marked." in few


@pytest.mark.parametrize(
    ("sizes", "note"),
    [
        ((80,) * 5, "each client: 80 test examples, one example is 1.25 points."),
        ((500, 500, 80, 500, 500), "client-3: 80 test examples, one example is 1.25 points."),
        (
            (500, 160, 80, 500, 500),
            "client-3: 80 test examples, one example is 1.25 points; "
            "2 of 5 clients have fewer than 200.",
        ),
        ((200,) * 5, None),
        (None, None),
    ],
)
def test_small_test_parts_are_named_once(sizes: Any, note: str | None) -> None:
    comparison = compare_gains({RAWLS: (0, 0, 0, 0, 4)}, test_sizes=sizes)
    shown = printed(comparison_view(comparison), 120)
    assert shown.count("test examples") == (0 if note is None else 1)
    assert note is None or note in shown


def test_run_comparison_page_and_notebook_have_one_rule_for_small_test_parts() -> None:
    """Of 76 examples, 68% have an interval of 20.5 points, 72% one of 19.8."""
    comparison = compare_gains({RAWLS: (0, 0, 0, 0, 4)}, test_sizes=(76, 76, 76, 29, 76))
    assert comparison.rows[0].too_small == ["client-4", "client-5"]
    assert comparison.rows[1].too_small == ["client-4"]
    shown = " ".join(printed(comparison_view(comparison), 120).split())
    assert f"({RULE}): client-4, client-5." in shown
    assert comparison.rows[0].to_dict(comparison.seeds)["too_small"] == ["client-4", "client-5"]
    material = Material("by hand", comparison.seeds, comparison.rows, comparison, "")
    remarks = {row[0].text: row[-1].text for row in client_table(material).rows}
    assert [client for client, text in remarks.items() if "too small" in text] == [
        "client-4",
        "client-5",
    ]
    assert "too small to tell differences below 21 points" in remarks["client-5"]


def test_a_run_marks_small_test_parts() -> None:
    result = udjfl.simulate(make_federation(), "fedavg", **TINY)
    sizes = {"client-1": 500, "client-2": 29, "client-3": 500}
    marked = replace(result, test_sizes=sizes, client_interval=None)
    assert marked.too_small == ["client-2"]
    assert RULE in " ".join(printed(result_view(marked), 120).split())
    assert RULE in marked._repr_html_()
    plain = replace(marked, test_sizes={**sizes, "client-2": 500})
    assert plain.too_small == []
    assert RULE not in printed(result_view(plain), 120)
    assert RULE not in plain._repr_html_()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_expected_accuracies_stand_below_those_of_the_drawn_labels(width: int) -> None:
    comparison = compare_gains({RAWLS: (0, 0, 0, 0, 4)})
    expected = {client: summarise([81.5]) for client in comparison.rows[0].client_scores}
    expected["client-1"] = summarise([None])  # its labels' distribution is not known
    row = replace(comparison.rows[1], expected_accuracy=expected)
    shown = printed(comparison_view(replace(comparison, rows=(comparison.rows[0], row))), width)
    assert shown.count("(81.50)") == 4
    assert EXPECTED in " ".join(shown.split())
    assert EXPECTED not in " ".join(printed(comparison_view(comparison), width).split())
    other = replace(
        row, score=make_score("auroc", "classification").kind
    )  # they are accuracies, and would mislead
    shown = printed(comparison_view(replace(comparison, rows=(comparison.rows[0], other))), width)
    assert "(81.50)" not in shown
    assert EXPECTED not in " ".join(shown.split())

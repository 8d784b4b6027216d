"""The frontier: its points, its fronts worked out by hand, its files, its resumption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from frontier_cases import make_frontier
from small_runs import Stopped, make_federation

import udjfl
from udjfl.errors import StorageError
from udjfl.methods import UDJ, FedAvg
from udjfl.search import point_runs
from udjfl.search.frontier import FRONTS, Frontier, Point, make_points, trace_frontier
from udjfl.search.run_table import PointRun
from udjfl.search.settings import FrontierSettings
from udjfl.tasks import SCORES

SMALL: dict[str, Any] = {
    "rounds": 3,
    "hidden": 8,
    "batch_size": 8,
    "uncertainty_epochs": 2,
    "seeds": [0, 1],
    "workers": 1,
    "exponents": [1, 6],
    "gammas": [0, 1],
    "budgets": [2],
    "methods": ["qffl", "fedavg"],
}


def by_seed(seed: int) -> udjfl.Federation:
    return make_federation(seed=seed)


def trace(out: Path | None = None, **changes: Any) -> Frontier:
    others = {key: changes.pop(key) for key in ("data", "on_progress") if key in changes}
    settings = FrontierSettings(**{**SMALL, **changes})
    return trace_frontier(settings, **{"data": by_seed, "out": out, **others})


@pytest.fixture(scope="module")
def traced() -> Frontier:
    return trace()


# Points -----------------------------------------------------------------------------------------


def test_points_are_fedavg_the_theories_the_rest_of_the_grid_budgets_and_other_methods() -> None:
    points = make_points(FrontierSettings(**SMALL))
    # Of the grid 1, 6 x 0, 1 egalitarian has p = 1, gamma = 1 and Rawls p = 1 + 5, gamma = 1.
    assert [(p.kind, p.label) for p in points] == [
        ("reference", "FedAvg"),
        ("theory", "UDJ-FL rawls"),
        ("theory", "UDJ-FL egalitarian"),
        ("theory", "UDJ-FL utilitarian"),
        ("theory", "UDJ-FL desert"),
        ("grid", "p = 1, gamma = 0"),
        ("grid", "p = 6, gamma = 0"),
        *(
            ("budget", f"UDJ-FL {theory} (budget=2)")
            for theory in ("rawls", "egalitarian", "utilitarian", "desert")
        ),
        ("method", "q-FFL"),
    ]
    assert [(p.theory, p.exponent, p.gamma) for p in points[1:5]] == [
        ("rawls", 6.0, 1.0),
        ("egalitarian", 1.0, 1.0),
        ("utilitarian", 1.0, -1.0),
        ("desert", None, 0.0),  # an exponent for each client
    ]


def test_the_default_is_sixty_points_beside_fedavg() -> None:
    assert len(make_points(FrontierSettings())) == 61


def test_a_theory_has_the_numbers_of_its_place_in_the_grid(traced: Frontier) -> None:
    """The average over clients is FedAvg weighted by size at p = 1, gamma = 0 only up to sizes."""
    alone = trace(exponents=[6], gammas=[1], budgets=[], methods=[])
    rawls = next(p for p in traced.points if p.theory == "rawls" and p.kind == "theory")
    same = next(p for p in alone.points if (p.exponent, p.gamma) == (6.0, 1.0))
    assert same.name == rawls.name
    for seed in traced.seeds:
        assert alone.runs[same.name, seed] == traced.runs[rawls.name, seed]


# Fronts and maps, by hand -----------------------------------------------------------------------


def made_by_hand() -> Frontier:
    """Two clients, uncertainties 0.1 and 0.3: the second is the least advantaged."""
    accuracies = {
        FedAvg(): (90.0, 70.0, 88.0),
        UDJ(beta=1.0, gamma=1.0): (86.0, 75.0, 87.0),  # on both fronts: less spread
        UDJ(beta=1.0, gamma=-1.0): (92.0, 68.0, 89.0),  # on both: better for client 1
        UDJ(beta=2.0, gamma=-1.0): (89.0, 69.5, 86.0),  # FedAvg beats it
        UDJ(beta=6.0, gamma=1.0): (76.0, 76.0, 70.0),  # a mean of 76 is 4 below FedAvg's
    }
    points = tuple(
        Point.of(method, "reference" if method == FedAvg() else "grid") for method in accuracies
    )
    runs = {
        (point.name, 0): PointRun((a, b), (0.1, 0.3), shared, (50, 50))
        for point, (a, b, shared) in zip(points, accuracies.values(), strict=True)
    }
    clients = ("client-1", "client-2")
    return Frontier("by hand", clients, (0,), {"rounds": 3}, points, runs, n_classes=10)


def test_a_front_has_the_points_that_none_beats_within_the_margin() -> None:
    frontier = made_by_hand()
    labels = ["p = 1, gamma = 1", "FedAvg", "p = 1, gamma = -1"]
    assert [point.label for point in frontier.front("clients")] == labels
    # STD of 86 and 75 is 5.5, of 90 and 70 is 10, of 92 and 68 is 12.
    assert [point.label for point in frontier.front("shared")] == labels
    (reason,) = frontier.left_out.values()
    assert "4.0 below FedAvg's" in reason


def test_a_mean_that_is_higher_by_rounding_keeps_no_point_on_a_front() -> None:
    # Over seeds 64.6464...64 and 64.6464...65: FedAvg is no worse there, and better for client 2.
    one, other = 64 * 100 / 99, 64 * 100 / 99 + 2e-14
    assert one < other
    rules = {FedAvg(): (one, 60.0), UDJ(beta=2.0, gamma=-1.0): (other, 59.0)}
    rules[UDJ(beta=1.0, gamma=0.0)] = (other, 60.0)  # equal to FedAvg: both stay
    points = tuple(Point.of(rule, "reference" if rule == FedAvg() else "grid") for rule in rules)
    runs = {
        (point.name, 0): PointRun(values, (0.1, 0.3), 60.0, (50, 50))
        for point, values in zip(points, rules.values(), strict=True)
    }
    clients = ("client-1", "client-2")
    frontier = Frontier("by hand", clients, (0,), {"rounds": 3}, points, runs, n_classes=10)
    front = {point.label for point in frontier.front("clients")}
    assert front == {"FedAvg", "p = 1, gamma = 0"}
    assert set(frontier.as_dict()["fronts"]["clients"]) == {points[0].name, points[2].name}


@pytest.mark.parametrize("margin", [2.0, 1e15])  # beyond it, or within
def test_a_point_that_diverged_changes_no_front(margin: float) -> None:
    before = replace(made_by_hand(), margin=margin, n_classes=None)
    diverged = Point.of(UDJ(beta=8.0, gamma=1.0), "grid")
    run = PointRun((3e13, -3e14), (0.1, 0.3), -3e13, (50, 50))
    after = replace(
        before,
        points=(*before.points, diverged),
        runs={**before.runs, (diverged.name, 0): run},
    )
    assert (diverged.name in after.left_out) == (margin == 2.0)
    for key in FRONTS:
        assert [point for point in after.front(key) if point != diverged] == before.front(key)


def test_of_a_loss_less_is_better_and_no_mean_is_at_chance(tmp_path: Path) -> None:
    losses = {
        FedAvg(): (0.2, 0.6, 0.3),  # a mean of 0.4: a hundredth of it is 0.004
        UDJ(beta=1.0, gamma=1.0): (0.24, 0.5, 0.32),  # better for client 2
        UDJ(beta=1.0, gamma=-1.0): (0.162, 0.644, 0.28),  # better for client 1, mean 0.75% worse
        UDJ(beta=2.0, gamma=-1.0): (0.201, 0.601, 0.31),  # FedAvg beats it
        UDJ(beta=6.0, gamma=1.0): (0.3, 0.7, 0.5),  # a mean of 0.5 is 25% worse
    }
    points = tuple(Point.of(m, "reference" if m == FedAvg() else "grid") for m in losses)
    runs = {
        (point.name, 0): PointRun((a, b), (0.1, 0.3), shared, (50, 50))
        for point, (a, b, shared) in zip(points, losses.values(), strict=True)
    }
    score = SCORES["log-loss"].kind
    made = Frontier(
        "by hand", ("a", "b"), (0,), {"rounds": 3}, points, runs, n_classes=2, score=score
    )
    made.save(tmp_path)
    for frontier in (made, Frontier.load(tmp_path)):
        assert frontier.score == score
        labels = [point.label for point in frontier.front("clients")]
        assert labels == ["p = 1, gamma = -1", "FedAvg", "p = 1, gamma = 1"]
        assert list(frontier.left_out.values()) == [
            "its mean is 25.0% worse than FedAvg's, budget 2%"
        ]
        # A lower loss is a gain: 0.1 of client 2, less -0.04 of client 1.
        assert frontier.map("psi")[1, 1] == pytest.approx(0.14)


def test_a_traced_frontier_knows_its_score() -> None:
    small = {"exponents": [6], "gammas": [1], "budgets": [], "methods": []}
    frontier = trace(score="log-loss", seeds=[0], **small)
    assert frontier.score.name == "log-loss"
    assert frontier.points[0].name not in frontier.left_out  # FedAvg is within its own margin


def test_a_map_has_a_metric_by_exponent_and_gamma() -> None:
    frontier = made_by_hand()
    # Psi: the gain of client 2 less that of client 1.
    assert frontier.map("psi") == {(1, 1): 9.0, (1, -1): -4.0, (2, -1): 0.5, (6, 1): 20.0}


def test_a_point_that_failed_everywhere_is_on_no_front() -> None:
    frontier = made_by_hand()
    name = frontier.points[1].name
    runs = {**frontier.runs, (name, 0): PointRun(failed="diverged")}
    failed = Frontier(*list(vars(frontier).values())[:5], runs=runs)
    assert failed.left_out[name] == "it finished on no seed"
    assert name not in [point.name for point in failed.front("clients")]
    assert failed.as_dict()["points"][1]["failed"] == {"0": "diverged"}


def test_seeds_on_which_fedavg_failed_do_not_count() -> None:
    frontier = make_frontier()
    fedavg, point = frontier.points[0].name, frontier.points[1].name
    first, *others = frontier.seeds
    failed = {(fedavg, seed): PointRun(failed="diverged") for seed in others}
    kept = replace(frontier, runs={**frontier.runs, **failed})
    alone = replace(frontier, seeds=(first,))
    assert others
    assert kept.metrics[point]["psi"].mean == alone.metrics[point]["psi"].mean
    assert kept.metrics[point]["psi"].values[1:] == (None,) * len(others)
    everywhere = {(fedavg, first): PointRun(failed="diverged"), **failed}
    nowhere = replace(frontier, runs={**frontier.runs, **everywhere})
    assert nowhere.front("clients") == []
    assert set(nowhere.left_out.values()) == {"FedAvg finished on no seed"}
    assert nowhere.as_dict()["points"][0]["failed"] == {"0": "diverged", "1": "diverged"}


# Files and resumption ---------------------------------------------------------------------------


def test_saved_and_loaded_it_is_the_same(traced: Frontier, tmp_path: Path) -> None:
    traced.save(tmp_path / "new")
    again = Frontier.load(tmp_path / "new")
    assert again.as_dict() == traced.as_dict()
    assert again.points == traced.points
    assert again.runs == traced.runs


def test_stopped_and_started_again_it_has_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace(tmp_path / "whole")
    monkeypatch.setattr(point_runs, "MOST_RUNS", 4)
    seen: list[str] = []

    def stop(event: udjfl.Progress) -> None:
        seen.append(event.stage)
        if seen.count("training") > 40:
            raise Stopped

    with pytest.raises(Stopped):
        trace(tmp_path / "stopped", on_progress=stop)
    kept = (tmp_path / "stopped" / "runs.csv").read_text(encoding="utf-8").splitlines()
    assert len(kept) > 4
    trace(tmp_path / "stopped")
    for name in ("runs.csv", "frontier.json"):
        whole, again = (tmp_path / folder / name for folder in ("whole", "stopped"))
        assert again.read_bytes() == whole.read_bytes()


def test_a_folder_of_other_settings_or_data_is_refused(tmp_path: Path) -> None:
    quick = {"budgets": [], "methods": [], "gammas": [0], "exponents": [1], "rounds": 1}
    trace(tmp_path, **quick)
    with pytest.raises(StorageError, match=r"other settings \(rounds\)"):
        trace(tmp_path, **{**quick, "rounds": 2})
    with pytest.raises(StorageError, match="other data"):
        trace(tmp_path, **quick, data=lambda seed: make_federation(seed=seed + 9))
    trace(tmp_path, **quick, jobs=1, workers=2)  # they change no number


@pytest.mark.parametrize("name", ["runs.csv", "frontier.json"])
def test_a_changed_file_of_a_search_is_refused(tmp_path: Path, name: str) -> None:
    quick = {"budgets": [], "methods": [], "gammas": [0], "exponents": [1], "rounds": 1}
    trace(tmp_path, **quick)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content.replace(b"1", b"2"))
    with pytest.raises(StorageError, match=f"{name} is damaged"):
        Frontier.load(tmp_path)
    if name == "frontier.json":
        trace(tmp_path, **quick)
        assert (tmp_path / name).read_bytes() == content


def test_a_search_is_not_overwritten_by_saving(traced: Frontier, tmp_path: Path) -> None:
    trace(tmp_path, budgets=[], methods=[], gammas=[0], exponents=[1], rounds=1)
    with pytest.raises(StorageError, match="holds a run or a search"):
        traced.save(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "{}", "[]", '{"points": [{"method": "nothing"}]}'])
def test_a_missing_or_damaged_description_is_explained(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "frontier.json").write_text(content, encoding="utf-8")
    with pytest.raises(StorageError, match=r"udjfl frontier|run the same command again"):
        Frontier.load(tmp_path)


def test_code_that_a_frontier_names_is_not_imported(tmp_path: Path) -> None:
    made = make_frontier()
    made.save(tmp_path)
    path = tmp_path / "frontier.json"
    stored = json.loads(path.read_text())
    stored["points"][-1]["method"] = "no_such_package:Rule"
    path.write_text(json.dumps(stored))
    loaded = Frontier.load(tmp_path)
    assert loaded.points[-1].label == made.points[-1].label
    assert loaded.metrics == made.metrics


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("margin", "much"),
        ("n_classes", 2.5),
        ("clients", ["a", 1]),
        ("seeds", ["0"]),
        ("settings", []),
        ("data", None),
        ("points", []),
        ("points", [3]),
        ("score", {"name": "auc", "title": "AUC", "lowest": "low"}),
    ],
)
def test_a_description_of_other_types_is_refused(tmp_path: Path, key: str, value: object) -> None:
    """Of somebody else's frontier."""
    make_frontier().save(tmp_path)
    path = tmp_path / "frontier.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(StorageError, match=r"frontier\.json is damaged"):
        Frontier.load(tmp_path)

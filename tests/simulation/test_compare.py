"""Several methods on the same federations: shared data, results, failures and processes."""

from __future__ import annotations

import inspect
import math
import pickle
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from short_comparisons import make_settings, to_plain
from small_runs import compare, make_federation, train_briefly

import udjfl
from udjfl.errors import DataError, DivergedError, NotDefinedError, ReportError, SettingsError
from udjfl.methods import ALIASES
from udjfl.metrics import METRICS
from udjfl.settings import TrainingSettings
from udjfl.statistics import THEORY_METRIC, paired_test, summarise

ISSUE_METRICS = {
    "global_accuracy",
    "accuracy_most_uncertain",
    "accuracy_least_uncertain",
    "worst_accuracy",
    "mean_accuracy",
    "std",
    "psi",
    "pearson_r",
}


# --- what is compared


def test_methods_share_data_and_uncertainties_seed_by_seed() -> None:
    loaded_seeds = []

    def federation(seed: int) -> udjfl.Federation:
        loaded_seeds.append(seed)
        return make_federation(seed=seed)

    started: list[tuple[str, int, str]] = []
    compared = compare(
        make_settings(),
        federation=federation,
        on_progress=lambda event: (
            started.append((event.label, event.seed, event.stage)) if event.done == 1 else None
        ),
    )
    assert loaded_seeds == [0, 3]  # the federation of a seed is built once, for all methods
    # Uncertainties are measured once a seed, with the first method.
    assert [(name, seed) for name, seed, stage in started if stage == "uncertainty"] == [
        ("FedAvg", 0),
        ("FedAvg", 3),
    ]
    fedavg, rawls = compared.rows
    assert rawls.uncertainty == fedavg.uncertainty
    for index, seed in enumerate((0, 3)):
        alone = train_briefly(make_federation(seed=seed), seed=seed)
        against = train_briefly(make_federation(seed=seed), "rawls", seed=seed, reference=alone)
        for row, one in ((fedavg, alone), (rawls, against)):
            zero = dict.fromkeys(("psi", "gain_least_advantaged", "gain_others"), 0.0)
            values = {key: summary.values[index] for key, summary in row.metrics.items()}
            unknown = {key: None for key, metric in METRICS.items() if metric.needs_groups}
            assert values == unknown | zero | one.metrics
            assert {
                name: summary.values[index] for name, summary in row.client_scores.items()
            } == one.client_scores
            assert {
                name: summary.values[index] for name, summary in row.uncertainty.items()
            } == one.uncertainty


def test_named_data_are_loaded_with_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load(*arguments: Any, **options: Any) -> udjfl.Federation:
        assert not any(options.values())
        calls.append(arguments)
        return make_federation()

    monkeypatch.setattr("udjfl.simulation.simulate.load", load)
    compare(
        make_settings(
            data="signs:level=3", clients=3, partition="iid", seeds=[4, 2], data_root="here"
        )
    )
    assert calls == [("signs:level=3", 3, "iid", seed, "here") for seed in (4, 2)]


def test_a_federation_and_method_objects_replace_those_in_the_settings(
    federation: udjfl.Federation,
) -> None:
    methods = [udjfl.UDJ.desert(), udjfl.FedAvg()]
    compared = compare(make_settings(methods=["rawls"]), federation=federation, methods=methods)
    assert [row.method for row in compared.rows] == [udjfl.FedAvg(), udjfl.UDJ.desert()]
    assert compared.data == federation.name == "own data"
    # With one federation only the training depends on the seed, so the seeds still differ.
    assert len(set(compared.rows[0].uncertainty["client-1"].values)) == 2


def test_the_reference_has_psi_zero_and_no_test_against_itself(
    federation: udjfl.Federation,
) -> None:
    fedavg, rawls = compare(make_settings(), federation=federation).rows
    assert fedavg.metrics["psi"].values == (0.0, 0.0)
    assert fedavg.against_fedavg == {}
    assert set(rawls.against_fedavg) == set(METRICS) >= ISSUE_METRICS
    for key, test in rawls.against_fedavg.items():
        ours, theirs = rawls.metrics[key], fedavg.metrics[key]
        assert test == paired_test(ours.values, theirs.values, METRICS[key].test_scale)
        assert ours == summarise(ours.values)


def test_clients_that_differ_from_seed_to_seed_are_refused() -> None:
    with pytest.raises(udjfl.DataError, match="federation of seed 3 has other clients"):
        compare(make_settings(), federation=lambda seed: make_federation(n_clients=2 + seed))


def test_simulate_has_the_default_training_settings() -> None:
    """They are those of `compare`, so that both give the same numbers."""
    defaults = {name: p.default for name, p in inspect.signature(udjfl.simulate).parameters.items()}
    for name, field in TrainingSettings.model_fields.items():
        assert defaults[name] == field.default, name


def test_each_theory_has_its_metric() -> None:
    assert set(THEORY_METRIC) == set(ALIASES)
    assert set(THEORY_METRIC.values()) <= set(METRICS)


# --- plain values


def test_the_json_document_has_the_promised_keys(federation: udjfl.Federation) -> None:
    how = make_settings(
        methods=["rawls:beta=5", "egalitarian"], uncertainty="ensemble", uncertainty_models=2
    )
    document = to_plain(compare(how, federation=federation))
    assert [row["theory"] for row in document["methods"]] == [
        ["utilitarian"],
        ["rawls"],
        ["egalitarian"],
    ]
    for row in document["methods"]:
        assert (
            set(row)
            >= {"method", "theory", "params", "seeds", "client_scores", "uncertainty"}
            | ISSUE_METRICS
        )
        assert row["seeds"] == [0, 3]
        summaries = [row[key] for key in ISSUE_METRICS]
        for by_client in (row["client_scores"], row["uncertainty"]):
            assert list(by_client) == list(federation.ids)
            summaries += by_client.values()
        for summary in summaries:
            assert set(summary) == {"mean", "ci95", "values"}
            assert len(summary["values"]) == 2
    rawls = document["methods"][1]
    assert (rawls["method"], rawls["params"]["theory"], rawls["params"]["beta"]) == (
        "udj",
        "rawls",
        5.0,
    )
    # Two values x and y: their mean, plus and minus t(0.975, 1) = 12.7062 times |x - y| / 2.
    x, y = rawls["mean_accuracy"]["values"]
    assert rawls["mean_accuracy"]["mean"] == pytest.approx((x + y) / 2)
    low, high = rawls["mean_accuracy"]["ci95"]
    assert high - low == pytest.approx(12.7062 * abs(x - y), rel=1e-4)


def test_one_client_and_one_seed_are_undefined_not_nan() -> None:
    document = to_plain(compare(make_settings(seeds=1), federation=make_federation(n_clients=1)))
    for row in document["methods"]:
        assert row["psi"] == {"mean": None, "ci95": None, "values": [None]}
        assert row["pearson_r"] == {"mean": None, "ci95": None, "values": [None]}
        assert row["std"] == {"mean": 0.0, "ci95": None, "values": [0.0]}
        assert "pearson_r" in row["undefined"]
    assert document["methods"][1]["against_fedavg"]["psi"]["p"] is None


def test_a_given_federation_is_not_called_by_the_name_in_the_settings(
    federation: udjfl.Federation,
) -> None:
    document = to_plain(compare(make_settings(seeds=[0]), federation=federation))
    assert document["data"] == federation.name
    assert "data" not in document["settings"]


def test_the_document_has_the_settings_of_named_data_under_any_title(
    tiny_source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The title of regenerated data differs from the name in the settings."""
    document = to_plain(
        compare(make_settings(data=tiny_source, clients=2, seeds=[0], methods=["fedavg"]))
    )
    assert document["settings"]["data"] == document["data"] == "tiny"
    federation = udjfl.Federation("tiny (regenerated)", *split_federation(make_federation()))
    monkeypatch.setattr("udjfl.simulation.simulate.load", lambda *_, **__: federation)
    document = to_plain(
        compare(make_settings(data=tiny_source, clients=2, seeds=[0], methods=["fedavg"]))
    )
    assert (document["data"], document["settings"]["data"]) == ("tiny (regenerated)", "tiny")


def split_federation(federation: udjfl.Federation) -> tuple[Any, ...]:
    return federation.clients, federation.test, federation.class_names


# --- methods that fail


@udjfl.parameters
class DivergesSometimes(udjfl.Method):
    """Takes an infinite step when client 1 is small: on the federation of seed 3 below."""

    name: ClassVar[str] = "diverges"
    title: ClassVar[str] = "Diverges sometimes"
    paper: ClassVar[str] = "none"
    grade: ClassVar[Literal["verified", "partial", "recalled"]] = "recalled"

    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        step = reports.deltas.mean(dim=0)
        return (
            state,
            step * math.inf if float(reports.sizes[0]) < 20 else step,
            {"weight": torch.ones(len(reports))},
        )


def make_by_seed(seed: int) -> udjfl.Federation:
    return make_federation(seed=seed, n=24 - seed * 2)  # seed 3: client 1 has 18 examples


def test_a_method_that_diverges_on_one_seed_has_no_value_there() -> None:
    """Every list of values has one entry per seed, so that values can be paired."""
    document = to_plain(
        compare(make_settings(), federation=make_by_seed, methods=[DivergesSometimes()])
    )
    fedavg, row = document["methods"]
    assert list(row["failed"]) == ["3"]
    assert "round 1" in row["failed"]["3"]
    assert row["global_accuracy"]["values"][0] is not None
    assert row["global_accuracy"]["values"][1] is None
    assert row["against_fedavg"]["std"]["n"] == 1
    for client in ("client-1", "client-3"):
        assert row["client_scores"][client]["values"][0] is not None
        assert row["client_scores"][client]["values"][1:] == [None]
        assert row["uncertainty"][client] == fedavg["uncertainty"][client]
    assert fedavg["failed"] == {}


def test_a_method_that_diverges_on_every_seed_has_no_values() -> None:
    small = make_federation(n=10)
    row = to_plain(compare(make_settings(), federation=small, methods=[DivergesSometimes()]))[
        "methods"
    ][1]
    assert list(row["failed"]) == ["0", "3"]
    assert row["std"] == {"mean": None, "ci95": None, "values": [None, None]}
    assert row["client_scores"]["client-1"]["values"] == [None, None]


def test_a_reference_that_fails_stops_the_comparison(
    federation: udjfl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        udjfl.FedAvg,
        "aggregate",
        lambda self, state, reports: (state, reports.deltas[0] * math.nan, {}),
    )
    with pytest.raises(DivergedError, match="FedAvg"):
        compare(make_settings(), federation=federation)


def test_a_method_that_is_not_defined_has_a_reason_and_the_others_run(
    federation: udjfl.Federation,
) -> None:
    """EFFL needs the reports of all clients."""
    found = compare(
        make_settings(methods=["effl", "afl"], participation=0.5), federation=federation
    )
    by_name = {row.method.name: row for row in found.rows}
    assert set(by_name) == {"fedavg", "effl", "afl"}
    assert set(by_name["effl"].failed) == set(found.seeds)
    assert "participation" in by_name["effl"].failed[found.seeds[0]]
    assert by_name["afl"].failed == {}
    with pytest.raises(NotDefinedError, match="participation"):
        udjfl.simulate(federation, "effl", participation=0.5)


# --- in processes


def test_processes_change_no_number(tmp_path: Path) -> None:
    """Two seeds in two processes, then resumed in one, are equal to the bit."""
    how = {"methods": ["rawls", "focus"], "seeds": [0, 1]}
    events: list[tuple[str, int, str, int]] = []
    federation = make_federation()
    alone = compare(make_settings(**how), federation=federation)
    apart = compare(
        make_settings(**how, jobs=2),
        federation=federation,
        out=tmp_path / "compared",
        on_progress=lambda e: events.append((e.label, e.seed, e.stage, e.done)),
    )
    again = compare(
        make_settings(**how), federation=federation, out=tmp_path / "compared", resume=True
    )

    def select_numbers(comparison: udjfl.Comparison) -> Any:
        return {key: value for key, value in to_plain(comparison).items() if key != "settings"}

    assert select_numbers(alone) == select_numbers(apart) == select_numbers(again)
    for name in ("FedAvg", "UDJ-FL rawls", "FOCUS"):
        for seed in (0, 1):
            assert ("training", 3) in [
                (stage, done) for n, s, stage, done in events if (n, s) == (name, seed)
            ]


def test_tasks_that_cannot_be_pickled_run_in_this_process(caplog: pytest.LogCaptureFixture) -> None:
    """A lambda cannot be sent: the seeds run one after the other, and a warning is logged."""
    found = compare(
        make_settings(methods=["fedavg"], seeds=[0, 1], jobs=2),
        federation=lambda seed: make_federation(seed=seed),
    )
    assert len(found.rows[0].metrics["std"].values) == 2
    assert "cannot be sent to other processes" in caplog.text


def make_other_clients(seed: int) -> udjfl.Federation:
    return make_federation(n_clients=3 + seed)


def test_an_error_in_another_process_is_raised_unchanged() -> None:
    with pytest.raises(
        DataError, match="the federation of seed 1 has other clients than that of seed 0"
    ):
        compare(
            make_settings(methods=["fedavg"], seeds=[0, 1], jobs=2), federation=make_other_clients
        )


def test_errors_can_be_pickled() -> None:
    for error in (
        SettingsError(["one", "two"]),
        ReportError("a", "losses", "is bad", 3),
        NotDefinedError("no"),
    ):
        restored = pickle.loads(pickle.dumps(error))
        assert (type(restored), str(restored), vars(restored)) == (
            type(error),
            str(error),
            vars(error),
        )

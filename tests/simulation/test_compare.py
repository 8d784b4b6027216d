"""Several methods on the same federations: what is shared, what is reported, and what is refused."""

from __future__ import annotations

import inspect
import json
import math
import pickle
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from conftest import client_arrays, federation_of, few_rounds, make_federation, rising

import udjfl
from udjfl.errors import (
    DataError,
    DivergedError,
    NotDefinedError,
    ReportError,
    SettingsError,
    StorageError,
)
from udjfl.methods import ALIASES, METHODS
from udjfl.metrics import METRICS
from udjfl.settings import CompareSettings, TrainingSettings
from udjfl.simulation.compare import THEORY_METRIC, Comparison, chosen_methods, compare
from udjfl.statistics import paired, summarise

SHORT: dict[str, Any] = {"rounds": 3, "hidden": 5, "uncertainty_epochs": 2}
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


def settings(**changes: Any) -> CompareSettings:
    return CompareSettings(**{**SHORT, "methods": ["rawls", "fedavg"], "seeds": [0, 3], **changes})


# Which methods


def test_fedavg_is_always_first_and_once() -> None:
    for names in (
        ["rawls"],
        ["rawls", "fedavg"],
        ["fedavg", "rawls", "rawls"],
        ["rawls", "fedavg:weights=size"],
    ):
        assert chosen_methods(settings(methods=names)) == [
            udjfl.FedAvg(),
            udjfl.UDJ(theory="rawls"),
        ]
    both = chosen_methods(settings(methods=["fedavg:weights=uniform"]))
    assert both == [udjfl.FedAvg(), udjfl.FedAvg(weights="uniform")]


def test_all_is_every_method_and_every_named_point_of_a_family() -> None:
    found = chosen_methods(settings(methods=["all"]))
    assert {method.name for method in found} == set(METHODS)
    assert {theory for method in found for theory in method.theories} >= set(ALIASES)
    assert found[0] == udjfl.FedAvg()
    assert len(found) == len({method.label for method in found})


def test_parameters_go_to_the_methods_that_have_them() -> None:
    found = chosen_methods(
        settings(methods=["fedavg", "rawls", "utilitarian"], params={"beta": 2, "step": "safe"})
    )
    assert found == [
        udjfl.FedAvg(),
        udjfl.UDJ(theory="rawls", beta=2.0, step="safe"),
        udjfl.UDJ(theory="utilitarian", beta=2.0, step="safe"),
    ]


def test_parameters_can_complete_a_method_that_needs_them() -> None:
    """`udjfl compare --methods udj -p beta=2 -p gamma=1`: without its parameters udj cannot be built at all."""
    assert chosen_methods(settings(methods=["udj"], params={"theory": "rawls"}))[1:] == [
        udjfl.UDJ(theory="rawls")
    ]
    found = chosen_methods(settings(methods=["udj"], params={"beta": 2, "gamma": 1}))
    assert found[1:] == [udjfl.UDJ(beta=2.0, gamma=1.0)]


def test_every_mistake_in_methods_and_parameters_is_reported() -> None:
    with pytest.raises(SettingsError) as caught:
        chosen_methods(settings(methods=["rawlz", "fedavg", "fedaverage", "udj:theory=rawls:beta"]))
    text = "\n".join(caught.value.mistakes)
    assert len(caught.value.mistakes) == 3
    for part in (
        "'rawlz'. Did you mean 'rawls'?",
        "'fedaverage'. Did you mean 'fedavg'?",
        "'beta' where key=value",
    ):
        assert part in text
    with pytest.raises(SettingsError) as caught:
        chosen_methods(
            settings(methods=["rawls", "egalitarian"], params={"gamma": "much", "step": "long"})
        )
    assert sorted({sentence.split(": ")[1] for sentence in caught.value.mistakes}) == [
        "gamma",
        "step",
    ]


def test_every_unknown_parameter_is_reported_with_a_hint() -> None:
    with pytest.raises(SettingsError) as caught:
        chosen_methods(settings(methods=["rawls"], params={"bta": 1, "gama": 2, "beta": 3}))
    assert len(caught.value.mistakes) == 2
    for wrong, right in (("bta", "beta"), ("gama", "gamma")):
        assert any(
            repr(wrong) in sentence and f"Did you mean {right!r}?" in sentence
            for sentence in caught.value.mistakes
        )


def test_an_unknown_method_does_not_hide_an_unknown_parameter() -> None:
    with pytest.raises(SettingsError) as caught:
        chosen_methods(settings(methods=["rawls", "fedaverage"], params={"no_method_has_this": 1}))
    assert "fedaverage" in str(caught.value)
    assert "no_method_has_this" in str(caught.value)


# What is compared


def test_methods_share_data_and_uncertainties_seed_by_seed() -> None:
    made = []

    def federation(seed: int) -> udjfl.Federation:
        made.append(seed)
        return make_federation(seed=seed)

    stages: list[tuple[str, int, str]] = []
    compared = compare(
        settings(),
        federation=federation,
        progress=lambda method, seed, stage, *_: stages.append((method.name, seed, stage)),
    )
    assert made == [0, 3]  # each seed's data are made once, for all methods
    # Uncertainties are measured once a seed, with the first method.
    assert [(name, seed) for name, seed, stage in stages if stage == "uncertainty"] == [
        ("fedavg", 0),
        ("fedavg", 3),
    ]
    fedavg, rawls = compared.rows
    assert rawls.uncertainty == fedavg.uncertainty
    for place, seed in enumerate((0, 3)):
        alone = few_rounds(make_federation(seed=seed), seed=seed)
        against = few_rounds(make_federation(seed=seed), "rawls", seed=seed, reference=alone)
        for row, one in ((fedavg, alone), (rawls, against)):
            assert {key: summary.values[place] for key, summary in row.metrics.items()} == {
                "psi": 0.0
            } | one.metrics
            assert {
                name: summary.values[place] for name, summary in row.client_accuracy.items()
            } == one.client_accuracy
            assert {
                name: summary.values[place] for name, summary in row.uncertainty.items()
            } == one.uncertainty


def test_the_named_data_are_loaded_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(*how: Any) -> udjfl.Federation:
        asked.append(how)
        return make_federation()

    monkeypatch.setattr("udjfl.simulation.oneseed.load", load)
    compare(
        settings(data="signs:level=3", clients=3, partition="iid", seeds=[4, 2], data_root="here")
    )
    assert asked == [("signs:level=3", 3, "iid", seed, "here") for seed in (4, 2)]


def test_own_federation_and_own_methods(federation: udjfl.Federation) -> None:
    methods = [udjfl.UDJ.desert(), udjfl.FedAvg()]
    compared = compare(settings(methods=["rawls"]), federation=federation, methods=methods)
    assert [row.method for row in compared.rows] == [udjfl.FedAvg(), udjfl.UDJ.desert()]
    assert compared.data == federation.name == "own data"
    # One federation: only the training is seeded, so the seeds still differ.
    assert len(set(compared.rows[0].uncertainty["client-1"].values)) == 2


def test_the_reference_has_psi_zero_and_no_test_against_itself(
    federation: udjfl.Federation,
) -> None:
    fedavg, rawls = compare(settings(), federation=federation).rows
    assert fedavg.metrics["psi"].values == (0.0, 0.0)
    assert fedavg.against_fedavg == {}
    assert set(rawls.against_fedavg) == ISSUE_METRICS
    for key, test in rawls.against_fedavg.items():
        ours, theirs = rawls.metrics[key], fedavg.metrics[key]
        assert test == paired(ours.values, theirs.values)
        assert ours == summarise(ours.values)


# As plain values


def plain(compared: Comparison) -> dict[str, Any]:
    """Through JSON and back, which refuses NaN, infinities and anything that is not a plain value."""
    back: dict[str, Any] = json.loads(json.dumps(compared.as_dict(), allow_nan=False))
    return back


def test_the_json_document_has_the_promised_keys(federation: udjfl.Federation) -> None:
    how = settings(
        methods=["rawls:beta=5", "egalitarian"], uncertainty="ensemble", uncertainty_models=2
    )
    document = plain(compare(how, federation=federation))
    assert [row["theory"] for row in document["methods"]] == [
        ["utilitarian"],
        ["rawls"],
        ["egalitarian"],
    ]
    for row in document["methods"]:
        assert (
            set(row)
            >= {"method", "theory", "params", "seeds", "client_accuracy", "uncertainty"}
            | ISSUE_METRICS
        )
        assert row["seeds"] == [0, 3]
        summaries = [row[key] for key in ISSUE_METRICS]
        for by_client in (row["client_accuracy"], row["uncertainty"]):
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
    # Two values x and y: their mean, and an interval of t(0.975, 1) = 12.7062 times |x - y| / 2 around it.
    x, y = rawls["mean_accuracy"]["values"]
    assert rawls["mean_accuracy"]["mean"] == pytest.approx((x + y) / 2)
    low, high = rawls["mean_accuracy"]["ci95"]
    assert high - low == pytest.approx(12.7062 * abs(x - y), rel=1e-4)


def test_one_client_and_one_seed_are_undefined_not_nan() -> None:
    document = plain(compare(settings(seeds=1), federation=make_federation(n_clients=1)))
    for row in document["methods"]:
        assert row["psi"] == {"mean": None, "ci95": None, "values": [None]}
        assert row["pearson_r"] == {"mean": None, "ci95": None, "values": [None]}
        assert row["std"] == {"mean": 0.0, "ci95": None, "values": [0.0]}
        assert "pearson_r" in row["undefined"]
    assert document["methods"][1]["against_fedavg"]["psi"]["p"] is None


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


def by_seed(seed: int) -> udjfl.Federation:
    return make_federation(seed=seed, n=24 - seed * 2)  # seed 3: client 1 has 18 examples


def test_a_method_that_diverges_on_one_seed() -> None:
    """Every list of values still has one place per seed, so that a reader can pair them."""
    document = plain(compare(settings(), federation=by_seed, methods=[DivergesSometimes()]))
    fedavg, row = document["methods"]
    assert list(row["failed"]) == ["3"]
    assert "round 1" in row["failed"]["3"]
    assert row["global_accuracy"]["values"][0] is not None
    assert row["global_accuracy"]["values"][1] is None
    assert row["against_fedavg"]["std"]["n"] == 1
    for client in ("client-1", "client-3"):
        assert row["client_accuracy"][client]["values"][0] is not None
        assert row["client_accuracy"][client]["values"][1:] == [None]
        assert row["uncertainty"][client] == fedavg["uncertainty"][client]
    assert fedavg["failed"] == {}


def test_a_method_that_diverges_on_every_seed() -> None:
    small = make_federation(n=10)
    row = plain(compare(settings(), federation=small, methods=[DivergesSometimes()]))["methods"][1]
    assert list(row["failed"]) == ["0", "3"]
    assert row["std"] == {"mean": None, "ci95": None, "values": [None, None]}
    assert row["client_accuracy"]["client-1"]["values"] == [None, None]


def test_a_reference_that_fails_stops_the_comparison(
    federation: udjfl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        udjfl.FedAvg,
        "aggregate",
        lambda self, state, reports: (state, reports.deltas[0] * math.nan, {}),
    )
    with pytest.raises(DivergedError, match="FedAvg"):
        compare(settings(), federation=federation)


# Kept in a folder


def test_a_comparison_kept_in_a_folder_is_the_same(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    how = settings(uncertainty="ensemble", uncertainty_models=2)
    kept = compare(how, federation=federation, out=tmp_path / "kept")
    assert plain(kept) == plain(compare(how, federation=federation))
    assert json.loads((tmp_path / "kept" / "comparison.json").read_text()) == plain(kept)
    runs = sorted(path.parent for path in (tmp_path / "kept").rglob("result.json"))
    assert len(runs) == 4
    # Every run of a seed holds the same uncertainties, epistemic part included.
    for seed in (0, 3):
        texts = {
            (run / "uncertainty.json").read_text()
            for run in runs
            if run.parent.name == f"seed-{seed}"
        }
        assert len(texts) == 1
    again = compare(how, federation=federation, out=tmp_path / "kept", resume=True)
    assert plain(again) == plain(kept)


def test_each_theory_has_its_metric() -> None:
    assert set(THEORY_METRIC) == set(ALIASES)
    assert set(THEORY_METRIC.values()) <= {metric.key for metric in METRICS}


def test_comparing_trains_as_simulate_does_by_default() -> None:
    """The same defaults in both, so that a number from one can be found with the other."""
    defaults = {name: p.default for name, p in inspect.signature(udjfl.simulate).parameters.items()}
    for name, about in TrainingSettings.model_fields.items():
        assert defaults[name] == about.default, name


def test_a_parameter_for_all_does_not_undo_what_a_method_says_itself() -> None:
    found = chosen_methods(
        settings(methods=["rawls:beta=2", "egalitarian"], params={"beta": 3, "theory": "desert"})
    )
    assert [(method.theory, method.beta) for method in found[1:]] == [
        ("rawls", 2.0),
        ("egalitarian", 3.0),
    ]


def test_own_data_are_not_called_by_the_name_in_the_settings(federation: udjfl.Federation) -> None:
    document = plain(compare(settings(seeds=[0]), federation=federation))
    assert document["data"] == federation.name
    assert "data" not in document["settings"]


def test_clients_that_differ_from_seed_to_seed_are_refused() -> None:
    with pytest.raises(udjfl.DataError, match="federation of seed 3 has other clients"):
        compare(settings(), federation=lambda seed: make_federation(n_clients=2 + seed))


def test_a_comparison_with_a_client_nobody_can_measure_can_be_resumed(tmp_path: Path) -> None:
    """JSON has null for what could not be measured, in both parts of an ensemble's answer."""
    bad = federation_of(a=client_arrays(8), b=client_arrays(9, scale=1e30), c=client_arrays(10))
    how = settings(
        uncertainty="ensemble", uncertainty_models=2, on_bad_report="exclude", batch_size=4
    )
    once = compare(how, federation=bad, out=tmp_path / "kept")
    assert plain(compare(how, federation=bad, out=tmp_path / "kept", resume=True)) == plain(once)


def test_given_uncertainties_are_used_on_every_seed_and_nothing_is_measured(
    federation: udjfl.Federation,
) -> None:
    given = rising(federation)
    stages: list[str] = []
    compared = compare(
        settings(),
        federation=federation,
        uncertainty=given,
        progress=lambda method, seed, stage, *_: stages.append(stage),
    )
    assert set(stages) == {"training"}
    for row in compared.rows:
        assert {name: summary.values for name, summary in row.uncertainty.items()} == {
            i: (u, u) for i, u in given.items()
        }
    for place, seed in enumerate((0, 3)):
        alone = few_rounds(federation, "rawls", seed=seed, uncertainty=given)
        for key in ("worst_accuracy", "pearson_r", "accuracy_most_uncertain"):
            assert compared.rows[1].metrics[key].values[place] == alone.metrics[key]
    # Turned round, another client is the most uncertain one, so that the numbers did matter.
    turned = dict(zip(given, reversed(given.values()), strict=True))
    other = compare(settings(), federation=federation, uncertainty=turned)
    assert (
        other.rows[1].metrics["accuracy_most_uncertain"]
        == other.rows[1].client_accuracy["client-1"]
    )
    assert (
        compared.rows[1].metrics["accuracy_most_uncertain"]
        == compared.rows[1].client_accuracy["client-3"]
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_with_given_uncertainties_is_resumed_with_the_same_only(
    tmp_path: Path, jobs: int
) -> None:
    federation = make_federation()
    given = rising(federation)
    how = settings(methods=["rawls"], jobs=jobs)
    once = compare(how, federation=federation, uncertainty=given, out=tmp_path / "kept")
    again = compare(
        how, federation=federation, uncertainty=given, out=tmp_path / "kept", resume=True
    )
    assert plain(again) == plain(once)
    with pytest.raises(
        StorageError, match="was started with other uncertainties; resume it with the same"
    ):
        compare(
            how,
            federation=federation,
            uncertainty={**given, "client-2": 9.0},
            out=tmp_path / "kept",
            resume=True,
        )
    assert json.loads((tmp_path / "kept" / "comparison.json").read_text()) == plain(once)


def test_given_uncertainties_of_named_data_are_not_forgotten_on_resuming(
    tmp_path: Path, tiny_source: str
) -> None:
    how = settings(data=tiny_source, clients=2, seeds=[0], methods=["fedavg"])
    compare(how, uncertainty={"client-1": 0.1, "client-2": 0.2}, out=tmp_path / "kept")
    with pytest.raises(StorageError, match="was started with other data or methods"):
        compare(how, out=tmp_path / "kept", resume=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"client-1": 0.1, "client-3": 0.3}, "no value for client 'client-2'"),
        ({"client-1": 0.1, "client-2": 0.0, "client-3": 0.3}, "'client-2'.* it must be above zero"),
        ({"client-1": 0.1, "client-2": "much", "client-3": 0.3}, "give a number above zero"),
    ],
)
def test_wrong_uncertainties_are_refused_before_anything_is_written(
    tmp_path: Path, federation: udjfl.Federation, given: dict[str, Any], words: str
) -> None:
    with pytest.raises((SettingsError, ReportError), match=words):
        compare(settings(), federation=federation, uncertainty=given, out=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_settings_of_named_data_are_kept_whatever_their_title(
    tiny_source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regenerated data are called so; they are the data that the settings name all the same."""
    document = plain(compare(settings(data=tiny_source, clients=2, seeds=[0], methods=["fedavg"])))
    assert document["settings"]["data"] == document["data"] == "tiny"
    monkeypatch.setattr(
        "udjfl.simulation.oneseed.load",
        lambda *_: udjfl.Federation("tiny (regenerated)", *parts_of(make_federation())),
    )
    document = plain(compare(settings(data=tiny_source, clients=2, seeds=[0], methods=["fedavg"])))
    assert (document["data"], document["settings"]["data"]) == ("tiny (regenerated)", "tiny")


def parts_of(federation: udjfl.Federation) -> tuple[Any, ...]:
    return federation.clients, federation.test, federation.class_names


def test_a_comparison_goes_on_where_the_data_have_moved_to(
    tmp_path: Path, tiny_source: str
) -> None:
    how = settings(data=tiny_source, clients=2, seeds=[0], methods=["fedavg"])
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    moved = [
        how.model_copy(update={"data_root": str(tmp_path / name)}) for name in ("before", "after")
    ]
    once = compare(moved[0], out=tmp_path / "kept")
    again = compare(moved[1], out=tmp_path / "kept", resume=True)
    assert plain(again)["methods"] == plain(once)["methods"]


# How the work is spread


def test_processes_change_no_number(tmp_path: Path) -> None:
    """Two seeds in two processes, each with its folder; then resumed in one. All of it plain values, equal to the bit."""
    how = {"methods": ["rawls", "focus"], "seeds": [0, 1]}
    heard: list[tuple[str, int, str, int]] = []
    federation = make_federation()
    alone = compare(settings(**how), federation=federation)
    apart = compare(
        settings(**how, jobs=2),
        federation=federation,
        out=tmp_path / "kept",
        progress=lambda method, seed, stage, done, total: heard.append(
            (method.name, seed, stage, done)
        ),
    )
    again = compare(settings(**how), federation=federation, out=tmp_path / "kept", resume=True)

    def numbers(comparison: udjfl.Comparison) -> Any:
        return {key: value for key, value in plain(comparison).items() if key != "settings"}

    assert numbers(alone) == numbers(apart) == numbers(again)
    for name in ("fedavg", "udj", "focus"):
        for seed in (0, 1):
            assert ("training", 3) in [
                (stage, done) for n, s, stage, done in heard if (n, s) == (name, seed)
            ]


def test_what_cannot_be_sent_to_a_process_runs_here(caplog: pytest.LogCaptureFixture) -> None:
    """A function made on the spot cannot be pickled: the seeds run one after the other, and that is said."""
    found = compare(
        settings(methods=["fedavg"], seeds=[0, 1], jobs=2),
        federation=lambda seed: make_federation(seed=seed),
    )
    assert len(found.rows[0].metrics["std"].values) == 2
    assert "cannot be sent to other processes" in caplog.text


def other_clients(seed: int) -> udjfl.Federation:
    return make_federation(n_clients=3 + seed)


def test_an_error_in_a_process_arrives_as_it_was() -> None:
    with pytest.raises(
        DataError, match="the federation of seed 1 has other clients than that of seed 0"
    ):
        compare(settings(methods=["fedavg"], seeds=[0, 1], jobs=2), federation=other_clients)


def test_errors_survive_being_sent() -> None:
    for error in (
        SettingsError(["one", "two"]),
        ReportError("a", "losses", "is bad", 3),
        NotDefinedError("no"),
    ):
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_a_method_that_is_not_defined_here_is_left_out_and_said(
    federation: udjfl.Federation,
) -> None:
    """EFFL needs everybody's report; the other methods run."""
    found = compare(settings(methods=["effl", "afl"], participation=0.5), federation=federation)
    by_name = {row.method.name: row for row in found.rows}
    assert set(by_name) == {"fedavg", "effl", "afl"}
    assert set(by_name["effl"].failed) == set(found.seeds)
    assert "participation" in by_name["effl"].failed[found.seeds[0]]
    assert by_name["afl"].failed == {}
    with pytest.raises(NotDefinedError, match="participation"):
        udjfl.simulate(federation, "effl", participation=0.5)


def test_parameters_that_do_not_fit_are_found_before_anything_is_written(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    with pytest.raises(SettingsError) as caught:
        compare(
            settings(methods=["rawls:beta=1;2", "desert:beta=1;2"]),
            federation=federation,
            out=tmp_path / "kept",
        )
    assert len(caught.value.mistakes) == 2
    assert not (tmp_path / "kept").exists()

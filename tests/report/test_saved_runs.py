"""`udjfl report`: finished runs, read back from their folders."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from small_runs import make_older
from typer.testing import CliRunner

import udjfl
from udjfl.cli.app import app
from udjfl.errors import SettingsError, StorageError
from udjfl.report.html.page import write_report
from udjfl.report.saved_runs import compare_runs, find_runs, read_run

METHODS = ["fedavg", "rawls"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods on two seeds, each run alone, so that none has a reference."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        federation = udjfl.load("dirty-digits", seed=seed)
        for name in METHODS:
            udjfl.simulate(
                federation,
                name,
                rounds=2,
                uncertainty_epochs=1,
                seed=seed,
                out=folder / f"{name}-{seed}",
            )
    return folder


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_a_saved_run_equals_its_result(root: Path) -> None:
    saved = read_run(root / "rawls-1")
    federation = udjfl.load("dirty-digits", seed=1)
    again = udjfl.simulate(federation, "rawls", rounds=2, uncertainty_epochs=1, seed=1)
    assert saved.metrics == again.metrics
    assert saved.client_scores == again.client_scores
    assert saved.expected_accuracy == again.expected_accuracy is not None
    assert saved.uncertainty == again.uncertainty
    assert saved.method == again.method
    assert saved.seed == 1


def test_compared_runs_equal_a_comparison(root: Path) -> None:
    """Psi is included, although the runs had no reference."""
    ours = compare_runs(find_runs([root]))
    theirs = udjfl.compare("dirty-digits", METHODS, seeds=2, rounds=2, uncertainty_epochs=1)
    assert [row.method for row in ours.rows] == [row.method for row in theirs.rows]
    for mine, other in zip(ours.rows, theirs.rows, strict=True):
        assert mine.metrics == other.metrics
        assert mine.client_scores == other.client_scores
        assert mine.against_fedavg == other.against_fedavg


def test_methods_with_parameters_by_client_are_compared(root: Path, tmp_path: Path) -> None:
    """A dictionary as parameter: a method cannot be the key of a dictionary then."""
    federation = udjfl.load("dirty-digits", seed=0)
    beta = {client: 1.0 + index for index, client in enumerate(federation.ids)}
    for name, method in (
        ("each", udjfl.method("udj", beta=beta, gamma=0)),
        ("rising", udjfl.method("udj", beta={**beta, "client-1": 0.5}, gamma=0)),
    ):
        udjfl.simulate(federation, method, rounds=2, uncertainty_epochs=1, out=tmp_path / name)
    comparison = compare_runs(find_runs([root / "fedavg-0", tmp_path]))
    assert [row.method.params.get("beta") for row in comparison.rows] == [
        None,
        beta,
        {**beta, "client-1": 0.5},
    ]
    code, text = run("report", str(root / "fedavg-0"), str(tmp_path))
    assert code == 0
    assert text.count("UDJ-FL") >= 2
    (tmp_path / "copy").mkdir()
    shutil.copytree(tmp_path / "each", tmp_path / "copy" / "each")
    with pytest.raises(SettingsError, match="are the same method and seed"):
        compare_runs(find_runs([root / "fedavg-0", tmp_path]))


def test_metrics_that_the_folder_does_not_have_are_computed(root: Path, tmp_path: Path) -> None:
    """As those of a run that was saved before the metric existed."""
    shutil.copytree(root / "rawls-0", tmp_path / "old")
    make_older(tmp_path / "old")
    result = json.loads((tmp_path / "old" / "result.json").read_text())
    std = result.pop("std")
    (tmp_path / "old" / "result.json").write_text(json.dumps(result))
    assert read_run(tmp_path / "old").metrics["std"] == std


NEW_KEYS = ("test_sizes", "n_classes", "corrected_std", "slope", "gap", "expected_accuracy")


def test_runs_of_version_0_1_0_are_reported(root: Path, tmp_path: Path) -> None:
    """Their results have neither the new metrics nor the sizes that these need."""
    shutil.copytree(root, tmp_path / "old")
    for path in (tmp_path / "old").rglob("result.json"):
        make_older(path.parent)
        result = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in result.items() if k not in NEW_KEYS}))
    old, new = compare_runs(find_runs([tmp_path / "old"])), compare_runs(find_runs([root]))
    # The settings of a run of the simulator have the sizes and the classes.
    for before, after in zip(old.rows, new.rows, strict=True):
        assert before.metrics == after.metrics
        assert before.test_sizes == after.test_sizes == {f"client-{n}": 80 for n in range(1, 6)}
        assert before.n_classes == after.n_classes == 10
    assert old.verdicts == new.verdicts
    assert old.left_out == new.left_out
    # Those of a run on Flower do not: there is no corrected spread, and the report is whole.
    for path in (tmp_path / "old").rglob("settings.json"):
        settings = json.loads(path.read_text())
        for client in settings["federation"]["clients"]:
            del client["test"], client["class_counts"]
        path.write_text(json.dumps(settings))
    less = compare_runs(find_runs([tmp_path / "old"]))
    assert less.rows[1].metrics["corrected_std"].mean is None
    assert less.rows[1].n_classes is None
    assert less.rows[1].metrics["slope"] == new.rows[1].metrics["slope"]
    code, text = run("report", str(tmp_path / "old"))
    assert code == 0
    assert "Was the theory delivered?" in text


def test_a_table_of_one_run_and_of_several(root: Path) -> None:
    code, text = run("report", str(root / "rawls-0"))
    assert code == 0
    assert "UDJ-FL rawls, seed 0" in text
    code, text = run("report", str(root / "fedavg-0"), str(root / "rawls-0"))
    assert code == 0
    assert "mean over 1 seed" in text


def test_json_is_one_document(root: Path) -> None:
    code, text = run("report", "--json", str(root))
    assert code == 0
    document = json.loads(text)
    assert document["seeds"] == [0, 1]
    assert [row["method"] for row in document["methods"]] == ["fedavg", "udj"]


def test_an_unfinished_run_is_refused_with_advice(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "rawls-0", tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    with pytest.raises(StorageError, match="not finished; `udjfl resume"):
        find_runs([tmp_path / "half"])
    with pytest.raises(StorageError, match="name the folder given as --out"):
        find_runs([tmp_path / "nowhere"])


def test_runs_without_fedavg_are_refused(root: Path) -> None:
    with pytest.raises(SettingsError, match="none of the runs is FedAvg"):
        compare_runs([read_run(root / "rawls-0"), read_run(root / "rawls-1")])


def test_a_seed_without_fedavg_is_refused(root: Path) -> None:
    with pytest.raises(SettingsError, match="has seed 1, and FedAvg was not run with it"):
        compare_runs([read_run(root / "fedavg-0"), read_run(root / "rawls-1")])


def test_the_same_run_twice_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "rawls-0", tmp_path / "copy")
    runs = [read_run(root / "fedavg-0"), read_run(root / "rawls-0"), read_run(tmp_path / "copy")]
    command = f"leave one out: `udjfl report {root / 'fedavg-0'} {tmp_path / 'copy'}`"
    with pytest.raises(SettingsError, match=re.escape(command)):
        compare_runs(runs)


def test_runs_on_other_data_are_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "rawls-0", tmp_path / "other")
    make_older(tmp_path / "other")
    settings = json.loads((tmp_path / "other" / "settings.json").read_text())
    settings["federation"]["fingerprint"] = "0" * 64
    (tmp_path / "other" / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(SettingsError, match="made with other data"):
        compare_runs([read_run(root / "fedavg-0"), read_run(tmp_path / "other")])


def test_seeds_of_a_method_have_the_same_training(root: Path, tmp_path: Path) -> None:
    federation = udjfl.load("dirty-digits", seed=0)
    for seed, rounds, workers in ((1, 2, 0), (2, 3, 1)):
        how = {"rounds": rounds, "workers": workers, "uncertainty_epochs": 1, "seed": seed}
        for method in ("fedavg", "rawls"):
            udjfl.simulate(federation, method, out=tmp_path / f"{method}-{seed}", **how)
    words = r"-1 has rounds=2, .*-2 rounds=3; seeds of one method need the same training"
    with pytest.raises(SettingsError, match=words):
        compare_runs(find_runs([tmp_path]))
    with pytest.raises(SettingsError, match=words):
        write_report([tmp_path], tmp_path / "page.html")


@pytest.mark.parametrize("content", ["null", "{}", '{"uncertainty": 3}'])
def test_a_damaged_result_is_refused(root: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(root / "rawls-0", tmp_path / "bad")
    (tmp_path / "bad" / "result.json").write_text(content)
    with pytest.raises(StorageError, match="bad"):
        read_run(tmp_path / "bad")


@pytest.fixture(scope="module")
def with_services(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and Rawls on two seeds, without and with a service."""
    folder = tmp_path_factory.mktemp("services")
    for service in ("prior-rawls", "none"):
        udjfl.compare(
            "dirty-digits",
            METHODS,
            seeds=2,
            clients=3,
            rounds=5,
            hidden=8,
            uncertainty_epochs=2,
            service=service,
            out=folder / service,
        )
    return folder


def test_runs_with_and_without_a_service_are_rows_of_one_comparison(with_services: Path) -> None:
    comparison = compare_runs(find_runs([with_services]))
    assert [row.label for row in comparison.rows] == [
        "FedAvg",
        "UDJ-FL rawls",
        "FedAvg, served prior-rawls",
        "UDJ-FL rawls, served prior-rawls",
    ]
    plain, _, served, rawls = comparison.rows
    assert plain.theories == ("utilitarian",)
    assert served.theories == ("utilitarian", "rawls")
    assert rawls.theories == ("rawls",)
    assert served.common_scores is not None
    assert plain.common_scores is None
    before = {c: s.values for c, s in plain.client_scores.items()}
    assert {c: s.values for c, s in served.common_scores.items()} == before
    assert served.metrics["global_accuracy"].values == plain.metrics["global_accuracy"].values


def test_psi_is_measured_from_the_reference_of_the_comparison(with_services: Path) -> None:
    """Its folder has that from FedAvg with the same service."""
    alone = compare_runs(find_runs([with_services / "prior-rawls"]))
    together = compare_runs(find_runs([with_services]))
    assert [row.label for row in alone.rows] == [
        "FedAvg, served prior-rawls",
        "UDJ-FL rawls, served prior-rawls",
    ]
    stored = [run for run in find_runs([with_services / "prior-rawls"]) if "psi" in run.metrics]
    assert [run.metrics["psi"] for run in stored] == list(alone.rows[1].metrics["psi"].values)
    for seed in (0, 1):
        served = together.rows[2]
        gains = {
            c: served.client_scores[c].values[seed] - s.values[seed]  # type: ignore[operator]
            for c, s in together.rows[0].client_scores.items()
        }
        worst = max(gains, key=lambda c: together.rows[0].uncertainty[c].values[seed] or 0)
        others = [gain for client, gain in gains.items() if client != worst]
        expected = gains[worst] - sum(others) / len(others)
        assert served.metrics["psi"].values[seed] == pytest.approx(expected)


def test_tables_and_json_name_the_service(with_services: Path) -> None:
    code, text = run("report", str(with_services))
    assert code == 0
    assert "served prior-rawls" in text
    assert text.count("The common model itself is unchanged.") == 1  # once, not for each method
    code, text = run("report", str(with_services), "--json")
    document = json.loads(text)
    assert document["reference"] == "FedAvg"
    assert [m.get("service") for m in document["methods"]] == [None, None, *["prior-rawls"] * 2]
    code, text = run(
        "report", str(with_services / "prior-rawls" / "seed-0" / "fedavg-weights=size")
    )
    assert code == 0
    assert "FedAvg, served prior-rawls, seed 0" in text
    assert "Common model" in text

"""The commands run, compare, resume and methods: output, documents and folders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import SMALL, Command, mistakes_of
from small_runs import tiny_pools

import udjfl
from udjfl.data import SOURCES, Pools, Source
from udjfl.data.source import Request
from udjfl.methods import METHODS
from udjfl.metrics import METRICS
from udjfl.report.methods import catalogue
from udjfl.settings import CompareSettings
from udjfl.simulation.compare import choose_methods


def test_run_shows_metrics_and_clients(udjfl_command: Command) -> None:
    output = udjfl_command("run", SMALL, "--method rawls --seed 2")
    assert output.code == 0
    assert "seed 2" in output.out
    for metric in METRICS.values():
        # There is no reference in a single run.
        shown = not (metric.needs_reference or metric.on_request or metric.needs_groups)
        assert (f"\n{metric.title} " in output.out) == shown, metric.key
    for client in ("client-1", "client-2"):
        assert re.search(rf"{client} +\d\.\d{{4}} +\d+\.\d\d", output.out)
    assert "\x1b" not in output.out + output.err


def test_the_demo_is_one_command(udjfl_command: Command) -> None:
    output = udjfl_command("demo --seeds 2 --rounds 2 --jobs 1")
    assert output.code == 0
    assert output.out.startswith("Five scanners")
    assert "The paper's beta and gamma" in output.out
    document = json.loads(udjfl_command("demo --seeds 2 --rounds 1 --jobs 1 --json").out)
    assert len(document["methods"]) == 9


def test_run_json_is_one_document_and_nothing_else(udjfl_command: Command, tmp_path: Path) -> None:
    output = udjfl_command("run", SMALL, "--method rawls --json --out", tmp_path / "run")
    document = json.loads(output.out)
    assert output.out.endswith("}\n")
    assert (document["method"], document["theory"], document["seed"]) == ("udj", ["rawls"], 0)
    absent = [m for m in METRICS.values() if m.needs_reference or m.needs_groups]
    assert set(METRICS) - {metric.key for metric in absent} <= set(document)
    assert (
        set(document["client_scores"]) == set(document["uncertainty"]) == {"client-1", "client-2"}
    )
    assert document["folder"] == str(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == {
        k: v for k, v in document.items() if k != "folder"
    }


def test_run_and_simulate_give_the_same_numbers(udjfl_command: Command) -> None:
    document = json.loads(udjfl_command("run", SMALL, "--method desert --seed 1 --json").out)
    federation = udjfl.load("tiny", clients=2, seed=1)
    result = udjfl.simulate(
        federation, "desert", "logistic", rounds=3, uncertainty_epochs=1, seed=1
    )
    assert {key: document[key] for key in result.metrics} == result.metrics
    assert document["client_scores"] == result.client_scores


def test_compare_json(udjfl_command: Command) -> None:
    output = udjfl_command("compare", SMALL, "--methods rawls,desert --seeds 2 --json")
    assert output.code == 0
    document = json.loads(output.out)
    assert [row["method"] for row in document["methods"]] == ["fedavg", "udj", "udj"]
    assert [row["theory"] for row in document["methods"]] == [
        ["utilitarian"],
        ["rawls"],
        ["desert"],
    ]
    for row in document["methods"]:
        assert {"params", "seeds", "client_scores", "uncertainty"} <= set(row)
        assert row["seeds"] == [0, 1]
        for key in METRICS:
            assert set(row[key]) == {"mean", "ci95", "values"}
            assert len(row[key]["values"]) == 2
        for by_client in (row["client_scores"], row["uncertainty"]):
            assert set(by_client) == {"client-1", "client-2"}
    assert document["methods"][0]["psi"]["values"] == [0.0, 0.0]


def test_compare_always_has_fedavg_and_each_method_once(udjfl_command: Command) -> None:
    document = json.loads(
        udjfl_command("compare", SMALL, "--methods rawls,fedavg,rawls --seeds 1 --json").out
    )
    assert [(row["method"], row["theory"]) for row in document["methods"]] == [
        ("fedavg", ["utilitarian"]),
        ("udj", ["rawls"]),
    ]


def test_compare_table(udjfl_command: Command) -> None:
    long_enough = "--rounds 60 --lr 0.5 --uncertainty-epochs 40"
    output = udjfl_command("compare", SMALL, "--seeds 2", long_enough)
    assert output.code == 0
    for word in (
        "FedAvg",
        "Rawls",
        "Egalitarian",
        "Utilitarian",
        "Desert",
        "client-1",
        "client-2",
        "2 seeds",
    ):
        assert word in output.out, word
    assert "Was the theory delivered?" in output.out
    # Two seeds decide nothing, whatever the numbers are.
    assert output.out.count("not decided:") == 4
    assert "Fewer than 5 seeds: no difference is marked" in output.out
    assert "*" not in output.out
    assert "\x1b" not in output.out + output.err
    assert all(len(line) <= 120 for line in output.out.splitlines())


def test_compare_all_is_every_method(udjfl_command: Command) -> None:
    everything = choose_methods(CompareSettings(methods=["all"]))
    assert [method.label for method in everything[:1]] == ["FedAvg"]
    assert {theory for method in everything for theory in method.theories} >= {
        "rawls",
        "egalitarian",
        "utilitarian",
        "desert",
    }


def test_compare_all_runs_every_method_and_ranks_them(udjfl_command: Command) -> None:
    """On the embedded data, for three rounds: 18 methods and four theories, none of which fails."""
    output = udjfl_command(
        "compare --methods all --seeds 2 --rounds 3 --uncertainty-epochs 1 --json"
    )
    document = json.loads(output.out)
    assert [row["label"] for row in document["methods"] if row["failed"]] == []
    fair = {name for name, cls in METHODS.items() if not cls.baseline}
    assert {row["method"] for row in document["methods"]} == fair
    assert len(document["methods"]) == 22
    assert set(document["rankings"]) == {"rawls", "egalitarian", "utilitarian", "desert"}
    for theory, ranking in document["rankings"].items():
        assert len(ranking["order"]) == 22
        assert all(len(row["ci95"]) == 2 for row in ranking["order"] if row["rank"])
        left_out = {row["label"] for row in ranking["order"] if row["left_out"]}
        unranked = {row["label"] for row in ranking["order"] if row["rank"] is None}
        assert unranked - left_out <= ({"FOCUS"} if theory == "utilitarian" else set())
        # Three rounds are too few for some of them: those are not ranked, and come last.
        assert left_out == {row["label"] for row in document["methods"] if row["left_out"]}
        assert len(left_out) > 1
        assert {row["label"] for row in ranking["order"][-len(left_out) :]} == left_out
    notes = {row["method"]: " ".join(row["notes"]) for row in document["methods"]}
    for name in ("mfairfl", "effl"):
        assert "ithout a sensitive attribute" in notes[name]
    assert "participation" in notes["fedfair3"]


def test_warnings_do_not_disturb_the_document(udjfl_command: Command) -> None:
    """A model that cannot be stacked is trained one client at a time."""
    output = udjfl_command("run", SMALL, "--json --model torch.nn:Identity")
    assert mistakes_of(output)[0].startswith("model: ")
    output = udjfl_command("run", SMALL, "--json --model small_runs:unstackable")
    json.loads(output.out)


def test_the_data_root_reaches_the_source_and_is_kept_for_resuming(
    udjfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots: list[Path | None] = []

    def pools(request: Request) -> Pools:
        roots.append(request.root)
        return tiny_pools(request)

    monkeypatch.setitem(SOURCES, "filed", Source("filed", "for tests", "It is made up.", pools))
    (tmp_path / "files").mkdir()
    once = udjfl_command(
        "run",
        SMALL.replace("tiny", "filed"),
        "--json --data-root",
        tmp_path / "files",
        "--out",
        tmp_path / "run",
    )
    assert once.code == 0, once.err
    again = udjfl_command("resume --json", tmp_path / "run")
    assert json.loads(again.out) == json.loads(once.out)
    assert roots == [tmp_path / "files"] * 2


def test_a_folder_in_use(udjfl_command: Command, tmp_path: Path) -> None:
    assert udjfl_command("run", SMALL, "--out", tmp_path / "a").code == 0
    (line,) = mistakes_of(udjfl_command("run", SMALL, "--out", tmp_path / "a"))
    assert f"continue it with `udjfl resume {tmp_path / 'a'}`" in line


def test_mistakes_leave_no_folder(udjfl_command: Command, tmp_path: Path) -> None:
    for flags in ("--device nonsense", "--model mpl", "--model cnn", "--clients 40", "-p bta=1"):
        for command in ("run", "compare --seeds 1"):
            output = udjfl_command(command, "--data tiny", flags, "--out", tmp_path / "run")
            assert output.code == 2
            assert not (tmp_path / "run").exists(), (command, flags)


def test_a_diverging_run_is_an_error_not_a_traceback(udjfl_command: Command) -> None:
    (line,) = mistakes_of(udjfl_command("run", SMALL, "--model mlp --lr 1e30 --method fedavg"))
    assert re.search(r"client 'client-\d' in round \d: ", line)


@pytest.mark.parametrize("arguments", ["run --method rawls", "compare --methods rawls --seeds 2"])
def test_the_real_command(arguments: str) -> None:
    small = "--data dirty-digits --rounds 2 --uncertainty-epochs 1 --json"
    done = subprocess.run(
        [sys.executable, "-m", "udjfl", *arguments.split(), *small.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    row = document if "methods" not in document else document["methods"][0]
    assert list(row["client_scores"]) == [f"client-{i}" for i in range(1, 6)]
    assert "done, 2 rounds" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_methods_are_listed(udjfl_command: Command) -> None:
    output = udjfl_command("methods")
    for word in (*METHODS, "rawls", "egalitarian", "utilitarian", "desert", "verified", "McMahan"):
        assert word in output.out
    assert json.loads(udjfl_command("methods --json").out) == catalogue()


def test_one_method(udjfl_command: Command) -> None:
    shown = re.sub(r"\s+", " ", udjfl_command("methods rawls").out)
    for parameter in ("beta", "gamma", "step", "theory"):
        assert re.search(rf"\b{parameter}\b", shown)
    assert json.loads(udjfl_command("methods fedavg --json").out)["title"] == "FedAvg"
    (line,) = mistakes_of(udjfl_command("methods rwals"))
    assert "Did you mean 'rawls'?" in line


def test_where_nobody_learned_there_is_a_warning_and_no_verdict(udjfl_command: Command) -> None:
    compared = udjfl_command("compare", SMALL, "--seeds 2 --lr 1e-6").out
    words = r"Warning: nobody learned: check scaling, lr \(on 2 of 2 seeds; seed 0:\s+the shared"
    assert re.match(words, compared)
    assert "no verdict: nobody learned" in compared
    assert "not decided:" not in compared
    assert "Ranked" not in compared
    assert udjfl_command("run", SMALL, "--lr 1e-6").out.startswith("Warning: nobody learned")


def test_metrics_are_chosen_for_the_table(udjfl_command: Command) -> None:
    chosen = "--metrics std,jain,worst-tenth"
    shown = udjfl_command("compare", SMALL, "--methods rawls --seeds 2", chosen).out
    assert "Jain's index ↑" in shown
    assert "Worst 10% ↑" in shown
    assert "Psi ↑" not in shown.partition("Ranked")[0]
    one = udjfl_command("run", SMALL, "--metrics gini").out
    assert "Gini" in one
    assert "Global accuracy" not in one
    wrong = udjfl_command("run", SMALL, "--metrics gina")
    assert wrong.code != 0
    assert "Did you mean 'gini'" in wrong.err

"""The files of a run: strict JSON, the same bytes for equal runs, damaged ones refused."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import create_folder, make_older, read_files

import udjfl
from udjfl.errors import StorageError, UdjflError
from udjfl.training.file_names import MODEL
from udjfl.training.records import Record
from udjfl.training.run_folder import RunFolder
from udjfl.training.tensor_file import unpack

TINY = {"model": "logistic", "rounds": 4, "checkpoint_every": 2, "uncertainty_epochs": 1}


def test_leftovers_of_a_killed_write_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    """Of this version, and of older ones; a file of the user's is not touched."""
    create_folder(tmp_path).unlock()
    before = read_files(tmp_path)
    for name in (".result.json.0123456789abcdef.part", "settings.json.part"):
        (tmp_path / name).write_bytes(b"half of something much lon")
    (tmp_path / "thesis.part").write_bytes(b"mine")
    folder = RunFolder.open(tmp_path)
    folder.lock()
    folder.unlock()
    assert read_files(tmp_path) == {**before, "thesis.part": b"mine"}


# --- JSON


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_never_reach_a_file(tmp_path: Path, value: float) -> None:
    folder = create_folder(tmp_path / "run")
    before = read_files(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        folder.write_json("result.json", {"psi": value})
    with pytest.raises(ValueError, match="JSON"):
        folder.append([Record(1, None, "x", value)])
    assert {**read_files(tmp_path), "run/records.jsonl": b""} == {
        **before,
        "run/records.jsonl": b"",
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_an_unusable_given_uncertainty_is_an_error_that_names_the_client(
    tmp_path: Path, federation: udjfl.Federation, value: float
) -> None:
    given = {"client-1": 1.0, "client-2": value, "client-3": 1.0}
    with pytest.raises(UdjflError, match=r"client-2.*uncertaint|uncertaint.*client-2"):
        udjfl.simulate(federation, "fedavg", uncertainty=given, out=tmp_path / "run", **TINY)


def test_every_file_of_a_run_is_strict_json(tmp_path: Path, federation: udjfl.Federation) -> None:
    """With this learning rate the test loss overflows; the record is null, which is JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    settings = {**TINY, "lr": 1e20, "uncertainty_lr": 0.1}
    udjfl.simulate(federation, "fedavg", on_bad_report="exclude", out=tmp_path / "run", **settings)
    for name in ("settings.json", "versions.json", "uncertainty.json", "result.json"):
        json.loads((tmp_path / "run" / name).read_text(encoding="utf-8"), parse_constant=refuse)
    lines = (tmp_path / "run" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"garbage"])
def test_corrupted_settings_are_refused(
    tmp_path: Path, federation: udjfl.Federation, content: bytes
) -> None:
    udjfl.simulate(federation, "fedavg", out=tmp_path / "run", **TINY)
    (tmp_path / "run" / "settings.json").write_bytes(content)
    before = read_files(tmp_path)
    with pytest.raises(StorageError, match=r"settings\.json is damaged .*(restore|start)"):
        udjfl.simulate(federation, "fedavg", out=tmp_path / "run", resume=True, **TINY)
    assert read_files(tmp_path) == before


@pytest.mark.parametrize(
    "content", ["null", "[]", "{}", '"text"', '{"federation": {}}', '{"comparison": {}}']
)
def test_settings_that_are_not_those_of_a_run_are_refused(
    tmp_path: Path, federation: udjfl.Federation, content: str
) -> None:
    udjfl.simulate(federation, "fedavg", out=tmp_path / "run", **TINY)
    (tmp_path / "run" / "settings.json").write_text(content, encoding="utf-8")
    before = read_files(tmp_path)
    with pytest.raises(UdjflError, match="run"):
        udjfl.simulate(federation, "fedavg", out=tmp_path / "run", resume=True, **TINY)
    assert read_files(tmp_path) == before


@pytest.mark.parametrize("key", ["params", "training", "federation", "flower"])
@pytest.mark.parametrize("value", [3, "text", ["a"]])
def test_settings_of_other_types_are_refused(
    tmp_path: Path, federation: udjfl.Federation, key: str, value: object
) -> None:
    """Of somebody else's folder, with a manifest that fits."""
    udjfl.simulate(federation, "fedavg", out=tmp_path, **TINY)
    make_older(tmp_path)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}), encoding="utf-8")
    with pytest.raises(StorageError, match=r"settings\.json is not that of a run"):
        udjfl.simulate(federation, "fedavg", out=tmp_path, resume=True, **TINY)


def test_a_measure_that_is_no_text_is_another(tmp_path: Path, federation: udjfl.Federation) -> None:
    udjfl.simulate(federation, "fedavg", out=tmp_path, **TINY)
    make_older(tmp_path)
    path = tmp_path / "settings.json"
    settings = json.loads(path.read_text())
    settings["training"]["uncertainty"] = ["paper"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(StorageError, match="started with another uncertainty"):
        udjfl.simulate(federation, "fedavg", out=tmp_path, resume=True, **TINY)


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", '{"kind": "entropy", "values": {"client-1": 1.0}}', '{"values": 3}'],
)
def test_a_damaged_uncertainty_file_is_refused_or_measured_again(
    tmp_path: Path, federation: udjfl.Federation, content: str
) -> None:
    """Either an error names the file, or the uncertainties are measured again."""
    out = tmp_path / "run"
    udjfl.simulate(federation, "rawls", out=out, **TINY)
    before = read_files(out)
    (out / "uncertainty.json").write_text(content, encoding="utf-8")
    try:
        udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
    except UdjflError as error:
        assert "uncertainty" in str(error)  # noqa: PT017 - both are right
        (out / "uncertainty.json").unlink()
        udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
    assert read_files(out) == before


# --- the files


def test_a_run_writes_its_files(tmp_path: Path, federation: udjfl.Federation) -> None:
    result = udjfl.simulate(federation, "rawls", out=tmp_path / "run", **TINY)
    folder = RunFolder.open(tmp_path / "run")
    assert set(read_files(folder.path)) == {
        ".lock",
        "settings.json",
        "versions.json",
        "manifest.json",
        "uncertainty.json",
        "records.jsonl",
        "checkpoint.safetensors",
        "model.safetensors",
        "result.json",
    }
    settings = folder.read_json("settings.json")
    assert (settings["method"], settings["params"]["theory"], settings["seed"]) == (
        "udj",
        "rawls",
        0,
    )
    assert settings["training"]["rounds"] == 4
    assert settings["federation"]["fingerprint"] == federation.fingerprint
    assert {"python", "udjfl", "torch", "numpy", "scipy", "scikit-learn"} <= set(
        folder.read_json("versions.json")
    )
    assert folder.read_json("uncertainty.json")["values"] == result.uncertainty
    assert list(folder.read_records()) == result.history.records
    stored, metadata = unpack(folder.path / MODEL)
    assert metadata["round"] == 4
    assert stored.keys() == result.model.state_dict().keys()
    assert all(
        torch.equal(stored[name], value) for name, value in result.model.state_dict().items()
    )
    final = folder.read_json("result.json")
    assert final["client_scores"] == result.client_scores
    assert final["global_accuracy"] == result.metrics["global_accuracy"]


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from small_runs import make_federation
import udjfl
settings = {"rounds": 4, "hidden": 5, "checkpoint_every": 3, "uncertainty_epochs": 2}
udjfl.simulate(make_federation(), "rawls", "mlp", out=sys.argv[2], **settings)
"""


def test_equal_runs_give_equal_bytes_in_separate_processes(tmp_path: Path) -> None:
    # Sets of strings have another order with another hash seed.
    for name, hash_seed in (("a", "1"), ("b", "2")):
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1]), str(tmp_path / name)],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
    assert read_files(tmp_path / "a") == read_files(tmp_path / "b")
    assert set(read_files(tmp_path / "a")) >= {"model.safetensors", "records.jsonl", "result.json"}

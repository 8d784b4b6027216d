"""Finished runs opened again: the same models, history and numbers as when they finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import Stopped, make_federation, model_bytes, stop_after, train_briefly
from torch import nn

import udjfl
from udjfl.errors import SettingsError, StorageError
from udjfl.models import to_vector
from udjfl.report.opened_run import open_result, refuse_several


def make_named(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 6), nn.BatchNorm1d(6), nn.Linear(6, n_classes))


def assert_same(opened: udjfl.Result, result: udjfl.Result) -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert opened.outcome() == result.outcome()
    assert opened.history == result.history
    for client in (*result.uncertainty, *([None] if result.method.global_model else [])):
        assert torch.equal(opened.predict_proba(x, client), result.predict_proba(x, client))
        assert opened.predict(x, client) == result.predict(x, client)


@pytest.mark.parametrize("name", ["fedavg", "rawls:beta=2", "ditto", "focus", "e2fl", "cffl"])
def test_an_opened_run_is_the_result(name: str, tmp_path: Path) -> None:
    result = train_briefly(make_federation(), name, out=tmp_path / "run")
    opened = udjfl.open(tmp_path / "run")
    assert_same(opened, result)
    if result.method.global_model:
        assert model_bytes(opened) == model_bytes(result)
    assert (opened.served is None) == (result.served is None)
    assert opened.folder is not None
    assert opened.folder.path == tmp_path / "run"


@pytest.mark.parametrize("service", ["prior-all", "checkpoints"])
def test_services_come_back(service: str, tmp_path: Path) -> None:
    result = train_briefly(make_federation(), service=service, out=tmp_path / "run")
    assert_same(udjfl.open(tmp_path / "run"), result)


def test_a_model_of_a_function_is_found_by_its_name_or_given(tmp_path: Path) -> None:
    federation = make_federation()
    result = train_briefly(federation, model=make_named, out=tmp_path / "named")
    opened = udjfl.open(tmp_path / "named", trust_model=True)
    assert_same(opened, result)  # with the buffers of batch norm

    def make_local() -> nn.Module:
        return nn.Linear(4, 3)

    local = train_briefly(federation, model=make_local, out=tmp_path / "local")
    with pytest.raises(SettingsError, match="give model=, the function that makes it"):
        udjfl.open(tmp_path / "local")
    assert_same(udjfl.open(tmp_path / "local", model=make_local), local)
    with pytest.raises(SettingsError, match="has other parameters"):
        udjfl.open(tmp_path / "local", model="mlp")


def test_labels_are_those_of_the_federation(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=rng)
    y = (x[:, 0] > 0).long()
    parts = {"north": (x[:20], y[:20], x[20:30], y[20:30]), "south": (x[30:40], y[30:40])}
    parts["south"] = (*parts["south"], x[40:50], y[40:50])
    federation = udjfl.Federation.from_arrays(
        parts, test=(x[50:], y[50:]), class_names=["well", "ill"]
    )
    train_briefly(federation, rounds=20, out=tmp_path / "run")
    opened = udjfl.open(tmp_path / "run")
    assert opened.predict([[-3.0, 0.0], [3.0, 0.0]], "south") == ["well", "ill"]
    assert opened.inputs == udjfl.open(tmp_path / "run").inputs
    probabilities = opened.predict_proba([[3.0, 0.0]])
    assert probabilities.dtype == torch.float64
    assert float(probabilities.sum()) == pytest.approx(1.0)


def test_folders_that_cannot_be_opened(tmp_path: Path) -> None:
    federation = make_federation()
    with pytest.raises(StorageError, match="holds no run"):
        udjfl.open(tmp_path)
    with pytest.raises(Stopped):
        train_briefly(federation, out=tmp_path / "half", on_progress=stop_after(1))
    with pytest.raises(StorageError, match=r"is not finished; `udjfl\.simulate\(.*resume=True\)`"):
        udjfl.open(tmp_path / "half")


def test_a_comparison_is_opened_as_it_was(tmp_path: Path) -> None:
    methods = ["udj:theory=rawls", "afl"]
    before = udjfl.compare(
        make_federation(), methods, seeds=12, rounds=1, uncertainty_epochs=1, out=tmp_path / "all"
    )
    opened = udjfl.open(tmp_path / "all")
    assert isinstance(opened, udjfl.Comparison)
    assert opened.unfinished is None
    # Seed 10 lies before seed 2 among the folders, and all the same after it in the values.
    assert opened.to_records(seeds=True) == before.to_records(seeds=True)
    assert opened.to_records() == before.to_records()


def test_one_model_is_not_taken_from_a_comparison_or_a_search(tmp_path: Path) -> None:
    udjfl.compare(
        make_federation(), ["afl"], seeds=1, rounds=1, uncertainty_epochs=1, out=tmp_path / "all"
    )
    with pytest.raises(StorageError, match=r"holds a comparison; train one .*such as \S*/afl\S*$"):
        open_result(tmp_path / "all")
    with pytest.raises(StorageError, match=r"holds a search; .*`udjfl run --config x/tuned\.toml"):
        refuse_several(Path("x"), {"tune": {}})


def test_a_folder_of_an_older_version(tmp_path: Path) -> None:
    train_briefly(make_federation(), out=tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    path = tmp_path / "run" / "settings.json"
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    del settings["folder_format"], settings["federation"]["input_shape"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(StorageError, match="did not keep the shape of an example"):
        udjfl.open(tmp_path / "run")


def test_a_method_without_a_common_model_needs_a_client(tmp_path: Path) -> None:
    result = train_briefly(make_federation(), "focus", rounds=1)
    with pytest.raises(SettingsError, match="FOCUS has no one model for all clients"):
        result.predict([[0.0] * 4])
    assert len(result.predict([[0.0] * 4], "client-1")) == 1
    with pytest.raises(SettingsError, match="there is no 'client-9'"):
        result.predict([[0.0] * 4], "client-9")
    assert len(to_vector(result.model_for("client-1"))) > 0


def make_lookup(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(12, n_classes))


@pytest.mark.parametrize(
    ("dtype", "model"), [(np.uint8, "mlp:hidden=8"), (np.int64, make_lookup), (np.float32, "cnn")]
)
def test_predictions_are_of_features_as_they_were_stored(
    dtype: Any, model: Any, tmp_path: Path
) -> None:
    """Pixels are scaled and indices looked up, as while training: else accuracies differ."""
    rng = np.random.default_rng(0)
    shape, highest = ((3,), 8) if dtype == np.int64 else ((1, 8, 8), 256)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.integers(0, highest, (n, *shape)).astype(dtype)
        return x, (x.reshape(n, -1)[:, 0].astype(np.int64) * 2) // highest

    clients = {name: (*draw(40), *draw(20)) for name in "ab"}
    federation = udjfl.Federation.from_arrays(clients, draw(20), allow_duplicates=True)
    udjfl.simulate(federation, "fedavg", model, rounds=3, uncertainty_epochs=1, out=tmp_path)
    opened = udjfl.open(tmp_path, trust_model=True)
    for client, (_, _, x, y) in clients.items():
        right = np.mean(np.array(opened.predict(x, client)) == y.astype(str))
        assert opened.client_scores[client] == pytest.approx(100 * right)

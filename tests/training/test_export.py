"""Exported models give the scores of the model, for batches of any length."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import make_federation, train_briefly

import udjfl
from udjfl.errors import SettingsError
from udjfl.training.export import export

CLIENTS = {"fedavg": None, "focus": "client-2", "prior": "client-3"}


@pytest.fixture(scope="module")
def results() -> dict[str, udjfl.Result]:
    """One common model, a mixture of several, and one with moved logits."""
    federation = make_federation()
    return {
        "fedavg": train_briefly(federation),
        "focus": train_briefly(federation, "focus", rounds=1),
        "prior": train_briefly(federation, service="prior-all", rounds=1),
    }


def softmax(logits: Any) -> torch.Tensor:
    return torch.as_tensor(logits).double().softmax(dim=1)


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("count", [1, 7])
def test_torchscript(
    name: str, count: int, results: dict[str, udjfl.Result], tmp_path: Path
) -> None:
    export(results[name], tmp_path / "model.pt", CLIENTS[name])
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    loaded: Any = torch.jit.load(tmp_path / "model.pt")  # type: ignore[no-untyped-call]
    expected = results[name].predict_proba(x, CLIENTS[name])
    torch.testing.assert_close(softmax(loaded(x).detach()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # of onnxruntime and onnx
@pytest.mark.parametrize("name", ["fedavg", "focus"])
def test_onnx(name: str, results: dict[str, udjfl.Result], tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    export(results[name], tmp_path / "model", CLIENTS[name], "onnx")
    session = runtime.InferenceSession((tmp_path / "model").read_bytes())
    for count in (1, 7):
        x = np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32)
        expected = results[name].predict_proba(x, CLIENTS[name])
        (logits,) = session.run(None, {"x": x})
        torch.testing.assert_close(softmax(logits), expected, rtol=1e-5, atol=1e-6)


def test_other_formats_are_refused(results: dict[str, udjfl.Result], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="choose onnx or torchscript"):
        export(results["fedavg"], tmp_path / "model.h5")
    with pytest.raises(SettingsError, match="choose onnx or torchscript"):
        export(results["fedavg"], tmp_path / "model.pt", format="keras")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_error_names_it(
    results: dict[str, udjfl.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SettingsError, match=r"pip install 'udjfl\[onnx\]'"):
        export(results["fedavg"], tmp_path / "model.onnx")

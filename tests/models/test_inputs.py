"""Features of every type, turned into the inputs of a model, in every engine."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from small_runs import model_bytes
from torch import Tensor, nn

import udjfl
from udjfl.models import to_inputs

ENGINES: tuple[Literal["serial", "stacked", "mapped"], ...] = ("serial", "stacked", "mapped")
SHORT: dict[str, Any] = {"rounds": 2, "uncertainty": {"a": 0.1, "b": 0.2}}


def make_images(convert: Any) -> udjfl.Federation:
    """Draw images of two clients, as `convert` gives them from pixels 0 to 255."""
    rng = np.random.default_rng(0)

    def draw(size: int) -> tuple[Any, np.ndarray]:
        pixels = rng.integers(0, 256, (size, 1, 4, 4), dtype=np.uint8)
        return convert(pixels), (pixels.mean(axis=(1, 2, 3)) > 127).astype(np.int64)

    clients = {name: (*draw(30), *draw(10)) for name in "ab"}
    return udjfl.Federation.from_arrays(clients, test=draw(20), class_names=["dark", "light"])


def scale(pixels: np.ndarray) -> np.ndarray:
    return (torch.from_numpy(pixels).float() / 255).numpy()


class Words(nn.Module):
    """The mean of the words' vectors, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Embedding(50, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.last(self.vectors(words).mean(dim=1))
        return scores


def test_each_type_has_its_inputs() -> None:
    linear, words = nn.Linear(1, 1), Words()
    pixels = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert to_inputs(pixels, linear)[0].tolist() == pytest.approx([0, 0.2, 1])
    assert to_inputs(pixels.to(torch.int16), linear).tolist() == [[0.0, 51.0, 255.0]]
    assert to_inputs(pixels, words).dtype == to_inputs(pixels.int(), words).dtype == torch.int64
    x = torch.ones(2)
    assert to_inputs(x, words) is x


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("engine", ENGINES)
def test_pixels_train_to_the_bytes_of_their_floats(
    model: str, engine: Literal["serial", "stacked", "mapped"]
) -> None:
    if (model, engine) == ("cnn", "stacked"):
        pytest.skip("stacked trains linear layers")
    size = 28 if model == "cnn" else 4

    def grow(pixels: np.ndarray) -> np.ndarray:
        return np.kron(pixels, np.ones((1, 1, size // 4, size // 4), dtype=np.uint8))

    stored = make_images(grow)
    floats = make_images(lambda pixels: scale(grow(pixels)))
    assert stored.clients[0].train.x.dtype == torch.uint8
    assert 4 * stored.clients[0].train.x.nbytes == floats.clients[0].train.x.nbytes
    assert stored.fingerprint != floats.fingerprint
    one, two = (
        udjfl.simulate(data, "fedavg", model, engine=engine, **SHORT) for data in (stored, floats)
    )
    assert model_bytes(one) == model_bytes(two)
    assert one.client_scores == two.client_scores


@pytest.mark.parametrize("method", ["fedavg", "fedmgda", "afl"])
def test_probes_and_uncertainties_read_pixels(method: str) -> None:
    stored, floats = make_images(lambda pixels: pixels), make_images(scale)
    one, two = (
        udjfl.simulate(data, method, rounds=2, uncertainty_epochs=2, engine="serial")
        for data in (stored, floats)
    )
    assert one.uncertainty == two.uncertainty
    assert model_bytes(one) == model_bytes(two)


@pytest.mark.parametrize("engine", ["serial", "mapped"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_words_are_looked_up(engine: Literal["serial", "mapped"], dtype: type) -> None:
    rng = np.random.default_rng(0)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        words = rng.integers(0, 50, (size, 6))
        return words.astype(dtype), (words < 25).sum(axis=1) > 3

    clients = {name: (*draw(400), *draw(100)) for name in "ab"}
    federation = udjfl.Federation.from_arrays(clients, test=draw(200))
    assert federation.test.x.dtype == torch.from_numpy(np.zeros(1, dtype)).dtype
    result = udjfl.simulate(
        federation, "fedavg", lambda: Words(), engine=engine, lr=0.5, **{**SHORT, "rounds": 30}
    )
    majority = 100 * torch.bincount(federation.test.y).max().item() / len(federation.test)
    assert result.metrics["global_accuracy"] > majority + 10


def test_lists_and_mixed_types_become_floats() -> None:
    whole = np.arange(8).reshape(4, 2)
    listed = udjfl.Federation.from_arrays(
        {"a": ([[1, 2], [3, 4]], [0, 1], [[5, 6]], [0])}, test=([[7, 8]], [1])
    )
    mixed = udjfl.Federation.from_arrays(
        {"a": (whole, [0, 1, 0, 1], whole + 8, [0, 1, 0, 1])}, test=(whole + 0.5, [0, 1, 0, 1])
    )
    for federation in (listed, mixed):
        assert federation.clients[0].train.x.dtype == torch.float32
    assert mixed.clients[0].train.x.tolist() == whole.tolist()


def test_pixels_beside_floats_are_refused() -> None:
    pixels = np.arange(8, dtype=np.uint8).reshape(4, 2)
    with pytest.raises(udjfl.DataError, match=r"global test set: x is torch.float32, elsewhere"):
        udjfl.Federation.from_arrays(
            {"a": (pixels, [0, 1, 0, 1], pixels + 8, [0, 1, 0, 1])}, test=(pixels / 2, [0] * 4)
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_losses_and_tasks_of_their_own_read_pixels(
    engine: Literal["serial", "stacked", "mapped"],
) -> None:
    one, two = (
        udjfl.simulate(data, "fedavg", engine=engine, task="binary", **SHORT)
        for data in (make_images(lambda pixels: pixels), make_images(scale))
    )
    assert model_bytes(one) == model_bytes(two)

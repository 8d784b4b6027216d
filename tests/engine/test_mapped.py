"""The mapped engine has the numbers of the serial one, for many models and all options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_cases import assert_close_results, make_clients, make_work, seeded, train
from small_runs import train_briefly
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import udjfl
from udjfl import engine as engines
from udjfl.engine import (
    Correction,
    Engine,
    LocalResult,
    LocalTraining,
    MappedEngine,
    SerialEngine,
    StackedEngine,
    TrainJob,
    make_engine,
    mapped,
)
from udjfl.errors import DataError
from udjfl.methods.mfairfl import group_gap
from udjfl.models import WeightNormLinear, buffers_to_vector, cnn, mlp, to_vector
from udjfl.models.masked import adapt

# Steps of 5 examples: with 2, 2 and 1 left over, none, and fewer than a batch.
SIZES = (12, 7, 11, 10, 3)
# Float64 models, so that a wrong batch or velocity cannot hide in rounding; 1e-15 of a number near
# 1, and momentum adds up ten.
EXACT = {"rtol": 1e-10, "atol": 1e-12}
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


class Widened(nn.Module):
    """A float64 model: data come in float32."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x.double())


class Counting(nn.Module):
    """Buffers that are replaced rather than written into, and one that is a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.centre: Tensor
        self.seen: Tensor
        self.out = nn.Linear(16, 3)
        self.register_buffer("centre", torch.zeros(16))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.training:
            self.centre = 0.5 * self.centre + 0.5 * x.mean(dim=0)
            self.seen = self.seen + len(x)
        return self.out(x - self.centre)


class TwoHeads(nn.Module):
    """One head is not used, the body is frozen, and two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(16, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.out, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.second(torch.tanh(self.first(self.body(x.flatten(1))))))


def batch_norm() -> nn.Module:
    norms = nn.BatchNorm2d(4), nn.BatchNorm1d(4 * 4)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        norms[0],
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        norms[1],
        nn.Linear(16, 3),
    )


def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def weight_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), WeightNormLinear(16, 5), nn.Tanh(), WeightNormLinear(5, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp((1, 4, 4), 3, hidden=5),
    "cnn": lambda: cnn((1, 4, 4), 3),
    "batch norm": batch_norm,
    "group norm": group_norm,
    "weight norm": weight_norm,
    "buffers replaced": Counting,
    "frozen, tied and unused": TwoHeads,
}
every_model = pytest.mark.parametrize("name", MODELS)


def clients(sizes: tuple[int, ...] = SIZES, groups: bool = False) -> tuple[udjfl.Client, ...]:
    return make_clients(sizes, (1, 4, 4), groups)


def train_on_both(
    module: nn.Module,
    work: LocalTraining,
    rounding: dict[str, float] = EXACT,
    data: tuple[udjfl.Client, ...] | None = None,
    **job: Any,
) -> LocalResult:
    """Train on the mapped and the serial engine, which agree."""
    ours, theirs = (
        train(kind, module, work, data or clients(), **job) for kind in (MappedEngine, SerialEngine)
    )
    assert_close_results(ours, theirs, rounding)
    return ours


def uneven(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    """It looks at the values of groups, as no function inside vmap can."""
    assert groups is not None
    assert multipliers is not None
    return multipliers * (losses * weights).sum(dim=1) + group_gap(losses, weights, groups)


@every_model
@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
def test_mapped_equals_serial(name: str, loss_at: Any) -> None:
    # Batches of 4: batch norm refuses one of a single example, and no size here leaves one over.
    train_on_both(
        Widened(seeded(MODELS[name])),
        make_work(loss_at=loss_at, batch_size=4),
        data=clients((12, 7, 11, 10, 3)),
    )


@every_model
def test_mapped_equals_serial_in_float32(name: str) -> None:
    train_on_both(seeded(MODELS[name]), make_work(batch_size=4, epochs=1), ROUNDING)


def test_attention() -> None:
    """Vmap has rules for the plain implementation and those of GPUs, not for a CPU's fast one."""
    layer = seeded(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True))
    module = nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), seeded(lambda: nn.Linear(16, 3)))
    with sdpa_kernel(SDPBackend.MATH):
        train_on_both(Widened(module), make_work())


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.0},
        {"batch_size": 1},
        {"batch_size": 12},
        {"batch_size": 10**15},
        {"epochs": 1},
        {"epochs": 4, "lr": 0.01},
        {"first_step": True},
        {"first_step": True, "batch_size": 100},
        {"correction": Correction(0.7, 0.0)},
        {"correction": Correction(0.0, 0.5), "first_step": True},
        {"objective": uneven, "loss_at": "running"},
        {"objective": uneven, "correction": Correction(0.5), "loss_at": "final"},
    ],
    ids=lambda changes: ", ".join(changes),
)
@pytest.mark.parametrize("name", ["cnn", "frozen, tied and unused"])
def test_engines_agree_on_all_options(name: str, changes: dict[str, Any]) -> None:
    module, data = Widened(seeded(MODELS[name])), clients(groups=True)
    if "correction" in changes:
        shift = torch.linspace(-1, 1, len(to_vector(module)), dtype=torch.float64)
        changes = {**changes, "correction": replace(changes["correction"], shift=shift)}
    if "objective" in changes:
        changes = {
            **changes,
            "multipliers": torch.tensor([0.0, 1.0, 0.5, 2.0, 1.5], dtype=torch.float64),
        }
    train_on_both(module, make_work(**changes), data=data)


@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
def test_engines_agree_on_own_models_and_clients_that_occur_twice(loss_at: Any) -> None:
    module = Widened(seeded(batch_norm))
    starts = torch.stack([to_vector(seeded(batch_norm, seed)).double() for seed in range(4)])
    work = make_work(
        batch_size=4,
        loss_at=loss_at,
        objective=lambda losses, weights, _, own: own * (losses * weights).sum(dim=1),
        multipliers=torch.tensor([1.0, 0.5, 2.0, 1.0]),
    )
    data = clients((8, 8, 12, 4, 6))
    result = train_on_both(module, work, data=data, vector=starts, client_indices=[4, 0, 0, 2])
    assert not torch.equal(result.deltas[1], result.deltas[2])


def test_arguments_and_generators_are_left_alone() -> None:
    module = Widened(seeded(batch_norm))
    data = clients((8,))
    engine = MappedEngine(module, data)
    vector, buffers = to_vector(module), buffers_to_vector(module)
    before = vector.clone(), buffers.clone(), torch.get_rng_state()
    engine.train(
        TrainJob(vector, buffers, [0], make_work(batch_size=4, loss_at="running"), (7, "b", 3))
    )
    now = vector, buffers, torch.get_rng_state()
    assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
    assert torch.equal(to_vector(engine.module), vector)
    assert torch.equal(buffers_to_vector(engine.module), buffers)


@every_model
def test_chunks_change_nothing_but_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Widened(seeded(MODELS[name]))
    work = make_work(batch_size=4, loss_at="running", first_step=True)
    whole = train(MappedEngine, module, work, clients())
    for size in (2, 1):
        monkeypatch.setattr(MappedEngine, "_chunk_size", lambda *_, size=size: size)
        assert_close_results(train(MappedEngine, module, work, clients()), whole, EXACT)


def test_the_size_of_a_chunk_follows_the_memory_of_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the cnn on 4x4 images, in float32, keeps of every example for its backward pass.

    The image 16, 16 channels of 16 (the ReLU's output) and of 4 (pooled), 32 channels of 4 and of
    1: 16 + 256 + 64 + 128 + 32 numbers of 4 bytes, and the positions of 64 + 32 maxima, 8 bytes
    each: 1984 + 768 = 2752.
    """
    engine = MappedEngine(seeded(MODELS["cnn"]), clients())
    assert engine._activation_bytes == 2752
    monkeypatch.setattr(mapped, "CHUNK_BYTES", 1)
    assert engine._chunk_size(12, make_work()) == 1
    monkeypatch.setattr(mapped, "CHUNK_BYTES", 10_000_000)
    sizes = [
        engine._chunk_size(1000, make_work(batch_size=batch))
        for batch in (1, 10, 100, 1000, 10_000)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 10 * sizes[3]
    assert sizes[3] == sizes[4]


def test_steps_are_taken_by_clients_with_equal_batches() -> None:
    """Clients of 12, 10, 10, 7 and 3 examples, batches of 5: 5 5 2, 5 5, 5 5, 5 2, 3."""
    taken = [
        (who.start, who.stop, part.start, part.stop)
        for who, part in mapped._steps_of_epoch([12, 10, 10, 7, 3], 5)
    ]
    assert taken == [(0, 4, 0, 5), (4, 5, 0, 3), (0, 3, 5, 10), (3, 4, 5, 7), (0, 1, 10, 12)]


def test_batch_norm_on_one_example_names_the_client() -> None:
    data = clients((4, 1, 6))
    for kind in (SerialEngine, MappedEngine):
        with pytest.raises(
            DataError,
            match=r"client 'client-1' cannot train this model: Expected more than 1 value",
        ) as caught:
            train(kind, seeded(batch_norm), make_work(batch_size=4), data)
        assert caught.value.without_values.endswith("cannot train this model: …")


def test_dropout_draws_from_the_seed() -> None:
    module = seeded(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.Dropout(0.5), nn.Linear(20, 3))
    )
    data = clients((10, 10))
    twins = (data[0], udjfl.Client("twin", data[0].train, data[0].test))
    before = torch.get_rng_state()
    work = make_work(batch_size=10, epochs=1)
    first, again = (train(MappedEngine, module, work, twins) for _ in range(2))
    assert torch.equal(first.deltas, again.deltas)
    assert torch.equal(torch.get_rng_state(), before)
    # One batch of all examples: only the draws differ.
    assert (first.deltas[0] - first.deltas[1]).abs().max() > 0.01
    other = train(MappedEngine, module, work, twins, address=(8, "batches", 3))
    assert (first.deltas - other.deltas).abs().max() > 0.01


def test_masks_agree_with_serial() -> None:
    module = adapt(seeded(MODELS["cnn"]), 0.5, torch.Generator().manual_seed(0))
    train_on_both(module, make_work(), ROUNDING)


class ByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.out(x.flatten(1))
        return scores if scores.sum() > 0 else -scores


def torch_weight_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(16, 3)))


class Recurrent(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rows(x.flatten(1, 2))[0][:, -1])


class Packed(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x.flatten(1, 2), torch.full((len(x),), 4), batch_first=True
        )
        return self.out(self.rows(packed)[1][0][-1])


class ByList(nn.Module):
    """Its forward pass takes its parameters from a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)
        self.known = list(self.out.parameters())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flatten(1), *self.known)


UNMAPPABLE = {
    "data-dependent control flow": ByValue,
    "no rule for aten::_weight_norm": torch_weight_norm,
    "no rule for aten::lstm": Recurrent,
    "vmap": Packed,
    "by their names": ByList,
}


@pytest.mark.parametrize("reason", UNMAPPABLE)
def test_a_model_that_cannot_be_mapped_gets_a_warning_that_says_why(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = seeded(UNMAPPABLE[reason])
    assert reason in str(mapped.unsupported_reason(module, clients()[0].train.x))
    with caplog.at_level(logging.WARNING, logger="udjfl"):
        assert isinstance(make_engine(module, clients(), "mapped"), SerialEngine)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("The model is trained one client at a time: ")
    assert reason in message


@every_model
def test_a_trial_changes_nothing(name: str) -> None:
    module = seeded(MODELS[name]).eval()
    before = torch.get_rng_state(), to_vector(module), buffers_to_vector(module)
    assert mapped.unsupported_reason(module, clients()[0].train.x) is None
    now = torch.get_rng_state(), to_vector(module), buffers_to_vector(module)
    assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
    assert not module.training


def test_auto_prefers_stacked_then_on_a_gpu_mapped_then_serial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stackable, mappable, neither = (
        seeded(make) for make in (MODELS["mlp"], MODELS["cnn"], ByValue)
    )

    def chosen(module: nn.Module, name: Any = "auto") -> type[Engine]:
        return type(make_engine(module, clients(), name))

    assert [chosen(module) for module in (stackable, mappable, neither)] == [
        StackedEngine,
        SerialEngine,
        SerialEngine,
    ]
    assert [chosen(module, "mapped") for module in (stackable, mappable)] == [
        MappedEngine,
        MappedEngine,
    ]
    monkeypatch.setattr(engines, "_is_cpu", lambda device: False)
    caplog.clear()
    assert [chosen(module) for module in (stackable, mappable)] == [StackedEngine, MappedEngine]
    assert not caplog.records
    assert chosen(neither) is SerialEngine
    assert "cannot be stacked; vmap cannot take it" in caplog.text
    assert chosen(mappable, "serial") is SerialEngine


def test_a_simulation_on_the_mapped_engine(federation: udjfl.Federation) -> None:
    """With a model whose buffers, those of batch norm, are averaged too."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    ours, theirs = (
        train_briefly(federation, "rawls", model=model, engine=name)
        for name in ("mapped", "serial")
    )
    torch.testing.assert_close(to_vector(ours.model), to_vector(theirs.model), **ROUNDING)
    torch.testing.assert_close(
        buffers_to_vector(ours.model), buffers_to_vector(theirs.model), **ROUNDING
    )
    assert ours.client_scores == pytest.approx(theirs.client_scores, abs=1e-3)

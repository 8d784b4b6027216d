"""The mapped engine: the numbers of the serial one, for any model, whatever clients are asked to do."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import few_rounds
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import udjfl
from udjfl import engine as engines
from udjfl.engine import (
    Engine,
    LocalResult,
    LocalTraining,
    MappedEngine,
    SerialEngine,
    StackedEngine,
    make_engine,
    mapped,
)
from udjfl.errors import DataError
from udjfl.methods.mfairfl import group_gap
from udjfl.models import WeightNormLinear, buffers_to_vector, cnn, mlp, to_vector
from udjfl.models.masked import adapt

ADDRESS = (7, "batches", 3)
# Steps of 5 examples: with 2, 2 and 1 left over, none, and fewer than a batch.
SIZES = (12, 7, 11, 10, 3)
# Float64 models, so that a wrong batch or velocity cannot hide in rounding; 1e-15 of a number near 1, and momentum adds up ten.
EXACT = {"rtol": 1e-10, "atol": 1e-12}
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


class Widened(nn.Module):
    """A float64 model: data come in float32."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x.double())


class Recurrent(nn.Module):
    """Reads an image row by row."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **how: Any) -> None:
        super().__init__()
        self.rows = kind(4, 6, **how)
        self.batch_first = self.rows.batch_first
        self.out = nn.Linear(self.rows.hidden_size * (1 + self.rows.bidirectional), 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1, 2)
        out, state = self.rows(rows if self.batch_first else rows.transpose(0, 1))
        last = state[0] if isinstance(state, tuple) else state
        return self.out(out.mean(dim=int(self.batch_first))) + last.sum(dim=(0, 2))[:, None]


class ByCell(nn.Module):
    """The same, one row at a time."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell, self.out = kind(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for row in x.flatten(1, 2).unbind(dim=1):
            state = self.cell(row, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


class Counting(nn.Module):
    """Buffers that are replaced rather than written into, and one that is a whole number."""

    def __init__(self) -> None:
        super().__init__()
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
    "lstm": lambda: Recurrent(batch_first=True),
    "group norm": group_norm,
    "weight norm": weight_norm,
    "buffers replaced": Counting,
    "frozen, tied and unused": TwoHeads,
}
every_model = pytest.mark.parametrize("name", MODELS)


def clients(sizes: tuple[int, ...] = SIZES, groups: bool = False) -> tuple[udjfl.Client, ...]:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(n, 1, 4, 4)), rng.integers(0, 3, size=n)

    made = {f"client-{i}": (*part(n), *part(2)) for i, n in enumerate(sizes)}
    attribute = (
        {f"client-{i}": rng.integers(0, 2, size=n) for i, n in enumerate(sizes)} if groups else None
    )
    return udjfl.Federation.from_arrays(
        made, test=part(2), class_names="xyz", sensitive=attribute
    ).clients


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def work(**changes: Any) -> LocalTraining:
    return LocalTraining(**{"lr": 0.1, "momentum": 0.9, "batch_size": 5, "epochs": 2, **changes})


def trained(
    kind: type[Engine], module: nn.Module, how: LocalTraining, data: Any = None, **given: Any
) -> LocalResult:
    data = clients() if data is None else data
    asked = {
        "vector": to_vector(module),
        "buffers": buffers_to_vector(module),
        "rows": list(range(len(data))),
        **given,
    }
    return kind(copy.deepcopy(module), data).train(**asked, work=how, address=ADDRESS)


def assert_same(ours: LocalResult, theirs: LocalResult, rounding: dict[str, float]) -> None:
    for name in ("deltas", "losses", "steps", "buffers", "first_deltas"):
        one, other = getattr(ours, name), getattr(theirs, name)
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(
                one, other, **rounding, msg=lambda text, name=name: f"{name}: {text}"
            )


def both(
    module: nn.Module, how: LocalTraining, rounding: dict[str, float] = EXACT, **given: Any
) -> LocalResult:
    """What the two engines agree on."""
    ours, theirs = (trained(kind, module, how, **given) for kind in (MappedEngine, SerialEngine))
    assert_same(ours, theirs, rounding)
    return ours


def uneven(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    """It looks at which groups there are, as no function inside vmap could."""
    assert groups is not None
    assert multipliers is not None
    return multipliers * (losses * weights).sum(dim=1) + group_gap(losses, weights, groups)


@every_model
@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
def test_mapped_equals_serial(name: str, loss_at: Any) -> None:
    # Batches of 4: batch norm refuses one of a single example, and no size here leaves one over.
    both(
        Widened(seeded(MODELS[name])),
        work(loss_at=loss_at, batch_size=4),
        data=clients((12, 7, 11, 10, 3)),
    )


@every_model
def test_mapped_equals_serial_in_float32(name: str) -> None:
    both(seeded(MODELS[name]), work(batch_size=4, epochs=1), ROUNDING)


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": Recurrent,
    "lstm, two layers both ways": lambda: Recurrent(
        num_layers=2, bidirectional=True, batch_first=True
    ),
    "lstm without biases": lambda: Recurrent(bias=False),
    "gru": lambda: Recurrent(nn.GRU, num_layers=3),
    "gru both ways without biases": lambda: Recurrent(nn.GRU, bias=False, bidirectional=True),
    "rnn": lambda: Recurrent(nn.RNN, batch_first=True),
    "rnn with relu": lambda: Recurrent(nn.RNN, nonlinearity="relu", num_layers=2),
    "lstm cell": lambda: ByCell(nn.LSTMCell),
    "gru cell": lambda: ByCell(nn.GRUCell),
    "rnn cell": lambda: ByCell(nn.RNNCell),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str) -> None:
    module = seeded(RECURRENT[name])
    assert mapped.unsupported_reason(module, clients()[0].train.x) is None
    both(Widened(module), work())


def test_dropout_between_recurrent_layers() -> None:
    module = seeded(lambda: Recurrent(num_layers=2, dropout=0.5))
    with_dropout = trained(MappedEngine, module, work())
    module.rows.dropout = 0.0
    assert (trained(MappedEngine, module, work()).deltas - with_dropout.deltas).abs().max() > 1e-3


def test_attention() -> None:
    """Vmap has rules for the plain way to compute it, and for a GPU's, but not for a CPU's fast one."""
    layer = seeded(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True))
    module = nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), seeded(lambda: nn.Linear(16, 3)))
    with sdpa_kernel(SDPBackend.MATH):
        both(Widened(module), work())


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
        {"pull_share": 0.3},
        {"pull_share": 1.0, "first_step": True},
        {"objective": uneven, "loss_at": "running"},
        {"objective": uneven, "pull_share": 0.5, "first_step": True, "loss_at": "final"},
    ],
    ids=lambda changes: ", ".join(changes),
)
@pytest.mark.parametrize("name", ["cnn", "frozen, tied and unused"])
def test_whatever_clients_are_asked_to_do(name: str, changes: dict[str, Any]) -> None:
    module, data = Widened(seeded(MODELS[name])), clients(groups=True)
    if "pull_share" in changes:
        changes = {
            **changes,
            "pull": torch.linspace(-1, 1, len(to_vector(module)), dtype=torch.float64),
        }
    if "objective" in changes:
        changes = {
            **changes,
            "multipliers": torch.tensor([0.0, 1.0, 0.5, 2.0, 1.5], dtype=torch.float64),
        }
    both(module, work(**changes), data=data)


@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
def test_models_of_clients_own_some_of_them_twice(loss_at: Any) -> None:
    module = Widened(seeded(batch_norm))
    starts = torch.stack([to_vector(seeded(batch_norm, seed)).double() for seed in range(4)])
    given = {"vector": starts, "rows": [4, 0, 0, 2], "data": clients((8, 8, 12, 4, 6))}
    multipliers = {"objective": lambda losses, weights, _, own: own * (losses * weights).sum(dim=1)}
    how = work(
        batch_size=4, loss_at=loss_at, **multipliers, multipliers=torch.tensor([1.0, 0.5, 2.0, 1.0])
    )
    result = both(module, how, **given)
    assert not torch.equal(result.deltas[1], result.deltas[2])


def test_what_was_given_is_left_alone() -> None:
    module = Widened(seeded(batch_norm))
    data = clients((8,))
    engine = MappedEngine(module, data)
    vector, buffers = to_vector(module), buffers_to_vector(module)
    before = vector.clone(), buffers.clone(), torch.get_rng_state()
    engine.train(vector, buffers, [0], work(batch_size=4, loss_at="running"), ADDRESS)
    now = vector, buffers, torch.get_rng_state()
    assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
    assert torch.equal(to_vector(engine.module), vector)
    assert torch.equal(buffers_to_vector(engine.module), buffers)


@every_model
def test_chunks_change_nothing_but_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, how = (
        Widened(seeded(MODELS[name])),
        work(batch_size=4, loss_at="running", first_step=True),
    )
    whole = trained(MappedEngine, module, how)
    monkeypatch.setattr(MappedEngine, "_chunk_size", lambda *_: 2)
    assert_same(trained(MappedEngine, module, how), whole, EXACT)
    monkeypatch.setattr(MappedEngine, "_chunk_size", lambda *_: 1)
    assert_same(trained(MappedEngine, module, how), whole, EXACT)


def test_the_size_of_a_chunk_follows_what_a_client_takes_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cnn on 4x4 images, in float32, keeps of every example for its backward pass:

    the image 16, 16 channels of 16 (the ReLU's output) and of 4 (pooled), 32 channels of 4 and of 1: 16 + 256 + 64 + 128 + 32
    numbers of 4 bytes, and of 64 + 32 maxima their places, 8 bytes each: 1984 + 768 = 2752.
    """
    engine = MappedEngine(seeded(MODELS["cnn"]), clients())
    assert engine._bytes_an_example == 2752
    monkeypatch.setattr(mapped, "CHUNK_BYTES", 1)
    assert engine._chunk_size(12, work()) == 1
    monkeypatch.setattr(mapped, "CHUNK_BYTES", 10_000_000)
    sizes = [
        engine._chunk_size(1000, work(batch_size=batch)) for batch in (1, 10, 100, 1000, 10_000)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 10 * sizes[3]
    assert sizes[3] == sizes[4]


def test_steps_are_taken_by_clients_with_equal_batches() -> None:
    """Clients of 12, 10, 10, 7 and 3 examples, batches of 5: 5 5 2, 5 5, 5 5, 5 2, 3."""
    taken = [
        (who.start, who.stop, part.start, part.stop)
        for who, part in mapped._together([12, 10, 10, 7, 3], 5)
    ]
    assert taken == [(0, 4, 0, 5), (4, 5, 0, 3), (0, 3, 5, 10), (3, 4, 5, 7), (0, 1, 10, 12)]


def test_batch_norm_on_one_example_names_the_client() -> None:
    data = clients((4, 1, 6))
    for kind in (SerialEngine, MappedEngine):
        with pytest.raises(
            DataError,
            match=r"client 'client-1' cannot train this model: Expected more than 1 value",
        ):
            trained(kind, seeded(batch_norm), work(batch_size=4), data)


def test_dropout_draws_from_the_seed() -> None:
    module = seeded(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.Dropout(0.5), nn.Linear(20, 3))
    )
    data = clients((10, 10))
    twins = (data[0], udjfl.Client("twin", data[0].train, data[0].test))
    before = torch.get_rng_state()
    first, again = (
        trained(MappedEngine, module, work(batch_size=10, epochs=1), twins) for _ in range(2)
    )
    assert torch.equal(first.deltas, again.deltas)
    assert torch.equal(torch.get_rng_state(), before)
    assert (
        first.deltas[0] - first.deltas[1]
    ).abs().max() > 0.01  # one batch of all examples: only the draws differ
    other = MappedEngine(copy.deepcopy(module), twins).train(
        to_vector(module),
        buffers_to_vector(module),
        [0, 1],
        work(batch_size=10, epochs=1),
        (8, "batches", 3),
    )
    assert (first.deltas - other.deltas).abs().max() > 0.01


def test_masks_agree_with_serial() -> None:
    module = adapt(seeded(MODELS["cnn"]), 0.5, torch.Generator().manual_seed(0))
    both(module, work(), ROUNDING)


class ByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.out(x.flatten(1))
        return scores if scores.sum() > 0 else -scores


def torch_weight_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(16, 3)))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.LSTM(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x.flatten(1, 2).transpose(0, 1), torch.full((len(x),), 4)
        )
        return self.out(self.rows(packed)[1][0][-1])


class ByList(nn.Module):
    """Its forward pass knows its parameters by a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)
        self.known = list(self.out.parameters())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flatten(1), *self.known)


UNMAPPABLE = {
    "data-dependent control flow": ByValue,
    "no rule for aten::_weight_norm": torch_weight_norm,
    "no rule for aten::lstm": lambda: Recurrent(proj_size=2),
    "vmap": Packed,
    "by their names": ByList,
}


@pytest.mark.parametrize("reason", UNMAPPABLE)
def test_what_cannot_be_mapped_says_why_once(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    engines._said.clear()
    module = seeded(UNMAPPABLE[reason])
    assert reason in str(mapped.unsupported_reason(module, clients()[0].train.x))
    with caplog.at_level(logging.WARNING, logger="udjfl"):
        for _ in range(2):
            assert isinstance(make_engine(module, clients(), "mapped"), SerialEngine)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("The model is trained one client at a time: ")
    assert reason in said


@every_model
def test_a_trial_leaves_no_trace(name: str) -> None:
    module = seeded(MODELS[name]).eval()
    before = torch.get_rng_state(), to_vector(module), buffers_to_vector(module)
    assert mapped.unsupported_reason(module, clients()[0].train.x) is None
    now = torch.get_rng_state(), to_vector(module), buffers_to_vector(module)
    assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
    assert not module.training


def test_what_is_chosen(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """On a CPU stacked, else serial; on a GPU stacked, else mapped, else serial; mapped wherever it is asked for."""
    stackable, mappable, neither = (
        seeded(make) for make in (MODELS["mlp"], MODELS["cnn"], ByValue)
    )

    def chosen(module: nn.Module, asked: Any = "auto") -> type[Engine]:
        return type(make_engine(module, clients(), asked))

    assert [chosen(module) for module in (stackable, mappable, neither)] == [
        StackedEngine,
        SerialEngine,
        SerialEngine,
    ]
    assert [chosen(module, "mapped") for module in (stackable, mappable)] == [
        MappedEngine,
        MappedEngine,
    ]
    monkeypatch.setattr(engines, "_on_cpu", lambda device: False)
    caplog.clear()
    assert [chosen(module) for module in (stackable, mappable)] == [StackedEngine, MappedEngine]
    assert not caplog.records
    assert chosen(neither) is SerialEngine
    assert "cannot be stacked; vmap cannot take it" in caplog.text
    assert chosen(mappable, "serial") is SerialEngine


def test_a_simulation_on_the_mapped_engine(federation: udjfl.Federation) -> None:
    """Models that leave batch norm's buffers to the server, too."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    ours, theirs = (
        few_rounds(federation, "rawls", model=model, engine=name) for name in ("mapped", "serial")
    )
    torch.testing.assert_close(to_vector(ours.model), to_vector(theirs.model), **ROUNDING)
    torch.testing.assert_close(
        buffers_to_vector(ours.model), buffers_to_vector(theirs.model), **ROUNDING
    )
    assert ours.client_accuracy == pytest.approx(theirs.client_accuracy, abs=1e-3)

"""Local work: the stacked engine against the serial one, the serial one against a plain loop, and both against arithmetic."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import udjfl
from udjfl.engine import (
    Engine,
    EvaluationSet,
    LocalResult,
    LocalTraining,
    MappedEngine,
    SerialEngine,
    StackedEngine,
    make_engine,
    one_thread,
)
from udjfl.engine.base import batch_order
from udjfl.errors import SettingsError
from udjfl.models import WeightNormLinear, buffers_to_vector, logistic, mlp, to_vector

ADDRESS = (7, "batches", 3)
SIZES = {"a": 1, "b": 7, "c": 12}
# float32 rounds to 6e-8 of a number near 1. At most 9 steps here, and momentum 0.9 adds up ten of them: 9 * 10 * 6e-8 = 5e-6.
# A wrong batch, weight or velocity shows in the second digit.
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}
ENGINES = pytest.mark.parametrize(
    "kind", [SerialEngine, StackedEngine, MappedEngine], ids=["serial", "stacked", "mapped"]
)


def clients(
    sizes: dict[str, int] = SIZES, shape: tuple[int, ...] = (3,)
) -> tuple[udjfl.Client, ...]:
    """Random examples of three classes; every client has another number of them."""
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(n, *shape)), rng.integers(0, 3, size=n)

    made = {name: (*part(n), *part(2)) for name, n in sizes.items()}
    return udjfl.Federation.from_arrays(made, test=part(2), class_names="xyz").clients


def work(**changes: Any) -> LocalTraining:
    return LocalTraining(**{"lr": 0.1, "momentum": 0.9, "batch_size": 5, "epochs": 2, **changes})


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def trained(
    kind: Callable[..., Engine],
    module: nn.Module,
    how: LocalTraining,
    data: Any = None,
    rows: list[int] | None = None,
) -> LocalResult:
    """The clients' work from the module's numbers. The engine gets a copy: it overwrites the numbers of its module."""
    data = clients() if data is None else data
    engine = kind(copy.deepcopy(module), data)
    rows = list(range(len(data))) if rows is None else rows
    with one_thread():
        return engine.train(to_vector(module), buffers_to_vector(module), rows, how, ADDRESS)


def assert_same(ours: LocalResult, theirs: LocalResult) -> None:
    torch.testing.assert_close(ours.deltas, theirs.deltas, **ROUNDING)
    torch.testing.assert_close(ours.losses, theirs.losses, **ROUNDING)
    assert ours.steps.tolist() == theirs.steps.tolist()
    torch.testing.assert_close(ours.buffers, theirs.buffers, **ROUNDING)


def zeros() -> nn.Module:
    """Logistic regression on one feature with two classes, every number zero."""
    module = logistic((1,), 2)
    for p in module.parameters():
        nn.init.zeros_(p)
    return module


def deep() -> nn.Module:
    relu, linear = nn.ReLU, nn.Linear
    return nn.Sequential(
        linear(3, 6), relu(), linear(6, 5), relu(), linear(5, 4), relu(), WeightNormLinear(4, 3)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp((3,), 3, hidden=5),
    "mlp without weight norm": lambda: mlp((3,), 3, hidden=5, weight_norm=False),
    "logistic": lambda: logistic((3,), 3),
    "three hidden layers": deep,
}
# Batches smaller than most clients, exactly as large as the largest, larger than all.
BATCHES = [(5, 3), (12, 2), (100, 2), (1, 1)]


@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("batches", BATCHES, ids=lambda b: f"{b[0]}x{b[1]}")
@pytest.mark.parametrize("name", MODELS)
def test_stacked_equals_serial(
    name: str, batches: tuple[int, int], momentum: float, loss_at: Any
) -> None:
    module = seeded(MODELS[name])
    how = work(batch_size=batches[0], epochs=batches[1], momentum=momentum, loss_at=loss_at)
    assert isinstance(make_engine(module, clients()), StackedEngine)
    assert_same(trained(StackedEngine, module, how), trained(SerialEngine, module, how))


def test_stacked_equals_serial_on_images() -> None:
    module = seeded(lambda: mlp((1, 2, 2), 3, hidden=5))
    data = clients(shape=(1, 2, 2))
    assert_same(
        trained(StackedEngine, module, work(), data), trained(SerialEngine, module, work(), data)
    )


@ENGINES
def test_a_subset_of_clients_gives_the_rows_of_all(kind: type[Engine]) -> None:
    """What a client computes does not depend on who else is asked, nor in which order."""
    module, how = seeded(MODELS["mlp"]), work(loss_at="running")
    every, some = trained(kind, module, how), trained(kind, module, how, rows=[2, 0])
    torch.testing.assert_close(some.deltas, every.deltas[[2, 0]], **ROUNDING)
    torch.testing.assert_close(some.losses, every.losses[[2, 0]], **ROUNDING)
    assert some.steps.tolist() == every.steps[[2, 0]].tolist()


@ENGINES
@pytest.mark.parametrize(
    ("batch_size", "epochs", "steps"),
    [(5, 3, [3, 6, 9]), (12, 1, [1, 1, 1]), (100, 4, [4, 4, 4]), (1, 2, [2, 14, 24])],
)
def test_steps_are_counted(
    kind: type[Engine], batch_size: int, epochs: int, steps: list[int]
) -> None:
    """ceil(n / batch size) a pass, for clients of 1, 7 and 12 examples."""
    result = trained(kind, seeded(MODELS["logistic"]), work(batch_size=batch_size, epochs=epochs))
    assert result.steps.tolist() == steps


def plain_loop(
    module: nn.Module, client: udjfl.Client, how: LocalTraining
) -> tuple[Tensor, dict[str, float]]:
    """What a client should do, written down once more: delta, and the three losses."""
    model, x, y = copy.deepcopy(module), client.train.x, client.train.y
    loss_of = nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=how.lr, momentum=how.momentum)
    received, running = loss_of(model(x), y).item(), []
    for order in batch_order(len(y), how.epochs, ADDRESS, client.id).tolist():
        for first in range(0, len(order), how.batch_size):
            batch = order[first : first + how.batch_size]
            loss = loss_of(model(x[batch]), y[batch])
            model.zero_grad()
            loss.backward()
            optimiser.step()
            running.append(loss.item())
    final = loss_of(model(x), y).item()
    delta = nn.utils.parameters_to_vector(module.parameters()) - nn.utils.parameters_to_vector(
        model.parameters()
    )
    return delta.detach(), {
        "received": received,
        "running": sum(running) / len(running),
        "final": final,
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
def test_serial_equals_a_plain_loop(momentum: float, loss_at: Any) -> None:
    module, how = seeded(MODELS["mlp"]), work(momentum=momentum, epochs=3, loss_at=loss_at)
    result = trained(SerialEngine, module, how)
    for row, client in enumerate(clients()):
        delta, losses = plain_loop(module, client, how)
        torch.testing.assert_close(result.deltas[row], delta, rtol=0, atol=1e-7)
        assert float(result.losses[row]) == pytest.approx(losses[loss_at], rel=1e-6)


def test_batches_depend_on_address_and_client_alone() -> None:
    order = batch_order(20, 2, ADDRESS, "a")
    assert torch.equal(order, batch_order(20, 2, ADDRESS, "a"))
    assert (
        order.sort(dim=1).values.tolist() == [list(range(20))] * 2
    )  # each pass sees every example once
    assert order[0].tolist() != order[1].tolist()
    for other in (batch_order(20, 2, ADDRESS, "b"), batch_order(20, 2, (7, "batches", 4), "a")):
        assert not torch.equal(order, other)


@ENGINES
def test_steps_worked_by_hand(kind: type[Engine]) -> None:
    """One example x = 2 of class 0, two classes, all numbers zero, lr 0.1, momentum 0.5, two steps.

    step 1  p = (1/2, 1/2); gradient of the weights (p0 - 1, p1) x = (-1, 1), of the biases (-1/2, 1/2)
            weights (0.1, -0.1), biases (0.05, -0.05), so the scores are 0.1*2 + 0.05 = 0.25 and -0.25
    step 2  p0 = 1 / (1 + e^-0.5) = 0.622459; gradient (-0.755081, 0.755081) and half of that
            velocity 0.5 * -1 - 0.755081 = -1.255081; weight 0.1 + 0.1255081 = 0.2255081, bias half of that
    losses  ln 2 at the start, ln(1 + e^-0.5) = 0.474077 before step 2; after it the scores are +-0.5637703
    """
    data = {"a": ([[2.0]], [0], [[5.0]], [0])}
    one = udjfl.Federation.from_arrays(data, test=([[6.0]], [1])).clients
    results = {
        at: trained(kind, zeros(), LocalTraining(0.1, 0.5, 8, 2, at), one)
        for at in ("received", "running", "final")
    }
    expected = [
        -0.2255081,
        0.2255081,
        -0.1127541,
        0.1127541,
    ]  # what was received minus what came out
    assert results["received"].deltas[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert results["received"].losses.tolist() == pytest.approx([math.log(2)])
    assert results["running"].losses.tolist() == pytest.approx([(0.6931472 + 0.4740770) / 2])
    assert results["final"].losses.tolist() == pytest.approx(
        [math.log(1 + math.exp(-2 * 0.5637703))]
    )
    assert results["received"].steps.tolist() == [2]


@ENGINES
def test_evaluation_worked_by_hand(kind: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights (1, 0), no bias: scores (x, 0). Batches of two cut across the parts, which must not matter."""
    monkeypatch.setattr("udjfl.engine.base.EVALUATION_BATCH", 2)
    data = {
        "a": ([[1.0], [2.0], [-1.0]], [0, 1, 1], [[5.0]], [0]),
        "b": ([[0.5]], [0], [[7.0]], [0]),
    }
    made = udjfl.Federation.from_arrays(data, test=([[6.0]], [1]))
    engine = kind(logistic((1,), 2), made.clients)
    vector, none = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(0, dtype=torch.float64)
    losses, accuracies = engine.evaluate(
        vector, none, EvaluationSet([c.train for c in made.clients])
    )
    by_hand = [math.log(1 + math.exp(-1)), math.log(1 + math.exp(2)), math.log(1 + math.exp(-1))]
    assert losses.tolist() == pytest.approx([sum(by_hand) / 3, math.log(1 + math.exp(-0.5))])
    assert accuracies.tolist() == pytest.approx([2 / 3, 1.0])
    assert losses.dtype == accuracies.dtype == torch.float64
    certain = 1 / (1 + math.exp(-2))
    assert engine.probabilities(vector, none, 0)[1].tolist() == pytest.approx(
        [certain, 1 - certain]
    )


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Tripled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def relu_used_twice() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(3, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, 3))


def linear_used_twice() -> nn.Module:
    linear = nn.Linear(3, 3)
    return nn.Sequential(linear, nn.ReLU(), linear, nn.ReLU(), nn.Linear(3, 3))


def weights_tied() -> nn.Module:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3))
    module[0].register_forward_hook(lambda _layer, _given, out: 3 * out)
    return module


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "one ReLU in two places": relu_used_twice,
    "one linear layer in two places": linear_used_twice,
    "two layers with one weight": weights_tied,
    "a linear layer with a forward of its own": lambda: nn.Sequential(Scaled(3, 3)),
    "an nn.Sequential with a forward of its own": lambda: Tripled(nn.Linear(3, 3)),
    "a forward hook": hooked,
    "torch's own weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    ),
    "no bias": lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 3)),
    "a single layer": lambda: nn.Linear(3, 3),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_whatever_is_chosen_computes_the_model_as_written(name: str) -> None:
    module, how = seeded(UNUSUAL[name]), work(loss_at="running")
    assert_same(trained(make_engine, module, how), trained(SerialEngine, module, how))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)),
        lambda: nn.Sequential(
            nn.Flatten(start_dim=1, end_dim=2), nn.Linear(2, 1), nn.Flatten(), nn.Linear(3, 3)
        ),
    ],
    ids=["no Flatten first", "a Flatten that keeps an axis"],
)
def test_a_linear_layer_over_the_last_axis_of_an_image(make: Callable[[], nn.Module]) -> None:
    module, data = seeded(make), clients(shape=(1, 3, 2))
    assert_same(
        trained(make_engine, module, work(), data), trained(SerialEngine, module, work(), data)
    )


def test_what_cannot_be_stacked_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    class OnlyInThisTest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(3, 3)

    with caplog.at_level(logging.WARNING, logger="udjfl"):
        for asked in ("auto", "stacked", "auto"):
            assert isinstance(make_engine(OnlyInThisTest(), clients(), asked), SerialEngine)  # type: ignore[arg-type]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "OnlyInThisTest" in said[0]
    assert "one client at a time" in said[0]


def test_asking_for_serial_or_for_what_can_be_stacked_is_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert isinstance(make_engine(mlp((3,), 3), clients(), "serial"), SerialEngine)
    assert isinstance(make_engine(mlp((3,), 3), clients(), "stacked"), StackedEngine)
    assert not caplog.records


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(SettingsError, match="device: 'abacus' cannot be used"):
        make_engine(mlp((3,), 3), clients(), device="abacus")


@ENGINES
def test_a_batch_size_without_limit_means_the_whole_client(kind: type[Engine]) -> None:
    """People write a huge number for "all at once"; memory must follow the data, not that number."""
    module = seeded(MODELS["logistic"])
    assert_same(
        trained(kind, module, work(batch_size=10**15)), trained(kind, module, work(batch_size=12))
    )


@ENGINES
def test_a_client_out_of_batches_stands_still(kind: type[Engine]) -> None:
    """Client a takes one step to w = 0.1 * 0.5 * 1e20 = 5e18. Its scores would now overflow, but it is done: b goes on."""
    data = {
        "a": ([[1e20]], [0], [[5.0]], [0]),
        "b": ([[0.1], [0.2], [0.3]], [0, 1, 0], [[7.0]], [0]),
    }
    made = udjfl.Federation.from_arrays(data, test=([[6.0]], [1]))
    deltas = trained(kind, zeros(), work(batch_size=1, epochs=1), made.clients).deltas
    assert deltas[0].tolist() == pytest.approx([-5e18, 5e18, -0.05, 0.05])
    assert torch.isfinite(deltas[1]).all()


@ENGINES
def test_a_client_that_diverges_does_not_touch_the_others(kind: type[Engine]) -> None:
    good = clients()
    bad = udjfl.Client(
        "d", udjfl.Examples(torch.full((4, 3), 1e30), torch.tensor([0, 1, 2, 0])), good[0].test
    )
    module = seeded(MODELS["mlp"])
    alone, together = (
        trained(kind, module, work(), good).deltas,
        trained(kind, module, work(), [*good, bad]).deltas,
    )
    assert not torch.isfinite(together[3]).all()
    torch.testing.assert_close(together[:3], alone, **ROUNDING)


def test_frozen_parameters_stay_and_are_not_sent() -> None:
    module = seeded(MODELS["mlp without weight norm"])
    module[1].requires_grad_(False)
    frozen = module[1].weight.clone()
    engine = make_engine(module, clients())
    result = engine.train(to_vector(module), buffers_to_vector(module), [0, 1, 2], work(), ADDRESS)
    assert result.deltas.shape == (3, 5 * 3 + 3)  # the output layer alone
    assert (result.deltas != 0).any(dim=1).all()
    assert torch.equal(engine.module[1].weight, frozen)


def test_dropout_is_on_in_training_and_repeats() -> None:
    def make(p: float) -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Linear(3, 20), nn.Dropout(p), nn.Linear(20, 3)))

    before = torch.random.get_rng_state()
    first, again = trained(make_engine, make(0.5), work()), trained(make_engine, make(0.5), work())
    alone = trained(make_engine, make(0.5), work(), rows=[2])
    assert torch.equal(first.deltas, again.deltas)
    assert torch.equal(first.deltas[2], alone.deltas[0])
    without = trained(make_engine, make(0.0), work())
    assert (first.deltas - without.deltas).abs().max() > 0.01
    assert torch.equal(
        torch.random.get_rng_state(), before
    )  # nobody else's random numbers were used up


def test_batch_norm_starts_every_client_from_the_received_buffers() -> None:
    """Running mean after one batch: 0.9 * received + 0.1 * the client's mean; received is 10, the clients' means 1 and 5."""
    data = {
        "a": ([[0.0], [2.0]], [0, 1], [[50.0]], [0]),
        "b": ([[4.0], [6.0]], [0, 1], [[70.0]], [0]),
    }
    made = udjfl.Federation.from_arrays(data, test=([[60.0]], [1]))
    module = seeded(lambda: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    buffers = torch.tensor([10.0, 1.0, 3.0], dtype=torch.float64)  # mean, variance, batches seen
    engine = make_engine(module, made.clients)
    result = engine.train(to_vector(module), buffers, [0, 1], work(epochs=1), ADDRESS)
    # Variances with n - 1: 2 for both; 0.9 * 1 + 0.1 * 2 = 1.1.
    assert result.buffers[0].tolist() == pytest.approx([9.1, 1.1, 4.0])
    assert result.buffers[1].tolist() == pytest.approx([9.5, 1.1, 4.0])


def test_one_thread_puts_the_old_number_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

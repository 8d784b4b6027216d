"""Engines against each other, against a plain loop, and against arithmetic."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_cases import (
    ADDRESS,
    CLOSE,
    assert_close_results,
    make_clients,
    make_work,
    seeded,
)
from engine_cases import ENGINES as BY_NAME
from engine_cases import train as train_clients
from torch import Tensor, nn

import udjfl
from udjfl.engine import (
    Engine,
    EvaluationSet,
    LocalResult,
    LocalTraining,
    SerialEngine,
    StackedEngine,
    TrainJob,
    make_engine,
    one_thread,
)
from udjfl.engine.batches import batch_order
from udjfl.errors import SettingsError
from udjfl.models import WeightNormLinear, buffers_to_vector, logistic, mlp, to_vector

SIZES = {"a": 1, "b": 7, "c": 12}
ENGINES = pytest.mark.parametrize("kind", BY_NAME.values(), ids=BY_NAME)


def clients(shape: tuple[int, ...] = (3,)) -> tuple[udjfl.Client, ...]:
    return make_clients(SIZES, shape)


def train(
    make: Callable[..., Engine],
    module: nn.Module,
    work: LocalTraining,
    data: Any = None,
    indices: list[int] | None = None,
) -> LocalResult:
    return train_clients(make, module, work, clients() if data is None else data, indices)


def zeros() -> nn.Module:
    """Logistic regression on one feature with two classes, all parameters zero."""
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
# Batches smaller than most clients, as large as the largest, larger than all.
BATCHES = [(5, 3), (12, 2), (100, 2), (1, 1)]


@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("batches", BATCHES, ids=lambda b: f"{b[0]}x{b[1]}")
@pytest.mark.parametrize("name", MODELS)
def test_stacked_equals_serial(
    name: str, batches: tuple[int, int], momentum: float, loss_at: Any
) -> None:
    module = seeded(MODELS[name])
    work = make_work(batch_size=batches[0], epochs=batches[1], momentum=momentum, loss_at=loss_at)
    assert isinstance(make_engine(module, clients()), StackedEngine)
    assert_close_results(train(StackedEngine, module, work), train(SerialEngine, module, work))


def test_stacked_equals_serial_on_images() -> None:
    module = seeded(lambda: mlp((1, 2, 2), 3, hidden=5))
    data = clients(shape=(1, 2, 2))
    assert_close_results(
        train(StackedEngine, module, make_work(), data),
        train(SerialEngine, module, make_work(), data),
    )


@ENGINES
def test_a_subset_of_clients_gives_the_rows_of_all(kind: type[Engine]) -> None:
    """A client's result depends neither on the other clients nor on their order."""
    module, work = seeded(MODELS["mlp"]), make_work(loss_at="running")
    every, some = train(kind, module, work), train(kind, module, work, indices=[2, 0])
    torch.testing.assert_close(some.deltas, every.deltas[[2, 0]], **CLOSE)
    torch.testing.assert_close(some.losses, every.losses[[2, 0]], **CLOSE)
    assert some.steps.tolist() == every.steps[[2, 0]].tolist()


@ENGINES
@pytest.mark.parametrize(
    ("batch_size", "epochs", "steps"),
    [(5, 3, [3, 6, 9]), (12, 1, [1, 1, 1]), (100, 4, [4, 4, 4]), (1, 2, [2, 14, 24])],
)
def test_steps_are_counted(
    kind: type[Engine], batch_size: int, epochs: int, steps: list[int]
) -> None:
    """ceil(n / batch size) in an epoch, for clients of 1, 7 and 12 examples."""
    result = train(
        kind, seeded(MODELS["logistic"]), make_work(batch_size=batch_size, epochs=epochs)
    )
    assert result.steps.tolist() == steps


def plain_loop(
    module: nn.Module, client: udjfl.Client, work: LocalTraining
) -> tuple[Tensor, dict[str, float]]:
    """A client's training, written once more: its delta, and the three losses."""
    model, x, y = copy.deepcopy(module), client.train.x, client.train.y
    loss_of = nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
    received, running = loss_of(model(x), y).item(), []
    for order in batch_order(len(y), work.epochs, ADDRESS, client.id).tolist():
        for first in range(0, len(order), work.batch_size):
            batch = order[first : first + work.batch_size]
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
    module, work = seeded(MODELS["mlp"]), make_work(momentum=momentum, epochs=3, loss_at=loss_at)
    result = train(SerialEngine, module, work)
    for row, client in enumerate(clients()):
        delta, losses = plain_loop(module, client, work)
        torch.testing.assert_close(result.deltas[row], delta, rtol=0, atol=1e-7)
        assert float(result.losses[row]) == pytest.approx(losses[loss_at], rel=1e-6)


def test_batches_depend_on_address_and_client_alone() -> None:
    order = batch_order(20, 2, ADDRESS, "a")
    assert torch.equal(order, batch_order(20, 2, ADDRESS, "a"))
    # Each epoch sees every example once.
    assert order.sort(dim=1).values.tolist() == [list(range(20))] * 2
    assert order[0].tolist() != order[1].tolist()
    for other in (batch_order(20, 2, ADDRESS, "b"), batch_order(20, 2, (7, "batches", 4), "a")):
        assert not torch.equal(order, other)


@ENGINES
def test_steps_worked_by_hand(kind: type[Engine]) -> None:
    """One example x = 2 of class 0, two classes, parameters 0, lr 0.1, momentum 0.5, two steps.

    step 1  p = (1/2, 1/2); gradient of the weights (p0 - 1, p1) x = (-1, 1), of the biases
            (-1/2, 1/2); weights (0.1, -0.1), biases (0.05, -0.05), so the scores are
            0.1 * 2 + 0.05 = 0.25 and -0.25
    step 2  p0 = 1 / (1 + e^-0.5) = 0.622459; gradient (-0.755081, 0.755081) and half of that;
            velocity 0.5 * -1 - 0.755081 = -1.255081; weight 0.1 + 0.1255081 = 0.2255081, bias half
            of that
    losses  ln 2 at the start, ln(1 + e^-0.5) = 0.474077 before step 2; after it the scores are
            +-0.5637703
    """
    data = {"a": ([[2.0]], [0], [[5.0]], [0])}
    one = udjfl.Federation.from_arrays(data, test=([[6.0]], [1])).clients
    results = {
        at: train(kind, zeros(), LocalTraining(0.1, 0.5, 8, 2, at), one)
        for at in ("received", "running", "final")
    }
    # The received parameters minus the trained ones.
    expected = [-0.2255081, 0.2255081, -0.1127541, 0.1127541]
    assert results["received"].deltas[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert results["received"].losses.tolist() == pytest.approx([math.log(2)])
    assert results["running"].losses.tolist() == pytest.approx([(0.6931472 + 0.4740770) / 2])
    assert results["final"].losses.tolist() == pytest.approx(
        [math.log(1 + math.exp(-2 * 0.5637703))]
    )
    assert results["received"].steps.tolist() == [2]


@ENGINES
def test_evaluation_worked_by_hand(kind: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights (1, 0), no bias: scores (x, 0). Batches may cut across parts."""
    monkeypatch.setattr("udjfl.engine.base.EVALUATION_BATCH", 2)
    data = {
        "a": ([[1.0], [2.0], [-1.0]], [0, 1, 1], [[5.0]], [0]),
        "b": ([[0.5]], [0], [[7.0]], [0]),
    }
    federation = udjfl.Federation.from_arrays(data, test=([[6.0]], [1]))
    engine = kind(logistic((1,), 2), federation.clients)
    vector, none = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(0, dtype=torch.float64)
    losses, accuracies = engine.evaluate(
        vector, none, EvaluationSet([c.train for c in federation.clients])
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
def test_the_chosen_engine_computes_the_model_as_written(name: str) -> None:
    module, work = seeded(UNUSUAL[name]), make_work(loss_at="running")
    assert_close_results(train(make_engine, module, work), train(SerialEngine, module, work))


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
    assert_close_results(
        train(make_engine, module, make_work(), data),
        train(SerialEngine, module, make_work(), data),
    )


def test_a_model_that_cannot_be_stacked_gets_a_warning_that_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class OnlyInThisTest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(3, 3)

    with caplog.at_level(logging.WARNING, logger="udjfl"):
        for name in ("auto", "stacked", "auto"):
            assert isinstance(make_engine(OnlyInThisTest(), clients(), name), SerialEngine)  # type: ignore[arg-type]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert all("OnlyInThisTest" in message for message in messages)
    assert all("one client at a time" in message for message in messages)


def test_an_engine_as_requested_gets_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert isinstance(make_engine(mlp((3,), 3), clients(), "serial"), SerialEngine)
    assert isinstance(make_engine(mlp((3,), 3), clients(), "stacked"), StackedEngine)
    assert not caplog.records


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(SettingsError, match="device: 'abacus' cannot be used"):
        make_engine(mlp((3,), 3), clients(), device="abacus")


@ENGINES
def test_a_batch_size_without_limit_means_the_whole_client(kind: type[Engine]) -> None:
    """A huge number stands for "all at once"; memory follows the data, not that number."""
    module = seeded(MODELS["logistic"])
    assert_close_results(
        train(kind, module, make_work(batch_size=10**15)),
        train(kind, module, make_work(batch_size=12)),
    )


@ENGINES
def test_a_client_out_of_batches_stands_still(kind: type[Engine]) -> None:
    """Client a takes one step to w = 0.1 * 0.5 * 1e20 = 5e18, and then none while b goes on.

    Another step of a would overflow.
    """
    data = {
        "a": ([[1e20]], [0], [[5.0]], [0]),
        "b": ([[0.1], [0.2], [0.3]], [0, 1, 0], [[7.0]], [0]),
    }
    federation = udjfl.Federation.from_arrays(data, test=([[6.0]], [1]))
    deltas = train(kind, zeros(), make_work(batch_size=1, epochs=1), federation.clients).deltas
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
        train(kind, module, make_work(), good).deltas,
        train(kind, module, make_work(), [*good, bad]).deltas,
    )
    assert not torch.isfinite(together[3]).all()
    torch.testing.assert_close(together[:3], alone, **CLOSE)


def test_frozen_parameters_stay_and_are_not_sent() -> None:
    module = seeded(MODELS["mlp without weight norm"])
    module[1].requires_grad_(False)
    frozen = module[1].weight.clone()
    engine = make_engine(module, clients())
    result = engine.train(
        TrainJob(to_vector(module), buffers_to_vector(module), [0, 1, 2], make_work(), ADDRESS)
    )
    assert result.deltas.shape == (3, 5 * 3 + 3)  # the output layer alone
    assert (result.deltas != 0).any(dim=1).all()
    assert torch.equal(engine.module[1].weight, frozen)


def test_dropout_is_on_in_training_and_repeats() -> None:
    def make(p: float) -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Linear(3, 20), nn.Dropout(p), nn.Linear(20, 3)))

    before = torch.random.get_rng_state()
    first, again = (
        train(make_engine, make(0.5), make_work()),
        train(make_engine, make(0.5), make_work()),
    )
    alone = train(make_engine, make(0.5), make_work(), indices=[2])
    assert torch.equal(first.deltas, again.deltas)
    assert torch.equal(first.deltas[2], alone.deltas[0])
    without = train(make_engine, make(0.0), make_work())
    assert (first.deltas - without.deltas).abs().max() > 0.01
    assert torch.equal(torch.random.get_rng_state(), before)  # the caller's generator


def test_batch_norm_starts_every_client_from_the_received_buffers() -> None:
    """The running mean after one batch is 0.9 * received + 0.1 * the client's mean.

    Received is 10, the clients' means are 1 and 5.
    """
    data = {
        "a": ([[0.0], [2.0]], [0, 1], [[50.0]], [0]),
        "b": ([[4.0], [6.0]], [0, 1], [[70.0]], [0]),
    }
    federation = udjfl.Federation.from_arrays(data, test=([[60.0]], [1]))
    module = seeded(lambda: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    buffers = torch.tensor([10.0, 1.0, 3.0], dtype=torch.float64)  # mean, variance, batches seen
    engine = make_engine(module, federation.clients)
    result = engine.train(
        TrainJob(to_vector(module), buffers, [0, 1], make_work(epochs=1), ADDRESS)
    )
    # Variances with n - 1: 2 for both; 0.9 * 1 + 0.1 * 2 = 1.1.
    assert result.buffers[0].tolist() == pytest.approx([9.1, 1.1, 4.0])
    assert result.buffers[1].tolist() == pytest.approx([9.5, 1.1, 4.0])


def test_one_thread_restores_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

"""The correction of local gradients: gradient_share g + mu (theta - anchor) + shift."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from engine_cases import (
    CLOSE,
    ENGINES,
    assert_close_results,
    assert_equal_results,
    make_clients,
    make_work,
    seeded,
    train,
)
from torch import Tensor, nn

from udjfl.engine import Correction, SerialEngine, StackedEngine
from udjfl.engine import serial as serial_module
from udjfl.engine import stacked as stacked_module
from udjfl.models import mlp, to_vector

SIZES = (7, 12, 3)
every_engine = pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)


def fresh() -> nn.Module:
    return seeded(lambda: mlp((3,), 3, hidden=4))


def rows(module: nn.Module, scale: float) -> Tensor:
    """Return another vector for each client."""
    return scale * torch.stack([to_vector(module).cos() * (i + 1) for i in range(len(SIZES))])


CORRECTIONS: dict[str, Any] = {
    "received model": lambda module: Correction(mu=0.5),
    "one anchor": lambda module: Correction(mu=0.5, anchor=rows(module, 0.1)[0]),
    "own anchors": lambda module: Correction(mu=0.5, anchor=rows(module, 0.1)),
    "one shift": lambda module: Correction(0.7, shift=rows(module, 0.2)[1].double()),
    "own shifts": lambda module: Correction(shift=rows(module, 0.2)),
    "all": lambda module: Correction(0.7, 0.3, rows(module, 0.1), rows(module, 0.2)),
}
every_correction = pytest.mark.parametrize("name", CORRECTIONS)


@every_engine
def test_a_shift_in_place_of_the_gradient(kind: Any) -> None:
    """Without the gradient and momentum a step is lr * shift; 7 examples, batches of 5: 4 steps."""
    module = fresh()
    shifts = rows(module, 1.0)
    work = make_work(correction=Correction(0.0, shift=shifts), momentum=0.0)
    result = train(kind, module, work, make_clients(SIZES))
    steps = torch.tensor([4.0, 6.0, 2.0])
    torch.testing.assert_close(result.deltas, steps[:, None] * 0.1 * shifts, **CLOSE)


@every_engine
def test_a_pull_to_an_anchor_in_place_of_the_gradient(kind: Any) -> None:
    """The distance to the anchor shrinks by 1 - lr mu = 0.8 in each of 4, 6 and 2 steps."""
    module = fresh()
    start, anchors = to_vector(module), rows(module, 1.0)
    work = make_work(correction=Correction(0.0, 2.0, anchors), momentum=0.0)
    result = train(kind, module, work, make_clients(SIZES))
    left = torch.tensor([0.8**4, 0.8**6, 0.8**2])
    torch.testing.assert_close(result.deltas, (1 - left[:, None]) * (start - anchors), **CLOSE)


@every_engine
@every_correction
def test_it_is_the_gradient_of_a_penalty(kind: Any, name: str) -> None:
    """One step on all examples: lr (share g + mu (theta - anchor) + shift) with autograd's g."""
    module, clients = fresh(), make_clients(SIZES)
    start = rows(module, 0.3) + to_vector(module)
    correction = CORRECTIONS[name](module)
    work = make_work(correction=correction, epochs=1, batch_size=100, first_step=True)
    plain = make_work(epochs=1, batch_size=100)
    ours = train(kind, module, work, clients, vector=start)
    gradients = train(SerialEngine, module, plain, clients, vector=start).deltas / 0.1
    expected = correction.gradient_share * gradients
    if correction.anchor is not None:
        expected = expected + correction.mu * (start - correction.anchor)
    if correction.shift is not None:
        expected = expected + correction.shift
    torch.testing.assert_close(ours.deltas.double(), 0.1 * expected.double(), **CLOSE)
    assert torch.equal(ours.deltas, ours.first_deltas)


@every_correction
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("own_starts", [False, True])
def test_engines_agree(name: str, optimiser: Any, own_starts: bool) -> None:
    module, clients = fresh(), make_clients(SIZES)
    start = to_vector(module) + (rows(module, 0.3) if own_starts else 0.0)
    work = make_work(correction=CORRECTIONS[name](module), optimiser=optimiser, first_step=True)
    serial, *others = (
        train(kind, module, work, clients, vector=start) for kind in ENGINES.values()
    )
    for other in others:
        assert_close_results(other, serial)
    plain = train(SerialEngine, module, make_work(optimiser=optimiser), clients, vector=start)
    assert float((serial.deltas - plain.deltas).abs().max()) > 1e-3


@every_engine
def test_a_correction_that_changes_nothing(kind: Any) -> None:
    module, clients = fresh(), make_clients(SIZES)
    nothing = make_work(correction=Correction(shift=torch.zeros(len(to_vector(module)))))
    ours, plain = (train(kind, module, work, clients) for work in (nothing, make_work()))
    assert_equal_results(ours, plain)


@pytest.mark.parametrize("kind", [SerialEngine, StackedEngine])
def test_worker_processes_change_no_bit(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_module, "SHARED_FLOPS", 0)
    monkeypatch.setattr(stacked_module, "CHUNK_BYTES", 1)
    monkeypatch.setattr(serial_module, "SHARED_PRODUCTS", 0)
    module, clients = fresh(), make_clients(SIZES)
    work = make_work(correction=CORRECTIONS["all"](module))
    one, two = (train(kind, module, work, clients, workers=count) for count in (1, 2))
    assert_equal_results(two, one)


@every_engine
def test_some_clients_keep_their_rows(kind: Any) -> None:
    """Rows of the correction belong to the clients of the job, in its order."""
    module, clients = fresh(), make_clients(SIZES)
    whole, table = make_work(momentum=0.0, epochs=1), rows(module, 0.2)
    work = make_work(momentum=0.0, epochs=1, correction=Correction(shift=table[[2, 0]]))
    ours = train(kind, module, work, clients, client_indices=(2, 0))
    for row, index in enumerate((2, 0)):
        alone = make_work(momentum=0.0, epochs=1, correction=Correction(shift=table[index]))
        theirs = train(kind, module, alone, clients, client_indices=(index,))
        torch.testing.assert_close(ours.deltas[row], theirs.deltas[0], **CLOSE)
        plain = train(kind, module, whole, clients, client_indices=(index,))
        assert not torch.allclose(ours.deltas[row], plain.deltas[0], atol=1e-3)


def test_pickled_it_is_the_same() -> None:
    correction = Correction(0.5, 0.1, torch.arange(6.0).view(2, 3), None)
    read = pickle.loads(pickle.dumps(correction))
    assert (read.gradient_share, read.mu, read.shift) == (0.5, 0.1, None)
    assert torch.equal(read.anchor, correction.anchor)

"""Probes of the received model against arithmetic, and against autograd on the whole data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import NO_BUFFERS
from torch import nn

import udjfl
from udjfl.data import Client, Examples
from udjfl.engine import PROBES, SerialEngine, StackedEngine, base, probe
from udjfl.methods.base import EXTRAS
from udjfl.models import from_vector, logistic, mlp, to_vector


def two_clients(groups: bool = True) -> udjfl.Federation:
    """One feature, two classes; group 0 is the first half of a client's examples."""
    clients = {
        "a": ([[1.0], [2.0], [-1.0], [-2.0]], [1, 1, 0, 1], [[0.5]], [1]),
        "b": ([[3.0], [-3.0]], [0, 0], [[0.7]], [1]),
    }
    attribute = {"a": [0, 0, 1, 1], "b": [0, 1]} if groups else None
    return udjfl.Federation.from_arrays(clients, test=([[0.1]], [0]), sensitive=attribute)


def zero_engine(groups: bool = True) -> tuple[SerialEngine, torch.Tensor]:
    engine = SerialEngine(logistic((1,), 2), two_clients(groups).clients)
    return engine, torch.zeros(4)


def test_a_model_of_zeros_by_hand() -> None:
    """All zeros: all losses are ln 2, all predictions 0; a has one 0 of four, b two of two."""
    engine, zeros = zero_engine()
    found = probe(
        engine, zeros, NO_BUFFERS, [0, 1], {"losses", "accuracies", "squared_losses", "group_gaps"}
    )
    assert found["losses"].tolist() == pytest.approx([math.log(2)] * 2)
    assert found["squared_losses"].tolist() == pytest.approx([math.log(2) ** 2] * 2)
    assert found["accuracies"].tolist() == [0.25, 1.0]
    assert found["group_gaps"].tolist() == pytest.approx([0.0, 0.0], abs=1e-7)


def test_the_gradient_of_a_model_of_zeros_by_hand() -> None:
    """Softmax is (1/2, 1/2), so d loss / d logits = (p0 - [y=0], p1 - [y=1]) = +-1/2.

    Client b: x = 3 and -3, both class 0: d/d bias0 = -1/2,
        d/d weight0 = mean(-1/2 * 3, -1/2 * -3) = 0.
    Client a: x = 1, 2, -1, -2 with y = 1, 1, 0, 1: d/d logit1 = -1/2, -1/2, 1/2, -1/2;
        weight1: (-1/2 - 1 - 1/2 + 1) / 4 = -1/4;  bias1: -1/4.
    """
    engine, zeros = zero_engine()
    found = probe(engine, zeros, NO_BUFFERS, [0, 1], {"gradients", "gradient_norms"})
    assert found["gradients"].tolist() == [[0.25, -0.25, 0.25, -0.25], [0.0, 0.0, -0.5, 0.5]]
    assert found["gradient_norms"].tolist() == pytest.approx([0.5, math.sqrt(0.5)])
    assert found["gradients"].dtype == torch.float64


def test_the_gap_is_worst_minus_best_group_and_its_gradient_is_autograds() -> None:
    engine, _ = zero_engine()
    vector = torch.tensor([0.3, -0.7, 0.2, 0.1])
    found = probe(engine, vector, NO_BUFFERS, [0], {"group_gaps", "group_gap_gradients"})
    data = engine.clients[0].train
    module = logistic((1,), 2)
    from_vector(module, vector)
    each = nn.functional.cross_entropy(module(data.x), data.y, reduction="none")
    means = torch.stack([each[:2].mean(), each[2:].mean()])
    gap = means.max() - means.min()
    gradient = torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(gap, list(module.parameters()))]
    )
    assert gap.item() > 0.1
    assert float(found["group_gaps"][0]) == pytest.approx(gap.item(), rel=1e-5)
    torch.testing.assert_close(
        found["group_gap_gradients"][0], gradient.to(torch.float64), rtol=1e-5, atol=1e-6
    )


def test_one_group_has_no_gap() -> None:
    one = udjfl.Federation.from_arrays(
        {"a": ([[1.0], [2.0]], [0, 1], [[0.5]], [1])}, test=([[0.1]], [0]), sensitive={"a": [3, 3]}
    )
    engine = SerialEngine(logistic((1,), 2), one.clients)
    found = probe(
        engine,
        torch.tensor([1.0, 0.0, 0.0, 0.0]),
        NO_BUFFERS,
        [0],
        {"group_gaps", "group_gap_gradients"},
    )
    assert found["group_gaps"].tolist() == [0.0]
    assert found["group_gap_gradients"].tolist() == [[0.0] * 4]


def test_only_what_is_requested_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, zeros = zero_engine()
    calls: list[int] = []
    engine.module.register_forward_hook(lambda *_: calls.append(1))
    assert probe(engine, zeros, NO_BUFFERS, [0, 1], {"first_deltas", "validation_accuracies"}) == {}
    assert calls == []  # neither is a probe
    assert set(probe(engine, zeros, NO_BUFFERS, [0, 1], {"accuracies"})) == {"accuracies"}
    assert len(calls) == 2
    assert not any(p.grad is not None for p in engine.module.parameters())


def test_large_data_are_probed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers do not depend on the size of a part, up to the order of sums."""
    rng = np.random.default_rng(0)
    data = udjfl.Federation.from_arrays(
        {"a": (rng.normal(size=(30, 3)), rng.integers(0, 3, 30), rng.normal(size=(2, 3)), [0, 1])},
        test=(rng.normal(size=(2, 3)), [0, 1]),
        class_names="xyz",
        sensitive={"a": rng.integers(0, 3, 30)},
    )
    module = mlp((3,), 3, hidden=4)
    names = set(PROBES)
    assert base.EVALUATION_BATCH > 30
    whole = probe(SerialEngine(module, data.clients), to_vector(module), NO_BUFFERS, [0], names)
    monkeypatch.setattr("udjfl.engine.base.EVALUATION_BATCH", 7)
    parts = probe(SerialEngine(module, data.clients), to_vector(module), NO_BUFFERS, [0], names)
    assert set(whole) == names == set(parts)
    for name in names:
        torch.testing.assert_close(whole[name], parts[name], rtol=1e-5, atol=1e-6)


def test_each_client_may_be_probed_at_its_own_model() -> None:
    data = two_clients()
    engine = StackedEngine(logistic((1,), 2), data.clients)
    own = torch.tensor([[0.3, -0.7, 0.2, 0.1], [0.0, 0.5, 0.0, 0.0]])
    together = probe(engine, own, NO_BUFFERS, [0, 1], {"losses", "gradients"})
    for index in (0, 1):
        alone = probe(engine, own[index], NO_BUFFERS, [index], {"losses", "gradients"})
        assert torch.equal(together["losses"][index], alone["losses"][0])
        assert torch.equal(together["gradients"][index], alone["gradients"][0])


def test_dropout_is_off_while_probing() -> None:
    engine = SerialEngine(nn.Sequential(nn.Linear(1, 2), nn.Dropout(0.9)), two_clients().clients)
    vector = torch.tensor([0.3, -0.7, 0.2, 0.1])
    first, second = (
        probe(engine, vector, NO_BUFFERS, [0, 1], {"losses", "gradients"}) for _ in range(2)
    )
    assert torch.equal(first["losses"], second["losses"])
    assert torch.equal(first["gradients"], second["gradients"])


# --- scores ---


def held_out_clients() -> tuple[Client, ...]:
    """The two clients with held-out examples: a has classes 0, 0, 1, b has class 1."""
    parts = ([[1.5], [2.5], [-1.5]], [0, 0, 1]), ([[3.5]], [1])
    return tuple(
        replace(client, held_out=Examples(torch.tensor(x), torch.tensor(y)))
        for client, (x, y) in zip(two_clients().clients, parts, strict=True)
    )


@pytest.mark.parametrize("engine_class", [SerialEngine, StackedEngine])
def test_scores_are_of_the_train_part_if_nothing_is_held_out(engine_class: Any) -> None:
    """A model of zeros predicts class 0: one of a's four examples is, and both of b's."""
    engine = engine_class(logistic((1,), 2), two_clients().clients)
    names = {"scores", "score_sizes", "accuracies"}
    found = probe(engine, torch.zeros(4), NO_BUFFERS, [0, 1], names)
    assert found["scores"].tolist() == [0.25, 1.0]
    assert found["score_sizes"].tolist() == [4, 2]
    assert torch.equal(found["scores"], found["accuracies"])


@pytest.mark.parametrize("engine_class", [SerialEngine, StackedEngine])
def test_scores_are_of_held_out_examples_where_there_are_some(engine_class: Any) -> None:
    """Class 0 is right for two of a's three held-out examples and none of b's."""
    engine = engine_class(logistic((1,), 2), held_out_clients())
    names = {"scores", "score_sizes", "accuracies"}
    found = probe(engine, torch.zeros(4), NO_BUFFERS, [0, 1], names)
    assert found["scores"].tolist() == pytest.approx([2 / 3, 0.0])
    assert found["score_sizes"].tolist() == [3, 1]
    assert found["accuracies"].tolist() == [0.25, 1.0]  # of the train part, as ever
    assert {found[name].dtype for name in names} == {torch.float64}


def test_scores_of_some_clients_in_any_order() -> None:
    engine = SerialEngine(logistic((1,), 2), held_out_clients())
    for indices, scores, sizes in (([1], [0.0], [1]), ([1, 0], [0.0, 2 / 3], [1, 3])) * 2:
        found = probe(engine, torch.zeros(4), NO_BUFFERS, indices, {"scores", "score_sizes"})
        assert found["scores"].tolist() == pytest.approx(scores)
        assert found["score_sizes"].tolist() == sizes


def test_each_client_may_be_scored_with_its_own_model() -> None:
    """Weights of 0 and biases (0, 1): class 1, right for one of a's three and for b's only one."""
    engine = SerialEngine(logistic((1,), 2), held_out_clients())
    own = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    scores = probe(engine, own, NO_BUFFERS, [0, 1], {"scores", "score_sizes"})
    assert scores["scores"].tolist() == pytest.approx([1 / 3, 0.0])
    assert scores["score_sizes"].tolist() == [3, 1]
    swapped = probe(engine, own.flip(0), NO_BUFFERS, [0, 1], {"scores"})
    assert swapped["scores"].tolist() == pytest.approx([2 / 3, 1.0])


@pytest.mark.parametrize("name", ["scores", "score_sizes"])
def test_scores_and_their_sizes_can_be_requested_alone(name: str) -> None:
    engine, zeros = zero_engine()
    assert set(probe(engine, zeros, NO_BUFFERS, [0, 1], {name})) == {name}


def test_held_out_examples_are_not_trained_on() -> None:
    """Losses, gradients and sizes are of the train part alone."""
    plain, split = (
        SerialEngine(logistic((1,), 2), clients)
        for clients in (two_clients().clients, held_out_clients())
    )
    assert split.sizes == plain.sizes
    vector, names = torch.tensor([0.3, -0.7, 0.2, 0.1]), {"losses", "gradients"}
    found, expected = (probe(e, vector, NO_BUFFERS, [0, 1], names) for e in (split, plain))
    for name in names:
        assert torch.equal(found[name], expected[name])


def test_every_probe_but_losses_is_an_extra_a_method_can_declare() -> None:
    assert set(PROBES) - {"losses"} <= set(EXTRAS)

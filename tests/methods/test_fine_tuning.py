"""FedAvg, then fine-tuning, by hand and against both of its parts."""

from __future__ import annotations

import torch
from method_helpers import two_clients
from small_runs import make_federation, model_bytes, train_briefly

from udjfl.methods import Setup
from udjfl.methods.fine_tuning import FineTuning
from udjfl.models import to_vector


def test_three_rounds_by_hand() -> None:
    """The last half of three rounds, rounded to two, is alone."""
    rule = FineTuning(share=0.5, weights="uniform")
    model = torch.tensor([1.0, 1.0], dtype=torch.float64)
    state = rule.init(Setup(["a", "b"], torch.ones(2), model, rounds=3))
    assert rule.initial_models(state, torch.tensor([0, 1])) is None
    state, step, _ = rule.aggregate(state, two_clients(model=model, round=1))
    assert step.tolist() == [0.5, 1.0]
    model = model - step
    for number in (2, 3):
        own = rule.initial_models(state, torch.tensor([1]))
        # In the first round alone clients begin at the server's model, then at their own.
        assert own is None if number == 2 else own.tolist() == [[0.5, -2.0]]
        state, step, _ = rule.aggregate(state, two_clients(model=model, round=number))
        assert not step.any()
    assert state["models"].tolist() == [[-1.5, 0.0], [0.5, -4.0]]


def test_the_common_model_is_fedavgs_before_the_last_rounds() -> None:
    federation = make_federation()
    tuned = train_briefly(federation, "fine-tuning:share=0.4", rounds=5)
    assert model_bytes(tuned) == model_bytes(train_briefly(federation, rounds=3))


def test_tuned_models_are_those_that_clients_report_in_the_round_after_fedavg() -> None:
    """One round alone: FedAvg's model minus the update that FedAvg's next round would average."""
    federation = make_federation()
    tuned = train_briefly(federation, "fine-tuning:share=0.1", rounds=4)
    sizes = torch.tensor(federation.sizes, dtype=torch.float64)
    models = torch.stack([to_vector(tuned.model_for(name)) for name in federation.ids]).double()
    average = (sizes / sizes.sum()) @ models
    following = to_vector(train_briefly(federation, rounds=4).model).double()
    torch.testing.assert_close(average, following, rtol=1e-5, atol=1e-6)


def test_clients_that_are_not_asked_keep_the_common_model() -> None:
    federation = make_federation()
    tuned = train_briefly(federation, "fine-tuning", rounds=4, participation=0.34)
    same = [
        torch.equal(to_vector(tuned.model_for(name)), to_vector(tuned.model))
        for name in federation.ids
    ]
    assert sorted(same) == [False, True, True]

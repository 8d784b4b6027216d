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


def test_updates_are_averaged_by_size_until_clients_go_on_alone() -> None:
    """Sizes 1 and 3. Of two rounds one is alone, however small its share of them."""
    rule, model = FineTuning(share=0.01), torch.tensor([1.0, 1.0], dtype=torch.float64)
    state = rule.init(Setup(["a", "b"], torch.ones(2), model, rounds=2))
    state, step, said = rule.aggregate(state, two_clients(model=model, round=1))
    assert step.tolist() == [0.25, 1.5]
    assert said["weight"].tolist() == [0.25, 0.75]
    assert said["alone"].tolist() == 0.0
    state, step, said = rule.aggregate(state, two_clients(model=model, round=2))
    assert step.tolist() == [0.0, 0.0]
    assert said["alone"].tolist() == 1.0
    assert all(value.dtype == torch.float64 for value in said.values())


def test_only_weights_by_size_need_sizes() -> None:
    assert FineTuning().needs == {"model", "sizes"}
    assert FineTuning(weights="uniform").needs == {"model"}


def test_all_share_the_servers_model_until_they_have_their_own() -> None:
    rule, model = FineTuning(), torch.tensor([1.0, 1.0], dtype=torch.float64)
    start = rule.init(Setup(["a", "b"], torch.ones(2), model, rounds=1))
    moved = torch.tensor([3.0, 4.0], dtype=torch.float64)
    common = rule.served(start, moved)
    assert common.models.tolist() == [[3.0, 4.0]]
    assert common.shares.tolist() == [[1.0], [1.0]]
    after, _, _ = rule.aggregate(start, two_clients(model=moved, round=1))
    own = rule.served(after, moved)
    assert own.models.tolist() == [[2.0, 4.0], [3.0, 2.0]]
    assert own.shares.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert common.shares.dtype == own.shares.dtype == torch.float64
    assert {name: value.dtype for name, value in after.items()} == {
        name: value.dtype for name, value in start.items()
    }


def test_a_note_tells_which_model_global_accuracy_is_of() -> None:
    (note,) = FineTuning().notes(Setup(["a"], torch.ones(1), torch.zeros(1)))
    assert note.startswith("FedAvg, fine-tuned: each client is served a model of its own")
    assert "global accuracy is that of the common model" in note


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

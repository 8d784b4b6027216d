"""E2FL: the vote by hand and against a slow one, groups, exact new scores, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, first_round, make_reports
from safetensors.torch import load, save
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import nn

from udjfl.errors import SettingsError
from udjfl.methods.base import Reports, Setup
from udjfl.methods.e2fl import E2FL, cluster, ranking, rankings
from udjfl.models import mlp, to_vector, trainable
from udjfl.models.masked import MaskedLinear

LEVELS = [-0.5, 0.0, 0.25, 1.0]


def reports_of(scores: Any, model: Any, **changes: Any) -> Reports:
    """Return reports of clients that end with these scores, starting from the model."""
    model, scores = (torch.as_tensor(v, dtype=torch.float64) for v in (model, scores))
    return make_reports(model - scores, model=model, **{"sizes": [1] * len(scores), **changes})


def elected(
    rule: E2FL, reports: Reports, layers: Any = (), n_clients: int | None = None
) -> torch.Tensor:
    """Return the new scores, when the received model is also the initial one."""
    assert reports.model is not None
    n = len(reports) if n_clients is None else n_clients
    state = rule.init(Setup([f"c{i}" for i in range(n)], torch.ones(n), reports.model, layers))
    return reports.model - rule.aggregate(state, reports)[1]


def slow_vote(rankings: list[list[int]], received: list[int]) -> list[int]:
    """Rank by the sum of ranks, ties in the received order: one edge at a time."""
    edges = range(len(received))
    order = sorted(edges, key=lambda e: (sum(r[e] for r in rankings), received[e]))
    return [order.index(e) for e in edges]


def ranks(scores: list[float]) -> list[int]:
    order = sorted(range(len(scores)), key=lambda e: (scores[e], e))
    return [order.index(e) for e in range(len(scores))]


# --- by hand ---


def test_a_vote_of_two():
    # Ranks (3, 0, 1, 2) and (1, 0, 3, 2): sums 4, 0, 4, 4. Received ranks 0, 1, 2, 3 decide the
    # tie: 1, 0, 2, 3.
    reports = reports_of([[9.0, -9.0, 0.0, 1.0], [2.0, 1.0, 7.0, 3.0]], LEVELS)
    assert elected(E2FL(groups=1), reports).tolist() == [0.0, -0.5, 0.25, 1.0]
    rule = E2FL(groups=1, keep=0.5)
    state, _, diagnostics = first_round(rule, reports)
    assert diagnostics["weight"].tolist() == [0.5, 0.5]
    assert diagnostics["group"].tolist() == [0, 0]
    # Kept are edges 2 and 3; the first client keeps 0 and 3, the second 2 and 3.
    assert diagnostics["mask_overlap"].tolist() == [0.5, 1.0]
    assert diagnostics["mask_overlap"].dtype == torch.float64
    assert torch.equal(state["levels"], torch.tensor(LEVELS, dtype=torch.float64))


def test_groups_count_alike_whatever_their_size():
    # Two edges. Two clients want (0, 1), one wants (1, 0), received is (1, 0). As one group the two
    # win; as two groups it is a tie, and the received order stands.
    scores, received = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]], [0.5, 0.25]
    assert elected(E2FL(groups=1), reports_of(scores, received)).tolist() == [0.25, 0.5]
    rule = E2FL(groups=("a", "a", "b"))
    assert elected(rule, reports_of(scores, received)).tolist() == [0.5, 0.25]
    _, _, diagnostics = rule.aggregate(
        rule.init(Setup.of(reports_of(scores, received))), reports_of(scores, received)
    )
    assert diagnostics["weight"].tolist() == [0.25, 0.25, 0.5]
    assert diagnostics["group"].tolist() == [0, 0, 1]


def test_the_vote_is_taken_in_groups_first():
    # Group a: ranks (0,1,2), (0,1,2), (2,0,1): sums 2, 2, 5 -> (0,1,2) by the received order. Group
    # b: (1,2,0). Sums over groups: 1, 3, 2 -> (0, 2, 1). Weights 1/6 and 1/2 on the ranks
    # themselves would give 7/6, 10/6, 5/6.
    scores = [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [2.0, 0.0, 1.0], [1.0, 2.0, 0.0]]
    assert elected(
        E2FL(groups=("a", "a", "a", "b")), reports_of(scores, [0.0, 1.0, 2.0])
    ).tolist() == [0.0, 2.0, 1.0]


def test_rankings_are_whole_numbers_in_half_the_memory():
    received, deltas = torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    found = rankings(received, deltas)
    assert found.tolist() == [[0, 1], [1, 0]]
    assert found.dtype == torch.int32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 1, 40, 70_000])  # a long one is sorted in another way
def test_ranks_are_those_of_a_stable_sort(size, dtype):
    values = (
        torch.randn(size, generator=torch.Generator().manual_seed(0)).mul(50).round() / 50
    )  # with ties
    scores = torch.where(values.abs() < 0.1, values * 0, values).to(dtype)  # 0.0 and -0.0 are equal
    assert torch.equal(
        ranking(scores).argsort(), torch.from_numpy(scores.numpy().argsort(kind="stable"))
    )


def test_scores_far_below_one_are_told_apart():
    scores = torch.tensor([2e-10, -1e-10, 1e-10, -2e-10])
    assert ranking(scores).tolist() == [3, 1, 2, 0]


def test_layers_vote_apart():
    # In one piece the second layer's scores, all larger, could not mix with the first's; they keep
    # their own levels.
    reports = reports_of([[3.0, 1.0, 9.0, 8.0]], [-1.0, 1.0, 5.0, 6.0])
    assert elected(E2FL(), reports, layers=(2, 2)).tolist() == [1.0, -1.0, 6.0, 5.0]
    reports = reports_of([[30.0, 10.0, 9.0, 8.0]], [-1.0, 1.0, 5.0, 6.0])
    assert elected(E2FL(), reports, layers=(2, 2)).tolist() == [1.0, -1.0, 6.0, 5.0]
    assert elected(E2FL(), reports).tolist() == [6.0, 5.0, 1.0, -1.0]


def test_scores_come_from_the_initial_ones_in_every_round():
    # Round 2 receives other numbers than round 1 left; the levels handed out are still the initial
    # ones.
    rule = E2FL(groups=1)
    state = rule.init(Setup(["c0"], torch.ones(1), torch.tensor(LEVELS)))
    model = torch.tensor([7.0, 5.0, 6.0, 4.0])
    _, step, _ = rule.aggregate(state, Reports(["c0"], torch.zeros(1, 4), model=model, round=2))
    assert (model - step).tolist() == [1.0, 0.0, 0.25, -0.5]


# --- identities ---


def scores_of(n: int, size: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@EXAMPLES
@given(data=st.data(), n=st.integers(1, 6), labelled=st.booleans())
def test_properties(data, n, labelled):
    """As the slow vote; the order of clients and increasing functions of scores do not count."""
    row = st.lists(st.integers(-4, 4), min_size=5, max_size=5)
    scores, model = data.draw(st.lists(row, min_size=n, max_size=n)), data.draw(row)
    labels = (
        data.draw(st.lists(st.sampled_from("ab"), min_size=n, max_size=n))
        if labelled
        else ["a"] * n
    )
    order = data.draw(st.permutations(range(n)))
    rule = E2FL(groups=tuple(labels))
    new = elected(rule, reports_of(scores, model), layers=(2, 3))

    expected: list[int] = []
    for part in (slice(0, 2), slice(2, 5)):
        received = ranks(model[part])
        rankings = [
            slow_vote(
                [ranks(s[part]) for s, label in zip(scores, labels, strict=True) if label == g],
                received,
            )
            for g in sorted(set(labels))
        ]
        expected += [sorted(model[part])[rank] for rank in slow_vote(rankings, received)]
    assert new.tolist() == expected

    shuffled = reports_of(
        [scores[i] for i in order], model, ids=[f"c{i}" for i in order], client_indices=order
    )
    assert torch.equal(new, elected(rule, shuffled, layers=(2, 3)))
    stretched = [[s**3 * (i + 1) + i for s in row] for i, row in enumerate(scores)]
    assert torch.equal(new, elected(rule, reports_of(stretched, model), layers=(2, 3)))


@pytest.mark.parametrize("groups", [1, 2, 3, ("a", "b", "b", "a")])
def test_clients_that_agree_are_followed_and_no_update_is_no_step(groups):
    model = scores_of(1)[0]
    wanted = scores_of(1, seed=1)[0]
    new = elected(E2FL(groups=groups), reports_of(wanted.repeat(4, 1), model))
    assert torch.equal(new.argsort(), wanted.argsort())
    torch.testing.assert_close(
        new.sort().values, model.sort().values
    )  # to rounding: these scores are not on the grid
    assert torch.equal(elected(E2FL(groups=groups), reports_of(model.repeat(4, 1), model)), model)


def test_no_update_is_no_step_even_with_equal_scores():
    model = [0.5, 0.0, 0.5, 0.0, 0.5]
    assert elected(E2FL(), reports_of([model] * 3, model)).tolist() == model


def test_a_change_that_passes_no_neighbour_is_lost():
    nearly = [-0.01, 0.24, 0.99, 1.0]  # from (-0.5, 0, 0.25, 1)
    assert elected(E2FL(groups=1), reports_of([nearly] * 2, LEVELS)).tolist() == LEVELS


def test_duplicating_the_members_of_a_group_changes_nothing():
    scores, model = scores_of(4), scores_of(1, seed=1)[0]
    few = elected(E2FL(groups=("a", "a", "b", "b")), reports_of(scores, model))
    doubled = reports_of(torch.cat([scores, scores[2:], scores[2:]]), model)
    many = elected(E2FL(groups=("a", "a", *["b"] * 6)), doubled)
    assert torch.equal(few, many)
    assert not torch.equal(few, elected(E2FL(groups=1), doubled))


# --- groups that are found ---


def test_similar_rankings_are_found():
    # Two camps of three and two; within a camp two neighbouring edges are swapped.
    up, down = list(range(8)), list(range(7, -1, -1))
    scores = [up, [1, 0, *up[2:]], down, [*up[:6], 7, 6], [*down[:6], 0, 1]]
    reports = reports_of(scores, [v / 8 for v in up])
    rule = E2FL(groups=2)
    _, _, diagnostics = first_round(rule, reports)
    assert diagnostics["group"].tolist() == [0, 0, 1, 0, 1]
    assert torch.equal(
        elected(rule, reports), elected(E2FL(groups=("x", "x", "y", "x", "y")), reports)
    )


def test_a_layer_counts_by_scaled_ranks_not_by_its_size_squared():
    # Swapping the only two is a whole turn, two swaps among six are little: clients 0 and 1 belong
    # together. Counted in ranks they would not: 0 is at 1 + 1 from 2, and at 1 + 1 + 1 + 1 from 1.
    small, large = (
        [[0, 1], [0, 1], [1, 0]],
        [[0, 1, 2, 3, 4, 5], [1, 0, 2, 3, 5, 4], [0, 1, 2, 3, 4, 5]],
    )
    reports = reports_of(
        [a + b for a, b in zip(small, large, strict=True)], [0.0, 1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    )
    rule = E2FL(groups=2)
    state = rule.init(Setup(reports.ids, reports.sizes, reports.model, (2, 6)))  # type: ignore[arg-type]
    assert rule.aggregate(state, reports)[2]["group"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_groups_are_those_of_average_linkage_over_scaled_ranks(count):
    """Against scipy's own distances between the clients' ranks, each layer's from 0 to 1."""
    sizes, generator = (2, 3, 1, 6), torch.Generator().manual_seed(0)
    for _ in range(20):
        layers = [
            torch.stack([torch.randperm(size, generator=generator) for _ in range(9)])
            for size in sizes
        ]
        scaled = torch.cat([layer / max(1, layer.shape[1] - 1) for layer in layers], dim=1)
        tree = linkage(pdist(scaled.numpy()), method="average")
        expected = fcluster(tree, t=count, criterion="maxclust").tolist()
        assert cluster([layer.int() for layer in layers], count) == [str(n) for n in expected]


def test_groups_are_found_among_clients_that_nearly_agree():
    # Of forty edges the first two, or the last two, are swapped: distances far below 1.
    up = list(range(40))
    first, last = [1, 0, *up[2:]], [*up[:38], 39, 38]
    layer = torch.tensor([first, last, first, last, last], dtype=torch.int32)
    labels = cluster([layer], 2)
    assert labels[0] == labels[2] != labels[1] == labels[3] == labels[4]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_more_groups_than_clients_are_as_many_as_clients(n):
    reports = reports_of(scores_of(n), scores_of(1, seed=1)[0])
    rule = E2FL(groups=5)
    _, _, diagnostics = first_round(rule, reports)
    assert diagnostics["group"].tolist() == list(range(n))


# --- partial participation ---


def test_labels_go_by_client_index_not_by_row():
    scores, model = scores_of(3), scores_of(1, seed=1)[0]
    rule = E2FL(groups=("a", "b", "b", "x", "a"))
    some = reports_of(scores, model, ids=["c1", "c2", "c4"], client_indices=[1, 2, 4])
    assert torch.equal(
        elected(rule, some, n_clients=5),
        elected(E2FL(groups=("b", "b", "a")), reports_of(scores, model)),
    )
    # Clients 1, 2 and 4: four labels are too few as well.
    for labels in ("ab", "abba"):
        with pytest.raises(SettingsError, match=f"groups has {len(labels)} labels"):
            E2FL(groups=tuple(labels)).aggregate(
                {"levels": model, "layers": torch.tensor([9])}, some
            )


# --- with the masked network ---


def test_new_scores_are_exact_round_after_round():
    # The server subtracts the step in float32; what is left must be the initial scores in another
    # order, to the bit.
    rule = E2FL()
    module = rule.adapt(mlp((28, 28), 10), torch.Generator().manual_seed(0))
    assert isinstance(module[1], MaskedLinear)
    model, layers = to_vector(module), [p.numel() for p in trainable(module)]
    state = rule.init(Setup(["a", "b", "c"], torch.ones(3), model, layers))
    initial = [part.sort().values for part in model.split(layers)]
    noise = torch.Generator().manual_seed(1)
    for t in range(1, 4):
        received = model
        deltas = 0.02 * torch.randn(3, len(model), generator=noise)
        state, step, diagnostics = rule.aggregate(
            state, Reports(["a", "b", "c"], deltas, model=model, round=t)
        )
        model = model - step
        assert step.dtype == torch.float32
        assert all(
            torch.equal(part.sort().values, levels)
            for part, levels in zip(model.split(layers), initial, strict=True)
        )
        assert not torch.equal(model, received)
        assert ((diagnostics["mask_overlap"] > 0.5) & (diagnostics["mask_overlap"] < 1)).all()
    _, step, _ = rule.aggregate(state, Reports(["a"], torch.zeros(1, len(model)), model=model))
    assert not step.any()


def test_state_is_saved_as_it_is_and_stays():
    rule, reports = E2FL(), reports_of(scores_of(3), scores_of(1, seed=1)[0])
    start = rule.init(Setup.of(reports))
    state, _, _ = rule.aggregate(start, reports)
    loaded = load(save(state))
    assert loaded.keys() == start.keys()
    assert all(torch.equal(loaded[name], start[name]) for name in start)


def test_keep_reaches_the_network():
    module = E2FL(keep=0.25).adapt(nn.Linear(4, 2), torch.Generator().manual_seed(0))
    assert (module(torch.eye(4)) != 0).sum() == 2
    network, lost = E2FL().notes(Setup.of(reports_of(scores_of(2), scores_of(1)[0])))
    assert network.startswith("E2FL trains which weights of a fixed random network are kept")
    assert lost.startswith("E2FL loses changes too small to reorder scores")


# --- parameters ---


@pytest.mark.parametrize(
    ("given", "means"),
    [("3", 3), ("a,b,a", ("a", "b", "a")), ("a; b", ("a", "b")), ([0, 1], ("0", "1")), (2, 2)],
)
def test_groups_are_a_number_or_labels(given, means):
    assert E2FL(groups=given).groups == means


def test_a_federation_that_does_not_fit_is_refused():
    reports = reports_of(scores_of(3), scores_of(1)[0])
    with pytest.raises(SettingsError, match="groups has 2 labels for 3 clients"):
        E2FL(groups=("a", "b")).init(Setup.of(reports))
    with pytest.raises(SettingsError, match="layers add up to 7"):
        E2FL().init(Setup(["a"], torch.ones(1), torch.zeros(9), (3, 4)))
    with pytest.raises(SettingsError, match="needs the server's model"):
        E2FL().aggregate(E2FL().init(Setup.of(reports)), Reports(["a"], torch.zeros(1, 9)))

"""CFFL: reputations, uploads and downloads by hand, hazards of the authors' code, absences."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, make_reports

from udjfl.errors import SettingsError
from udjfl.methods.base import Reports, Setup
from udjfl.methods.cffl import CFFL

close = partial(close, rtol=1e-7, atol=1e-7)

START = [10.0, 20.0, 30.0]
F64 = torch.float64
# With memory 0 and accuracies 0.8 and 0.4 the shares are 2/3 and 1/3; alpha = 3 ln 2 makes sinh(2
# ln 2) : sinh(ln 2) = (4 - 1/4) : (2 - 1/2) = 5 : 2, so that c = 5/7 and 2/7.
HAND: dict[str, Any] = {"alpha": 3 * math.log(2), "memory": 0.0, "clip": 1.5, "download": "topk"}


def reports_of(deltas: Any, accuracies: Any, **changes: Any) -> Reports:
    fields = {
        "sizes": [5] * len(deltas),
        "model": torch.zeros(len(deltas[0]), dtype=F64),
        "extras": {"validation_accuracies": torch.tensor(accuracies, dtype=F64)},
    }
    return make_reports(deltas, **{**fields, **changes})


def two_clients(**changes: Any) -> Reports:
    # Changes of the clients' models: (1, 2, 0), which is clipped to (1, 1.5, 0), and (0, -1, 0.5).
    values: dict[str, Any] = {
        "deltas": [[-1.0, -2.0, 0.0], [0.0, 1.0, -0.5]],
        "accuracies": [0.8, 0.4],
        **changes,
    }
    return reports_of(**values)


def start(rule: CFFL, n: int = 2, sizes: Any = None, model: Any = START) -> dict[str, torch.Tensor]:
    sizes = [5] * n if sizes is None else sizes
    return rule.init(
        Setup([f"c{i}" for i in range(n)], torch.tensor(sizes), torch.tensor(model, dtype=F64))
    )


# --- by hand ---


def test_a_round():
    # A = (1, 1.5, 0) + (0, -1, 0.5) = (1, 0.5, 0.5). q = 3 and floor(2/5 * 3) = 1: the second
    # client gets A's largest, the 1. As all of its update is uploaded and taken back, each ends at
    # its start + its download.
    rule = CFFL(**HAND)
    state, step, diagnostics = rule.aggregate(start(rule), two_clients())
    close(step, (-1.0, -0.5, -0.5))
    close(state["models"], [[11.0, 20.5, 30.5], [11.0, 20.0, 30.0]])
    close(state["reputation"], (5 / 7, 2 / 7))
    assert state["reputable"].tolist() == [1, 1]
    close(diagnostics["downloaded"], (1.0, 1 / 3))
    close(diagnostics["reputation"], (5 / 7, 2 / 7))
    close(diagnostics["weight"], (0.5, 0.5))
    close(diagnostics["threshold"], 1 / 6)


def test_only_the_largest_part_is_uploaded():
    # A third of three: (0, 1.5, 0) and (0, -1, 0); A = (0, 0.5, 0). What was not uploaded stays in
    # the client's model: (10, 20, 30) + (1, 1.5, 0) + A - (0, 1.5, 0) and (10, 20, 30) + (0, -1,
    # 0.5) + A - (0, -1, 0).
    rule = CFFL(**HAND, theta=1 / 3)
    state, step, _ = rule.aggregate(start(rule), two_clients())
    close(step, (0.0, -0.5, 0.0))
    close(state["models"], [[11.0, 20.5, 30.0], [10.0, 20.5, 30.5]])


def test_uploads_that_clipping_made_alike_go_by_the_change_itself():
    rule = CFFL(clip=1.0, theta=0.5, download="topk")
    reports = reports_of([[-2.0, 0.0, 9.0, -5.0]], [0.5])
    _, step, _ = rule.aggregate(start(rule, 1, model=[0.0] * 4), reports)
    assert step.tolist() == [0, 0, 1, -1]


def test_at_least_one_number_is_uploaded():
    rule = CFFL(theta=0.01, clip=10.0)
    assert rule.aggregate(start(rule), two_clients())[1].count_nonzero() == 1


def test_mean_weighs_by_examples():
    # n = 1, 3: A = 1/4 (1, 1.5, 0) + 3/4 (0, -1, 0.5) = (2, -3, 3)/8. Taken back: 1/3 of the
    # first's, all of the second's. q = floor(1 * 1/3 * 3) = 1, floor(2/5 * 1 * 3) = 1: both get the
    # first of the largest, -3/8.
    rule = CFFL(**HAND, aggregation="mean")
    state, step, diagnostics = rule.aggregate(start(rule, sizes=[1, 3]), two_clients(sizes=[1, 3]))
    close(step, (-0.25, 0.375, -0.375))
    close(state["models"], [[10 + 2 / 3, 20 + 1.0 - 0.375, 30.0], [10.0, 20 - 0.375, 30.0]])
    close(diagnostics["weight"], (0.25, 0.75))


def test_reputation_weighs_by_reputation():
    # A = 5/7 (1, 1.5, 0) + 2/7 (0, -1, 0.5)
    rule = CFFL(**HAND, aggregation="reputation")
    _, step, diagnostics = rule.aggregate(start(rule), two_clients())
    close(step, (-5 / 7, -5.5 / 7, -1 / 7))
    close(diagnostics["weight"], (5 / 7, 2 / 7))


def test_weights_by_reputation_are_shares_of_those_that_report():
    # Two of four that are all alike: A is the mean of their changes.
    rule = CFFL(clip=2.0, aggregation="reputation")
    state, _, _ = rule.aggregate(start(rule, 4), reports_of([[0.0] * 3] * 4, [0.5] * 4))
    _, step, diagnostics = rule.aggregate(state, two_clients(accuracies=[0.5, 0.5], round=2))
    close(step, (-0.5, -0.5, -0.25))
    assert diagnostics["reputable"].tolist() == [1, 1]


def test_reputation_remembers():
    # Round 1: c = (5/7, 2/7) at memory 0. Then memory 1/2 and accuracies 1 : 4: c = 1/2 (5/7 + 1/5,
    # 2/7 + 4/5) = (16, 19)/35.
    rule = CFFL(**HAND)
    state, _, _ = rule.aggregate(start(rule), two_clients())
    slow = CFFL(**{**HAND, "memory": 0.5})
    x = [HAND["alpha"] * 16 / 35, HAND["alpha"] * 19 / 35]
    total = math.sinh(x[0]) + math.sinh(x[1])
    state, _, _ = slow.aggregate(state, two_clients(accuracies=[0.2, 0.8], round=2))
    close(state["reputation"], (math.sinh(x[0]) / total, math.sinh(x[1]) / total))


def test_models_to_be_scored():
    state = start(CFFL())
    reports = two_clients(model=torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    close(CFFL(**HAND).models_to_score(state, reports), [[11.0, 21.5, 30.0], [10.0, 19.0, 30.5]])
    close(
        CFFL(**HAND, theta=1 / 3).models_to_score(state, reports),
        [[1.0, 3.5, 3.0], [1.0, 1.0, 3.0]],
    )
    with pytest.raises(SettingsError, match="needs the server's model"):
        CFFL(theta=0.5).models_to_score(state, two_clients(model=None))


def test_clients_receive_and_serve_their_own_models():
    rule = CFFL(**HAND)
    state, _, _ = rule.aggregate(start(rule), two_clients())
    assert torch.equal(rule.initial_models(state, torch.tensor([1])), state["models"][1:])
    served = rule.served(state, torch.zeros(3))
    assert torch.equal(served.models, state["models"])
    assert torch.equal(served.shares, torch.eye(2, dtype=F64))
    assert served.shares.dtype == F64
    assert rule.global_model
    (note,) = rule.notes(Setup.of(two_clients()))
    assert note.startswith("CFFL: each client has a model of its own")
    assert "which none receives" in note


# --- identities ---


@pytest.mark.parametrize("download", ["topk", "random"])
def test_equal_clients_download_everything(download):
    # Every client then ends with the server's model, (10, 20, 30) + A.
    rule = CFFL(download=download, clip=1.5)
    state = start(rule, 3)
    deltas = [[1.0, 0.0, 0.5], [0.0, -1.0, 0.0], [0.25, 0.25, 0.25]]
    state, step, diagnostics = rule.aggregate(state, reports_of(deltas, [0.7] * 3))
    close(state["reputation"], [1 / 3] * 3)
    assert diagnostics["downloaded"].tolist() == [1, 1, 1]
    close(state["models"], (torch.tensor(START, dtype=F64) - step).repeat(3, 1))


def test_a_small_alpha_leaves_the_running_share():
    rule = CFFL(alpha=1e-6)
    state = start(rule)
    state, _, _ = rule.aggregate(state, two_clients())
    close(state["reputation"], (2 / 3, 1 / 3))
    state, _, _ = rule.aggregate(state, two_clients(accuracies=[0.3, 0.7]))
    close(state["reputation"], (0.8 * 2 / 3 + 0.2 * 0.3, 0.8 / 3 + 0.2 * 0.7))


def test_a_larger_alpha_is_more_unequal():
    def best(alpha: float) -> float:
        rule = CFFL(alpha=alpha, coef=0.0)
        return float(rule.aggregate(start(rule), two_clients())[0]["reputation"][0])

    assert (
        2 / 3 < best(1.0) < best(5.0) < best(20.0) < best(1e5) <= 1
    )  # at 1e5 a plain sinh is infinite


accuracy_lists = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@EXAMPLES
@given(
    accuracies=accuracy_lists,
    alpha=st.sampled_from([1e-6, 2.0, 5.0, 1e6]),
    theta=st.sampled_from([0.3, 1.0]),
    aggregation=st.sampled_from(["sum", "mean", "reputation"]),
    download=st.sampled_from(["topk", "random"]),
    data=st.data(),
)
def test_properties(accuracies, alpha, theta, aggregation, download, data):
    n = len(accuracies)
    rule = CFFL(alpha=alpha, theta=theta, aggregation=aggregation, download=download)
    number = st.floats(-3, 3, width=32)
    deltas = data.draw(st.lists(st.lists(number, min_size=4, max_size=4), min_size=n, max_size=n))
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    order = data.draw(st.permutations(range(n)))
    state = start(rule, n, sizes, [0.0] * 4)
    reports = reports_of(deltas, accuracies, sizes=sizes)
    shuffled = reports_of(
        [deltas[i] for i in order],
        [accuracies[i] for i in order],
        sizes=[sizes[i] for i in order],
        ids=[f"c{i}" for i in order],
        client_indices=order,
    )
    after, step, diagnostics = rule.aggregate(state, reports)
    again, step_again, _ = rule.aggregate(state, shuffled)
    assert torch.equal(step, step_again)
    for name, value in after.items():
        assert torch.equal(value, again[name])
        assert torch.isfinite(value).all()
        assert (value.shape, value.dtype) == (state[name].shape, state[name].dtype)
    assert all(
        torch.isfinite(value).all() and value.shape in ((), (n,)) for value in diagnostics.values()
    )
    assert after["reputation"].sum().item() == pytest.approx(1)
    assert (after["reputation"][after["reputable"] == 0] == 0).all()
    assert step.abs().max() <= n * 0.01 + 1e-12
    best = int(after["reputation"].argmax())
    assert diagnostics["downloaded"][best] == math.floor(sizes[best] / max(sizes) * 4 + 1e-9) / 4


def test_no_update_no_step():
    rule = CFFL()
    state, step, _ = rule.aggregate(start(rule), two_clients(deltas=[[0.0] * 3] * 2))
    assert not step.any()
    close(state["models"], [START] * 2)


def test_a_small_update_passes_in_proportion_and_a_large_one_is_clipped():
    rule = CFFL(clip=1.0)
    steps = [
        rule.aggregate(start(rule), two_clients(deltas=[[s, -s, 0.0]] * 2))[1]
        for s in (0.25, 0.5, 1.0, 8.0)
    ]
    close(steps[1], 2 * steps[0])
    assert torch.equal(steps[2], steps[3])


# --- hazards ---


@pytest.mark.parametrize("download", ["topk", "random"])
def test_a_client_that_earned_nothing_downloads_nothing(download):
    # 63 : 12, as sinh(3 ln 2) : sinh(ln 2): floor(12/63 * 3) = 0. The own upload is taken back all
    # the same.
    rule = CFFL(**{**HAND, "alpha": 4 * math.log(2), "download": download}, coef=0.3)
    state, _, diagnostics = rule.aggregate(start(rule), two_clients(accuracies=[0.6, 0.2]))
    close(state["reputation"], (63 / 75, 12 / 75))
    assert diagnostics["downloaded"].tolist() == [1, 0]
    close(state["models"][1], START)


def test_no_accuracy_at_all_is_equal_reputation():
    rule = CFFL()
    state, _, _ = rule.aggregate(start(rule), two_clients(accuracies=[0.0, 0.0]))
    assert state["reputation"].tolist() == [0.5, 0.5]
    # From (5, 2)/7 at memory 1/2, with equal shares: c = 1/2 (5/7 + 1/2, 2/7 + 1/2).
    state, _, _ = CFFL(**HAND).aggregate(start(rule), two_clients())
    slow = CFFL(**{**HAND, "memory": 0.5})
    state, _, _ = slow.aggregate(state, two_clients(accuracies=[0.0, 0.0], round=2))
    x = [HAND["alpha"] * 17 / 28, HAND["alpha"] * 11 / 28]
    total = math.sinh(x[0]) + math.sinh(x[1])
    close(state["reputation"], (math.sinh(x[0]) / total, math.sinh(x[1]) / total))


def test_at_a_threshold_of_zero_nobody_is_dropped():
    # The second client's reputation is 0 in floats.
    rule = CFFL(alpha=1e5, coef=0.0)
    state, _, _ = rule.aggregate(start(rule), two_clients())
    assert state["reputation"].tolist() == [1, 0]
    assert state["reputable"].tolist() == [1, 1]


def test_lost_reputation_is_lost_for_good():
    # 12/75 = 0.16 is below 1/3 of 1/2.
    rule = CFFL(**{**HAND, "alpha": 4 * math.log(2)})
    first, step, diagnostics = rule.aggregate(start(rule), two_clients(accuracies=[0.6, 0.2]))
    assert first["reputable"].tolist() == [1, 0]
    assert first["reputation"].tolist() == [1, 0]
    close(diagnostics["threshold"], 1 / 3)  # of one that is left
    close(step, (-1.0, -1.5, 0.0))  # the first client's alone
    close(first["models"][1], (10.0, 19.0, 30.5))  # its own training, clipped
    assert diagnostics["weight"].tolist() == [1, 0]
    second, step, diagnostics = rule.aggregate(first, two_clients(accuracies=[0.0, 1.0], round=2))
    assert second["reputable"].tolist() == [1, 0]
    assert second["reputation"].tolist() == [1, 0]
    assert diagnostics["downloaded"].tolist() == [1, 0]
    close(second["models"][1], (10.0, 18.0, 31.0))


def test_a_round_of_clients_without_reputation_moves_no_server():
    rule = CFFL(clip=1.0)
    state = {
        **start(rule),
        "reputable": torch.tensor([1, 0]),
        "reputation": torch.tensor([1.0, 0.0], dtype=F64),
    }
    reports = reports_of([[0.0, 1.0, -0.5]], [0.9], ids=["c1"], client_indices=[1])
    for aggregation in ("sum", "mean", "reputation"):
        after, step, diagnostics = CFFL(clip=1.0, aggregation=aggregation).aggregate(state, reports)
        assert not step.any()
        assert after["reputation"].tolist() == [1, 0]
        close(after["models"], [START, [10.0, 19.0, 30.5]])
        assert diagnostics["weight"].tolist() == [0]


def test_the_last_client_cannot_lose_its_reputation():
    rule = CFFL(coef=1.0)
    for accuracies in ([0.5, 0.5], [0.5, 0.4], [0.0, 0.0]):
        state, _, _ = rule.aggregate(start(rule), two_clients(accuracies=accuracies))
        assert state["reputable"].sum() == (1 if accuracies[0] != accuracies[1] else 2)


@pytest.mark.parametrize(("n", "present"), [(1, 1), (5, 5), (5, 3), (10, 7)])
def test_equal_clients_meet_any_threshold(n, present):
    # 3/5 of a third is a little less than 1/5 in floating point.
    rule = CFFL(coef=1.0)
    state, _, _ = rule.aggregate(start(rule, n), reports_of([[0.0] * 3] * present, [0.3] * present))
    assert state["reputable"].all()


@pytest.mark.parametrize(("alpha", "left"), [(2.0, 5), (5.0, 1)])
def test_a_steep_alpha_leaves_one_client_in_the_end(alpha, left):
    # x coth(x) at x = alpha / 5 is 1.05 and 1.31; times memory, 0.84 shrinks differences and 1.05
    # lets them grow.
    rule = CFFL(alpha=alpha)
    state = start(rule, 5)
    for t in range(1, 201):
        state, _, _ = rule.aggregate(
            state, reports_of([[0.0] * 3] * 5, [0.92, 0.91, 0.9, 0.89, 0.88], round=t)
        )
    assert state["reputable"].sum() == left
    assert state["reputable"][0] == 1


def test_ties_do_not_make_a_download_larger():
    # All coordinates of A are alike; 2/5 of 40 are 16, the first 16.
    rule = CFFL(**HAND)
    deltas = [[-1.0] * 40, [-1.0] * 40]
    state, _, _ = rule.aggregate(start(rule, model=[0.0] * 40), two_clients(deltas=deltas))
    assert state["models"].tolist() == [[2] * 40, [2] * 16 + [0] * 24]


def test_uploads_that_tie_before_clipping_go_by_position():
    rule = CFFL(theta=0.25)
    _, step, _ = rule.aggregate(start(rule, 1, model=[0.0] * 40), reports_of([[1.0] * 40], [0.5]))
    assert step.nonzero().flatten().tolist() == list(range(10))


def test_the_step_is_in_double_precision():
    rule = CFFL(clip=1.0)
    _, step, _ = rule.aggregate(start(rule), two_clients(deltas=[[0.1, 0.2, 0.3]] * 2))
    torch.testing.assert_close(step, torch.tensor([0.2, 0.4, 0.6], dtype=F64), rtol=1e-15, atol=0)


def test_the_state_before_round_one():
    state = start(CFFL())
    assert {name: value.dtype for name, value in state.items()} == {
        "models": F64,
        "reputation": F64,
        "reputable": torch.int64,
        "reported": torch.int64,
        "sizes": F64,
    }
    assert state["models"].tolist() == [START, START]


def test_the_servers_model_is_needed_only_for_a_part_of_the_upload():
    assert CFFL().needs == {"sizes", "validation_accuracies"}
    assert CFFL(theta=0.9).needs == {"sizes", "validation_accuracies", "model"}


def test_the_random_order_depends_on_the_round_alone():
    # Of 200 coordinates the second client gets 80, the same ones whatever else was drawn before,
    # others in another round.
    rule = CFFL(**{**HAND, "download": "random"})

    def downloaded(round: int) -> torch.Tensor:
        deltas = [[-1.0] * 200, [-1.0] * 200]
        state, _, _ = rule.aggregate(
            start(rule, model=[0.0] * 200), two_clients(deltas=deltas, round=round)
        )
        assert state["models"][0].count_nonzero() == 200
        return state["models"][1]

    one = downloaded(1)
    torch.rand(3)
    assert one.count_nonzero() == 80
    assert torch.equal(one, downloaded(1))
    assert not torch.equal(one, downloaded(2))


def test_the_random_order_is_the_same_in_every_version():
    # The second of two clients gets floor(2/5 * 10) = 4 of the 10 coordinates.
    rule = CFFL(**{**HAND, "download": "random"})
    reports = two_clients(deltas=[[-1.0] * 10] * 2, round=3)
    state, _, _ = rule.aggregate(start(rule, model=[0.0] * 10), reports)
    assert state["models"][1].nonzero().flatten().tolist() == [3, 5, 6, 7]


# --- partial participation ---


def test_absent_clients_keep_what_they_have():
    rule = CFFL(**HAND)
    state, _, _ = rule.aggregate(
        start(rule, 4), reports_of([[-1.0, 0.0, 0.0]] * 4, [0.9, 0.8, 0.7, 0.6])
    )
    reports = two_clients(ids=["c1", "c3"], client_indices=[1, 3], round=2)
    after, _, _ = rule.aggregate(state, reports)
    for name in ("models", "reputation", "reputable"):
        assert torch.equal(after[name][[0, 2]], state[name][[0, 2]]), name
        assert name == "reputable" or not torch.equal(after[name][[1, 3]], state[name][[1, 3]]), (
            name
        )
    # c1 and c3 go on from their own models: both downloads are less than all three numbers, the own
    # uploads are taken back.
    own = {**state, "models": torch.arange(12, dtype=F64).reshape(4, 3)}
    moved = rule.aggregate(own, reports)[0]["models"] - own["models"]
    close(moved, after["models"] - state["models"])
    # Two of four share half of the reputation: alpha is halved with it, sinh(ln 2) : sinh(ln 2 /
    # 2).
    ratio = 0.75 / math.sinh(math.log(2) / 2)
    close(after["reputation"][[1, 3]], (0.5 * ratio / (1 + ratio), 0.5 / (1 + ratio)))


def test_a_client_loses_its_reputation_by_reports_not_by_absence():
    rule = CFFL(**{**HAND, "alpha": 10.0})
    state = start(rule, 3)  # no client has any reputation yet
    state, _, _ = rule.aggregate(
        state, two_clients(ids=["c0", "c2"], client_indices=[0, 2], accuracies=[0.9, 0.1])
    )
    assert state["reputable"].tolist() == [1, 1, 0]
    close(state["reputation"], (0.5, 0.0, 0.0))  # the one who reported, of two who are left


def test_a_late_client_is_not_dropped_for_it():
    # With c = 0 the newcomer would have 0.2/3 beside the others' 0.8/3 + 0.2/3: below a third of
    # the mean.
    rule = CFFL()
    state, _, _ = rule.aggregate(start(rule, 3), reports_of([[0.0] * 3] * 2, [0.9, 0.9]))
    assert state["reported"].tolist() == [1, 1, 0]
    state, _, _ = rule.aggregate(state, reports_of([[0.0] * 3] * 3, [0.9] * 3, round=2))
    assert state["reputable"].tolist() == state["reported"].tolist() == [1, 1, 1]
    close(state["reputation"], [1 / 3] * 3)


@EXAMPLES
@given(
    attendance=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=8),
    alpha=st.sampled_from([1e-6, 2.0, 5.0]),
    memory=st.sampled_from([0.0, 0.8, 0.99]),
)
def test_clients_that_are_alike_stay_reputable_whenever_they_come(attendance, alpha, memory):
    rule = CFFL(alpha=alpha, memory=memory)
    state = start(rule, 5)
    for t, present in enumerate(map(sorted, attendance), start=1):
        ids = [f"c{index}" for index in present]
        reports = reports_of(
            [[0.0] * 3] * len(present),
            [0.9] * len(present),
            ids=ids,
            client_indices=present,
            round=t,
        )
        state, _, _ = rule.aggregate(state, reports)
        seen = state["reported"] == 1
        assert state["reputable"].all()
        close(state["reputation"][seen], [1 / 5] * int(seen.sum()))


def test_absent_clients_get_their_share_of_what_is_left():
    # Four with 1/4 each; of c0, c1 and c3, c3 is dropped. Three are left, with 1/3 each: c2 too,
    # which was away.
    rule = CFFL(**{**HAND, "alpha": 10.0})
    state, _, _ = rule.aggregate(start(rule, 4), reports_of([[0.0] * 3] * 4, [0.5] * 4))
    reports = reports_of(
        [[0.0] * 3] * 3, [0.9, 0.9, 0.0], ids=["c0", "c1", "c3"], client_indices=[0, 1, 3], round=2
    )
    state, _, _ = rule.aggregate(state, reports)
    assert state["reputable"].tolist() == [1, 1, 1, 0]
    close(state["reputation"], [1 / 3, 1 / 3, 1 / 3, 0])


def test_a_note_tells_what_reputations_are_measured_on_without_validation_data():
    setup = Setup(["c0"], torch.ones(1), torch.zeros(3), has_validation=False)
    _, note = CFFL().notes(setup)
    assert note.startswith("CFFL: the server has no data of its own")
    assert "all clients' training data taken together" in note
    assert "validation=(x, y)" in note
    assert len(CFFL().notes(Setup(["c0"], torch.ones(1), torch.zeros(3)))) == 1


# --- what is refused, and files ---


def test_single_precision_models_stay_so():
    rule = CFFL(clip=1.5)
    state = rule.init(Setup(["c0", "c1"], torch.tensor([1, 1]), torch.tensor(START)))
    reports = Reports(
        ["c0", "c1"],
        torch.ones(2, 3),
        sizes=[1, 1],
        extras={"validation_accuracies": torch.tensor([0.5, 0.5])},
    )
    after, step, _ = rule.aggregate(state, reports)
    assert (
        after["models"].dtype
        == step.dtype
        == rule.models_to_score(state, reports).dtype
        == torch.float32
    )

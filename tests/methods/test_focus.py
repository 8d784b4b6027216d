"""FOCUS: both steps by hand, its limits, empty clusters and absent clients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, first_round, make_reports

from udjfl.errors import ReportError, SettingsError
from udjfl.methods.base import Reports, Setup
from udjfl.methods.fedavg import FedAvg
from udjfl.methods.focus import Focus

close = partial(close, atol=1e-12)

LN3 = math.log(3)
F64 = torch.float64


def reports_of(deltas: Any, losses: Any, **changes: Any) -> Reports:
    extras = {"losses_of_each": torch.tensor(losses, dtype=F64)}
    return make_reports(deltas, **{"sizes": [1] * len(deltas), "extras": extras, **changes})


def two_clients(**changes: Any) -> Reports:
    # Two models of two numbers each, end to end.
    values: dict[str, Any] = {
        "deltas": [[1.0, 0.0, 4.0, 4.0], [0.0, 1.0, 1.0, -2.0]],
        "losses": [[0.0, LN3], [0.0, 0.0]],
        **changes,
    }
    return reports_of(**values)


def test_a_round():
    # E-step: 1/2 e^0 : 1/2 e^(-ln 3) = 3 : 1 for the first client, 1 : 1 for the second.
    # M-step, model 1: 3/4 : 1/2 = 3/5 (1, 0) + 2/5 (0, 1); model 2: 1/4 : 1/2 = 1/3 (4, 4) + 2/3
    # (1, -2).
    rule, reports = Focus(), two_clients()
    state, step, diagnostics = first_round(rule, reports)
    close(state["log_pi"].exp(), [[3 / 4, 1 / 4], [1 / 2, 1 / 2]])
    close(step, (0.6, 0.4, 2.0, 0.0))
    close(diagnostics["weight"], (7 / 15, 8 / 15))  # the mean of 3/5, 1/3 and of 2/5, 2/3
    close(diagnostics["share_of_model_1"], (3 / 4, 1 / 2))
    close(diagnostics["share_of_model_2"], (1 / 4, 1 / 2))
    close(diagnostics["expected_loss"], (LN3 / 4, 0.0))


def test_the_posterior_builds_up_over_rounds():
    rule, reports = Focus(), two_clients()
    state = rule.init(Setup.of(reports))
    for _ in range(2):
        state, _, _ = rule.aggregate(state, reports)
    close(state["log_pi"].exp(), [[9 / 10, 1 / 10], [1 / 2, 1 / 2]])


def test_temperature_softens():
    # At temperature 2 the first client's odds are the root of 3 : 1.
    rule, reports = Focus(temperature=2.0), two_clients()
    state, _, _ = first_round(rule, reports)
    close(state["log_pi"].exp()[0, 0] / state["log_pi"].exp()[0, 1], math.sqrt(3))


def test_one_model_is_uniform_fedavg():
    deltas = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=F64).tolist()
    reports = reports_of(deltas, [[0.3], [9.0], [0.0], [1e4], [2.0]], sizes=[1, 2, 3, 4, 5])
    rule = Focus(models=1)
    state, step, diagnostics = first_round(rule, reports)
    expected = FedAvg(weights="uniform").aggregate({}, reports)
    assert torch.equal(step, expected[1])
    assert torch.equal(diagnostics["weight"], expected[2]["weight"])
    assert state["log_pi"].tolist() == [[0.0]] * 5


def test_a_low_temperature_sends_each_client_to_its_best_model():
    # IFCA: model 1 from the first client alone, model 2 the mean of the other two.
    deltas = [[1.0, 9.0], [9.0, 2.0], [9.0, 4.0]]
    reports = reports_of(deltas, [[0.1, 0.2], [0.5, 0.4], [3.0, 0.1]])
    rule = Focus(temperature=1e-5)
    state, step, _ = first_round(rule, reports)
    close(step, (1.0, 3.0))
    close(state["log_pi"].exp(), [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])


def test_models_that_are_alike_stay_alike():
    # Why the models must be drawn independently: clients train two equal models to equal ones, and
    # report equal losses.
    rule = Focus(models=3)
    half = torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    reports = reports_of(half.repeat(1, 3).tolist(), [[0.7] * 3, [0.1] * 3, [2.0] * 3, [0.0] * 3])
    state, step, _ = first_round(rule, reports)
    close(
        step.reshape(3, 2),
        FedAvg().aggregate({}, reports_of(half.tolist(), [[0.0]] * 4))[1].repeat(3, 1),
    )
    close(state["log_pi"].exp(), [[1 / 3] * 3] * 4)


# --- hazards ---


@pytest.mark.parametrize("worse", [30.0, 5000.0])  # e^-30 is 1e-13; e^-5000 is 0
def test_a_model_without_shares_stays_as_it_is(worse):
    reports = two_clients(losses=[[0.0, worse], [0.5, 0.5 + worse]])
    rule = Focus()
    _, step, diagnostics = first_round(rule, reports)
    close(step[:2], (0.5, 0.5))
    assert step[2:].tolist() == [0, 0]
    close(diagnostics["weight"], (0.5, 0.5))


def test_a_share_that_underflows_can_come_back():
    # e^-5000 is 0 in any float; the logarithm remembers, so the same evidence for the other side
    # restores the balance.
    rule, reports = Focus(), two_clients(losses=[[0.0, 5000.0], [0.0, 0.0]])
    state, _, _ = first_round(rule, reports)
    assert state["log_pi"].exp()[0].tolist() == [1, 0]
    state, _, _ = rule.aggregate(state, two_clients(losses=[[5000.0, 0.0], [0.0, 0.0]]))
    close(state["log_pi"].exp(), [[0.5, 0.5]] * 2)


@EXAMPLES
@given(
    data=st.data(),
    models=st.integers(1, 3),
    n=st.integers(1, 5),
    temperature=st.sampled_from([1e-4, 1.0, 50.0]),
)
def test_properties(data, models, n, temperature):
    number = st.floats(-3, 3, width=32)
    table = st.lists(
        st.lists(number, min_size=2 * models, max_size=2 * models), min_size=n, max_size=n
    )
    deltas = data.draw(table)
    losses = data.draw(
        st.lists(
            st.lists(st.floats(0, 1e6), min_size=models, max_size=models), min_size=n, max_size=n
        )
    )
    order = data.draw(st.permutations(range(n)))
    rule = Focus(models=models, temperature=temperature)
    reports = reports_of(deltas, losses)
    start = rule.init(Setup.of(reports))
    state, step, diagnostics = rule.aggregate(start, reports)
    shuffled = reports_of(
        [deltas[i] for i in order],
        [losses[i] for i in order],
        ids=[f"c{i}" for i in order],
        client_indices=order,
    )
    again, step_again, _ = rule.aggregate(start, shuffled)
    assert torch.equal(step, step_again)
    assert torch.equal(state["log_pi"], again["log_pi"])
    assert step.shape == (2 * models,)
    assert all(
        torch.isfinite(value).all() for value in (step, state["log_pi"], *diagnostics.values())
    )
    close(state["log_pi"].exp().sum(dim=1), [1.0] * n)
    assert diagnostics["weight"].sum().item() == pytest.approx(1)
    # No model leaves the box of its clients' updates (0 without shares); twice the updates are
    # twice the step.
    assert (step <= reports.deltas.amax(dim=0).clamp_min(0) + 1e-9).all()
    assert (step >= reports.deltas.amin(dim=0).clamp_max(0) - 1e-9).all()
    twice = reports_of((2 * reports.deltas).tolist(), losses)
    close(rule.aggregate(start, twice)[1], 2 * step)


# --- partial participation, serving ---


def test_absent_clients_keep_their_mixture():
    rule = Focus()
    state = {
        "log_pi": torch.log(
            torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.3, 0.7], [0.5, 0.5]], dtype=F64)
        )
    }
    after, step, _ = rule.aggregate(state, two_clients(ids=["c1", "c3"], client_indices=[1, 3]))
    assert torch.equal(after["log_pi"][[0, 2]], state["log_pi"][[0, 2]])
    close(after["log_pi"].exp()[[1, 3]], [[3 / 4, 1 / 4], [1 / 2, 1 / 2]])
    close(step, (0.6, 0.4, 2.0, 0.0))  # of those who report, as in the first test


def test_clients_are_served_their_mixtures():
    rule = Focus()
    state = {"log_pi": torch.log(torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]], dtype=F64))}
    served = rule.served(state, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert served.models.tolist() == [[1, 2], [3, 4]]
    close(served.shares, [[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]])
    assert rule.n_models == 2
    assert not rule.global_model
    assert any("no global model" in note for note in rule.notes(Setup.of(two_clients())))


# --- what is refused ---


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(SettingsError, match="models is 3"):
        Focus(models=3).init(Setup.of(two_clients()))
    with pytest.raises(SettingsError, match=r"models is 2.*\[2, 3\]"):
        Focus().aggregate(
            Focus().init(Setup.of(two_clients())), two_clients(losses=[[0.0] * 3] * 2)
        )
    with pytest.raises(ReportError, match="losses_of_each was left out"):
        Focus().aggregate(Focus().init(Setup.of(two_clients())), Reports(["a"], torch.zeros(1, 4)))


def test_clients_begin_with_equal_shares_and_notes_say_what_it_costs():
    rule = Focus(models=4)
    setup = Setup.of(make_reports([[1.0] * 8, [2.0] * 8]))
    close(rule.init(setup)["log_pi"].exp(), [[0.25] * 4] * 2)
    cost, model = rule.notes(setup)
    assert cost.startswith("FOCUS trains 4 models side by side")
    assert model.startswith("FOCUS has no global model")

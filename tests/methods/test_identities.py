"""Identities between methods: each is run on the same reports as another, or as a slow formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from method_helpers import close

from udjfl.methods.adafed import AdaFed
from udjfl.methods.adafedadam import AdaFedAdam
from udjfl.methods.afl import AFL
from udjfl.methods.base import Method, Setup
from udjfl.methods.corefed import CoreFed
from udjfl.methods.effl import EFFL
from udjfl.methods.fedavg import FedAvg
from udjfl.methods.fedeba import FedEBA
from udjfl.methods.fedfa import FedFa
from udjfl.methods.fedfair3 import FedFair3
from udjfl.methods.fedfv import FedFV
from udjfl.methods.fedmgda import FedMGDA
from udjfl.methods.focus import Focus
from udjfl.methods.mfairfl import MFairFL
from udjfl.methods.propfair import PropFair
from udjfl.methods.qffl import QFFL
from udjfl.methods.reports import Reports
from udjfl.methods.term import TERM
from udjfl.methods.udj import UDJ

close = partial(close, rtol=1e-10, atol=1e-14)

cases = pytest.mark.parametrize
SEEDS = cases("seed", range(3))


def reports_of(seed: int, n: int = 5, d: int = 7, **changes: Any) -> Reports:
    """Random reports with whatever a method may ask for."""
    rng = np.random.default_rng(seed)
    deltas = torch.as_tensor(changes.pop("deltas", rng.normal(size=(n, d))), dtype=torch.float64)
    losses = torch.as_tensor(
        changes.pop("losses", rng.uniform(0.2, 2, size=n)), dtype=torch.float64
    )
    extras = {
        "accuracies": torch.from_numpy(rng.uniform(0.1, 1, size=n)),
        "gradient_norms": torch.from_numpy(rng.uniform(0.1, 3, size=n)),
        "first_deltas": deltas / 4,
        "losses_of_each": losses[:, None],
        "squared_losses": losses.square(),
        **changes.pop("extras", {}),
    }
    values = {
        "ids": [f"c{i}" for i in range(n)],
        "deltas": deltas,
        "losses": losses,
        "sizes": torch.from_numpy(rng.integers(1, 50, size=n)),
        "uncertainties": torch.from_numpy(rng.uniform(0.1, 1, size=n)),
        "steps": torch.ones(n),
        "extras": extras,
    }
    return Reports(**{**values, **changes})


def step_of(rule: Method, reports: Reports, rounds: int = 1) -> torch.Tensor:
    """The step of the last of so many rounds with the same reports."""
    state = rule.init(Setup.of(reports))
    for _ in range(rounds):
        state, step, _ = rule.aggregate(state, reports)
    return step


def units(deltas: torch.Tensor) -> torch.Tensor:
    return deltas / deltas.norm(dim=1, keepdim=True)


# --- the plain average ---


@SEEDS
@cases(
    "rule",
    [
        QFFL(q=0.0),
        QFFL(q=0.0, lipschitz="paper"),
        QFFL(q=0.0, lipschitz=7.0),
        Focus(models=1),
        UDJ(beta=1.0, gamma=0.0),
    ],
)
def test_these_are_the_plain_average(rule, seed):
    reports = reports_of(seed)
    close(step_of(rule, reports), step_of(FedAvg(weights="uniform"), reports))


@SEEDS
def test_core_stability_at_utility_one_is_the_plain_average(seed):
    reports = reports_of(seed, losses=[2.0] * 5)
    close(
        step_of(CoreFed(M=3.0, step="paper"), reports), step_of(FedAvg(weights="uniform"), reports)
    )


@SEEDS
@cases("rule", [FedFV(), FedFV(alpha=0.0, tau=2), MFairFL(), MFairFL(similarity_rate=0.0)])
def test_without_conflicts_there_is_nothing_to_turn(rule, seed):
    reports = reports_of(
        seed, deltas=np.random.default_rng(seed).uniform(0, 1, size=(5, 7)), round=2
    )
    close(step_of(rule, reports), step_of(FedAvg(weights="uniform"), reports))


# --- the average by size, and tilting ---


@SEEDS
@cases(
    "rule",
    [
        TERM(t=0.0),
        TERM(t=1e-13),
        AFL(lr_lambda=0.0),
        AFL(lr_lambda=0.0, order="step_first"),
        FedEBA(alpha=0.0, tau=1e13, prior="size"),
        PropFair(),
        FedFair3(),
    ],
)
def test_these_are_the_average_by_size(rule, seed):
    reports = reports_of(seed)
    close(step_of(rule, reports), step_of(FedAvg(), reports))


@SEEDS
@cases("prior", ["uniform", "size"])
@cases("tau", [0.05, 0.5, 3.0])
def test_entropy_weights_are_a_tilt(prior, tau, seed):
    reports = reports_of(seed)
    close(
        step_of(FedEBA(alpha=0.0, tau=tau, prior=prior), reports),
        step_of(TERM(t=1 / tau, weights=prior), reports),
    )


# --- the worst client ---


@SEEDS
@cases(
    ("rule", "rounds"),
    [(TERM(t=1e5), 1), (FedEBA(alpha=0.0, tau=1e-5), 1), (AFL(lr_lambda=1.0), 300)],
)
def test_in_the_limit_the_worst_client_alone_counts(rule, rounds, seed):
    reports = reports_of(seed)
    close(step_of(rule, reports, rounds), reports.deltas[reports.losses.argmax()])


@SEEDS
@cases("rule", [QFFL(q=1e5), UDJ(beta=1e5, gamma=0.0, theory="rawls", cap=1.0)])
def test_a_power_of_the_loss_follows_the_worst_client_in_direction_but_not_in_length(rule, seed):
    reports = reports_of(seed)
    worst = reports.deltas[reports.losses.argmax()]
    step = step_of(rule, reports)
    close(step / step.norm(), worst / worst.norm())
    assert step.norm() < 1e-3 * worst.norm()


# --- FedMGDA+ ---


@SEEDS
def test_weights_that_may_not_move_give_the_mean_direction(seed):
    reports = reports_of(seed)
    close(
        step_of(FedMGDA(epsilon=0.0, server_lr=0.3), reports),
        0.3 * units(reports.deltas).mean(dim=0),
    )


@SEEDS
def test_free_weights_lead_downhill_for_everyone(seed):
    reports = reports_of(seed)
    step = step_of(FedMGDA(epsilon=1.0), reports)
    assert step.norm() > 0.01
    assert (units(reports.deltas) @ step >= step @ step - 1e-7).all()


# --- AdaFed ---


def orthogonalised(g: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
    """Return AdaFed's direction as published: orthogonalise, then the shortest in the hull."""
    done: list[torch.Tensor] = []
    for g_k, phi_k in zip(g, phi, strict=True):
        r = [g_k @ h / (h @ h) for h in done]
        done.append((g_k - sum(a * h for a, h in zip(r, done, strict=True))) / (phi_k - sum(r)))
    inverse = torch.stack([1 / (h @ h) for h in done])
    return (inverse / inverse.sum()) @ torch.stack(done)


@SEEDS
@cases("gamma", [0.0, 1.0, 2.0])
def test_every_client_goes_down_by_a_power_of_its_loss(gamma, seed):
    reports = reports_of(seed)
    g, phi = reports.deltas, reports.losses**gamma
    step = step_of(AdaFed(gamma=gamma, ridge=0.0, step="paper"), reports)
    close(g @ step, phi * (step @ step), rtol=1e-8)
    v = torch.linalg.pinv(g) @ phi
    close(step, v / (v @ v), rtol=1e-8)
    close(step, orthogonalised(g, phi), rtol=1e-7)


# --- the logarithm of the utility, taken by clients (PropFair) or by the server (CoreFed) ---


@SEEDS
def test_bargaining_on_the_clients_and_on_the_server_are_one_gradient(seed):
    """After one full step each, both are lr times the gradient of -sum_k p_k log(M - F_k)."""
    lr, M, rng = 0.1, 5.0, np.random.default_rng(seed)
    goals = torch.from_numpy(rng.uniform(-1, 1, size=(4, 3)))
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def losses_at(models: torch.Tensor) -> torch.Tensor:
        return (models - goals).square().sum(dim=1)

    def updates(objective: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        models = w.detach().repeat(4, 1).requires_grad_()
        return lr * torch.autograd.grad(objective(losses_at(models)).sum(), models)[0]

    one = torch.ones(4, 1, dtype=torch.float64)
    F = losses_at(w)
    assert float(F.detach().max()) < M - 0.2
    p = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64) / 10
    (expected,) = torch.autograd.grad(-(p * (M - F).log()).sum(), w)

    propfair = PropFair(M=M)
    from_clients = updates(lambda b: propfair.objective(b[:, None], one, None, None))
    plain = updates(lambda b: b)
    close(from_clients, plain / (M - F.detach())[:, None])
    common: dict[str, Any] = {"n": 4, "losses": F.detach(), "sizes": 10 * p, "lr": lr}
    close(step_of(propfair, reports_of(seed, deltas=from_clients, **common)), lr * expected)
    by_server = CoreFed(M=M, step="paper", weights="size")
    close(step_of(by_server, reports_of(seed, deltas=plain, **common)), lr * expected)


# --- AdaFedAdam ---


@SEEDS
def test_after_one_plain_step_of_the_clients_it_is_adam_on_the_weighted_gradient(seed):
    rng = np.random.default_rng(seed)
    rule = AdaFedAdam(alpha=0.0, server_lr=0.05)
    w = torch.nn.Parameter(torch.from_numpy(rng.normal(size=7)))
    adam, ours = torch.optim.Adam([w], lr=0.05), w.detach().clone()
    state = None
    for t in (1, 2, 3):
        g = torch.from_numpy(rng.normal(size=(5, 7)))
        reports = reports_of(
            seed, deltas=0.1 * g, lr=0.1, extras={"gradient_norms": g.norm(dim=1)}, round=t
        )
        state = rule.init(Setup.of(reports)) if state is None else state
        state, step, _ = rule.aggregate(state, reports)
        ours = ours - step
        w.grad = (reports.sizes / reports.sizes.sum()) @ g
        adam.step()
        close(ours, w.detach(), rtol=1e-9)


# --- conflicts ---


def projected(g: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Return the mean of updates, each projected across those it conflicts with (PCGrad)."""
    turned = []
    for k, h in enumerate(g):
        for j in order:
            if j != k and h @ g[j] < 0:
                h = h - (h @ g[j]) / (g[j] @ g[j]) * g[j]
        turned.append(h)
    return torch.stack(turned).mean(dim=0)


@SEEDS
def test_three_ways_to_remove_conflicts_are_one(seed):
    reports = reports_of(seed)
    expected = projected(reports.deltas, reports.losses.argsort().tolist())
    assert not torch.allclose(expected, reports.deltas.mean(dim=0))
    close(step_of(MFairFL(similarity_rate=0.0), reports), expected)
    # FedFV then goes back to the length of the average.
    length = reports.deltas.mean(dim=0).norm()
    close(step_of(FedFV(alpha=0.0, tau=0), reports), expected / expected.norm() * length)


# --- FedFa ---


@SEEDS
@cases("beta", [0.0, 0.5, 1.0])
def test_equal_accuracy_and_participation_are_the_plain_average(beta, seed):
    reports = reports_of(seed, extras={"accuracies": torch.full((5,), 0.7)})
    close(
        step_of(FedFa(beta=beta, gamma=0.0), reports, rounds=3),
        step_of(FedAvg(weights="uniform"), reports),
    )


# --- nothing to do, and nothing to choose ---

RULES = [
    FedAvg(),
    QFFL(),
    AFL(),
    TERM(),
    TERM(step="official"),
    PropFair(),
    FedMGDA(),
    FedFV(),
    AdaFed(),
    AdaFed(step="paper"),
    MFairFL(),
    EFFL(),
    FedFa(),
    FedFair3(),
    FedEBA(),
    CoreFed(),
    Focus(models=1),
    UDJ(theory="rawls"),
]


@cases("rule", [*RULES, AdaFedAdam()], ids=str)
def test_clients_at_rest_leave_the_model_where_it_is(rule):
    assert not step_of(rule, reports_of(0, deltas=torch.zeros(5, 7))).any()


@cases("rule", RULES, ids=str)
def test_clients_that_are_alike_are_followed(rule):
    delta = np.random.default_rng(0).normal(size=7)
    same = {
        name: torch.full((5,), 0.6, dtype=torch.float64)
        for name in ("accuracies", "squared_losses")
    }
    alike = reports_of(
        0, deltas=np.tile(delta, (5, 1)), losses=[0.8] * 5, uncertainties=[0.3] * 5, extras=same
    )
    step = step_of(rule, alike)
    assert step.norm() > 0
    close(step / step.norm(), alike.deltas[0] / alike.deltas[0].norm(), rtol=1e-7)

"""A small convex federation, and the same losses in float64, minimised by scipy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize, nnls
from scipy.special import expit

import udjfl

Array = np.ndarray
UNCERTAINTIES = {"large": 0.2, "middle": 0.5, "small": 0.3}  # in no order of size or loss

# Examples, true coefficients (three features and a constant), and the share of labels that are
# turned over. The clients want different models. Labels are drawn by chance, so that nothing is
# separable and every client's own minimum is finite. With three clients and four coefficients
# gradients are independent but on a surface, of which the Pareto set is a part.
CLIENTS = {
    "large": (60, (3.0, 1.0, 0.0, 0.5), 0.0),
    "middle": (35, (0.5, 3.0, 1.0, -0.5), 0.05),
    "small": (25, (1.0, -0.5, 2.0, 0.0), 0.10),
}


@functools.cache
def clients() -> dict[str, tuple[Array, ...]]:
    """Return train and test arrays of each client, in float32 as the engine has them."""
    rng = np.random.default_rng(3)

    def part(n: int, coefficients: tuple[float, ...], flipped: float) -> tuple[Array, Array]:
        x = rng.normal(size=(n, 3)).astype(np.float32)
        chance = expit(x @ np.array(coefficients[:3]) + coefficients[3])
        return x, ((chance > rng.uniform(size=n)) ^ (rng.uniform(size=n) < flipped)).astype(
            np.int64
        )

    return {name: (*part(*spec), *part(8, *spec[1:])) for name, spec in CLIENTS.items()}


def federation() -> udjfl.Federation:
    return udjfl.Federation.from_arrays(clients(), test=clients()["large"][2:])


def sizes() -> Array:
    return np.array([len(arrays[1]) for arrays in clients().values()], dtype=float)


def run(method: udjfl.Method, rounds: int, lr: float, loss_at: str = "auto") -> udjfl.Result:
    """Train with one full-batch step per client and round: updates are lr times exact gradients."""
    return udjfl.simulate(
        federation(),
        method,
        "logistic",
        rounds=rounds,
        lr=lr,
        momentum=0.0,
        batch_size=1000,
        local_epochs=1,
        eval_every=rounds,
        loss_at=loss_at,
        uncertainty=UNCERTAINTIES,
    )


def coefficients(result: udjfl.Result) -> Array:
    """Return the final model: three coefficients and the constant of its outputs' difference."""
    weight, bias = (
        value.numpy().astype(np.float64) for value in result.model.state_dict().values()
    )
    return np.append(weight[1] - weight[0], bias[1] - bias[0])


def last_model(method: udjfl.Method, rounds: int, lr: float, loss_at: str = "auto") -> Array:
    return coefficients(run(method, rounds, lr, loss_at))


def losses_at(w: Array) -> tuple[Array, Array]:
    """Return each client's mean cross-entropy at w [K], and its gradient [K, 4].

    That is the mean of log(1 + exp(-m)), m the margin of the true class.
    """
    losses, gradients = [], []
    for x, y, *_ in clients().values():
        signed = np.column_stack([x.astype(np.float64), np.ones(len(y))]) * (2 * y - 1)[:, None]
        margins = signed @ w
        losses.append(np.logaddexp(0, -margins).mean())
        gradients.append(-(signed * expit(-margins)[:, None]).mean(axis=0))
    return np.array(losses), np.array(gradients)


def minimiser(objective: Callable[[Array], float], slopes: Callable[[Array], Array]) -> Array:
    """Minimise objective(losses) with BFGS; `slopes` are its derivatives by the losses."""

    def both(w: Array) -> tuple[float, Array]:
        losses, gradients = losses_at(w)
        return objective(losses), slopes(losses) @ gradients

    return _check_success(
        minimize(both, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-7})
    ).x


@functools.cache
def minimax() -> tuple[float, Array]:
    """Return the smallest s for which some w has all losses at most s, and that w, by SLSQP."""
    limits = {
        "type": "ineq",
        "fun": lambda v: v[-1] - losses_at(v[:-1])[0],
        "jac": lambda v: np.column_stack([-losses_at(v[:-1])[1], np.ones(len(CLIENTS))]),
    }
    start = np.append(np.zeros(4), 1.0)
    found = minimize(
        lambda v: v[-1],
        start,
        jac=lambda v: np.eye(5)[-1],
        constraints=limits,
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    return float(_check_success(found).x[-1]), found.x[:-1]


def constrained_minimum(client: int, limited: Array, at_most: Array) -> tuple[Array, Array]:
    """Minimise one client's loss subject to limited @ losses <= at_most, by SLSQP.

    Also return the multipliers, none below zero, that make the gradient of the Lagrangian shortest.
    """
    found = minimize(
        lambda w: losses_at(w)[0][client],
        np.zeros(4),
        jac=lambda w: losses_at(w)[1][client],
        constraints={
            "type": "ineq",
            "fun": lambda w: at_most - limited @ losses_at(w)[0],
            "jac": lambda w: -limited @ losses_at(w)[1],
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    w = _check_success(found).x
    losses, gradients = losses_at(w)
    active = np.abs(limited @ losses - at_most) < 1e-6
    multipliers = np.zeros(len(limited))
    if active.any():
        multipliers[active] = nnls((limited @ gradients)[active].T, -gradients[client])[0]
    return w, multipliers


def resting_shares(w: Array) -> Array:
    """Return the shares of the clients, none below zero, whose mixture of gradients is shortest.

    nnls minimises |sum l_k g_k|^2 + (1 - sum l_k)^2 over l >= 0, which the wanted shares do up to a
    factor.
    """
    gradients = losses_at(w)[1]
    shares, _ = nnls(np.vstack([gradients.T, np.ones(len(gradients))]), np.append(np.zeros(4), 1.0))
    return shares / shares.sum()


def distance_from_pareto(w: Array) -> float:
    """Return the length of that mixture, over that of the shortest single gradient.

    0 means that no step lowers all losses.
    """
    gradients = losses_at(w)[1]
    return float(
        np.linalg.norm(resting_shares(w) @ gradients) / np.linalg.norm(gradients, axis=1).min()
    )


def _check_success(found: Any) -> Any:
    assert found.success, found.message
    return found

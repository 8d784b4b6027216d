"""What UDJ-FL starts from: fairness measure, objective, curvature, and its generalisation bound.

  Carey & Wu, "Achieving Distributive Justice in Federated Learning via Uncertainty
    Quantification", FAccT 2025 (the paper).
  Lan, Kao, Chiang & Sabharwal, "An Axiomatic Theory of Fairness in Network Resource Allocation",
    INFOCOM 2010.
  Mo & Walrand, "Fair End-to-End Window-Based Congestion Control", IEEE/ACM Transactions on
    Networking, 2000.
  Li, Sanjabi, Beirami & Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020 (q-FFL,
    where the paper's Lemma comes from).
  Mohri, Sivek & Suresh, "Agnostic Federated Learning", ICML 2019 (where the bound comes from).

No run needs these: they are here to check the paper's claims, and its step against its Lemma.
Functions take sequences or tensors, check them, and return float64 tensors without state;
gradients flow through `fairness_measure`, `alpha_fair_utility` and `objective`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.errors import SettingsError

Numbers = Sequence[float] | Tensor
"""One number per client."""


def fairness_measure(x: Numbers, q: Numbers, r: float, beta: float) -> Tensor:
    """Measure how fair the allocation x is, with importance q: Lan et al. (2010, Eq. 69).

        f = sign(-r (1 + r beta)) * [ sum_i q_i x_i^(-r beta) ]^(1/beta)        higher is fairer

    Needs x_i > 0, q_i >= 0 with at least one positive, and beta != 0. The value is 0 for every x
    when r = 0 or r beta = -1, because the sign is 0 there: that includes r = 1, beta = -1, which is
    therefore NOT Jain's index.

    Special cases, with share_i = x_i / sum(x). The function does not normalise x: pass the shares.
      r = 1 - 1/beta, q = 1, shares:   sign(1-beta) [sum share_i^(1-beta)]^(1/beta), Lan et al.'s
                                       unweighted family.
        beta = -1 (so r = 2):          1 / sum share_i^2 = N times Jain's index.
        beta -> 0:                     exp(entropy of the shares).
        beta -> infinity:              -1 / min share_i, so the fairest allocation is max-min.
      r = 2, beta = -1, q = 1/N, x_i / mean(x):  Jain's index itself, (sum x)^2 / (N sum x^2).
      r = -1, sum q = 1:               sign(1-beta) times the q-weighted power mean of order beta.
      sum q = 1, r fixed, beta -> 0:   sign(-r) prod_i x_i^(-r q_i). For r = 1 and shares this is
                                       minus the exponential of the cross-entropy of the shares
                                       under q, so it peaks where the shares equal q (where it is
                                       minus the exponential of their entropy). If sum q != 1 there
                                       is no finite, nonzero limit.
      r = 1 - 1/beta, beta != 1:       |f|^beta = sum q_i x_i^(1-beta), alpha-fairness with
                                       alpha = beta.
    """
    allocation = as_column("x", x, above=0.0)
    importance = as_column("q", q, at_least=0.0)
    check_same_length({"x": allocation, "q": importance})
    _check_finite("r", r)
    if beta == 0 or not math.isfinite(beta):
        raise SettingsError(
            f"beta is {beta}; give a finite number other than 0 (0 exists only as a limit)."
        )
    if not bool((importance > 0).any()):
        raise SettingsError("q is zero everywhere; give at least one client a positive importance.")
    # In logarithms: a small beta raises the sum to a huge power. log(0) = -inf drops q_i = 0.
    log_sum = torch.logsumexp(importance.log() - r * beta * allocation.log(), dim=0)
    # Up to rounding, because r is often computed from beta: r = -1/beta need not give -1 exactly.
    if r == 0 or math.isclose(r * beta, -1.0, rel_tol=1e-15):
        return torch.zeros((), dtype=torch.float64)
    return math.copysign(1.0, -r * (1 + r * beta)) * torch.exp(log_sum / beta)


def alpha_fair_utility(x: Numbers, alpha: float) -> Tensor:
    """Return the alpha-fair utility of each x (Mo & Walrand, 2000): x^(1-alpha)/(1-alpha).

    At alpha = 1 it is log x. Needs x_i > 0 and alpha >= 0. Maximising the sum gives the
    utilitarian allocation at alpha = 0, the proportionally fair one at 1, and tends to max-min as
    alpha grows. Continuous in alpha only up to a constant: x^(1-alpha)/(1-alpha) minus 1/(1-alpha)
    tends to log x, and constants do not move the maximiser.
    """
    allocation = as_column("x", x, above=0.0)
    if not (alpha >= 0 and math.isfinite(alpha)):
        raise SettingsError(f"alpha is {alpha}; give a finite number of at least 0.")
    return allocation.log() if alpha == 1 else allocation ** (1 - alpha) / (1 - alpha)


def objective(
    losses: Numbers, uncertainties: Numbers, exponent: float | Numbers, gamma: float
) -> Tensor:
    """Return what UDJ-FL minimises: sum_i u_i^gamma H_i^p, with the u_i normalised to sum to 1.

    `exponent` is p = r * beta, one number or one per client (desert). Needs losses >= 0 and
    uncertainties > 0. A zero loss with a negative exponent gives infinity. As p grows,
    objective^(1/p) tends to max_i H_i: the uncertainties drop out, although the paper keeps them
    (its max_i |u_i H_i|).
    """
    client_losses = as_column("losses", losses, at_least=0.0)
    shares = uncertainty_shares(uncertainties)
    power = torch.as_tensor(exponent, dtype=torch.float64)
    power = as_column("exponent", power.expand(len(client_losses)) if power.ndim == 0 else power)
    _check_finite("gamma", gamma)
    check_same_length({"losses": client_losses, "uncertainties": shares, "exponent": power})
    return (shares**gamma * client_losses**power).sum()


def curvature_bound(
    loss: float | Numbers,
    gradient_norm_squared: float | Numbers,
    lipschitz: float | Numbers,
    exponent: float | Numbers,
    weight: float | Numbers,
) -> Tensor:
    """Bound the spectral norm of the Hessian of w h^p from above, element by element:

        |p| w ( L h^(p-1) + |p-1| h^(p-2) |grad h|^2 )

    where L is a Lipschitz constant of grad h. Holds for every real p where h > 0. The paper's Lemma
    lacks the two absolute values; see `curvature_as_printed`. For p >= 1 the two are the same.

    A zero loss makes h^(p-1) infinite for p < 1 and h^(p-2) infinite for p < 2, and the bound with
    them, unless their term has a zero factor (p = 0, p = 1, a zero gradient, a zero weight): such a
    term counts as zero. Callers that need a finite number clamp the loss away from zero first. A
    very large power overflows to infinity.
    """
    return _curvature(loss, gradient_norm_squared, lipschitz, exponent, weight, magnitude=torch.abs)


def curvature_as_printed(
    loss: float | Numbers,
    gradient_norm_squared: float | Numbers,
    lipschitz: float | Numbers,
    exponent: float | Numbers,
    weight: float | Numbers,
) -> Tensor:
    """Return the paper's Lemma, letter by letter: p w ( L h^(p-1) + (p-1) h^(p-2) |grad h|^2 ).

    Not a bound for p < 1. Its proof bounds each matrix from above and then multiplies by p or p -
    1, which turns the inequality round when the factor is negative; and an upper bound on
    eigenvalues is not one on a norm. It can even be negative, and a step divided by it then goes
    uphill. Kept to show the fault and to check the paper's own step. A zero loss is as in
    `curvature_bound`, except that the two terms may be infinities of opposite sign: NaN.
    """
    return _curvature(
        loss, gradient_norm_squared, lipschitz, exponent, weight, magnitude=torch.positive
    )


def _curvature(
    loss: float | Numbers,
    gradient_norm_squared: float | Numbers,
    lipschitz: float | Numbers,
    exponent: float | Numbers,
    weight: float | Numbers,
    magnitude: Callable[[Tensor], Tensor],
) -> Tensor:
    named = {
        "loss": loss,
        "gradient_norm_squared": gradient_norm_squared,
        "lipschitz": lipschitz,
        "exponent": exponent,
        "weight": weight,
    }
    numbers = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in named.items()}
    h, gradient, L, p, w = numbers.values()
    mistakes = [
        f"{name} has a value that is negative or not a number; it must be at least 0."
        for name, value in numbers.items()
        if name != "exponent" and not bool((value >= 0).all())
    ]
    if not bool(p.isfinite().all()):
        mistakes.append("exponent has a value that is not a finite number.")
    if mistakes:
        raise SettingsError(mistakes)
    first = _times(magnitude(p) * w * L, h ** (p - 1))
    return first + _times(magnitude(p * (p - 1)) * w * gradient, h ** (p - 2))


def _times(factor: Tensor, power: Tensor) -> Tensor:
    """Multiply, with a zero factor winning over an infinite power (which would give NaN)."""
    return torch.where(factor == 0, torch.zeros_like(factor), factor * power)


def holder_bound(losses: Numbers, weights: Numbers, exponent: float) -> Tensor:
    """Bound a weighted loss by Hoelder: sum_i w_i F_i <= ||w||_p ||F||_e, with 1/p + 1/e = 1.

    `exponent` is e >= 1. At e = 1 the conjugate p is infinite and ||w||_p is the largest weight; at
    e = infinity (`math.inf`) p = 1 and ||F||_e is the largest loss. Equality: for 1 < e < infinity
    exactly when w_i is proportional to F_i^(e-1) (or one side is zero); at e = 1, when every client
    with a loss has the largest weight; at e = infinity, when every client with a weight has the
    largest loss.
    """
    client_losses = as_column("losses", losses, at_least=0.0)
    client_weights = as_column("weights", weights, at_least=0.0)
    check_same_length({"losses": client_losses, "weights": client_weights})
    return _norm(client_weights, _conjugate(exponent)) * _norm(client_losses, exponent)


@dataclass(frozen=True)
class GeneralisationBound:
    """The three terms of the bound on the true weighted loss, and their total.

    empirical   ||u||_p ||F||_e: at least the weighted training loss
    complexity  as the caller supplied it
    confidence  M sqrt( log(1/delta) sum u_i^2 / (2 n_i) )
    """

    empirical: float
    complexity: float
    confidence: float

    @property
    def total(self) -> float:
        """The bound itself."""
        return self.empirical + self.complexity + self.confidence


def generalisation_bound(
    losses: Numbers,
    uncertainties: Numbers,
    sizes: Sequence[int] | Tensor,
    exponent: float,
    loss_bound: float,
    delta: float,
    complexity: float,
) -> GeneralisationBound:
    """Bound the true loss sum_i u_i E[loss on client i], with probability at least 1 - delta, by

        ||u||_p ||F||_e  +  complexity  +  M sqrt( log(1/delta) sum_i u_i^2 / (2 n_i) )

    with 1/p + 1/e = 1. F_i is client i's mean training loss (`losses`), u the uncertainties
    normalised to sum to 1, n_i the `sizes`, e = r * beta the `exponent`, M the `loss_bound` on the
    loss of any one example.

    `complexity` is E[max over models of (true - training) weighted loss]. It depends on the class
    of models and cannot be computed from the other arguments: the caller supplies it (0 shows the
    rest, and is then no bound).

    Where the paper's appendix is loose, this is what is meant:
      - It writes the training loss as (1/n_i) [sum of losses]^e; the mean belongs inside the power,
        F_i^e.
      - It says sum F_i^e "can be written as" a maximum over ||sigma||_p <= 1. That maximum is the
        e-norm (sum F_i^e)^(1/e), not the sum of powers; the e-norm is what the bound uses.
      - It allows e >= 0. Hoelder's inequality needs e >= 1, so desert (negative exponents) has no
        bound here. e = 1, the egalitarian and utilitarian exponent, is the limit p = infinity.
      - It says "for any u"; the inequality it starts from holds for one u, fixed before the data
        are seen. A u computed from the training data themselves is outside it.
      - delta must lie between 0 and 1, and v_i in the last term is u_i.
    """
    mistakes = []
    if not (loss_bound > 0 and math.isfinite(loss_bound)):
        mistakes.append(
            f"loss_bound is {loss_bound}; give the positive number no example's loss can exceed."
        )
    if not 0 < delta < 1:
        mistakes.append(f"delta is {delta}; give a probability between 0 and 1.")
    if not (complexity >= 0 and math.isfinite(complexity)):
        mistakes.append(f"complexity is {complexity}; give a finite number of at least 0.")
    if mistakes:
        raise SettingsError(mistakes)
    client_losses = as_column("losses", losses, at_least=0.0)
    shares = uncertainty_shares(uncertainties)
    client_sizes = as_column("sizes", sizes, at_least=1.0)
    check_same_length({"losses": client_losses, "uncertainties": shares, "sizes": client_sizes})
    if bool((client_losses > loss_bound).any()):
        raise SettingsError(
            f"losses reach {float(client_losses.max())}, above loss_bound {loss_bound}; raise it."
        )
    spread = float((shares**2 / (2 * client_sizes)).sum())
    return GeneralisationBound(
        empirical=float(holder_bound(client_losses, shares, exponent)),
        complexity=float(complexity),
        confidence=loss_bound * math.sqrt(spread * math.log(1 / delta)),
    )


def _conjugate(exponent: float) -> float:
    if not exponent >= 1:
        raise SettingsError(f"exponent is {exponent}; Hoelder's inequality needs at least 1.")
    if exponent == 1:
        return math.inf
    return 1.0 if math.isinf(exponent) else exponent / (exponent - 1)


def _norm(values: Tensor, order: float) -> Tensor:
    """Return a norm, dividing by the largest value first: large orders overflow or underflow."""
    largest = values.max()
    if float(largest) == 0 or math.isinf(order):
        return largest
    return largest * ((values / largest) ** order).sum() ** (1 / order)


# --- checks ---


def as_column(
    name: str, values: Numbers, *, above: float | None = None, at_least: float | None = None
) -> Tensor:
    """Return a float64 vector, or raise an error that names the field and the first bad client."""
    column = torch.as_tensor(values, dtype=torch.float64)
    if column.ndim != 1 or len(column) == 0:
        raise SettingsError(
            f"{name} has shape {tuple(column.shape)}; give one number per client, and at least one."
        )
    wanted, good = "finite", column.isfinite()
    if above is not None:
        wanted, good = f"finite and above {above:g}", good & (column > above)
    if at_least is not None:
        wanted, good = f"finite and at least {at_least:g}", good & (column >= at_least)
    if not bool(good.all()):
        bad = int((~good).nonzero()[0])
        raise SettingsError(f"{name}[{bad}] is {float(column[bad])}; every value must be {wanted}.")
    return column


def uncertainty_shares(uncertainties: Numbers) -> Tensor:
    """Check uncertainties and normalise them to sum to 1."""
    column = as_column("uncertainties", uncertainties, above=0.0)
    return column / column.sum()


def check_same_length(columns: dict[str, Tensor]) -> None:
    """Reject columns of different lengths."""
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise SettingsError(f"Every client needs one number in each: {lengths}.")


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise SettingsError(f"{name} is {value}; give a finite number.")

"""The paper's generalisation bound for UDJ-FL, corrected, and the inequality it rests on.

Carey & Wu, FAccT 2025 (the paper).
Mohri, Sivek & Suresh, "Agnostic Federated Learning", ICML 2019 (where the bound comes from).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.methods._udj_math import Numbers, as_column, check_same_length, uncertainty_shares


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

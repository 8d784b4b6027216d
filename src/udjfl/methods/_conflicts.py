"""Conflicts between updates: which clients' updates point against each other, and how to turn them.

An update that is turned step by step against others stays a combination of the original ones,
h_k = sum_l C_kl g_l. So only the coefficients C are computed, and every inner product comes from
the Gram matrix of the g: for m clients and D parameters this costs m^2 D once and m^3 for the
steps, instead of m^2 D for each order of steps.
"""

import torch
from torch import Tensor

# Below this share of an update, what is left of it after cancellation is rounding error.
NEGLIGIBLE = 1e-6
# A target similarity of 1 cannot be reached by a finite step.
LARGEST_TARGET = 0.99
# Targets above 0 lengthen an update each time, which would overflow over hundreds of clients. An
# update that is longer than this many times its original length is shortened to that.
LONGEST = 10.0


def turn(
    gram: Tensor, order: Tensor, targets: Tensor | None = None, kept: Tensor | None = None
) -> Tensor:
    """Turn updates until they no longer conflict with others; return their coefficients C [m, m].

    Row k of C is that of h_k. Each h_k starts as g_k and meets every other g_j, in the given order
    of j. Where cos(h_k, g_j) is below the target s = targets[k, j] (0 if left out), the multiple of
    g_j is added that makes it equal:

        h_k <- h_k + a g_j
        a = -<h_k, g_j> / |g_j|^2 + s / sqrt(1 - s^2) |part of h_k across g_j| / |g_j|

    which for s = 0 is the projection across g_j. The g_j are the original ones throughout, and the
    amounts a never negative. Updates that are `kept` are not turned. Zero updates are skipped; two
    opposite ones cancel for every target.
    """
    squares = gram.diagonal()
    targets = torch.zeros_like(gram) if targets is None else targets
    aims = targets.clamp(-LARGEST_TARGET, LARGEST_TARGET)
    coefficients = torch.eye(len(gram), dtype=torch.float64)
    left = squares.clone()  # |h_k|^2
    may_turn = torch.ones(len(gram), dtype=torch.bool) if kept is None else ~kept
    for j in order[squares[order] > 0].tolist():
        square = squares[j]
        aim, dots = aims[:, j], coefficients @ gram[j]
        conflict = may_turn & (dots < aim * (left * square).sqrt())
        conflict[j] = False
        across = left - dots.square() / square  # squared; below zero only by rounding
        across = torch.where(across > NEGLIGIBLE**2 * squares, across, 0.0)
        sine_squared = 1 - aim.square()
        amounts = -dots / square + aim * (across / (sine_squared * square)).sqrt()
        coefficients[:, j] += torch.where(conflict, amounts, 0.0)
        left = torch.where(conflict, across / sine_squared, left)
        too_long = left > LONGEST**2 * squares
        if too_long.any():
            shrink = torch.where(too_long, LONGEST * (squares / left.clamp_min(1e-300)).sqrt(), 1.0)
            coefficients, left = coefficients * shrink[:, None], left * shrink.square()
    return coefficients


def cosines(gram: Tensor) -> Tensor:
    """Return the cosine [m, m] of every pair; 0 where one of the two is zero."""
    lengths = gram.diagonal().sqrt()
    products = lengths[:, None] * lengths
    return torch.where(products > 0, gram / products, 0.0).clamp(-1, 1)


def alignments(gram: Tensor, dots: Tensor, length: Tensor) -> Tensor:
    """Return the cosine [m] of each update with the step: below 0, the step is against the client.

    `dots` are the inner products of the updates with the step, `length` is the step's.
    """
    products = gram.diagonal().sqrt() * length
    return torch.where(products > 0, dots / products, 0.0).clamp(-1, 1)

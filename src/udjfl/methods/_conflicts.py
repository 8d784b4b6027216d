"""Conflicts between updates: which clients' updates point against each other, and how to turn them.

An update that is turned step by step against others stays a combination of the original ones, h_k = sum_l C_kl g_l. So only
the coefficients C are carried along, and every inner product comes from the Gram matrix of the g: for m clients and D
parameters this costs m^2 D once and m^3 for the steps, instead of m^2 D for each order of steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

# What is left of an update after cancellation counts as nothing below this share of the update: it is rounding error.
NEGLIGIBLE = 1e-6
# A target similarity of 1 cannot be reached by a finite step.
LARGEST_TARGET = 0.99
# Targets above 0 lengthen an update each time; over hundreds of clients that would overflow. Its direction is not touched.
LONGEST = 10.0


def turned(
    gram: Tensor, order: Tensor, targets: Tensor | None = None, kept: Tensor | None = None
) -> Tensor:
    """The coefficients C [m, m] of updates turned until they no longer conflict with others; row k is that of h_k.

    Each h_k starts as g_k and meets every other g_j, in the given order of j. Where cos(h_k, g_j) is below targets[k, j]
    (0 if left out), the multiple of g_j is added that makes it equal:

        h_k <- h_k + a g_j        a = -<h_k, g_j> / |g_j|^2 + s / sqrt(1 - s^2) |part of h_k across g_j| / |g_j|,  s the target

    which for s = 0 is the projection across g_j. The g_j are the original ones throughout, and the amounts a never negative.
    Updates that are `kept` are not turned. Zero updates meet nobody; two opposite ones cancel whatever the target.
    """
    squares = gram.diagonal()
    aims = (
        torch.zeros_like(gram)
        if targets is None
        else targets.clamp(-LARGEST_TARGET, LARGEST_TARGET)
    )
    coefficients = torch.eye(len(gram), dtype=torch.float64)
    left = squares.clone()  # |h_k|^2
    may_turn = torch.ones(len(gram), dtype=torch.bool) if kept is None else ~kept
    for j in order.tolist():
        square = squares[j]
        if square <= 0:
            continue
        aim, dots = aims[:, j], coefficients @ gram[j]
        turn = may_turn & (dots < aim * (left * square).sqrt())
        turn[j] = False
        across = left - dots.square() / square  # squared; below zero only by rounding
        across = torch.where(across > NEGLIGIBLE**2 * squares, across, 0.0)
        spread = 1 - aim.square()
        amounts = -dots / square + aim * (across / (spread * square)).sqrt()
        coefficients[:, j] += torch.where(turn, amounts, 0.0)
        left = torch.where(turn, across / spread, left)
        too_long = left > LONGEST**2 * squares
        if too_long.any():
            shrink = torch.where(too_long, LONGEST * (squares / left.clamp_min(1e-300)).sqrt(), 1.0)
            coefficients, left = coefficients * shrink[:, None], left * shrink.square()
    return coefficients


def cosines(gram: Tensor) -> Tensor:
    """[m, m] the cosine of every pair; 0 where one of the two is zero."""
    sizes = gram.diagonal().sqrt()
    products = sizes[:, None] * sizes
    return torch.where(products > 0, gram / products, 0.0).clamp(-1, 1)


def alignments(gram: Tensor, dots: Tensor, length: Tensor) -> Tensor:
    """[m] the cosine of each update with the step: below 0, the step leads away from where that client wants to go.

    `dots` are the inner products of the updates with the step, `length` is the step's.
    """
    products = gram.diagonal().sqrt() * length
    return torch.where(products > 0, dots / products, 0.0).clamp(-1, 1)

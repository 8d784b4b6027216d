"""Clients whose examples have a sensitive attribute."""

from __future__ import annotations

from typing import Any

import numpy as np

import udjfl


def make_grouped() -> udjfl.Federation:
    """Make two clients whose second group has labels that are mostly noise."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[Any, Any, Any]:
        group = np.arange(n) % 2
        x = rng.normal(size=(n, 4))
        return x, (x[:, :2] + 3 * group[:, None] * rng.normal(size=(n, 2))).argmax(axis=1), group

    parts = {name: (draw(60), draw(40)) for name in ("a", "b")}
    return udjfl.Federation.from_arrays(
        {name: (*train[:2], *test[:2]) for name, (train, test) in parts.items()},
        test=draw(20)[:2],
        sensitive={name: train[2] for name, (train, _) in parts.items()},
        sensitive_test={name: test[2] for name, (_, test) in parts.items()},
    )

"""Clients with odd data, and clients that lie: their influence is bounded, and they are flagged."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import udjfl
from udjfl.methods import THEORIES
from udjfl.uncertainty import Uncertainty

SETTINGS = {"rounds": 4, "hidden": 5, "uncertainty_epochs": 20, "lr": 0.1}
HONEST = ("a", "b", "c")
# The name of each odd client, and how the notes of a run begin that name it.
ODD = {
    "one-class": "One class only",
    "nearly-one-class": "Nearly all labels are one class",
    "constant": "Trained alone, no better than the class frequencies",
    "tiny": "So few examples",
    "copies": "Mostly copies of examples",
}
METHODS = [*THEORIES, *(f"udj:theory={theory}:budget=2" for theory in THEORIES)]


@functools.cache
def make_odd_federation() -> udjfl.Federation:
    """Make three honest clients of two classes, and one of each odd kind."""
    stream = np.random.default_rng(0)

    def draw(n: int, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(n) % 2
        x = stream.normal(size=(n, 4)) + 2 * (2 * y[:, None] - 1)
        return x, np.where(stream.random(n) < noise, 1 - y, y)

    parts = {name: draw(60, noise) for name, noise in zip(HONEST, (0.1, 0.2, 0.3), strict=True)}
    x, _ = draw(60)
    parts["one-class"] = (x, np.zeros(60, dtype=int))
    x, _ = draw(60)
    parts["nearly-one-class"] = (x, (np.arange(60) >= 57).astype(int))
    parts["constant"] = (1 + 1e-6 * stream.normal(size=(60, 4)), np.arange(60) % 2)
    parts["tiny"] = draw(4)
    x, y = draw(6)
    parts["copies"] = (np.repeat(x, 100, axis=0), np.repeat(y, 100))
    clients = {name: (*own, *draw(20)) for name, own in parts.items()}
    return udjfl.Federation.from_arrays(clients, test=draw(20), class_names="xy")


def largest_weights(result: udjfl.Result) -> dict[str, float]:
    """Return the largest share of a step that each client ever had."""
    rounds = range(1, SETTINGS["rounds"] + 1)  # type: ignore[call-overload]
    by_round = [result.history.by_client("weight", number) for number in rounds]
    return {name: max(float(own[name]) for own in by_round) for name in by_round[0]}  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_odd_data_have_a_bounded_influence_and_are_flagged(method: str) -> None:
    """The client of copies claims ten times as many examples as the others."""
    result = udjfl.simulate(make_odd_federation(), method, **SETTINGS)
    for name, weight in largest_weights(result).items():
        assert weight <= 0.5 * (1 + 1e-9), name
    for name, beginning in ODD.items():
        (note,) = [note for note in result.notes if note.startswith(beginning)]
        named = note.rstrip(".").split(": ")[1].split(", ")
        assert name in named
        assert not set(named) & set(HONEST)


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("method", METHODS)
def test_a_lie_about_the_uncertainty_has_a_bounded_influence_and_is_flagged(
    method: str, factor: float
) -> None:
    """One of five clients with alike data claims a tenth, or ten times, of its uncertainty."""
    stream = np.random.default_rng(1)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(n) % 2
        return stream.normal(size=(n, 4)) + 2 * (2 * y[:, None] - 1), y

    clients = {name: (*draw(40), *draw(20)) for name in "abcde"}
    federation = udjfl.Federation.from_arrays(clients, test=draw(20), class_names="xy")
    truth = dict(zip("abcde", (0.20, 0.22, 0.24, 0.26, 0.28), strict=True))
    honest = udjfl.simulate(federation, method, uncertainty=truth, **SETTINGS)
    lied = {**truth, "c": truth["c"] * factor}
    result = udjfl.simulate(federation, method, uncertainty=lied, **SETTINGS)
    assert max(largest_weights(result).values()) <= 0.5 * (1 + 1e-9)
    (note,) = [note for note in result.notes if "an error or a lie" in note]
    assert note.endswith(": c.")
    assert not [note for note in honest.notes if "an error or a lie" in note]


def test_lies_stand_out_only_among_three_or_more() -> None:
    assert Uncertainty("given", {"a": 0.01, "b": 0.3}).far == ()
    assert Uncertainty("given", {"a": 0.01, "b": 0.3, "c": 9.0}).far == ("a", "c")
    assert Uncertainty("given", {"a": 0.06, "b": 0.3, "c": 1.5}).far == ()
    assert Uncertainty("paper", {"a": 0.01, "b": 0.3, "c": 9.0}).far == ()
    assert Uncertainty("given", {"a": 0.01, "b": 0.3, "c": float("nan"), "d": 0.3}).far == ("a",)

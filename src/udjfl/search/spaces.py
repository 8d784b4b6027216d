"""The points that a search may choose from: for each theory of UDJ-FL, and for other methods.

A family is a method with dimensions; a place in it is a number from 0 to 1 for each. Ranges reach
well beyond the defaults on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from udjfl.methods import UDJ, Method
from udjfl.methods import method as build_method
from udjfl.search.point_runs import point_name

DIGITS = 3  # significant digits of a chosen number: more would pretend to know more


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, evenly spread, or evenly in its logarithm."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, position: float) -> float:
        """Return the number at a position from 0 to 1."""
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        number = low + position * (high - low)
        number = float(f"{math.exp(number) if self.log else number:.{DIGITS}g}")
        return round(number) if self.whole else number

    def find(self, number: float) -> float:
        """Return the position of a number, the nearest end for one outside."""
        inside = min(max(number, self.low), self.high)
        low, high, here = (
            math.log(end) if self.log else end for end in (self.low, self.high, inside)
        )
        return (here - low) / (high - low)


@dataclass(frozen=True)
class OneOf:
    """One of several values."""

    values: tuple[Any, ...]

    def at(self, position: float) -> Any:
        """Return the value at a position from 0 to 1."""
        return self.values[min(int(position * len(self.values)), len(self.values) - 1)]

    def find(self, value: Any) -> float:
        """Return the position of a value: the middle of its part, or of all for another value."""
        if value not in self.values:
            return 0.5
        return (self.values.index(value) + 0.5) / len(self.values)


Dimension = Range | OneOf


@dataclass(frozen=True)
class Family:
    """A method, the parameters that are fixed, and the dimensions to search."""

    name: str
    method: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    dimensions: Mapping[str, Dimension] = field(default_factory=dict)

    def at(self, positions: Sequence[float]) -> Candidate:
        """Return the candidate at these positions, one for each dimension."""
        pairs = zip(self.dimensions.items(), positions, strict=True)
        values = {name: dimension.at(position) for (name, dimension), position in pairs}
        return Candidate(build_method(self.method, **self.fixed, **values), self, values)

    def place(self, method: Method) -> Candidate:
        """Return a method of this family as a candidate."""
        return Candidate(method, self, {name: method.params[name] for name in self.dimensions})


@dataclass(frozen=True)
class Candidate:
    """A method, and where it is in its family."""

    method: Method
    family: Family
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the point in tables and files."""
        return point_name(self.method)

    def neighbours(self, distance: float = 0.125) -> list[Candidate]:
        """Return the candidates a step away in one dimension."""
        around = [self.family.at(place) for place in self._places_around(distance)]
        unique = {candidate.name: candidate for candidate in around}
        return [candidate for name, candidate in unique.items() if name != self.name]

    def _places_around(self, distance: float) -> list[list[float]]:
        dimensions = self.family.dimensions
        here = [dimension.find(self.values[name]) for name, dimension in dimensions.items()]
        places = []
        for index, dimension in enumerate(dimensions.values()):
            ends = [min(max(here[index] + step, 0.0), 1.0) for step in (-distance, distance)]
            if isinstance(dimension, OneOf):
                ends = [dimension.find(value) for value in dimension.values]
            places += [[*here[:index], end, *here[index + 1 :]] for end in ends]
        return places


STEPS = OneOf(("calibrated", "safe", "normalised"))
GAMMAS = {
    "rawls": Range(0.0, 3.0),
    "egalitarian": Range(0.0, 3.0),
    "utilitarian": Range(-3.0, 0.0),
    "desert": Range(-2.0, 1.0),
}
BETAS = {
    "rawls": Range(0.05, 10.0, log=True),
    "egalitarian": Range(0.5, 4.0, log=True),
    "utilitarian": Range(0.0, 1.0),
    "desert": Range(0.05, 2.0, log=True),
}
OTHERS: dict[str, dict[str, Dimension]] = {
    "qffl": {"q": Range(0.01, 10.0, log=True), "lipschitz": OneOf(("calibrated", "paper"))},
    "afl": {"lr_lambda": Range(0.001, 1.0, log=True)},
    "term": {"t": Range(0.01, 10.0, log=True)},
    "propfair": {"M": Range(2.0, 10.0), "huber": OneOf((False, True))},
    "fedmgda": {"epsilon": Range(0.01, 1.0, log=True)},
    "fedfv": {"alpha": Range(0.0, 1.0)},
    "adafed": {"gamma": Range(0.0, 5.0), "normalise": OneOf((False, True))},
    "adafedadam": {"alpha": Range(0.0, 5.0), "server_lr": Range(1e-4, 0.1, log=True)},
    "fedfa": {"beta": Range(0.0, 1.0), "gamma": Range(0.0, 0.99)},
    "e2fl": {"keep": Range(0.1, 0.9)},
    "fedeba": {"tau": Range(0.01, 10.0, log=True), "alpha": Range(0.0, 1.0)},
    "corefed": {"M": Range(2.5, 10.0)},
    "cffl": {"alpha": Range(1.0, 5.0)},
    "focus": {"temperature": Range(0.1, 10.0, log=True)},
}


def udj_families(theory: str, budget: float) -> tuple[Family, ...]:
    """Return the families of a theory: points by beta and gamma, and the rule with a budget."""
    dimensions: dict[str, Dimension] = {
        "beta": BETAS[theory],
        "gamma": GAMMAS[theory],
        "step": STEPS,
    }
    families = [Family("beta and gamma", "udj", {"theory": theory}, dimensions)]
    if theory == "desert":  # as the paper has it: beta_i from each client's uncertainty
        rest = {name: dimensions[name] for name in ("gamma", "step")}
        families.append(Family("beta per client", "udj", {"theory": theory}, rest))
    largest = min(
        max(3 * budget, 1.0), 100.0
    )  # what the train data allow may cost less on other data
    budgets = {"budget": Range(largest / 12, largest)}
    return (*families, Family("budget", "udj", {"theory": theory}, budgets))


def udj_defaults(theory: str, budget: float) -> list[Candidate]:
    """Return the theory as the paper has it, and with the budget."""
    families = {family.name: family for family in udj_families(theory, budget)}
    own = "beta per client" if theory == "desert" else "beta and gamma"
    return [
        families[own].place(build_method(theory)),
        families["budget"].place(build_method(theory, budget=budget)),
    ]


def find_space(
    method: Method, theory: str, budget: float
) -> tuple[tuple[Family, ...], list[Candidate]]:
    """Return the families to search for a method, and its defaults; no family: nothing to search.

    A point of UDJ-FL stands for its theory.
    """
    if isinstance(method, UDJ):
        return udj_families(theory, budget), udj_defaults(theory, budget)
    dimensions = OTHERS.get(method.name, {})
    fixed = {key: value for key, value in method.params.items() if key not in dimensions}
    family = Family(method.title, method.spec_name, fixed, dimensions)
    return ((family,) if dimensions else ()), [family.place(method)]

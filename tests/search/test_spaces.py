"""The points that a search may choose from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udjfl.methods import METHODS, THEORIES, UDJ, FedAvg, method
from udjfl.search.spaces import OTHERS, OneOf, Range, find_space, udj_defaults, udj_families


def test_positions_on_a_range() -> None:
    # A logarithmic range from 0.01 to 100 has 1 in its middle and 0.1 after a quarter.
    assert [Range(0.01, 100, log=True).at(p) for p in (0, 0.25, 0.5, 1)] == [0.01, 0.1, 1.0, 100.0]
    assert [Range(-3, 0).at(p) for p in (0, 0.5, 1)] == [-3.0, -1.5, 0.0]
    assert Range(1, 4, whole=True).at(0.4) == 2
    assert Range(0.0, 2.0).find(7.0) == 1.0  # the nearest end


@given(st.floats(0, 1), st.booleans())
def test_a_number_is_found_where_it_was_made(position: float, log: bool) -> None:
    dimension = Range(0.5, 8.0, log)
    # Numbers have three digits, so a position is found to within half a thousandth of the range.
    assert dimension.find(dimension.at(position)) == pytest.approx(position, abs=2e-3)


def test_choices() -> None:
    steps = OneOf(("a", "b", "c"))
    assert [steps.at(p) for p in (0.0, 0.4, 0.99, 1.0)] == ["a", "b", "c", "c"]
    assert all(steps.at(steps.find(value)) == value for value in steps.values)
    assert steps.find("other") == 0.5


@pytest.mark.parametrize("theory", THEORIES)
def test_every_corner_of_a_theorys_space_is_a_point_of_that_theory(theory: str) -> None:
    for family in udj_families(theory, 2.0):
        for position in (0.0, 0.5, 1.0):
            candidate = family.at([position] * len(family.dimensions))
            assert isinstance(candidate.method, UDJ)
            assert candidate.method.theory == theory


@pytest.mark.parametrize("theory", THEORIES)
def test_the_defaults_are_in_the_space(theory: str) -> None:
    own, with_budget = udj_defaults(theory, 2.0)
    assert own.method == method(theory)
    assert with_budget.method == method(theory, budget=2.0)
    for candidate in (own, with_budget):
        for name, dimension in candidate.family.dimensions.items():
            assert dimension.at(dimension.find(candidate.values[name])) == candidate.values[name]


@pytest.mark.parametrize("name", OTHERS)
def test_every_corner_of_other_methods_is_valid(name: str) -> None:
    (family,), (default,) = find_space(method(name), "egalitarian", 2.0)
    assert default.method == method(name)
    for position in (0.0, 0.5, 1.0):
        family.at([position] * len(family.dimensions))


def test_other_methods_that_are_searched_exist_and_the_rest_has_nothing_to_search() -> None:
    assert set(OTHERS) <= set(METHODS)
    families, (default,) = find_space(FedAvg(), "utilitarian", 2.0)
    assert (families, default.method) == ((), FedAvg())


def test_neighbours_are_one_step_away_in_one_dimension() -> None:
    (own, _) = udj_defaults("egalitarian", 2.0)
    around = own.neighbours()
    # beta below and above, gamma below and above, two other step rules
    assert len(around) == 6
    for candidate in around:
        assert sum(candidate.values[key] != own.values[key] for key in own.values) == 1
    # At the end of a dimension there is one on one side only.
    (utilitarian, _) = udj_defaults("utilitarian", 2.0)
    assert len(utilitarian.neighbours()) == 5

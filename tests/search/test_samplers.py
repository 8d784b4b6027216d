"""Sobol's sequence and Optuna."""

from __future__ import annotations

import sys

import pytest

from udjfl.errors import SettingsError
from udjfl.search.samplers import SAMPLERS, sample_optuna, sample_sobol
from udjfl.search.spaces import Candidate, udj_families

FAMILIES = udj_families("desert", 2.0)


def judge(candidates: list[Candidate]) -> list[tuple[float, float]]:
    """Good is a gamma near -1, and a limit is broken above 0."""
    gammas = [float(candidate.values.get("gamma", 0.5)) for candidate in candidates]
    return [(-abs(gamma + 1.0), max(gamma, 0.0)) for gamma in gammas]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_gives_the_same_candidates(sampler: str) -> None:
    if sampler == "optuna":
        pytest.importorskip("optuna")
    first, again, other = (
        [c.name for c in SAMPLERS[sampler](FAMILIES, 12, seed, judge)] for seed in (0, 0, 1)
    )
    assert first == again != other
    assert len(first) == 12


def test_sobol_fills_each_family_by_its_dimensions() -> None:
    candidates = sample_sobol(FAMILIES, 12, 0, judge)
    names = [candidate.family.name for candidate in candidates]
    # Three, two and one dimensions: 6, 4 and 2 of 12.
    assert [names.count(family.name) for family in FAMILIES] == [6, 4, 2]
    budgets = [c.values["budget"] for c in candidates if "budget" in c.values]
    assert min(budgets) < 3.25 < max(budgets)  # one in each half of 0.5 to 6


def test_optuna_goes_where_it_was_good() -> None:
    pytest.importorskip("optuna")
    family = udj_families("desert", 2.0)[1]
    gammas = [c.values["gamma"] for c in sample_optuna([family], 60, 0, judge)]
    early, late = (sum(abs(g + 1) for g in part) / 20 for part in (gammas[:20], gammas[-20:]))
    assert late < early / 2


def test_without_optuna_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError, match=r"pip install 'udjfl\[tune\]', or use sobol"):
        sample_optuna(FAMILIES, 3, 0, judge)

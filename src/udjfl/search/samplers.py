"""Samplers of candidates: Sobol's sequence, or Optuna, which learns from what it has seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from scipy.stats import qmc

from udjfl.errors import SettingsError
from udjfl.search.spaces import Candidate, Family, OneOf
from udjfl.seeds import numpy_stream, stream_seed

# Candidates in, and for each how good it is and by how much it breaks a limit (0: it keeps all).
Judge = Callable[[Sequence[Candidate]], list[tuple[float, float]]]
BATCHES = 3  # of Optuna: each is trained together, and learns from those before


def sample_sobol(
    families: Sequence[Family], count: int, seed: int, judge: Judge
) -> list[Candidate]:
    """Spread candidates evenly over the families, more over those with more dimensions."""
    candidates: list[Candidate] = []
    for family, share in zip(families, _shares(families, count), strict=True):
        if share == 0:
            continue
        rng = numpy_stream(seed, "tune", family.name)
        sequence = qmc.Sobol(len(family.dimensions), scramble=True, rng=rng)
        points = sequence.random_base2(math.ceil(math.log2(share)))[:share]
        candidates += [family.at(point.tolist()) for point in points]
    unique = {candidate.name: candidate for candidate in candidates}
    judge(list(unique.values()))
    return list(unique.values())


def _shares(families: Sequence[Family], count: int) -> list[int]:
    """Share a number of candidates in proportion to dimensions (largest remainders)."""
    sizes = [len(family.dimensions) for family in families]
    exact = [count * size / sum(sizes) for size in sizes]
    shares = [math.floor(number) for number in exact]
    by_rest = sorted(range(len(families)), key=lambda index: shares[index] - exact[index])
    for index in by_rest[: count - sum(shares)]:
        shares[index] += 1
    return shares


def sample_optuna(
    families: Sequence[Family], count: int, seed: int, judge: Judge
) -> list[Candidate]:
    """Ask Optuna for candidates in batches, and tell it how good they are and what they break."""
    optuna = _import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=math.ceil(count / BATCHES),
        seed=stream_seed(seed, "tune", "optuna") % 2**32,
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    unique: dict[str, Candidate] = {}
    for batch in range(BATCHES):
        size = (count + BATCHES - 1 - batch) // BATCHES
        trials = [study.ask() for _ in range(size)]
        suggested = [_suggest(trial, families) for trial in trials]
        scores = judge(suggested)
        for trial, (score, violation) in zip(trials, scores, strict=True):
            trial.set_constraint("limits", violation)
            study.tell(trial, score)
        unique |= {candidate.name: candidate for candidate in suggested}
    return list(unique.values())


def _suggest(trial: Any, families: Sequence[Family]) -> Candidate:
    names = [family.name for family in families]
    name = names[0] if len(names) == 1 else trial.suggest_categorical("family", names)
    family = families[names.index(name)]
    positions = []
    for key, dimension in family.dimensions.items():
        if isinstance(dimension, OneOf):
            labels = [str(value) for value in dimension.values]
            chosen = trial.suggest_categorical(f"{name}: {key}", labels)
            positions.append(dimension.find(dimension.values[labels.index(chosen)]))
        else:
            positions.append(trial.suggest_float(f"{name}: {key}", 0.0, 1.0))
    return family.at(positions)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise SettingsError(
            "sampler: optuna is not installed; pip install 'udjfl[tune]', or use sobol"
        ) from None
    return optuna


SAMPLERS = {"sobol": sample_sobol, "optuna": sample_optuna}

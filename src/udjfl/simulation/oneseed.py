"""Every method on the federation of one seed: the part of a comparison that can be done in a process of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udjfl.data import Federation, load
from udjfl.engine import one_thread
from udjfl.errors import DataError, NotDefinedError, SettingsError
from udjfl.methods import Method
from udjfl.settings import CompareSettings, TrainingSettings
from udjfl.simulation.simulate import Entry, beginning, fitting_model, run_together
from udjfl.training.result import Result
from udjfl.training.rounds import Progress
from udjfl.uncertainty import Uncertainty

# One federation for all seeds, or a function from the seed to one; None: as the settings say.
GivenFederation = Federation | Callable[[int], Federation] | None


@dataclass(frozen=True)
class SeedTask:
    """All methods, the reference first, on one seed. `ids` are the clients that the federation of every seed must have."""

    federation: GivenFederation
    settings: CompareSettings
    training: TrainingSettings
    methods: tuple[Method, ...]
    seed: int
    ids: tuple[str, ...]
    folder: Path | None
    uncertainty: Uncertainty | None = None

    def __call__(self, tell: Callable[[Any], None]) -> list[Result | str]:
        """A result for each method, or what went wrong. `tell` gets (place of the method, seed, stage, done, total)."""
        federation = federation_of(self.federation, self.settings, self.seed)
        if federation.ids != self.ids:
            raise DataError(
                f"the federation of seed {self.seed} has other clients than that of seed {self.settings.seeds[0]}"
            )
        entries = [self._entry(place, method, tell) for place, method in enumerate(self.methods)]
        results = run_together(
            federation,
            entries,
            self.training,
            self.seed,
            uncertainty=self.uncertainty,
            resume=self.folder is not None,
            first_is_reference=True,
        )
        if not isinstance(results[0], Result):
            raise results[0]
        told: list[Result | str] = []
        for place, result in enumerate(results):
            told.append(result if isinstance(result, Result) else str(result))
            if not isinstance(result, Result):
                tell((place, self.seed, "training", self.training.rounds, self.training.rounds))
        return told

    def _entry(self, place: int, method: Method, tell: Callable[[Any], None]) -> Entry:
        def progress(stage: str, done: int, total: int) -> None:
            tell((place, self.seed, stage, done, total))

        told: Progress = progress
        return Entry(method, self.folder / folder_name(method) if self.folder else None, told)


def federation_of(given: GivenFederation, settings: CompareSettings, seed: int) -> Federation:
    """The federation of a seed."""
    if given is None:
        return load(settings.data, settings.clients, settings.partition, seed, settings.data_root)
    return given if isinstance(given, Federation) else given(seed)


def check_methods(
    federation: Federation, methods: tuple[Method, ...], training: TrainingSettings, seed: int
) -> None:
    """Refuse, all at once, methods whose parameters do not fit the federation. Those not defined for it are left to fail."""
    mistakes: list[str] = []
    with one_thread():
        plain = fitting_model(federation, training, seed)
        for method in methods:
            try:
                beginning(federation, method, training, seed, None, plain)
            except NotDefinedError:
                continue
            except SettingsError as error:
                mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)


def folder_name(method: Method) -> str:
    """A method as a folder name: `udj-theory=rawls-beta=5`."""
    text = "-".join(
        [
            method.name,
            *(f"{key}={value}" for key, value in method.params.items() if value is not None),
        ]
    )
    plain = "".join(c if c.isalnum() or c in "-=._" else "_" for c in text)
    if plain == text and len(text) <= 100:
        return text
    # Two methods must not share a folder because their names were shortened or had odd characters.
    return f"{plain[:80]}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"

"""Seeds as programs: which are trained together, and in which process."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import nn

from udjfl._files import inner_folder
from udjfl.data import Federation
from udjfl.engine import can_fork, can_join, one_thread
from udjfl.errors import DataError
from udjfl.methods import FedAvg, Method
from udjfl.models import ModelChoice, to_vector
from udjfl.settings import CompareSettings, TrainingSettings
from udjfl.simulation.lockstep import Failure
from udjfl.simulation.process_pool import Task, run_in_processes, unpicklable_reason
from udjfl.simulation.run_methods import MethodTask, SeedTask, run_seeds
from udjfl.simulation.simulate import DataChoice, load_federation
from udjfl.training.federation_info import FederationInfo
from udjfl.training.records import OnProgress, Progress
from udjfl.training.result import FinishedRun, Result
from udjfl.training.state import RunSpec
from udjfl.uncertainty import Uncertainty

Returned = TypeVar("Returned")
logger = logging.getLogger("udjfl")
# Seeds are trained as one program if their data, models and updates together are at most this
# large: with more, a step is work enough that there is nothing to gain.
PROGRAM_BYTES = 256_000_000
# And if they keep no more runs than this in folders: each has an open file.
MOST_FOLDERS = 256
# Progress events of a program: with the records of the round, without them, or none.
Events = Literal["records", "bare", "none"]


def seeds_per_program(
    federation: Federation,
    module: nn.Module,
    settings: TrainingSettings,
    n_methods: int,
    has_folders: bool,
) -> int:
    """Return how many seeds are trained as one program, if their federations are like this one."""
    demands = RunSpec(FedAvg(), settings).demands(FederationInfo.of(federation))
    if not can_join([module], [federation.clients], settings.engine, settings.device, demands):
        return 1
    copies = settings.uncertainty_folds if settings.uncertainty == "crossfit" else 1
    n_tested = sum(len(client.test) for client in federation.clients) + len(federation.test)
    n_examples = copies * sum(federation.sizes) + n_tested
    n_updates = 3 * n_methods * len(federation.clients)  # beside each its model and its batches
    n_values = n_examples * math.prod(federation.input_shape) + n_updates * len(to_vector(module))
    most = PROGRAM_BYTES // (4 * n_values)
    return max(1, min(most, MOST_FOLDERS // n_methods) if has_folders else most)


def share_seeds(seeds: Sequence[int], jobs: int, together: int) -> list[tuple[int, ...]]:
    """Cut the seeds into programs of at most `together`, equally many for each of the jobs."""
    n_programs = jobs * math.ceil(len(seeds) / (jobs * together))
    ends = [len(seeds) * number // n_programs for number in range(n_programs + 1)]
    programs = [tuple(seeds[begin:end]) for begin, end in itertools.pairwise(ends)]
    return [program for program in programs if program]


@dataclass(frozen=True)
class ProgramTask:
    """All methods, the reference first, on the federations of some seeds, as one program.

    `ids` are the clients that the federation of every seed must have; `first` is the federation of
    the first of these seeds, if it is loaded already. `uncertainty` is that of all seeds,
    `uncertainty_of` that of some, where they are known already. `events` says what is sent while
    training goes on: records of every round are several times as much work as the bare event.
    """

    data: DataChoice
    model: ModelChoice | None
    settings: CompareSettings
    methods: tuple[Method, ...]
    ids: tuple[str, ...]
    uncertainty: Uncertainty | None
    root: Path | None
    seeds: tuple[int, ...] = ()
    first: Federation | None = None
    uncertainty_of: Mapping[int, Uncertainty] = field(default_factory=dict)
    events: Events = "records"

    def __call__(self, send: Callable[[Any], None]) -> list[list[FinishedRun | str]]:
        """Return for each seed an outcome for each method, or why there is none.

        `send` gets `Progress` events.
        """
        with one_thread():
            tasks = [self._seed_task(seed, send) for seed in self.seeds]
        results = run_seeds(
            tasks,
            self.settings.training,
            model=self.model,
            resume=self.root is not None,
            first_is_reference=True,
        )
        pairs = zip(self.seeds, results, strict=True)
        return [self._without_errors(seed, own, send) for seed, own in pairs]

    def _seed_task(self, seed: int, send: Callable[[Any], None]) -> SeedTask:
        federation = self.first if seed == self.seeds[0] else None
        if federation is None:
            federation = load_federation(self.data, self.settings.federation, seed)
        if federation.ids != self.ids:
            raise DataError(
                f"the federation of seed {seed} has other clients than that of seed "
                f"{self.settings.seeds[0]}"
            )
        on_progress = self._choose_events(send)
        folder = inner_folder(self.root, f"seed-{seed}") if self.root else None
        methods = [
            MethodTask(
                method, inner_folder(folder, folder_name(method)) if folder else None, on_progress
            )
            for method in self.methods
        ]
        known = self.uncertainty_of.get(seed, self.uncertainty)
        return SeedTask(federation, seed, methods, known)

    def _choose_events(self, send: Callable[[Any], None]) -> OnProgress | None:
        """Return what methods call with their events; None if nothing is to be sent."""
        if self.events == "none":
            return None
        if self.events == "records":
            return send
        return lambda event: send(replace(event, records=()))

    def _without_errors(
        self, seed: int, results: Sequence[Result | Failure], send: Callable[[Any], None]
    ) -> list[FinishedRun | str]:
        """Return the outcomes of a seed, with sentences in place of errors."""
        if not isinstance(results[0], Result):
            raise results[0]
        rounds = self.settings.training.rounds
        for method, result in zip(self.methods, results, strict=True):
            if not isinstance(result, Result) and self.events != "none":
                send(Progress(method.label, seed, "training", rounds, rounds))
        return [r.outcome() if isinstance(r, Result) else str(r) for r in results]


def run_programs(
    tasks: Sequence[ProgramTask], jobs: int, on_progress: OnProgress | None
) -> list[list[list[FinishedRun | str]]]:
    """Run programs one after the other, or in processes, with the same results."""

    def receive(event: Progress) -> None:
        if on_progress:
            on_progress(event)

    if on_progress is None:
        tasks = [replace(task, events="none") for task in tasks]
    is_own = callable(tasks[0].data) or callable(tasks[0].model)
    return run_tasks(tasks, jobs, receive, is_own)


def run_tasks(
    tasks: Sequence[Task[Returned]], jobs: int, receive: Callable[[Any], None], is_own: bool
) -> list[Returned]:
    """Run tasks one after the other, or in processes, with the same results.

    `receive` gets their messages. `is_own` tells that they call functions of the caller's.
    """
    if jobs > 1:
        reason = unpicklable_reason(tasks)
        if reason is None:
            # What a caller's own function needs may not survive a fork.
            return run_in_processes(tasks, jobs, receive, fork=can_fork() and not is_own)
        logger.warning(
            "The seeds run one after the other: they cannot be sent to other processes (%s).",
            reason,
        )
    return [task(receive) for task in tasks]


def folder_name(method: Method) -> str:
    """Return a folder name for a method: `udj-theory=rawls-beta=5`."""
    parameters = [f"{key}={value}" for key, value in method.params.items() if value is not None]
    text = "-".join([method.name, *parameters])
    plain = "".join(c if c.isalnum() or c in "-=._" else "_" for c in text)
    if plain == text and len(text) <= 100:
        return text
    # Two methods must not share a folder because their names were shortened or had odd characters.
    return f"{plain[:80]}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"

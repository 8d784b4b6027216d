"""Running the paper's tables: settings in, a table out. With a folder, a stopped run goes on where it was."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udjfl._threads import cores, sharing
from udjfl.data import Federation, load
from udjfl.data.partition import SHARDS_PER_CLIENT, clean_shards
from udjfl.engine import EvaluationSet, make_engine, one_thread
from udjfl.errors import SettingsError, StorageError
from udjfl.methods import Method
from udjfl.paper.paper_rows import paper_rows
from udjfl.paper.profiles import PROFILES, data_of, given_uncertainties, training_settings
from udjfl.paper.published import compared_with
from udjfl.paper.tables import (
    DistributionsRow,
    DistributionsTable,
    ResultsRow,
    ResultsTable,
    SoloRow,
    SoloTable,
)
from udjfl.settings import CompareSettings, ReproduceSettings, TrainingSettings
from udjfl.simulation.compare import CompareProgress, Comparison, compare
from udjfl.simulation.process_pool import in_processes
from udjfl.simulation.simulate import fitting_model
from udjfl.statistics import Summary, summarise
from udjfl.training.keeping import versions
from udjfl.training.run_folder import RunFolder
from udjfl.uncertainty import entropies, train_alone

# Called with a name, the seed, the stage, how much is done, and of how much.
ReproduceProgress = Callable[[str, int, str, int, int], None]

SHARD_SIZE = {"dirty-mnist": 300, "cure-tsr": 60, "signs": 60, "dirty-digits": 20}
# Clean and ambiguous shards of each client. `even` is what the authors' code makes; of the other two the paper says only who
# has overwhelmingly much of what: theirs are unknown, these are ours, the two of a size.
DISTRIBUTIONS: dict[str, tuple[tuple[int, int], ...]] = {
    "even": ((3, 1),) * 5,
    "clean": ((12, 1), *((1, 3),) * 4),
    "dirty": (*((3, 1),) * 4, (1, 12)),
}


def results(
    settings: ReproduceSettings, out: Path | None = None, progress: ReproduceProgress | None = None
) -> tuple[ResultsTable, Comparison]:
    """The main table: all twenty rows on the same federations."""
    rows = paper_rows(PROFILES[settings.profile])
    comparison = compared(
        settings, [row.method for row in rows], out, progress, partition=partition_of(settings)
    )
    made = []
    for row, found in zip(rows, _in_order(comparison, [row.method for row in rows]), strict=True):
        values = {column.key: found.metrics[column.key] for column in ResultsTable.columns}
        notes = [note for note in (row.note, *found.notes) if note]
        about_row: dict[str, Any] = {
            "theory": row.theory,
            "label": row.label,
            "method_label": row.method.label,
        }
        made.append(
            ResultsRow(
                **about_row, values=values, failed=found.failed, note="; ".join(notes) or None
            )
        )
    about = _about(settings, settings.rounds, comparison.data)
    return ResultsTable(rows=tuple(made), **about), comparison


def _in_order(comparison: Comparison, methods: Sequence[Method]) -> list[Any]:
    by_method = {row.method: row for row in comparison.rows}
    return [by_method[method] for method in methods]


def compared(
    settings: ReproduceSettings,
    methods: Sequence[Method],
    out: Path | None,
    progress: ReproduceProgress | None,
    *,
    partition: str | None = None,
    **training: Any,
) -> Comparison:
    """These methods under the profile's training, on the profile's data."""
    about = {"data": data_of(settings), "data_root": settings.data_root, "partition": partition}
    chosen = training_settings(settings, **training).model_dump()
    shared = {"seeds": settings.seeds, "jobs": settings.jobs}
    given = given_uncertainties(settings)
    return compare(
        CompareSettings(**about, **chosen, **shared),
        methods=methods,
        uncertainty=given,
        out=out,
        resume=out is not None and RunFolder(out).holds_a_run,
        progress=told(progress),
    )


def told(progress: ReproduceProgress | None) -> CompareProgress | None:
    """The same for a comparison, which tells of methods."""
    if progress is None:
        return None
    tell = progress
    return lambda method, seed, stage, done, total: tell(method.label, seed, stage, done, total)


def part_of(progress: ReproduceProgress | None, part: str) -> ReproduceProgress | None:
    """For one of several parts that train the same methods on the same seeds: names say which, so none is taken for another."""
    if progress is None:
        return None
    tell = progress
    return lambda name, seed, stage, done, total: tell(f"{part}, {name}", seed, stage, done, total)


def partition_of(settings: ReproduceSettings) -> str | None:
    """The paper's shards; data that come in other ways keep their own."""
    size = SHARD_SIZE.get(settings.data.partition(":")[0])
    return None if size is None else f"shards:size={size}"


def _about(settings: ReproduceSettings, rounds: int, title: str) -> dict[str, Any]:
    name = settings.data.partition(":")[0]
    published_for = compared_with(name)
    training = training_settings(settings)
    shown = {
        "model": settings.model,
        "training": f"learning rate {training.lr}, momentum {training.momentum}, batches of {training.batch_size}, "
        f"{training.local_epochs} local epoch; alone {training.uncertainty_epochs} epochs of "
        f"{training.uncertainty_optimiser} at {training.uncertainty_lr}",
        "profile": PROFILES[settings.profile].line,
    }
    return {
        "data": title,
        "profile": settings.profile,
        "seeds": tuple(settings.seeds),
        "rounds": rounds,
        "published_for": published_for,
        "same_data": published_for == name and "regenerated" not in title,
        "setting": shown,
    }


@dataclass(frozen=True)
class SoloTask:
    """Every client of one seed training alone."""

    settings: ReproduceSettings
    training: TrainingSettings
    seed: int

    def __call__(self, tell: Callable[[Any], None]) -> dict[str, Any]:
        """For each client, in order, the two accuracies and the uncertainty; and the name of the data."""
        federation = load(
            data_of(self.settings),
            None,
            partition_of(self.settings),
            self.seed,
            self.settings.data_root,
        )
        with one_thread(), sharing(self.training.workers or cores()):
            found = alone(federation, self.training, self.seed)
        tell((self.seed, "alone", 1, 1))
        return {"title": federation.name, "fingerprint": federation.fingerprint, **found}


def alone(
    federation: Federation, training: TrainingSettings, seed: int
) -> dict[str, list[float | None]]:
    """How good each client's own model is on its own test part and on the clean test set, and how uncertain it is.

    There is no uncertainty, None, of a model that diverged.
    """
    engine = make_engine(
        fitting_model(federation, training, seed),
        federation.clients,
        training.engine,
        training.device,
        training.workers,
    )
    try:
        trained = train_alone(federation, engine, training, seed)
        columns: dict[str, list[float | None]] = {"local_accuracy": [], "clean_accuracy": []}
        for client, (vector, buffers) in zip(federation.clients, trained, strict=True):
            for key, part in (("local_accuracy", client.test), ("clean_accuracy", federation.test)):
                _, accuracy = engine.evaluate(
                    vector, buffers, EvaluationSet([part.on(engine.device)])
                )
                columns[key].append(100 * float(accuracy[0]))
        measured = entropies(federation, engine, trained).values()
        columns["uncertainty"] = [value if math.isfinite(value) else None for value in measured]
    finally:
        engine.close()
    return columns


def solo(
    settings: ReproduceSettings, out: Path | None = None, progress: ReproduceProgress | None = None
) -> SoloTable:
    """Clients training alone, on the federations of the main table."""
    name = settings.data.partition(":")[0]
    if name not in SHARD_SIZE:
        raise SettingsError(
            f"data: the table of clients alone is about shards; {name} has none, use {', '.join(SHARD_SIZE)}"
        )
    jobs = min(settings.jobs or cores(), len(settings.seeds))
    training = training_settings(settings, workers=settings.workers or max(1, cores() // jobs))
    folder = _folder(out, settings)

    def heard(message: tuple[int, str, int, int]) -> None:
        if progress:
            progress("each client alone", *message)

    found: dict[int, dict[str, Any]] = {}
    for seed in settings.seeds:
        kept = folder.read_json(f"seed-{seed}.json") if folder else None
        if isinstance(kept, dict):
            found[seed] = kept
            heard((seed, "resumed", 1, 1))
    missing = [seed for seed in settings.seeds if seed not in found]

    # One batch of seeds at a time: what is done is on disk before the next begins.
    for start in range(0, len(missing), jobs):
        batch = missing[start : start + jobs]
        tasks = [SoloTask(settings, training, seed) for seed in batch]
        done = in_processes(tasks, jobs, heard) if jobs > 1 else [task(heard) for task in tasks]
        for seed, result in zip(batch, done, strict=True):
            found[seed] = result
            if folder:
                folder.write_json(f"seed-{seed}.json", result)
    return _solo_table(settings, [found[seed] for seed in settings.seeds])


def _solo_table(settings: ReproduceSettings, by_seed: Sequence[Mapping[str, Any]]) -> SoloTable:
    counts = clean_shards(len(by_seed[0]["uncertainty"]))
    rows = tuple(
        SoloRow(
            client=place + 1,
            clean_shards=clean,
            ambiguous_shards=SHARDS_PER_CLIENT - clean,
            values={
                column.key: summarise([seed[column.key][place] for seed in by_seed])
                for column in SoloTable.columns
            },
        )
        for place, clean in enumerate(counts)
    )
    return SoloTable(rows=rows, **_about(settings, settings.epochs, by_seed[0]["title"]))


def _folder(out: Path | None, settings: ReproduceSettings) -> RunFolder | None:
    """Where what is done is kept; refuses a folder of other settings."""
    if out is None:
        return None
    folder = RunFolder(out)
    about = json.loads(
        json.dumps(
            {
                "solo": settings.model_dump(
                    exclude={"seeds", "jobs", "workers", "data_root", "rounds"}
                )
            }
        )
    )
    if not folder.holds_a_run:
        return RunFolder.create(out, about, versions())
    if folder.read_settings("solo")["solo"] != about["solo"]:
        raise StorageError(
            f"{out} was started with other settings; use the same, or another folder"
        )
    return folder


def distributions(
    settings: ReproduceSettings, out: Path | None = None, progress: ReproduceProgress | None = None
) -> DistributionsTable:
    """FedAvg under the three distributions of appendix A."""
    name = settings.data.partition(":")[0]
    if name not in SHARD_SIZE:
        raise SettingsError(
            f"data: the distributions are made of shards; {name} has none, use {', '.join(SHARD_SIZE)}"
        )
    rows = []
    title = name
    fedavg = [paper_rows(PROFILES[settings.profile])[0].method]
    for setting, mix in DISTRIBUTIONS.items():
        text = "+".join(f"{clean}/{vague}" for clean, vague in mix)
        partition = f"shards:size={SHARD_SIZE[name]},mix={text}"
        # FedAvg looks at no uncertainty; one epoch alone is enough for numbers that nobody reads.
        comparison = compared(
            settings,
            fedavg,
            out / setting if out else None,
            part_of(progress, setting),
            partition=partition,
            uncertainty_epochs=1,
        )
        title = comparison.data
        rows.append(DistributionsRow(setting=setting, values=_by_client(comparison)))  # type: ignore[arg-type]
    about = _about(settings, settings.rounds, title)
    if about["published_for"] != "dirty-mnist":
        about |= {"published_for": None, "same_data": False}
    about["setting"] = {
        **about["setting"],
        **{f"shards, {name}": _spelled(mix) for name, mix in DISTRIBUTIONS.items()},
    }
    return DistributionsTable(rows=tuple(rows), **about)


def _by_client(comparison: Comparison) -> dict[str, Summary]:
    row = comparison.rows[0]
    clients = {
        f"client_{place}": value
        for place, value in enumerate(row.client_accuracy.values(), start=1)
    }
    return {**clients, "global_accuracy": row.metrics["global_accuracy"], "std": row.metrics["std"]}


def _spelled(mix: Sequence[tuple[int, int]]) -> str:
    return "clean/ambiguous " + ", ".join(f"{clean}/{vague}" for clean, vague in mix)

"""Runs of the paper's tables: settings in, a table out.

With a folder, a run that was stopped resumes there.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from udjfl._files import inner_folder
from udjfl._threads import available_cores, thread_limit
from udjfl.data import Examples, Federation, load
from udjfl.data.partition import SHARDS_PER_CLIENT, clean_shards
from udjfl.engine import Engine, EvaluationSet, make_engine, one_thread
from udjfl.errors import SettingsError, StorageError
from udjfl.methods import FedAvg, Method
from udjfl.paper.paper_rows import PaperRow, paper_rows
from udjfl.paper.profiles import (
    PROFILES,
    data_name,
    profile_data,
    profile_uncertainties,
    training_settings,
)
from udjfl.paper.published import DISTRIBUTIONS_DATA, published_counterpart
from udjfl.paper.settings import ReproduceSettings
from udjfl.paper.tables import DistributionsTable, ResultsTable, Row, SoloTable
from udjfl.settings import CompareSettings, DataSettings, TrainingSettings
from udjfl.simulation.compare import run_comparison, with_reference
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.simulation.process_pool import run_in_processes
from udjfl.statistics import Summary, summarise
from udjfl.training.federation_info import FederationInfo
from udjfl.training.lifecycle import versions
from udjfl.training.records import OnProgress, Progress, finite_or_none
from udjfl.training.run_folder import RunFolder
from udjfl.training.state import RunSpec
from udjfl.uncertainty import entropies, train_alone

SOLO_LABEL = "each client alone"

SHARD_SIZE = {"dirty-mnist": 300, "cure-tsr": 60, "signs": 60, "dirty-digits": 20}
# Clean and ambiguous shards of each client. `even` is what the authors' code makes. For the other
# two the paper only says which client has overwhelmingly much of what; these sizes are ours.
DISTRIBUTIONS: dict[str, tuple[tuple[int, int], ...]] = {
    "even": ((3, 1),) * 5,
    "clean": ((12, 1), *((1, 3),) * 4),
    "dirty": (*((3, 1),) * 4, (1, 12)),
}


def reproduce_results(
    settings: ReproduceSettings, out: Path | None = None, progress: OnProgress | None = None
) -> tuple[ResultsTable, Comparison]:
    """Run the main table: all twenty rows on the same federations."""
    paper = paper_rows(PROFILES[settings.profile])
    comparison = compare_methods(
        settings, [row.method for row in paper], out, progress, partition=paper_partition(settings)
    )
    rows = [_results_row(row, find_row(comparison, row.method)) for row in paper]
    fields = _table_fields(settings, settings.rounds, comparison.data)
    return ResultsTable(rows=tuple(rows), **fields), comparison


def _results_row(row: PaperRow, measured: MethodSummary) -> Row:
    return Row(
        theory=row.theory,
        name=row.label,
        subtitle=row.method.label,
        details={"method": row.method.label},
        values={column.key: measured.metrics[column.key] for column in ResultsTable.columns},
        failed=measured.failed,
        note="; ".join(note for note in (row.note, *measured.notes) if note) or None,
    )


def find_row(comparison: Comparison, method: Method) -> MethodSummary:
    """Return the row of a method in a comparison."""
    return next(row for row in comparison.rows if row.method == method)


def compare_methods(
    settings: ReproduceSettings,
    methods: Sequence[Method],
    out: Path | None,
    progress: OnProgress | None,
    *,
    partition: str | None = None,
    changes: Mapping[str, Any] | None = None,
    load_seed: Callable[[int], Federation] | None = None,
) -> Comparison:
    """Compare methods under the profile's training, with some changes.

    The data are the profile's, in this partition, or what `load_seed` returns for each seed.
    """
    return run_comparison(
        CompareSettings(
            federation=DataSettings(
                data=profile_data(settings), data_root=settings.data_root, partition=partition
            ),
            training=training_settings(settings, changes),
            seeds=settings.seeds,
            jobs=settings.jobs,
        ),
        with_reference(methods),
        data=load_seed,
        uncertainty=profile_uncertainties(settings),
        out=out,
        resume=out is not None and RunFolder(out).holds_a_run,
        on_progress=progress,
    )


def prefix_progress(progress: OnProgress | None, part: str) -> OnProgress | None:
    """Return a callback that puts `part` before labels.

    Several parts train the same methods on the same seeds; a progress bar has to tell them apart.
    """
    if progress is None:
        return None
    return lambda event: progress(replace(event, label=f"{part}, {event.label}"))


def paper_partition(settings: ReproduceSettings) -> str | None:
    """Return the paper's shards, or None for data with a partition of their own."""
    size = SHARD_SIZE.get(data_name(settings))
    return None if size is None else _shards(settings, size)


def _shards(settings: ReproduceSettings, size: int, mix: Sequence[str] = ()) -> str:
    """Return shards of this size as the profile cuts them, dealt as `mix` says."""
    option = PROFILES[settings.profile].shard_options.get(data_name(settings))
    parts = [f"size={size}", f"mix={'+'.join(mix)}" if mix else "", option or ""]
    return f"shards:{','.join(filter(None, parts))}"


def _shard_size(settings: ReproduceSettings, table: str) -> int:
    name = data_name(settings)
    if name not in SHARD_SIZE:
        raise SettingsError(
            f"data: {table} needs shards; {name} has none, use {', '.join(SHARD_SIZE)}"
        )
    return SHARD_SIZE[name]


def _table_fields(settings: ReproduceSettings, rounds: int, title: str) -> dict[str, Any]:
    published_for = published_counterpart(data_name(settings))
    training = training_settings(settings)
    return {
        "data": title,
        "profile": settings.profile,
        "seeds": tuple(settings.seeds),
        "rounds": rounds,
        "published_for": published_for,
        "same_data": published_for == data_name(settings) and "regenerated" not in title,
        "setting": {
            "model": settings.model,
            "training": f"learning rate {training.lr}, momentum {training.momentum}, "
            f"batches of {training.batch_size}, {training.local_epochs} local epoch; "
            f"alone {training.uncertainty_epochs} epochs of "
            f"{training.uncertainty_optimiser} at {training.uncertainty_lr}",
            "profile": PROFILES[settings.profile].summary,
        },
    }


@dataclass(frozen=True)
class SoloTask:
    """A task for one process: every client of one seed trains alone."""

    settings: ReproduceSettings
    training: TrainingSettings
    seed: int

    def __call__(self, send: Callable[[Any], None]) -> dict[str, Any]:
        """Return the columns of `train_solo` and the name and fingerprint of the data."""
        federation = load(
            profile_data(self.settings),
            None,
            paper_partition(self.settings),
            self.seed,
            self.settings.data_root,
        )
        with one_thread(), thread_limit(self.training.workers or available_cores()):
            columns = train_solo(federation, self.training, self.seed)
        send(Progress(SOLO_LABEL, self.seed, "alone", 1, 1))
        return {"title": federation.name, "fingerprint": federation.fingerprint, **columns}


def train_solo(
    federation: Federation, training: TrainingSettings, seed: int
) -> dict[str, list[float | None]]:
    """Train each client alone; return its scores and its uncertainty, in client order.

    Accuracies are on the client's own test part and on the clean test set, in percent; the loss is
    on its own train part. The loss and the uncertainty of a model that diverged are None.
    """
    engine = make_engine(
        RunSpec(FedAvg(), training, seed).build_model(FederationInfo.of(federation)),
        federation.clients,
        training.engine,
        training.device,
        training.workers,
    )
    with closing(engine):
        trained = train_alone(federation, engine, training, seed)
        own = [client.test for client in federation.clients]
        losses, _ = _evaluate(engine, trained, [client.train for client in federation.clients])
        _, local = _evaluate(engine, trained, own)
        _, clean = _evaluate(engine, trained, [federation.test] * len(own))
        uncertainties = entropies(federation, engine, trained).values()
        return {
            "local_accuracy": [100 * accuracy for accuracy in local],
            "clean_accuracy": [100 * accuracy for accuracy in clean],
            "train_loss": [finite_or_none(loss) for loss in losses],
            "uncertainty": [finite_or_none(value) for value in uncertainties],
        }


def _evaluate(
    engine: Engine, models: Sequence[tuple[Tensor, Tensor]], parts: Sequence[Examples]
) -> tuple[list[float], list[float]]:
    """Return the loss and the accuracy of each model, vector and buffers, on its own part."""
    scores = [
        engine.evaluate(*model, EvaluationSet([part.on(engine.device)]))
        for model, part in zip(models, parts, strict=True)
    ]
    return [float(losses[0]) for losses, _ in scores], [float(right[0]) for _, right in scores]


def reproduce_solo(
    settings: ReproduceSettings, out: Path | None = None, progress: OnProgress | None = None
) -> SoloTable:
    """Run the table of clients that train alone, on the federations of the main table."""
    _shard_size(settings, "the table of clients that train alone")
    folder = _open_solo_folder(out, settings)
    try:
        by_seed = _train_seeds(settings, folder, progress)
    finally:
        if folder:
            folder.unlock()
    return _solo_table(settings, [by_seed[seed] for seed in settings.seeds])


def _train_seeds(
    settings: ReproduceSettings, folder: RunFolder | None, progress: OnProgress | None
) -> dict[int, dict[str, Any]]:
    """Return the columns of each seed: from the folder, or by training."""
    jobs = min(settings.jobs or available_cores(), len(settings.seeds))
    training = training_settings(
        settings, {"workers": settings.workers or max(1, available_cores() // jobs)}
    )

    def receive(event: Progress) -> None:
        if progress:
            progress(event)

    by_seed: dict[int, dict[str, Any]] = {}
    for seed in settings.seeds:
        saved = folder.read_json(f"seed-{seed}.json") if folder else None
        if isinstance(saved, dict):
            by_seed[seed] = saved
            receive(Progress(SOLO_LABEL, seed, "resumed", 1, 1))
    missing = [seed for seed in settings.seeds if seed not in by_seed]
    # One batch of seeds at a time: finished seeds are on disk before the next batch begins.
    for start in range(0, len(missing), jobs):
        tasks = [SoloTask(settings, training, seed) for seed in missing[start : start + jobs]]
        finished = (
            run_in_processes(tasks, jobs, receive)
            if jobs > 1
            else [task(receive) for task in tasks]
        )
        for task, columns in zip(tasks, finished, strict=True):
            by_seed[task.seed] = columns
            if folder:
                folder.write_json(f"seed-{task.seed}.json", columns)
    return by_seed


def _solo_table(settings: ReproduceSettings, by_seed: Sequence[Mapping[str, Any]]) -> SoloTable:
    rows = []
    for index, clean in enumerate(clean_shards(len(by_seed[0]["uncertainty"]))):
        number, ambiguous = index + 1, SHARDS_PER_CLIENT - clean
        rows.append(
            Row(
                name=f"client {number}",
                subtitle=f"{clean} clean, {ambiguous} ambiguous",
                details={"client": number, "clean_shards": clean, "ambiguous_shards": ambiguous},
                values={
                    column.key: summarise(
                        [_value(columns, column.key, index) for columns in by_seed]
                    )
                    for column in SoloTable.columns
                },
            )
        )
    return SoloTable(
        rows=tuple(rows), **_table_fields(settings, settings.epochs, by_seed[0]["title"])
    )


def _value(columns: Mapping[str, Any], key: str, index: int) -> float | None:
    """Return a client's number; None if the seed was finished before this was measured."""
    value: float | None = columns[key][index] if key in columns else None
    return value


def _open_solo_folder(out: Path | None, settings: ReproduceSettings) -> RunFolder | None:
    """Open or create the folder for finished seeds; refuse a folder of other settings."""
    if out is None:
        return None
    folder = RunFolder(out)
    unrelated = {"seeds", "jobs", "workers", "data_root", "rounds"}
    manifest = {"solo": json.loads(json.dumps(settings.model_dump(exclude=unrelated)))}
    if not folder.holds_a_run:
        return RunFolder.create(out, manifest, versions())
    if folder.read_settings("solo")["solo"] != manifest["solo"]:
        raise StorageError(
            f"{out} was started with other settings; use the same, or another folder"
        )
    folder.lock()
    return folder


def reproduce_distributions(
    settings: ReproduceSettings, out: Path | None = None, progress: OnProgress | None = None
) -> DistributionsTable:
    """Run FedAvg under the three distributions of Appendix A."""
    size = _shard_size(settings, "the table of distributions")
    shards = {
        setting: [f"{clean}/{ambiguous}" for clean, ambiguous in mix]
        for setting, mix in DISTRIBUTIONS.items()
    }
    rows = []
    for setting, mix in shards.items():
        # FedAvg uses no uncertainties and the table shows none, so one epoch alone is enough.
        comparison = compare_methods(
            settings,
            [FedAvg()],
            inner_folder(out, setting) if out else None,
            prefix_progress(progress, setting),
            partition=_shards(settings, size, mix),
            changes={"uncertainty_epochs": 1},
        )
        rows.append(Row(name=setting, values=_client_columns(comparison.rows[0])))
    fields = _table_fields(settings, settings.rounds, comparison.data)
    if fields["published_for"] != DISTRIBUTIONS_DATA:
        fields |= {"published_for": None, "same_data": False}
    fields["setting"] |= {
        f"shards, {setting}": f"clean/ambiguous {', '.join(mix)}" for setting, mix in shards.items()
    }
    return DistributionsTable(rows=tuple(rows), **fields)


def _client_columns(row: MethodSummary) -> dict[str, Summary]:
    accuracies = enumerate(row.client_scores.values(), start=1)
    # The paper prints this one with N - 1 clients in the denominator (ddof 1), unlike its main
    # table: 94.56, 91.50, 94.47, 95.2 and 94.87 have 1.49 so, and 1.33 with N.
    factor = math.sqrt(len(row.client_scores) / (len(row.client_scores) - 1))
    deviations = [None if v is None else factor * v for v in row.metrics["std"].values]
    return {
        **{f"client_{number}": accuracy for number, accuracy in accuracies},
        "global_accuracy": row.metrics["global_accuracy"],
        "std": summarise(deviations),
    }

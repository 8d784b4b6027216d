"""Several methods on the same federations, seed by seed, with FedAvg always among them as the reference for Psi."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from udjfl._threads import cores
from udjfl.errors import SettingsError, StorageError, did_you_mean
from udjfl.methods import (
    ALIASES,
    METHODS,
    FedAvg,
    Method,
    fixed_parameters,
    parameter_names,
    parse_method,
)
from udjfl.metrics import METRICS
from udjfl.settings import CompareSettings, DataSettings, training_part
from udjfl.simulation.oneseed import GivenFederation, SeedTask, check_methods, federation_of
from udjfl.simulation.process_pool import in_processes, why_not_apart
from udjfl.simulation.simulate import given_uncertainties
from udjfl.statistics import THEORY_METRIC, Paired, Summary, metric_of, paired, ranked, summarise
from udjfl.training.keeping import check_complete, versions
from udjfl.training.result import Outcome, Result
from udjfl.training.run_folder import RunFolder
from udjfl.uncertainty import Uncertainty

logger = logging.getLogger("udjfl")
# Called with the method, the seed, the stage ("uncertainty", "training" or "resumed"), how much is done, and of how much.
CompareProgress = Callable[[Method, int, str, int, int], None]


@dataclass(frozen=True)
class MethodSummary:
    """One method over all seeds.

    `against_fedavg` has a paired test for every metric, and is empty for the reference itself. `undefined` says why a metric
    has no value on some seed; `failed` says on which seeds the method did not get through its training, and why; `notes` are
    what a reader has to know about the method on this federation.
    """

    method: Method
    metrics: dict[str, Summary]
    against_fedavg: dict[str, Paired]
    client_accuracy: dict[str, Summary]
    uncertainty: dict[str, Summary]
    undefined: dict[str, list[str]]
    failed: dict[int, str]
    notes: list[str]


@dataclass(frozen=True)
class Comparison:
    """Methods side by side; the reference, FedAvg, is the first row. `own_data`: not those that the settings name."""

    data: str
    seeds: tuple[int, ...]
    settings: CompareSettings
    rows: tuple[MethodSummary, ...]
    own_data: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {
            "data": self.data,
            "seeds": list(self.seeds),
            # With data of one's own, the settings that name data say nothing.
            "settings": self.settings.model_dump(
                exclude={*DataSettings.model_fields} if self.own_data else None
            ),
            "versions": versions(),
            "reference": self.rows[0].method.label,
            "methods": [_row_as_dict(row, self.seeds) for row in self.rows],
            "rankings": {theory: _ranking_as_dict(theory, self.rows) for theory in THEORY_METRIC},
        }


def _interval(summary: Summary) -> dict[str, Any]:
    return {"mean": summary.mean, "ci95": list(summary.ci95) if summary.ci95 else None}


def _ranking_as_dict(theory: str, rows: Sequence[MethodSummary]) -> dict[str, Any]:
    metric = metric_of(theory)
    order = []
    for place in ranked(theory, [row.metrics for row in rows]):
        method = rows[place.entry].method
        named = {
            "rank": place.rank,
            "label": method.label,
            "method": method.name,
            "grade": method.grade,
        }
        order.append(
            {
                **named,
                "serves": theory in method.theories,
                **_interval(place.value),
                "seeds": place.value.n,
            }
        )
    return {
        "metric": metric.key,
        "better": "higher" if metric.better > 0 else "lower",
        "order": order,
    }


def _row_as_dict(row: MethodSummary, seeds: Sequence[int]) -> dict[str, Any]:
    def plain(summary: Summary) -> dict[str, Any]:
        return {**_interval(summary), "values": list(summary.values)}

    return {
        "method": row.method.name,
        "theory": list(row.method.theories),
        "label": row.method.label,
        "grade": row.method.grade,
        "params": row.method.params,
        "seeds": list(seeds),
        **{key: plain(summary) for key, summary in row.metrics.items()},
        "client_accuracy": {
            client: plain(summary) for client, summary in row.client_accuracy.items()
        },
        "uncertainty": {client: plain(summary) for client, summary in row.uncertainty.items()},
        "against_fedavg": {key: asdict(test) for key, test in row.against_fedavg.items()},
        "undefined": row.undefined,
        "failed": {str(seed): reason for seed, reason in row.failed.items()},
        "notes": row.notes,
    }


def chosen_methods(settings: CompareSettings) -> list[Method]:
    """The methods of a comparison, FedAvg by size in front. Every mistake in any of them is reported at once."""
    methods: list[Method] = []
    mistakes: list[str] = []
    known: set[str] = set()
    for text in _spelled_out(settings.methods):
        try:
            names = parameter_names(text)
            known |= names
            fixed = fixed_parameters(text)
            own = {
                key: value
                for key, value in settings.params.items()
                if key in names and key not in fixed
            }
            methods.append(parse_method(text, own))
        except SettingsError as error:
            mistakes += error.mistakes
    for key in sorted(set(settings.params) - known):
        mistakes.append(
            f"params: none of the chosen methods has a parameter {key!r}.{did_you_mean(key, known)}"
        )
    if mistakes:
        raise SettingsError(mistakes)
    return with_reference(methods)


def _spelled_out(names: Sequence[str]) -> list[str]:
    """`all` stands for every method; for a family, its named points."""
    families = {target for target, _ in ALIASES.values()}
    everything = [name for name in METHODS if name not in families] + list(ALIASES)
    return [name for given in names for name in (everything if given == "all" else [given])]


def with_reference(methods: Sequence[Method]) -> list[Method]:
    """FedAvg by size, then the others, each once."""
    every = [FedAvg(), *methods]
    return [method for row, method in enumerate(every) if method not in every[:row]]


def compare(
    settings: CompareSettings,
    *,
    federation: GivenFederation = None,
    methods: Sequence[Method] | None = None,
    uncertainty: Mapping[str, float] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: CompareProgress | None = None,
) -> Comparison:
    """Run every method on every seed's federation and compare.

    The federation of a seed is loaded as the settings say. For your own data give `federation`: one federation, so that only
    the training is seeded, or a function from the seed to one. `methods` replaces those named in the settings, `uncertainty`
    (a number by client id) what would be measured. `out` keeps every run in a folder of its own; with `resume=True` finished
    runs found there are not run again. A method whose training fails on a seed, or that is not defined for the federation, has
    no values there and the reason in `failed`; if the reference itself fails, so does the comparison. Methods of one seed train
    side by side; seeds are spread over `settings.jobs` processes. Neither changes a number. (From a script, more than one job
    needs the usual `if __name__ == "__main__":`.)
    """
    chosen = chosen_methods(settings) if methods is None else with_reference(methods)
    jobs = min(settings.jobs or cores(), len(settings.seeds))
    training = training_part(settings)
    training = training.model_copy(update={"workers": training.workers or max(1, cores() // jobs)})
    known = None if uncertainty is None else Uncertainty("given", given_uncertainties(uncertainty))
    first = federation_of(federation, settings, settings.seeds[0])
    if known is not None:
        check_complete(known, first)
    check_methods(
        first, tuple(chosen), training, settings.seeds[0]
    )  # a mistake shows before anything is written
    root = None
    if out is not None:
        about = {
            "comparison": settings.model_dump(),
            "methods": [{"method": method.name, "params": method.params} for method in chosen],
            "from_python": methods is not None or federation is not None or uncertainty is not None,
        }
        root = _comparison_folder(out, about, resume)
    # The first federation is at hand already; another process makes its own, which is less work than to send it there.
    given = [
        first if place == 0 and jobs == 1 else federation for place in range(len(settings.seeds))
    ]
    tasks = [
        SeedTask(
            source,
            settings,
            training,
            tuple(chosen),
            seed,
            first.ids,
            root / f"seed-{seed}" if root else None,
            known,
        )
        for source, seed in zip(given, settings.seeds, strict=True)
    ]
    by_seed = dict(zip(settings.seeds, _done(tasks, jobs, _told(progress, chosen)), strict=True))
    results = [
        {seed: by_seed[seed][place] for seed in settings.seeds} for place in range(len(chosen))
    ]
    rows = tuple(
        summarised(m, of_method, _succeeded(results[0]))
        for m, of_method in zip(chosen, results, strict=True)
    )
    comparison = Comparison(
        first.name, tuple(settings.seeds), settings, rows, own_data=federation is not None
    )
    if root:
        RunFolder(root).write_json("comparison.json", comparison.as_dict())
    return comparison


def _done(
    tasks: Sequence[SeedTask], jobs: int, heard: Callable[[Any], None]
) -> list[list[Result | str]]:
    """The seeds one after the other, or in processes, with the same results."""
    if jobs > 1:
        reason = why_not_apart(tasks)
        if reason is None:
            return in_processes(tasks, jobs, heard)
        logger.warning(
            "The seeds run one after the other: they cannot be sent to other processes (%s).",
            reason,
        )
    return [task(heard) for task in tasks]


def _told(progress: CompareProgress | None, methods: Sequence[Method]) -> Callable[[Any], None]:
    def heard(message: tuple[int, int, str, int, int]) -> None:
        place, seed, stage, done, total = message
        if progress:
            progress(methods[place], seed, stage, done, total)

    return heard


def _succeeded(by_seed: Mapping[int, Result | str]) -> dict[int, Result]:
    return {seed: result for seed, result in by_seed.items() if isinstance(result, Result)}


def _comparison_folder(out: str | os.PathLike[str], about: Mapping[str, Any], resume: bool) -> Path:
    folder = RunFolder(Path(out))
    about = json.loads(json.dumps(about))  # as it will be read back: tuples become lists
    if folder.holds_a_run:
        if not resume:
            raise StorageError(
                f"{folder.path} already holds a comparison; continue it with `udjfl resume {folder.path}`, "
                "or choose another folder"
            )
        old = folder.read_settings("comparison")
        names = {"comparison": "settings", "methods": "methods", "from_python": "data or methods"}
        changed = [
            name
            for key, name in names.items()
            if _that_matters(old.get(key)) != _that_matters(about[key])
        ]
        if changed:
            raise StorageError(
                f"{folder.path} was started with other {' and '.join(changed)}; resume it with the same"
            )
        return folder.path
    return RunFolder.create(out, about, versions()).path


def _that_matters(about: Any) -> Any:
    """What was chosen, without what changes no number: how many cores and processes do the work, and where the data are.

    That they are the same data is checked run by run, by their fingerprint.
    """
    return (
        {k: v for k, v in about.items() if k not in ("jobs", "workers", "data_root")}
        if isinstance(about, dict)
        else about
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summarised(
    method: Method, by_seed: Mapping[int, Outcome | str], references: Mapping[int, Outcome]
) -> MethodSummary:
    """One method over seeds, beside the reference on the same seeds. A text in place of an outcome says what went wrong."""
    results = {seed: result for seed, result in by_seed.items() if not isinstance(result, str)}

    def values(of: Mapping[int, Outcome], key: str) -> list[float | None]:
        # The reference has no psi of its own, as psi is measured from it: zero by definition, if there are two clients.
        default = 0.0 if key == "psi" and len(ids) > 1 else None
        return [of[seed].metrics.get(key, default) if seed in of else None for seed in by_seed]

    ids = list(next(iter(references.values())).client_accuracy)
    tests = {m.key: paired(values(results, m.key), values(references, m.key)) for m in METRICS}
    return MethodSummary(
        method=method,
        metrics={m.key: summarise(values(results, m.key)) for m in METRICS},
        against_fedavg={}
        if all(results.get(seed) is r for seed, r in references.items())
        else tests,
        client_accuracy={
            i: summarise(
                [results[seed].client_accuracy[i] if seed in results else None for seed in by_seed]
            )
            for i in ids
        },
        uncertainty={
            i: summarise([_known(r.uncertainty[i]) for r in references.values()]) for i in ids
        },
        undefined={
            key: sorted({r.undefined[key] for r in results.values() if key in r.undefined})
            for key in sorted({key for r in results.values() for key in r.undefined})
        },
        failed={seed: result for seed, result in by_seed.items() if isinstance(result, str)},
        notes=sorted({note for result in results.values() for note in result.notes}),
    )


__all__ = ["Comparison", "MethodSummary", "chosen_methods", "compare"]

"""Compare methods on the same federations, seed by seed, with FedAvg as the reference."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from udjfl._threads import available_cores
from udjfl.data import Federation
from udjfl.engine import one_thread
from udjfl.errors import SettingsError, StorageError, did_you_mean
from udjfl.methods import (
    ALIASES,
    METHODS,
    FedAvg,
    Method,
    fixed_parameters,
    parameter_names,
    shared_parameters,
)
from udjfl.methods import method as build_method
from udjfl.models import ModelChoice
from udjfl.settings import CompareSettings
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary, summarise_method
from udjfl.simulation.prepare import prepare_methods
from udjfl.simulation.programs import ProgramTask, run_programs, seeds_per_program, share_seeds
from udjfl.simulation.simulate import (
    DataChoice,
    as_method,
    given_uncertainties,
    load_and_warn,
    show_settings,
    validate_keywords,
)
from udjfl.training.federation_info import FederationInfo
from udjfl.training.folder_check import refuse_damage
from udjfl.training.learned import log_warning
from udjfl.training.lifecycle import check_complete, versions
from udjfl.training.observers import observe
from udjfl.training.records import OnProgress
from udjfl.training.result import FinishedRun
from udjfl.training.resuming import advise_to_resume
from udjfl.training.run_folder import RunFolder
from udjfl.uncertainty import Uncertainty


def compare(
    data: DataChoice,
    methods: Method | str | Sequence[Method | str],
    model: ModelChoice = "mlp",
    *,
    seeds: int | Sequence[int] = 5,
    jobs: int = 1,
    uncertainty: str | Mapping[str, float] = "crossfit",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    progress: bool = False,
    log: str | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method on every seed's federation, and compare them with FedAvg.

    data         a federation (then only the training depends on the seed), a function from the
                 seed to one, or a name such as "dirty-digits"
    methods      methods or their specifications, or one text such as "fedavg,rawls" or "all";
                 FedAvg is always among them
    model        as in `udjfl.simulate`
    seeds        how many (from 0), or which
    jobs         processes that share the seeds; 0: one for each core. From a script, more than one
                 needs the usual `if __name__ == "__main__":`
    uncertainty  how to measure it, or the clients' uncertainties by id
    out, resume  keep every run in a folder of its own; finished runs found there are not run again
    on_progress, progress, log  as in `udjfl.simulate`

    Every other keyword is a setting, as in `udjfl.simulate`. A method whose training fails on a
    seed, or that is not defined for the federation, has no values there and the reason in
    `failed`; if the reference itself fails, so does the comparison. Methods train in lockstep, and
    so do the seeds of small federations; neither that nor the number of jobs changes a number.
    """
    if isinstance(methods, Method):
        methods = [methods]
    given_methods = methods.split(",") if isinstance(methods, str) else methods
    named = [m for m in given_methods if isinstance(m, str)]
    by_name = len(named) == len(given_methods)
    values: dict[str, Any] = {**settings, "seeds": seeds, "jobs": jobs}
    if by_name:
        values["methods"] = [text.strip() for text in named if text.strip()]
    elif "params" in settings:
        raise SettingsError("params: apply to methods given by name; give them to the methods")
    if isinstance(uncertainty, str):
        values["uncertainty"] = uncertainty
    chosen = validate_keywords(CompareSettings, data, model, values)
    if by_name:
        rules = choose_methods(chosen)
    else:
        rules = with_reference([as_method(method) for method in given_methods])
    given = None if isinstance(uncertainty, str) else uncertainty
    with observe(
        on_progress,
        progress=progress,
        log=log,
        runs=len(rules) * len(chosen.seeds),
        rounds=chosen.training.rounds,
        parameters=chosen.to_flat(),
    ) as observer:
        comparison = run_comparison(
            chosen,
            rules,
            data=data,
            model=model,
            uncertainty=given,
            out=out,
            resume=resume,
            on_progress=observer,
            by_name=by_name,
        )
    log_warning(comparison.warning)
    return comparison


show_settings(compare)


def run_comparison(
    settings: CompareSettings,
    methods: Sequence[Method],
    *,
    data: DataChoice | None = None,
    model: ModelChoice | None = None,
    uncertainty: Mapping[str, float] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    by_name: bool = False,
    first: Federation | None = None,
) -> Comparison:
    """Compare methods, the reference first; as `compare`, with its settings in one value.

    `data` and `model` replace those that the settings name. `by_name` says that the settings name
    these methods, so that the command line can resume the comparison. `first` is the federation of
    the first seed, if it is loaded already and its problems are logged.
    """
    data = settings.federation.data if data is None else data
    jobs = min(settings.jobs or available_cores(), len(settings.seeds))
    given = None if uncertainty is None else Uncertainty("given", given_uncertainties(uncertainty))
    if first is None:
        first = load_and_warn(data, settings.federation, settings.seeds[0])
    if given is not None:
        check_complete(given, first.ids)
    with one_thread():  # a mistake shows before anything is written
        prepared = prepare_methods(
            FederationInfo.of(first), methods, settings.training, settings.seeds[0], model
        )
    together = seeds_per_program(
        first, prepared.base_model, settings.training, len(methods), out is not None
    )
    own_data = not isinstance(data, str)
    in_settings = by_name and not own_data and not callable(model) and uncertainty is None
    root = None
    if out is not None:
        root = _comparison_folder(out, _describe(settings, methods, not in_settings), resume)
    try:
        folder = root.path if root else None
        shared = _share_cores(settings, jobs)
        task = ProgramTask(data, model, shared, tuple(methods), first.ids, given, folder)
        rows = _train_rows(task, first, jobs, together, on_progress)
        comparison = Comparison(first.name, tuple(settings.seeds), settings, rows, own_data)
        if root:
            root.write_json("comparison.json", comparison.as_dict())
    finally:
        if root:
            root.unlock()
    return comparison


def _share_cores(settings: CompareSettings, jobs: int) -> CompareSettings:
    """Return settings in which each of the processes has an equal share of the cores."""
    workers = settings.training.workers or max(1, available_cores() // jobs)
    training = settings.training.model_copy(update={"workers": workers})
    return settings.model_copy(update={"training": training})


def _train_rows(
    task: ProgramTask,
    first: Federation,
    jobs: int,
    together: int,
    on_progress: OnProgress | None,
) -> tuple[MethodSummary, ...]:
    """Train the methods of a task on all seeds and summarise each; `first` has the first seed."""
    seeds, methods = task.settings.seeds, task.methods
    tasks = [replace(task, seeds=share) for share in share_seeds(seeds, jobs, together)]
    # The first federation is loaded already; another process loads its own, which is less
    # work than to send it there.
    if jobs == 1:
        tasks[0] = replace(tasks[0], first=first)
    results = [of_seed for program in run_programs(tasks, jobs, on_progress) for of_seed in program]
    by_seed = dict(zip(seeds, results, strict=True))
    columns = [{seed: by_seed[seed][i] for seed in by_seed} for i in range(len(methods))]
    references = {s: run for s, run in columns[0].items() if isinstance(run, FinishedRun)}
    return tuple(
        summarise_method(method, column, references)
        for method, column in zip(methods, columns, strict=True)
    )


def choose_methods(settings: CompareSettings) -> list[Method]:
    """Return the methods that the settings name, FedAvg by size in front.

    Mistakes in all of them are reported at once.
    """
    methods: list[Method] = []
    mistakes: list[str] = []
    known: set[str] = set()
    names = _expand_all(settings.methods)
    for text in names:
        try:
            known |= parameter_names(text)
            methods.append(build_method(text, **shared_parameters(text, settings.params)))
        except SettingsError as error:
            mistakes += error.mistakes
    for key in sorted(set(settings.params) - known):
        hint = did_you_mean(key, known)
        mistakes.append(f"params: none of the chosen methods has a parameter {key!r}.{hint}")
    if not mistakes:
        mistakes = _find_unused(names, settings.params)
    if mistakes:
        raise SettingsError(mistakes)
    return with_reference(methods)


def _find_unused(names: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """Return why shared parameters have no meaning for any of the methods that have them."""
    used = {key for text in names for key in shared_parameters(text, params)}
    mistakes: list[str] = []
    for key in params:
        having = [t for t in names if key in parameter_names(t) - set(fixed_parameters(t))]
        if key in used or not having:
            continue
        try:
            build_method(having[0], **{**shared_parameters(having[0], params), key: params[key]})
        except SettingsError as error:
            mistakes += error.mistakes
    return mistakes


def _expand_all(names: Sequence[str]) -> list[str]:
    """Replace `all` and `baselines` by the methods; a family counts as its named points."""
    families = {target for target, _ in ALIASES.values()}
    baselines = [name for name, cls in METHODS.items() if cls.baseline]
    fair = [name for name in METHODS if name not in (*families, *baselines)]
    groups = {"all": [*fair, *ALIASES], "baselines": baselines}
    return [name for given in names for name in groups.get(given, [given])]


def with_reference(methods: Sequence[Method]) -> list[Method]:
    """Return FedAvg by size, then the other methods, each once."""
    every = [FedAvg(), *methods]
    return [method for index, method in enumerate(every) if method not in every[:index]]


def _describe(
    settings: CompareSettings, methods: Sequence[Method], from_python: bool
) -> dict[str, Any]:
    description = {
        "comparison": settings.to_flat(),
        "methods": [{"method": m.spec_name, "params": m.params} for m in methods],
        "from_python": from_python,
    }
    plain: dict[str, Any] = json.loads(json.dumps(description))  # tuples become lists
    return plain


def _comparison_folder(
    out: str | os.PathLike[str], description: Mapping[str, Any], resume: bool
) -> RunFolder:
    """Create the folder of a comparison or, resuming, open the one that is there; it is locked."""
    folder = RunFolder(Path(out))
    if not folder.holds_a_run:
        return RunFolder.create(out, description, versions())
    if not resume:
        raise StorageError(
            f"{folder.path} already holds a comparison; continue it with "
            f"{advise_to_resume(folder.path)}, or choose another folder"
        )
    folder.lock()
    try:
        refuse_damage(folder, resuming=True)
        old = folder.read_settings("comparison")
        names = {"comparison": "settings", "methods": "methods", "from_python": "data or methods"}
        changed = [
            name
            for key, name in names.items()
            if _decides_numbers(old.get(key)) != _decides_numbers(description[key])
        ]
        if changed:
            advice = (
                "resume it with the same"
                if folder.manifest is not None
                else "if an older version of udjfl made it, start it again in another folder"
            )
            raise StorageError(
                f"{folder.path} was started with other {' and '.join(changed)}; {advice}"
            )
    except BaseException:
        folder.unlock()
        raise
    return folder


def _decides_numbers(description: Any) -> Any:
    """Return what was chosen, without what changes no number: cores, processes, data folder.

    That the data are the same is checked run by run, by their fingerprint.
    """
    if not isinstance(description, dict):
        return description
    ignored = ("jobs", "workers", "data_root")
    return {key: value for key, value in description.items() if key not in ignored}

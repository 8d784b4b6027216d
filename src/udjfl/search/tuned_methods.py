"""Uses of a choice: a TOML file of the chosen point, and several methods tuned alike."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from udjfl._files import inner_folder
from udjfl.errors import SettingsError
from udjfl.methods import UDJ, FedAvg, Method
from udjfl.methods import method as build_method
from udjfl.search.halving import HalvingPlan
from udjfl.search.point_runs import point_name
from udjfl.search.progress import SearchProgress
from udjfl.search.settings import TuneSettings
from udjfl.search.spaces import find_space
from udjfl.search.tune import choose_point
from udjfl.settings import CompareSettings, DataSettings
from udjfl.training.records import OnProgress
from udjfl.uncertainty import Uncertainty
from udjfl.verdicts import MARGIN


def tune_methods(
    settings: CompareSettings,
    methods: Sequence[Method],
    *,
    budget: float = MARGIN,
    out: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> list[Method]:
    """Return the methods with parameters chosen on held-out data, each by the same search.

    A method is tuned for the first theory it serves, within the same budget; one that has nothing
    to search, and FedAvg, stay as they are. With a folder, each search is kept there.
    """
    tuned = []
    measured: dict[int, Uncertainty] = {}  # all searches have the same seeds
    searches = {
        method: search
        for method in methods
        if (search := _search_of(method, settings, budget)) is not None
    }
    progress = _expect_searches(on_progress, searches)
    for method in methods:
        search = searches.get(method)
        if search is None:
            tuned.append(method)
            continue
        progress.name = f"{method.label}: "
        folder = None if out is None else inner_folder(Path(out), point_name(method))
        choice = choose_point(
            search,
            method,
            out=folder,
            on_progress=progress,
            strict=False,
            uncertainties=measured,
        )
        tuned.append(choice.chosen.candidate.method)
    return tuned


def _search_of(method: Method, settings: CompareSettings, budget: float) -> TuneSettings | None:
    """Return the search of a method; None if it stays as it is."""
    theory = _theory_of(method)
    if method == FedAvg() or not find_space(method, theory, budget)[0]:
        return None
    return TuneSettings(
        federation=settings.federation,
        training=settings.training,
        seeds=settings.seeds,
        jobs=settings.jobs,
        theory=theory,
        budget=budget,
    )


def _expect_searches(
    on_progress: OnProgress | None, searches: Mapping[Method, TuneSettings]
) -> SearchProgress:
    """Return one progress for all searches, with the rounds of each."""
    progress = SearchProgress(on_progress)
    for method, search in searches.items():
        progress.name = f"{method.label}: "
        plan = HalvingPlan.make(search, *find_space(method, search.theory, search.budget))
        progress.expect(plan.expected_rounds(len(search.seeds)))
    return progress


def _theory_of(method: Method) -> Any:
    own = method.theory if isinstance(method, UDJ) else None
    return own or next(iter(method.theories), "utilitarian")


def to_spec(method: Method) -> str:
    """Return the text from which `udjfl.method` builds this method."""
    parts = [f"{key}={value}" for key, value in method.params.items() if value is not None]
    spec = ":".join([method.spec_name, *parts])
    if build_method(spec) != method:
        raise SettingsError(f"methods: {method.label} cannot be written as text")
    return spec


def tuned_config(settings: TuneSettings, method: Method) -> str:
    """Return the TOML file with which `udjfl run --config` trains a chosen point."""
    flat = {**settings.federation.to_flat(), **settings.training.to_flat()}
    usual = {**DataSettings().to_flat(), **type(settings.training)().to_flat()}
    chosen = {key: value for key, value in flat.items() if value != usual[key] or key == "data"}
    chosen = {key: value for key, value in chosen.items() if key not in ("workers", "data_root")}
    params = {key: value for key, value in method.params.items() if value is not None}
    lines = [
        f"# Chosen by `udjfl tune` for the {settings.theory} theory on held-out data.",
        f"method = {_toml(method.spec_name)}",
        *(f"{key} = {_toml(value)}" for key, value in chosen.items()),
        "",
        "[params]",
        *(f"{key} = {_toml(value)}" for key, value in params.items()),
    ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Return a value as TOML has it, in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml(str(k))} = {_toml(v)}' for k, v in value.items())}}}"
    # The escapes of JSON are those of TOML, which does not allow the character DEL either.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")

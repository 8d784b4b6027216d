"""Finished runs opened again, with their models: `udjfl.open`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from udjfl.errors import SettingsError, StorageError
from udjfl.models import ModelChoice
from udjfl.report.saved_comparison import read_comparison
from udjfl.report.saved_runs import read_run
from udjfl.settings import TrainingSettings, validate_settings
from udjfl.simulation.comparison import Comparison
from udjfl.training.federation_info import FederationInfo
from udjfl.training.file_names import MODEL, RESULT
from udjfl.training.inputs import Inputs
from udjfl.training.records import History
from udjfl.training.result import FinishedRun, Result, read_served
from udjfl.training.resuming import advise_to_resume
from udjfl.training.run_folder import RunFolder
from udjfl.training.state import RunSpec
from udjfl.training.tensor_file import unpack_content
from udjfl.training.trust import refuse_code


def open(
    folder: str | os.PathLike[str],
    model: ModelChoice | None = None,
    *,
    trust_model: bool = False,
) -> Result | Comparison:
    """Open a finished run: the result that `udjfl.simulate` returned, from its folder.

    The folder of a comparison gives the comparison that `udjfl.compare` returned. Of one that is
    not finished, it has the seeds that every method has, and `unfinished` says so.

    folder  the one given as `out`; runs on Flower can be opened, too
    model   the function that makes the model, or its name, if it is not one of udjfl's; a network
            with its parameters' names and shapes
    trust_model   import the model, the loss and the score that the folder names
    """
    if "comparison" in RunFolder.open(folder).read_settings():
        return read_comparison(Path(folder))
    return open_result(folder, model, trust_model=trust_model)


def open_result(
    folder: str | os.PathLike[str],
    model: ModelChoice | None = None,
    *,
    trust_model: bool = False,
) -> Result:
    """Open one finished run, as `open` does."""
    run_folder = RunFolder.open(folder)
    refuse_several(Path(folder), run_folder.read_settings())
    if not run_folder.finished:
        raise StorageError(f"{folder} is not finished; {advise_to_resume(Path(folder))} goes on")
    saved = read_run(Path(folder))
    inputs = Inputs.from_description(run_folder.read_settings("federation")["federation"])
    network = _build_network(run_folder, saved, inputs, model, trust_model)
    content = run_folder.read(MODEL)
    if content is not None:
        tensors, _ = unpack_content(content, run_folder.path / MODEL)
        network.load_state_dict(tensors)
    return Result(
        **{field.name: getattr(saved, field.name) for field in fields(FinishedRun)},
        model=network.eval(),
        history=History(list(run_folder.read_records())),
        folder=run_folder,
        served=read_served(run_folder),
        inputs=inputs,
    )


def refuse_several(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse folders of searches and comparisons, and say how to come by one model."""
    name = shlex.quote(str(folder))
    if "tune" in settings:
        raise StorageError(
            f"{folder} holds a search; train its choice with "
            f"`udjfl run --config {name}/tuned.toml --out {name}-model`"
        )
    if "frontier" in settings:
        raise StorageError(
            f"{folder} holds a frontier of many models; train one with `udjfl run ... --out ...`"
        )
    if "comparison" in settings:
        runs = sorted(path.parent for path in folder.rglob(RESULT))
        others = [run for run in runs if not run.name.startswith("fedavg-")] or runs
        named = f", or name one of its runs, such as {others[0]}" if others else ""
        raise StorageError(
            f"{folder} holds a comparison; train one model with `udjfl run ... --out ...`{named}"
        )


def _build_network(
    folder: RunFolder,
    saved: FinishedRun,
    inputs: Inputs | None,
    model: ModelChoice | None,
    trust_model: bool,
) -> nn.Module:
    """Build the network of a run, with the parameters of its settings; its values come later."""
    settings = folder.read_settings("training", "model")
    if not trust_model:
        named = {**settings["training"], **({} if model is None else {"model": ""})}
        try:
            refuse_code(folder.path, named)
        except SettingsError as error:
            raise SettingsError(f"{error}, or give model=, the function that makes it") from None
    training = validate_settings(TrainingSettings, {**settings["training"], "device": "cpu"})
    if inputs is None or saved.n_classes is None:
        raise StorageError(
            f"{folder.path} was written by a version that did not keep the shape of an example, so "
            "its model cannot be built; `udjfl report` still shows its numbers"
        )
    info = FederationInfo(
        tuple(saved.uncertainty),
        (),
        inputs.sample(),
        saved.n_classes,
        labels_are_numbers=saved.n_classes == 0,
    )
    spec = RunSpec(saved.method, training, saved.seed, model)
    try:
        network = spec.adapt_model(spec.build_model(info))
    except SettingsError as error:
        raise SettingsError(
            f"model: {training.model!r} of {folder.path} cannot be built here ({error}); give "
            "model=, the function that makes it"
        ) from None
    shapes = {name: list(value.shape) for name, value in network.named_parameters()}
    if shapes != settings["model"]:
        raise SettingsError(
            f"model: the one of {folder.path} has other parameters than {training.model!r}; give "
            "model=, the function that makes it"
        )
    return network

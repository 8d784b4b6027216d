"""Trained models as files for other programs: ONNX and TorchScript.

The model takes a batch of examples, of any length, and returns one score for each class (logits).
"""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from udjfl._files import explain_os_errors, write_atomic
from udjfl.errors import SettingsError
from udjfl.models import to_inputs
from udjfl.training.result import Result

MISSING = "ONNX needs more packages; install them with: pip install 'udjfl[onnx]'"


def export(
    result: Result,
    path: str | os.PathLike[str],
    client: str | None = None,
    format: str | None = None,
) -> None:
    """Write the model of a result, or the one that a client is served, into a file.

    `format` is "onnx" or "torchscript"; without it the ending of the path decides (.onnx, .pt).
    """
    target = Path(path)
    by_ending = {".onnx": "onnx", ".pt": "torchscript", ".pth": "torchscript"}
    chosen = format or by_ending.get(target.suffix)
    if chosen not in WRITERS:
        raise SettingsError(
            f"format: is {format!r} for {target.name}; choose onnx or torchscript, or a name that "
            "ends in .onnx or .pt"
        )
    if result.inputs is None:
        raise SettingsError("export: the shape of an example is not known to this result")
    model = result.served_model(client).eval()
    content = WRITERS[chosen](model, to_inputs(result.inputs.sample(), model))
    with explain_os_errors(target):
        write_atomic(target, content)


def _to_torchscript(model: nn.Module, example: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # torch prefers torch.export, whose files only torch reads.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        traced: Any = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, buffer)
    return buffer.getvalue()


def _to_onnx(model: nn.Module, example: torch.Tensor) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise SettingsError(MISSING) from None
    noisy = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = noisy.level
    noisy.setLevel(logging.ERROR)  # it names packages that are not installed, and not needed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                model,
                (example,),
                input_names=["x"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    finally:
        noisy.setLevel(level)
    content: bytes = program.model_proto.SerializeToString()
    return content


WRITERS: dict[str, Callable[[nn.Module, torch.Tensor], bytes]] = {
    "onnx": _to_onnx,
    "torchscript": _to_torchscript,
}

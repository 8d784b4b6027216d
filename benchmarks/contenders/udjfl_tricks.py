"""udjfl with one trick of its engines left out: the variant says which. See `tricks.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.contenders.udjfl_grid import Together
from benchmarks.contenders.udjfl_runs import Simulation, tune_allocator
from benchmarks.work import Work
from udjfl.data import _contiguous
from udjfl.engine import Engine, SerialEngine, StackedEngine, _stacked_mlp, stacked

ALL = "all tricks"
NEVER = 1 << 62


def _evaluate_after_training() -> None:
    StackedEngine.evaluate_async = Engine.evaluate_async  # type: ignore[method-assign]


def _use_small_pages() -> None:
    _contiguous.HUGE_PAGE_BYTES = NEVER


def _keep_channels_first() -> None:
    SerialEngine._layout = torch.preserve_format  # type: ignore[assignment]


def _keep_autograd_on() -> None:
    def no_mode(*_: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    torch.inference_mode = no_mode  # type: ignore[assignment,misc]


def _plan_batches_every_round() -> None:
    stacked.PLANS = 0


def _ignore_the_cache() -> None:
    stacked.CHUNK_BYTES = NEVER


def _evaluate_on_one_core() -> None:
    def run_all(calls: Any) -> list[Any]:
        return [call() for call in calls]

    stacked.run_in_threads = run_all  # type: ignore[attr-defined]


def _multiply_settings_one_by_one() -> None:
    def is_exact(*_: object) -> bool:
        return False

    _stacked_mlp._wide_product_is_exact = is_exact  # type: ignore[assignment]


def _nothing() -> None:
    pass


# The change that leaves a trick out; engine and workers are arguments of `Simulation`.
VARIANTS: dict[str, Callable[[], None]] = {
    ALL: _nothing,
    "one worker": _nothing,
    "serial": _nothing,
    "mapped": _nothing,
    "malloc as it is": _nothing,
    "evaluation after training": _evaluate_after_training,
    "small pages": _use_small_pages,
    "channels first": _keep_channels_first,
    "autograd on": _keep_autograd_on,
    "plans not kept": _plan_batches_every_round,
    "chunks of any size": _ignore_the_cache,
    "evaluation on one core": _evaluate_on_one_core,
    "settings one by one": _multiply_settings_one_by_one,
}
SETUP = dict.fromkeys(VARIANTS, "See the table of tricks.")


def start(work: Work, variant: str) -> Simulation:
    VARIANTS[variant]()
    if variant != "malloc as it is":
        tune_allocator()
    if work.settings > 1:
        return Together(work, "auto")
    engine = variant if variant in ("serial", "mapped") else "auto"
    return Simulation(work, engine, workers=1 if variant == "one worker" else 0)

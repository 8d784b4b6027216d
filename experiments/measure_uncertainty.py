"""Compare measures of uncertainty where the label entropy is known, for UNCERTAINTY.md.

    python experiments/measure_uncertainty.py                      # all: about ten minutes
    python experiments/measure_uncertainty.py --quick --out FOLDER # a minute, to see that it works
    python experiments/measure_uncertainty.py --page               # only the page, from the CSV

It writes FOLDER/results/uncertainty.csv and FOLDER/UNCERTAINTY.md (FOLDER: experiments). Data with
files are searched for in --data-root, then as `udjfl data list` says; if they are missing, they are
left out and the page says so. Seeds begin at 100: those below were used to develop `crossfit`.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from known_entropies import Dataset, Measured, datasets
from uncertainty_page import write_page

from udjfl.engine import make_engine, one_thread
from udjfl.errors import DataError
from udjfl.settings import TrainingSettings
from udjfl.uncertainty import CrossFit, SeededClients, Uncertainty, cross_fit, entropy, measure_many
from udjfl.uncertainty.alone import task_of

FIRST_SEED = 100
COLUMNS = ("data", "seed", "measure", "seconds", "values", "truth", "order", "low", "high", "apart")
HERE = Path(__file__).parent
Numbers = Sequence[float]


@dataclass(frozen=True)
class Estimator:
    """A measure and how its models train; `is_slow` leaves it out on large data."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    is_slow: bool = False


def estimators() -> list[Estimator]:
    """Return all measures. SGD has learning rate 0.1 and momentum 0.9, Adam the authors' 0.001."""
    adam = {"uncertainty_optimiser": "adam", "uncertainty_lr": 0.001}
    paper = [
        Estimator(f"paper, {n} epochs", {"uncertainty": "paper", "uncertainty_epochs": n})
        for n in (5, 10, 30, 100, 300)
    ]
    by_adam = [
        Estimator(
            f"paper, Adam, {n} epochs",
            {"uncertainty": "paper", "uncertainty_epochs": n, **adam},
            is_slow=n == 300,
        )
        for n in (30, 100, 300)
    ]
    return [
        Estimator("crossfit"),
        Estimator("crossfit, up to 300 epochs", {"uncertainty_epochs": 300}, is_slow=True),
        Estimator("crossfit, lr 0.03", {"uncertainty_lr": 0.03}, is_slow=True),
        Estimator("crossfit, Adam", {"uncertainty_epochs": 300, **adam}),
        *paper,
        *by_adam,
        Estimator("confidence, 30 epochs", {"uncertainty": "confidence"}),
        Estimator("ensemble, 30 epochs", {"uncertainty": "ensemble"}),
    ]


def measure_parts(measured: Measured, seed: int) -> dict[str, tuple[float, Numbers]]:
    """Return variants of crossfit that one training gives, each with its seconds and values."""
    federation, start = measured.federation, time.process_time()
    (fits,) = cross_fit(
        [SeededClients(federation.clients, seed)],
        TrainingSettings(),
        "mlp",
        task_of(federation, TrainingSettings()),
        make_engine,
    )
    seconds = time.process_time() - start
    variants = {
        "crossfit, held out only": [float(fit.out_losses.mean()) for fit in fits],
        "crossfit, seen only": [float(fit.in_losses.mean()) for fit in fits],
        "crossfit, held out, not calibrated": [
            float(entropy(fit.held_out.exp()).mean()) for fit in fits
        ],
        "crossfit, held out, mixed with class frequencies": [mix_with_prior(fit) for fit in fits],
    }
    return {name: (seconds, values) for name, values in variants.items()}


def mix_with_prior(fit: CrossFit) -> float:
    """Return the mean entropy of (1 - a) q + a pi, with the share a of least held-out loss."""
    q = (fit.held_out / fit.temperature).softmax(dim=1)
    counts = torch.bincount(fit.labels, minlength=q.shape[1]).double() + 1
    mixtures = [(1 - a) * q + a * counts / counts.sum() for a in np.linspace(0, 1, 21)]
    rows = torch.arange(len(q))
    best = min(mixtures, key=lambda p: float(-p[rows, fit.labels].log().mean()))
    return float(entropy(best).mean())


def interval_columns(found: Uncertainty, truth: np.ndarray | None) -> dict[str, str]:
    """Return the ends of the intervals, and for neighbours told apart whether that is right.

    1 is right and 0 is wrong; empty where nothing is known.
    """
    intervals = {name: client.interval for name, client in (found.evidence or {}).items()}
    ends = [interval for interval in intervals.values() if interval is not None]
    if truth is None or found.evidence is None or len(ends) < len(found.values):
        return {"low": "", "high": "", "apart": ""}
    known = dict(zip(found.values, truth, strict=True))
    ordered = sorted(found.values, key=lambda name: found.values[name])
    apart = [
        str(int(known[low] < known[high]))
        for low, high in pairwise(ordered)
        if found.evidence[low].indistinct_from is None
    ]
    low, high = zip(*ends, strict=True)
    return {"low": join(low), "high": join(high), "apart": " ".join(apart)}


def measure_seed(dataset: Dataset, seed: int, wanted: Sequence[Estimator]) -> list[dict[str, Any]]:
    """Return one row for each measure on the federation of one seed."""
    measured = dataset.make(seed)
    common = {
        "data": dataset.name,
        "seed": seed,
        "truth": join(measured.truth),
        "order": join(measured.order),
    }
    rows = []
    for estimator in wanted:
        if estimator.is_slow and dataset.is_large:
            continue
        settings = TrainingSettings(workers=1, **estimator.settings)
        start = time.process_time()
        (found,) = measure_many([measured.federation], settings, [seed])
        seconds = time.process_time() - start
        own = {"measure": estimator.name, "seconds": f"{seconds:.3f}"}
        values = {"values": join(list(found.values.values()))}
        rows.append({**common, **own, **values, **interval_columns(found, measured.truth)})
    for name, (seconds, values) in measure_parts(measured, seed).items():
        own = {"measure": name, "seconds": f"{seconds:.3f}", "values": join(values)}
        rows.append({**common, **own, "low": "", "high": "", "apart": ""})
    return rows


def join(numbers: Numbers | np.ndarray | None) -> str:
    return "" if numbers is None else " ".join(f"{number:.4f}" for number in numbers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="seeds of each data set")
    parser.add_argument("--large-seeds", type=int, default=3, help="seeds of large data")
    parser.add_argument("--data-root", help="folder with the data's files")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--quick", action="store_true", help="two seeds of the quickest data")
    parser.add_argument("--page", action="store_true", help="only write the page, from the CSV")
    options = parser.parse_args()
    path = options.out / "results" / "uncertainty.csv"
    if not options.page:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file, one_thread():
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            chosen = datasets(options.data_root)
            if options.quick:
                chosen, options.seeds = [d for d in chosen if d.name.endswith(" 40 each")], 2
            for dataset in chosen:
                n_seeds = options.large_seeds if dataset.is_large else options.seeds
                for seed in range(FIRST_SEED, FIRST_SEED + n_seeds):
                    try:
                        writer.writerows(measure_seed(dataset, seed, estimators()))
                    except DataError as error:
                        print(f"{dataset.name} is left out: {error}")
                        break
                    file.flush()
                    print(dataset.name, seed, flush=True)
    write_page(path, options.out / "UNCERTAINTY.md", datasets(options.data_root))


if __name__ == "__main__":
    main()

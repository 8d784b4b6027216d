"""How often does chance alone take the mean below a budget?

    python experiments/measure_noise.py signs                  # results/noise-signs.csv
    python experiments/measure_noise.py signs --holdout 0.2    # scores of held-out examples
    python experiments/measure_justice.py --page               # JUSTICE.md from all results

Each run of a budget is compared with FedAvg on the same seed, and so is FedAvg trained again with
another initial model and another order of batches: what that one loses is chance. Beside each
change of the mean accuracy stands the standard error that the finite test parts give it: d_ij is
1, 0 or -1 where one of the two models gets test example j of client i right and the other does not,

    e^2 = sum_i var(mean_j d_ij) / N^2

Frames of one track are right or wrong together: they count as one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from measure_justice import RESULTS, STUDIES, WITHIN, write_table
from torch import Tensor, nn

import udjfl
from udjfl.data import Examples, Federation
from udjfl.methods import method
from udjfl.settings import TrainingSettings
from udjfl.simulation.run_methods import MethodTask
from udjfl.simulation.simulate import run_methods
from udjfl.training.result import Result

SEEDS = {"signs": 6, "heart": 60, "dirty-digits": 30, "scanners": 30}
FIRST_SEED = 1000
AGAIN = "FedAvg again"
COLUMNS = ("data", "holdout", "seed", "method", "change", "standard_error", "score_change")


def main() -> None:
    """Measure one federation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=SEEDS)
    parser.add_argument("--holdout", type=float, default=0.0, help="share that is held out")
    arguments = parser.parse_args()
    study, holdout = arguments.study, arguments.holdout
    name = f"noise-{study}" + (f"-holdout-{holdout:g}" if holdout else "")
    rows: list[dict[str, Any]] = []
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS[study]):
        rows += measure_seed(study, seed, holdout)
        write_table(RESULTS / f"{name}.csv", COLUMNS, rows)


def measure_seed(study: str, seed: int, holdout: float) -> list[dict[str, Any]]:
    """Return the change of the mean from FedAvg, and its noise, of FedAvg again and of budgets."""
    settings = TrainingSettings(holdout=holdout, **STUDIES[study].settings)
    federation = udjfl.load(STUDIES[study].data, seed=seed)
    fedavg, *budgets = _run(federation, ["fedavg", *WITHIN], settings, seed)
    (again,) = _run(federation, ["fedavg"], settings, seed + 1)
    right = _count_right(fedavg.model, federation)
    named = [(AGAIN, again), *((run.method.label, run) for run in budgets)]
    return [
        {
            "data": STUDIES[study].data,
            "holdout": f"{holdout:g}",
            "seed": seed,
            "method": name,
            **_numbers(right, _count_right(run.model, federation), federation),
            "score_change": _score_change(run, fedavg),
        }
        for name, run in named
    ]


def _run(
    federation: Federation, specs: Sequence[str], settings: TrainingSettings, seed: int
) -> list[Result]:
    results = run_methods(federation, [MethodTask(method(spec)) for spec in specs], settings, seed)
    return [result for result in results if isinstance(result, Result)]


def _count_right(model: nn.Module, federation: Federation) -> list[Tensor]:
    """Return for each client which of its test examples a model gets right."""
    model.eval()
    with torch.inference_mode():
        return [
            (model(client.test.x).argmax(dim=1) == client.test.y).double()
            for client in federation.clients
        ]


def _numbers(
    before: Sequence[Tensor], after: Sequence[Tensor], federation: Federation
) -> dict[str, str]:
    differences = [new - old for new, old in zip(after, before, strict=True)]
    change = 100 * statistics.mean(float(d.mean()) for d in differences)
    tests = [client.test for client in federation.clients]
    variances = [variance_of_mean(d, part) for d, part in zip(differences, tests, strict=True)]
    error = 100 * sum(variances) ** 0.5 / len(variances)
    return {"change": f"{change:.4f}", "standard_error": f"{error:.4f}"}


def variance_of_mean(values: Tensor, part: Examples) -> float:
    """Return the variance of the mean of a sample of tracks, or of examples of their own."""
    if part.together is None:
        return float(values.var(correction=1)) / len(values)
    groups = np.unique(part.together.numpy(), return_inverse=True)[1]
    sums = np.bincount(groups, weights=(values - values.mean()).numpy())
    n_groups = len(sums)
    return float((sums**2).sum()) * n_groups / max(1, n_groups - 1) / len(values) ** 2


def _score_change(run: Result, fedavg: Result) -> str:
    """Return what the mean score that the budget sees lost in the last round; empty if unknown."""
    rounds = max(record.round for record in run.history.records)
    ours, theirs = (one.history.by_client("score", rounds) for one in (run, fedavg))
    known = [float(v) - float(theirs[k]) for k, v in ours.items() if k in theirs]  # type: ignore[arg-type]
    return f"{100 * statistics.mean(known):.4f}" if known else ""


if __name__ == "__main__":
    main()

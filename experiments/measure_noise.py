"""How often does chance alone take the mean below a budget? FedAvg against itself.

    python experiments/measure_noise.py signs            # results/noise-signs.csv
    python experiments/measure_justice.py --page         # JUSTICE.md from all results

FedAvg is trained several times on one split of the data, each time with another initial model and
another order of batches. Two of these runs have the same expected score; what the mean of their
clients' test accuracies differs by is noise, and no method can keep a promise more tightly.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from typing import Any

from measure_justice import BUDGET, RESULTS, STUDIES, print_finished, write_table

import udjfl

SPLITS, REPEATS = 10, 4
FIRST_SEED = 1000
COLUMNS = ("data", "seed", "repeat", "mean_accuracy")


def main() -> None:
    """Measure one federation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=STUDIES)
    study = parser.parse_args().study
    rows = [row for seed in range(FIRST_SEED, FIRST_SEED + SPLITS) for row in repeat(study, seed)]
    write_table(RESULTS / f"noise-{study}.csv", COLUMNS, rows)


def repeat(study: str, seed: int) -> list[dict[str, Any]]:
    """Train FedAvg several times on the split of one seed."""
    settings = dict(STUDIES[study].settings)
    federation = udjfl.load(STUDIES[study].data, seed=seed)
    comparison = udjfl.compare(
        federation,
        "fedavg",
        settings.pop("model", "mlp"),
        seeds=REPEATS,
        uncertainty=dict.fromkeys(federation.ids, 1.0),  # FedAvg does not read it
        eval_every=settings["rounds"],
        on_progress=print_finished,
        **settings,
    )
    means = comparison.rows[0].metrics["mean_accuracy"].values
    return [
        {
            "data": STUDIES[study].data,
            "seed": seed,
            "repeat": number,
            "mean_accuracy": f"{mean:.4f}",
        }
        for number, mean in enumerate(means)
    ]


def summarise_noise(rows: list[dict[str, str]]) -> dict[str, float]:
    """Return the spread of differences between two runs on one split, and how often one loses.

    Of every two runs either may be called the first.
    """
    by_split: dict[str, list[float]] = {}
    for row in rows:
        by_split.setdefault(row["seed"], []).append(float(row["mean_accuracy"]))
    differences = [
        a - b for means in by_split.values() for a, b in itertools.permutations(means, 2)
    ]
    variance = statistics.mean(statistics.variance(means) for means in by_split.values())
    return {
        "spread": (2 * variance) ** 0.5,
        "within": statistics.mean(change >= -BUDGET for change in differences),
        "within_plus_1": statistics.mean(change >= -BUDGET - 1 for change in differences),
        "runs": float(len(rows)),
    }


if __name__ == "__main__":
    main()

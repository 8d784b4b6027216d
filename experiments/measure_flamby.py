"""Put results on FLamby's Fed-Heart-Disease beside its published ones.

    python experiments/measure_flamby.py --data-root FOLDER [--seeds 5]

Patients, train and test parts, logistic regression, batches of 4, 15 rounds of 100 local steps and
learning rates are FLamby's (Ogier du Terrail et al., NeurIPS 2022). Features of categories differ:
see `udjfl.data.sources.heart`. `flamby/results` of its repository has two versions of accuracies:

A  `results_benchmark_fed_heart_disease/heart_seed42.csv` to `heart_seed46.csv`, commits a422b61 and
   f553c7a; their learning rates are ours
B  `results_benchmark_fed_heart_disease.csv`, commit 638efb6: one run, learning rate 0.0001

Means are of the four clients. The .698 of FedAvg and .741 of FedYogi that are quoted elsewhere are
those of five rows of A: the clients and the pooled test set (.748 and .779).
"""

from __future__ import annotations

import argparse
from statistics import mean

import udjfl

CLIENTS = ("cleveland", "hungary", "switzerland", "va")
PUBLISHED = {
    "FedAvg": {
        "A": (76 / 104, 64 / 89, 10.4 / 16, 28.8 / 45),
        "B": (68 / 104, 68 / 89, 1 / 16, 29 / 45),
    },
    "FedAdam": {
        "A": (78.2 / 104, 66.4 / 89, 11.8 / 16, 30 / 45),
        "B": (62 / 104, 58 / 89, 1 / 16, 27 / 45),
    },
    "FedYogi": {
        "A": (79 / 104, 67 / 89, 11.8 / 16, 30.4 / 45),
        "B": (48 / 104, 33 / 89, 15 / 16, 35 / 45),
    },
}  # patients who are classified correctly, in A the means of 5 seeds
OURS = {  # learning rate of the clients, optimiser of the server
    "FedAvg": (0.001, "sgd"),
    "FedAdam": (0.01, "adam:lr=0.01:b1=0.9:b2=0.999:tau=1e-8"),
    "FedYogi": (0.003162, "yogi:lr=0.01:b1=0.9:b2=0.999:tau=1e-8"),
}
SETTINGS = {"model": "logistic", "rounds": 15, "local_steps": 100, "batch_size": 4}
SETTINGS |= {"momentum": 0.0, "eval_every": 15, "uncertainty_epochs": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", help="folder with the four files of `heart`")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    measured = {
        name: measure(*chosen, arguments.seeds, arguments.data_root)
        for name, chosen in OURS.items()
    }
    print(f"| accuracy, ours of {arguments.seeds} seeds | {' | '.join(CLIENTS)} | mean | worst |")
    print("|---" * (len(CLIENTS) + 3) + "|")
    for name, versions in PUBLISHED.items():
        for version, published in versions.items():
            print(show(f"{name}, published {version}", published))
        print(show(f"{name}, udjfl", measured[name]))


def measure(lr: float, optimizer: str, seeds: int, root: str | None) -> tuple[float, ...]:
    """Return the accuracy of each client under FedAvg with a server optimiser."""
    comparison = udjfl.compare(
        "heart:split=flamby",
        "fedavg",
        seeds=seeds,
        lr=lr,
        server_optimizer=optimizer,
        data_root=root,
        **SETTINGS,
    )
    scores = comparison.rows[0].client_scores
    return tuple((scores[client].mean or 0.0) / 100 for client in CLIENTS)


def show(label: str, accuracies: tuple[float, ...]) -> str:
    """Return a row of the table; the worst client is that of the means."""
    values = [*accuracies, mean(accuracies), min(accuracies)]
    return f"| {label} | {' | '.join(f'{value:.3f}' for value in values)} |"


if __name__ == "__main__":
    main()

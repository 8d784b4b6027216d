"""Train four theories of justice on the embedded federation, with one seed.

Run it: python examples/quickstart.py [rounds]
"""

from __future__ import annotations

import sys

import udjfl


def main(rounds: int = 100) -> None:
    federation = udjfl.load("dirty-digits", seed=0)
    fedavg = udjfl.simulate(federation, "fedavg", rounds=rounds, seed=0)
    print("theory       " + "  ".join(f"{name:>8}" for name in federation.ids) + "    global")
    for name in ("fedavg", "rawls", "egalitarian", "utilitarian", "desert"):
        method = udjfl.method(name)
        result = udjfl.simulate(
            federation,
            method,
            rounds=rounds,
            seed=0,
            reference=fedavg,
            uncertainty=fedavg.uncertainty,
        )
        accuracies = "  ".join(f"{accuracy:8.1f}" for accuracy in result.client_scores.values())
        print(f"{name:12} {accuracies}  {result.global_accuracy:8.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

"""Measure step rules, and points along the family of methods, for experiments/STEPS.md.

    python experiments/measure_steps.py rules --seeds 10 \\
        --csv experiments/steps-rules-dirty-digits.csv
    python experiments/measure_steps.py points --seeds 20 \\
        --csv experiments/steps-points-dirty-digits.csv
    python experiments/measure_steps.py search --seeds 20 --first-seed 100 \\
        --csv experiments/steps-search-dirty-digits.csv
    python experiments/measure_steps.py found --seeds 60 --first-seed 200 \\
        --csv experiments/steps-found-dirty-digits.csv
    python experiments/measure_steps.py distinct --rounds 50 --seeds 10 --mnist FOLDER \\
        --csv experiments/steps-rules-mnist.csv

`rules` trains every theory at the paper's setting with every step rule, `distinct` leaves out those
equal by identity. `points` measures points along the family with the default rule; `search` tries
more of them for desert, and `found` tests the best of both on other seeds; `table` prints a CSV as
experiments/STEPS.md has it.

With --mnist, the four original MNIST files in FOLDER and ambiguous digits made by
udjfl.data.sources._ambiguous_digits replace the embedded digits, in shards of 120 images (the paper
has 300, which takes two and a half times as long); the ambiguous digits are made once and saved in
the file given by --cache.
"""

from __future__ import annotations

import argparse
import csv
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import udjfl
from udjfl.methods.udj import UDJ
from udjfl.metrics import METRICS
from udjfl.simulation.comparison import Comparison

THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
RULES = ("paper", "authors", "safe", "calibrated", "normalised")


def rules() -> list[UDJ]:
    """Return every theory with every step rule.

    The authors' rule is left out at exponent 1, where their code divides by zero.
    """
    pairs = [(theory, rule) for theory in THEORIES for rule in RULES]
    return [
        UDJ(theory=t, step=r)
        for t, r in pairs
        if not (r == "authors" and t in ("egalitarian", "utilitarian"))
    ]


def distinct() -> list[UDJ]:
    """Return `rules` without those that are equal by identity, or but for the cap.

    At exponent 1 or more, the paper's, the authors' and the safe rule are one until a client's
    share reaches the cap, which the published rules do not have.
    """
    same = {
        "rawls": ("authors", "safe"),
        "egalitarian": RULES[:3] + RULES[4:],
        "utilitarian": RULES[:3] + RULES[4:],
        "desert": (),
    }
    return [method for method in rules() if method.step not in same[method.theory]]


def points() -> list[udjfl.Method]:
    """Return points along the family around each theory's own."""
    methods = [
        udjfl.method("rawls", beta=beta, gamma=gamma)
        for beta, gamma in ((0.5, 1), (2, 1), (5, 1), (5, 0), (5, 2))
    ]
    methods += [udjfl.method("egalitarian", gamma=gamma) for gamma in (0.5, 1, 1.5, 2)]
    methods += [
        udjfl.method("utilitarian", beta=beta, gamma=gamma)
        for beta, gamma in ((0, -0.25), (0, -0.5), (0, -1), (0.1, -1))
    ]
    methods += [udjfl.method("utilitarian", gamma=gamma) for gamma in (-1.5, -2)]
    methods += [udjfl.method("desert", gamma=gamma) for gamma in (0, 0.5, -1)]
    methods += [udjfl.method("desert", beta=beta) for beta in (0.05, 0.2)]
    methods += [udjfl.method("udj", beta=1, gamma=gamma) for gamma in (-0.25, -0.5)]
    return methods


def search() -> list[udjfl.Method]:
    """Return more points, to find one that lowers r.

    Run it on seeds of its own: `found` then tests on others what was found here.
    """
    methods = [udjfl.method("desert", gamma=gamma) for gamma in (1, 1.5, 2)]
    methods += [
        udjfl.method("udj", beta=beta, gamma=gamma)
        for beta in (0.5, 1.2, 1.5, 2)
        for gamma in (-0.5, -1, -1.5, -2)
    ]
    methods += [udjfl.method("udj", beta=beta, gamma=0) for beta in (0.25, 0.5, 0.75)]
    return methods


def found() -> list[udjfl.Method]:
    """Return the points where r fell in `search`, or global accuracy rose in `points`, at p < 0.05.

    Run it on seeds that were not used to find them.
    """
    methods = [
        udjfl.method("udj", beta=beta, gamma=gamma)
        for beta, gamma in ((0.5, 0), (0.75, 0), (1.2, -0.5))
    ]
    methods += [
        udjfl.method("utilitarian", beta=beta, gamma=gamma)
        for beta, gamma in ((0, -0.25), (0, -0.5), (0.1, -1))
    ]
    return methods


def load_digits(seed: int) -> udjfl.Federation:
    return udjfl.load("dirty-digits", seed=seed)


def load_mnist(folder: Path, cache: Path, seed: int) -> udjfl.Federation:
    """Return the paper's federation from MNIST's files, in shards of 120, with its test set."""
    from udjfl.data import Examples, Pools, federate
    from udjfl.data.partition import Partition
    from udjfl.data.sources._idx import read_idx
    from udjfl.seeds import numpy_stream

    def examples(images: np.ndarray, labels: np.ndarray) -> Examples:
        pixels = torch.from_numpy((images.astype(np.float32) / 255 - 0.1307) / 0.3081)
        return Examples(pixels.reshape(-1, 1, 28, 28), torch.from_numpy(labels.astype(np.int64)))

    made = np.load(cache)
    images, labels = (
        read_idx(folder / "train-images-idx3-ubyte.gz", 3),
        read_idx(folder / "train-labels-idx1-ubyte.gz", 1),
    )
    clean = np.setdiff1d(np.arange(len(labels)), made["sources"])
    stream = numpy_stream(seed, "labels")
    drawn = made["labels"][
        np.arange(len(made["labels"])),
        stream.integers(made["labels"].shape[1], size=len(made["labels"])),
    ]
    test = examples(
        read_idx(folder / "t10k-images-idx3-ubyte.gz", 3),
        read_idx(folder / "t10k-labels-idx1-ubyte.gz", 1),
    )
    pools = Pools(
        clean=examples(images[clean], labels[clean]),
        ambiguous=examples(made["images"], drawn),
        test=test,
        class_names=tuple("0123456789"),
        clean_groups=np.arange(len(clean)),
        ambiguous_groups=np.arange(len(drawn)),
    )
    return federate(
        "mnist with regenerated ambiguous digits", pools, 5, Partition.parse("shards:120"), seed
    )


def make_ambiguous_mnist(folder: Path, cache: Path) -> None:
    """Make 6,000 ambiguous digits (50 shards of 120) from 20,000 training digits.

    Those training digits are then used for nothing else.
    """
    from udjfl.data.sources._ambiguous_digits import make_ambiguous
    from udjfl.data.sources._ambiguous_settings import AmbiguousSettings
    from udjfl.data.sources._idx import read_idx

    images, labels = (
        read_idx(folder / "train-images-idx3-ubyte.gz", 3),
        read_idx(folder / "train-labels-idx1-ubyte.gz", 1),
    )
    sources = np.sort(np.random.default_rng(0).permutation(len(labels))[:20_000])
    made = make_ambiguous(
        torch.from_numpy(images[sources].astype(np.float32) / 255),
        torch.from_numpy(labels[sources].astype(np.int64)),
        count=6_000,
        seed=0,
        settings=AmbiguousSettings(levels=256, candidates_per_image=40),
    )
    np.savez_compressed(
        cache,
        images=(made.images[:, 0] * 255).round().to(torch.uint8).numpy(),
        labels=made.labels.numpy(),
        sources=sources,
    )


COLUMNS = (
    *("method", "theory", "metric", "mean", "low", "high"),
    *("difference", "p", "seeds", "failed"),
)


def write_csv(path: Path, comparison: Comparison) -> None:
    """Write one line per method and metric.

    It has mean and interval over seeds, and the paired test against FedAvg.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for row in comparison.rows:
            theory = getattr(row.method, "theory", None) or ""
            for key in METRICS:
                total, test = row.metrics[key], row.against_fedavg.get(key)
                low, high = total.ci95 or (None, None)
                difference, p = (test.difference, test.p) if test else (0.0, None)
                numbers = [total.mean, low, high, difference, p]
                shown = ["" if number is None else f"{number:.6g}" for number in numbers]
                out.writerow([row.method.label, theory, key, *shown, total.n, len(row.failed)])


SHOWN = {
    "global_accuracy": "global ↑",
    "accuracy_most_uncertain": "most uncertain ↑",
    "accuracy_least_uncertain": "least uncertain ↑",
    "std": "STD ↓",
    "psi": "Psi ↑",
    "pearson_r": "r ↓",
}


def markdown(path: Path) -> str:
    """Return the CSV as a Markdown table: means, and in brackets p of the test against FedAvg."""
    with path.open(encoding="utf-8") as file:
        rows = {(row["method"], row["metric"]): row for row in csv.DictReader(file)}
    lines = ["| method | " + " | ".join(SHOWN.values()) + " |", "|---" * (len(SHOWN) + 1) + "|"]
    for method in dict.fromkeys(method for method, _ in rows):
        cells = [_cell(rows[method, metric]) for metric in SHOWN]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, str]) -> str:
    if not row["mean"]:
        return "–"
    p = (
        ""
        if not row["p"]
        else " (<.001)"
        if float(row["p"]) < 0.001
        else f" ({float(row['p']):.3f})".replace("0.", ".", 1)
    )
    return f"{float(row['mean']):.2f}{p}"


METHODS = {"rules": rules, "distinct": distinct, "points": points, "search": search, "found": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rules", "distinct", "points", "search", "found", "table"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--uncertainty", default="crossfit", help="how to measure it, as in udjfl")
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's four original files")
    parser.add_argument("--cache", type=Path, default=Path("ambiguous-mnist.npz"))
    parser.add_argument("--csv", type=Path, required=True)
    given = parser.parse_args()
    if given.what == "table":
        print(markdown(given.csv), end="")
        return
    federation: Callable[[int], udjfl.Federation] = load_digits
    if given.mnist:
        if not given.cache.exists():
            make_ambiguous_mnist(given.mnist, given.cache)
        federation = functools.partial(load_mnist, given.mnist, given.cache)
    comparison = udjfl.compare(
        federation,
        METHODS[given.what](),
        seeds=range(given.first_seed, given.first_seed + given.seeds),
        jobs=given.jobs,
        uncertainty=given.uncertainty,
        rounds=given.rounds,
        eval_every=given.rounds,
    )
    write_csv(given.csv, comparison)


if __name__ == "__main__":
    main()

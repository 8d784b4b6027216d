"""Which step rule, and how far along the family: the measurements behind docs/steps.md.

    python experiments/measure_steps.py rules --seeds 10 --csv experiments/steps-rules-dirty-digits.csv
    python experiments/measure_steps.py points --seeds 20 --csv experiments/steps-points-dirty-digits.csv
    python experiments/measure_steps.py search --seeds 20 --first-seed 100 --csv experiments/steps-search-dirty-digits.csv
    python experiments/measure_steps.py found --seeds 60 --first-seed 200 --csv experiments/steps-found-dirty-digits.csv
    python experiments/measure_steps.py distinct --rounds 50 --seeds 10 --mnist FOLDER --csv experiments/steps-rules-mnist.csv

`rules` trains every theory at the paper's setting with every step rule, `distinct` leaves out those equal by identity.
`points` walks along the family with the default rule; `search` casts a wider net for desert, and `found` tests the best of
both on other seeds; `table` prints a CSV as docs/steps.md has it.

With --mnist, the four original MNIST files in FOLDER and ambiguous digits made by udjfl.data.sources._ambiguous_digits take the place of the
embedded digits, in shards of 120 images (the paper has 300, which takes two and a half times as long); the ambiguous digits
are made once and kept where --cache says.
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import udjfl
from udjfl.metrics import METRICS
from udjfl.settings import CompareSettings
from udjfl.simulation.compare import Comparison
from udjfl.statistics import paired, summarise

THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
RULES = ("paper", "authors", "safe", "calibrated", "normalised")


def rules() -> list[udjfl.Method]:
    """Every theory with every step rule, leaving out the authors' where their code divides by zero (exponent 1)."""
    pairs = [(theory, rule) for theory in THEORIES for rule in RULES]
    return [
        udjfl.method(t, step=r)
        for t, r in pairs
        if not (r == "authors" and t in ("egalitarian", "utilitarian"))
    ]


def distinct() -> list[udjfl.Method]:
    """`rules` without the ones that are equal by identity: at exponent 1 or more, paper, authors' and safe are one rule."""
    same = {
        "rawls": ("authors", "safe"),
        "egalitarian": RULES[:3] + RULES[4:],
        "utilitarian": RULES[:3] + RULES[4:],
        "desert": (),
    }
    return [method for method in rules() if method.step not in same[method.theory]]


def points() -> list[udjfl.Method]:
    """Points along the family around each theory's own."""
    made = [
        udjfl.method("rawls", beta=beta, gamma=gamma)
        for beta, gamma in ((0.5, 1), (2, 1), (5, 1), (5, 0), (5, 2))
    ]
    made += [udjfl.method("egalitarian", gamma=gamma) for gamma in (0.5, 1, 1.5, 2)]
    made += [
        udjfl.method("utilitarian", beta=beta, gamma=gamma)
        for beta, gamma in ((0, -0.25), (0, -0.5), (0, -1), (0.1, -1))
    ]
    made += [udjfl.method("utilitarian", gamma=gamma) for gamma in (-1.5, -2)]
    made += [udjfl.method("desert", gamma=gamma) for gamma in (0, 0.5, -1)]
    made += [udjfl.method("desert", beta=beta) for beta in (0.05, 0.2)]
    made += [udjfl.method("udj", beta=1, gamma=gamma) for gamma in (-0.25, -0.5)]
    return made


def search() -> list[udjfl.Method]:
    """A wider net for a point that lowers r. Run it on seeds of its own: `found` then tests what it finds on others."""
    made = [udjfl.method("desert", gamma=gamma) for gamma in (1, 1.5, 2)]
    made += [
        udjfl.method("udj", beta=beta, gamma=gamma)
        for beta in (0.5, 1.2, 1.5, 2)
        for gamma in (-0.5, -1, -1.5, -2)
    ]
    made += [udjfl.method("udj", beta=beta, gamma=0) for beta in (0.25, 0.5, 0.75)]
    return made


def found() -> list[udjfl.Method]:
    """Where `search` saw r fall, and `points` global accuracy rise, at p < 0.05: for seeds that had no part in finding them."""
    made = [
        udjfl.method("udj", beta=beta, gamma=gamma)
        for beta, gamma in ((0.5, 0), (0.75, 0), (1.2, -0.5))
    ]
    made += [
        udjfl.method("utilitarian", beta=beta, gamma=gamma)
        for beta, gamma in ((0, -0.25), (0, -0.5), (0.1, -1))
    ]
    return made


def one_seed(
    methods: list[udjfl.Method],
    rounds: int,
    federation: Callable[[int], udjfl.Federation],
    seed: int,
) -> Comparison:
    comparison = udjfl.compare(
        CompareSettings(rounds=rounds, eval_every=rounds, seeds=[seed]),
        federation=federation,
        methods=methods,
    )
    print(f"seed {seed} done", file=sys.stderr, flush=True)
    return comparison


def embedded(seed: int) -> udjfl.Federation:
    return udjfl.load("dirty-digits", seed=seed)


def mnist(folder: Path, cache: Path, seed: int) -> udjfl.Federation:
    """The paper's federation from MNIST's own files, in shards of 120; the test set is as it comes."""
    from udjfl.data import federate
    from udjfl.data.federation import Examples, Pools
    from udjfl.data.partition import Partition
    from udjfl.data.sources.dirty_mnist import read_idx
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
    """6,000 ambiguous digits (50 shards of 120) from 20,000 training digits that are then used for nothing else."""
    from udjfl.data.sources._ambiguous_digits import AmbiguousSettings, make_ambiguous
    from udjfl.data.sources.dirty_mnist import read_idx

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


def write(path: Path, results: list[Comparison]) -> None:
    """One line per method and metric: mean and interval over seeds, and the paired test against FedAvg."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(
            [
                "method",
                "theory",
                "metric",
                "mean",
                "low",
                "high",
                "difference",
                "p",
                "seeds",
                "failed",
            ]
        )
        for row in range(len(results[0].rows)):
            summaries = [result.rows[row] for result in results]
            method = summaries[0].method
            failed = sum(len(summary.failed) for summary in summaries)
            for metric in METRICS:
                values = [summary.metrics[metric.key].values[0] for summary in summaries]
                before = [result.rows[0].metrics[metric.key].values[0] for result in results]
                total, test = summarise(values), paired(values, before)
                low, high = total.ci95 or (None, None)
                numbers = [total.mean, low, high, test.difference, test.p]
                shown = ["" if number is None else f"{number:.6g}" for number in numbers]
                out.writerow(
                    [
                        method.label,
                        getattr(method, "theory", None) or "",
                        metric.key,
                        *shown,
                        total.n,
                        failed,
                    ]
                )


SHOWN = {
    "global_accuracy": "global ↑",
    "accuracy_most_uncertain": "most uncertain ↑",
    "accuracy_least_uncertain": "least uncertain ↑",
    "std": "STD ↓",
    "psi": "Psi ↑",
    "pearson_r": "r ↓",
}


def markdown(path: Path) -> str:
    """The CSV as a Markdown table: means, and in brackets p of the paired test against FedAvg."""
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
    parser.add_argument("--jobs", type=int, default=2, help="processes; each takes whole seeds")
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's four original files")
    parser.add_argument("--cache", type=Path, default=Path("ambiguous-mnist.npz"))
    parser.add_argument("--csv", type=Path, required=True)
    given = parser.parse_args()
    if given.what == "table":
        print(markdown(given.csv), end="")
        return
    federation: Callable[[int], udjfl.Federation] = embedded
    if given.mnist:
        if not given.cache.exists():
            make_ambiguous_mnist(given.mnist, given.cache)
        federation = functools.partial(mnist, given.mnist, given.cache)
    work = functools.partial(one_seed, METHODS[given.what](), given.rounds, federation)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        write(
            given.csv, list(pool.map(work, range(given.first_seed, given.first_seed + given.seeds)))
        )


if __name__ == "__main__":
    main()

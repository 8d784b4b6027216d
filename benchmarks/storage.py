"""Images as bytes against float32, and in a file against in memory: `python -m benchmarks storage`.

Every turn is a process of its own that trains the same federation of images for some rounds on one
core, after two that warm up. Variants take turns, so that all are disturbed alike. Seconds are
those of the core, which other processes disturb less than the time that passes. Those in which
batches are gathered, bytes made numbers included, are shown apart: bytes can save no more than what
float32 needs there. Memory is that of the process after training; what is mapped from files the
system can drop at any time, so it is counted apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

import udjfl
from benchmarks import machine
from benchmarks.markdown import describe_machine, table
from udjfl.engine import tune_allocator
from udjfl.engine.batches import Batch, InputBuffer

CLIENTS, TRAIN, TEST, SHAPE = 5, 4000, 400, (3, 32, 32)
# Variants are named by how pixels are kept and, unless that is in memory and the model is the mlp,
# where and for which model.
VARIANTS = (
    *("float32", "uint8", "float32, from a file", "uint8, from a file"),
    *("float32, logistic", "uint8, logistic", "float32, cnn", "uint8, cnn"),
)
ROUNDS = {"mlp": 4, "logistic": 4, "cnn": 1}
TARGETS = (
    ("seconds", "uint8", "float32", 0.95, "a round on bytes, of one on float32"),
    ("seconds", "uint8, logistic", "float32, logistic", 0.95, "the same, logistic"),
    ("seconds", "uint8, cnn", "float32, cnn", 0.95, "the same, cnn"),
    ("data", "uint8", "float32", 0.26, "memory of bytes, of that of float32"),
    ("seconds", "float32, from a file", "float32", 1.3, "a round from a file, of one from memory"),
    ("seconds", "uint8, from a file", "uint8", 1.3, "the same with bytes"),
)


def measure(repetitions: int) -> dict[str, Any]:
    """Measure all variants in turns."""
    records: dict[str, dict[str, list[float]]] = {name: {} for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("float32", "uint8"):
            make_images(kind).save(Path(folder) / kind)
        for repetition in range(repetitions):
            first = repetition % len(VARIANTS)
            for name in VARIANTS[first:] + VARIANTS[:first]:
                command = [sys.executable, "-m", "benchmarks.storage", name, folder]
                output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
                for key, value in json.loads(output.splitlines()[-1]).items():
                    records[name].setdefault(key, []).append(value)
            print(f"repetition {repetition + 1} of {repetitions}", flush=True)
    return {"machine": machine.describe(), "repetitions": repetitions, "variants": records}


def make_images(kind: str) -> udjfl.Federation:
    """Make images whose class is their brightest quarter; pixels as bytes or from 0 to 1."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = rng.integers(0, 200, (n, *SHAPE)).astype(np.uint8), rng.integers(0, 4, n)
        for row, label in enumerate(y):
            x[row, :, 16 * (label // 2) :, 16 * (label % 2) :] += 40
        return (x if kind == "uint8" else x.astype(np.float32) / 255), y

    clients = {f"client-{i}": (*draw(TRAIN), *draw(TEST)) for i in range(CLIENTS)}
    return udjfl.Federation.from_arrays(clients, draw(TEST), allow_duplicates=True)


def take_turn(name: str, folder: str) -> dict[str, float]:
    """Train one variant; return seconds a round, and MB of memory."""
    kind, _, variant = name.partition(", ")
    model = variant if variant in ROUNDS else "mlp"
    tune_allocator()  # as the command line does: otherwise a variant can be slow by bad luck
    rounds = ROUNDS[model]
    if variant == "from a file":
        federation = udjfl.Federation.load(Path(folder) / kind, verify=False)
    else:
        federation = make_images(kind)
    # A round is reported when the next one has trained: the last report comes at once.
    ends: list[tuple[float, float, float]] = []
    with _time_gathering() as gathering:
        udjfl.simulate(
            federation,
            "fedavg",
            rounds=rounds + 2,
            model=model,
            uncertainty=dict.fromkeys(federation.ids, 0.5),
            on_progress=lambda _: ends.append(
                (time.process_time(), time.perf_counter(), sum(gathering))
            ),
            workers=1,
        )
    seconds, elapsed, gathered = (
        (end - begin) / rounds for begin, end in zip(ends[0], ends[rounds], strict=True)
    )
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kilobytes = {line.split(":")[0]: line.split()[1] for line in status if line.endswith("kB")}
    stored = sum(c.train.x.nbytes + c.test.x.nbytes for c in federation.clients)
    return {
        "seconds": seconds,
        "gathering": gathered,
        "elapsed": elapsed,
        "own memory": int(kilobytes["RssAnon"]) / 1e3,
        "mapped": int(kilobytes["RssFile"]) / 1e3,
        "data": (stored + federation.test.x.nbytes) / 1e6,
    }


@contextmanager
def _time_gathering() -> Iterator[list[float]]:
    """Yield a list to which every batch adds the seconds in which its inputs are made."""
    seconds: list[float] = []
    gather = InputBuffer.gather

    def timed(buffer: InputBuffer, batch: Batch) -> Tensor:
        begin = time.process_time()
        inputs = gather(buffer, batch)
        seconds.append(time.process_time() - begin)
        return inputs

    with patch.object(InputBuffer, "gather", timed):
        yield seconds


def report(results: dict[str, Any]) -> str:
    """Return the medians, and the ratios beside what they should be."""
    variants = results["variants"]
    keys = ("seconds", "gathering", "elapsed", "data", "own memory", "mapped")
    rows = [[name, *(f"{median(variants[name][key]):.3g}" for key in keys)] for name in VARIANTS]
    heading = [
        "variant",
        "seconds of a core a round",
        "gathering",
        "elapsed",
        "data, MB",
        "own memory, MB",
        "mapped, MB",
    ]
    ratios = []
    for key, one, other, target, title in TARGETS:
        pairs = zip(variants[one][key], variants[other][key], strict=True)
        ratio = median(a / b for a, b in pairs)
        verdict = "holds" if ratio <= target else "does not hold"
        ratios.append([title, f"{ratio:.2f}", f"at most {target}", verdict])
    return "\n\n".join(
        [
            describe_machine(results["machine"]),
            table(heading, rows),
            table(["ratio, median over turns", "", "target", ""], ratios),
        ]
    )


if __name__ == "__main__":
    print(json.dumps(take_turn(*sys.argv[1:3])))

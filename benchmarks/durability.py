"""What the manifest and the checksums of a run folder cost: `python -m benchmarks.durability`.

The same run is kept in a folder as it is, and in one of an older version, which has no manifest.
Both take turns. Seconds are those of the core.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import udjfl
from udjfl.training.manifest import MANIFEST
from udjfl.training.run_folder import RunFolder

ROUNDS, REPETITIONS = 100, 7


def run(folder: Path, with_manifest: bool) -> float:
    """Return the seconds of a run of many short rounds, with a checkpoint after every tenth."""
    create = RunFolder.create

    def create_older(path: Path, settings: object, versions: object) -> RunFolder:
        made = create(path, settings, versions)  # type: ignore[arg-type]
        (made.path / MANIFEST).unlink()
        made.manifest = None
        return made

    if not with_manifest:
        RunFolder.create = create_older  # type: ignore[method-assign, assignment]
    try:
        start = time.process_time()
        federation = udjfl.load("dirty-digits")
        udjfl.simulate(
            federation, "rawls", "logistic", rounds=ROUNDS, uncertainty="paper", out=folder
        )
        return time.process_time() - start
    finally:
        RunFolder.create = create  # type: ignore[method-assign]


def main() -> None:
    """Measure in turns and print the ratio."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder) / "first", True)
        for repetition in range(REPETITIONS):
            for with_manifest in (True, False) if repetition % 2 else (False, True):
                path = Path(folder) / f"{repetition}-{with_manifest}"
                seconds[with_manifest].append(run(path, with_manifest))
    ratios = [a / b for a, b in zip(seconds[True], seconds[False], strict=True)]
    print(
        f"{ROUNDS} rounds, {REPETITIONS} repetitions: {median(seconds[True]):.2f} s with the "
        f"manifest, {median(seconds[False]):.2f} s without; ratio {median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()

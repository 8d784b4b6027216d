"""Photographs of traffic signs, in an archive or in GTSRB's layout, as small as possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from udjfl.data import Pools, Request
from udjfl.data.sources.traffic_signs import SOURCE


def make_arrays(
    classes: int = 3, tracks: int = 10, frames: int = 4, size: int = 28, seed: int = 0
) -> dict[str, Any]:
    """Make random photographs; each class numbers its tracks from 0, as in GTSRB."""
    count = classes * tracks * frames
    return {
        "x": np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8),
        "y": np.repeat(np.arange(classes), tracks * frames),
        "track": np.tile(np.repeat(np.arange(tracks), frames), classes),
    }


def write_archive(path: Path, **changes: Any) -> Path:
    """Write an .npz file with some arrays changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{**make_arrays(), **changes})
    return path


def write_folders(
    folder: Path,
    classes: tuple[str, ...] = ("00000", "00002", "00010"),
    tracks: int = 4,
    frames: int = 2,
    suffix: str = "ppm",
    size: int = 12,
) -> Path:
    """Write pictures in GTSRB's training layout."""
    rng = np.random.default_rng(5)
    for name in classes:
        (folder / name).mkdir(parents=True)
        (folder / name / f"GT-{name}.csv").write_text("Filename;Width\n")
        for track in range(tracks):
            for frame in range(frames):
                image = rng.integers(0, 256, (size, size + 3, 3), dtype=np.uint8)
                Image.fromarray(image).save(folder / name / f"{track:05}_{frame:05}.{suffix}")
    return folder


def make_request(root: Path | None, seed: int = 0, **options: Any) -> Request:
    """Make a request with these options."""
    return SOURCE.request(seed, root, options)


def load_pools(root: Path | None, seed: int = 0, **options: Any) -> Pools:
    """Load the pools with these options."""
    return SOURCE.load_pools(make_request(root, seed, **options))

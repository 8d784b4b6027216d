"""Small images in folders client/class/image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_images(root: Path, clients: str = "ab", per_class: int = 6) -> Path:
    """Write dark and bright images of 8x8 pixels, by client and class."""
    rng = np.random.default_rng(0)
    for client in clients:
        for label, low in (("dark", 0), ("bright", 128)):
            folder = root / client / label
            folder.mkdir(parents=True)
            for number in range(per_class):
                pixels = rng.integers(low, low + 128, (8, 8, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root

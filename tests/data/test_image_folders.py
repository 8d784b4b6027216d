"""Images in folders client/class/image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import udjfl
from udjfl import DataError, Federation


def write_images(root: Path, count: int = 10, size: int = 6) -> Path:
    """Write dark and light images of two clients."""
    rng = np.random.default_rng(0)
    for client in ("north", "south"):
        for label, base in (("dark", 0), ("light", 128)):
            folder = root / client / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = base + rng.integers(0, 128, (size, size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def test_images_are_bytes_of_their_clients(tmp_path: Path) -> None:
    federation = Federation.from_image_folders(write_images(tmp_path / "signs"))
    assert (federation.name, federation.ids) == ("signs", ("north", "south"))
    assert federation.class_names == ("dark", "light")
    assert federation.input_shape == (3, 6, 6)
    assert federation.test.x.dtype == torch.uint8
    assert [torch.bincount(c.test.y).tolist() for c in federation.clients] == [[2, 2]] * 2
    first = np.asarray(Image.open(tmp_path / "signs/north/dark/0.png")).transpose(2, 0, 1)
    north = federation.clients[0]
    rows = torch.cat([north.train.x, north.test.x])
    assert sum(torch.equal(row, torch.tensor(first)) for row in rows) == 1
    result = udjfl.simulate(federation, "fedavg", rounds=30, batch_size=8)
    assert result.metrics["global_accuracy"] > 80


def test_images_can_be_resized_and_grey(tmp_path: Path) -> None:
    root = write_images(tmp_path)
    assert Federation.from_image_folders(root, size=4).input_shape == (3, 4, 4)
    grey = Federation.from_image_folders(root, size=(2, 5), colour=False)
    assert grey.input_shape == (1, 2, 5)


def test_unusable_images_name_client_and_file(tmp_path: Path) -> None:
    root = write_images(tmp_path)
    (root / "south/dark/3.png").write_bytes(b"no image")
    Image.new("RGB", (9, 6)).save(root / "south/light/5.png")
    with pytest.raises(DataError) as raised:
        Federation.from_image_folders(root)
    one, two = str(raised.value).splitlines()
    assert one.startswith(f"client 'south': {root / 'south/dark/3.png'} cannot be decoded")
    assert "south/light/5.png is 9x6 pixels, others are 6x6: give `size`" in two


def test_a_truncated_image_is_refused(tmp_path: Path) -> None:
    path = write_images(tmp_path, size=60) / "north/light/0.png"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"client 'north': .*0\.png cannot be decoded"):
        Federation.from_image_folders(tmp_path)


def test_a_png_with_a_damaged_length_is_refused(tmp_path: Path) -> None:
    """Pillow raises a SyntaxError for this one."""
    path = write_images(tmp_path) / "north/dark/0.png"
    content = bytearray(path.read_bytes())
    chunk = content.index(b"IDAT")
    content[chunk - 4 : chunk] = (1).to_bytes(4, "big")  # its length: the rest is no chunk
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"client 'north': .*0\.png cannot be decoded: broken PNG"):
        Federation.from_image_folders(tmp_path)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no folder"):
        Federation.from_image_folders(tmp_path / "nothing")
    with pytest.raises(DataError, match="there are no images in folders client/class/image"):
        Federation.from_image_folders(tmp_path)

"""Folders named in place of data: images by client and class, and saved federations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from image_files import write_images

import udjfl
from udjfl import DataError, Federation, SettingsError, load


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    write_images(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    return "photos"


@pytest.mark.parametrize("prefix", ["", "./", "images:folder="])
def test_a_folder_of_images(photos: str, prefix: str) -> None:
    federation = load(prefix + photos, seed=3)
    expected = Federation.from_image_folders(photos, seed=3)
    assert federation.fingerprint == expected.fingerprint
    assert (federation.name, federation.class_names) == ("photos", ("bright", "dark"))
    assert federation.test.x.dtype == torch.uint8


def test_options_follow_the_folder(photos: str) -> None:
    small = load(f"./{photos}:size=4:colour=no", options={"test_share": 0.5})
    assert small.input_shape == (1, 4, 4)
    assert [len(client.test) for client in small.clients] == [6, 6]
    with pytest.raises(SettingsError, match=r"sise: no such setting\. Did you mean 'size'"):
        load(f"{photos}:sise=4")


def test_a_saved_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = load("scanners")
    before.save("kept")
    after = load("kept", seed=5)
    assert after.fingerprint == before.fingerprint
    assert after.origin == {"data": "kept", "seed": 5}
    held_out = load("kept", tuning=True)
    assert sum(held_out.sizes) < sum(before.sizes)
    with pytest.raises(SettingsError, match="is cut into clients already; leave them out"):
        load("kept", clients=3)
    file = tmp_path / "kept" / "data.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="is damaged"):
        load("kept")


def test_a_run_on_a_saved_federation_is_resumed(tmp_path: Path) -> None:
    load("scanners").save(tmp_path / "kept")
    data, options = str(tmp_path / "kept"), {"rounds": 2, "uncertainty_epochs": 1}
    one = udjfl.simulate(data, "fedavg", out=tmp_path / "run", **options)
    two = udjfl.simulate(data, "fedavg", out=tmp_path / "run", resume=True, **options)
    assert one.client_scores == two.client_scores


def test_other_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"empty has no tables .* and no saved federation"):
        load("empty", options={"target": "y"})
    (tmp_path / "scanners").mkdir()  # a name of data is more than a folder of this name
    assert load("scanners").name == "scanners"
    for name in ("images", "saved"):
        with pytest.raises(DataError, match="folder: name it in place of the data"):
            load(name)


FUNCTIONS = """
import numpy as np
from udjfl import Federation

def make_federation(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(20, 2)), np.arange(20) % 2
    return Federation.from_arrays({"a": (x, y, x + 9, y)}, (x + 5, y))

def make_always():
    return make_federation(0)

def make_nothing(seed):
    return seed
"""


def test_a_function_that_returns_a_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    prints = [load("user_functions:make_federation", seed=s).fingerprint for s in (0, 1, 0)]
    assert prints[0] == prints[2] != prints[1]
    assert load("user_functions:make_always", seed=1).fingerprint == prints[0]
    with pytest.raises(SettingsError, match=r"returned int; it must return a udjfl\.Federation"):
        load("user_functions:make_nothing")

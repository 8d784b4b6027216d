"""Federations on disk: the same bytes, without pickle, read as they are used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import make_federation, model_bytes
from table_helpers import change, make_hospitals

import udjfl
from udjfl import DataError, Federation


def make_images() -> Federation:
    rng = np.random.default_rng(0)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (size, 1, 5, 5), dtype=np.uint8), rng.integers(0, 2, size)

    clients = {name: (*draw(30), *draw(12)) for name in "ab"}
    sensitive = {name: np.arange(30) % 2 for name in "ab"}
    return Federation.from_arrays(
        clients, test=draw(20), sensitive=sensitive, validation=draw(7), class_names="xy"
    )


MADE = {
    "floats": make_federation,
    "pixels": make_images,
    "table": lambda: Federation.from_frames(make_hospitals(), target="ill", sensitive="smoker"),
    "digits": lambda: udjfl.load("dirty-digits"),
}


@pytest.mark.parametrize("kind", MADE)
def test_what_is_saved_is_loaded(kind: str, tmp_path: Path) -> None:
    before = MADE[kind]()
    before.save(tmp_path / "data")
    after = Federation.load(tmp_path / "data")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "data.safetensors",
        "federation.json",
    ]
    assert after.fingerprint == before.fingerprint
    del after.__dict__["fingerprint"]
    assert after.fingerprint == before.fingerprint  # computed from the values
    assert after.describe() == before.describe()
    assert (after.name, after.class_names) == (before.name, before.class_names)
    assert (after.preprocessing is None) == (kind != "table")
    assert (after.validation is None) == (before.validation is None)
    for one, two in zip(before.clients, after.clients, strict=True):
        for column in ("group", "label_probabilities", "together"):
            for side in ("train", "test"):
                was = getattr(getattr(one, side), column)
                now = getattr(getattr(two, side), column)
                assert (was is None) == (now is None)
                assert was is None or torch.equal(was, now)


@pytest.mark.parametrize("kind", ["floats", "pixels"])
@pytest.mark.parametrize("engine", ["serial", "stacked", "mapped"])
def test_training_from_disk_gives_the_same_bytes(kind: str, engine: str, tmp_path: Path) -> None:
    before = MADE[kind]()
    before.save(tmp_path)
    one, two = (
        udjfl.simulate(data, "fedavg", rounds=2, uncertainty_epochs=2, engine=engine)  # type: ignore[arg-type]
        for data in (before, Federation.load(tmp_path))
    )
    assert model_bytes(one) == model_bytes(two)
    assert (one.uncertainty, one.client_scores) == (two.uncertainty, two.client_scores)


def test_parts_are_views_of_one_file(tmp_path: Path) -> None:
    """Without copies, what is loaded takes no memory of its own."""
    make_images().save(tmp_path)
    federation = Federation.load(tmp_path, verify=False)
    storages = {c.train.x.untyped_storage().data_ptr() for c in federation.clients}
    assert len(storages) == 1
    first, second = (client.train.x for client in federation.clients)
    assert first.data_ptr() + first.nbytes == second.data_ptr()


def test_the_file_is_never_written_to(tmp_path: Path) -> None:
    make_images().save(tmp_path)
    content = (tmp_path / "data.safetensors").read_bytes()
    Federation.load(tmp_path).clients[0].train.x.zero_()
    assert (tmp_path / "data.safetensors").read_bytes() == content


def test_damage_is_noticed(tmp_path: Path) -> None:
    make_images().save(tmp_path)
    file = tmp_path / "data.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"data\.safetensors is damaged"):
        Federation.load(tmp_path)
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"data\.safetensors cannot be read"):
        Federation.load(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"data\.safetensors cannot be read"):
        Federation.load(tmp_path)


@pytest.mark.parametrize("text", ["no json", "[]", '{"format": 99}'])
def test_a_wrong_description_is_refused(text: str, tmp_path: Path) -> None:
    make_images().save(tmp_path)
    (tmp_path / "federation.json").write_text(text)
    with pytest.raises(DataError, match=r"federation\.json is"):
        Federation.load(tmp_path)
    with pytest.raises(DataError, match=r"federation\.json cannot be read"):
        Federation.load(tmp_path / "nothing")


def test_data_that_an_earlier_version_saved_are_loaded(tmp_path: Path) -> None:
    frames = {name: change(f, patient=range(len(f))) for name, f in make_hospitals().items()}
    before = Federation.from_frames(frames, target="ill", group="patient")
    before.save(tmp_path)
    text = (tmp_path / "federation.json").read_text()
    older = text.replace(before.fingerprint, before.older_fingerprint)
    assert older != text
    (tmp_path / "federation.json").write_text(older)
    assert Federation.load(tmp_path).fingerprint == before.fingerprint


def test_a_description_of_other_data_is_refused(tmp_path: Path) -> None:
    make_images().save(tmp_path)
    description = json.loads((tmp_path / "federation.json").read_text())
    description["sizes"]["train"][0] += 1
    (tmp_path / "federation.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match="do not fit"):
        Federation.load(tmp_path)


@pytest.mark.parametrize(("column", "type"), [("x", torch.uint32), ("y", torch.int32)])
def test_columns_of_other_types_are_refused(column: str, type: torch.dtype, tmp_path: Path) -> None:
    """Also where the values, and so the fingerprint, are the same."""
    from safetensors.torch import load_file, save_file

    make_images().save(tmp_path)
    tensors = load_file(tmp_path / "data.safetensors")
    tensors[f"train.{column}"] = tensors[f"train.{column}"].to(type)
    save_file(tensors, tmp_path / "data.safetensors")
    with pytest.raises(DataError, match=rf"do not fit: no column 'train.{column}' of {type}"):
        Federation.load(tmp_path)


def test_a_save_that_is_stopped_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images().save(tmp_path)

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", stop)
    with pytest.raises(KeyboardInterrupt):
        make_federation().save(tmp_path)
    assert Federation.load(tmp_path).fingerprint == make_images().fingerprint


def test_held_out_examples_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="held-out examples cannot be saved"):
        make_images().hold_out(0.2, 0).save(tmp_path)

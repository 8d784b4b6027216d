"""Dirty-MNIST from files as small as they can be: what is read, what is refused, what is kept apart, what is made."""

from __future__ import annotations

import gzip
import os
import pickle
import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from udjfl.data import Examples, Federation, load
from udjfl.data.download import Patience, Remote, fetch_all
from udjfl.data.source import Preparation, Request
from udjfl.data.sources import dirty_mnist as mnist
from udjfl.data.sources._ambiguous_digits import AmbiguousSettings
from udjfl.errors import DataError, SettingsError, UdjflError

TRAIN, TEST, VAGUE, LABELS = 160, 20, 24, 10
SOURCES = np.arange(0, 60, 2)  # what the regenerated digits are said to be made of
# All that a few epochs on noise can make is accepted: what matters here is what becomes of it.
TINY = AmbiguousSettings(
    max_mutual_information=9.0,
    min_entropy=0.0,
    max_entropy=9.0,
    entropy_bins=1,
    levels=256,
    hidden=(8,),
    latents=2,
    autoencoder_epochs=1,
    members=2,
    classifier_epochs=1,
)


def noise(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28)).astype(np.uint8)


def write_idx(path: Path, numbers: np.ndarray, head: bytes | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = (
        struct.pack(f">HBB{numbers.ndim}I", 0, 8, numbers.ndim, *numbers.shape)
        if head is None
        else head
    )
    content = head + numbers.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_digits(folder: Path, suffix: str = ".gz") -> None:
    for part, count, seed in (("train", TRAIN, 1), ("test", TEST, 2)):
        write_idx(folder / (mnist.FILES[f"{part} images"] + suffix), noise(count, seed))
        write_idx(
            folder / (mnist.FILES[f"{part} labels"] + suffix),
            (np.arange(count) % 10).astype(np.uint8),
        )


def write_release(folder: Path, images: Any = None, labels: Any = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    usual = torch.from_numpy(noise(VAGUE, 3) / np.float32(255)).reshape(VAGUE, 1, 28, 28)
    torch.save(usual if images is None else images, folder / "amnist_samples.pt")
    torch.save(
        torch.arange(VAGUE * LABELS).reshape(VAGUE, LABELS) % 10 if labels is None else labels,
        folder / "amnist_labels.pt",
    )


def write_regenerated(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    labels = (np.arange(VAGUE * LABELS).reshape(VAGUE, LABELS) % 10).astype(np.uint8)
    np.savez(
        folder / mnist.REGENERATED,
        **{"images": noise(VAGUE, 4), "labels": labels, "sources": SOURCES, **changes},
    )
    return folder / mnist.REGENERATED


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and no other data of the user's."""
    monkeypatch.delenv("UDJFL_DATA", raising=False)
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """MNIST's files, gzipped, and the release."""
    write_digits(tmp_path / "root")
    write_release(tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def made_root(tmp_path: Path) -> Path:
    """MNIST's files and regenerated digits."""
    write_digits(tmp_path / "root")
    write_regenerated(tmp_path / "root")
    return tmp_path / "root"


def small(
    root: Path, options: str = "", seed: int = 0, partition: str = "shards", clients: int = 2
) -> Federation:
    return load("dirty-mnist" + options, clients=clients, partition=partition, seed=seed, root=root)


def request(root: Path | None, cache: Path, seed: int = 0, **options: str) -> Request:
    return Request(seed, root, cache, mnist.MnistOptions(**options))  # type: ignore[arg-type]


def rows(*parts: Examples | None) -> set[bytes]:
    return {row.tobytes() for part in parts if part is not None for row in part.x.numpy()}


def as_features(images: np.ndarray) -> set[bytes]:
    return rows(mnist._examples(images.astype(np.float32) / np.float32(255), np.zeros(len(images))))


def sides(made: Federation) -> tuple[set[bytes], set[bytes]]:
    return rows(*(client.train for client in made.clients)), rows(
        made.test, *(client.test for client in made.clients)
    )


# What is read --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "dirty-mnist", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_files_are_found_gzipped_or_not_where_others_put_them(
    tmp_path: Path, cache: Path, folder: str, suffix: str
):
    write_digits(tmp_path / "root" / folder, suffix)
    write_release(tmp_path / "root" / "AmbiguousMNIST")
    pools = mnist.pools(request(tmp_path / "root", cache))
    assert pools.test is not None
    assert rows(pools.test) == as_features(noise(TEST, 2))
    assert pools.test.y.tolist() == [place % 10 for place in range(TEST)]
    assert rows(pools.clean, pools.validation) == as_features(noise(TRAIN, 1))
    assert rows(pools.ambiguous) == as_features(noise(VAGUE, 3))


def test_the_cache_will_do(cache: Path):
    write_digits(cache / "dirty-mnist")
    write_release(cache / "dirty-mnist")
    made = load("dirty-mnist", clients=2, partition="shards")
    assert made.input_shape == (1, 28, 28)
    assert made.class_names == tuple("0123456789")


def test_each_pair_is_an_image_with_one_of_its_labels(root: Path, cache: Path):
    pools = mnist.pools(request(root, cache))
    assert pools.ambiguous is not None
    assert (
        len(pools.ambiguous) == VAGUE * LABELS
    )  # fewer than PAIRS, so all of them, image after image
    assert pools.ambiguous.y.tolist() == [place % 10 for place in range(VAGUE * LABELS)]
    assert pools.ambiguous_groups.tolist() == [
        TRAIN + place // LABELS for place in range(VAGUE * LABELS)
    ]
    assert set(pools.ambiguous_groups.tolist()).isdisjoint(pools.clean_groups.tolist())


def test_pixels_are_scaled_as_usual_and_back(root: Path, cache: Path):
    # Black is (0 - 0.1307) / 0.3081 = -0.4242, white (1 - 0.1307) / 0.3081 = 2.8215.
    pools = mnist.pools(request(root, cache))
    assert float(pools.clean.x.min()) == pytest.approx(-0.4242, abs=1e-4)
    assert float(pools.clean.x.max()) == pytest.approx(2.8215, abs=1e-4)
    pixels = mnist.to_pixels(pools.clean.x)
    torch.testing.assert_close(
        pixels[:, 0], torch.from_numpy(noise(TRAIN, 1)[pools.clean_groups]).float() / 255
    )


def test_the_release_is_preferred_and_regenerated_digits_are_called_so(root: Path):
    write_regenerated(root)
    for options, source, name in (
        ("", 3, "dirty-mnist"),
        (":ambiguous=auto", 3, "dirty-mnist"),
        (":ambiguous=release", 3, "dirty-mnist"),
        (":ambiguous=regenerated", 4, "dirty-mnist (regenerated)"),
    ):
        made = small(root, options)
        assert made.name == name
        expected = as_features(noise(VAGUE, source))
        assert expected & rows(*(client.train for client in made.clients))
        assert as_features(noise(VAGUE, 7 - source)).isdisjoint(set.union(*sides(made)))


def test_regenerated_digits_stand_in_where_there_is_no_release(made_root: Path):
    assert small(made_root).name == "dirty-mnist (regenerated)"
    assert small(made_root, ":split=pairs").name == "dirty-mnist (regenerated) (split by pairs)"
    with pytest.raises(
        DataError, match=r"amnist_samples\.pt and amnist_labels\.pt were not found in"
    ):
        small(made_root, ":ambiguous=release")
    (made_root / "amnist_samples.pt").write_bytes(b"half of the release is none")
    assert small(made_root).name == "dirty-mnist (regenerated)"


# What is kept apart --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["release", "regenerated"])
@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.5"])
def test_no_image_is_on_both_sides(tmp_path: Path, kind: str, partition: str):
    write_digits(tmp_path)
    (write_release if kind == "release" else write_regenerated)(tmp_path)
    for seed in range(3):
        made = small(tmp_path, seed=seed, partition=partition, clients=3)
        train, test = sides(made)
        assert train.isdisjoint(test)
        vague = as_features(noise(VAGUE, 3 if kind == "release" else 4))
        assert train & vague
        assert test & vague
        assert not made.allow_duplicates


def test_split_by_pairs_an_image_may_be_on_both_sides_but_no_pair_is(root: Path):
    made = small(root, ":split=pairs", partition="iid")
    assert made.name == "dirty-mnist (split by pairs)"
    train, test = sides(made)
    assert train & test <= as_features(noise(VAGUE, 3))
    assert train & test
    pairs = [
        {
            (row.tobytes(), int(label))
            for part in parts
            for row, label in zip(part.x.numpy(), part.y, strict=True)
        }
        for parts in (
            [client.train for client in made.clients],
            [client.test for client in made.clients],
        )
    ]
    assert pairs[0].isdisjoint(pairs[1])
    # Alone, pairs split exactly: 144 clean and 240 ambiguous ones for two, 192 each, of which a fifth is 38.
    assert made.sizes == (154, 154)


def test_the_sources_of_regenerated_digits_are_nobodys(made_root: Path, cache: Path):
    sources = as_features(noise(TRAIN, 1)[SOURCES])
    for seed in range(3):
        pools = mnist.pools(request(made_root, cache, seed))
        assert set(pools.clean_groups.tolist()) == set(range(TRAIN)) - set(SOURCES.tolist())
        train, test = sides(small(made_root, seed=seed))
        assert sources.isdisjoint(train | test)
        assert rows(pools.validation) == sources  # fewer than 5,000, so all of them


@pytest.mark.parametrize("kind", ["root", "made_root"])
def test_the_servers_digits_are_in_nobodys_data(kind: str, request: pytest.FixtureRequest):
    folder: Path = request.getfixturevalue(kind)
    for seed in range(3):
        made = small(folder, seed=seed, partition="iid")
        assert made.validation is not None
        assert rows(made.validation).isdisjoint(set.union(*sides(made)))
        assert len(made.validation) == (TRAIN // 10 if kind == "root" else len(SOURCES))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_pairs(
    root: Path, cache: Path, monkeypatch
):
    monkeypatch.setattr(mnist, "PAIRS", 100)
    one, again, other = (mnist.pools(request(root, cache, seed)) for seed in (0, 0, 1))
    chosen = []
    for pools in (one, again, other):
        assert pools.ambiguous is not None
        assert len(pools.ambiguous) == 100
        pairs = list(zip(pools.ambiguous_groups.tolist(), pools.ambiguous.y.tolist(), strict=True))
        assert len(set(pairs)) == 100  # no pair twice; a label comes once with each image here
        chosen.append(pairs)
    assert chosen[0] == chosen[1] != chosen[2]
    assert rows(one.validation) == rows(again.validation) != rows(other.validation)
    assert small(root).fingerprint == small(root).fingerprint != small(root, seed=1).fingerprint


# What is refused -----------------------------------------------------------------------------------------------------

IMAGES = mnist.FILES["train images"]


def spoil_truncated(root: Path) -> None:
    whole = gzip.decompress((root / (IMAGES + ".gz")).read_bytes())
    (root / (IMAGES + ".gz")).write_bytes(gzip.compress(whole[:-1]))


def spoil_half_a_gzip(root: Path) -> None:
    path = root / (IMAGES + ".gz")
    path.write_bytes(path.read_bytes()[:5000])


def spoil_a_gzips_inside(root: Path) -> None:
    path = root / (IMAGES + ".gz")
    content = bytearray(path.read_bytes())
    content[10:40] = b"\xff" * 30
    path.write_bytes(bytes(content))


def spoil_magic(root: Path) -> None:
    write_idx(
        root / (IMAGES + ".gz"), noise(TRAIN, 1), struct.pack(">HBB3I", 0, 9, 3, TRAIN, 28, 28)
    )


def spoil_number_of_dimensions(root: Path) -> None:
    write_idx(root / (IMAGES + ".gz"), noise(TRAIN, 1).reshape(TRAIN, 784))


def spoil_to_nothing(root: Path) -> None:
    (root / (IMAGES + ".gz")).write_bytes(b"")


def spoil_to_a_web_page(root: Path) -> None:
    (root / (IMAGES + ".gz")).write_bytes(b"<html>not found</html>")


def spoil_dimensions(root: Path) -> None:
    write_idx(root / (IMAGES + ".gz"), noise(TRAIN, 1).reshape(TRAIN, 14, 56))


def spoil_count(root: Path) -> None:
    write_idx(root / (IMAGES + ".gz"), noise(TRAIN - 1, 1))


def spoil_labels(root: Path) -> None:
    write_idx(root / (mnist.FILES["train labels"] + ".gz"), np.full(TRAIN, 10, dtype=np.uint8))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_truncated, "is not one of MNIST's files, or not whole; get it again"),
        (spoil_half_a_gzip, "cannot be read .*get the file again"),
        (spoil_a_gzips_inside, "cannot be read .*get the file again"),
        (spoil_magic, "is not one of MNIST's files"),
        (spoil_number_of_dimensions, "is not one of MNIST's files"),
        (spoil_to_nothing, "cannot be read .*get the file again"),
        (spoil_to_a_web_page, "cannot be read|is not one of MNIST's files"),
        (spoil_dimensions, "they are not MNIST's"),
        (spoil_count, "they are not MNIST's"),
        (spoil_labels, "they are not MNIST's"),
    ],
)
def test_damaged_digits(root: Path, spoil: Any, words: str):
    spoil(root)
    with pytest.raises(DataError, match=words) as caught:
        small(root)
    assert str(root) in str(caught.value)


def vague_labels(changed: int) -> torch.Tensor:
    labels = torch.zeros(VAGUE, LABELS, dtype=torch.int64)
    labels[3, 4] = changed
    return labels


def vague_images(changed: float) -> torch.Tensor:
    images = torch.full((VAGUE, 1, 28, 28), 0.5)
    images[3, 0, 4, 5] = changed
    return images


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"images": vague_images(1.5)}, "pixels from 0 to 1"),
        ({"images": vague_images(-0.1)}, "pixels from 0 to 1"),
        ({"images": vague_images(float("nan"))}, "pixels from 0 to 1"),
        ({"labels": vague_labels(10)}, "labels from 0 to 9"),
        ({"labels": vague_labels(-1)}, "labels from 0 to 9"),
        ({"labels": torch.full((VAGUE, LABELS), float("nan"))}, "labels from 0 to 9"),
        ({"images": torch.zeros(VAGUE - 1, 1, 28, 28)}, "do not fit: shapes"),
        ({"images": torch.zeros(VAGUE, 1, 27, 27)}, "do not fit: shapes"),
        ({"labels": torch.zeros(VAGUE, dtype=torch.int64)}, "do not fit: shapes"),
        (
            {"images": torch.zeros(0, 1, 28, 28), "labels": torch.zeros(0, LABELS)},
            "do not fit: shapes",
        ),
        ({"labels": torch.zeros(VAGUE, 0)}, "do not fit: shapes"),
        ({"images": {"samples": torch.zeros(1)}}, "holds a dict, not a tensor"),
    ],
)
def test_a_release_with_other_numbers(root: Path, changed: dict[str, Any], words: str):
    write_release(root, **changed)
    with pytest.raises(DataError, match=words):
        small(root)


class Harmful:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_code_in_a_file_is_not_run(root: Path, tmp_path: Path):
    harm = tmp_path / "harm"
    for content in (pickle.dumps(Harmful(harm)), None):
        if content is None:
            torch.save(Harmful(harm), root / "amnist_labels.pt")
        else:
            (root / "amnist_labels.pt").write_bytes(content)
        with pytest.raises(
            DataError, match=r"amnist_labels\.pt cannot be read as tensors .*get the file again"
        ):
            small(root)
        assert not harm.exists()
    pickle.loads(pickle.dumps(Harmful(harm)))
    assert harm.exists()  # it would have


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"labels": np.full((VAGUE, LABELS), 10)}, "delete it and prepare it again"),
        ({"labels": np.zeros(VAGUE)}, "delete it and prepare it again"),
        ({"images": noise(VAGUE - 1, 4)}, "delete it and prepare it again"),
        ({"images": np.array([None], dtype=object)}, "is damaged .*delete it and prepare it again"),
        (
            {"sources": np.array([TRAIN])},
            "was made of other digits than MNIST's files here, which have 160",
        ),
    ],
)
def test_a_regenerated_file_that_does_not_fit(made_root: Path, changed: dict[str, Any], words: str):
    write_regenerated(made_root, **changed)
    with pytest.raises(DataError, match=words):
        small(made_root)


@pytest.mark.parametrize("keep", [0, 10, 3000, -1])
def test_a_damaged_regenerated_file(made_root: Path, keep: int):
    path = made_root / mnist.REGENERATED
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        DataError, match=r"regenerated\.npz is damaged .*delete it and prepare it again"
    ):
        small(made_root)


def test_a_regenerated_file_with_a_wrong_byte_inside(made_root: Path):
    path = made_root / mnist.REGENERATED
    np.savez_compressed(
        path, images=noise(VAGUE, 4), labels=np.zeros((VAGUE, LABELS)), sources=SOURCES
    )
    content = bytearray(path.read_bytes())
    content[60:90] = b"\xff" * 30
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="is damaged"):
        small(made_root)


def test_another_kind_of_file_in_its_place(made_root: Path):
    with (made_root / mnist.REGENERATED).open("wb") as opened:
        np.save(opened, noise(3, 4))
    with pytest.raises(DataError, match="is damaged"):
        small(made_root)


def test_missing_files_say_how_to_get_them(tmp_path: Path, cache: Path):
    (tmp_path / "root").mkdir()
    with pytest.raises(DataError) as caught:
        small(tmp_path / "root")
    assert (
        f"MNIST's file {IMAGES} (or .gz) was not found in {tmp_path / 'root'} and {cache}."
        in str(caught.value)
    )
    write_digits(tmp_path / "root")
    with pytest.raises(DataError) as also:
        small(tmp_path / "root")
    assert (
        f"the release of Ambiguous-MNIST, or a regenerated one, was not found in {tmp_path / 'root'} and"
        in str(also.value)
    )
    for error in (caught, also):
        for words in (
            "`udjfl data prepare dirty-mnist`",
            "`udjfl data prepare dirty-mnist --regenerate`",
            "--data-root",
        ):
            assert words in str(error.value)


def test_wrong_options():
    with pytest.raises(SettingsError) as caught:
        load("dirty-mnist:ambiguous=realease:splitt=pairs")
    first, second = caught.value.mistakes
    assert "Did you mean 'release'?" in first
    assert "splitt: no such setting. Did you mean 'split'?" in second


# What is got ready ---------------------------------------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every address is a port of this machine that nobody listens at, and nobody waits between tries."""
    with socket.socket() as taken:  # bound and not listening, so that no one else gets it
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        monkeypatch.setattr(mnist, "MIRRORS", (address + "a/", address + "b/"))
        remotes = tuple(
            Remote(remote.name, (address + remote.name,), remote.md5) for remote in mnist.AMBIGUOUS
        )
        monkeypatch.setattr(mnist, "AMBIGUOUS", remotes)
        monkeypatch.setattr(
            mnist,
            "fetch_all",
            partial(fetch_all, patience=Patience(attempts=2, pause=lambda _: None)),
        )
        yield address


@pytest.fixture
def tiny_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COUNT", 30), ("SOURCES", 100), ("RECIPE", TINY)):
        monkeypatch.setattr(mnist, name, value)


def test_what_is_there_is_not_fetched(root: Path, cache: Path, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is to be fetched")

    monkeypatch.setattr(mnist, "fetch_all", refuse)
    told = mnist.prepare(Preparation(request(root, cache)))
    assert told == [
        *(f"{kind}: {root / (name + '.gz')}" for kind, name in mnist.FILES.items()),
        f"Ambiguous-MNIST: {root / 'amnist_samples.pt'}",
        f"Ambiguous-MNIST: {root / 'amnist_labels.pt'}",
    ]
    assert not cache.exists()


def test_without_a_network_the_advice_is_to_regenerate(
    tmp_path: Path, cache: Path, no_network: str
):
    write_digits(tmp_path / "root")
    with pytest.raises(DataError) as caught:
        mnist.prepare(Preparation(request(tmp_path / "root", cache)))
    assert "amnist_samples.pt could not be fetched" in str(caught.value)
    assert "udjfl data prepare dirty-mnist --regenerate" in str(caught.value)
    assert no_network in str(caught.value)


def test_without_a_network_and_without_mnist(cache: Path, no_network: str):
    for regenerate in (False, True):
        with pytest.raises(DataError) as caught:
            mnist.prepare(Preparation(request(None, cache), regenerate))
        assert f"{IMAGES}.gz could not be fetched" in str(caught.value)
        for mirror in ("a/", "b/"):
            assert f"{no_network}{mirror}{IMAGES}.gz" in str(caught.value)
        assert "--regenerate" not in str(caught.value)  # it could not help


def test_digits_are_made_once_kept_whole_and_called_regenerated(
    tmp_path: Path, cache: Path, no_network, tiny_recipe, monkeypatch
):
    root = tmp_path / "root"
    write_digits(root)
    stages: list[str] = []
    asked = Preparation(
        request(root, cache),
        regenerate=True,
        progress=lambda stage, done, total: stages.append(stage),
    )
    told = mnist.prepare(asked)
    kept = cache / "dirty-mnist" / mnist.REGENERATED
    assert told[-1] == f"regenerated ambiguous digits: {kept}"
    assert [path.name for path in kept.parent.iterdir()] == [
        kept.name
    ]  # no half of a file beside it
    assert stages
    with np.load(kept) as arrays:
        assert arrays["images"].shape == (30, 28, 28)
        assert arrays["images"].dtype == np.uint8
        assert arrays["labels"].shape == (30, 10)
        assert len(set(arrays["sources"].tolist())) == 100
    made = small(root, clients=2, partition="iid")
    assert made.name == "dirty-mnist (regenerated)"
    with np.load(kept) as arrays:
        assert as_features(noise(TRAIN, 1)[arrays["sources"]]).isdisjoint(set.union(*sides(made)))
    monkeypatch.setattr(mnist, "make_ambiguous", None)  # a second time nothing is made
    before = kept.stat().st_mtime_ns
    assert mnist.prepare(asked) == told
    assert kept.stat().st_mtime_ns == before


def test_the_same_digits_are_made_every_time(tmp_path: Path, tiny_recipe: None):
    write_digits(tmp_path / "root")
    made = []
    for name in ("one", "other"):
        mnist.prepare(Preparation(request(tmp_path / "root", tmp_path / name), regenerate=True))
        with np.load(tmp_path / name / "dirty-mnist" / mnist.REGENERATED) as arrays:
            made.append({key: arrays[key].tobytes() for key in arrays})
    assert made[0] == made[1]


def test_stopped_while_writing_there_is_no_file(
    tmp_path: Path, cache: Path, tiny_recipe: None, monkeypatch
):
    write_digits(tmp_path / "root")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("udjfl._files.os.fsync", full)
    with pytest.raises(UdjflError, match="the disk is full"):
        mnist.prepare(Preparation(request(tmp_path / "root", cache), regenerate=True))
    assert list((cache / "dirty-mnist").iterdir()) == []

"""Digits as scanners of falling quality read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import SEEDS, held_out_rows, row_set, train_rows
from scipy import ndimage

from udjfl.data import Pools, load
from udjfl.data.source import Request
from udjfl.data.sources import scanners
from udjfl.data.sources._images import scale_for_display
from udjfl.data.sources.dirty_digits import load_handwritten
from udjfl.errors import DataError, SettingsError


def make_pools(seed: int = 0, clients: int | None = None, **options: float) -> Pools:
    chosen = scanners.ScannersOptions(**options)  # type: ignore[arg-type]
    return scanners.load_pools(Request(seed, None, Path("nowhere"), chosen, clients))


def to_sixteenths(part: np.ndarray, pools: Pools) -> list[bytes]:
    """Return undegraded digits as scikit-learn has them, each as bytes: whole numbers 0 to 16."""
    assert pools.validation is not None
    low, high = float(pools.validation.x.min()), float(pools.validation.x.max())
    pixels = np.rint((part[:, 0].astype(np.float64) - low) / (high - low) * 16)
    return [image.astype(np.uint8).tobytes() for image in pixels]


@pytest.mark.parametrize("seed", SEEDS)
def test_default_federation(seed: int) -> None:
    federation = load("scanners", seed=seed)
    assert federation.name == "scanners"
    assert federation.ids == ("client-1", "client-2", "client-3", "client-4", "client-5")
    assert federation.sizes == (180,) * 5
    assert [len(client.test) for client in federation.clients] == [120] * 5
    assert federation.validation is not None
    assert (len(federation.test), len(federation.validation)) == (1797 - 1500 - 50, 50)
    assert federation.input_shape == (1, 8, 8)
    assert federation.test.x.dtype == torch.float32
    assert federation.class_names == tuple("0123456789")
    assert all(client.ambiguous_share is None for client in federation.clients)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_digit_is_in_two_places(seed: int) -> None:
    """By index, and by content of the digits before they are scanned: all 1,797 are distinct."""
    images, labels = load_handwritten()
    everything = [image.astype(np.uint8).tobytes() for image in images]
    assert len(set(everything)) == 1797
    pools = make_pools(seed)
    assert len(set(pools.clean_groups.tolist())) == 1500
    assert pools.originals is not None
    assert pools.test is not None
    assert pools.validation is not None
    used = []
    for part in (pools.originals, pools.test, pools.validation):
        rows = to_sixteenths(part.x.numpy(), pools)
        used += rows
        # Each is the digit it is said to be.
        answers = dict(zip(everything, labels.tolist(), strict=True))
        assert [answers[row] for row in rows] == part.y.tolist()
    assert sorted(used) == sorted(everything)
    originals = to_sixteenths(pools.originals.x.numpy(), pools)
    assert [everything[index] for index in pools.clean_groups] == originals
    assert torch.equal(pools.clean.y, pools.originals.y)


@pytest.mark.parametrize("seed", SEEDS)
def test_train_and_test_parts_of_the_federation_share_no_digit(seed: int) -> None:
    federation = load("scanners", seed=seed)
    parts = [part for client in federation.clients for part in (client.train, client.test)]
    rows = row_set(*parts, federation.test, federation.validation)
    assert len(rows) == 1797  # also as they were read, no two are equal
    pools = make_pools(seed)
    rows_read = pools.clean.x.numpy()
    read = {row.tobytes(): index for row, index in zip(rows_read, pools.clean_groups, strict=True)}
    trained, tested = (
        [
            read[row.tobytes()]
            for client in federation.clients
            for row in getattr(client, side).x.numpy()
        ]
        for side in ("train", "test")
    )
    assert (len(trained), len(tested)) == (900, 600)
    assert len({*trained, *tested}) == 1500


def test_classes_are_dealt_by_their_share() -> None:
    pools = make_pools()
    shares = np.bincount(load_handwritten()[1]) / 1797
    for number in range(5):
        counts = np.bincount(pools.clean.y[300 * number : 300 * (number + 1)].numpy())
        assert np.abs(counts - 300 * shares).max() < 2
    assert pools.validation is not None
    assert np.bincount(pools.validation.y.numpy()).tolist() == [5] * 10


def test_first_client_reads_digits_as_they_are_and_the_last_one_worst() -> None:
    """Without rotation: turned by 90 degrees, a digit can be closer to itself than by 60."""
    pools = make_pools(rotation=0)
    assert pools.originals is not None
    errors = [
        float((pools.clean.x[part] - pools.originals.x[part]).square().mean())
        for part in (slice(300 * number, 300 * (number + 1)) for number in range(5))
    ]
    assert errors[0] == 0
    assert errors == sorted(errors)


@pytest.mark.parametrize("seed", SEEDS)
def test_quality_falls_in_equal_steps(seed: int) -> None:
    """Client 2 of three has half of each effect: 45 of 90 degrees, blur 0.2, noise 0.05."""
    pools = make_pools(seed, 3, rotation=90, blur=0.4, noise=0.1)
    quiet = make_pools(seed, 3, rotation=90, blur=0.4, noise=0)
    assert pools.originals is not None
    assert pools.validation is not None
    low, high = float(pools.validation.x.min()), float(pools.validation.x.max())
    pixels = (pools.originals.x[:, 0].double().numpy() - low) / (high - low)
    read, smooth = (
        (part.clean.x[:, 0].double().numpy() - low) / (high - low) for part in (pools, quiet)
    )
    for number, angle, blur, noise in ((0, 0, 0, 0.0), (1, 45, 0.2, 0.05), (2, 90, 0.4, 0.1)):
        own = slice(300 * number, 300 * (number + 1))
        expected = ndimage.rotate(pixels[own], angle, axes=(1, 2), reshape=False, order=3)
        expected = ndimage.gaussian_filter(expected, (0, blur, blur), mode="constant")
        expected = expected.clip(0, 1)  # splines overshoot
        assert np.abs(smooth[own] - expected).max() < 1e-6
        # Where clipping is out of reach, the difference is the noise.
        inside = (expected > 0.45) & (expected < 0.55)
        assert (read[own] - expected)[inside].std() == pytest.approx(noise, rel=0.15, abs=1e-6)
    assert read.min() >= -1e-6
    assert read.max() <= 1 + 1e-6


def test_degrading_a_digit_by_hand() -> None:
    # A pixel in the top left corner, a quarter turn anticlockwise: in the bottom left corner.
    corner = np.zeros((1, 8, 8))
    corner[0, 0, 0] = 1.0
    turned = scanners.degrade(corner, 90, 0)
    assert turned[0, 7, 0] == pytest.approx(1)
    assert turned.sum() == pytest.approx(1)
    # A blur keeps the sum of a pixel in the middle; noise is added, then clipped to 0 to 1.
    middle = np.zeros((1, 8, 8))
    middle[0, 4, 4] = 1.0
    blurred = scanners.degrade(middle, 0, 0.5)
    assert blurred.sum() == pytest.approx(1)
    assert blurred[0, 4, 4] == pytest.approx(0.619, abs=0.001)  # 1 / (1 + 2 e^-2 + ...), squared
    assert np.array_equal(scanners.degrade(middle, 0, 0, 0.25), np.where(middle > 0, 1.0, 0.25))
    assert not scanners.degrade(middle, 0, 0, -2.0).any()
    assert np.array_equal(scanners.degrade(middle, 0, 0), middle)


def test_every_digit_has_noise_of_its_own_and_one_tilt() -> None:
    pools, quiet = make_pools(rotation=0, blur=0), make_pools(rotation=0, blur=0, noise=0)
    noise = (pools.clean.x - quiet.clean.x)[1200:].numpy()
    assert len({image.tobytes() for image in noise}) == 300
    assert torch.equal(quiet.clean.x, quiet.originals.x)  # type: ignore[union-attr]


def test_seed_decides_digits_and_noise_and_options_only_the_reading() -> None:
    one, again, other = (load("scanners", seed=seed) for seed in (0, 0, 1))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    mild = make_pools(noise=0.07, rotation=10, blur=0.1)
    assert np.array_equal(mild.clean_groups, make_pools().clean_groups)
    assert not np.array_equal(make_pools(1).clean_groups, make_pools().clean_groups)


def test_features_are_standardised_by_the_validation_set() -> None:
    validation = make_pools().validation
    assert validation is not None
    assert float(validation.x.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(validation.x.double().std(correction=0)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("clients", [1, 2, 4, 12])
def test_other_numbers_of_clients(clients: int) -> None:
    federation = load("scanners:train=80:test=50", clients=clients)
    assert federation.ids == tuple(f"client-{number}" for number in range(1, clients + 1))
    assert federation.sizes == (80,) * clients
    assert [len(client.test) for client in federation.clients] == [50] * clients
    assert len(federation.test) == 1797 - 50 - 130 * clients
    first = make_pools(clients=clients, train=80, test=50).clean_groups[:130]
    assert np.array_equal(first, make_pools(clients=5, train=80, test=50).clean_groups[:130])


def test_too_many_clients_are_refused() -> None:
    # 1,797 digits less 50 for validation and 100 for the global test: 1,647 // 300 = 5.
    with pytest.raises(DataError) as caught:
        load("scanners", clients=6)
    assert str(caught.value) == (
        "scanners: 6 clients with 180 + 120 digits need 1,800; there are 1,647, besides the "
        "server's: use at most 5 clients, or give each fewer, scanners:train=164:test=110"
    )
    assert load("scanners:train=164:test=110", clients=6).sizes == (164,) * 6
    with pytest.raises(DataError, match=r"use at most 5 clients$"):
        load("scanners", clients=1000)
    with pytest.raises(DataError, match=r"give each fewer, scanners:train=988:test=659$"):
        load("scanners:train=1200:test=800", clients=1)


def test_other_partitions_mix_the_scanners() -> None:
    federation = load("scanners", clients=3, partition="iid")
    assert federation.sizes == (180,) * 3
    rows = make_pools(clients=3).clean.x.numpy()
    scanner = {row.tobytes(): index // 300 for index, row in enumerate(rows)}
    assert {scanner[row.tobytes()] for row in federation.clients[0].train.x.numpy()} == {0, 1, 2}


@pytest.mark.parametrize("seed", SEEDS)
def test_tuning_has_clean_digits_that_are_not_tested_on(seed: int) -> None:
    usual, tuning = load("scanners", seed=seed), load("scanners", seed=seed, tuning=True)
    assert held_out_rows(usual).isdisjoint(train_rows(tuning) | held_out_rows(tuning))
    assert tuning.sizes == (144,) * 5
    assert len(tuning.test) == 5 * 36
    # The shared test set has the digits of the held-out fifths as client 1's scanner reads them.
    pools = make_pools(seed)
    assert pools.originals is not None
    clean = {row.tobytes(): index for index, row in enumerate(pools.originals.x.numpy())}
    read = {row.tobytes(): index for index, row in enumerate(pools.clean.x.numpy())}
    shared = [clean[row.tobytes()] for row in tuning.test.x.numpy()]
    own = [read[row.tobytes()] for client in tuning.clients for row in client.test.x.numpy()]
    assert shared == own


def test_title_states_other_degradations() -> None:
    assert make_pools(train=100).title is None
    assert make_pools(noise=0.1).title == "scanners (rotation 120, blur 0.55, noise 0.1)"


def test_display_gives_the_pixels_back() -> None:
    pools = make_pools()
    shown = scale_for_display(pools.clean.x)
    assert scanners.SOURCE.to_pixels is scale_for_display
    assert (float(shown.min()), float(shown.max())) == (0, 1)
    rows = to_sixteenths(pools.clean.x[:300].numpy(), pools)
    assert [
        np.rint(image * 16).astype(np.uint8).tobytes() for image in shown[:300, 0].numpy()
    ] == rows


@pytest.mark.parametrize(
    "options",
    ["rotation=-1", "rotation=200", "blur=-0.1", "noise=2", "train=0", "test=0", "tilt=3"],
)
def test_options_are_checked(options: str) -> None:
    with pytest.raises(SettingsError, match=options.partition("=")[0]):
        load(f"scanners:{options}")

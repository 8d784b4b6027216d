"""Ambiguous images, generated from clean ones in the manner of Ambiguous-MNIST.

The recipe is that of Mukhoti, Kirsch, van Amersfoort, Torr and Gal, "Deep Deterministic
Uncertainty", CVPR 2023: train a variational autoencoder, decode convex mixtures of the latents of
images of different classes, and keep those that an ensemble of small classifiers finds familiar
(low mutual information: the members agree with each other) but undecided (high entropy of the mean
softmax). Labels are drawn from that mean softmax, so some error always remains.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from udjfl.data.source import OnProgress, ignore_progress
from udjfl.data.sources._ambiguous_networks import (
    Autoencoder,
    judge,
    train_autoencoder,
    train_classifier,
)
from udjfl.data.sources._ambiguous_settings import AmbiguousSettings
from udjfl.errors import DataError
from udjfl.seeds import torch_stream

MIN_SIDE = 8
MIN_SOURCES = 20
MIXTURES_AT_ONCE = 4096


@dataclass(frozen=True)
class AmbiguousImages:
    """n ambiguous images over C classes, with L sampled labels each.

    images               [n, channels, height, width], pixels from 0 to 1
    probabilities        [n, C], the ensemble's mean softmax, in float64
    labels               [n, L], drawn from `probabilities`
    parents              [n, max_parents], indices into the sources, -1 where there are fewer
    entropy              [n], of `probabilities`, in nats
    mutual_information   [n], of the ensemble, in nats
    """

    images: Tensor
    probabilities: Tensor
    labels: Tensor
    parents: Tensor
    entropy: Tensor
    mutual_information: Tensor


def make_ambiguous(
    images: Tensor,
    labels: Tensor,
    count: int,
    *,
    seed: int,
    settings: AmbiguousSettings | None = None,
    on_progress: OnProgress = ignore_progress,
) -> AmbiguousImages:
    """Generate `count` distinct ambiguous images from `images`, with pixels from 0 to 1.

    `images` are [n, channels, height, width] or [n, height, width]. The result is spread evenly
    over the entropy range, and within each part of it over the most likely class, as far as the
    mixtures allow; no image equals a source. Equal arguments give equal images on the same machine
    with the same number of torch threads. Raises DataError if the sources cannot be used, or if
    too few mixtures pass.
    """
    settings = settings or AmbiguousSettings()
    images, labels = _convert_sources(images, labels, count, settings)
    with torch.enable_grad():
        autoencoder = train_autoencoder(images, seed, settings, on_progress)
        classifiers = [
            train_classifier(images, labels, member, seed, settings, on_progress)
            for member in range(settings.members)
        ]
    stream = torch_stream(seed, "ambiguous mixtures")
    with torch.no_grad():
        latents = autoencoder.encode(images)[0]
        draw = partial(
            _draw_mixtures, images, latents, labels, autoencoder, classifiers, settings, stream
        )
        classes = len(torch.unique(labels))
        pool = _collect(draw, _hash_images(images), classes, count, settings, on_progress)
    # Rare entropies are found last; shuffled, any slice of the result is like the whole.
    pool = pool.take(torch.randperm(count, generator=torch_stream(seed, "ambiguous order")))
    per_image, stream = settings.labels_per_image, torch_stream(seed, "ambiguous labels")
    drawn = torch.multinomial(pool.probabilities, per_image, replacement=True, generator=stream)
    return AmbiguousImages(
        images=pool.images,
        probabilities=pool.probabilities,
        labels=drawn,
        parents=pool.parents,
        entropy=pool.entropy,
        mutual_information=pool.mutual_information,
    )


def select_evenly(strata: Tensor, groups: Tensor, count: int) -> Tensor:
    """Select at most `count` items, evenly over `strata`, then over `groups` within each.

    Earlier items come first. Returns sorted indices.
    """
    cells = strata * (int(groups.max()) + 1 if len(groups) else 1) + groups
    queue = _rank_within(cells).argsort(stable=True)
    rank = _rank_within(strata[queue])[queue.argsort()]
    return rank.argsort(stable=True)[:count].sort().values


def _rank_within(groups: Tensor) -> Tensor:
    """Return, for each item, the number of earlier items in its group."""
    order = groups.argsort(stable=True)
    sizes = groups.bincount()
    first = sizes.cumsum(0) - sizes
    return (torch.arange(len(groups)) - first[groups[order]])[order.argsort()]


def _convert_sources(
    images: Tensor, labels: Tensor, count: int, settings: AmbiguousSettings
) -> tuple[Tensor, Tensor]:
    """Check the sources; return them as float32 [n, channels, height, width] and int64 [n]."""
    if images.ndim not in (3, 4) or min(images.shape[-2:]) < MIN_SIDE:
        raise DataError(
            "images must be [n, channels, height, width] or [n, height, width] with sides of "
            f"{MIN_SIDE} pixels or more; the shape is {tuple(images.shape)}"
        )
    if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
        raise DataError(
            "images must be floating-point pixels from 0 to 1, all finite; "
            "scale them first (8-bit: / 255)"
        )
    fits = labels.shape == images.shape[:1] and not labels.is_floating_point()
    if not fits or (len(labels) and int(labels.min()) < 0):
        raise DataError(f"labels must be {len(images)} whole numbers from 0 up, one for each image")
    if count < 1:
        raise DataError(f"count must be at least 1; it is {count}")
    if len(images) < MIN_SOURCES:
        raise DataError(
            f"images: {len(images)} sources are too few to learn from; give at least {MIN_SOURCES}"
        )
    classes = len(torch.unique(labels))
    if classes < 2:
        raise DataError(
            "labels: all sources are of one class; an ambiguous image needs parents of two or more"
        )
    if settings.max_parents > classes:
        raise DataError(
            f"max_parents is {settings.max_parents}, but the labels hold only {classes} classes "
            "and the parents of an image are of different classes; "
            f"set max_parents to {classes} or less"
        )
    if settings.min_entropy >= math.log(classes):
        raise DataError(
            f"min_entropy must be below log({classes} classes) = {math.log(classes):.3f}; lower it"
        )
    pixels = images.unsqueeze(1) if images.ndim == 3 else images
    return pixels.detach().to("cpu", torch.float32), labels.detach().to("cpu", torch.int64)


class _Pool(NamedTuple):
    """Mixtures with the ensemble's judgement of each."""

    images: Tensor
    probabilities: Tensor
    parents: Tensor
    entropy: Tensor
    mutual_information: Tensor
    hashes: Tensor

    def take(self, indices: Tensor) -> "_Pool":
        return _Pool(*(column[indices] for column in self))

    def join(self, other: "_Pool") -> "_Pool":
        return _Pool(*map(torch.cat, zip(self, other, strict=True)))


def _draw_mixtures(
    images: Tensor,
    latents: Tensor,
    labels: Tensor,
    autoencoder: Autoencoder,
    classifiers: list[nn.Sequential],
    settings: AmbiguousSettings,
    stream: torch.Generator,
    number: int,
) -> _Pool:
    """Draw, decode and judge `number` random mixtures."""
    parents, weights = _draw_parents(labels, number, settings, stream)
    mixed = torch.einsum("np,npz->nz", weights, latents[parents.clamp_min(0)])
    decoded = autoencoder.decoder(mixed).sigmoid().view(-1, *images.shape[1:])
    if settings.levels is not None:
        decoded = (decoded * (settings.levels - 1)).round() / (settings.levels - 1)
    probabilities, entropy, information = judge(classifiers, decoded)
    return _Pool(decoded, probabilities, parents, entropy, information, _hash_images(decoded))


def _draw_parents(
    labels: Tensor, number: int, settings: AmbiguousSettings, stream: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw sources of different classes [number, max_parents], -1 padded, and their weights.

    Weights are uniform on the simplex.
    """
    sizes = labels.bincount()
    present = sizes.nonzero().squeeze(1)
    most = settings.max_parents
    chosen = present[torch.rand(number, len(present), generator=stream).argsort(1)[:, :most]]
    uniform = torch.rand(number, most, generator=stream, dtype=torch.float64)
    offset = (uniform * sizes[chosen]).long()
    parents = labels.argsort(stable=True)[(sizes.cumsum(0) - sizes)[chosen] + offset]
    family = torch.randint(settings.min_parents, most + 1, (number, 1), generator=stream)
    absent = torch.arange(most) >= family
    # Exponential draws divided by their sum are uniform on the simplex.
    shares = -torch.log1p(-torch.rand(number, most, generator=stream)).masked_fill(absent, 0)
    return parents.masked_fill(absent, -1), shares / shares.sum(1, keepdim=True)


def _hash_images(images: Tensor) -> Tensor:
    """Return a 64-bit hash of each image. Integer sums are exact, so batches do not change it."""
    bits = (images.flatten(1) + 0.0).view(torch.int32)
    stream = torch_stream(0, "ambiguous fingerprints")
    factors = torch.randint(-(2**62), 2**62, bits.shape[1:], generator=stream)
    return (bits * factors).sum(1)


REMEDIES = {
    "mutual information above max_mutual_information": "raise it, or train the classifiers longer",
    "entropy below min_entropy": "lower it",
    "entropy above max_entropy": "raise it, or train the networks longer",
    "an image equal to an earlier one": "raise levels or latents",
}


def _find_rejected(batch: _Pool, known: Tensor, settings: AmbiguousSettings) -> Tensor:
    """Return masks of the mixtures to reject, one row for each of REMEDIES.

    `known` are the hashes of images not to repeat.
    """
    hashes = torch.cat([known, batch.hashes])
    order = hashes.argsort(stable=True)
    repeated = torch.zeros(len(hashes), dtype=torch.bool)
    repeated[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
    unfamiliar = batch.mutual_information > settings.max_mutual_information
    certain, unclear = batch.entropy < settings.min_entropy, batch.entropy > settings.max_entropy
    return torch.stack([unfamiliar, certain, unclear, repeated[len(known) :]])


def _collect(
    draw: Callable[[int], _Pool],
    sources: Tensor,
    classes: int,
    count: int,
    settings: AmbiguousSettings,
    on_progress: OnProgress,
) -> _Pool:
    """Draw mixtures until `count` fill the entropy range evenly, or the budget is spent."""
    bins, budget, tried = settings.entropy_bins, count * settings.candidates_per_image, 0
    # No entropy exceeds log(classes), so a bin above it would stay empty.
    low, high = settings.min_entropy, min(settings.max_entropy, math.log(classes))
    pool, rejected = draw(0), torch.zeros(len(REMEDIES), dtype=torch.int64)
    filled = torch.zeros(bins, dtype=torch.int64)
    while tried < budget and (len(pool.images) < count or int(filled.min()) < count // bins):
        batch = draw(min(MIXTURES_AT_ONCE, budget - tried))
        tried += len(batch.images)
        masks = _find_rejected(batch, torch.cat([sources, pool.hashes]), settings)
        rejected += masks.sum(1)
        pool = pool.join(batch.take(~masks.any(0)))
        strata = ((pool.entropy - low) / (high - low) * bins).long().clamp(0, bins - 1)
        # Dropping the surplus now is safe: later mixtures could only lower its rank.
        selected = select_evenly(strata, pool.probabilities.argmax(1), count)
        pool, filled = pool.take(selected), strata[selected].bincount(minlength=bins)
        on_progress("mixtures", int(filled.clamp(max=math.ceil(count / bins)).sum()), count)
    if len(pool.images) == count:
        return pool
    worst = int(rejected.argmax())
    reason, remedy = list(REMEDIES.items())[worst]
    raise DataError(
        f"only {len(pool.images)} of {count} ambiguous images passed, out of {tried} mixtures. The "
        f"most frequent reason ({int(rejected[worst])} of them) is {reason}: {remedy}, or raise "
        "candidates_per_image"
    )

"""Ambiguous images, made from clean ones in the manner of Ambiguous-MNIST.

The recipe is that of Mukhoti, Kirsch, van Amersfoort, Torr and Gal, "Deep Deterministic Uncertainty", CVPR 2023: train
a variational autoencoder, decode convex mixtures of the latents of images of different classes, and keep what an
ensemble of small classifiers finds familiar (low mutual information: the members agree with each other) but undecided
(high entropy of the mean softmax). Labels are drawn from that mean softmax, so some error always remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor, nn

from udjfl.data.sources._ambiguous_networks import (
    Autoencoder,
    judge,
    train_autoencoder,
    train_classifier,
)
from udjfl.errors import DataError, SettingsError
from udjfl.seeds import torch_stream

__all__ = ["AmbiguousImages", "AmbiguousSettings", "Progress", "make_ambiguous", "spread"]

Progress = Callable[[str, int, int], None]

SMALLEST_SIDE = 8
FEWEST_SOURCES = 20
MIXTURES_AT_ONCE = 4096


@dataclass(frozen=True)
class AmbiguousSettings:
    """How ambiguous images are made. The defaults are the published recipe for MNIST; entropies are in nats.

    `levels` rounds pixels to that many evenly spaced values before the ensemble judges them; None leaves them as they
    are. `kl_weight` below 1 makes the decoded images sharper, which small images need. `jitter` shifts the classifiers'
    training images by up to so many pixels each way, which small data sets need. At most `candidates_per_image`
    mixtures are tried for each image asked for.
    """

    labels_per_image: int = 10
    min_parents: int = 2
    max_parents: int = 4
    max_mutual_information: float = 0.05
    min_entropy: float = 0.05
    max_entropy: float = 1.6
    entropy_bins: int = 10
    levels: int | None = None
    hidden: tuple[int, ...] = (512, 256)
    latents: int = 32
    kl_weight: float = 1.0
    autoencoder_epochs: int = 20
    members: int = 5
    classifier_epochs: int = 5
    jitter: float = 0.0
    weight_decay: float = 0.01
    batch_size: int = 128
    learning_rate: float = 0.001
    candidates_per_image: int = 50

    def __post_init__(self) -> None:
        at_least = {"members": 2, "min_parents": 2, "max_parents": self.min_parents, "levels": 2}
        at_least |= dict.fromkeys(("min_entropy", "kl_weight", "jitter", "weight_decay"), 0)
        at_least |= dict.fromkeys(("labels_per_image", "entropy_bins", "latents", "batch_size"), 1)
        at_least |= dict.fromkeys(
            ("autoencoder_epochs", "classifier_epochs", "candidates_per_image"), 1
        )
        above = {"max_entropy": self.min_entropy, "max_mutual_information": 0, "learning_rate": 0}
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        # `not a >= b` rather than `a < b`, so that nan is a mistake too. Only `levels` may be None.
        mistakes = [
            f"{name} must be at least {least}; it is {given[name]}"
            for name, least in at_least.items()
            if given[name] is not None and not given[name] >= least
        ]
        mistakes += [
            f"{name} must be above {bound}; it is {given[name]}"
            for name, bound in above.items()
            if not given[name] > bound
        ]
        if not self.hidden or min(self.hidden) < 1:
            mistakes.append(
                f"hidden must name one width or more, each at least 1; it is {self.hidden}"
            )
        if mistakes:
            raise SettingsError(mistakes)


@dataclass(frozen=True)
class AmbiguousImages:
    """n ambiguous images over C classes, with L sampled labels each.

    images [n, channels, height, width] in [0, 1]; probabilities [n, C], the ensemble's mean softmax, in float64; labels
    [n, L], drawn from it; parents [n, max_parents], indices into the sources, -1 where there are fewer; entropy [n] of
    `probabilities` and mutual_information [n] of the ensemble, in nats.
    """

    images: Tensor
    probabilities: Tensor
    labels: Tensor
    parents: Tensor
    entropy: Tensor
    mutual_information: Tensor

    def __len__(self) -> int:
        return len(self.images)


def make_ambiguous(
    images: Tensor,
    labels: Tensor,
    count: int,
    *,
    seed: int,
    settings: AmbiguousSettings | None = None,
    progress: Progress | None = None,
) -> AmbiguousImages:
    """Make `count` distinct ambiguous images from `images` [n, channels, height, width] or [n, height, width] in [0, 1].

    What is kept spreads evenly over the entropy range, and within each part of it over the most likely class, as far as
    the mixtures allow; none equals a source. `progress(stage, done, total)` is called as the work goes on. The same
    arguments give the same images on the same machine with the same number of torch threads. Raises DataError if the
    sources cannot be used, or if too few mixtures pass.
    """
    settings = settings or AmbiguousSettings()
    report = progress or _silent
    images, labels = _checked_sources(images, labels, count, settings)
    with torch.enable_grad():
        autoencoder = train_autoencoder(images, seed, settings, report)
        members = range(settings.members)
        classifiers = [
            train_classifier(images, labels, member, seed, settings, report) for member in members
        ]
    stream = torch_stream(seed, "ambiguous mixtures")
    with torch.no_grad():
        draw = partial(
            _mixtures,
            images,
            autoencoder.encode(images)[0],
            labels,
            autoencoder,
            classifiers,
            settings,
            stream,
        )
        pool = _collect(
            draw, _fingerprints(images), len(torch.unique(labels)), count, settings, report
        )
    # Mixtures of rare entropies arrive last; shuffled, any slice of the result is like the whole.
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


def spread(strata: Tensor, groups: Tensor, count: int) -> Tensor:
    """Rows of at most `count` items, as even as can be over `strata`, then over `groups` in each; earlier items first."""
    cells = strata * (int(groups.max()) + 1 if len(groups) else 1) + groups
    queue = _place_within(cells).argsort(stable=True)
    place_in_stratum = torch.empty_like(queue)
    place_in_stratum[queue] = _place_within(strata[queue])
    return place_in_stratum.argsort(stable=True)[:count].sort().values


def _place_within(groups: Tensor) -> Tensor:
    """For each item, how many earlier items are in its group."""
    order = groups.argsort(stable=True)
    sizes = groups.bincount()
    first = sizes.cumsum(0) - sizes
    place = torch.empty_like(order)
    place[order] = torch.arange(len(groups)) - first[groups[order]]
    return place


def _silent(stage: str, done: int, total: int) -> None:
    pass


def _checked_sources(
    images: Tensor, labels: Tensor, count: int, settings: AmbiguousSettings
) -> tuple[Tensor, Tensor]:
    """The sources as float32 [n, channels, height, width] and int64 [n]."""
    if images.ndim not in (3, 4) or min(images.shape[-2:]) < SMALLEST_SIDE:
        raise DataError(
            "images must be [n, channels, height, width] or [n, height, width] with sides of "
            f"{SMALLEST_SIDE} pixels or more; the shape is {tuple(images.shape)}"
        )
    if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
        raise DataError(
            "images must be floating-point pixels from 0 to 1, all finite; scale them first (8-bit: / 255)"
        )
    if (
        labels.shape != images.shape[:1]
        or labels.is_floating_point()
        or (len(labels) and int(labels.min()) < 0)
    ):
        raise DataError(f"labels must be {len(images)} whole numbers from 0 up, one for each image")
    if count < 1:
        raise DataError(f"count must be at least 1; it is {count}")
    if len(images) < FEWEST_SOURCES:
        raise DataError(
            f"images: {len(images)} sources are too few to learn from; give at least {FEWEST_SOURCES}"
        )
    classes = len(torch.unique(labels))
    if classes < 2:
        raise DataError(
            "labels: all sources are of one class; an ambiguous image needs parents of two or more"
        )
    if settings.max_parents > classes:
        raise DataError(
            f"max_parents is {settings.max_parents}, but the labels hold only {classes} classes and the parents of an "
            f"image are of different classes; set max_parents to {classes} or less"
        )
    if settings.min_entropy >= math.log(classes):
        raise DataError(
            f"min_entropy must be below log({classes} classes) = {math.log(classes):.3f}; lower it"
        )
    pixels = images.detach().to("cpu", torch.float32)
    return pixels.unsqueeze(1) if images.ndim == 3 else pixels, labels.detach().to(
        "cpu", torch.int64
    )


@dataclass(frozen=True)
class _Pool:
    """Judged mixtures, one row each."""

    images: Tensor
    probabilities: Tensor
    parents: Tensor
    entropy: Tensor
    mutual_information: Tensor
    fingerprints: Tensor

    def take(self, rows: Tensor) -> _Pool:
        return _Pool(*(getattr(self, field.name)[rows] for field in fields(self)))

    def join(self, other: _Pool) -> _Pool:
        return _Pool(
            *(
                torch.cat([getattr(self, field.name), getattr(other, field.name)])
                for field in fields(self)
            )
        )


def _mixtures(
    images: Tensor,
    latents: Tensor,
    labels: Tensor,
    autoencoder: Autoencoder,
    classifiers: list[nn.Sequential],
    settings: AmbiguousSettings,
    stream: torch.Generator,
    number: int,
) -> _Pool:
    """`number` random mixtures, decoded and judged."""
    parents, weights = _parents(labels, number, settings, stream)
    mixed = torch.einsum("np,npz->nz", weights, latents[parents.clamp_min(0)])
    decoded = autoencoder.decoder(mixed).sigmoid().view(-1, *images.shape[1:])
    if settings.levels is not None:
        decoded = (decoded * (settings.levels - 1)).round() / (settings.levels - 1)
    probabilities, entropy, information = judge(classifiers, decoded)
    return _Pool(decoded, probabilities, parents, entropy, information, _fingerprints(decoded))


def _parents(
    labels: Tensor, number: int, settings: AmbiguousSettings, stream: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sources of different classes [number, max_parents], -1 padded, and weights drawn evenly from the simplex."""
    sizes = labels.bincount()
    present = sizes.nonzero().squeeze(1)
    most = settings.max_parents
    chosen = present[torch.rand(number, len(present), generator=stream).argsort(1)[:, :most]]
    place = (torch.rand(number, most, generator=stream, dtype=torch.float64) * sizes[chosen]).long()
    parents = labels.argsort(stable=True)[(sizes.cumsum(0) - sizes)[chosen] + place]
    family = torch.randint(settings.min_parents, most + 1, (number, 1), generator=stream)
    absent = torch.arange(most) >= family
    # Exponential draws divided by their sum are even over the simplex.
    shares = -torch.log1p(-torch.rand(number, most, generator=stream)).masked_fill(absent, 0)
    return parents.masked_fill(absent, -1), shares / shares.sum(1, keepdim=True)


def _fingerprints(images: Tensor) -> Tensor:
    """A 64-bit number for each image. Integer sums are exact, so equal images have equal numbers in any batch."""
    bits = (images.flatten(1) + 0.0).view(torch.int32)
    factors = torch.randint(
        -(2**62), 2**62, bits.shape[1:], generator=torch_stream(0, "ambiguous fingerprints")
    )
    return (bits * factors).sum(1)


_REASONS = {
    "mutual information above max_mutual_information": "raise it, or train the classifiers longer",
    "entropy below min_entropy": "lower it",
    "entropy above max_entropy": "raise it, or train the networks longer",
    "an image met before": "raise levels or latents",
}


def _faults(batch: _Pool, known: Tensor, settings: AmbiguousSettings) -> Tensor:
    """One row for each of _REASONS: the mixtures it rejects. `known` are the fingerprints of images not to repeat."""
    prints = torch.cat([known, batch.fingerprints])
    order = prints.argsort(stable=True)
    repeated = torch.zeros(len(prints), dtype=torch.bool)
    repeated[order[1:]] = prints[order[1:]] == prints[order[:-1]]
    unfamiliar = batch.mutual_information > settings.max_mutual_information
    certain, vague = batch.entropy < settings.min_entropy, batch.entropy > settings.max_entropy
    return torch.stack([unfamiliar, certain, vague, repeated[len(known) :]])


def _collect(
    draw: Callable[[int], _Pool],
    sources: Tensor,
    classes: int,
    count: int,
    settings: AmbiguousSettings,
    report: Progress,
) -> _Pool:
    """Draw mixtures until `count` of them fill every part of the entropy range evenly, or the budget is spent."""
    bins, budget, tried = settings.entropy_bins, count * settings.candidates_per_image, 0
    # No entropy exceeds log(classes), so no bin may lie above it: it would stay empty.
    low, high = settings.min_entropy, min(settings.max_entropy, math.log(classes))
    pool, rejected = draw(0), torch.zeros(len(_REASONS), dtype=torch.int64)
    filled = torch.zeros(bins, dtype=torch.int64)
    while tried < budget and (len(pool.images) < count or int(filled.min()) < count // bins):
        batch = draw(min(MIXTURES_AT_ONCE, budget - tried))
        tried += len(batch.images)
        faults = _faults(batch, torch.cat([sources, pool.fingerprints]), settings)
        rejected += faults.sum(1)
        pool = pool.join(batch.take(~faults.any(0)))
        strata = ((pool.entropy - low) / (high - low) * bins).long().clamp(0, bins - 1)
        # Dropping the surplus now is safe: later mixtures could only push it further back in its queue.
        kept = spread(strata, pool.probabilities.argmax(1), count)
        pool, filled = pool.take(kept), strata[kept].bincount(minlength=bins)
        report("mixtures", int(filled.clamp(max=math.ceil(count / bins)).sum()), count)
    if len(pool.images) == count:
        return pool
    worst = int(rejected.argmax())
    reason, remedy = list(_REASONS.items())[worst]
    raise DataError(
        f"only {len(pool.images)} of {count} ambiguous images passed, out of {tried} mixtures. What rejected most "
        f"({int(rejected[worst])} of them) is {reason}: {remedy}, or raise candidates_per_image"
    )

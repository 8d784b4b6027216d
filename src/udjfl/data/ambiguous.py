"""Ambiguous images, made from clean ones in the manner of Ambiguous-MNIST.

The recipe is that of Mukhoti, Kirsch, van Amersfoort, Torr and Gal, "Deep Deterministic Uncertainty", CVPR 2023: train a
variational autoencoder, decode convex mixtures of the latents of images of different classes, and keep what an ensemble of
small classifiers finds familiar (low mutual information: the members agree with each other) but undecided (high entropy of
the mean softmax). Labels are drawn from that mean softmax, so part of the error on these images can never be learned away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor, nn

from udjfl.data._ambiguous_networks import Autoencoder, train_autoencoder, train_classifier
from udjfl.errors import DataError, SettingsError
from udjfl.seeds import torch_stream

Progress = Callable[[str, int, int], None]

SMALLEST_SIDE = 8
FEWEST_SOURCES = 20
# Mixtures are decoded and judged this many at a time: enough to keep the processor busy, with the activations of a colour
# image of 28x28 below 100 MB.
CHUNK = 4096


@dataclass(frozen=True)
class AmbiguousSettings:
    """How ambiguous images are made. The defaults are the published recipe for MNIST; entropies are in nats.

    `levels` rounds pixels to that many evenly spaced values before the ensemble judges them; None keeps them continuous.
    `kl_weight` below 1 makes the decoded images sharper, which small images need. `jitter` shifts the classifiers' training
    images by up to so many pixels each way, which small data sets need. At most `candidates_per_image` mixtures are tried for
    each image asked for.
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
    candidates_per_image: int = 100

    def __post_init__(self) -> None:
        at_least = {"members": 2, "min_parents": 2, "max_parents": self.min_parents, "levels": 2, "batch_size": 2}
        at_least |= dict.fromkeys(("min_entropy", "kl_weight", "jitter", "weight_decay"), 0)
        at_least |= dict.fromkeys(("labels_per_image", "entropy_bins", "latents", "autoencoder_epochs"), 1)
        at_least |= dict.fromkeys(("classifier_epochs", "candidates_per_image"), 1)
        above = {"max_entropy": self.min_entropy, "max_mutual_information": 0, "learning_rate": 0}
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        # `not (a >= b)` rather than `a < b`, so that nan is caught too.
        mistakes = [
            f"{name} must be at least {least}; it is {values[name]}"
            for name, least in at_least.items()
            if values[name] is not None and not values[name] >= least
        ]
        mistakes += [
            f"{name} must be above {bound}; it is {values[name]}"
            for name, bound in above.items()
            if not values[name] > bound
        ]
        if not self.hidden or min(self.hidden) < 1:
            mistakes.append(f"hidden must name one width or more, each at least 1; it is {self.hidden}")
        if mistakes:
            raise SettingsError(mistakes)


@dataclass(frozen=True)
class AmbiguousImages:
    """n ambiguous images over C classes, with L sampled labels each.

    images [n, channels, height, width] in [0, 1]; probabilities [n, C], the ensemble's mean softmax; labels [n, L], drawn
    from it; parents [n, max_parents], indices into the sources, -1 where there are fewer; entropy [n] of `probabilities` and
    mutual_information [n] of the ensemble, in nats.
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
    """Make `count` distinct ambiguous images from `images` [n, channels, height, width] (or [n, height, width]) in [0, 1].

    The kept images spread evenly over the entropy range, and within each part of it over the most likely class, as far as
    the mixtures allow. `progress(stage, done, total)` is called as the work goes on. The same arguments give the same images
    on the same machine with the same number of torch threads. Raises DataError if the sources cannot be used, or if too few
    mixtures pass.
    """
    settings = settings or AmbiguousSettings()
    report = progress or _silent
    images, labels = _checked_sources(images, labels, count, settings)
    autoencoder = train_autoencoder(images, seed, settings, report)
    classifiers = [
        train_classifier(images, labels, number, seed, settings, report) for number in range(settings.members)
    ]
    with torch.no_grad():
        latents, _ = autoencoder.encode(images)
    stream = torch_stream(seed, "ambiguous mixtures")
    draw = partial(_judged_mixtures, latents, labels, autoencoder, classifiers, settings, stream, images.shape[1:])
    pool = _collect(draw, images, len(labels.unique()), count, settings, report)
    # Mixtures of rare entropies arrive last; shuffled, any slice of the result is like the whole.
    pool = pool.take(torch.randperm(count, generator=torch_stream(seed, "ambiguous order")))
    drawn = torch.multinomial(
        pool.probabilities,
        settings.labels_per_image,
        replacement=True,
        generator=torch_stream(seed, "ambiguous labels"),
    )
    information = pool.mutual_information
    return AmbiguousImages(pool.images, pool.probabilities, drawn, pool.parents, pool.entropy, information)


def _silent(stage: str, done: int, total: int) -> None:
    pass


def _checked_sources(images: Tensor, labels: Tensor, count: int, settings: AmbiguousSettings) -> tuple[Tensor, Tensor]:
    """The sources as float32 [n, channels, height, width] and int64 [n]."""
    if images.ndim not in (3, 4) or min(images.shape[-2:]) < SMALLEST_SIDE:
        raise DataError(
            f"images must be [n, channels, height, width] or [n, height, width] with sides of {SMALLEST_SIDE} pixels or "
            f"more; the shape is {tuple(images.shape)}"
        )
    if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
        raise DataError(
            "images must be floating-point pixels from 0 to 1, without nan; scale them first (8-bit: / 255)"
        )
    if labels.shape != images.shape[:1] or labels.is_floating_point() or (len(labels) and int(labels.min()) < 0):
        raise DataError(f"labels must be {len(images)} integers from 0 up, one for each image")
    if count < 1:
        raise DataError(f"count must be at least 1; it is {count}")
    if len(images) < FEWEST_SOURCES:
        raise DataError(f"images: {len(images)} sources are too few to learn from; give at least {FEWEST_SOURCES}")
    classes = len(labels.unique())
    if classes < 2:
        raise DataError("labels: all sources are of one class; an ambiguous image needs parents of two classes or more")
    if settings.max_parents > classes:
        raise DataError(
            f"max_parents is {settings.max_parents}, but the labels hold only {classes} classes and parents are all of "
            f"different classes; set max_parents (and min_parents) to at most {classes}"
        )
    pixels = images.detach().to("cpu", torch.float32)
    return pixels.unsqueeze(1) if images.ndim == 3 else pixels, labels.detach().to("cpu", torch.int64)


@dataclass(frozen=True)
class _Pool:
    """Judged mixtures, one row each."""

    images: Tensor
    probabilities: Tensor
    parents: Tensor
    entropy: Tensor
    mutual_information: Tensor

    def take(self, rows: Tensor) -> _Pool:
        return _Pool(*(getattr(self, field.name)[rows] for field in fields(self)))

    def join(self, other: _Pool) -> _Pool:
        return _Pool(*(torch.cat([getattr(self, field.name), getattr(other, field.name)]) for field in fields(self)))


def _collect(
    draw: Callable[[int], _Pool],
    sources: Tensor,
    classes: int,
    count: int,
    settings: AmbiguousSettings,
    report: Progress,
) -> _Pool:
    """Draw mixtures until `count` of them fill every part of the entropy range evenly, or the budget is spent."""
    pool = draw(0)
    known = _fingerprints(sources)
    rejected = dict.fromkeys(_REASONS, 0)
    tried, budget = 0, count * settings.candidates_per_image
    filled = torch.zeros(settings.entropy_bins, dtype=torch.int64)
    while tried < budget and (len(pool.images) < count or int(filled.min()) < count // settings.entropy_bins):
        batch = draw(min(CHUNK, budget - tried))
        tried += len(batch.images)
        faults = _faults(batch, torch.cat([known, _fingerprints(pool.images)]), settings)
        for reason, fault in zip(_REASONS, faults, strict=True):
            rejected[reason] += int(fault.sum())
        pool = pool.join(batch.take(~faults.any(0)))
        strata = _strata(pool.entropy, classes, settings)
        # Dropping the surplus at once is safe: later mixtures can only push these rows further back in the queue.
        kept = spread(strata, pool.probabilities.argmax(1), count)
        pool, filled = pool.take(kept), strata[kept].bincount(minlength=settings.entropy_bins)
        report("mixtures", int(filled.clamp(max=math.ceil(count / settings.entropy_bins)).sum()), count)
    if len(pool.images) < count:
        worst = max(_REASONS, key=lambda reason: rejected[reason])
        raise DataError(
            f"only {len(pool.images)} of {count} ambiguous images passed, out of {tried} mixtures. What rejected most "
            f"({rejected[worst]} of them) is {worst}: {_REASONS[worst]}, or raise candidates_per_image"
        )
    return pool


_REASONS = {
    "mutual information above max_mutual_information": "raise it, or train more or longer classifiers",
    "entropy below min_entropy": "lower it",
    "entropy above max_entropy": "raise it, or train the networks longer",
    "an image met before": "raise levels or latents",
}


def _faults(batch: _Pool, known: Tensor, settings: AmbiguousSettings) -> Tensor:
    """One row for each of _REASONS: which mixtures it rejects. `known` are the fingerprints of images not to repeat."""
    prints = torch.cat([known, _fingerprints(batch.images)])
    order = prints.argsort(stable=True)
    repeated = torch.zeros(len(prints), dtype=torch.bool)
    repeated[order[1:]] = prints[order[1:]] == prints[order[:-1]]
    return torch.stack(
        [
            batch.mutual_information > settings.max_mutual_information,
            batch.entropy < settings.min_entropy,
            batch.entropy > settings.max_entropy,
            repeated[len(known) :],
        ]
    )


def _fingerprints(images: Tensor) -> Tensor:
    """A 64-bit number for each image. Integer sums are exact, so equal images have equal numbers in any batch."""
    bits = (images.flatten(1) + 0.0).view(torch.int32)
    factors = torch.randint(-(2**62), 2**62, bits.shape[1:], generator=torch_stream(0, "ambiguous fingerprints"))
    return (bits * factors).sum(1)


def _strata(entropy: Tensor, classes: int, settings: AmbiguousSettings) -> Tensor:
    """Which of the equal parts of the entropy range each entropy lies in; no entropy can exceed log(classes)."""
    low, high = settings.min_entropy, min(settings.max_entropy, math.log(classes))
    parts = (entropy - low) / (high - low) * settings.entropy_bins
    return parts.long().clamp(0, settings.entropy_bins - 1)


def spread(strata: Tensor, groups: Tensor, count: int) -> Tensor:
    """Rows of at most `count` items, as even as can be over `strata`, then over `groups` in each; earlier items first."""
    place_in_cell = _place_within(strata * (int(groups.max()) + 1 if len(groups) else 1) + groups)
    queue = place_in_cell.argsort(stable=True)
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


@torch.no_grad()
def _judged_mixtures(
    latents: Tensor,
    labels: Tensor,
    autoencoder: Autoencoder,
    classifiers: list[nn.Sequential],
    settings: AmbiguousSettings,
    stream: torch.Generator,
    shape: torch.Size,
    number: int,
) -> _Pool:
    """Decode `number` random mixtures of sources of different classes, and ask the ensemble about them."""
    parents, weights = _parents(labels, number, settings, stream)
    mixed = torch.einsum("np,npz->nz", weights, latents[parents.clamp_min(0)])
    images = autoencoder.decoder(mixed).sigmoid().view(-1, *shape)
    if settings.levels is not None:
        images = (images * (settings.levels - 1)).round() / (settings.levels - 1)
    votes = torch.stack([classifier(images).double().softmax(1) for classifier in classifiers])
    probabilities = votes.mean(0)
    entropy = torch.special.entr(probabilities).sum(1)
    information = (entropy - torch.special.entr(votes).sum(2).mean(0)).clamp_min(0)
    return _Pool(images, probabilities, parents, entropy, information)


def _parents(
    labels: Tensor, number: int, settings: AmbiguousSettings, stream: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Source indices [number, max_parents], -1 padded, with weights drawn evenly from the simplex; every class is as likely."""
    sizes = labels.bincount()
    present = sizes.nonzero().squeeze(1)
    most = settings.max_parents
    chosen = present[torch.rand(number, len(present), generator=stream).argsort(1)[:, :most]]
    place = (torch.rand(number, most, generator=stream, dtype=torch.float64) * sizes[chosen]).long()
    parents = labels.argsort(stable=True)[(sizes.cumsum(0) - sizes)[chosen] + place]
    family = torch.randint(settings.min_parents, most + 1, (number, 1), generator=stream)
    absent = torch.arange(most) >= family
    weights = -torch.log1p(-torch.rand(number, most, generator=stream)).masked_fill(absent, 0)
    return parents.masked_fill(absent, -1), weights / weights.sum(1, keepdim=True)

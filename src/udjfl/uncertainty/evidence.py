"""Evidence beside a client's uncertainty: what it rests on, and whether it says anything.

An uncertainty can be low because the labels are all alike, or high because the model learned
nothing. Neither says how good the data are, so such clients are flagged, as are those with few
examples and those whose uncertainty cannot be told from the next client's.

The 95% interval has two parts. Sampling: the standard error s of the mean over the examples. The
model's own error: the true value is taken to lie between the losses on seen and on held-out
examples, u - d and u + d, as two standard deviations. Hence u +/- 1.96 sqrt(s^2 + (d/2)^2). That
error has the same sign for all clients, so in the difference of two clients it is d_i - d_j. Where
no label among n was a surprise, s is nearly 0 although 3/n of all labels may be surprises (the
"rule of three"), of about one nat each: the upper end is not below u + 3/n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from udjfl.data import Federation
from udjfl.tasks import Score, as_predictions, explained_variance, spread
from udjfl.uncertainty.alone import entropy
from udjfl.uncertainty.crossfit import CrossFit
from udjfl.uncertainty.values import (
    ALMOST_ONE_CLASS,
    COPIES,
    LEARNED_NOTHING,
    ONE_CLASS,
    TINY,
    ClientEvidence,
    mean_uncertainty,
)

FEW_EXAMPLES = 30
LARGE_MAJORITY = 0.9
LEAST_GAIN = 0.01
SURPRISES = 3.0
TWO_SIDED, ONE_SIDED = 1.96, 1.645  # normal quantiles of 95%


def label_evidence(federation: Federation) -> dict[str, ClientEvidence]:
    """Return what each client's train part tells without any model: labels, and copies."""
    copies = _find_copies(federation)
    evidence = {
        client.id: _of_labels(client.train.y, federation.n_classes) for client in federation.clients
    }
    return {
        name: replace(own, flags=(*own.flags, COPIES)) if name in copies else own
        for name, own in evidence.items()
    }


def _find_copies(federation: Federation) -> set[str]:
    """Return the clients most of whose train examples occur again, label included, or elsewhere."""
    rows = {
        client.id: [
            hash((x.tobytes(), y))
            for x, y in zip(client.train.x.cpu().numpy(), client.train.y.tolist(), strict=True)
        ]
        for client in federation.clients
    }
    counts = Counter(row for own in rows.values() for row in own)
    return {
        name for name, own in rows.items() if 2 * sum(counts[row] > 1 for row in own) > len(own)
    }


def _of_labels(labels: Tensor, n_classes: int) -> ClientEvidence:
    if labels.is_floating_point():
        return _of_numbers(labels)
    shares = torch.bincount(labels.cpu(), minlength=n_classes).double() / len(labels)
    majority = float(shares.max())
    flags = []
    if majority == 1:
        flags.append(ONE_CLASS)
    elif majority >= LARGE_MAJORITY:
        flags.append(ALMOST_ONE_CLASS)
    if len(labels) < FEW_EXAMPLES:
        flags.append(TINY)
    return ClientEvidence(len(labels), float(entropy(shares)), majority, flags=tuple(flags))


def _of_numbers(labels: Tensor) -> ClientEvidence:
    """Return what labels of a regression tell: the entropy of a Gaussian of their variance."""
    variance = float(labels.cpu().double().var(correction=0))
    flags = [ONE_CLASS] if variance == 0 else []
    if len(labels) < FEW_EXAMPLES:
        flags.append(TINY)
    entropy_of_labels = math.log(2 * math.pi * math.e * variance) / 2 if variance else 0.0
    return ClientEvidence(len(labels), entropy_of_labels, float(variance == 0), flags=tuple(flags))


def cross_fit_evidence(
    federation: Federation, fits: Mapping[str, CrossFit], score: Score | None = None
) -> dict[str, ClientEvidence]:
    """Return the evidence of each client; one whose training diverged has that of its labels.

    `score` is the one that is judged.
    """
    evidence = label_evidence(federation)
    for name, fit in fits.items():
        if math.isfinite(float(fit.values.mean())):
            evidence[name] = _of_cross_fit(evidence[name], fit)
            if score is not None and not score.kind.is_share:
                alone = _score_alone(score, fit, federation.restore_labels)
                evidence[name] = replace(evidence[name], held_out_score=alone)
    for name, other in _indistinct_neighbours(fits, evidence):
        evidence[name] = replace(evidence[name], indistinct_from=other)
    return evidence


def _of_cross_fit(labels: ClientEvidence, fit: CrossFit) -> ClientEvidence:
    value, size = mean_uncertainty(fit.values), labels.size
    error = float(fit.values.std()) / math.sqrt(size) if size > 1 else math.inf
    out_loss, in_loss = float(fit.out_losses.mean()), float(fit.in_losses.mean())
    half_width = TWO_SIDED * math.hypot(error, (out_loss - in_loss) / 4)
    score = (fit.held_out.argmax(dim=1) == fit.labels).double().mean()
    if fit.labels.is_floating_point():
        score = explained_variance(fit.out_losses.mean(), spread(fit.labels))
    evidence = replace(
        labels,
        held_out_accuracy=float(score),
        held_out_loss=out_loss,
        seen_loss=in_loss,
        standard_error=error if math.isfinite(error) else None,
        interval=(max(0.0, value - half_width), value + max(half_width, SURPRISES / size))
        if size > 1
        else None,
    )
    if ONE_CLASS not in labels.flags and not _has_learned(evidence, fit):
        evidence = replace(evidence, flags=(LEARNED_NOTHING, *labels.flags))
    return evidence


def _score_alone(score: Score, fit: CrossFit, restore: Callable[[Any], Any]) -> float | None:
    """Return the judged score of held-out predictions, at the temperature."""
    predicted = as_predictions(fit.held_out / fit.temperature, fit.labels.is_floating_point())
    value = score.compute(restore(fit.labels.numpy()), restore(predicted))
    return value if math.isfinite(value) else None


def _has_learned(evidence: ClientEvidence, fit: CrossFit) -> bool:
    """Tell whether held-out predictions beat the class frequencies, in accuracy or in log loss.

    Two one-sided tests at 95%; one is enough. Where one class prevails, accuracy shows little. A
    gain in log loss below 1% of the label entropy is none.
    """
    n, majority = evidence.size, evidence.majority_share
    assert evidence.held_out_accuracy is not None
    if fit.labels.is_floating_point():
        errors = (fit.labels.double() - fit.labels.double().mean()).square() - fit.out_losses
        needed = ONE_SIDED * float(errors.std()) / math.sqrt(n) if n > 1 else math.inf
        return float(errors.mean()) > max(needed, LEAST_GAIN * float(spread(fit.labels)))
    chance = math.sqrt(majority * (1 - majority) / n)
    if evidence.held_out_accuracy > majority + ONE_SIDED * chance:
        return True
    shares = torch.bincount(fit.labels, minlength=fit.held_out.shape[1]).double() / n
    gains = -shares[fit.labels].log() - fit.out_losses
    needed = max(ONE_SIDED * float(gains.std()) / math.sqrt(n), LEAST_GAIN * evidence.label_entropy)
    return n > 1 and float(gains.mean()) > needed


def _indistinct_neighbours(
    fits: Mapping[str, CrossFit], evidence: Mapping[str, ClientEvidence]
) -> list[tuple[str, str]]:
    """Return pairs of neighbours in the order of uncertainty whose difference may be chance."""
    ordered = sorted(
        (name for name in fits if evidence[name].standard_error is not None),
        key=lambda name: float(fits[name].values.mean()),
    )
    pairs = []
    for low, high in pairwise(ordered):
        difference = float(fits[high].values.mean()) - float(fits[low].values.mean())
        gaps = [_gap(evidence[name]) for name in (low, high)]
        errors = [evidence[name].standard_error or 0.0 for name in (low, high)]
        if difference <= TWO_SIDED * math.hypot(*errors, (gaps[1] - gaps[0]) / 4):
            pairs.append((low, high))
    return pairs


def _gap(evidence: ClientEvidence) -> float:
    assert evidence.held_out_loss is not None
    assert evidence.seen_loss is not None
    return evidence.held_out_loss - evidence.seen_loss

"""The warning where nothing was learned: then a table looks like a result, and is none.

Nobody learned if one of these holds:

- the shared model is no better than always predicting one class: neither is its accuracy above
  that of the most frequent class (one-sided test at 95%, the clients' test parts as samples), nor
  its test loss below the entropy of the class frequencies
- trained alone, no client's model is better than its class frequencies (`uncertainty.evidence`)
- in a regression, the shared model explains no more than 1% of the labels' variance; less than
  -100% of a client's counts as that
- the clients' uncertainties, in nats, are all near the highest possible, ln(classes)

Every test example has the same weight, so that a client with two of them does not decide.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from udjfl.training.evaluation import Evaluation
from udjfl.training.federation_info import FederationInfo
from udjfl.uncertainty import LEARNED_NOTHING, ONE_CLASS, Uncertainty

logger = logging.getLogger("udjfl")
NOBODY_LEARNED = "nobody learned: check scaling, lr"
NEAR_HIGHEST = 0.98  # of ln(classes)
ONE_SIDED = 1.645  # normal quantile of 95%
LEAST_GAIN = 0.01  # a smaller gain in log loss, relative to the entropy, is none
IN_NATS = ("crossfit", "paper", "entropy", "ensemble")


def warn_if_unlearned(
    federation: FederationInfo, evaluation: Evaluation, uncertainty: Uncertainty
) -> str | None:
    """Return the warning and its reason, or None if something was learned or nothing is known."""
    reason = (
        _shared_reason(federation, evaluation)
        or _alone_reason(uncertainty)
        or _uncertainty_reason(federation.n_classes, uncertainty)
    )
    return None if reason is None else f"{NOBODY_LEARNED} ({reason})"


def _shared_reason(federation: FederationInfo, evaluation: Evaluation) -> str | None:
    if federation.labels_are_numbers:
        mean = _mean_explained(federation, evaluation)
        if mean > 100 * LEAST_GAIN:
            return None
        return f"the shared model explains {mean:.1f}% of the labels' variance on average"
    counts = federation.test_counts
    rows = [i for i, name in enumerate(federation.ids) if name in evaluation.accuracies]
    if counts is None or not rows:
        return None
    counts = counts[rows].to(torch.float64)
    ids = [federation.ids[row] for row in rows]
    shares = (counts.sum(dim=1) / counts.sum()).tolist()
    accuracy = sum(w * evaluation.accuracies[name] for w, name in zip(shares, ids, strict=True))
    loss = sum(w * evaluation.losses[name] for w, name in zip(shares, ids, strict=True))
    best, noise, entropy = _constant_prediction(counts)
    is_better = accuracy > 100 * (best + ONE_SIDED * noise) or loss < (1 - LEAST_GAIN) * entropy
    if is_better or entropy == 0:
        return None
    return f"the shared model has {accuracy:.1f}% on average, and always the same class {best:.1%}"


def _constant_prediction(counts: Tensor) -> tuple[float, float, float]:
    """Return accuracy and its noise of the best constant class, and the label entropy.

    `counts` [N, C] are those of the clients' test parts.
    """
    sizes, pooled = counts.sum(dim=1), counts.sum(dim=0) / counts.sum()
    best = int(pooled.argmax())
    own = counts[:, best] / sizes
    noise = float((sizes * own * (1 - own)).sum().sqrt() / sizes.sum())
    return float(pooled[best]), noise, float(torch.special.entr(pooled).sum())


def _mean_explained(federation: FederationInfo, evaluation: Evaluation) -> float:
    """Return the share of the labels' variance that the shared model explains, in percent."""
    sizes = federation.test_sizes or (1,) * len(federation.ids)
    pairs = [
        (size, max(evaluation.accuracies[name], -100.0))
        for name, size in zip(federation.ids, sizes, strict=True)
        if math.isfinite(evaluation.accuracies.get(name, math.nan))
    ]
    total = sum(size for size, _ in pairs)
    return sum(size * value for size, value in pairs) / total if total else math.inf


def _alone_reason(uncertainty: Uncertainty) -> str | None:
    evidence = uncertainty.evidence or {}
    judged = [c for c in evidence.values() if c.held_out_loss is not None]
    judged = [client for client in judged if ONE_CLASS not in client.flags]
    if judged and all(LEARNED_NOTHING in client.flags for client in judged):
        return "trained alone, no client is better than its class frequencies"
    return None


def _uncertainty_reason(n_classes: int, uncertainty: Uncertainty) -> str | None:
    known = [value for value in uncertainty.values.values() if math.isfinite(value)]
    highest = math.log(n_classes) if n_classes > 1 else math.inf
    if uncertainty.kind in IN_NATS and known and min(known) >= NEAR_HIGHEST * highest:
        return f"all uncertainties are near the highest possible, ln({n_classes}) = {highest:.3f}"
    return None


def common_warning(warnings: Mapping[int, str | None]) -> str | None:
    """Return the warning of a comparison: that of its reference on more than half of the seeds.

    Its numbers are those of the first such seed.
    """
    given = {seed: warning for seed, warning in warnings.items() if warning is not None}
    if 2 * len(given) <= len(warnings):
        return None
    seed, warning = next(iter(given.items()))
    if len(warnings) == 1:
        return warning
    where = f"on {len(given)} of {len(warnings)} seeds; seed {seed}: "
    return warning.replace(f"{NOBODY_LEARNED} (", f"{NOBODY_LEARNED} ({where}", 1)


def log_warning(warning: str | None) -> None:
    """Log that nobody learned, if so: a script may read numbers only."""
    if warning is not None:
        logger.warning("%s", warning)

"""Several evaluation sets of one length as a batch: each with models of its own, all at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.engine._stacked_mlp import Stack, by_class, class_axis_may_move
from udjfl.engine.base import EvaluationSet, Scores
from udjfl.engine.batches import ALIGNMENT
from udjfl.models import write_inputs


@dataclass(frozen=True)
class _Targets:
    """Labels [G * S, 1, rows], and where the two scores of each example are added up."""

    labels: Tensor
    sums: Tensor


class EvaluationBatch:
    """G evaluation sets with equally many examples, each for S models.

    Scores are added up in the order of the examples, slice by slice, as `EvaluationSet` does it: a
    set has the bits that it has alone.
    """

    def __init__(self, sets: Sequence[EvaluationSet], n_models: int) -> None:
        self.sets, self.n_models = sets, n_models
        self.n_sums = n_models * sum(data.n_parts for data in sets)
        self._targets = functools.cache(self._make_targets)

    def slices(self, size: int) -> list[slice]:
        """Return the examples of every set as slices of this size."""
        return self.sets[0].slices(size)

    def sum_scores(self, stack: Stack, rows: slice) -> Tensor:
        """Return sums of losses, then of right answers: for each set, for each model, by part."""
        logits = stack.forward(self._inputs(rows)).logits
        targets = self._targets(rows.start, rows.stop)
        losses, is_right = score(logits, targets.labels)
        scores = torch.stack([losses, is_right.to(losses)]).to(torch.float64)
        sums = scores.new_zeros(2 * self.n_sums)
        return sums.index_add_(0, targets.sums, scores.view(-1))

    def mean_scores(self, sums: Sequence[Tensor]) -> list[Scores]:
        """Return losses and accuracies [S, parts] of each set from the sums of all slices."""
        totals = functools.reduce(torch.add, sums).view(2, -1)
        counts = [self.n_models * data.n_parts for data in self.sets]
        scores = []
        for data, own in zip(self.sets, torch.split(totals, counts, dim=1), strict=True):
            losses, accuracies = (own.view(2, self.n_models, -1) / data.sizes).cpu()
            scores.append((losses, accuracies))
        return scores

    def _inputs(self, rows: slice) -> Tensor:
        """Return the inputs of some rows, [G, rows, F]; integers become numbers only here."""
        if self.sets[0].x.is_floating_point():
            return self._x[:, rows]
        return _join_inputs([data.x[rows].flatten(1) for data in self.sets])

    @functools.cached_property
    def _x(self) -> Tensor:
        """The inputs [G, rows, F], float32 as they are stored."""
        parts = [data.x.flatten(1) for data in self.sets]
        if len(parts) == 1 and parts[0].data_ptr() % (4 * ALIGNMENT) == 0:
            return parts[0][None]
        return _join_inputs(parts)

    def _make_targets(self, start: int, stop: int) -> _Targets:
        labels, sums, first = [], [], 0
        for data in self.sets:
            models = torch.arange(self.n_models, device=data.y.device)
            labels.append(data.y[start:stop].expand(self.n_models, -1))
            sums.append(data.part[start:stop] + data.n_parts * models[:, None] + first)
            first += self.n_models * data.n_parts
        losses = torch.cat(sums).view(-1)
        return _Targets(torch.cat(labels).unsqueeze(1), torch.cat([losses, losses + self.n_sums]))


def _join_inputs(parts: Sequence[Tensor]) -> Tensor:
    """Return features [n, F] of G sets as [G, n, F]: each set begins at a multiple of 64 bytes."""
    n_rows, n_features = parts[0].shape
    n_padded = n_rows + -n_rows % ALIGNMENT
    memory = parts[0].new_empty(len(parts), n_padded, n_features, dtype=torch.float32)
    inputs = memory[:, :n_rows]
    for own, part in zip(inputs, parts, strict=True):
        write_inputs(part, own)
    return inputs


def score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses of logits [N, rows, C], and whether they are right, [N, 1, rows]."""
    if not class_axis_may_move(logits.shape[2], logits.dtype, logits.device):
        log_p = torch.log_softmax(logits, dim=2)
        losses = log_p.gather(2, labels.transpose(1, 2)).neg_().transpose(1, 2)
        return losses, logits.argmax(dim=2).unsqueeze(1) == labels
    moved = by_class(logits)
    losses = torch.log_softmax(moved, dim=1).gather(1, labels).neg_()
    moved = moved[:, :, : logits.shape[1]]
    # In place of argmax, which takes as long as everything else here.
    highest = moved.amax(dim=1, keepdim=True)
    if (moved == highest).sum() == highest.numel():
        return losses, moved.gather(1, labels) == highest
    return losses, logits.argmax(dim=2).unsqueeze(1) == labels  # ties, or not a number

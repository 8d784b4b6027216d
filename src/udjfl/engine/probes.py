"""Quantities that a method may request of clients at the model they received."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from udjfl.data.federation import Examples
from udjfl.engine.base import Engine
from udjfl.models import to_inputs, trainable
from udjfl.tasks import Criterion

PROBES = (
    "scores",
    "score_sizes",
    "losses",
    "accuracies",
    "squared_losses",
    "gradients",
    "gradient_norms",
    "group_gaps",
    "group_gap_gradients",
)
SCORES = ("scores", "score_sizes")
NEED_FORWARD_PASS = {"losses", "accuracies", "squared_losses", "group_gaps", "group_gap_gradients"}


def probe(
    engine: Engine,
    vector: Tensor,
    buffers: Tensor,
    client_indices: Sequence[int],
    names: Collection[str],
) -> dict[str, Tensor]:
    """Compute the named quantities of some clients: one row per client, in float64.

    `vector` is one model for all [D], or one for each [N, D]. Models are in evaluation mode. Names
    that are no probes are ignored.
    """
    scores: dict[str, Tensor] = {}
    if set(SCORES).intersection(names):
        scores = _score(engine, vector, buffers, client_indices)
    wanted = [name for name in PROBES if name in names and name not in SCORES]
    columns: dict[str, list[Tensor]] = {name: [] for name in wanted}
    for row, index in enumerate(client_indices if columns else ()):
        engine.load(vector if vector.ndim == 1 else vector[row], buffers)
        engine.module.eval()
        values = _probe_client(
            engine.module,
            engine.train_data[index],
            columns.keys(),
            engine.batch_size,
            engine.criterion,
        )
        for name, value in values.items():
            columns[name].append(value)
    probed = {name: torch.stack(values).cpu() for name, values in columns.items()}
    return {name: value for name, value in scores.items() if name in names} | probed


def _score(
    engine: Engine, vector: Tensor, buffers: Tensor, client_indices: Sequence[int]
) -> dict[str, Tensor]:
    """Return the accuracies of models on the examples kept for that, and how many those are."""
    data = engine.score_set(client_indices)
    if vector.ndim == 1:
        accuracies = engine.evaluate(vector, buffers, data)[1]
    else:
        each = [
            engine.evaluate(own, buffers, engine.score_set([index]))[1]
            for own, index in zip(vector, client_indices, strict=True)
        ]
        accuracies = torch.cat(each)
    return {"scores": accuracies, "score_sizes": data.sizes.cpu()}


def _probe_client(
    module: nn.Module,
    data: Examples,
    names: Collection[str],
    batch_size: int,
    criterion: Criterion,
) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    if NEED_FORWARD_PASS.intersection(names):
        with torch.no_grad():
            batches = torch.split(data.x, batch_size)
            outputs = torch.cat([module(to_inputs(x, module)) for x in batches])
            losses = criterion.loss(outputs, data.y).to(torch.float64)
        values["losses"] = losses.mean()
        values["accuracies"] = criterion.mean_score(outputs, data.y)
        values["squared_losses"] = losses.square().mean()
        if data.group is not None:
            gap_weights = _gap_weights(losses, data.group)
            values["group_gaps"] = (gap_weights * losses).sum()
            if "group_gap_gradients" in names:
                values["group_gap_gradients"] = _gradient(
                    module, data, gap_weights, batch_size, criterion
                )
    if "gradients" in names or "gradient_norms" in names:
        equal = torch.full((len(data),), 1 / len(data), dtype=torch.float64, device=data.y.device)
        values["gradients"] = _gradient(module, data, equal, batch_size, criterion)
        values["gradient_norms"] = values["gradients"].norm()
    return {name: value for name, value in values.items() if name in names}


def _gap_weights(losses: Tensor, group: Tensor) -> Tensor:
    """Return weights w such that sum_j w_j loss_j is the gap between the groups' mean losses.

    The gap is that of the worst group minus that of the best; 0 for one group.
    """
    present, number = torch.unique(group, return_inverse=True)
    counts = torch.bincount(number, minlength=len(present)).to(torch.float64)
    means = torch.zeros_like(counts).index_add_(0, number, losses) / counts
    worst, best = means.argmax(), means.argmin()
    in_worst, in_best = ((number == which).to(torch.float64) for which in (worst, best))
    weights: Tensor = in_worst / counts[worst] - in_best / counts[best]
    return weights


def _gradient(
    module: nn.Module, data: Examples, weights: Tensor, batch_size: int, criterion: Criterion
) -> Tensor:
    """Return the gradient of the weighted sum of losses, added up over batches in float64."""
    parameters = trainable(module)
    size = sum(p.numel() for p in parameters)
    total = torch.zeros(size, dtype=torch.float64, device=data.y.device)
    columns = (torch.split(column, batch_size) for column in (data.x, data.y, weights))
    for x, y, w in zip(*columns, strict=True):
        losses = criterion.loss(module(to_inputs(x, module)), y)
        parts = torch.autograd.grad(
            (losses * w.to(losses)).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        total += torch.cat([part.reshape(-1) for part in parts]).to(torch.float64)
    return total

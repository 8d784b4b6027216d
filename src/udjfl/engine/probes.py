"""What a method may ask of clients beyond local training, at the model they received; only what is asked for is computed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from udjfl.data.federation import Examples
from udjfl.engine.base import Engine
from udjfl.models import trainable

PROBES = (
    "losses",
    "accuracies",
    "squared_losses",
    "gradients",
    "gradient_norms",
    "group_gaps",
    "group_gap_gradients",
)
OF_A_FORWARD_PASS = {"losses", "accuracies", "squared_losses", "group_gaps", "group_gap_gradients"}


def probe(
    engine: Engine, vector: Tensor, buffers: Tensor, rows: Sequence[int], names: Collection[str]
) -> dict[str, Tensor]:
    """The named quantities of the clients at these places, each with one row per client, in float64.

    `vector` is one model for all [D], or one for each [len(rows), D]. The model is in evaluation mode throughout.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in PROBES if name in names}
    for place, row in enumerate(rows if found else ()):
        engine.load(vector if vector.ndim == 1 else vector[place], buffers)
        engine.module.eval()
        for name, value in _of_one(
            engine.module, engine.train_data[row], found.keys(), engine.batch
        ).items():
            found[name].append(value)
    return {name: torch.stack(values).cpu() for name, values in found.items()}


def _of_one(
    module: nn.Module, data: Examples, names: Collection[str], batch: int
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if OF_A_FORWARD_PASS.intersection(names):
        with torch.no_grad():
            logits = torch.cat([module(x) for x in torch.split(data.x, batch)])
            losses = nn.functional.cross_entropy(logits, data.y, reduction="none").to(torch.float64)
        found["losses"] = losses.mean()
        found["accuracies"] = (logits.argmax(dim=1) == data.y).to(torch.float64).mean()
        found["squared_losses"] = losses.square().mean()
        if data.group is not None:
            gap_weights = _gap_weights(losses, data.group)
            found["group_gaps"] = (gap_weights * losses).sum()
            if "group_gap_gradients" in names:
                found["group_gap_gradients"] = _gradient(module, data, gap_weights, batch)
    if "gradients" in names or "gradient_norms" in names:
        even = torch.full((len(data),), 1 / len(data), dtype=torch.float64, device=data.y.device)
        found["gradients"] = _gradient(module, data, even, batch)
        found["gradient_norms"] = found["gradients"].norm()
    return {name: value for name, value in found.items() if name in names}


def _gap_weights(losses: Tensor, group: Tensor) -> Tensor:
    """Weights w with sum_j w_j loss_j = mean loss of the worst served group - mean loss of the best; 0 for one group."""
    present, place = torch.unique(group, return_inverse=True)
    counts = torch.bincount(place, minlength=len(present)).to(torch.float64)
    means = torch.zeros_like(counts).index_add_(0, place, losses) / counts
    worst, best = means.argmax(), means.argmin()
    weights: Tensor = (place == worst).to(torch.float64) / counts[worst] - (place == best).to(
        torch.float64
    ) / counts[best]
    return weights


def _gradient(module: nn.Module, data: Examples, weights: Tensor, batch: int) -> Tensor:
    """Gradient of the weighted sum of the examples' losses, so many at a time, added up in float64."""
    parameters = trainable(module)
    total = torch.zeros(
        sum(p.numel() for p in parameters), dtype=torch.float64, device=data.y.device
    )
    for x, y, w in zip(
        *(torch.split(column, batch) for column in (data.x, data.y, weights)), strict=True
    ):
        each = nn.functional.cross_entropy(module(x), y, reduction="none")
        parts = torch.autograd.grad(
            (each * w.to(each)).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        total += torch.cat([part.reshape(-1) for part in parts]).to(torch.float64)
    return total

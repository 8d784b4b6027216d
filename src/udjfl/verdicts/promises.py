"""Promises to single clients: how far above its limit each ends."""

from __future__ import annotations

from dataclasses import dataclass

from udjfl.verdicts.changes import Change, PairedRuns, compare_values


@dataclass(frozen=True)
class Promise:
    """Limits below which no client may end, whatever a theory gains.

    client_budget  points below its accuracy under FedAvg; None: there is no such limit
    alone          True: the accuracy of its own model, trained alone: on held-out examples, as the
                   method was given it; of runs without that, as the measure of uncertainty found it
    """

    client_budget: float | None = None
    alone: bool = False


def compare_with_limits(promise: Promise, runs: PairedRuns) -> dict[str, Change]:
    """Compare each client's accuracy with its limit, seed by seed; of two the higher counts.

    Clients without a limit on any seed, because their accuracy alone is not known, are left out.
    """
    alone = runs.alone or (None,) * len(runs.references)
    changes = {}
    for index, client in enumerate(runs.clients):
        limits: list[float | None] = []
        for reference, own in zip(runs.references, alone, strict=True):
            known = []
            if promise.client_budget is not None:
                known.append(reference.accuracies[index] - promise.client_budget)
            if promise.alone and own is not None:
                known.append(own[index])
            limits.append(max(known, default=None))
        reached = [outcome.accuracies[index] for outcome in runs.outcomes]
        changes[client] = compare_values(client, reached, limits)
    return {client: change for client, change in changes.items() if change.differences}

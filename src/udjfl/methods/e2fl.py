"""E2FL: clients vote on which connections of a fixed random network to keep, by groups.

Mozaffari, Houmansadr. E2FL: Equal and Equitable Federated Learning. 2022. Recalled, not read: no
code was published and the full text could not be checked. Recalled are the two stages of the vote,
the equal weight of groups and finding groups from the rankings; how groups are found here (below)
is ours. The vote itself is that of Federated Rank Learning (Mozaffari, Shejwalkar, Houmansadr,
Every Vote Counts, USENIX Security 2023, arXiv:2110.04350), read in its authors' code.

    network      weights fixed, one trainable score each; a layer uses the `keep` share with the
                 highest scores (udjfl.models.masked)
    client k     trains the scores; in each layer, r_k(e) is the rank of connection e in the order
                 of its scores, lowest first
    Vote         order connections by sum_k r_k(e); the result is again a ranking
    group g      R_g = Vote over the members of g that report       every member counts alike
    server       R = Vote over the groups                           every group counts alike
                 scores <- the initial scores of the layer, sorted, handed out in the order R
    step         received scores - new scores

Where a vote is tied, the received order stands; so if no client moves a score, none moves. Only the
order of scores matters: a client may pass them through any increasing function. One group is
Federated Rank Learning. Duplicating every member of a group changes nothing. Scores made by `adapt`
lie on a grid on which received - step is exact; scores from elsewhere come out to rounding.

Groups are given, one label per client, or only their number is: then in each round the reporting
clients' rankings (each layer's ranks scaled to [0, 1]) are clustered by average linkage on their
Euclidean distances. A group without reports has no vote in that round. Raising the weight of groups
with a higher loss, an option (recalled), is left out. E2FL does not average parameters, and
compares with other methods only as a whole: the network has no biases and fixed weights. A change
that moves no score past a neighbour is lost when the round ends, so short or slow local training
learns nothing at all; the published code of Federated Rank Learning trains the scores for 5 local
epochs at learning rate 0.4.
"""

import functools
import re
from typing import Annotated, Any

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from udjfl.errors import SettingsError
from udjfl.methods._linalg import gram as inner_products
from udjfl.methods.base import Diagnostics, Method, Reports, Setup, State, parameters
from udjfl.models import masked as masks

Labels = Annotated[tuple[str, ...], Field(min_length=1)]


@parameters
class E2FL(Method):
    name = "e2fl"
    title = "E2FL"
    theories = ("egalitarian",)
    paper = "Mozaffari & Houmansadr, 2022, arXiv:2205.10454"
    grade = "recalled"
    idea = (
        "Let clients vote on which connections of a fixed random network to keep, "
        "every group counting alike."
    )
    cost = "server: sorting, K D log D, and comparing the clients' rankings, K² D"
    needs = frozenset({"model"})

    keep: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="share of each layer's connections in use (not run in the UDJ-FL paper)",
        ),
    ] = 0.5
    groups: Annotated[
        Annotated[int, Field(ge=1)] | Labels,
        Field(
            description="number of groups to find from the rankings, "
            "or a group label per client, in client order"
        ),
    ] = 2

    @field_validator("groups", mode="before")
    @classmethod
    def _split_labels(cls, value: Any) -> Any:
        """Read one label per client from text: `a,b,a`, or `a;b;a` where commas are taken."""
        if isinstance(value, str) and re.search("[,;]", value):
            value = [label.strip() for label in re.split("[,;]", value)]
        return tuple(str(label) for label in value) if isinstance(value, list | tuple) else value

    def adapt(self, module: nn.Module, generator: torch.Generator) -> nn.Module:
        return masks.adapt(module, self.keep, generator)

    def init(self, setup: Setup) -> State:
        if isinstance(self.groups, tuple) and len(self.groups) != len(setup):
            raise SettingsError(
                f"e2fl: groups has {len(self.groups)} labels for {len(setup)} clients; "
                "give one for each"
            )
        layers = list(setup.layers) or [len(setup.model)]
        if sum(layers) != len(setup.model):
            raise SettingsError(
                f"e2fl: layers add up to {sum(layers)} numbers, the model has {len(setup.model)}"
            )
        levels = torch.cat([scores.sort().values for scores in torch.split(setup.model, layers)])
        return {"levels": levels, "layers": torch.tensor(layers)}

    def notes(self, setup: Setup) -> list[str]:
        return [
            "E2FL trains which weights of a fixed random network are kept: "
            "the network differs from the other methods'.",
            "E2FL loses changes too small to reorder scores within a round; "
            "if it does not learn, raise lr or local_epochs.",
        ]

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        assert reports.model is not None
        layers = state["layers"].tolist()
        received = torch.split(reports.model, layers)
        deltas = torch.split(reports.deltas, layers, dim=1)
        ranks = [rankings(scores, delta) for scores, delta in zip(received, deltas, strict=True)]
        groups = self._groups(reports, ranks)
        new, shared = [], torch.zeros(len(reports), dtype=torch.float64)
        for layer_ranks, scores, levels in zip(
            ranks, received, torch.split(state["levels"], layers), strict=True
        ):
            tie_break = ranking(scores)
            votes = [
                vote(layer_ranks[groups == g], tie_break) for g in range(int(groups.max()) + 1)
            ]
            elected = vote(torch.stack(votes), tie_break)
            new.append(levels[elected])
            lowest = len(elected) - masks.kept_count(len(elected), self.keep)
            in_use = elected >= lowest
            shared += torch.tensor(
                [int(((row >= lowest) & in_use).count_nonzero()) for row in layer_ranks]
            )
        used = sum(masks.kept_count(size, self.keep) for size in layers)
        members = torch.bincount(groups).to(torch.float64)
        diagnostics = {
            "weight": 1 / (members[groups] * len(members)),
            "group": groups.to(torch.float64),
            "mask_overlap": shared / used,
        }
        return state, (reports.model - torch.cat(new)).to(reports.deltas.dtype), diagnostics

    def _groups(self, reports: Reports, ranks: list[Tensor]) -> Tensor:
        """Return the group [K] of each reporting client, numbered in order of appearance."""
        if isinstance(self.groups, tuple):
            if len(self.groups) <= int(reports.client_indices.max()):
                raise SettingsError(
                    f"e2fl: groups has {len(self.groups)} labels, fewer than there are clients; "
                    "give one for each"
                )
            labels = [self.groups[index] for index in reports.client_indices.tolist()]
        else:
            labels = cluster(ranks, self.groups)
        numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        return torch.tensor([numbers[label] for label in labels])


def ranking(scores: Tensor) -> Tensor:
    """Return each entry's rank, lowest first; equal entries keep their order."""
    order = as_integers(scores).argsort(stable=True)
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


def as_integers(scores: Tensor) -> Tensor:
    """Return integers in the order of the scores: torch sorts these several times as fast."""
    if scores.dtype != torch.float32:
        return scores
    bits = (scores + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0, its equal
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)  # sign and magnitude: negatives count downwards


def rankings(received: Tensor, deltas: Tensor) -> Tensor:
    """Return the ranking [K, size] of each client's scores, in half the memory.

    One client at a time, because sorting takes a lot of memory.
    """
    ranks = torch.empty(deltas.shape, dtype=torch.int32)
    for row, delta in zip(ranks, deltas, strict=True):
        row.copy_(ranking(received - delta))
    return ranks


def vote(ranks: Tensor, tie_break: Tensor) -> Tensor:
    """Return the ranking by the sum of rankings [K, size]; the ranking `tie_break` breaks ties."""
    return ranking(ranks.sum(dim=0) * len(tie_break) + tie_break)


def cluster(ranks: list[Tensor], count: int) -> list[str]:
    """Label each client with one of at most `count` groups that have similar rankings."""
    n_clients = len(ranks[0])
    if count == 1 or n_clients <= 1:
        return ["all"] * n_clients
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import

    rows, columns = torch.triu_indices(n_clients, n_clients, offset=1)
    squared = functools.reduce(torch.add, map(squared_distances, ranks))[rows, columns]
    tree = linkage(squared.clamp_min(0).sqrt().numpy(), method="average")
    return [str(label) for label in fcluster(tree, t=count, criterion="maxclust")]


def squared_distances(ranks: Tensor) -> Tensor:
    """Return the squared distance [K, K] between the rankings of a layer, scaled to [0, 1]."""
    gram = inner_products(ranks)  # of integers: equal rankings are at distance 0
    scale = max(1, ranks.shape[1] - 1) ** 2
    return (gram.diag()[:, None] + gram.diag() - 2 * gram) / scale

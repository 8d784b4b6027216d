"""FedFair³: choose clients by how useful they are, but ask all about equally often.

Javaherian, Panta, Williams, Islam, Chen. FedFair³: Unlocking Threefold Fairness in Federated
Learning. arXiv:2401.16350, 2024. Known to us from summaries only. The utility is as reported there;
the rule that selects, what happens to clients never asked, the cap and every default are recalled
or ours, so this is not to be taken for the authors' method.

    U_i = n_i sqrt(mean over examples of loss^2) (T/t_i)^(penalty [t_i > T]) lambda_i^[t_i < T]

t_i is the client's round time, T the preferred one, lambda_i a product of the client's features
(data, energy, power ...): the first three factors are Oort's. Losses are at the received model in
the client's last round.

    ask (recalled)   draw clients one by one with probability ~ U_i, among those with fewer than
                     `cap` participations more than the client with the fewest; if too few, raise
                     that bound by one until there are enough
    step             FedAvg's: sum_i n_i (theta - theta_i) / sum_i n_i

So participation counts never differ by more than cap while all clients that are asked report; one
that does not report is not counted. Ours: a client not asked so far has the highest utility seen;
none counts for less than a millionth of the largest, so that zero losses stay eligible; "selected"
in the paper's exponent of lambda_i means: has ever taken part. There is no resource budget: the
run's participation sets how many are asked. Times and features are parameters, since nothing here
measures them; without them all clients are alike and U_i is the statistical utility alone. If all
clients are asked in every round there is nothing to select: FedAvg. The UDJ-FL paper did not run
FedFair³.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.methods.base import (
    Diagnostics,
    Method,
    Reports,
    Setup,
    State,
    parameters,
    size_shares,
    weighted_sum,
)

SMALLEST_SHARE = 1e-6
Feature = Annotated[float, Field(gt=0, le=1e6)]
Features = tuple[Feature, ...] | None


@parameters
class FedFair3(Method):
    name = "fedfair3"
    title = "FedFair³"
    theories = ("egalitarian",)
    paper = "Javaherian et al. 2024, arXiv:2401.16350"
    grade = "recalled"
    idea = (
        "Ask useful clients more readily, none much more often than another, "
        "and average as FedAvg does."
    )
    cost = "a forward pass over the client's data"
    needs = frozenset({"sizes", "squared_losses"})

    cap: Annotated[
        int,
        Field(
            ge=1, description="by how many rounds clients may differ in how often they took part"
        ),
    ] = 2
    penalty: Annotated[
        float,
        Field(ge=0, description="power of T/t for clients slower than T (recalled: 2, as Oort)"),
    ] = 2.0
    round_times: Annotated[
        Features,
        Field(description="t, one number per client in client order; left out: all alike"),
    ] = None
    preferred_time: Annotated[
        Feature | None, Field(description="T; left out: the median of round_times")
    ] = None
    resources: Annotated[
        Features, Field(description="lambda, one number per client; counts where t is below T")
    ] = None

    @field_validator("round_times", "resources", mode="before")
    @classmethod
    def _split_numbers(cls, value: Any) -> Any:
        """Read one number per client from text: `1,2,3`, or `1;2;3` where commas are taken."""
        return tuple(re.split("[,;]", value)) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        for name in ("resources", "preferred_time"):
            if self.round_times is None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} has no effect without round_times; give round_times, or leave it out"
                )
        return self

    def init(self, setup: Setup) -> State:
        for name, values in (("round_times", self.round_times), ("resources", self.resources)):
            if values is not None and len(values) != len(setup):
                raise SettingsError(
                    f"fedfair3: {name} has {len(values)} values for {len(setup)} clients; "
                    "give one for each"
                )
        return {
            "counts": torch.zeros(len(setup), dtype=torch.int64),
            # unknown where the count is 0
            "utilities": torch.zeros(len(setup), dtype=torch.float64),
        }

    def notes(self, setup: Setup) -> list[str]:
        no_choice = (
            "FedFair³ only chooses whom to ask; "
            "with everybody asked in every round (participation = 1) it is FedAvg."
        )
        return [] if setup.participation < 1 else [no_choice]

    def select(
        self, state: State, n_clients: int, count: int, generator: np.random.Generator
    ) -> Sequence[int]:
        utilities = drawing_weights(state).numpy()
        counts = state["counts"].numpy()
        chosen: list[int] = []
        bound = counts.min() + self.cap
        while len(chosen) < min(count, n_clients):
            pool = np.setdiff1d(np.flatnonzero(counts < bound), chosen)
            size = min(len(pool), count - len(chosen))
            if size:
                shares = utilities[pool] / utilities[pool].sum()
                drawn = generator.choice(pool, size=size, replace=False, p=shares)
                chosen += [int(index) for index in drawn]
            bound += 1
        return sorted(chosen)

    def system_factors(self, client_indices: Tensor) -> Tensor:
        """Return the factors of these clients' utilities that come from speed and features."""
        if self.round_times is None:
            return torch.ones(len(client_indices), dtype=torch.float64)
        times = torch.tensor(self.round_times, dtype=torch.float64)
        preferred = self.preferred_time or float(np.median(self.round_times))
        features = torch.tensor(self.resources or [1.0] * len(times), dtype=torch.float64)
        slow = (preferred / times) ** self.penalty
        return torch.where(times < preferred, features, slow)[client_indices]

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        clients = reports.client_indices
        losses = reports.extras["squared_losses"].to(torch.float64).sqrt()
        utility = reports.sizes * losses * self.system_factors(clients)
        counts, utilities = state["counts"].clone(), state["utilities"].clone()
        counts[clients] += 1
        utilities[clients] = utility
        share = size_shares(reports.sizes, "size")
        diagnostics = {
            "weight": share,
            "utility": utility,
            "participations": counts[clients].to(torch.float64),
        }
        step = weighted_sum(share, reports.deltas)
        return {"counts": counts, "utilities": utilities}, step, diagnostics


def drawing_weights(state: State) -> Tensor:
    """Return the utilities [N] for drawing, of which the largest is 1 and none is near zero.

    A client that was never asked has the highest utility seen.
    """
    asked = state["counts"] > 0
    highest = float(state["utilities"].max())  # those not known are 0
    if highest == 0:
        return torch.ones_like(state["utilities"])
    return torch.where(asked, state["utilities"] / highest, 1.0).clamp_min(SMALLEST_SHARE)

# %% [markdown]
# # Writing a method
#
# A method is one class with one function: from what the clients report to the step that the server
# takes. We write one, check it by hand on two clients, run it, and ask whether it does what it
# says.
#
# ## The rule
#
# An idea: weigh clients by their rank. The client with the largest loss gets the most weight, the
# next less, and so on, whatever the size of the losses. Unlike a power of the loss, one client with
# an enormous loss cannot take over.
#
# With ranks 1 (smallest loss) to N (largest) and a parameter t >= 0, client i has the weight
# rank_i^t / sum_j rank_j^t. At t = 0 all weights are equal.

# %%
from typing import Annotated

import torch
from pydantic import Field

import udjfl


@udjfl.parameters
class RankWeights(udjfl.Method):
    """Weigh each client by a power of the rank of its loss."""

    name = "rank-weights"
    title = "Rank weights"
    paper = "this notebook"
    grade = "own"
    theories = ("rawls",)
    needs = frozenset({"losses"})

    t: Annotated[float, Field(ge=0, description="power of the rank; 0: equal weights")] = 1.0

    def aggregate(self, state, reports):
        ranks = reports.losses.argsort().argsort().to(torch.float64) + 1
        weights = ranks**self.t / (ranks**self.t).sum()
        step = (weights[:, None] * reports.deltas.double()).sum(dim=0)
        return state, step.to(reports.deltas.dtype), {"weight": weights}


# %% [markdown]
# - `parameters` makes the annotated fields parameters: checked, frozen, and read from text.
# - `needs` says what clients must report beside their update. On other machines they send that and
#   nothing else.
# - `reports.deltas` has one row per client: the model it received minus its own. The server
#   *subtracts* the step.
# - The third value is recorded for every client and round: use it to see what a method does.
#
# ## By hand
#
# Two clients with losses 0.2 and 0.9 have ranks 1 and 2. With t = 1 their weights are 1/3 and 2/3.
# With updates (3, 0) and (0, 3) the step is (1, 2).

# %%
reports = udjfl.Reports(
    ids=["a", "b"],
    deltas=[[3.0, 0.0], [0.0, 3.0]],
    losses=[0.2, 0.9],
    sizes=[100, 100],
    uncertainties=[0.1, 0.4],
    steps=[1, 1],
)
method = RankWeights()
state, step, diagnostics = method.aggregate(method.init(udjfl.Setup.of(reports)), reports)
print("step", step.tolist(), "weights", [round(w, 3) for w in diagnostics["weight"].tolist()])
assert [round(value, 6) for value in step.tolist()] == [1.0, 2.0]

# %% [markdown]
# ## Properties
#
# Things that must hold whatever the numbers: t = 0 is the plain average, and the order in which
# clients are listed does not matter.

# %%
_, average, _ = RankWeights(t=0).aggregate({}, reports)
assert torch.allclose(average, reports.deltas.mean(dim=0))

swapped = udjfl.Reports(
    ids=["b", "a"],
    deltas=[[0.0, 3.0], [3.0, 0.0]],
    losses=[0.9, 0.2],
    sizes=[100, 100],
    uncertainties=[0.4, 0.1],
    steps=[1, 1],
)
assert torch.equal(RankWeights().aggregate({}, swapped)[1], step)
print("both hold")

# %% [markdown]
# ## Wrong parameters are refused

# %%
try:
    RankWeights(t=-1)
except udjfl.SettingsError as error:
    print(error)

# %% [markdown]
# ## Does it deliver?
#
# It claims to serve Rawls. Compare it with FedAvg, with q-FFL, which uses a power of the loss
# itself, and with Rawls within a budget. After `register_method` it has a name.

# %%
udjfl.register_method(RankWeights)
comparison = udjfl.compare(
    "scanners",
    ["rank-weights:t=2", "qffl", "rawls:budget=2"],
    rounds=30,
    batch_size=32,
    momentum=0,
    seeds=6,
)
for row, verdicts in zip(comparison.rows, comparison.verdicts, strict=True):
    for verdict in verdicts:
        if verdict.theory == "rawls":
            print(f"{row.label}\n  {verdict.sentence}\n")

# %% [markdown]
# The verdict decides on the most uncertain client. Our method never looks at uncertainty: it helps
# whoever has the largest *loss*. On these data the two are often the same client, but nothing
# guarantees it. A method should say which of the two it means.
#
# ## What did it do?

# %%
run = udjfl.simulate("scanners", "rank-weights:t=2", rounds=30, batch_size=32, momentum=0)
for number in (1, 10, 30):
    weights = run.history.by_client("weight", round=number)
    print(f"round {number:2}", {client: round(weight, 2) for client, weight in weights.items()})

# %% [markdown]
# ## Where to put it
#
# In a file of yours, `--methods my_package.rules:RankWeights:t=2` runs it from the command line
# and on Flower. To add it to `udjfl`, and to write methods that change more than the step (who is
# asked, what clients minimise, which model each is served), see
# [adding a method](../../CONTRIBUTING.md#a-method).

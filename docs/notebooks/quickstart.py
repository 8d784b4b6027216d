# %% [markdown]
# # Quickstart
#
# Five scanners read handwritten digits. The first reads them as they are; each next one turns,
# blurs and disturbs them more. They train one model together without sharing a digit. We train
# FedAvg, then a theory of justice, and look at what changes for whom.

# %%
import udjfl

settings = {"rounds": 50, "batch_size": 32, "momentum": 0}
federation = udjfl.load("scanners", seed=0)
for client in federation.describe():
    print(client["id"], client["train"], "train", client["test"], "test examples")

# %% [markdown]
# ## How good are the clients' data?
#
# Before training, each client's *aleatoric uncertainty* is measured from its own data: the doubt
# about a label that remains when the image is known, in nats. 0 is no doubt, 0.69 a coin toss
# between two digits.

# %%
fedavg = udjfl.simulate(federation, "fedavg", **settings)
for client, uncertainty in fedavg.uncertainty.items():
    accuracy = fedavg.client_scores[client]
    print(f"{client}  {uncertainty:.2f} nats  FedAvg {accuracy:.1f}%")
for note in fedavg.notes:
    print(note)

# %% [markdown]
# The last scanner has the most uncertain data and is served worst. The note says which of the
# others cannot be told apart: do not read much into their order.
#
# ## A theory of justice
#
# Rawls: lift the least advantaged client. `budget=2` limits what that may cost: 2 points of the
# clients' mean accuracy, against FedAvg.

# %%
rawls = udjfl.simulate(federation, "rawls:budget=2", reference=fedavg, **settings)
for client in federation.ids:
    before, after = fedavg.client_scores[client], rawls.client_scores[client]
    print(f"{client}  {before:5.1f} -> {after:5.1f}  {after - before:+.1f}")

# %% [markdown]
# Each client has 120 test examples, so one example is 0.83 points: changes of one or two points on
# one seed are noise. The metrics of this run:

# %%
for name, value in rawls.metrics.items():
    print(f"{name:26} {value:7.2f}")

# %% [markdown]
# ## More than one seed
#
# One run is an anecdote. `compare` repeats everything, the split of the data included, and tests
# the differences from FedAvg.

# %%
comparison = udjfl.compare(
    "scanners", ["rawls:budget=2", "desert:budget=2", "rawls"], seeds=10, **settings
)
for row, verdicts in zip(comparison.rows, comparison.verdicts, strict=True):
    for verdict in verdicts:
        print(f"{row.label}\n  {verdict.sentence}\n")

# %% [markdown]
# Read the two verdicts on Rawls beside each other. Both raise Psi, the paper's measure for Rawls,
# by about as much. Within the budget the least advantaged client gains, and the mean hardly moves.
# Without one the others fall: the measure improves and the theory is not kept. That is why a
# verdict looks at who gained before it looks at the measure.
#
# ## The whole table

# %%
from rich.console import Console

from udjfl.report.comparison_table import comparison_view

Console(width=100).print(comparison_view(comparison))

# %% [markdown]
# [Reading the tables](../reading.md) explains every column. Next:
# [your own hospitals](own_hospitals.py).

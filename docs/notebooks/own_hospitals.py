# %% [markdown]
# # Your own hospitals
#
# Four hospitals, one CSV file each. The patients are invented; the questions are those to ask of
# real ones: who has which data, who is served how well, who would rather be alone, and what each
# theory changes.

# %%
from pathlib import Path

import numpy as np
import pandas as pd

import udjfl

HOSPITALS = {  # patients, noise of the instruments, and what makes the local patients ill
    "north": (400, 0.2, [1.0, 0.8, -0.6, 0.4]),
    "east": (300, 0.4, [0.8, 0.8, -0.2, 0.4]),
    "south": (300, 0.6, [0.5, 0.8, 0.3, 0.4]),
    "west": (200, 1.0, [0.2, 0.8, 0.8, 0.4]),
}


def draw_patients(patients, noise, rule, rng):
    """Draw a table of invented patients: four readings, and whether the patient is ill."""
    true = rng.normal(size=(patients, 4))
    measured = (true + noise * rng.normal(size=true.shape)).round(3)
    table = pd.DataFrame(measured, columns=["pressure", "sugar", "pulse", "weight"])
    return table.assign(ill=(true @ rule > 0).astype(int))


rng = np.random.default_rng(0)
tables = {name: draw_patients(*values, rng) for name, values in HOSPITALS.items()}
Path("hospitals").mkdir(exist_ok=True)
for name, table in tables.items():
    table.to_csv(f"hospitals/{name}.csv", index=False)
tables["west"].head(3)

# %% [markdown]
# ## From files to a federation
#
# One file is one client. A fifth of each file's rows is kept for testing. `problems` lists what
# looks wrong in the tables, `preprocessing` what was done to their columns.

# %%
federation = udjfl.Federation.from_csv("hospitals/*.csv", target="ill")
for client in federation.describe():
    print(client["id"], client["train"], "train", client["test"], "test patients")
print(federation.problems or "no problems found")

# %% [markdown]
# Tables that are in memory already need no files:
# `udjfl.Federation.from_frames(tables, target="ill")`. [Data](../data.md) has the other ways in.
#
# ## Question 1: whose data are good?
#
# The uncertainty is measured by each hospital alone. A note appears if two hospitals cannot be told
# apart.

# %%
fedavg = udjfl.simulate(federation, "fedavg", model="logistic", rounds=50)
for name in federation.ids:
    uncertainty, accuracy = fedavg.uncertainty[name], fedavg.client_scores[name]
    print(f"{name:6} u = {uncertainty:.2f}, FedAvg {accuracy:.1f}%")
for note in fedavg.notes:
    print(note)

# %% [markdown]
# West has the worst instruments and the highest uncertainty, as it should. It is also the one whose
# patients differ most from the others'. The two are different reasons for bad service, and the
# number cannot tell them apart: only people who know the hospitals can.
#
# ## Question 2: would a hospital rather be alone?
#
# One split is an anecdote. Given the files, `compare` splits them anew with each of twenty seeds.
# Here FedAvg and the four theories are trained at once; the first row is FedAvg's.

# %%
comparison = udjfl.compare(
    "hospitals/*.csv",
    ["rawls:budget=2", "egalitarian:budget=2", "utilitarian:budget=2", "desert:budget=2"],
    target="ill",
    model="logistic",
    rounds=50,
    seeds=20,
)
for name, joining in comparison.joining[0].items():
    alone = comparison.rows[0].accuracy_alone[name].mean
    low, high = joining.test.ci95
    print(f"{name:6} alone {alone:.1f}%, joining {joining.gain:+.1f} ({low:+.1f} to {high:+.1f})")

# %% [markdown]
# A hospital that is clearly better off alone has no reason to take part, whatever theory the others
# agree on. With four readings and a few hundred patients every hospital here can learn its own
# rule, so one common model has little to offer to those whose rule is unlike the others'. On real
# data, ask this question first. `floor=alone` asks a method to leave nobody below its own model
# ([budgets](../budgets.md)).
#
# ## Question 3: what does each theory change, and for whom?

# %%
comparison.plot_changes()

# %%
for row, verdicts in zip(comparison.rows, comparison.verdicts, strict=True):
    for verdict in verdicts:
        print(f"{row.label}\n  {verdict.sentence}\n")

# %% [markdown]
# Rawls and the egalitarian theory move the model towards west, the utilitarian one and desert
# towards north; east and south, in between, hardly notice. That north and west pull in opposite
# directions is a fact about their patients. Which of them to follow is not.
#
# ## Question 4: does it hang on the uncertainties?
#
# Replace the measured numbers by equal ones. Where little changes, the measurement did not decide;
# where much does, it did, and deserves an audit.

# %%
equal = dict.fromkeys(federation.ids, 0.3)
for label, uncertainty in (("measured", fedavg.uncertainty), ("equal", equal)):
    result = udjfl.simulate(
        federation, "egalitarian", model="logistic", rounds=50, uncertainty=uncertainty
    )
    accuracies = (f"{name} {accuracy:.1f}" for name, accuracy in result.client_scores.items())
    print(f"{label:10}" + "  ".join(accuracies))

# %% [markdown]
# [Uncertainty, and when not to trust it](../uncertainty.md) has more such questions. Next:
# [choosing a budget](choosing_a_budget.py).

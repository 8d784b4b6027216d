# %% [markdown]
# # Your own hospitals
#
# Four hospitals, one CSV file each. The patients are invented; the questions are those to ask of
# real ones: who has which data, who is served how well, who would rather be alone, and what each
# theory changes.

# %%
import csv
from pathlib import Path

import numpy as np

import udjfl

HOSPITALS = {  # patients, noise of the instruments, and what makes the local patients ill
    "north": (400, 0.2, [1.0, 0.8, -0.6, 0.4]),
    "east": (300, 0.4, [0.8, 0.8, -0.2, 0.4]),
    "south": (300, 0.6, [0.5, 0.8, 0.3, 0.4]),
    "west": (200, 1.0, [0.2, 0.8, 0.8, 0.4]),
}


def write_hospital(name, patients, noise, rule, rng):
    """Write a table of invented patients: four readings, and whether the patient is ill."""
    true = rng.normal(size=(patients, 4))
    ill = (true @ rule > 0).astype(int)
    measured = (true + noise * rng.normal(size=true.shape)).round(3)
    with Path("hospitals", f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["pressure", "sugar", "pulse", "weight", "ill"])
        writer.writerows([*row, label] for row, label in zip(measured, ill, strict=True))


Path("hospitals").mkdir(exist_ok=True)
rng = np.random.default_rng(0)
for name, (patients, noise, rule) in HOSPITALS.items():
    write_hospital(name, patients, noise, rule, rng)

# %% [markdown]
# ## From files to a federation
#
# A client is its training and its test part. The split depends on a seed, so that a comparison
# over seeds also covers the chance of who is in the test part.


# %%
def read_hospital(path, seed):
    """Read one table; a fifth of its rows, drawn from the seed, is the test part."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    y = np.array([int(row.pop("ill")) for row in rows])
    x = np.array([[float(value) for value in row.values()] for row in rows])
    test, train = np.split(np.random.default_rng(seed).permutation(len(rows)), [len(rows) // 5])
    return x[train], y[train], x[test], y[test]


def load_hospitals(seed):
    """Make a federation; the shared test set is all test parts together."""
    tables = {path.stem: read_hospital(path, seed) for path in Path("hospitals").glob("*.csv")}
    together = (np.concatenate([table[i] for table in tables.values()]) for i in (2, 3))
    return udjfl.Federation.from_arrays(tables, test=tuple(together), name="hospitals")


federation = load_hospitals(seed=0)
for client in federation.describe():
    print(client)

# %% [markdown]
# ## Question 1: whose data are good?
#
# The uncertainty is measured by each hospital alone. The interval says how sure the number is, and
# a note appears if two hospitals cannot be told apart.

# %%
fedavg = udjfl.simulate(federation, "fedavg", model="logistic", rounds=50)
for name in federation.ids:
    uncertainty, accuracy = fedavg.uncertainty[name], fedavg.client_accuracy[name]
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
# A federation with one client is that client alone. Ten splits, the same for both: the mean and its
# standard error.


# %%
def train_alone(path, seed):
    """Return the accuracy of a model that one hospital trains by itself."""
    table = read_hospital(path, seed)
    alone = udjfl.Federation.from_arrays({path.stem: table}, test=table[2:])
    known = {path.stem: 1.0}  # not used by FedAvg: saves measuring it
    result = udjfl.simulate(alone, "fedavg", model="logistic", rounds=50, uncertainty=known)
    return result.client_accuracy[path.stem]


seeds = range(10)
together = [
    udjfl.simulate(load_hospitals(seed), "fedavg", model="logistic", rounds=50, seed=seed)
    for seed in seeds
]
for path in sorted(Path("hospitals").glob("*.csv")):
    alone = np.array([train_alone(path, seed) for seed in seeds])
    gain = np.array([result.client_accuracy[path.stem] for result in together]) - alone
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    print(
        f"{path.stem:6} alone {alone.mean():.1f}%, together {gain.mean():+.1f} ± {error:.1f} points"
    )

# %% [markdown]
# A hospital that is clearly better off alone has no reason to take part, whatever theory the others
# agree on. With four readings and a few hundred patients every hospital here can learn its own
# rule, so one common model has little to offer to those whose rule is unlike the others'. On real
# data, ask this question first. `floor=alone` asks a method to leave nobody below its own model
# ([budgets](../budgets.md)).
#
# ## Question 3: what does each theory change, and for whom?

# %%
comparison = udjfl.compare(
    load_hospitals,
    ["rawls:budget=2", "egalitarian:budget=2", "utilitarian:budget=2", "desert:budget=2"],
    model="logistic",
    rounds=50,
    seeds=20,
)
reference = comparison.rows[0]
print(f"{'':32}" + "".join(f"{name:>8}" for name in federation.ids))
for row in comparison.rows:
    means = {name: row.client_accuracy[name].mean for name in federation.ids}
    print(f"{row.label:32}" + "".join(f"{means[name]:8.1f}" for name in federation.ids))

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
    accuracies = (f"{name} {accuracy:.1f}" for name, accuracy in result.client_accuracy.items())
    print(f"{label:10}" + "  ".join(accuracies))

# %% [markdown]
# [Uncertainty, and when not to trust it](../uncertainty.md) has more such questions. Next:
# [choosing a budget](choosing_a_budget.py).

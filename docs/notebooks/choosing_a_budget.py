# %% [markdown]
# # Choosing a budget
#
# A budget says what a theory may cost: points of the clients' mean accuracy, against FedAvg. How
# much does each point buy? We try some on `scanners`, five scanners of falling quality, and look at
# the least advantaged client beside the mean.
#
# Choose on data held out for that purpose, not on the test data that you report. `tuning=True`
# makes such a federation: test parts are put away, and a fifth of each client's training part takes
# their place.

# %%
import udjfl


def held_out(seed):
    """Load the scanners without their test parts."""
    return udjfl.load("scanners", seed=seed, tuning=True)


budgets = [0, 2, 4, 6, 10]
comparison = udjfl.compare(
    held_out,
    [f"rawls:budget={budget}" for budget in budgets],
    rounds=50,
    batch_size=32,
    momentum=0,
    seeds=8,
)

# %% [markdown]
# ## What each point buys

# %%
reference = comparison.rows[0]


def change(row, key):
    """Return the mean difference from FedAvg and its 95% interval, as text."""
    test = row.against_fedavg[key]
    return f"{test.difference:+5.1f} ({test.ci95[0]:+.1f} to {test.ci95[1]:+.1f})"


print("budget   least advantaged          mean                  global")
for budget, row in zip(budgets, comparison.rows[1:], strict=True):
    gain = row.metrics["gain_least_advantaged"]
    print(
        f"{budget:6}   {gain.mean:+5.1f} ({gain.ci95[0]:+.1f} to {gain.ci95[1]:+.1f})"
        f"   {change(row, 'mean_accuracy')}   {change(row, 'global_accuracy')}"
    )

# %% [markdown]
# Three things to see:
#
# - **Much of the gain costs the mean nothing.** With a budget of 0 the least advantaged client
#   gains, and the others lose about as much together: the model serves other clients, not fewer.
# - **Budgets of 0 and 2 are the same here.** A score counted on 144 examples a client is uncertain,
#   and the rule keeps its promise with a margin of two standard errors (`caution=2`). As long as
#   the budget is no larger than that margin, it aims at FedAvg's own mean.
# - **From some budget on, little more is bought.** The gain stays within its interval while the
#   mean falls, and the *global* accuracy, on clean data, falls faster: it is not part of the
#   promise.
#
# So the budget to choose is the smallest beyond which the gain no longer grows by more than its
# interval. If clean data matter too, look at the last column before deciding.
#
# ## Who pays?

# %%
print("budget " + "".join(f"{client:>10}" for client in reference.client_scores))
for budget, row in zip(budgets, comparison.rows[1:], strict=True):
    changes = (
        row.client_scores[client].mean - reference.client_scores[client].mean
        for client in reference.client_scores
    )
    print(f"{budget:6} " + "".join(f"{value:+10.1f}" for value in changes))

# %% [markdown]
# ## A limit for each client
#
# The mean can be kept while one client pays all of it. `client_budget` limits what any single one
# may lose.

# %%
limited = udjfl.compare(
    held_out,
    ["rawls:budget=4", "rawls:budget=4:client_budget=3"],
    rounds=50,
    batch_size=32,
    momentum=0,
    seeds=8,
)
for row in limited.rows[1:]:
    changes = {
        client: row.client_scores[client].mean - limited.rows[0].client_scores[client].mean
        for client in row.client_scores
    }
    print(row.label)
    print("  " + "  ".join(f"{client} {value:+.1f}" for client, value in changes.items()))

# %% [markdown]
# ## The price, round by round
#
# Each run records the *price* of its promise: the weight of FedAvg's direction that keeps it. 0:
# the promise costs nothing; 20: it cannot be kept.

# %%
run = udjfl.simulate(held_out(0), "rawls:budget=4", rounds=50, batch_size=32, momentum=0, seed=0)
prices = run.history.series("price")
for number in (1, 10, 20, 30, 40, 50):
    print(f"round {number:2}: price {prices[number]:.2f}")

# %% [markdown]
# ## Decide, then test once
#
# With the budget chosen, run the comparison on the real test parts, on other seeds, once, and
# report what comes out: [budgets](../budgets.md) has what is and is not promised.

# %%
final = udjfl.compare(
    "scanners",
    ["rawls:budget=4"],
    rounds=50,
    batch_size=32,
    momentum=0,
    seeds=range(100, 108),
)
print(final.verdicts[1][0].sentence)

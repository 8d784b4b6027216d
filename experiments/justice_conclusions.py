"""Conclusions of JUSTICE.md: what holds on which federation, from the numbers of the studies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from justice_results import BUDGET, Row, read
from scipy import stats

# The study that decides on each federation: that with the most seeds.
DECIDING = {
    "scanners": ("scanners",),
    "dirty-digits": ("dirty-digits-fresh", "dirty-digits"),
    "dirty-mnist": ("dirty-mnist",),
    "signs": ("signs-fresh", "signs"),
    "heart": ("heart-fresh", "heart"),
}
DELIVERED = ("kept", "kept at a price")
LINES = {
    "rawls": "Rawls raises its beneficiary's score and Psi, or no weighting can",
    "egalitarian": "egalitarian lowers the STD without test noise",
    "utilitarian": "utilitarian is not worse than FedAvg, and better on two",
    "desert": "desert steepens the slope without losing r",
    "budget": "the mean stays within 2 points in 95% of runs, within 3 in all",
}
TEXT = """## What holds, line by line

Each line was to hold on all five federations. The study is that with the most seeds. A word is by
the verdict (Holm within a study); beside it stands the mean change from FedAvg with its 95%
interval, uncorrected; r through Fisher's z. "No weighting could" is by the judge below, every
method of the registry and a search over fixed weights: none lifted the client for certain, and no
interval reaches beyond 2 points. "FedAvg against itself" is the share of
runs within 2 (and 3) that test noise alone would leave, if nothing were lost: where it is below
95%, as on signs with eight test tracks a client, no method can keep the line."""


def conclusion_parts() -> list[str]:
    """Return the section: a table of the lines by federation."""
    studies = {
        data: next(name for name in names if read(f"justice-{name}"))
        for data, names in DECIDING.items()
    }
    cells = {data: conclude(data, name) for data, name in studies.items()}
    head = "| | " + " | ".join(
        f"{data}, {read(f'justice-{name}')[0]['seeds']} seeds" for data, name in studies.items()
    )
    lines = [f"{head} |", "|---" * (len(studies) + 1) + "|"]
    lines += [
        f"| {title} | " + " | ".join(cells[data][key] for data in studies) + " |"
        for key, title in LINES.items()
    ]
    return [TEXT, "\n".join(lines)]


def conclude(data: str, study: str) -> dict[str, str]:
    """Return a cell for each line of one federation."""
    by_method: dict[str, list[Row]] = {}
    for row in read(f"justice-{study}-seeds"):
        by_method.setdefault(row["method"], []).append(row)
    fedavg = by_method["FedAvg"]
    verdicts = {r["theory"]: r for r in read(f"justice-{study}") if "budget" in r["method"]}

    def change(theory: str, key: str) -> str:
        return _with_interval(differences(by_method[verdicts[theory]["method"]], fedavg, key))

    kinds = {theory: verdict["kind"] for theory, verdict in verdicts.items()}
    rawls = f"gain {change('rawls', 'gain_least_advantaged')}, Psi {change('rawls', 'psi')}"
    utilitarian = kinds["utilitarian"]
    return {
        "rawls": f"{_rawls_word(data, kinds['rawls'])}: {rawls}",
        "egalitarian": f"{_fall_word(kinds['egalitarian'])}: "
        f"{change('egalitarian', 'corrected_std')}",
        "utilitarian": f"{'**better**' if utilitarian in DELIVERED else utilitarian}: "
        f"{change('utilitarian', 'global_accuracy')}",
        "desert": f"{_fall_word(kinds['desert'])}: slope {change('desert', 'slope')}, "
        f"r {_change_of_r(by_method[verdicts['desert']['method']], fedavg)}",
        "budget": _budget_word(data, list(verdicts.values())),
    }


def differences(rows: Sequence[Row], fedavg: Sequence[Row], key: str) -> list[float]:
    """Return the change of a number from FedAvg, seed by seed, where both have it."""
    before = {row["seed"]: row[key] for row in fedavg}
    pairs = [(row[key], before[row["seed"]]) for row in rows]
    return [float(ours) - float(theirs) for ours, theirs in pairs if ours and theirs]


def _with_interval(values: Sequence[float]) -> str:
    centre = statistics.mean(values)
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{centre:+.2f} [{centre - half:+.2f}, {centre + half:+.2f}]"


def _change_of_r(rows: Sequence[Row], fedavg: Sequence[Row]) -> str:
    """Return r before and after, through the mean of Fisher's z."""
    means = []
    for one in (fedavg, rows):
        clipped = [max(-0.9999, min(0.9999, float(row["pearson_r"]))) for row in one]
        means.append(math.tanh(statistics.mean(math.atanh(value) for value in clipped)))
    return f"{means[0]:+.2f} to {means[1]:+.2f}"


def _rawls_word(data: str, kind: str) -> str:
    if kind in DELIVERED:
        return "**holds**"
    confirmed = [row for row in read(f"weights-{data}") if row["stage"] == "confirm"]
    within = [row for row in confirmed if row["within_budget"] == "True"]
    if not within:
        return kind
    if any(float(row["gain_low"]) > 0 for row in within):
        return f"{kind}, though others can"
    bound = max(float(row["gain_high"]) for row in within)
    judged = (
        f"{len(within)} within the budget on {within[0]['seeds']} fresh seeds: none for certain, "
        f"upper ends to {bound:+.1f}"
    )
    if bound > BUDGET:
        return f"{kind}, and the judge does not decide either ({judged})"
    return f"**no weighting could** ({judged}); {kind}"


def _fall_word(kind: str) -> str:
    if kind in DELIVERED:
        return "**holds**"
    return "levelled down, by the letter only" if kind == "levelled down" else kind


def _budget_word(data: str, verdicts: Sequence[Row]) -> str:
    runs = sum(int(row["seeds"]) for row in verdicts)
    within, within_3 = (
        sum(int(row[key]) for row in verdicts) for key in ("within_budget", "within_budget_plus_1")
    )
    lowest = min(verdicts, key=lambda row: int(row["within_budget"]))
    share = int(lowest["within_budget"]) / int(lowest["seeds"])
    counts = (
        f"{within / runs:.1%} of {runs} runs (fewest: {lowest['theory']}, {share:.0%}), "
        f"{within_3 / runs:.1%} within 3"
    )
    if within >= 0.95 * runs and within_3 == runs:
        return f"**holds**: {counts}"
    again = [row for row in read(f"noise-{data}") if row["method"] == "FedAvg again"]
    errors = [max(float(row["standard_error"]), 1e-9) for row in again]
    chance = [
        statistics.mean(float(stats.norm.cdf(limit / error)) for error in errors)
        for limit in (BUDGET, BUDGET + 1)
    ]
    word = "holds for 2 points, not for 3" if within >= 0.95 * runs else "does not hold"
    return f"{word}: {counts} (FedAvg against itself: {chance[0]:.0%}, {chance[1]:.0%})"

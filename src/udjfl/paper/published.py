"""The numbers printed in the paper (Carey & Wu, FAccT 2025), under our names of the metrics.

In `published_csv/`, `results.csv` is its main table, `solo.csv` its table of clients that train
alone, and `distributions.csv` the table of its Appendix A (Dirty-MNIST, printed without standard
deviations). Its standard deviations are over three ways of splitting the data.
"""

import csv
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from importlib import resources

CITATION = "Carey & Wu, FAccT 2025"
DISTRIBUTIONS_DATA = "dirty-mnist"

_METRIC = {
    "global_acc": "global_accuracy",
    "acc_max_uncertainty": "accuracy_most_uncertain",
    "acc_min_uncertainty": "accuracy_least_uncertain",
    "local_acc": "local_accuracy",
    "clean_acc": "clean_accuracy",
    "global": "global_accuracy",
    "client_std": "std",
}
# The paper's data set that each of ours stands for.
_COUNTERPART = {
    "dirty-mnist": "dirty-mnist",
    "cure-tsr": "cure-tsr",
    "signs": "cure-tsr",
    "dirty-digits": "dirty-mnist",
}
TITLE = {"dirty-mnist": "Dirty-MNIST", "cure-tsr": "CURE-TSR"}
"""The paper's data sets by our name, as the paper writes them."""


@dataclass(frozen=True)
class Published:
    """One printed number; `std` is None if none is printed."""

    mean: float
    std: float | None


def published_counterpart(data: str) -> str | None:
    """Return the data set of the paper whose numbers may stand beside those of `data`.

    >>> published_counterpart("signs"), published_counterpart("heart")
    ('cure-tsr', None)
    """
    return _COUNTERPART.get(data)


def published_results(data: str | None) -> dict[tuple[str, ...], dict[str, Published]]:
    """Return the main table by (theory, label of the row), then metric; empty for other data.

    FedAvg is under the theory "none" and has no Psi: Psi is measured from it.
    """
    return _rows("results", data, "theory", "method")


def published_solo(data: str | None) -> dict[int, dict[str, Published]]:
    """Return the clients that train alone, by client number, then metric; empty for other data.

    The metrics are local_accuracy, clean_accuracy and uncertainty.
    """
    return {int(client): row for (client,), row in _rows("solo", data, "client").items()}


def published_distributions(data: str | None) -> dict[str, dict[str, Published]]:
    """Return FedAvg under even, clean and dirty distributions, by setting, then metric.

    The metrics are client_1 to client_5, global_accuracy and std. Empty for other data.
    """
    if data != DISTRIBUTIONS_DATA:
        return {}
    return {
        line["setting"]: {
            _METRIC.get(name, name): Published(float(text), None)
            for name, text in line.items()
            if name != "setting"
        }
        for line in _lines("distributions")
    }


def _rows(table: str, data: str | None, *keys: str) -> dict[tuple[str, ...], dict[str, Published]]:
    """Return the rows of a data set, by the columns that identify one, then metric."""
    rows: defaultdict[tuple[str, ...], dict[str, Published]] = defaultdict(dict)
    for line in _lines(table):
        if line["dataset"] == data:
            metric = _METRIC.get(line["metric"], line["metric"])
            rows[tuple(line[key] for key in keys)][metric] = Published(
                float(line["mean"]), float(line["std"])
            )
    return dict(rows)


@cache
def _lines(table: str) -> list[dict[str, str]]:
    file = resources.files("udjfl.paper") / "published_csv" / f"{table}.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))

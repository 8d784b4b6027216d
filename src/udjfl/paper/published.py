"""The numbers printed in the paper (Carey & Wu, FAccT 2025), under our names of the metrics.

`published/results.csv` is its main table, `published/solo.csv` its table of clients training alone, and
`published/distributions.csv` the table of its Appendix A (Dirty-MNIST, printed without standard deviations). Its standard
deviations are over three ways of splitting the data.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

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
# What stands in for the paper's data where those cannot be had.
_STANDS_FOR = {
    "dirty-mnist": "dirty-mnist",
    "cure-tsr": "cure-tsr",
    "signs": "cure-tsr",
    "dirty-digits": "dirty-mnist",
}
TITLE = MappingProxyType({"dirty-mnist": "Dirty-MNIST", "cure-tsr": "CURE-TSR"})
"""The paper's data sets, by our name and as the paper writes them."""


@dataclass(frozen=True)
class Published:
    """One printed number; `std` is None where none is printed."""

    mean: float
    std: float | None


def compared_with(data: str) -> str | None:
    """The data set of the paper whose numbers may stand beside those of `data`; itself if the paper has it.

    >>> compared_with("signs"), compared_with("heart")
    ('cure-tsr', None)
    """
    return _STANDS_FOR.get(data)


def published_results(data: str) -> dict[tuple[str, str], dict[str, Published]]:
    """The main table by (theory, label of the row), then metric. Empty for data the paper does not have.

    FedAvg is under the theory "none" and has no Psi: Psi is measured from it.
    """
    table: dict[tuple[str, str], dict[str, Published]] = {}
    for line in _lines("results"):
        if line["dataset"] == data:
            table.setdefault((line["theory"], line["method"]), {})[_metric(line["metric"])] = (
                _number(line)
            )
    return table


def published_solo(data: str) -> dict[int, dict[str, Published]]:
    """Clients training alone, by client number, then local_accuracy, clean_accuracy or uncertainty. Empty as above."""
    table: dict[int, dict[str, Published]] = {}
    for line in _lines("solo"):
        if line["dataset"] == data:
            table.setdefault(int(line["client"]), {})[_metric(line["metric"])] = _number(line)
    return table


def published_distributions(data: str) -> dict[str, dict[str, Published]]:
    """FedAvg under even, clean and dirty distributions, by setting, then client_1 to client_5, global_accuracy, std."""
    if data != DISTRIBUTIONS_DATA:
        return {}
    return {
        line["setting"]: {
            _metric(name): Published(float(text), None)
            for name, text in line.items()
            if name != "setting"
        }
        for line in _lines("distributions")
    }


def _metric(name: str) -> str:
    return _METRIC.get(name, name)


def _number(line: Mapping[str, str]) -> Published:
    return Published(float(line["mean"]), float(line["std"]))


@cache
def _lines(name: str) -> tuple[Mapping[str, str], ...]:
    text = (resources.files("udjfl.paper") / "published_csv" / f"{name}.csv").read_text(
        encoding="utf-8"
    )
    return tuple(MappingProxyType(line) for line in csv.DictReader(text.splitlines()))

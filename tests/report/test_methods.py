"""The catalogue of methods: equal to the classes, complete, and readable at every width."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from udjfl.errors import SettingsError
from udjfl.methods import METHODS, SERVER_SIDE
from udjfl.methods.base import EXTRAS
from udjfl.report import methods as report


def test_the_catalogue_is_that_of_the_classes() -> None:
    """`make docs` writes the file again after a change of a method."""
    described = json.loads(json.dumps(report.describe_methods()))
    assert json.loads(report.CATALOGUE.read_text(encoding="utf-8")) == described


def test_the_catalogue_is_complete() -> None:
    every = {entry["method"]: entry for entry in report.catalogue()}
    assert set(every) == set(METHODS)
    baselines = {name for name, entry in every.items() if entry["baseline"]}
    assert baselines == {"fedprox", "scaffold", "feddyn", "fednova", "ditto", "fine-tuning"}
    entries = {name: entry for name, entry in every.items() if name not in baselines}
    assert len(entries) == 19
    assert all(entry["theory"] for entry in entries.values())
    for entry in every.values():
        assert set(entry["theory"]) <= {"rawls", "egalitarian", "utilitarian", "desert"}
        assert entry["grade"] in ("verified", "partial", "recalled")
        assert all(entry[key] for key in ("title", "paper", "idea", "cost"))
    # Table 1 of Carey & Wu (FAccT 2025).
    of_rawls = {name for name, entry in entries.items() if "rawls" in entry["theory"]}
    assert of_rawls == {"udj", "qffl", "propfair", "afl"}
    assert {n for n, e in entries.items() if "desert" in e["theory"]} == {
        "udj",
        "corefed",
        "focus",
        "cffl",
    }
    assert {n for n, e in entries.items() if "utilitarian" in e["theory"]} == {
        "udj",
        "fedavg",
        "qffl",
        "propfair",
        "fedeba",
    }
    assert {p["name"]: p["default"] for p in entries["fedavg"]["params"]} == {"weights": "size"}
    assert entries["udj"]["short_names"] == ["rawls", "egalitarian", "utilitarian", "desert"]
    assert all(p["help"] for entry in every.values() for p in entry["params"])


def test_conditions_on_what_clients_send_follow_from_the_parameters() -> None:
    conditions = {entry["method"]: entry["needs_if"] for entry in report.catalogue()}
    assert conditions["fedavg"] == {"sizes": "weights=size"}
    assert conditions["udj"] == {"steps": "step=calibrated"}
    assert conditions["qffl"] == {"sizes": "weights=size", "steps": "lipschitz=calibrated"}


@pytest.mark.parametrize("name", ["udj", "rawls", "desert"])
def test_an_entry_is_found_by_name_and_short_name(name: str) -> None:
    assert report.find_entry(name)["title"] == "UDJ-FL"


def test_everything_that_clients_can_send_has_words() -> None:
    assert set(report.SENT_AS) >= set(EXTRAS) - SERVER_SIDE


def test_a_method_of_another_package_is_imported() -> None:
    assert report.find_entry("udjfl.methods.qffl:QFFL")["title"] == "q-FFL"
    with pytest.raises(SettingsError, match="Did you mean 'fedavg'"):
        report.find_entry("fedavgg")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_fits_the_width_and_loses_nothing(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(report.catalogue_view(report.catalogue()))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert all(len(line) <= width for line in shown.splitlines())
    for entry in report.catalogue():
        for word in (entry["method"], *entry["theory"], entry["paper"].split()[-1]):
            assert word in shown

"""What a client was not asked for may be missing; what it owes may not. And what a method declares is what it reads."""

from __future__ import annotations

import pytest
import torch

from udjfl.errors import ReportError, SettingsError
from udjfl.methods import METHODS, FedAvg, method, parameters
from udjfl.methods.intake import ClientReport, collect


def sent(
    name: str, loss: float | None = None, steps: float | None = None, length: float = 1.0
) -> ClientReport:
    return ClientReport(name, torch.tensor([length, 0.0]), loss, None, None, steps)


def test_what_nobody_sent_is_left_out() -> None:
    reports, _ = collect([sent("a", loss=1.0), sent("b", loss=2.0)], ["a", "b"], 2, 1, 0.1, 0.0)
    assert reports.losses.tolist() == [1.0, 2.0]
    assert torch.isnan(reports.sizes).all()
    assert torch.isnan(reports.uncertainties).all()
    with pytest.raises(ReportError, match="sizes was left out"):
        FedAvg().aggregate({}, reports)


def test_what_is_owed_must_be_there() -> None:
    both = [sent("a", loss=1.0, steps=3), sent("b", loss=None, steps=3)]
    with pytest.raises(
        ReportError, match="client 'b' in round 4: losses is missing; the method needs it"
    ):
        collect(both, ["a", "b"], 2, 4, 0.1, 0.0, owed=["losses", "steps"])
    reports, excluded = collect(
        both, ["a", "b"], 2, 4, 0.1, 0.0, "exclude", owed=["losses", "steps"]
    )
    assert (reports.ids, list(excluded)) == (("a",), ["b"])
    # Left to itself, what one sends all owe.
    with pytest.raises(ReportError, match="losses is missing"):
        collect(both, ["a", "b"], 2, 4, 0.1, 0.0)


def test_what_is_sent_but_not_owed_is_neither_read_nor_checked() -> None:
    reports, _ = collect([sent("a", loss=-5.0, steps=2)], ["a"], 2, 1, 0.1, 0.0, owed=["steps"])
    assert torch.isnan(reports.losses).all()
    assert reports.steps.tolist() == [2.0]


def test_an_update_may_not_be_longer_than_the_limit() -> None:
    both = [sent("a", length=5.0), sent("b", length=5.1)]
    with pytest.raises(
        ReportError, match=r"client 'b' in round 1: deltas has length 5.1, above max_update_norm, 5"
    ):
        collect(both, ["a", "b"], 2, 1, 0.1, 0.0, max_update_norm=5.0)
    assert collect(both, ["a", "b"], 2, 1, 0.1, 0.0)[0].ids == ("a", "b")


def test_parameters_decide_what_is_asked_for() -> None:
    assert "sizes" in method("fedavg").asked
    assert "sizes" not in method("fedavg", weights="uniform").asked
    assert "steps" in method("rawls").asked
    assert "steps" not in method("rawls", step="paper").asked
    for kind in METHODS.values():
        known = set(kind.__dataclass_fields__)
        assert {parameter for parameter, _ in kind.needs_if.values()} <= known


def test_a_condition_on_what_is_not_needed_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs_if has 'losses', which is not in needs"):

        @parameters
        class Wrong(FedAvg):
            needs_if = {"losses": ("weights", "size")}  # noqa: RUF012 - a method's declaration

"""The measurement as runs use it: named by a setting, written down with its evidence."""

from __future__ import annotations

from pathlib import Path

import pytest
from noisy_clients import make_noisy, measure_in

import udjfl
from udjfl.engine import one_thread
from udjfl.errors import ReportError
from udjfl.settings import TrainingSettings
from udjfl.training.lifecycle import load_uncertainty
from udjfl.training.run_folder import RunFolder
from udjfl.uncertainty import measure_many


@pytest.mark.parametrize("kind", ["crossfit", "paper", "confidence", "ensemble"])
def test_the_setting_names_the_measure(kind: str) -> None:
    measured = measure_in(make_noisy({"tenth": 40}), uncertainty=kind, uncertainty_epochs=2)
    assert measured.kind == kind
    assert measured.evidence is not None
    assert measured.evidence["tenth"].size == 40
    assert (measured.evidence["tenth"].interval is not None) == (kind == "crossfit")
    assert (measured.epistemic is not None) == (kind == "ensemble")


def test_a_run_folder_holds_the_evidence(tmp_path: Path) -> None:
    federation = make_noisy({"clean": 40, "coin": 40})
    settings = {"rounds": 1, "hidden": 8}
    result = udjfl.simulate(federation, "rawls", out=tmp_path, seed=3, **settings)
    kept = load_uncertainty(RunFolder.open(tmp_path), federation.ids)
    assert kept == measure_in(federation, seed=3)
    assert kept is not None
    assert kept.values == result.uncertainty
    assert list(kept.untrusted) == ["coin"]


@pytest.mark.parametrize("kind", ["crossfit", "paper"])
def test_a_client_that_cannot_be_measured_among_many_is_named(kind: str) -> None:
    federations = [make_noisy({"tenth": 40}), make_noisy({"coin": 40})]
    settings = TrainingSettings(
        uncertainty=kind, hidden=8, uncertainty_lr=1e30, uncertainty_epochs=2
    )
    with one_thread(), pytest.raises(ReportError, match="training alone diverged"):
        measure_many(federations, settings, [0, 0])

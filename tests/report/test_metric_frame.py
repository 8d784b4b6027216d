"""Results as fairlearn's frames."""

from __future__ import annotations

import sys

import pytest
from grouped_clients import make_grouped
from small_runs import make_federation, train_briefly

import udjfl


def test_fairlearn_agrees_with_our_gaps() -> None:
    pytest.importorskip("fairlearn")
    federation = make_grouped()
    result = train_briefly(federation, "fedavg", rounds=5)
    frame = udjfl.metric_frame(result, federation)
    assert result.group_accuracy is not None
    gaps = 100 * frame.difference()["accuracy"]
    assert gaps.to_dict() == pytest.approx(
        dict(zip("ab", result.group_accuracy.gaps(["a", "b"]), strict=True))
    )
    # Without clients, the groups are pooled as in ours.
    overall = 100 * frame.by_group["accuracy"].groupby("group").mean()  # parts of equal size
    assert overall.max() - overall.min() == pytest.approx(result.metrics["group_gap"])


def test_without_groups_it_says_what_to_do() -> None:
    pytest.importorskip("fairlearn")
    federation = make_federation()
    with pytest.raises(udjfl.DataError, match="sensitive_test"):
        udjfl.metric_frame(train_briefly(federation), federation)


def test_without_fairlearn_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation()
    monkeypatch.setitem(sys.modules, "fairlearn.metrics", None)
    with pytest.raises(udjfl.SettingsError, match=r"udjfl\[fairlearn\]"):
        udjfl.metric_frame(train_briefly(federation), federation)

"""The result of a finished run."""

from __future__ import annotations

from dataclasses import replace

from small_runs import make_federation, train_briefly

from udjfl.metrics import compute_metrics
from udjfl.training.result import metric_value, outcome_of, summary


def test_a_result_is_shown_in_one_short_line() -> None:
    """Neither the history nor the model is shown."""
    result = train_briefly(make_federation(), "rawls")
    shown = repr(result)
    assert len(shown) < 400
    assert "\n" not in shown
    assert shown.startswith("Result(method='UDJ-FL rawls', seed=0, clients=3, metrics={")
    assert f"'std': {round(result.metrics['std'] or 0.0, 2)}" in shown


def test_the_summary_has_expected_accuracies_where_they_are_known() -> None:
    result = train_briefly(make_federation())
    assert "expected_accuracy" not in summary(result)
    known = replace(result, expected_accuracy={"a": 12.5})
    assert summary(known) == {**summary(result), "expected_accuracy": {"a": 12.5}}


def test_metrics_can_be_computed_from_a_result() -> None:
    reference = train_briefly(make_federation())
    result = train_briefly(make_federation(), "rawls", reference=reference)
    assert compute_metrics(outcome_of(result, reference)) == (result.metrics, result.undefined)


def test_a_run_without_reference_is_compared_with_itself() -> None:
    reference = train_briefly(make_federation())
    assert "psi" not in reference.metrics
    assert metric_value(reference, "psi") == 0.0
    assert metric_value(reference, "std") == reference.metrics["std"]
    assert metric_value(train_briefly(make_federation(n_clients=1)), "psi") is None

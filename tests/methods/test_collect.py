"""`collect`: which rows are used, in which order, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import torch

from udjfl.errors import ReportError
from udjfl.methods.collect import collect

DELTAS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
LOSSES = torch.tensor([0.1, 0.2, 0.3])
ALL = ("client-1", "client-2", "client-10", "client-11")


def gather(ids: list[str], losses: Any = LOSSES, **changes: Any) -> Any:
    given = {"all_ids": ALL, "round": 4, "lr": 0.25, "momentum": 0.5, **changes}
    return collect(ids, DELTAS, {"losses": losses, "gradients": DELTAS + 1}, **given)


def test_rows_are_in_the_order_of_the_federation() -> None:
    model = torch.tensor([7.0, 8.0])
    reports, rows, errors = gather(["client-10", "client-1", "client-2"], model=model)
    assert (reports.ids, rows, errors) == (("client-1", "client-2", "client-10"), [1, 2, 0], {})
    assert reports.deltas.tolist() == DELTAS[[1, 2, 0]].tolist()
    assert reports.losses.tolist() == LOSSES[[1, 2, 0]].double().tolist()
    assert reports.extras["gradients"].tolist() == (DELTAS + 1)[[1, 2, 0]].tolist()
    assert reports.client_indices.tolist() == [0, 1, 2]
    assert (reports.round, reports.lr, reports.momentum) == (4, 0.25, 0.5)
    assert reports.model is model


def test_indices_are_those_among_all_clients() -> None:
    reports, rows, _ = gather(["client-2", "client-10", "client-11"])
    assert (reports.client_indices.tolist(), rows) == ([1, 2, 3], [0, 1, 2])


def test_a_stranger_is_left_out_and_named() -> None:
    reports, rows, errors = gather(["client-2", "stranger", "client-1"])
    assert (reports.ids, rows) == (("client-1", "client-2"), [2, 0])
    assert list(errors) == ["stranger"]
    assert str(errors["stranger"]) == (
        "client 'stranger' in round 4: id does not belong to this federation"
    )


def test_the_first_usable_row_of_a_client_counts() -> None:
    reports, rows, errors = gather(["client-1", "client-1", "client-2"])
    assert (reports.ids, rows) == (("client-1", "client-2"), [0, 2])
    assert str(errors["client-1"]) == (
        "client 'client-1' in round 4: id reported twice in one round; the first report was kept"
    )
    bad = torch.tensor([torch.nan, 0.2, 0.3])
    reports, rows, errors = gather(["client-1", "client-1", "client-2"], losses=bad)
    assert (rows, reports.losses.tolist()) == ([1, 2], bad[1:].double().tolist())
    assert "losses" in str(errors["client-1"])


def test_rejected_rows_are_not_used() -> None:
    error = ReportError("client-2", "buffers", "is bad", 4)
    reports, rows, errors = gather(["client-1", "client-2", "client-10"], rejected={1: error})
    assert (reports.ids, rows, errors) == (
        ("client-1", "client-10"),
        [0, 2],
        {"client-2": error},
    )


def test_nobody_left_is_no_reports() -> None:
    reports, rows, errors = gather(["x", "y", "z"])
    assert (reports, rows, sorted(errors)) == (None, [], ["x", "y", "z"])


def test_scores_of_a_regression_may_be_below_zero() -> None:
    scores = {"scores": torch.tensor([-3.0, 0.5, 1.0])}
    for is_regression, used in ((True, [0, 1, 2]), (False, [1, 2])):
        _, rows, _ = collect(
            ["client-1", "client-2", "client-10"],
            DELTAS,
            scores,
            all_ids=ALL,
            round=1,
            lr=0.1,
            momentum=0.0,
            is_regression=is_regression,
        )
        assert rows == used

"""`Reports`: what is kept, in which order, and what is rejected."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from udjfl.errors import ReportError, SettingsError, UdjflError
from udjfl.methods import Reports
from udjfl.methods.reports import check_numbers

NAN, INF = math.nan, math.inf


def reports(**changes: Any) -> Reports:
    values = {
        "ids": ["a", "b"],
        "deltas": [[1.0, 2.0], [3.0, 4.0]],
        "losses": [0.5, 0.25],
        "sizes": [10, 30],
        "uncertainties": [0.1, 0.2],
        "steps": [3, 4],
        "round": 7,
        **changes,
    }
    return Reports(**values)


# --- what is kept, and in which order ---


def test_rows_are_sorted_as_people_count():
    made = Reports(
        ids=["client-10", "client-9", "client-2"],
        deltas=[[10.0], [9.0], [2.0]],
        losses=[10, 9, 2],
        sizes=[10, 9, 2],
        uncertainties=[10, 9, 2],
        steps=[10, 9, 2],
        client_indices=[9, 8, 1],
        extras={"gradients": [[10.0], [9.0], [2.0]]},
    )
    assert made.ids == ("client-2", "client-9", "client-10")
    for name in ("losses", "sizes", "uncertainties", "steps"):
        assert getattr(made, name).tolist() == [2, 9, 10], name
    assert made.deltas.tolist() == [[2], [9], [10]]
    assert made.client_indices.tolist() == [1, 8, 9]
    assert made.extras["gradients"].tolist() == [[2], [9], [10]]
    assert len(made) == 3


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_lists_arrays_and_tensors_are_taken(kind):
    made = reports(
        deltas=kind([[1.0, 2.0], [3.0, 4.0]]), losses=kind([0.5, 0.25]), sizes=kind([10, 30])
    )
    assert made.deltas.tolist() == [[1, 2], [3, 4]]
    assert made.losses.tolist() == [0.5, 0.25]
    assert made.sizes.tolist() == [10, 30]
    assert made.losses.dtype == made.sizes.dtype == torch.float64


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_list_of_one_row_per_client_is_taken(kind):
    made = reports(deltas=[kind([1.0, 2.0]), kind([3.0, 4.0])])
    assert made.deltas.tolist() == [[1, 2], [3, 4]]


def test_a_read_only_array_is_taken():
    frozen = np.array([0.5, 0.25])
    frozen.flags.writeable = False
    assert reports(losses=frozen).losses.tolist() == [0.5, 0.25]


def test_numbers_in_a_list_keep_their_digits():
    # 0.1 and 2^24 + 1 have no exact float32; 1e-50 is zero there and 1e40 infinite.
    made = reports(losses=[0.1, 1e40], uncertainties=[0.1, 1e-50], sizes=[2.0**24 + 1, 1])
    assert made.losses.tolist() == [0.1, 1e40]
    assert made.uncertainties.tolist() == [0.1, 1e-50]
    assert made.sizes.tolist() == [2**24 + 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_deltas_keep_the_dtype_of_the_model(dtype):
    assert reports(deltas=torch.ones(2, 3, dtype=dtype)).deltas.dtype == dtype


def test_whole_numbers_become_deltas():
    assert reports(deltas=[[1, 2], [3, 4]]).deltas.is_floating_point()


def test_left_out_fields_are_nan_and_the_rest_has_defaults():
    made = Reports(ids=["b", "a"], deltas=[[1.0], [2.0]])
    for name in ("losses", "sizes", "uncertainties", "steps"):
        assert torch.isnan(getattr(made, name)).all(), name
        assert getattr(made, name).dtype == torch.float64, name
    assert made.client_indices.tolist() == [0, 1]
    assert (made.lr, made.momentum, made.round) == (0.1, 0.0, 1)


def test_later_changes_to_what_was_given_do_not_reach_it():
    deltas, losses, sizes = (
        np.ones((2, 2)),
        np.array([0.5, 0.25]),
        torch.tensor([4.0, 5.0], dtype=torch.float64),
    )
    made = reports(deltas=deltas, losses=losses, sizes=sizes)
    for given in (deltas, losses, sizes):
        given[:] = 9
    assert made.deltas.tolist() == [[1, 1], [1, 1]]
    assert made.losses.tolist() == [0.5, 0.25]
    assert made.sizes.tolist() == [4, 5]


def test_a_table_in_order_is_not_copied():
    deltas, gradients = torch.ones(2, 2), torch.ones(2, 2)
    made = Reports(["a", "b"], deltas, extras={"gradients": gradients})
    assert made.deltas.data_ptr() == deltas.data_ptr()
    assert made.extras["gradients"].data_ptr() == gradients.data_ptr()
    turned = Reports(["b", "a"], torch.tensor([[1.0], [2.0]]))
    assert turned.deltas.tolist() == [[2], [1]]


def test_reports_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        reports().round = 8


# --- shapes ---


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"deltas": [1.0, 2.0]}, "deltas"),
        ({"deltas": 1.0}, "deltas"),
        ({"deltas": [[[1.0]], [[2.0]]]}, "deltas"),
        ({"deltas": [[1.0]]}, "deltas"),
        ({"deltas": [[1.0, 2.0], [3.0]]}, "deltas"),
        ({"deltas": [torch.zeros(2), [0.0, 10**400]]}, "deltas"),
        ({"deltas": [[0.0, 1.0], [0.0, 10**400]]}, "deltas"),
        ({"losses": [0.5]}, "losses"),
        ({"losses": 0.5}, "losses"),
        ({"losses": [[0.5, 0.5], [0.5, 0.5]]}, "losses"),
        ({"uncertainties": [0.1, 0.2, 0.3]}, "uncertainties"),
        ({"sizes": []}, "sizes"),
        ({"steps": [1]}, "steps"),
        ({"client_indices": [0, 1, 2]}, "client_indices"),
        ({"extras": {"accuracies": [0.5]}}, "accuracies"),
        ({"ids": ["a", "a"]}, "ids"),
        ({"ids": ["a", "b", "c"]}, "deltas"),
        ({"ids": [], "deltas": []}, "ids"),
    ],
)
def test_wrong_shapes_are_refused_by_name(changes, field):
    with pytest.raises(UdjflError, match=rf"\b{field}\b"):
        reports(**changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.0),
        ("lr", -0.1),
        ("lr", NAN),
        ("lr", 10**400),
        ("momentum", 1.5),
        ("momentum", -0.1),
    ],
)
def test_impossible_training_settings_are_refused(name, value):
    with pytest.raises(SettingsError, match=name):
        reports(**{name: value})


def test_a_place_before_the_first_is_refused():
    # As an index it would count from the end, and hand a client another's parameter.
    with pytest.raises(UdjflError, match="client_indices"):
        reports(client_indices=[-1, 0])


# --- values ---

BAD_NUMBERS = [
    *(("losses", value) for value in (NAN, INF, -INF, -1e-9)),
    *(("uncertainties", value) for value in (NAN, INF, -INF, 0.0, -0.1)),
    *(("sizes", value) for value in (NAN, INF, 0.0, -5.0)),
    *(("steps", value) for value in (NAN, INF, 0.0, -1.0)),
]


@pytest.mark.parametrize(("field", "value"), BAD_NUMBERS)
def test_an_unusable_number_is_refused(field, value):
    with pytest.raises(
        ReportError, match=rf"client 'b' in round 7: {field} is .*(must|cannot)"
    ) as caught:
        reports(**{field: [1.0, value]})
    assert (caught.value.client, caught.value.field, caught.value.round) == ("b", field, 7)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_an_unusable_update_is_refused(value):
    with pytest.raises(
        ReportError, match=r"client 'a' in round 7: deltas .*NaN or infinite"
    ) as caught:
        reports(deltas=[[1.0, value], [3.0, 4.0]])
    assert (caught.value.client, caught.value.field, caught.value.round) == ("a", "deltas", 7)


def test_the_client_is_named_after_sorting():
    with pytest.raises(ReportError) as caught:
        reports(ids=["client-10", "client-2"], losses=[0.5, -1.0])
    assert caught.value.client == "client-2"


@pytest.mark.parametrize("field", ["losses", "sizes", "uncertainties"])
def test_nan_for_every_client_is_not_the_same_as_left_out(field):
    with pytest.raises(ReportError, match=f"client 'a' in round 7: {field} is nan"):
        reports(**{field: [NAN, NAN]})


def test_zero_loss_and_zero_update_are_usable():
    made = reports(losses=[0.0, 0.0], deltas=[[0.0, 0.0], [0.0, 0.0]])
    assert made.losses.tolist() == [0, 0]


# --- tables that are not of real numbers


@pytest.mark.parametrize(
    "table",
    [
        np.ones(2, dtype=bool),
        torch.ones(2, dtype=torch.bool),
        np.ones(2, dtype=complex),
        np.ma.masked_array([1.0, 2.0], [False, True]),
        np.array([1.0, None], dtype=object),
        torch.ones(2).to_sparse(),
        np.array(["2020-01-01"] * 2, dtype="datetime64[D]"),
    ],
)
@pytest.mark.parametrize("field", ["losses", "sizes", "uncertainties", "steps", "client_indices"])
def test_tables_of_anything_but_real_numbers_are_refused(field: str, table: object) -> None:
    with pytest.raises(SettingsError, match=rf"Reports\.{field}: is .*table of"):
        Reports(ids=["a", "b"], deltas=torch.zeros(2, 3), **{field: table})


def test_two_clients_with_one_index_are_refused() -> None:
    with pytest.raises(SettingsError, match="give each client an index of its own"):
        Reports(ids=["a", "b"], deltas=torch.zeros(2, 3), client_indices=[4, 4])


@pytest.mark.parametrize("field", ["sizes", "steps"])
def test_counts_beyond_the_whole_numbers_of_float64_are_refused(field: str) -> None:
    Reports(ids=["a"], deltas=torch.zeros(1, 3), **{field: [2**53]})
    with pytest.raises(ReportError, match=rf"client 'a' in round 1: {field} is .* at most 2\^53"):
        Reports(ids=["a"], deltas=torch.zeros(1, 3), **{field: [2.0**54]})


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": "0.1"},
        {"lr": None},
        {"lr": True},
        {"momentum": [0.1]},
        {"round": 1.5},
        {"ids": 3},
        {"ids": "ab"},
        {"model": torch.zeros(4)},
        {"model": [0.0, 0.0, 0.0]},
        {"extras": {"gradients": torch.zeros(2, 4)}},
        {"extras": {"accuracies": torch.zeros(2, 1)}},
        {"extras": {"losses_of_each": torch.zeros(2)}},
    ],
)
def test_values_of_the_wrong_kind_are_told_in_words(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"Reports\."):
        Reports(**{"ids": ["a", "b"], "deltas": torch.zeros(2, 3), **wrong})


# --- what was given, and what is still needed


def test_reports_tell_what_was_given() -> None:
    made = Reports(["a"], [[1.0]], losses=[0.5], extras={"accuracies": [0.5]}, model=torch.zeros(1))
    assert all(made.has(name) for name in ("losses", "accuracies", "model", "deltas", "lr"))
    assert not any(made.has(name) for name in ("sizes", "client_indices", "scores"))
    assert not Reports(["a"], [[1.0]]).has("model")


def test_what_was_left_out_is_named_and_whom_it_is_of() -> None:
    made = Reports(["a", "b"], [[1.0], [2.0]], losses=[0.5, 0.5], round=3)
    made.require()
    made.require("losses")
    for names in (("sizes",), ("losses", "sizes")):
        with pytest.raises(ReportError, match=r"client 'a' in round 3: sizes was left out"):
            made.require(*names)
    with pytest.raises(ReportError, match=r"scores was left out"):
        made.require("scores")
    with pytest.raises(SettingsError, match=r"Reports\.model: was left out"):
        made.require("losses", "model")


def test_one_more_extra_is_checked_and_leaves_the_reports_as_they_are() -> None:
    made = Reports(["a", "b"], [[1.0], [2.0]], extras={"gradient_norms": [1.0, 2.0]}, round=3)
    more = made.with_extra("validation_accuracies", torch.tensor([0.0, 1.0]))
    assert more.extras["validation_accuracies"].tolist() == [0.0, 1.0]
    assert more.extras["gradient_norms"].tolist() == [1.0, 2.0]
    assert made.extras.keys() == {"gradient_norms"}
    with pytest.raises(ReportError, match=r"client 'a' in round 3: validation_accuracies must be"):
        made.with_extra("validation_accuracies", torch.tensor([1.5, 2.0]))


@pytest.mark.parametrize(
    ("name", "usable", "unusable", "problem"),
    [
        ("accuracies", [0.0, 1.0], -0.1, "must be from 0 to 1"),
        ("accuracies", [0.0, 1.0], 1.5, "must be from 0 to 1"),
        ("squared_losses", [0.0, 0.5], -0.1, "cannot be negative"),
        ("gradient_norms", [0.0, 0.5], NAN, "has values that are NaN or infinite"),
        ("score_sizes", [0.5, 1.0], 0.0, "must be above zero"),
        ("score_sizes", [1, 2], 0, "must be above zero"),
        ("losses_of_each", [[0.0, 0.5], [2.0, 3.0]], [1.0, -1.0], "cannot be negative"),
        ("gradients", [[0.0, -5.0], [2.0, 3.0]], [1.0, INF], "has values that are NaN or infinite"),
    ],
)
def test_extras_are_checked_by_what_they_mean(
    name: str, usable: list[Any], unusable: Any, problem: str
) -> None:
    assert reports(extras={name: usable}).extras[name].tolist() == usable
    with pytest.raises(ReportError, match=rf"client 'b' in round 7: {name} {problem}"):
        reports(extras={name: [usable[0], unusable]})


def test_of_several_mistakes_the_first_client_s_first_field_is_named() -> None:
    wrong = [-1.0, -1.0]
    for names in (("losses", "sizes", "uncertainties", "steps"), ("sizes", "steps"), ("steps",)):
        with pytest.raises(ReportError, match=f"client 'a' in round 7: {names[0]} is -1"):
            reports(deltas=[[1.0, 1.0], [1.0, NAN]], **dict.fromkeys(reversed(names), wrong))


def test_single_numbers_of_a_client_are_checked_alike() -> None:
    check_numbers("a", {"losses": 0.0, "sizes": 2**53, "steps": 1})
    with pytest.raises(ReportError, match="client 'a': losses is -1; a loss cannot be negative"):
        check_numbers("a", {"sizes": 1, "losses": -1.0})
    # In single precision it would be infinite.
    check_numbers("a", {"losses": 1e300})


def test_rows_of_several_kinds_are_one_table() -> None:
    made = reports(deltas=[torch.tensor([1.0, 2.0]), [3.0, 4.0]])
    assert made.deltas.tolist() == [[1, 2], [3, 4]]
    assert made.deltas.dtype == torch.float32


def test_scores_of_a_regression_may_be_below_zero_but_not_above_one():
    def extras(score: float) -> dict[str, Any]:
        return {"scores": torch.tensor([0.5, score], dtype=torch.float64)}

    reports = Reports(
        ["c0", "c1"], torch.tensor([[1.0], [2.0]]), extras=extras(-3.0), is_regression=True
    )
    assert reports.extras["scores"].tolist() == [0.5, -3.0]
    Reports(["c0", "c1"], torch.tensor([[1.0], [2.0]]), extras=extras(1.0), is_regression=True)
    with pytest.raises(ReportError, match="client 'c1' in round 1: scores must be at most 1"):
        Reports(["c0", "c1"], torch.tensor([[1.0], [2.0]]), extras=extras(1.5), is_regression=True)
    with pytest.raises(ReportError, match="client 'c1' in round 1: scores must be from 0 to 1"):
        Reports(["c0", "c1"], torch.tensor([[1.0], [2.0]]), extras=extras(-3.0))

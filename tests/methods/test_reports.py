"""`Reports`, and `intake.collect` which makes one from what single clients sent."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from udjfl.errors import ReportError, SettingsError, UdjflError
from udjfl.methods import Reports
from udjfl.methods.intake import ClientReport, collect

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
        extras={"accuracies": [[10.0, 1.0], [9.0, 1.0], [2.0, 1.0]]},
    )
    assert made.ids == ("client-2", "client-9", "client-10")
    for name in ("losses", "sizes", "uncertainties", "steps"):
        assert getattr(made, name).tolist() == [2, 9, 10], name
    assert made.deltas.tolist() == [[2], [9], [10]]
    assert made.client_indices.tolist() == [1, 8, 9]
    assert made.extras["accuracies"].tolist() == [[2, 1], [9, 1], [10, 1]]
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
    for name in ("losses", "sizes", "uncertainties"):
        assert torch.isnan(getattr(made, name)).all(), name
    assert made.steps.tolist() == [1, 1]
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
    [("lr", 0.0), ("lr", -0.1), ("lr", NAN), ("momentum", 1.5), ("momentum", -0.1)],
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


# --- from single clients ---


def sent(name: str, **changes: Any) -> ClientReport:
    values = {
        "id": name,
        "delta": torch.tensor([1.0, 2.0]),
        "loss": 0.5,
        "size": 10,
        "uncertainty": 0.1,
        "steps": 3,
    }
    return ClientReport(**{**values, **changes})


def gather(
    *reports: ClientReport,
    policy: str = "fail",
    ids: tuple[str, ...] = ("a", "b", "c"),
    needs: Any = None,
):
    return collect(
        reports, ids, n_parameters=2, round=4, lr=0.2, momentum=0.9, policy=policy, needs=needs
    )


def test_collect_keeps_every_field():
    made, excluded = gather(
        sent("c", delta=torch.tensor([3.0, 4.0]), loss=0.25, size=30, uncertainty=0.2, steps=5),
        sent("a"),
    )
    assert excluded == {}
    assert made.ids == ("a", "c")
    assert made.deltas.tolist() == [[1, 2], [3, 4]]
    assert made.losses.tolist() == [0.5, 0.25]
    assert made.sizes.tolist() == [10, 30]
    assert made.uncertainties.tolist() == [0.1, 0.2]
    assert made.steps.tolist() == [3, 5]
    assert made.client_indices.tolist() == [0, 2]  # places among all three, though b did not report
    assert (made.lr, made.momentum, made.round) == (0.2, 0.9, 4)


def test_collect_does_not_depend_on_arrival():
    ids = tuple(f"client-{i}" for i in range(8, 12))
    arrivals = [sent(name, loss=float(i)) for i, name in enumerate(ids)]
    made, _ = gather(*arrivals, ids=ids)
    turned, _ = gather(*reversed(arrivals), ids=ids)
    assert made.ids == turned.ids == ids
    assert made.losses.tolist() == turned.losses.tolist() == [0, 1, 2, 3]
    assert made.client_indices.tolist() == turned.client_indices.tolist() == [0, 1, 2, 3]


UNUSABLE = [
    ("deltas", {"delta": torch.tensor([1.0, NAN])}),
    ("deltas", {"delta": torch.tensor([-INF, 1.0])}),
    ("deltas", {"delta": torch.tensor([1.0, 2.0, 3.0])}),
    ("deltas", {"delta": torch.tensor([1.0])}),
    ("deltas", {"delta": torch.tensor([[1.0, 2.0]])}),
    ("deltas", {"delta": torch.tensor(1.0)}),
    *(("losses", {"loss": value}) for value in (NAN, INF, -0.5)),
    *(("uncertainties", {"uncertainty": value}) for value in (NAN, INF, 0.0, -1.0)),
    *(("sizes", {"size": value}) for value in (NAN, 0, -1)),
    *(("steps", {"steps": value}) for value in (NAN, 0)),
]


@pytest.mark.parametrize(("field", "changes"), UNUSABLE)
def test_policy_fail_stops_at_an_unusable_report(field, changes):
    with pytest.raises(ReportError, match=f"client 'b' in round 4: {field}") as caught:
        gather(sent("a"), sent("b", **changes), sent("c"))
    assert (caught.value.client, caught.value.field, caught.value.round) == ("b", field, 4)


@pytest.mark.parametrize(("field", "changes"), UNUSABLE)
def test_policy_exclude_goes_on_without_it(field, changes):
    made, excluded = gather(sent("a"), sent("b", **changes), sent("c", loss=0.75), policy="exclude")
    assert made.ids == ("a", "c")
    assert made.losses.tolist() == [0.5, 0.75]
    assert made.client_indices.tolist() == [0, 2]
    assert list(excluded) == ["b"]
    assert excluded["b"].startswith(f"client 'b' in round 4: {field}")


def test_nothing_usable_gives_none_and_the_reasons():
    made, excluded = gather(sent("a", loss=NAN), sent("b", uncertainty=0.0), policy="exclude")
    assert made is None
    assert set(excluded) == {"a", "b"}
    assert "losses" in excluded["a"]
    assert "uncertainties" in excluded["b"]


def test_nothing_sent_gives_none():
    assert gather() == (None, {})


def test_a_stranger_is_refused():
    with pytest.raises(
        ReportError, match=r"client 'z' in round 4: .*does not belong to this federation"
    ):
        gather(sent("a"), sent("z"))
    made, excluded = gather(sent("a"), sent("z"), policy="exclude")
    assert made.ids == ("a",)
    assert list(excluded) == ["z"]


def test_a_second_report_of_one_client_is_refused():
    with pytest.raises(ReportError, match=r"client 'a' in round 4: .*twice"):
        gather(sent("a"), sent("b"), sent("a", loss=9.0))
    made, excluded = gather(sent("a"), sent("b"), sent("a", loss=9.0), policy="exclude")
    assert made.ids == ("a", "b")
    assert made.losses.tolist() == [0.5, 0.5]
    assert "twice" in excluded["a"]


def test_extras_are_stacked_in_client_order():
    made, _ = gather(
        sent("b", extras={"accuracy": torch.tensor(0.2), "scores": torch.tensor([3.0, 4.0])}),
        sent("a", extras={"accuracy": torch.tensor(0.1), "scores": torch.tensor([1.0, 2.0])}),
    )
    assert made.extras["accuracy"].tolist() == pytest.approx([0.1, 0.2])
    assert made.extras["scores"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"accuracy": torch.tensor(NAN)},
        {"accuracy": torch.tensor([0.5, 0.5])},
    ],
    ids=["missing", "nan", "shape"],
)
def test_an_unusable_extra_is_refused_like_any_other_field(wrong):
    good = {"accuracy": torch.tensor(0.5)}
    arrivals = [sent("a", extras=good), sent("b", extras=wrong), sent("c", extras=good)]
    with pytest.raises(ReportError, match=r"client 'b' in round 4: accuracy"):
        gather(*arrivals)
    made, excluded = gather(*arrivals, policy="exclude")
    assert made.ids == ("a", "c")
    assert list(excluded) == ["b"]


def test_what_nobody_asked_for_harms_nobody():
    """One client sends something of its own, and the first one a table where a number belongs: only that one is left out."""
    good = {"accuracies": torch.tensor(0.5)}
    junk = {**good, "junk": torch.tensor([1.0, NAN])}
    table = {"accuracies": torch.tensor([0.5, 0.5, 0.5])}
    arrivals = [sent("a", extras=table), sent("b", extras=good), sent("c", extras=junk)]
    made, excluded = gather(*arrivals, policy="exclude", needs={"accuracies"})
    assert made.ids == ("b", "c")
    assert list(made.extras) == ["accuracies"]
    assert "has shape [3], not []" in excluded["a"]
    made, excluded = gather(sent("a"), sent("b"), policy="exclude", needs={"accuracies"})
    assert made is None
    assert "accuracies is missing" in excluded["a"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("accuracies", 7.0), ("accuracies", -0.1), ("gradient_norms", -3.0), ("squared_losses", -1.0)],
)
def test_an_extra_out_of_its_range(name, value):
    with pytest.raises(
        ReportError, match=f"client 'a' in round 4: {name} (must be from 0 to 1|cannot be negative)"
    ):
        gather(sent("a", extras={name: torch.tensor(value)}))

"""Single replies become columns, and columns become `Reports`; unusable replies are left out."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import pytest
import torch

from udjfl.errors import ReportError
from udjfl.methods import FedAvg, Reports
from udjfl.methods.collect import collect
from udjfl.methods.reports import NUMBER_FIELDS
from udjfl.training.limits import ReplyLimits
from udjfl.training.replies import ClientReply, stack_replies

NAN, INF = math.nan, math.inf


def make_reply(name: str, **changes: Any) -> ClientReply:
    values = {"loss": 0.5, "size": 10, "uncertainty": 0.1, "steps": 3} | changes
    numbers = {
        "losses": values["loss"],
        "sizes": values["size"],
        "uncertainties": values["uncertainty"],
        "steps": values["steps"],
    }
    return ClientReply(
        name,
        values.get("delta", torch.tensor([1.0, 2.0])),
        {key: float(value) for key, value in numbers.items() if value is not None},
        values.get("extras", {}),
    )


def gather(
    *replies: ClientReply,
    policy: str = "fail",
    ids: tuple[str, ...] = ("a", "b", "c"),
    needs: Collection[str] | None = None,
    numbers: Collection[str] = NUMBER_FIELDS,
    limits: ReplyLimits | None = None,
) -> tuple[Reports | None, dict[str, str]]:
    """Collect replies as a round does: the first error is raised, or all are rereordered."""
    extras = {name for one in replies for name in one.extras} if needs is None else needs
    stacked = stack_replies(
        replies,
        round=4,
        n_parameters=2,
        numbers=numbers,
        extras=extras,
        limits=limits,
    )
    errors = dict(stacked.errors)
    reports = None
    if stacked.deltas is not None:
        reports, _, unusable = collect(
            stacked.ids, stacked.deltas, stacked.columns, all_ids=ids, round=4, lr=0.2, momentum=0.9
        )
        errors |= unusable
    if errors and policy == "fail":
        raise next(iter(errors.values()))
    return reports, {name: str(error) for name, error in errors.items()}


def test_every_field_is_collected():
    reports, excluded = gather(
        make_reply(
            "c", delta=torch.tensor([3.0, 4.0]), loss=0.25, size=30, uncertainty=0.2, steps=5
        ),
        make_reply("a"),
    )
    assert excluded == {}
    assert reports.ids == ("a", "c")
    assert reports.deltas.tolist() == [[1, 2], [3, 4]]
    assert reports.losses.tolist() == [0.5, 0.25]
    assert reports.sizes.tolist() == [10, 30]
    assert reports.uncertainties.tolist() == [0.1, 0.2]
    assert reports.steps.tolist() == [3, 5]
    assert reports.client_indices.tolist() == [0, 2]  # among all three, though b did not report
    assert (reports.lr, reports.momentum, reports.round) == (0.2, 0.9, 4)


def test_reports_do_not_depend_on_the_order_of_replies():
    ids = tuple(f"client-{i}" for i in range(8, 12))
    arrivals = [make_reply(name, loss=float(i)) for i, name in enumerate(ids)]
    reports, _ = gather(*arrivals, ids=ids)
    reordered, _ = gather(*reversed(arrivals), ids=ids)
    assert reports.ids == reordered.ids == ids
    assert reports.losses.tolist() == reordered.losses.tolist() == [0, 1, 2, 3]
    assert reports.client_indices.tolist() == reordered.client_indices.tolist() == [0, 1, 2, 3]


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
def test_an_unusable_reply_is_an_error_under_the_policy_fail(field, changes):
    with pytest.raises(ReportError, match=f"client 'b' in round 4: {field}") as caught:
        gather(make_reply("a"), make_reply("b", **changes), make_reply("c"))
    assert (caught.value.client, caught.value.field, caught.value.round) == ("b", field, 4)


@pytest.mark.parametrize(("field", "changes"), UNUSABLE)
def test_an_unusable_reply_is_left_out_under_the_policy_exclude(field, changes):
    reports, excluded = gather(
        make_reply("a"), make_reply("b", **changes), make_reply("c", loss=0.75), policy="exclude"
    )
    assert reports.ids == ("a", "c")
    assert reports.losses.tolist() == [0.5, 0.75]
    assert reports.client_indices.tolist() == [0, 2]
    assert list(excluded) == ["b"]
    assert excluded["b"].startswith(f"client 'b' in round 4: {field}")


def test_without_a_usable_reply_there_are_no_reports_but_reasons():
    reports, excluded = gather(
        make_reply("a", loss=NAN), make_reply("b", uncertainty=0.0), policy="exclude"
    )
    assert reports is None
    assert set(excluded) == {"a", "b"}
    assert "losses" in excluded["a"]
    assert "uncertainties" in excluded["b"]


def test_without_replies_there_are_no_reports():
    assert gather() == (None, {})


def test_a_client_of_another_federation_is_refused():
    with pytest.raises(
        ReportError, match=r"client 'z' in round 4: .*does not belong to this federation"
    ):
        gather(make_reply("a"), make_reply("z"))
    reports, excluded = gather(make_reply("a"), make_reply("z"), policy="exclude")
    assert reports.ids == ("a",)
    assert list(excluded) == ["z"]


def test_a_second_reply_of_one_client_is_refused():
    with pytest.raises(ReportError, match=r"client 'a' in round 4: .*twice"):
        gather(make_reply("a"), make_reply("b"), make_reply("a", loss=9.0))
    reports, excluded = gather(
        make_reply("a"), make_reply("b"), make_reply("a", loss=9.0), policy="exclude"
    )
    assert reports.ids == ("a", "b")
    assert reports.losses.tolist() == [0.5, 0.5]
    assert "twice" in excluded["a"]


def test_extras_are_stacked_in_client_order():
    reports, _ = gather(
        make_reply("b", extras={"accuracy": torch.tensor(0.2), "pair": torch.tensor([3.0, 4.0])}),
        make_reply("a", extras={"accuracy": torch.tensor(0.1), "pair": torch.tensor([1.0, 2.0])}),
    )
    assert reports.extras["accuracy"].tolist() == pytest.approx([0.1, 0.2])
    assert reports.extras["pair"].tolist() == [[1, 2], [3, 4]]


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
    arrivals = [
        make_reply("a", extras=good),
        make_reply("b", extras=wrong),
        make_reply("c", extras=good),
    ]
    with pytest.raises(ReportError, match=r"client 'b' in round 4: accuracy"):
        gather(*arrivals)
    reports, excluded = gather(*arrivals, policy="exclude")
    assert reports.ids == ("a", "c")
    assert list(excluded) == ["b"]


def test_an_extra_that_was_not_requested_is_ignored():
    """Client c sends an unknown extra. Client a sends a table for a number, and is left out."""
    good = {"accuracies": torch.tensor(0.5)}
    junk = {**good, "junk": torch.tensor([1.0, NAN])}
    table = {"accuracies": torch.tensor([0.5, 0.5, 0.5])}
    arrivals = [
        make_reply("a", extras=table),
        make_reply("b", extras=good),
        make_reply("c", extras=junk),
    ]
    reports, excluded = gather(*arrivals, policy="exclude", needs={"accuracies"})
    assert reports.ids == ("b", "c")
    assert list(reports.extras) == ["accuracies"]
    assert "has shape [3], not []" in excluded["a"]
    reports, excluded = gather(
        make_reply("a"), make_reply("b"), policy="exclude", needs={"accuracies"}
    )
    assert reports is None
    assert "accuracies is missing" in excluded["a"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("accuracies", 7.0), ("accuracies", -0.1), ("gradient_norms", -3.0), ("squared_losses", -1.0)],
)
def test_an_extra_out_of_its_range_is_refused(name, value):
    with pytest.raises(
        ReportError, match=f"client 'a' in round 4: {name} (must be from 0 to 1|cannot be negative)"
    ):
        gather(make_reply("a", extras={name: torch.tensor(value)}))


def test_a_number_that_is_not_asked_for_is_left_out() -> None:
    reports, _ = gather(make_reply("a", loss=1.0), make_reply("b", loss=2.0), numbers=["losses"])
    assert reports.losses.tolist() == [1.0, 2.0]
    assert torch.isnan(reports.sizes).all()
    assert torch.isnan(reports.uncertainties).all()
    with pytest.raises(ReportError, match="sizes was left out"):
        FedAvg().aggregate({}, reports)


def test_a_number_that_is_asked_for_is_required() -> None:
    both = [make_reply("a"), make_reply("b", loss=None)]
    with pytest.raises(
        ReportError, match="client 'b' in round 4: losses is missing; the method needs it"
    ):
        gather(*both)
    reports, excluded = gather(*both, policy="exclude")
    assert (reports.ids, list(excluded)) == (("a",), ["b"])


def test_a_number_that_is_not_asked_for_is_not_checked() -> None:
    reports, _ = gather(make_reply("a", loss=-5.0, steps=2), numbers=["steps"])
    assert torch.isnan(reports.losses).all()
    assert reports.steps.tolist() == [2.0]


def test_an_update_longer_than_the_limit_is_refused() -> None:
    both = [
        make_reply("a", delta=torch.tensor([5.0, 0.0])),
        make_reply("b", delta=torch.tensor([5.1, 0.0])),
    ]
    with pytest.raises(
        ReportError, match=r"client 'b' in round 4: deltas has length 5.1, above max_update_norm, 5"
    ):
        gather(*both, limits=ReplyLimits(update_norm=5.0))
    assert gather(*both)[0].ids == ("a", "b")


def test_a_second_reply_replaces_an_unusable_first_one() -> None:
    reports, excluded = gather(
        make_reply("a", loss=NAN), make_reply("a", loss=0.75), make_reply("b"), policy="exclude"
    )
    assert reports.ids == ("a", "b")
    assert reports.losses.tolist() == [0.75, 0.5]
    assert "losses is nan" in excluded["a"]

"""Federations: their properties, fingerprints, and creation from arrays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from data_helpers import (
    grouped_federation,
    list_rows,
    make_client,
    make_examples,
    make_federation,
    row_set,
)

from udjfl.data import Client, Examples, Federation
from udjfl.errors import DataError


def test_properties_of_a_small_federation() -> None:
    federation = make_federation(
        make_client("client-10", 100, [1, 1]), make_client("client-2", 200, [0, 1, 1], share=0.25)
    )
    assert federation.ids == ("client-2", "client-10")  # sorted by number
    assert federation.sizes == (3, 2)  # train examples
    assert federation.n_classes == 2
    assert federation.input_shape == (2,)
    assert federation.describe() == [
        {"id": "client-2", "train": 3, "test": 2, "ambiguous_share": 0.25, "class_counts": [1, 2]},
        {"id": "client-10", "train": 2, "test": 2, "ambiguous_share": None, "class_counts": [0, 2]},
    ]


def test_federation_cannot_be_changed() -> None:
    federation = make_federation(make_client("a", 100))
    with pytest.raises(dataclasses.FrozenInstanceError):
        federation.name = "other"  # type: ignore[misc]


def test_examples_are_taken_in_the_given_order() -> None:
    taken = make_examples(0, [5, 6, 7]).take(np.array([2, 0]))
    assert taken.y.tolist() == [7, 5]
    assert taken.x[:, 0].tolist() == pytest.approx(
        [0.04, 0.0]
    )  # rows 2 and 0 start at 4/100 and 0/100
    assert len(taken) == 2


def test_repr_shows_sizes_not_values() -> None:
    assert repr(make_examples(0, [0, 1, 1])) == "Examples(x: [3, 2], y: [3])"
    assert len(repr(make_federation(make_client("a", 100)))) < 300


def test_one_client_one_class_and_one_train_example_are_allowed() -> None:
    lonely = Client("only", make_examples(100, [0]), make_examples(200, [0]))
    assert make_federation(lonely, class_names=("thing",), test=make_examples(900, [0])).sizes == (
        1,
    )


# The fingerprint --------------------------------------------------------------------------------


def test_fingerprint_does_not_depend_on_the_order_and_the_name() -> None:
    one = make_federation(make_client("a", 100), make_client("b", 200))
    other = make_federation(make_client("b", 200), make_client("a", 100), name="another name")
    assert one.fingerprint == other.fingerprint
    assert len(one.fingerprint) == 64


def test_every_change_of_the_data_changes_the_fingerprint() -> None:
    same = make_federation(make_client("a", 100), make_client("b", 200)).fingerprint
    changed = [
        make_federation(make_client("a", 100), make_client("c", 200)),  # an id
        make_federation(make_client("b", 100), make_client("a", 200)),  # the owners of the data
        make_federation(make_client("a", 100), make_client("b", 201)),  # features
        make_federation(make_client("a", 100), make_client("b", 200, [0, 0, 1])),  # one label
        make_federation(
            make_client("a", 100), make_client("b", 200), test=make_examples(901, [0, 1])
        ),
        make_federation(make_client("a", 100), make_client("b", 200), class_names=("no", "maybe")),
        make_federation(make_client("a", 100)),
    ]
    prints = {federation.fingerprint for federation in changed}
    assert same not in prints
    assert len(prints) == len(changed)


def test_fingerprint_depends_on_the_shape() -> None:
    flat, square = make_examples(0, [0, 1], features=4), make_examples(0, [0, 1], features=4)
    square = Examples(square.x.reshape(2, 2, 2), square.y)
    prints = {
        Federation(
            "s", (Client("a", part, part),), part, ("0", "1"), allow_duplicates=True
        ).fingerprint
        for part in (flat, square)
    }
    assert len(prints) == 2


# Own data ---------------------------------------------------------------------------------------

LISTS = {7: ([[1, 2], [3, 4]], [0, 2], [[5, 6]], [1])}


def test_lists_arrays_and_tensors_give_the_same_federation() -> None:
    test = ([[7, 8]], [0])
    numpy_form = {
        "7": tuple(np.array(part, dtype=np.float64) for part in LISTS[7])
    }  # labels as whole floats, too
    torch_form = {"7": tuple(torch.tensor(part) for part in LISTS[7])}
    half_form = {"7": tuple(torch.tensor(part, dtype=torch.bfloat16) for part in LISTS[7])}
    federations = [
        Federation.from_arrays(form, test=test)
        for form in (LISTS, numpy_form, torch_form, half_form)
    ]
    assert len({one.fingerprint for one in federations}) == 1
    assert federations[0].ids == ("7",)
    assert federations[0].class_names == ("0", "1", "2")  # the highest label of all parts is 2
    assert federations[0].name == "own data"
    assert federations[0].clients[0].train.x.dtype == torch.float32
    assert federations[0].clients[0].train.y.tolist() == [0, 2]
    assert federations[0].clients[0].ambiguous_share is None


def test_arrays_are_copied_and_may_be_read_only() -> None:
    x = np.array([[1.0, 2.0]], dtype=np.float32)
    y = np.array([0], dtype=np.int64)
    tensor = torch.tensor([[3.0, 4.0]], requires_grad=True)
    x.flags.writeable = False
    federation = Federation.from_arrays({"a": (x, y, tensor, y)}, test=([[5, 6]], [0]))
    before = federation.clients[0].train.y.clone()
    y[0] = 1
    assert torch.equal(federation.clients[0].train.y, before)


def test_class_names_may_include_classes_that_do_not_occur() -> None:
    federation = Federation.from_arrays(
        LISTS, test=([[7, 8]], [0]), class_names=["cat", "dog", "cow", "yak"], name="farm"
    )
    assert federation.n_classes == 4
    assert federation.describe()[0]["class_counts"] == [1, 0, 1, 0]
    assert federation.name == "farm"


def test_sensitive_attribute_belongs_to_train_examples() -> None:
    federation = grouped_federation({"a": [0, 1], "b": np.array([2, 0])})
    assert federation.has_groups
    assert [client.train.group.tolist() for client in federation.clients] == [[0, 1], [2, 0]]
    assert federation.clients[0].train.group.dtype == torch.int64
    assert federation.clients[0].test.group is None
    assert not grouped_federation(None).has_groups


def test_fingerprint_depends_on_the_sensitive_attribute() -> None:
    prints = {
        grouped_federation(g).fingerprint
        for g in (None, {"a": [0, 1], "b": [0, 1]}, {"a": [0, 1], "b": [1, 0]})
    }
    assert len(prints) == 3


def test_groups_stay_with_their_examples() -> None:
    examples = Examples(
        torch.arange(4.0).reshape(4, 1), torch.arange(4), torch.tensor([5, 6, 7, 8])
    )
    assert examples.take(np.array([2, 0])).group.tolist() == [7, 5]
    assert Examples.concatenate([examples, examples]).group.tolist() == [5, 6, 7, 8] * 2
    assert Examples.concatenate([examples, Examples(examples.x, examples.y)]).group is None
    assert examples.on(torch.device("cpu")) is examples


# Held-out examples ------------------------------------------------------------------------------


def test_held_out_examples_are_taken_from_the_train_part() -> None:
    federation = make_federation(
        make_client("a", 100, [0, 1] * 10), make_client("b", 200, [1, 0, 1, 1, 0])
    )
    split = federation.hold_out(0.2, seed=0)
    assert [len(client.held_out or ()) for client in split.clients] == [4, 1]
    assert split.sizes == (16, 4)
    for before, after in zip(federation.clients, split.clients, strict=True):
        assert after.held_out is not None
        assert not row_set(after.train) & row_set(after.held_out)
        assert row_set(after.train, after.held_out) == row_set(before.train)
        labels = {
            row: int(y) for row, y in zip(list_rows(before.train), before.train.y, strict=True)
        }
        for part in (after.train, after.held_out):  # in their order, with their labels
            rows = list_rows(part)
            assert rows == [row for row in list_rows(before.train) if row in rows]
            assert [labels[row] for row in rows] == part.y.tolist()
        assert row_set(after.test) == row_set(before.test)
        assert after.scored is after.held_out
        assert before.scored is before.train
    assert split.name == federation.name


@pytest.mark.parametrize(
    ("share", "size", "count"),
    # At least one, and one stays; a half of an odd number is rounded to the even one.
    [(0.2, 10, 2), (0.01, 10, 1), (0.5, 2, 1), (0.5, 5, 2), (0.26, 10, 3), (0.5, 3, 2)],
)
def test_how_many_are_held_out(share: float, size: int, count: int) -> None:
    (client,) = make_federation(make_client("a", 100, [0, 1] * size)).clients
    one = make_federation(Client("a", client.train.take(np.arange(size)), client.test))
    split = one.hold_out(share, seed=0).clients[0]
    assert split.held_out is not None
    assert (len(split.held_out), len(split.train)) == (count, size - count)


def test_what_is_held_out_depends_on_the_seed_and_the_client_alone() -> None:
    members = [make_client(name, start, [0, 1] * 20) for name, start in (("a", 100), ("b", 300))]
    federation = make_federation(*members)

    def held_out(federation: Federation, seed: int) -> list[set[bytes]]:
        return [row_set(client.held_out) for client in federation.hold_out(0.25, seed).clients]

    assert held_out(federation, 0) == held_out(federation, 0)
    assert held_out(federation, 0) != held_out(federation, 1)
    assert held_out(make_federation(members[1]), 0) == held_out(federation, 0)[1:]
    # Clients draw on their own: the same indices for both would be a coincidence.
    indices = [
        [n for n, row in enumerate(list_rows(client.train)) if row in chosen]
        for client, chosen in zip(federation.clients, held_out(federation, 0), strict=True)
    ]
    assert indices[0] != indices[1]


def test_nothing_is_held_out_by_default() -> None:
    federation = make_federation(make_client("a", 100))
    assert federation.clients[0].held_out is None
    assert federation.hold_out(0.0, seed=0) is federation


def test_groups_and_the_fingerprint_follow_the_train_part() -> None:
    federation = grouped_federation({"a": [3, 4], "b": [5, 6]})  # of labels 0 and 1
    split = federation.hold_out(0.3, seed=0)
    for client, groups in zip(split.clients, ([3, 4], [5, 6]), strict=True):
        assert client.held_out is not None
        for part in (client.train, client.held_out):
            assert part.group is not None
            assert part.group.tolist() == [groups[label] for label in part.y.tolist()]
    assert split.fingerprint != federation.fingerprint
    assert split.fingerprint == federation.hold_out(0.3, seed=0).fingerprint


def track_client(tracks: list[int]) -> Client:
    client = make_client("a", 100, [0, 1] * (len(tracks) // 2))
    train = dataclasses.replace(client.train, together=torch.tensor(tracks))
    return dataclasses.replace(client, train=train)


def test_examples_that_belong_together_are_held_out_together() -> None:
    federation = make_federation(track_client([0, 1, 2, 3, 4] * 4), make_client("b", 300))
    client = federation.hold_out(0.25, seed=0).clients[0]
    assert client.held_out is not None
    seen, held_out = client.train.together, client.held_out.together
    assert seen is not None
    assert held_out is not None
    assert (len(seen), len(held_out)) == (16, 4)
    assert len(set(held_out.tolist())) == 1
    assert not set(seen.tolist()) & set(held_out.tolist())


def test_a_single_track_cannot_be_held_out() -> None:
    with pytest.raises(DataError, match=r"'a' has train examples that belong together.*holdout=0"):
        make_federation(track_client([7] * 6)).hold_out(0.2, seed=0)


def test_one_train_example_cannot_be_held_out() -> None:
    lonely = Client("only", make_examples(100, [0]), make_examples(200, [0]))
    federation = make_federation(lonely, class_names=("thing",), test=make_examples(900, [0]))
    with pytest.raises(DataError, match=r"'only' has one train example.*holdout=0"):
        federation.hold_out(0.2, seed=0)


def test_validation_data_are_checked_and_fingerprinted() -> None:
    federation = grouped_federation(None, validation=([[8.0], [9.0]], [1, 0]))
    assert federation.validation.y.tolist() == [1, 0]
    assert federation.fingerprint != grouped_federation(None).fingerprint
    with pytest.raises(DataError, match="the server's validation set: labels go from 0 to 5"):
        grouped_federation(None, validation=([[8.0], [9.0]], [5, 0]), class_names="xy")
    with pytest.raises(
        DataError, match="the server's validation set: 1 of 1 examples are also test examples"
    ):
        grouped_federation(None, validation=([[7.0]], [0]))
    with pytest.raises(DataError, match="the server's validation set: give a tuple"):
        grouped_federation(None, validation=[[8.0]])

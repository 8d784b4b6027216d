"""A federation is checked once, when it is made, and lists every mistake."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl.data import Client, Examples, Federation
from udjfl.errors import DataError


def examples(start: float, labels: list[int], features: int = 2) -> Examples:
    """One row per label; rows with another `start` have other values."""
    rows = (
        start
        + torch.arange(len(labels) * features, dtype=torch.float32).reshape(len(labels), features)
        / 100
    )
    return Examples(rows, torch.tensor(labels, dtype=torch.int64))


def client(
    name: str, start: float, labels: list[int] | None = None, share: float | None = None
) -> Client:
    return Client(name, examples(start, labels or [0, 1, 1]), examples(start + 50, [0, 1]), share)


def federation(*clients: Client, test: Examples | None = None, **changes: Any) -> Federation:
    values = {
        "name": "small",
        "clients": clients,
        "test": examples(900, [0, 1]) if test is None else test,
        "class_names": ("no", "yes"),
    }
    return Federation(**{**values, **changes})


def mistakes(*clients: Client, **changes: Any) -> list[str]:
    with pytest.raises(DataError) as caught:
        federation(*clients, **changes)
    return str(caught.value).split("\n")


def test_the_properties_of_a_small_federation():
    made = federation(
        client("client-10", 100, [1, 1]), client("client-2", 200, [0, 1, 1], share=0.25)
    )
    assert made.ids == ("client-2", "client-10")  # sorted as people count
    assert made.sizes == (3, 2)  # train examples
    assert made.n_classes == 2
    assert made.input_shape == (2,)
    assert made.describe() == [
        {"id": "client-2", "train": 3, "test": 2, "ambiguous_share": 0.25, "class_counts": [1, 2]},
        {"id": "client-10", "train": 2, "test": 2, "ambiguous_share": None, "class_counts": [0, 2]},
    ]


def test_a_federation_cannot_be_changed():
    made = federation(client("a", 100))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "other"  # type: ignore[misc]


def test_examples_are_taken_in_the_order_asked():
    taken = examples(0, [5, 6, 7]).take(np.array([2, 0]))
    assert taken.y.tolist() == [7, 5]
    assert taken.x[:, 0].tolist() == pytest.approx(
        [0.04, 0.0]
    )  # rows 2 and 0 start at 4/100 and 0/100
    assert len(taken) == 2


def test_a_federation_prints_sizes_and_not_pixels():
    assert repr(examples(0, [0, 1, 1])) == "Examples(x: [3, 2], y: [3])"
    assert len(repr(federation(client("a", 100)))) < 300


def test_one_client_one_class_and_one_train_example_are_legal():
    lonely = Client("only", examples(100, [0]), examples(200, [0]))
    assert federation(lonely, class_names=("thing",), test=examples(900, [0])).sizes == (1,)


def test_one_client_with_labels_outside_a_single_class_is_not():
    found = mistakes(client("only", 100, [0, 1]), class_names=("thing",), test=examples(900, [0]))
    assert any(
        "client 'only', train part: labels go from 0 to 1: use 0 to 0" in line for line in found
    )


# The fingerprint -----------------------------------------------------------------------------------------------------


def test_equal_data_have_equal_fingerprints_whatever_the_order_and_the_name():
    one = federation(client("a", 100), client("b", 200))
    other = federation(client("b", 200), client("a", 100), name="another name")
    assert one.fingerprint == other.fingerprint
    assert len(one.fingerprint) == 64


def test_every_change_of_the_data_changes_the_fingerprint():
    same = federation(client("a", 100), client("b", 200)).fingerprint
    changed = [
        federation(client("a", 100), client("c", 200)),  # an id
        federation(client("b", 100), client("a", 200)),  # who holds what
        federation(client("a", 100), client("b", 201)),  # features
        federation(client("a", 100), client("b", 200, [0, 0, 1])),  # one label
        federation(client("a", 100), client("b", 200), test=examples(901, [0, 1])),
        federation(client("a", 100), client("b", 200), class_names=("no", "maybe")),
        federation(client("a", 100)),
    ]
    prints = {made.fingerprint for made in changed}
    assert same not in prints
    assert len(prints) == len(changed)


def test_shape_counts_for_the_fingerprint():
    flat, square = examples(0, [0, 1], features=4), examples(0, [0, 1], features=4)
    square = Examples(square.x.reshape(2, 2, 2), square.y)
    prints = {
        Federation(
            "s", (Client("a", part, part),), part, ("0", "1"), allow_duplicates=True
        ).fingerprint
        for part in (flat, square)
    }
    assert len(prints) == 2


# Mistakes ------------------------------------------------------------------------------------------------------------


def test_no_clients():
    assert mistakes() == ["there are no clients: give at least one"]


def test_ids_must_be_unique_and_not_empty():
    found = mistakes(client("a", 100), client("a", 200), client("", 300))
    assert found == [
        "a client's id is empty: give it a name",
        "client id 'a' is used 2 times: give every client its own id",
    ]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            Examples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)),
            "is empty: give at least one example",
        ),
        (Examples(torch.ones(3, 2), torch.tensor([0, 1])), "x has 3 rows and y has 2 labels"),
        (
            Examples(torch.ones(2, 2), torch.tensor([[0], [1]])),
            "y has shape (2, 1): give x as [n, features], y as [n]",
        ),
        (Examples(torch.ones(()), torch.tensor([1])), "x has shape ()"),
        (Examples(torch.ones(2), torch.tensor([0, 1])), "for one feature x.reshape(-1, 1)"),
        (
            Examples(torch.ones(2, 0), torch.tensor([0, 1])),
            "x has shape (2, 0): give [n, features]",
        ),
        (
            Examples(torch.ones(2, 2).double(), torch.tensor([0, 1])),
            "x is torch.float64, y is torch.int64",
        ),
        (
            Examples(torch.ones(2, 2), torch.tensor([0.0, 1.0])),
            "y is torch.float32: give float32 and int64",
        ),
        (
            Examples(torch.tensor([[1, torch.nan], [torch.inf, 1]]), torch.tensor([0, 1])),
            "2 of 2 examples have values",
        ),
        (Examples(torch.ones(2, 2), torch.tensor([-1, 1])), "labels go from -1 to 1: use 0 to 1"),
        (Examples(torch.ones(2, 2), torch.tensor([0, 2])), "labels go from 0 to 2: use 0 to 1"),
        (
            Examples(torch.ones(2, 3), torch.tensor([0, 1])),
            "one example has shape (3,), elsewhere (2,)",
        ),
    ],
)
def test_each_part_is_checked_and_named(part: Examples, words: str):
    good = client("good", 100)
    for place, held in (
        (
            "client 'bad', train part: ",
            {"clients": (good, Client("bad", part, examples(700, [0])))},
        ),
        ("client 'bad', test part: ", {"clients": (good, Client("bad", examples(700, [0]), part))}),
        ("the global test set: ", {"clients": (good,), "test": part}),
    ):
        found = mistakes(**held)
        assert len(found) == 1
        assert found[0].startswith(place)
        assert words in found[0]


def test_every_mistake_is_reported_at_once():
    broken = Client("b", examples(100, [0, 7]), examples(100, []), ambiguous_share=1.5)
    found = mistakes(
        client("a", 100),
        client("a", 300),
        broken,
        class_names=("x", "x"),
        test=examples(1, [0], features=5),
    )
    for words in (
        "'a' is used 2 times",
        "client 'b': ambiguous_share is 1.5",
        "class_names has 'x' more than once",
        "client 'b', train part: labels go from 0 to 7",
        "client 'b', test part: is empty",
        "the global test set: one example has shape (5,)",
    ):
        assert sum(words in line for line in found) == 1, words
    assert len(found) == 6


def test_class_names_must_not_be_empty():
    assert "class_names is empty: name at least one class" in mistakes(
        client("a", 100), class_names=()
    )


# An example on both sides --------------------------------------------------------------------------------------------


def test_a_train_example_must_not_be_a_test_example_of_anyone():
    a, b = client("a", 100), client("b", 200)
    # b is tested on the first two of a's three train examples; the global test has a's third and one of b's three.
    b = Client("b", b.train, a.train.take(np.array([0, 1])))
    shared = Examples.joined([a.train.take(np.array([2])), b.train.take(np.array([0]))])
    found = mistakes(a, b, test=shared)
    assert len(found) == 2
    assert "client 'a', train part: 3 of 3 examples are also test examples" in found[0]
    assert "2 in client 'b', test part; 1 in the global test set" in found[0]
    assert (
        "client 'b', train part: 1 of 3 examples are also test examples (1 in the global test set)"
        in found[1]
    )
    assert "allow_duplicates=True" in found[1]


def test_duplicates_can_be_allowed_and_may_differ_in_label():
    a = client("a", 100)
    twisted = Client("a", a.train, Examples(a.train.x, 1 - a.train.y))
    assert (
        "are also test examples" in mistakes(twisted)[0]
    )  # another label does not make it another example
    assert federation(twisted, allow_duplicates=True).sizes == (3,)


def test_copies_on_one_side_are_no_mistake():
    a = client("a", 100)
    # Two clients train on the same examples, and both the client and the world are tested on the same examples.
    assert federation(a, Client("b", a.train, a.test), test=a.test).sizes == (3, 3)


def test_duplicates_are_found_in_views_that_are_not_contiguous():
    wide = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    train = Examples(wide[:, ::2], torch.tensor([0, 1, 1]))
    test = Examples(wide[1:2, ::2].clone(), torch.tensor([1]))
    assert "1 of 3 examples" in mistakes(Client("a", train, test))[0]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_duplicates_are_found_exactly_when_there_are_any(data: st.DataObject):
    value = st.integers(0, 30)
    train, test = (
        data.draw(st.lists(value, min_size=1, max_size=6)),
        data.draw(st.lists(value, min_size=1, max_size=6)),
    )
    arrays = {"a": ([[v] for v in train], [0] * len(train), [[v] for v in test], [0] * len(test))}
    count = sum(v in test for v in train)
    if count == 0:
        assert Federation.from_arrays(arrays, test=([[99]], [0])).sizes == (len(train),)
    else:
        with pytest.raises(
            DataError, match=f"{count} of {len(train)} examples are also test examples"
        ):
            Federation.from_arrays(arrays, test=([[99]], [0]))


# Own data ------------------------------------------------------------------------------------------------------------

LISTS = {7: ([[1, 2], [3, 4]], [0, 2], [[5, 6]], [1])}


def test_lists_arrays_and_tensors_give_the_same_federation():
    test = ([[7, 8]], [0])
    numpy_form = {
        "7": tuple(np.array(part, dtype=np.float64) for part in LISTS[7])
    }  # labels as whole floats, too
    torch_form = {"7": tuple(torch.tensor(part) for part in LISTS[7])}
    half_form = {"7": tuple(torch.tensor(part, dtype=torch.bfloat16) for part in LISTS[7])}
    made = [
        Federation.from_arrays(form, test=test)
        for form in (LISTS, numpy_form, torch_form, half_form)
    ]
    assert len({one.fingerprint for one in made}) == 1
    assert made[0].ids == ("7",)
    assert made[0].class_names == ("0", "1", "2")  # the highest label of all parts is 2
    assert made[0].name == "own data"
    assert made[0].clients[0].train.x.dtype == torch.float32
    assert made[0].clients[0].train.y.tolist() == [0, 2]
    assert made[0].clients[0].ambiguous_share is None


def test_own_arrays_are_copied_and_may_be_read_only():
    x = np.array([[1.0, 2.0]], dtype=np.float32)
    y = np.array([0], dtype=np.int64)
    tensor = torch.tensor([[3.0, 4.0]], requires_grad=True)
    x.flags.writeable = False
    made = Federation.from_arrays({"a": (x, y, tensor, y)}, test=([[5, 6]], [0]))
    before = made.clients[0].train.y.clone()
    y[0] = 1
    assert torch.equal(made.clients[0].train.y, before)


def test_own_class_names_may_name_classes_that_do_not_occur():
    made = Federation.from_arrays(
        LISTS, test=([[7, 8]], [0]), class_names=["cat", "dog", "cow", "yak"], name="farm"
    )
    assert made.n_classes == 4
    assert made.describe()[0]["class_counts"] == [1, 0, 1, 0]
    assert made.name == "farm"


@pytest.mark.parametrize(
    ("clients", "test", "words"),
    [
        (
            {"a": ([[1]], [0])},
            ([[9]], [0]),
            "client 'a': give a tuple (x_train, y_train, x_test, y_test); got 2 values",
        ),
        (
            {"a": np.zeros((4, 2))},
            ([[9]], [0]),
            "client 'a': give a tuple (x_train, y_train, x_test, y_test); got ndarray",
        ),
        (
            {"a": ([[1]], [0], [[2]], [0])},
            ([[9]],),
            "the global test set: give a tuple (x, y); got 1 values",
        ),
        (
            {"a": ([[1], [2, 3]], [0, 1], [[2]], [0])},
            ([[9]], [0]),
            "client 'a', train part: x has rows of different",
        ),
        (
            {"a": ([["red"]], [0], [[2]], [0])},
            ([[9]], [0]),
            "client 'a', train part: x has values of type <U3",
        ),
        (
            {"a": ([[1]], ["cat"], [[2]], [0])},
            ([[9]], [0]),
            "client 'a', train part: y has values of type <U3",
        ),
        (
            {"a": ([[1]], [0], [[2]], [0.5])},
            ([[9]], [0]),
            "client 'a', test part: y has values that are not whole",
        ),
        (
            {"a": ([[1]], [0], [[2]], [np.nan])},
            ([[9]], [0]),
            "client 'a', test part: y has values that are not whole",
        ),
        (
            {"a": ([[1]], [0], [[2]], [np.inf])},
            ([[9]], [0]),
            "client 'a', test part: y has values that are not whole",
        ),
        (
            {"a": ([[1]], [0], [[2]], [0])},
            ([[1e300]], [0]),
            "the global test set: 1 of 1 examples have values that are not",
        ),
        (
            {"a": ([[1]], [-1], [[2]], [0])},
            ([[9]], [0]),
            "client 'a', train part: labels go from -1 to -1: use 0 to 0",
        ),
        (
            {"a": ([[1]], [10**12], [[2]], [0])},
            ([[9]], [0]),
            "the highest label is 1000000000000: number the classes",
        ),
        ({"a": ([], [], [[2]], [0])}, ([[9]], [0]), "client 'a', train part: is empty"),
        (
            {1: ([[1]], [0], [[2]], [0]), "1": ([[3]], [0], [[4]], [0])},
            ([[9]], [0]),
            "client id '1' is used 2 times",
        ),
        (
            {1.5: ([[1]], [0], [[2]], [0])},
            ([[9]], [0]),
            "client id 1.5: give a text or a whole number",
        ),
        (
            {True: ([[1]], [0], [[2]], [0])},
            ([[9]], [0]),
            "client id True: give a text or a whole number",
        ),
        ({}, ([[9]], [0]), "there are no clients"),
        (
            [([[1]], [0], [[2]], [0])],
            ([[9]], [0]),
            "clients: give a mapping {id: (x_train, y_train, x_test, y_test)}",
        ),
    ],
)
def test_own_data_that_cannot_be_used(clients: Any, test: Any, words: str):
    with pytest.raises(DataError) as caught:
        Federation.from_arrays(clients, test=test)
    assert words in str(caught.value)


def test_own_data_reports_what_does_not_convert_and_what_is_wrong_with_the_rest():
    arrays = {"a": ([["x"]], [0], [[2]], [0, 1]), "b": ([[1]], [0])}
    with pytest.raises(DataError) as caught:
        Federation.from_arrays(arrays, test=([[float("inf")]], [0]))
    found = str(caught.value).split("\n")
    assert len(found) == 4
    for words in (
        "train part: x has values",
        "got 2 values",
        "x has 1 rows and y has 2 labels",
        "not finite",
    ):
        assert any(words in line for line in found), words


# --- the sensitive attribute, and the server's own data


def grouped(groups: object, **more: Any) -> Federation:
    clients = {
        "a": ([[1.0], [2.0]], [0, 1], [[3.0]], [0]),
        "b": ([[4.0], [5.0]], [0, 1], [[6.0]], [1]),
    }
    return Federation.from_arrays(clients, test=([[7.0]], [0]), sensitive=groups, **more)


def test_a_sensitive_attribute_belongs_to_train_examples() -> None:
    federation = grouped({"a": [0, 1], "b": np.array([2, 0])})
    assert federation.has_groups
    assert [client.train.group.tolist() for client in federation.clients] == [[0, 1], [2, 0]]
    assert federation.clients[0].train.group.dtype == torch.int64
    assert federation.clients[0].test.group is None
    assert not grouped(None).has_groups


def test_a_sensitive_attribute_is_part_of_the_data() -> None:
    prints = {
        grouped(g).fingerprint
        for g in (None, {"a": [0, 1], "b": [0, 1]}, {"a": [0, 1], "b": [1, 0]})
    }
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"a": [0, 1]}, "client 'b': has no sensitive attribute, others have"),
        (
            {"a": [0, 1], "b": [0]},
            "client 'b': the sensitive attribute is .* one per train example",
        ),
        (
            {"a": [0, -1], "b": [0, 1]},
            "client 'a': the sensitive attribute has -1: number the groups from 0",
        ),
        ({"a": [0, 1], "b": [0, 1], "c": [0]}, "sensitive: there is no client 'c'"),
        ({"a": [0.5, 1], "b": [0, 1]}, "client 'a', sensitive attribute"),
        ([0, 1], "sensitive: give a mapping"),
    ],
)
def test_a_bad_sensitive_attribute(groups: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        grouped(groups)


def test_groups_go_where_their_examples_go() -> None:
    examples = Examples(
        torch.arange(4.0).reshape(4, 1), torch.arange(4), torch.tensor([5, 6, 7, 8])
    )
    assert examples.take(np.array([2, 0])).group.tolist() == [7, 5]
    assert Examples.joined([examples, examples]).group.tolist() == [5, 6, 7, 8] * 2
    assert Examples.joined([examples, Examples(examples.x, examples.y)]).group is None
    assert examples.on(torch.device("cpu")) is examples


def test_the_servers_validation_data() -> None:
    federation = grouped(None, validation=([[8.0], [9.0]], [1, 0]))
    assert federation.validation.y.tolist() == [1, 0]
    assert federation.fingerprint != grouped(None).fingerprint
    with pytest.raises(DataError, match="the server's validation set: labels go from 0 to 5"):
        grouped(None, validation=([[8.0], [9.0]], [5, 0]), class_names="xy")
    with pytest.raises(
        DataError, match="the server's validation set: 1 of 1 examples are also test examples"
    ):
        grouped(None, validation=([[7.0]], [0]))
    with pytest.raises(DataError, match="the server's validation set: give a tuple"):
        grouped(None, validation=[[8.0]])

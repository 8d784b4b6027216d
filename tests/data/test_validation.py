"""A federation lists every mistake in its data when it is created."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import grouped_federation, make_client, make_examples, make_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl.data import Client, Examples, Federation
from udjfl.errors import DataError


def find_mistakes(*clients: Client, **changes: Any) -> list[str]:
    with pytest.raises(DataError) as caught:
        make_federation(*clients, **changes)
    return str(caught.value).split("\n")


# Mistakes ---------------------------------------------------------------------------------------


def test_no_clients_are_a_mistake() -> None:
    assert find_mistakes() == ["there are no clients: give at least one"]


def test_ids_must_be_unique_and_not_empty() -> None:
    mistakes = find_mistakes(make_client("a", 100), make_client("a", 200), make_client(" ", 300))
    assert mistakes == [
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
            "y is torch.float32: give float32 (or integers) and int64",
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
def test_each_part_is_checked_and_named(part: Examples, words: str) -> None:
    good = make_client("good", 100)
    for prefix, changes in (
        (
            "client 'bad', train part: ",
            {"clients": (good, Client("bad", part, make_examples(700, [0])))},
        ),
        (
            "client 'bad', test part: ",
            {"clients": (good, Client("bad", make_examples(700, [0]), part))},
        ),
        ("the global test set: ", {"clients": (good,), "test": part}),
    ):
        mistakes = find_mistakes(**changes)
        assert len(mistakes) == 1
        assert mistakes[0].startswith(prefix)
        assert words in mistakes[0]


def test_every_mistake_is_reported_at_once() -> None:
    broken = Client("b", make_examples(100, [0, 7]), make_examples(100, []), ambiguous_share=1.5)
    mistakes = find_mistakes(
        make_client("a", 100),
        make_client("a", 300),
        broken,
        class_names=("x", "x"),
        test=make_examples(1, [0], features=5),
    )
    for words in (
        "'a' is used 2 times",
        "client 'b': ambiguous_share is 1.5",
        "class_names has 'x' more than once",
        "client 'b', train part: labels go from 0 to 7",
        "client 'b', test part: is empty",
        "the global test set: one example has shape (5,)",
    ):
        assert sum(words in line for line in mistakes) == 1, words
    assert len(mistakes) == 6


def test_class_names_must_not_be_empty() -> None:
    assert "class_names is empty: name at least one class" in find_mistakes(
        make_client("a", 100), class_names=()
    )


def test_labels_outside_a_single_class_are_a_mistake() -> None:
    mistakes = find_mistakes(
        make_client("only", 100, [0, 1]), class_names=("thing",), test=make_examples(900, [0])
    )
    assert any(
        "client 'only', train part: labels go from 0 to 1: use 0 to 0" in line for line in mistakes
    )


# An example on both sides -----------------------------------------------------------------------


def test_train_example_must_not_be_a_test_example_of_any_client() -> None:
    a, b = make_client("a", 100), make_client("b", 200)
    # b is tested on the first two of a's three train examples; the global test has a's third and
    # one of b's three.
    b = Client("b", b.train, a.train.take(np.array([0, 1])))
    shared = Examples.concatenate([a.train.take(np.array([2])), b.train.take(np.array([0]))])
    mistakes = find_mistakes(a, b, test=shared)
    assert len(mistakes) == 2
    assert "client 'a', train part: 3 of 3 examples are also test examples" in mistakes[0]
    assert "2 in client 'b', test part; 1 in the global test set" in mistakes[0]
    assert (
        "client 'b', train part: 1 of 3 examples are also test examples (1 in the global test set)"
        in mistakes[1]
    )
    assert "allow_duplicates=True" in mistakes[1]


def test_duplicates_can_be_allowed_and_may_differ_in_label() -> None:
    a = make_client("a", 100)
    twisted = Client("a", a.train, Examples(a.train.x, 1 - a.train.y))
    assert (
        "are also test examples" in find_mistakes(twisted)[0]
    )  # another label does not make it another example
    assert make_federation(twisted, allow_duplicates=True).sizes == (3,)


def test_copies_on_one_side_are_no_mistake() -> None:
    a = make_client("a", 100)
    # Two clients train on the same examples, and the client and the global test set share others.
    assert make_federation(a, Client("b", a.train, a.test), test=a.test).sizes == (3, 3)


def test_duplicates_are_found_in_views_that_are_not_contiguous() -> None:
    wide = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    train = Examples(wide[:, ::2], torch.tensor([0, 1, 1]))
    test = Examples(wide[1:2, ::2].clone(), torch.tensor([1]))
    assert "1 of 3 examples" in find_mistakes(Client("a", train, test))[0]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_duplicates_are_found_exactly_when_there_are_any(data: st.DataObject) -> None:
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
def test_unusable_arrays_are_refused(clients: Any, test: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        Federation.from_arrays(clients, test=test)
    assert words in str(caught.value)


def test_parts_that_convert_are_checked_although_others_do_not() -> None:
    arrays = {"a": ([["x"]], [0], [[2]], [0, 1]), "b": ([[1]], [0])}
    with pytest.raises(DataError) as caught:
        Federation.from_arrays(arrays, test=([[float("inf")]], [0]))
    mistakes = str(caught.value).split("\n")
    assert len(mistakes) == 4
    for words in (
        "train part: x has values",
        "got 2 values",
        "x has 1 rows and y has 2 labels",
        "not finite",
    ):
        assert any(words in line for line in mistakes), words


@pytest.mark.parametrize(
    ("groups", "words"),
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
def test_wrong_sensitive_attribute_is_refused(groups: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        grouped_federation(groups)


def test_values_that_are_no_numbers_name_their_columns() -> None:
    x, y = np.zeros((3, 8)), np.array([0, 1, 0])
    x[0, 2] = x[2, 2] = np.nan
    with pytest.raises(DataError, match=r"client 'a', train part: 2 of 3 .*\(column 2,"):
        Federation.from_arrays({"a": (x, y, x[1:2], y[:1])}, test=(np.ones((1, 8)), y[:1]))
    x[1] = np.inf
    with pytest.raises(DataError, match=r"\(columns 0, 1, 2, 3, 4 and 3 more, counted from 0\)"):
        Federation.from_arrays({"a": (x, y, np.ones((1, 8)), y[:1])}, test=(np.ones((1, 8)), y[:1]))

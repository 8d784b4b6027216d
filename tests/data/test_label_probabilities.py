"""Known distributions of labels: made, checked, and kept with the examples they belong to."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import make_examples, make_federation

from udjfl.data import Client, Examples, Federation
from udjfl.data._label_probabilities import (
    find_distribution_problems,
    label_frequencies,
    normalise,
    one_hot,
)
from udjfl.errors import DataError


def with_rows(examples: Examples, *rows: list[float]) -> Examples:
    return Examples(examples.x, examples.y, label_probabilities=torch.tensor(rows))


def two_rows(start: float = 0) -> Examples:
    return with_rows(make_examples(start, [0, 1]), [0.75, 0.25], [0.5, 0.5])


def make_client(name: str, start: float, test: Examples | None = None) -> Client:
    own = two_rows(start + 50) if test is None else test
    return Client(name, make_examples(start, [0, 1, 1]), own)


# Making -----------------------------------------------------------------------------------------


def test_distributions_by_hand() -> None:
    assert one_hot(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    drawn = np.array([[0, 0, 1, 2], [1, 1, 1, 1]], dtype=np.uint8)
    assert label_frequencies(drawn, 3).tolist() == [[0.5, 0.25, 0.25], [0, 1, 0]]
    stored = normalise(np.array([[0.5, 0.25], [0.1, 0.3]], dtype=np.float16))
    assert stored.dtype == torch.float32
    assert stored.tolist()[0] == pytest.approx([2 / 3, 1 / 3])
    assert stored.sum(dim=1).tolist() == pytest.approx([1, 1])


def test_certain_labels() -> None:
    certain = make_examples(0, [1, 0]).with_certain_labels(2)
    assert certain.label_probabilities is not None
    assert certain.label_probabilities.tolist() == [[0, 1], [1, 0]]
    assert certain.label_probabilities.dtype == torch.float32


# Checking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[0.5, 0.5]], r"of shape \(1, 2\): give float32 \[examples, classes\], \[2, 2\]"),
        ([[1.0], [1.0]], r"of shape \(2, 1\)"),
        ([[0.5, 0.5], [1.5, -0.5]], "of 1 of 2 examples have values that are not from 0 to 1"),
        ([[0.5, 0.5], [float("nan"), 1.0]], "of 1 of 2 examples have values"),
        ([[0.5, 0.5], [float("inf"), 0.0]], "of 1 of 2 examples have values"),
        ([[0.5, 0.4], [0.5, 0.5]], r"of 1 of 2 examples do not sum to 1 \(the first to 0\.9000\)"),
    ],
)
def test_wrong_distributions_are_refused(rows: list[list[float]], words: str) -> None:
    wrong = with_rows(make_examples(300, [0, 1]), *rows)
    with pytest.raises(DataError, match=rf"client 'b', test part: label_probabilities .*{words}"):
        make_federation(make_client("a", 100), make_client("b", 200, wrong))


def test_type_is_checked_and_rounding_is_not() -> None:
    exact = torch.tensor([[0.1] * 10, [0.0] * 9 + [1.0]])
    assert find_distribution_problems(exact, 2, 10) == []
    assert "is torch.float64" in find_distribution_problems(exact.double(), 2, 10)[0]
    # Float16, summed in float32, is off by more than rounding: `normalise` first.
    half = torch.full((1, 10), 1 / 10 + 1e-4)
    assert find_distribution_problems(half, 1, 10)


def test_shared_parts_are_checked_too() -> None:
    wrong = with_rows(make_examples(900, [0, 1]), [1.0, 1.0], [0.5, 0.5])
    with pytest.raises(DataError, match="the global test set: label_probabilities of 1 of 2"):
        make_federation(make_client("a", 100), test=wrong)


# Keeping ----------------------------------------------------------------------------------------


def rows_of(examples: Examples) -> Any:
    assert examples.label_probabilities is not None
    return examples.label_probabilities.tolist()


def test_distributions_stay_with_their_examples() -> None:
    both = two_rows()
    assert rows_of(both.take(np.array([1, 0, 1]))) == [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]]
    moved = both.on(torch.device("meta")).label_probabilities
    assert moved is not None
    assert moved.device.type == "meta"
    assert rows_of(pickle.loads(pickle.dumps(both))) == rows_of(both)
    joined = Examples.concatenate([both.take(np.array([1])), both])
    assert rows_of(joined) == [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]]
    one, two = Examples.lay_out([both.take(np.array([1])), both])
    assert rows_of(one) == [[0.5, 0.5]]
    assert rows_of(two) == rows_of(both)
    # Laid out, they are joined without a copy.
    again = Examples.concatenate([one, two]).label_probabilities
    assert again is not None
    assert again.data_ptr() == one.label_probabilities.data_ptr()  # type: ignore[union-attr]


def test_parts_with_and_without_distributions() -> None:
    known, unknown = two_rows(), make_examples(100, [0, 1])
    assert Examples.concatenate([known, unknown]).label_probabilities is None
    one, two = Examples.lay_out([known, unknown])
    assert rows_of(one) == rows_of(known)
    assert two.label_probabilities is None
    assert known.take(np.array([0])).group is None


def test_pickled_part_does_not_carry_the_whole_federation() -> None:
    wide = Examples(torch.zeros(1000, 2), torch.zeros(1000, dtype=torch.int64))
    part = Examples.lay_out([wide.with_certain_labels(2), two_rows()])[1]
    assert len(pickle.dumps(part)) < 4000


def test_federation_keeps_them_and_its_fingerprint() -> None:
    clients = make_client("b", 200), make_client("a", 100)
    known = make_federation(*clients, test=two_rows(900))
    bare = [Client(c.id, c.train, Examples(c.test.x, c.test.y), c.ambiguous_share) for c in clients]
    unknown = make_federation(*bare, test=make_examples(900, [0, 1]))
    assert known.fingerprint == unknown.fingerprint
    for part in (*(client.test for client in known.clients), known.test):
        assert rows_of(part) == [[0.75, 0.25], [0.5, 0.5]]
    assert known.clients[0].train.label_probabilities is None
    assert all(client.test.label_probabilities is None for client in unknown.clients)


# Own data ---------------------------------------------------------------------------------------

ARRAYS = {
    "a": ([[1.0], [2.0]], [0, 1], [[3.0]], [0]),
    7: ([[4.0], [5.0]], [0, 1], [[6.0]], [1]),
}


def test_own_arrays_may_have_them_for_some_clients() -> None:
    federation = Federation.from_arrays(
        ARRAYS, test=([[7.0]], [0]), label_probabilities={7: [[0.25, 0.75]]}
    )
    by_id = {client.id: client.test.label_probabilities for client in federation.clients}
    assert by_id["a"] is None
    assert by_id["7"] is not None
    assert by_id["7"].tolist() == [[0.25, 0.75]]
    plain = Federation.from_arrays(ARRAYS, test=([[7.0]], [0]))
    assert plain.fingerprint == federation.fingerprint


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([[0.5, 0.5]], r"label_probabilities: give a mapping \{id: a row"),
        ({"c": [[0.5, 0.5]]}, "label_probabilities: there is no client 'c'"),
        ({"a": [["x", "y"]]}, "client 'a', label_probabilities has values of type"),
        ({"a": [[0.5, 0.5], [1.0]]}, "client 'a', label_probabilities has rows of different"),
        ({"a": [[0.5, 0.6]]}, "client 'a', test part: label_probabilities of 1 of 1"),
        ({"a": [0.5, 0.5]}, r"client 'a', test part: label_probabilities is .* of shape \(2,\)"),
    ],
)
def test_own_arrays_are_checked(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Federation.from_arrays(ARRAYS, test=([[7.0]], [0]), label_probabilities=given)

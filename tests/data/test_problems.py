"""Problems of arrays, and of any federation: sentences that name client and column."""

from __future__ import annotations

import numpy as np
import pytest

from udjfl.data import Federation

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def make_arrays(seed: int) -> Arrays:
    """Draw 30 train and 10 test examples with 4 features; the first tells the class, mostly."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 4))
    y = (x[:, 0] + rng.normal(size=40) > 0).astype(np.int64)
    return x[:30], y[:30], x[30:], y[30:]


def find_problems(north: Arrays, south: Arrays) -> list[str]:
    x, y, *_ = make_arrays(2)
    return Federation.from_arrays({"north": north, "south": south}, test=(x, y)).problems


def test_sound_arrays_have_no_problems() -> None:
    assert find_problems(make_arrays(0), make_arrays(1)) == []


def test_constant_columns_of_arrays_are_named() -> None:
    north, south = make_arrays(0), make_arrays(1)
    south[0][:, 3] = 7
    problem = "client 'south', column '3': constant in the train part: it tells nothing there"
    assert find_problems(north, south) == [problem]
    north[0][:, 3] = 7
    assert find_problems(north, south) == ["column '3': constant in the train parts of all clients"]


@pytest.mark.parametrize("names", [("south",), ("north", "south")])
def test_labels_among_the_features_of_arrays_are_found(names: tuple[str, ...]) -> None:
    clients = {"north": make_arrays(0), "south": make_arrays(1)}
    for name in names:
        x, y, *_ = clients[name]
        x[:, 2] = 3 * y + 1
    (problem,) = find_problems(**clients)
    who = "client 'south', column '2': it" if len(names) == 1 else "column '2'"
    assert problem.startswith(f"{who} alone predicts 100.0% of 'y' in the train part")


def test_one_class_of_arrays_names_the_client() -> None:
    x, y, *test = make_arrays(1)
    (problem,) = find_problems(make_arrays(0), (x, np.zeros_like(y), *test))
    assert problem.startswith("client 'south': one class only ('0') in the train part")


def test_long_vectors_and_images_have_no_columns() -> None:
    def make(shape: tuple[int, ...]) -> list[str]:
        rng = np.random.default_rng(0)
        parts = [np.zeros((n, *shape), dtype=np.float32) for n in (30, 10)]
        for part in parts:
            part[:, 0] = rng.normal(size=part[:, 0].shape)
        y = rng.integers(0, 2, 40)
        client = (parts[0], y[:30], parts[1], y[30:])
        test = (rng.normal(size=(5, *shape)), y[:5])
        return Federation.from_arrays({"a": client}, test=test).problems

    assert make((257,)) == make((4, 4)) == []
    assert len(make((256,))) == 11  # ten, and how many there are beside them

"""Problems of arrays, and of any federation: sentences that name client and column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from udjfl.data import Federation
from udjfl.data.problems import find_small_test_parts, find_tiny_clients

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


def test_small_clients_are_named_with_what_would_help() -> None:
    frames = {
        name: pd.DataFrame({"x": range(n), "y": [i % 2 for i in range(n)]})
        for name, n in (("large", 200), ("medium", 60), ("small", 50), ("tiny", 3))
    }
    federation = Federation.from_frames(frames, target="y")
    assert find_tiny_clients(federation) == [
        "client 'tiny' has 2 train rows and 1 test row: too few to train, to judge or to measure "
        "its uncertainty; leave it out or join it with another client"
    ]
    assert find_small_test_parts(federation) == [
        "client 'medium': 12 test rows, so one row is 8.3 points; fewer than 30 tell little "
        "(--test-share 0.5 gives 30)",
        "client 'small': 10 test rows, so one row is 10.0 points; fewer than 30 tell little",
    ]


def test_tiny_clients_are_a_warning_before_training(caplog: pytest.LogCaptureFixture) -> None:
    frames = {
        name: pd.DataFrame({"x": range(n), "y": [i % 2 for i in range(n)]})
        for name, n in (("medium", 60), ("tiny", 3))
    }
    Federation.from_frames(frames, target="y")
    assert "client 'tiny' has 2 train rows and 1 test row" in caplog.text
    assert "12 test rows" not in caplog.text  # the results say so

"""The rows of the main table are the paper's, each with the paper's parameters."""

from __future__ import annotations

from typing import Any

import pytest

from udjfl.methods import FedAvg
from udjfl.paper.paper_rows import (
    DISCARDED,
    DIVIDES_BY_ZERO,
    ONE_BETA,
    OWN_DATA,
    PaperRow,
    paper_rows,
)
from udjfl.paper.profiles import PROFILES
from udjfl.paper.published import TITLE, published_results

# Method and parameters of each row, by the paper's label; other parameters have their defaults.
PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {"weights": "size"}),
    "PropFair: M=3": ("propfair", {"M": 3}),
    "q-FedAvg: q=0": ("qffl", {"q": 0, "lipschitz": "paper", "weights": "uniform"}),
    "q-FedAvg: q=0.1": ("qffl", {"q": 0.1, "lipschitz": "paper", "weights": "uniform"}),
    "UDJ-FL: beta=0, gamma=0": ("udj", {"theory": "utilitarian", "beta": 0, "gamma": 0}),
    "UDJ-FL: beta=0.1, gamma=0": ("udj", {"theory": "utilitarian", "beta": 0.1, "gamma": 0}),
    "UDJ-FL: beta=0, gamma=-1": ("udj", {"theory": "utilitarian", "beta": 0, "gamma": -1}),
    "UDJ-FL: beta=0.1, gamma=-1": ("udj", {"theory": "utilitarian", "beta": 0.1, "gamma": -1}),
    "TERM": ("term", {"t": 0.01}),
    "FedMGDA+": ("fedmgda", {"epsilon": 0.5}),
    "UDJ-FL: beta=1, gamma=0": ("udj", {"theory": "egalitarian", "beta": 1, "gamma": 0}),
    "UDJ-FL: beta=1, gamma=1": ("udj", {"theory": "egalitarian", "beta": 1, "gamma": 1}),
    "PropFair: M=2": ("propfair", {"M": 2}),
    "AFL": ("afl", {}),
    "q-FedAvg: q=5": ("qffl", {"q": 5, "lipschitz": "paper", "weights": "uniform"}),
    "UDJ-FL: beta=5, gamma=0": ("udj", {"theory": "rawls", "beta": 5, "gamma": 0}),
    "UDJ-FL: beta=5, gamma=1": ("udj", {"theory": "rawls", "beta": 5, "gamma": 1}),
    "CFFL": ("cffl", {"alpha": 2}),
    # No number: desert has one beta for each client.
    "UDJ-FL: beta=per-client, gamma=-1": ("udj", {"theory": "desert", "beta": None, "gamma": -1}),
    "UDJ-FL: beta=per-client, gamma=0": ("udj", {"theory": "desert", "beta": None, "gamma": 0}),
}


def rows(profile: str) -> dict[str, PaperRow]:
    return {row.label: row for row in paper_rows(PROFILES[profile])}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("data", TITLE)
def test_the_rows_are_the_published_ones_in_their_order(profile, data):
    made = [(row.theory, row.label) for row in paper_rows(PROFILES[profile])]
    assert made == list(published_results(data))
    assert len(made) == 20


@pytest.mark.parametrize("profile", PROFILES)
def test_no_two_rows_are_one_method(profile):
    methods = [row.method for row in paper_rows(PROFILES[profile])]
    assert len(set(methods)) == len(methods)


@pytest.mark.parametrize("label", PARAMETERS)
def test_parameters_of_each_row(label):
    name, params = PARAMETERS[label]
    method = rows("paper")[label].method
    assert method.name == name
    assert {key: method.params[key] for key in params} == params


def test_in_the_paper_every_step_of_ours_is_safe_and_nothing_needs_a_note():
    made = rows("paper")
    assert {row.method.params["step"] for row in made.values() if row.method.name == "udj"} == {
        "safe"
    }
    assert [row.note for row in made.values() if row.note] == []


def test_the_authors_step_except_where_it_divides_by_zero():
    """The code divides by p - 1: 0 for egalitarian, and for utilitarian with beta = 0."""
    made = {label: row for label, row in rows("authors").items() if row.method.name == "udj"}
    undefined = {label for label, row in made.items() if row.note == DIVIDES_BY_ZERO}
    assert undefined == {
        "UDJ-FL: beta=0, gamma=0",
        "UDJ-FL: beta=0, gamma=-1",
        "UDJ-FL: beta=1, gamma=0",
        "UDJ-FL: beta=1, gamma=1",
    }
    for label, row in made.items():
        assert row.method.params["step"] == ("normalised" if label in undefined else "authors"), (
            label
        )


def test_other_notes_on_what_the_authors_code_does():
    made = rows("authors")
    assert made["FedMGDA+"].method == FedAvg(weights="uniform")
    assert made["FedMGDA+"].note == DISCARDED
    assert made["CFFL"].note == OWN_DATA
    assert {label for label, row in made.items() if row.note == ONE_BETA} == {
        "UDJ-FL: beta=per-client, gamma=-1",
        "UDJ-FL: beta=per-client, gamma=0",
    }


def test_everything_else_is_the_same_in_both_profiles():
    paper, authors = rows("paper"), rows("authors")
    differing = {label for label in paper if paper[label].method != authors[label].method}
    assert differing == {label for label in paper if label.startswith("UDJ-FL")} | {"FedMGDA+"}
    for label in differing - {"FedMGDA+"}:
        assert {**paper[label].method.params, "step": None} == {
            **authors[label].method.params,
            "step": None,
        }

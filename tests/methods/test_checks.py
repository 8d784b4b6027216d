"""What a method is refused before it sees reports: each of its three functions, in words."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from udjfl import Reports
from udjfl.errors import ReportError, SettingsError
from udjfl.methods import Method, Plan
from udjfl.methods._checks import check_epsilon

DELTAS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def make_curious() -> type[Method]:
    """Make a class anew: what wraps its functions is made with it."""

    class Curious(Method):
        """Asks for losses before training, and for scores of models after it."""

        name = title = "curious"
        paper, grade = "none", "recalled"
        needs = frozenset({"losses", "sizes", "validation_accuracies"})
        probes = frozenset({"losses"})

        def plan(self, state: Any, probe: Reports | None) -> tuple[Any, Plan]:
            return state, Plan()

        def models_to_score(self, state: Any, reports: Reports) -> Tensor:
            return reports.deltas

        def aggregate(self, state: Any, reports: Reports) -> tuple[Any, Tensor, dict[str, Tensor]]:
            return state, reports.deltas[0], {}

    return Curious


def make_reports(**fields: Any) -> Reports:
    return Reports(ids=["a", "b"], deltas=DELTAS, **fields)


def test_a_probe_has_to_have_been_asked_for() -> None:
    with pytest.raises(SettingsError, match="curious: needs the clients' losses before they train"):
        make_curious()().plan({}, None)
    with pytest.raises(ReportError, match="losses"):
        make_curious()().plan({}, make_reports(sizes=[1, 2]))
    # Sizes are sent once, and needed: a probe has them.
    with pytest.raises(ReportError, match="sizes"):
        make_curious()().plan({}, make_reports(losses=[1, 2]))
    assert make_curious()().plan({}, make_reports(losses=[1, 2], sizes=[1, 2]))[0] == {}


def test_a_method_without_probes_plans_without_reports() -> None:
    class Plain(make_curious()):  # type: ignore[misc]
        probes: ClassVar[frozenset[str]] = frozenset()

    assert Plain().plan({"a": torch.zeros(2)}, None)[0]["a"].tolist() == [0.0, 0.0]


def test_models_are_scored_before_their_scores_are_known() -> None:
    reports = make_reports(losses=[1, 2], sizes=[1, 2])
    assert torch.equal(make_curious()().models_to_score({}, reports), DELTAS)
    with pytest.raises(ReportError, match="sizes"):
        make_curious()().models_to_score({}, make_reports(losses=[1, 2]))


def test_a_step_needs_everything() -> None:
    with pytest.raises(ReportError, match="validation_accuracies"):
        make_curious()().aggregate({}, make_reports(losses=[1, 2], sizes=[1, 2]))


@pytest.mark.parametrize("rows", [0, 1])
def test_an_index_error_of_a_plan_without_reports_stays_one(rows: int) -> None:
    """There is no index of a client in it that could be refused."""

    class Careless(make_curious()):  # type: ignore[misc]
        probes: ClassVar[frozenset[str]] = frozenset()

        def plan(self, state: Any, probe: Reports | None) -> tuple[Any, Plan]:
            raise IndexError("of another cause")

    with pytest.raises(IndexError, match="of another cause"):
        Careless().plan({"counts": torch.zeros(rows)}, None)


def test_a_state_of_fewer_clients_is_told_in_words() -> None:
    class PerClient(make_curious()):  # type: ignore[misc]
        needs: ClassVar[frozenset[str]] = frozenset()  # type: ignore[misc]

        def aggregate(self, state: Any, reports: Reports) -> tuple[Any, Tensor, dict[str, Tensor]]:
            return state, state["counts"][reports.client_indices] @ reports.deltas, {}

    state = {"counts": torch.ones(2), "scalar": torch.tensor(1.0), "longer": torch.ones(9)}
    assert PerClient().aggregate(state, make_reports())[1].tolist() == [4.0, 6.0]
    with pytest.raises(SettingsError, match="client_indices: has 2, and the state of curious"):
        PerClient().aggregate(state, make_reports(client_indices=[0, 2]))


def test_an_epsilon_below_the_largest_utility_passes() -> None:
    class Values:
        epsilon, M = 0.5, 1.0

    values = Values()
    assert check_epsilon(values) is values
    values.epsilon = 1.0
    with pytest.raises(ValueError, match="epsilon is 1; it must be below M, which is 1"):
        check_epsilon(values)

"""What goes wrong on a real deployment: clients that lie, vanish or come back changed, and too few of them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("flwr")

from deploying import Deployment, stop
from rehearsing import TRAINING, Stage

import udjfl

pytestmark = pytest.mark.processes

LONGEST = 1000.0
FAULTS = {
    "nan": "deltas has values that are NaN",
    "shape": "deltas has shape",
    "huge": "above max_update_norm, 1000",
    "id": "id is 'somebody-else' in its reply, and was",
    "error": "OSError: no space left on this client's disk",
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Deployment() as deployment:
        yield Stage(deployment, udjfl.load("dirty-digits", clients=2, seed=0))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_that_cannot_be_used_stops_the_run(stage: Stage, fault: str) -> None:
    act = stage.act(liar=stage.liar, faults=fault, max_update_norm=LONGEST)
    finished = act.run()
    assert finished.status == "finished:failed"
    assert f"client {stage.liar!r} in round 1" in finished.output, finished.output
    assert FAULTS[fault] in finished.output, finished.output
    assert act.history.records == []
    assert list(act.models.iterdir()) == []  # the server's model was not touched


def test_or_is_left_out_and_named_in_the_history(stage: Stage) -> None:
    """A lie in every round but the last, in which the client is welcome again."""
    rounds = len(FAULTS) + 1
    lies = {"liar": stage.liar, "faults": ",".join(FAULTS), "max_update_norm": LONGEST}
    act = stage.act(**lies, on_bad_report="exclude", quorum=1, rounds=rounds)
    finished = act.run()
    assert finished.completed, finished.output
    for t, problem in enumerate(FAULTS.values(), start=1):
        (told,) = act.history.by_client("excluded", t).items()
        assert told[0] == stage.liar
        assert problem in str(told[1])
        assert list(act.history.by_client("weight", t)) == [stage.honest]
    assert act.history.by_client("excluded", rounds) == {}
    assert list(act.history.by_client("weight", rounds)) == [stage.honest, stage.liar]
    assert all(values.isfinite().all() for values in act.model.values())


def test_a_second_client_with_the_same_id_stops_the_run(stage: Stage) -> None:
    finished = stage.act(liar=stage.liar, faults=f"as {stage.honest}").run()
    assert finished.status == "finished:failed"
    assert f"client {stage.honest!r}: id is that of node" in finished.output, finished.output
    assert "give every client its own id" in finished.output, finished.output


def test_or_is_refused_and_named_in_the_history(stage: Stage) -> None:
    act = stage.act(
        liar=stage.liar, faults=f"as {stage.honest}", on_bad_report="exclude", clients=1, rounds=1
    )
    finished = act.run()
    assert finished.completed, finished.output
    assert "id is that of node" in str(act.history.by_client("excluded", 1)[stage.honest])
    assert list(act.history.by_client("weight", 1)) == [stage.honest]


def test_an_uncertainty_that_changes_between_queries_is_refused(stage: Stage) -> None:
    """The run is stopped by the client's own error in round 2; resumed, it is asked again and tells another."""
    act = stage.act(method="rawls", liar=stage.liar, faults=",error")
    assert act.run().status == "finished:failed"
    told = json.loads((act.out / "uncertainty.json").read_text(encoding="utf-8"))["values"]
    before = (act.out / "records.jsonl").read_bytes()
    finished = act.run(resume=True, faults="doubt")
    assert finished.status == "finished:failed"
    asked_again = f"was {told[stage.liar]:g} and is now {2 * told[stage.liar]:g}"
    assert f"client {stage.liar!r}: uncertainties {asked_again}" in finished.output, finished.output
    assert (act.out / "records.jsonl").read_bytes() == before
    finished = act.run(resume=True, faults="")  # told as before, the run goes on
    assert finished.completed, finished.output
    assert_the_simulators(act.model, stage.federation, "rawls", 2)


def test_a_node_killed_in_a_round_is_recorded_and_rejoins_as_the_same_client(stage: Stage) -> None:
    act = stage.act(
        method="rawls", liar=stage.liar, faults=",hang", rounds=3, quorum=1, round_timeout=90.0
    )
    act.close(3)
    run = act.begin()
    assert act.heard("hanging-2"), stage.deployment.log(run)
    stage.deployment.nodes[stage.liar].kill()
    assert act.heard("waiting-3"), stage.deployment.log(run)  # the round has ended without it
    stage.deployment.wait_offline([stage.liar])
    stage.start_again(stage.liar)
    act.open(3)
    assert stage.deployment.wait(run) == "finished:completed", stage.deployment.log(run)
    both = [stage.honest, stage.liar]
    assert [list(act.history.by_client("weight", t)) for t in (1, 2, 3)] == [
        both,
        [stage.honest],
        both,
    ]
    assert list(act.history.by_client("absent", 2)) == [stage.liar]
    alone = udjfl.simulate(stage.federation, "rawls", rounds=1, **TRAINING).uncertainty
    result = json.loads((act.out / "result.json").read_text(encoding="utf-8"))
    assert result["uncertainty"] == pytest.approx(alone, rel=1e-4)  # in the run's records, of both
    assert list(result["client_accuracy"]) == both  # and it was evaluated


def test_fewer_clients_than_the_quorum_stop_the_run_and_nothing_is_lost(stage: Stage) -> None:
    act = stage.act(quorum=2)
    act.close(2)
    run = act.begin()
    assert act.heard("waiting-2"), stage.deployment.log(run)
    stop([stage.deployment.nodes[stage.liar]])
    stage.deployment.wait_offline([stage.liar])
    act.open(2)
    assert stage.deployment.wait(run) == "finished:failed"
    log = stage.deployment.log(run)
    assert "round 2: 1 usable reports, fewer than the quorum of 2" in log
    assert f"{stage.liar}: is not connected" in log
    assert {record.round for record in act.history.records} == {1}
    stage.start_again(stage.liar)
    finished = act.run(resume=True)
    assert finished.completed, finished.output
    assert_the_simulators(act.model, stage.federation, "fedavg", 2)


def assert_the_simulators(
    model: dict[str, torch.Tensor], federation: udjfl.Federation, method: str, rounds: int
) -> None:
    for name, values in (
        udjfl.simulate(federation, method, rounds=rounds, **TRAINING).model.state_dict().items()
    ):
        torch.testing.assert_close(model[name], values, rtol=1e-4, atol=1e-5)

"""Wrong replies over real processes, and the server killed with a client. Run by `make soak`.

tests/flower/test_strategy_replies.py has the same wrong replies in process.
"""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from shared_deployment import TRAINING, DeployedFederation, assert_same_model, wait_until

import udjfl

pytestmark = [pytest.mark.processes, pytest.mark.soak]

FAULTS = {
    "nan": "deltas has values that are NaN",
    "shape": "deltas has shape",
    "huge": "above max_update_norm, 1000",
    "id": "id is 'somebody-else' in its reply, and was",
    "error": "OSError: no space left on this client's disk",
}


def test_wrong_replies_are_excluded_and_recorded(deployed: DeployedFederation) -> None:
    """In the last round the client is honest, and takes part again."""
    rounds = len(FAULTS) + 1
    faults = {"faulty": deployed.faulty, "faults": ",".join(FAULTS), "max_update_norm": 1000.0}
    run = deployed.new_run(**faults, on_bad_report="exclude", quorum=1, rounds=rounds)
    finished = run.run()
    assert finished.completed, finished.output
    for t, problem in enumerate(FAULTS.values(), start=1):
        ((client, reason),) = run.history.by_client("excluded", t).items()
        assert client == deployed.faulty
        assert problem in str(reason)
        assert list(run.history.by_client("weight", t)) == [deployed.honest]
    assert run.history.by_client("excluded", rounds) == {}
    assert list(run.history.by_client("weight", rounds)) == [deployed.honest, deployed.faulty]
    assert all(values.isfinite().all() for values in run.model.values())


@pytest.mark.parametrize("warm", [True, False])
def test_server_and_client_killed_at_once_resume_to_the_same_model(
    warm: bool, deployed: DeployedFederation
) -> None:
    """In round 2, in which one client hangs: the SuperLink with its server app, and that node."""
    deployment, faulty = deployed.deployment, deployed.faulty
    if not warm:
        deployed.replace_node(faulty, warm=False)
    run = deployed.new_run(method="rawls", rounds=3, faulty=faulty, faults=",wait")
    run_id = run.submit()
    assert run.wait_for("hanging-2"), deployment.log(run_id)
    assert deployment.superlink is not None
    deployment.superlink.kill()
    deployment.nodes[faulty].kill()
    if warm:
        assert wait_until(lambda: deployment.executors[faulty].alive() == [])
    assert not (run.out / "result.json").exists()
    run.release(2)
    deployment.start_superlink()
    deployment.wait_offline([faulty])
    deployed.restart_node(faulty, warm=warm)
    deployment.wait_online(deployed.files)
    finished = run.run(resume=True)
    if not warm:
        deployed.replace_node(faulty)
    assert finished.completed, finished.output
    assert_same_model(run.model, udjfl.simulate(deployed.federation, "rawls", rounds=3, **TRAINING))
    assert [list(run.history.by_client("absent", t)) for t in (1, 2, 3)] == [[], [], []]
    assert wait_until(lambda: deployed.notes() == [])

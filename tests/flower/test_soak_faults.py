"""Every wrong reply over real processes, one in each round of a run. Run by `make soak`.

tests/flower/test_strategy.py has the same faults in process.
"""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from shared_deployment import DeployedFederation

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

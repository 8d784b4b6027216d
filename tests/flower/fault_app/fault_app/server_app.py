"""The server: a strategy that waits at closed gates and saves its model after every round."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from udjfl.flower import ServerData
from udjfl.flower.settings import make_strategy

app = ServerApp()


def server_data(path: str) -> ServerData:
    with np.load(path) as file:
        test = file["x_test"], file["y_test"]
        return ServerData(
            test, None, input_shape=test[0].shape[1:], n_classes=int(file["n_classes"])
        )


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = make_strategy(config, "mlp", server_data(str(config["server-data"])))
    gates, snapshots = Path(str(config["gates"])), Path(str(config["snapshots"]))
    run_round = strategy.run_round

    def wait_at_gate_and_play() -> Any:
        round = strategy.log.server.round + 1
        while (gates / f"closed-{round}").exists():
            (gates / f"waiting-{round}").touch()
            time.sleep(0.2)
        end = time.monotonic() + float(config["pace"])
        evaluation = run_round()
        time.sleep(max(0.0, end - time.monotonic()))
        np.save(snapshots / f"{round}.npy", strategy.log.server.vector.numpy())
        return evaluation

    strategy.run_round = wait_at_gate_and_play
    strategy.start(grid)

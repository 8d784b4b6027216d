"""The server: the strategy that the configuration asks for, which waits at closed gates and shows its model."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from udjfl.flower import ServerData
from udjfl.flower import settings as options

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
    strategy = options.strategy(config, "mlp", server_data(str(config["server-data"])))
    gates, shown = Path(str(config["gates"])), Path(str(config["shown"]))
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    def when_the_gate_is_open(server_round: int, *others: Any) -> Any:
        while config["gates"] and (gates / f"closed-{server_round}").exists():
            (gates / f"waiting-{server_round}").touch()
            time.sleep(0.2)
        return configure(server_round, *others)

    def and_show_the_model(server_round: int, *others: Any) -> Any:
        done = aggregate(server_round, *others)
        if config["shown"]:
            np.save(shown / f"{server_round}.npy", strategy.server.vector.numpy())
        return done

    strategy.configure_train, strategy.aggregate_train = when_the_gate_is_open, and_show_the_model
    strategy.start(grid)

"""The app of the server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from udjfl.errors import DataError
from udjfl.flower import settings as options
from udjfl.flower.data import ServerData
from udjfl.models import ModelChoice
from udjfl.training.result import Result

logger = logging.getLogger("udjfl")


def server_app(model: ModelChoice, data: Callable[[Context], ServerData]) -> ServerApp:
    """The app of the server.

    `model` is what `udjfl.simulate` takes, the same as the clients'. `data` is called once with Flower's context and returns
    what the server knows of the data and holds itself. Everything else is in the run's configuration: `udjfl.flower.settings`
    has its keys.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _speak()
        options.read(context.run_config)  # mistakes first: loading the data may take long
        own = data(context)
        if not isinstance(own, ServerData):
            raise DataError(
                f"the server's data function returned {type(own).__name__}; it must return udjfl.flower.ServerData"
            )
        strategy = options.strategy(context.run_config, model, own)
        strategy.start(grid)
        if strategy.result is not None:
            _say(strategy.result)

    return app


def _speak() -> None:
    """What udjfl says goes where Flower's own messages go, unless it has been given a place."""
    if not logger.handlers:
        logger.handlers = list(logging.getLogger("flwr").handlers)
        logger.setLevel(logging.INFO)


def _say(result: Result) -> None:
    logger.info("%s is done.", result.method.label)
    for name, value in result.metrics.items():
        logger.info(
            "  %s: %s", name, result.undefined.get(name, "-") if value is None else f"{value:.2f}"
        )
    for client, value in result.client_accuracy.items():
        logger.info("  test accuracy of %s: %.2f", client, value)

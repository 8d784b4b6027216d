"""The app of the server."""

import logging
from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from udjfl.flower.data import ServerData, check_returned
from udjfl.flower.settings import make_strategy, read_settings
from udjfl.models import ModelChoice
from udjfl.training.result import Result

logger = logging.getLogger("udjfl")


def server_app(model: ModelChoice, data: Callable[[Context], ServerData]) -> ServerApp:
    """Return the app of the server.

    `model` is as in `udjfl.simulate`, the same as the clients'. `data` is called once with
    Flower's context and returns the server's own data. Everything else is in the run's
    configuration: `udjfl.flower.settings` has its keys.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _use_flower_log()
        read_settings(context.run_config)  # mistakes first: loading the data may take long
        strategy = make_strategy(
            context.run_config, model, check_returned(data(context), ServerData, "server")
        )
        strategy.start(grid)
        if strategy.result is not None:
            _log_result(strategy.result)

    return app


def _use_flower_log() -> None:
    """Log where Flower logs, unless udjfl's logger has a handler."""
    if not logger.handlers:
        logger.handlers = list(logging.getLogger("flwr").handlers)
        logger.setLevel(logging.INFO)


def _log_result(result: Result) -> None:
    logger.info("%s is done.", result.method.label)
    for name, value in result.metrics.items():
        logger.info(
            "  %s: %s", name, result.undefined.get(name, "-") if value is None else f"{value:.2f}"
        )
    for client, value in result.client_scores.items():
        logger.info("  test accuracy of %s: %.2f", client, value)

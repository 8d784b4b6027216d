"""Results by client and group as fairlearn's `MetricFrame` (extra `udjfl[fairlearn]`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from udjfl.data import Federation
from udjfl.errors import DataError, SettingsError
from udjfl.training.result import Result

if TYPE_CHECKING:
    from fairlearn.metrics import MetricFrame


def metric_frame(
    result: Result,
    federation: Federation,
    metrics: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
) -> MetricFrame:
    """Return fairlearn's frame of a result: test examples by client and sensitive attribute.

    result      of a run on this federation; each client's examples are predicted by the model that
                it is served
    federation  whose test examples have groups (`sensitive_test` of `Federation.from_arrays`)
    metrics     functions `(y_true, y_pred) -> number`, as fairlearn takes them; default: accuracy

    Clients are control features: `frame.by_group` has a row for each client and group,
    `frame.difference()` the gap between groups within each client.
    """
    try:
        from fairlearn.metrics import MetricFrame
    except ImportError:
        raise SettingsError("fairlearn is not installed; pip install 'udjfl[fairlearn]'") from None
    from sklearn.metrics import accuracy_score

    missing = [client.id for client in federation.clients if client.test.group is None]
    if missing:
        raise DataError(
            f"client {missing[0]!r}: its test examples have no sensitive attribute; give "
            "sensitive_test to Federation.from_arrays"
        )
    predicted = []
    for client in federation.clients:
        with torch.no_grad():
            predicted.append(result.model_for(client.id).eval()(client.test.x).argmax(dim=1))
    tests = [client.test for client in federation.clients]
    groups = [test.group for test in tests if test.group is not None]
    names = [client.id for client in federation.clients for _ in range(len(client.test))]
    return MetricFrame(
        metrics={"accuracy": accuracy_score} if metrics is None else metrics,
        y_true=torch.cat([test.y for test in tests]).numpy(),
        y_pred=torch.cat(predicted).numpy(),
        sensitive_features={"group": torch.cat(groups).numpy()},
        control_features={"client": names},
    )

"""q-FedAvg with the published step equals Flower's own: the same replies give the same model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from udjfl.methods import Reports
from udjfl.methods.qffl import QFFL

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import QFedAvg

SHAPES = ((4, 3), (4,), (2, 4), (2,))
NODES = [11, 12, 13]


@dataclass(frozen=True)
class Reply:
    """The part of a message that Flower's strategy reads; real ones exist only in a run."""

    content: RecordDict

    def has_error(self) -> bool:
        return False


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])


def flowers_model(
    before: list[np.ndarray],
    after: dict[int, list[np.ndarray]],
    losses: dict[int, float],
    q: float,
    lr: float,
) -> np.ndarray:
    """Return the model after one round of Flower's strategy, which needs copies of its inputs."""
    strategy = QFedAvg(client_learning_rate=lr, q=q)
    strategy.current_arrays = ArrayRecord([array.copy() for array in before])
    replies = []
    for node, arrays in after.items():
        numbers = MetricRecord({"train_loss": losses[node], "num-examples": 10 * node})
        replies.append(
            Reply(
                RecordDict({"arrays": ArrayRecord([a.copy() for a in arrays]), "metrics": numbers})
            )
        )
    model, _ = strategy.aggregate_train(1, replies)
    assert model is not None
    return flat(model.to_numpy_ndarrays())


# Few cases: Flower collects garbage once per client, which takes a good part of a second.
@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 5.0])
@pytest.mark.parametrize(("lr", "dtype"), [(0.1, np.float32), (1.0, np.float64)])
def test_the_same_replies_give_the_same_model(q, lr, dtype):
    rng = np.random.default_rng(0)
    before = [rng.normal(size=shape).astype(dtype) for shape in SHAPES]
    after = {
        node: [array + rng.normal(scale=0.1, size=array.shape).astype(dtype) for array in before]
        for node in NODES
    }
    losses = {node: float(rng.uniform(0.1, 3)) for node in NODES}
    theirs = flowers_model(before, after, losses, q, lr)
    model = torch.from_numpy(flat(before))
    deltas = torch.stack([model - torch.from_numpy(flat(after[node])) for node in NODES])
    reports = Reports([str(node) for node in NODES], deltas, list(losses.values()), lr=lr)
    _, step, _ = QFFL(q=q, lipschitz="paper").aggregate({}, reports)
    # Flower adds 1e-10 to losses of at least 0.1, which changes them by 1e-9 of themselves.
    np.testing.assert_allclose(
        step.numpy(), (flat(before) - theirs), rtol=0, atol=1e-6 if dtype == np.float32 else 1e-9
    )
    # The step is not only rounding: Flower's model has moved.
    assert np.abs(flat(before) - theirs).max() > 1e-4

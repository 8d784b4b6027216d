"""The reach of local training: the number of gradients in the change of a client's model."""

from typing import TypeVar

from torch import Tensor

Number = TypeVar("Number", float, Tensor)


def undamped_steps(steps: Number, momentum: float) -> Number:
    """Return s - m (1-m^s) / (1-m), for s steps with momentum m.

    Momentum starts from zero in every round, so s steps move a client by lr/(1-m) times fewer
    gradients than s: by this many of them.
    """
    lost: Number = momentum * (1 - momentum**steps) / (1 - momentum)
    return steps - lost


def count_gradients(steps: Tensor, momentum: float) -> Tensor:
    """Return a_i: a client's change is lr a_i times the mean gradient on its way; s_i without m."""
    return undamped_steps(steps, momentum) / (1 - momentum)

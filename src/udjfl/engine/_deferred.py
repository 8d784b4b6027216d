"""A call that is made while training leaves a core idle."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Deferred(Generic[Result]):
    """A deferred call: runs when a core becomes free, or when its result is requested."""

    def __init__(self, call: Callable[[], Result], cost: float) -> None:
        self.call: Callable[[], Result] | None = call
        self.cost = cost
        self.future: Future[Result] = Future()

    def run(self, wait: Callable[[], object] | None = None) -> None:
        """Make the call, once, after `wait` has returned, and release what it refers to."""
        if wait is not None:
            wait()
        call, self.call = self.call, None
        if call is None:
            return
        try:
            self.future.set_result(call())
        except BaseException as error:
            self.future.set_exception(error)

    def result(self) -> Result:
        """Return the result, or raise the call's exception."""
        self.run()
        return self.future.result()

    def pays_beside(self, costs: Sequence[float], workers: int) -> bool:
        """Return whether one core, once it is idle, makes the call sooner than all cores before.

        The work that one core does beside tasks of these costs takes no time; what is left after
        them takes the time of one core. All cores together need `cost / workers`.
        """
        return self.cost - idle_cost(costs, workers) <= self.cost / workers


def idle_cost(costs: Sequence[float], workers: int) -> float:
    """Return how much more the workers could do before the last of them has finished its tasks.

    Each task goes to the worker that is free first.
    """
    ends = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return workers * max(ends) - sum(ends)

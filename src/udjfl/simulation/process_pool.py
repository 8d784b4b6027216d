"""Independent tasks in processes of their own, with their progress told here as it happens."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from queue import Empty
from typing import Any, Protocol, TypeVar

Done = TypeVar("Done", covariant=True)
LOOK_EVERY = 0.2  # seconds between looks at what the tasks have said


class Task(Protocol[Done]):
    """Something to do that can be sent to another process. `tell` passes a message on to whoever waits."""

    def __call__(self, tell: Callable[[Any], None]) -> Done: ...


def why_not_apart(tasks: Sequence[Task[Any]]) -> str | None:
    """Why these tasks cannot be sent to other processes, or None if they can."""
    try:
        for task in tasks:
            pickle.dumps(task)
    except Exception as error:  # whatever an object's own way of being written comes to
        return str(error)
    return None


def in_processes(
    tasks: Sequence[Task[Done]], jobs: int, heard: Callable[[Any], None]
) -> list[Done]:
    """The results of all tasks, in their order, computed by so many processes. `heard` gets what they tell, in any order.

    The first task that fails ends the others, and its error is raised here.
    """
    context = multiprocessing.get_context(
        "spawn"
    )  # the tasks use threads, which do not survive a fork
    messages = context.Queue()
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_remember, initargs=(messages,)
    ) as pool:
        futures: list[Future[Done]] = [pool.submit(_run, task) for task in tasks]
        try:
            left = set(futures)
            while left:
                finished, left = wait(left, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
                _pass_on(messages, heard)
                for future in finished:
                    future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        _pass_on(messages, heard)
        return [future.result() for future in futures]


def _pass_on(messages: Any, heard: Callable[[Any], None]) -> None:
    while True:
        try:
            heard(messages.get_nowait())
        except Empty:
            return


_messages: Any = None


def _remember(messages: Any) -> None:
    """In a new process: where to send messages."""
    global _messages
    _messages = messages


def _run(task: Task[Done]) -> Done:
    return task(_messages.put)

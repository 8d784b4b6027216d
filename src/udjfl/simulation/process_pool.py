"""Independent tasks in processes of their own, with their messages delivered as they happen."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from queue import Empty
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result", covariant=True)
POLL_INTERVAL = 0.2  # seconds between deliveries of messages


class Task(Protocol[Result]):
    """A picklable task. It may send messages to the process that waits for it."""

    def __call__(self, send: Callable[[Any], None]) -> Result: ...


def unpicklable_reason(tasks: Sequence[Task[Any]]) -> str | None:
    """Return why these tasks cannot be sent to other processes, or None if they can."""
    try:
        for task in tasks:
            pickle.dumps(task)
    except Exception as error:  # an object's own code for pickling can raise anything
        return str(error)
    return None


def run_in_processes(
    tasks: Sequence[Task[Result]], jobs: int, receive: Callable[[Any], None]
) -> list[Result]:
    """Run tasks in this many processes and return their results, in the order of the tasks.

    `receive` gets their messages, in any order. The first task that fails stops the others, and
    its error is raised.
    """
    context = multiprocessing.get_context("spawn")  # the tasks use threads, which do not fork
    messages = context.Queue()
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_set_queue, initargs=(messages,)
    ) as pool:
        with _ignored_interrupts():
            futures: list[Future[Result]] = [pool.submit(_run, task) for task in tasks]
        try:
            left = set(futures)
            while left:
                finished, left = wait(left, timeout=POLL_INTERVAL, return_when=FIRST_COMPLETED)
                _deliver(messages, receive)
                for future in finished:
                    future.result()
        except BaseException:
            processes = list((pool._processes or {}).values())  # which `shutdown` forgets
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise
        _deliver(messages, receive)
        return [future.result() for future in futures]


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Let processes that are started here ignore Ctrl-C: their parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _deliver(messages: Any, receive: Callable[[Any], None]) -> None:
    while True:
        try:
            receive(messages.get_nowait())
        except Empty:
            return


_queue: Any = None  # in a worker process: where messages go


def _set_queue(messages: Any) -> None:
    global _queue
    _queue = messages


def _run(task: Task[Result]) -> Result:
    return task(_queue.put)

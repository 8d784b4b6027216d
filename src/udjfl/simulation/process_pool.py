"""Independent tasks in processes of their own, with their messages delivered as they happen."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import pickle
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from logging.handlers import QueueHandler
from typing import Any, Protocol, TypeVar

import torch

from udjfl._processes import Parent
from udjfl.errors import UdjflError

Result = TypeVar("Result", covariant=True)
POLL_INTERVAL = 0.2  # seconds between deliveries of messages
logger = logging.getLogger("udjfl")


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
    tasks: Sequence[Task[Result]],
    jobs: int,
    receive: Callable[[Any], None],
    fork: bool = False,
) -> list[Result]:
    """Run tasks in this many processes and return their results, in the order of the tasks.

    `receive` gets their messages, in any order; warnings are logged here. The first task that fails
    stops the others, and its error is raised. With `fork` processes have what is imported here, and
    start at once; the tasks may not use what threads of this process use.
    """
    context: Any = multiprocessing.get_context("fork" if fork else "spawn")
    messages = context.SimpleQueue()  # what is sent is there before the task's result
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_set_up, initargs=(messages, Parent())
    ) as pool:
        with _ignored_interrupts(), warnings.catch_warnings():
            # Python warns of forking beside threads, whose locks stay locked in the copy.
            warnings.simplefilter("ignore", DeprecationWarning)
            futures: list[Future[tuple[Result, list[Any]]]] = [
                pool.submit(_run, task) for task in tasks
            ]
        try:
            left = set(futures)
            while left:
                finished, left = wait(left, timeout=POLL_INTERVAL, return_when=FIRST_COMPLETED)
                _deliver(messages, receive)
                for future in finished:
                    for message in future.result()[1]:
                        receive(message)
        except BrokenProcessPool:
            raise UdjflError(
                "a process that trained some of the seeds was killed; was there too little memory "
                "(use fewer --jobs)? With --out, `udjfl resume` continues"
            ) from None
        except BaseException:
            processes = list((pool._processes or {}).values())  # which `shutdown` forgets
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise
        _deliver(messages, receive)
        return [future.result()[0] for future in futures]


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
    while not messages.empty():
        message = messages.get()
        if isinstance(message, logging.LogRecord):
            logger.handle(message)
            continue
        for part in message:
            receive(part)


_queue: Any = None  # in a worker process: where messages go


def _set_up(messages: Any, parent: Parent) -> None:
    """Prepare a worker process. Its warnings go to its parent, whose handlers may be locked."""
    global _queue
    parent.follow()
    _queue = messages
    gc.freeze()  # what is here already stays: collections need not look at it again and again
    torch.set_num_threads(1)  # forked, it has none of the threads that its parent has started
    sys.excepthook = _hide_lost_connections
    logger.handlers, logger.propagate = [_LogHandler(messages)], False


def _hide_lost_connections(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Print nothing where the parent no longer reads a result: it has an error of its own to show.

    A thread of multiprocessing hands over the tensors of results, and shows what it fails with.
    """
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


class _LogHandler(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        _queue.put(record)


def _run(task: Task[Result]) -> tuple[Result, list[Any]]:
    """Return the result of a task, and its messages that were not sent yet."""
    outbox = _Outbox()
    return task(outbox.send), outbox.waiting


class _Outbox:
    """Messages to the parent; those that follow each other quickly are sent together."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.sent_at = -POLL_INTERVAL

    def send(self, message: Any) -> None:
        self.waiting.append(message)
        if time.monotonic() - self.sent_at > POLL_INTERVAL:
            _queue.put(self.waiting)
            self.waiting, self.sent_at = [], time.monotonic()

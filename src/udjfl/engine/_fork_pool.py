"""Tasks on all cores, in forked processes. Results do not depend on how many there are.

A step of training is a few dozen small operations, between which threads of one process would wait
for the GIL; and threads inside one operation all wait when one of them is delayed by another
process. A forked process has the data and the model without a copy, needs no importable main module
and no time to start. It writes its results into memory that it shares with its parent.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import pickle
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from udjfl._processes import Parent
from udjfl._threads import thread_limit
from udjfl.engine._deferred import Deferred
from udjfl.engine._memory import Shapes, SharedArea, Tables, total_bytes

Result = TypeVar("Result")
# Does one task and writes its results into the tables.
RunTask = Callable[[Any, Tables], None]
# Task number -> the exception it raised, or None.
Outcomes = dict[int, Exception | None]
logger = logging.getLogger("udjfl")


class ForkPool:
    """This process and some forked from it, which share the tasks of one `map` at a time.

    The function that does a task is a bound method, held weakly since its owner holds the pool. In
    the other processes it runs on a copy of its owner as it was when they were forked, which is at
    the first `map`. This process does all tasks itself where it cannot fork or cannot send the
    tasks, and those of a process that died.
    """

    def __init__(self, run_task: RunTask, workers: int) -> None:
        self._run_task = weakref.WeakMethod(run_task)
        self.workers = workers if can_fork() else 1
        self.processes: list[_WorkerProcess] = []
        self.areas: list[SharedArea] = []
        # Shared with the others: the number of the next task, and one release for each process
        # that has found none left.
        self.counter: Any = None
        self.idle: Any = None
        self._deferred: weakref.ref[Deferred[Any]] | None = None

    def defer(self, call: Callable[[], Result], cost: float) -> Callable[[], Result]:
        """Make a call beside the next `map`, once it leaves a core idle; `cost` is in its units.

        The function returned waits for the call and returns its result, or raises its exception. If
        no `map` has begun it by then, it makes the call itself. A call whose result nobody can
        request any more is not made.
        """
        deferred = Deferred(call, cost)
        self._deferred = weakref.ref(deferred)
        return deferred.result

    def map(self, tasks: Sequence[Any], shapes: Shapes, costs: Sequence[float] = ()) -> Tables:
        """Do all tasks and return the tables into which they wrote.

        Of several exceptions that of the first task is raised. `costs` are the expected costs of
        the tasks, needed only to decide when to make a deferred call.
        """
        run_task = self._run_task()
        assert run_task is not None, "the owner of the pool calls this"
        message = _pickle_tasks(tasks, shapes) if self.workers > 1 and len(tasks) > 1 else None
        if message is None:
            return run_alone(run_task, tasks, shapes)
        deferred = self._take_deferred()
        if deferred is not None and not deferred.pays_beside(costs, self.workers):
            deferred.run()
            deferred = None
        try:
            area = self._start(run_task, total_bytes(shapes), min(self.workers, len(tasks)) - 1)
        except OSError as error:  # no more processes, or no more memory
            logger.warning("Training goes on without other processes: %s.", error)
            self.stop()
            self.workers = 1
            return run_alone(run_task, tasks, shapes)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in the other processes
        try:
            return self._share(run_task, tasks, message, shapes, area, deferred)
        except (KeyboardInterrupt, SystemExit):
            self.stop()  # they are still working
            raise
        finally:
            torch.set_num_threads(threads)

    def _take_deferred(self) -> Deferred[Any] | None:
        reference, self._deferred = self._deferred, None
        deferred = None if reference is None else reference()
        return None if deferred is None or deferred.call is None else deferred

    def _share(
        self,
        run_task: RunTask,
        tasks: Sequence[Any],
        message: bytes,
        shapes: Shapes,
        area: SharedArea,
        deferred: Deferred[Any] | None,
    ) -> Tables:
        tables = area.place(shapes)
        while self.idle.acquire(block=False):
            pass
        self.counter.value = 0
        for process in self.processes:
            process.send(self.areas.index(area), message)
        with self._running_beside(deferred):
            outcomes = dict(_run_tasks(run_task, tasks, tables, self.counter))
        for process in self.processes:
            outcomes |= process.receive()
        if not self._all_alive():
            logger.warning("A process forked for training died; its work is done again.")
            self.stop()
        errors = {number: error for number, error in outcomes.items() if error is not None}
        if errors:
            raise errors[min(errors)]
        for number, task in enumerate(tasks):
            if number not in outcomes:  # of a process that died
                run_task(task, tables)
        return tables

    @contextlib.contextmanager
    def _running_beside(self, deferred: Deferred[Any] | None) -> Iterator[None]:
        """Make the deferred call in a thread as soon as a core is idle, and wait for it.

        Begun earlier, it would take time from the processes that work, and the slowest of them
        would end still later. No process may be forked while the thread runs.
        """
        running: Future[None] | None = None
        if deferred is not None:
            all_cores_work = len(self.processes) + 1 >= self.workers
            wait = self.idle.acquire if all_cores_work else None
            running = self._thread.submit(deferred.run, wait)
        try:
            yield
        finally:
            self.idle.release()
            if running is not None:
                running.result()

    @functools.cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """One thread for all deferred calls: a new one each time allocates its buffers anew."""
        return ThreadPoolExecutor(1, thread_name_prefix="udjfl beside")

    def _all_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def stop(self) -> None:
        """Stop the other processes. They are started again on the next use."""
        for process in self.processes:
            process.stop()
        self.processes = []

    def _start(self, run_task: RunTask, size: int, count: int) -> SharedArea:
        """Have the other processes ready, and return a free shared area of at least this size."""
        free = [area for area in self.areas if area.is_free and len(area.memory) >= size]
        if not free or not self._all_alive() or len(self.processes) < count:
            self.stop()
        if not free:  # processes share the areas that exist when they are forked
            free = [SharedArea.allocate(size), SharedArea.allocate(size)]
            self.areas = [area for area in self.areas if not area.is_free] + free
        if not self.processes:
            context = multiprocessing.get_context("fork")
            self.counter, self.idle = context.Value("q", 0), context.Semaphore(0)
            arguments = (run_task, self.counter, self.idle, self.areas)
            self.processes = [_WorkerProcess(context, arguments) for _ in range(count)]
        return free[0]


def can_fork() -> bool:
    """Return whether this process can fork others that train.

    Only on Linux; not in a daemonic process, which must not have children; and not beside a GPU:
    there autograd has threads of its own, which a fork does not copy.
    """
    return (
        sys.platform.startswith("linux")
        and not multiprocessing.current_process().daemon
        and not torch.accelerator.is_available()
    )


def run_alone(
    run_task: RunTask, tasks: Sequence[Any], shapes: Shapes, device: torch.device | None = None
) -> Tables:
    """Do all tasks in this process, one after the other."""
    tables = {
        name: torch.empty(tuple(shape), dtype=dtype, device=device)
        for name, (shape, dtype) in shapes.items()
    }
    for task in tasks:
        run_task(task, tables)
    return tables


class _WorkerProcess:
    """One forked process, as its parent sees it."""

    def __init__(self, context: Any, arguments: tuple[Any, ...]) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, self.pipe, Parent(), *arguments), daemon=True
        )
        with warnings.catch_warnings():
            # Python warns of forking beside threads, whose locks stay locked in the copy. What
            # runs there takes none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def is_alive(self) -> bool:
        return bool(self.process.is_alive())

    def send(self, area: int, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it died: `receive` returns nothing
            self.pipe.send(area)
            self.pipe.send_bytes(message)

    def receive(self) -> Outcomes:
        """Return the outcomes of the tasks it did; none if it died."""
        try:
            outcomes: Outcomes = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return {}
        return outcomes

    def stop(self) -> None:
        """End it without waiting; the next process that is started reaps it."""
        self.pipe.close()
        self.process.terminate()


def _serve(
    pipe: Connection,
    parents_end: Connection,
    parent: Parent,
    run_task: RunTask,
    counter: Any,
    idle: Any,
    areas: Sequence[SharedArea],
) -> None:
    """Do tasks in a forked process until its parent is gone."""
    parent.follow()
    parents_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by this signal
    torch.set_num_threads(1)
    with thread_limit(1):
        while True:
            try:
                area, message = pipe.recv(), pipe.recv_bytes()
            except (EOFError, OSError):
                return
            try:
                tasks, shapes = pickle.loads(message)
            except Exception:  # the parent does tasks that can be pickled but not unpickled
                tasks, shapes = [], {}
            tables = areas[area].place(shapes)
            outcomes = dict(_run_tasks(run_task, tasks, tables, counter))
            idle.release()
            with contextlib.suppress(OSError):
                pipe.send_bytes(_pickle_outcomes(outcomes))


def _run_tasks(
    run_task: RunTask, tasks: Sequence[Any], tables: Tables, counter: Any
) -> Iterator[tuple[int, Exception | None]]:
    """Do tasks that no other process has begun, and yield their numbers and outcomes."""
    while (number := _next_number(counter)) < len(tasks):
        try:
            run_task(tasks[number], tables)
        except Exception as error:
            yield number, error
        else:
            yield number, None


def _next_number(counter: Any) -> int:
    with counter.get_lock():
        number = int(counter.value)
        counter.value = number + 1
        return number


def _pickle_tasks(tasks: Sequence[Any], shapes: Shapes) -> bytes | None:
    """Return the message for the other processes, or None if the tasks cannot be sent."""
    try:
        return pickle.dumps((tasks, shapes), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # an object's own `__reduce__` may raise anything
        return None


def _pickle_outcomes(outcomes: Outcomes) -> bytes:
    """Pickle outcomes; exceptions get a note with their traceback, which is not pickled."""
    for error in outcomes.values():
        if error is not None:
            trace = "".join(traceback.format_tb(error.__traceback__))
            error.add_note(f"In a process forked for training:\n{trace}")
    try:
        message = pickle.dumps(outcomes)
        pickle.loads(message)  # some exceptions can be pickled but not unpickled
    except Exception:
        return pickle.dumps(
            {n: None if e is None else RuntimeError(repr(e)) for n, e in outcomes.items()}
        )
    return message

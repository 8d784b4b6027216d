"""The process that has imported everything, and forks a process for every message.

It has one thread, no connection and no secret, so that a fork is cheap and safe, and nothing
leaks into the processes that run apps. Flower's SuperExec, which has all of these, is a process of
its own, forked at the start; it sends a line for every message. Any of them may be killed:

    a message's process     the server is told, and the node takes the next message
    SuperExec               it is started again; messages in progress go on
    this process            the others end with it; when it is started again, it tells the server
                            about the messages that were lost

Two moments, each of about a millisecond for a small model, are left, in which Flower gives no way
to reply: a kill between SuperExec's taking a message and sending it here, and one in the middle of
sending a reply. The SuperNode then waits for a reply until it is started again.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from udjfl._processes import Parent
from udjfl.deployment import flwr_internals
from udjfl.deployment.message_journal import REPLIED, REPLYING, Journal, Launch

logger = logging.getLogger("udjfl")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds before SuperExec is started again
STEADY = 60.0  # seconds after which SuperExec counts as having run well
ENDING = (signal.SIGTERM, signal.SIGINT)
GRACE = 5.0  # seconds that SuperExec has to end by itself


@dataclass(frozen=True)
class ExecutorOptions:
    """The arguments of an executor; see `warm.executor_command`."""

    address: str
    secret_file: Path
    messages: Path
    root_certificates: Path | None = None
    message_timeout: float | None = None
    install_dependencies: bool = False
    parent_pid: int | None = None


class ForkServer:
    """Forks SuperExec and the processes of messages, and clears up after each."""

    def __init__(self, options: ExecutorOptions) -> None:
        self.options = options
        self._parent = Parent()
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, int] = {}  # the pidfd of each child
        self._superexec = 0
        self._launches: socket.socket | None = None
        self._received = b""
        self._pause, self._started = FIRST_PAUSE, 0.0
        self._running = True

    def run(self) -> None:
        """Serve messages until SIGTERM or SIGINT, or until the parent process has ended."""
        for number in ENDING:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        self.options.messages.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._watch_parent()
            if not self._running:
                return
            for journal in Journal.find(self.options.messages):
                self._finish(journal, "the executor was killed")
            self._start_superexec()
            while self._running:
                for key, _ in self._selector.select():
                    key.data()
        finally:
            self._stop()

    def _watch_parent(self) -> None:
        if self.options.parent_pid is None:
            return
        try:
            parent = os.pidfd_open(self.options.parent_pid)
        except ProcessLookupError:
            self._running = False
            return

        def end() -> None:
            self._running = False

        self._selector.register(parent, selectors.EVENT_READ, end)

    def _start_superexec(self) -> None:
        own, its = socket.socketpair()
        options = self.options

        def run() -> None:
            own.close()
            flwr_internals.run_superexec(
                options.address,
                options.secret_file,
                options.root_certificates,
                options.install_dependencies,
                its,
            )

        self._launches, self._received, self._started = own, b"", time.monotonic()
        self._superexec = self._fork(run, self._restart_superexec)
        its.close()
        own.setblocking(False)
        self._selector.register(own, selectors.EVENT_READ, self._read_launches)

    def _restart_superexec(self, status: int) -> None:
        """Start SuperExec again, after a pause that grows if it keeps ending."""
        self._read_launches()
        self._close_launches()
        if time.monotonic() - self._started > STEADY:
            self._pause = FIRST_PAUSE
        logger.warning(
            "SuperExec ended (%s) and is started again in %.1f s", explain(status), self._pause
        )
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._start_superexec()

    def _read_launches(self) -> None:
        """Start a process for every line that SuperExec has sent."""
        if self._launches is None:
            return
        while True:
            try:
                data = self._launches.recv(65536)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:  # SuperExec is ending: `_restart_superexec` follows
                self._close_launches()
                break
            self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._launch(Launch.read(line))

    def _close_launches(self) -> None:
        if self._launches is not None:
            self._selector.unregister(self._launches)
            self._launches.close()
            self._launches = None

    def _launch(self, launch: Launch) -> None:
        """Start the process of a message; without a journal (the disk is full) it is lost."""
        try:
            journal = Journal.create(self.options.messages, launch)
        except OSError as error:
            self._answer(launch, None, f"the executor cannot write its notes: {error.strerror}")
            return
        limit = self.options.message_timeout

        def clear_up(status: int) -> None:
            self._finish(journal, f"its process ended ({explain(status)})")

        self._fork(lambda: flwr_internals.run_message(journal, limit), clear_up)

    def _finish(self, journal: Journal, reason: str) -> None:
        """Forget a message that was replied to; reply in place of a process that did not."""
        if journal.stage in (REPLYING, REPLIED):
            journal.remove()
            return
        self._answer(journal.launch, journal, reason)

    def _answer(self, launch: Launch, journal: Journal | None, reason: str) -> None:
        """Reply in place of the process of a message, and remove its journal."""
        logger.warning("Message %d was lost: %s", launch.task, reason)
        noted = None if journal is None else journal.message

        def clear_up(status: int) -> None:
            if journal is not None:
                journal.remove()
            if status:
                logger.error(
                    "The server could not be told that message %d was lost (%s); the node waits "
                    "for a reply until it is started again",
                    launch.task,
                    explain(status),
                )

        self._fork(lambda: flwr_internals.answer(launch, noted, reason), clear_up)

    def _fork(self, run: Callable[[], None], ended: Callable[[int], None]) -> int:
        """Run a function in a process of its own; call `ended` with its wait status."""
        _flush_output()
        # A signal that came before the child has its own handlers would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        pid = os.fork()
        if pid == 0:
            self._become_child(run)
        # Here as well as in the child: its group can be killed from now on.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        pidfd = os.pidfd_open(pid)
        self._children[pid] = pidfd
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

        def reap() -> None:
            self._selector.unregister(pidfd)
            os.close(self._children.pop(pid))
            # What an app has started ends with it. Before `waitpid`: after it, the number can be
            # that of another group.
            _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            ended(status)

        self._selector.register(pidfd, selectors.EVENT_READ, reap)
        return pid

    def _become_child(self, run: Callable[[], None]) -> None:
        """Run a function and end, without returning to what the forked process was doing."""
        code = 1
        try:
            os.setpgid(0, 0)
            self._parent.follow()
            for number in ENDING:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            self._selector.close()
            for pidfd in self._children.values():
                os.close(pidfd)
            if self._launches is not None and self._superexec:
                self._launches.close()
            run()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            logger.exception("A process of the executor failed")
        finally:
            _flush_output()
            os._exit(code)

    def _stop(self) -> None:
        """End all children: SuperExec in its own way, the others at once."""
        if self._superexec in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._superexec, signal.SIGTERM)
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline and _is_running(self._superexec):
                time.sleep(0.05)
        for pid in self._children:
            _kill_group(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def explain(status: int) -> str:
    """Return in words how a process ended, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return "it took too long"
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _flush_output() -> None:
    """Write out what was printed, unless the disk is full."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _kill_group(pid: int) -> None:
    """Kill the processes of a group that are left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

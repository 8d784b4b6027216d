"""Journals of messages: how far the process of each message got, in a file that outlives it.

A process that was killed cannot reply, and Flower's SuperNode waits for its reply. The journal has
what is needed to reply in its place, also for an executor that was killed and started again.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

LAUNCHED, PULLED, REPLYING, REPLIED = "launched", "pulled", "replying", "replied"
SUFFIX = ".journal"
RESERVED = 1 << 14  # bytes; a journal has about one thousand


@dataclass(frozen=True)
class Launch:
    """The arguments of the process of one message.

    task                   Flower's number of the message at its SuperNode
    address, token         the SuperNode's port, and what opens it for this message
    root_certificates      the certificate file that the port is trusted by; None: no TLS
    install_dependencies   whether Flower may install what the app names
    """

    task: int
    address: str
    token: str
    root_certificates: str | None
    install_dependencies: bool

    @staticmethod
    def read(line: bytes) -> "Launch":
        """Read a line that `write` has made."""
        return Launch(**json.loads(line))

    def write(self) -> bytes:
        """Return one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Journal:
    """The journal of one message; its first line is the launch, each other one a stage."""

    path: Path

    @staticmethod
    def create(folder: Path, launch: Launch) -> "Journal":
        """Start a journal, readable by its owner only: it has the message's token.

        Its space is reserved, so that a disk that fills up cannot lose a later line.
        """
        journal = Journal(folder / f"{launch.task}{SUFFIX}")
        journal.remove()
        try:
            file = os.open(journal.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(file, 0, RESERVED)
            finally:
                os.close(file)
            journal._append(launch.write())
        except OSError:
            journal.remove()
            raise
        return journal

    @staticmethod
    def find(folder: Path) -> list["Journal"]:
        """Return the journals in a folder; those without a whole first line are removed."""
        found = [Journal(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
        for journal in found:
            if not journal._lines():
                journal.remove()
        return [journal for journal in found if journal.path.exists()]

    def note(self, stage: str, **values: str) -> None:
        """Write down that a stage is reached."""
        self._append(json.dumps({"stage": stage, **values}).encode() + b"\n")

    @property
    def launch(self) -> Launch:
        """The arguments that the message's process was started with."""
        return Launch.read(self._lines()[0])

    @property
    def stage(self) -> str:
        """The last stage that was reached."""
        return self._stages()[-1]["stage"] if self._stages() else LAUNCHED

    @property
    def message(self) -> str | None:
        """The text that was noted when the message was pulled, if it was."""
        return next((line["message"] for line in self._stages() if "message" in line), None)

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def _lines(self) -> list[bytes]:
        """Return the whole lines: a process can be killed while it writes one.

        Zeros, the space that is reserved, follow the last one.
        """
        return self.path.read_bytes().split(b"\n")[:-1]

    def _stages(self) -> list[Mapping[str, str]]:
        return [json.loads(line) for line in self._lines()[1:]]

    def _append(self, line: bytes) -> None:
        """Write a line after the last whole one."""
        end = sum(len(whole) + 1 for whole in self._lines())
        file = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(file, line, end)
        finally:
            os.close(file)

"""Downloads that resume, are verified by checksum, and are put in place in one step.

A file is written as `<name>.part` beside its target and renamed only when its checksum is right: a
file under its final name is complete. A stopped download resumes with the bytes already received.
One process at a time downloads into a folder; others wait for it, then use what it received.
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from filelock import FileLock, Timeout

from udjfl._files import check_no_link
from udjfl.data.source import OnProgress, ignore_progress
from udjfl.errors import DataError

CHUNK = 1 << 16
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
RETRY_STATUS = (408, 425, 429)  # as all from 500 on
LOCK = ".download.lock"
logger = logging.getLogger("udjfl.data")


@dataclass(frozen=True)
class Remote:
    """A file to download: its name, the addresses of equal copies in order, and its MD5."""

    name: str
    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class RetryPolicy:
    """Attempts per address, seconds without data that end an attempt, and the sleep function."""

    attempts: int = 4
    timeout: float = 30.0
    sleep: Callable[[float], None] = time.sleep


DEFAULT_RETRIES = RetryPolicy()


@dataclass
class _TransferError(Exception):
    """A transfer that failed; `retry` is True if another attempt may succeed."""

    reason: str
    retry: bool


def fetch_all(
    remotes: Sequence[Remote],
    folder: Path,
    on_progress: OnProgress = ignore_progress,
    retries: RetryPolicy = DEFAULT_RETRIES,
) -> list[Path]:
    """Download files into a folder, unless they are there already; return their paths.

    The addresses of each file are tried in order. A DataError is raised at the first file that no
    address gives; files before it are kept. Bytes that an earlier call left in `<name>.part` are
    not requested again. `on_progress` is called with the file's name, the bytes received, and the
    total (0 if the server does not give it).

    An existing file with another checksum is damaged or another version. It is kept until its
    replacement is complete and verified, then replaced in one step; if that fails, the DataError
    states that it is still there. A download with a wrong checksum is removed, since resuming it
    could never succeed.
    """
    return [_fetch(remote, folder / remote.name, on_progress, retries) for remote in remotes]


def compute_md5(path: Path) -> str:
    """Return the MD5 of a file in hexadecimal. It guards against accidents, not forgery."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _fetch(remote: Remote, target: Path, on_progress: OnProgress, retries: RetryPolicy) -> Path:
    try:
        if _existing_md5(target) == remote.md5.lower():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent):
            # Another process may have received it in the meantime.
            existing = _existing_md5(target)
            if existing == remote.md5.lower():
                return target
            part = target.with_name(f"{target.name}.part")
            check_no_link(part)
            reasons: list[str] = []
            for url in remote.urls:
                try:
                    _download(url, part, remote, on_progress, retries)
                    return part.replace(target)
                except _TransferError as error:
                    reasons.append(f"{url}: {error.reason}")
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written or read: {error.strerror or error}. "
            "Free some space or give access, or choose another folder, and run again"
        ) from None
    raise _not_downloaded(remote, target, existing, reasons)


def _existing_md5(target: Path) -> str | None:
    return compute_md5(target) if target.exists() else None


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; wait for a process that downloads into it, with a word."""
    check_no_link(folder / LOCK)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.warning("Another process downloads into %s; waiting for it.", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _not_downloaded(
    remote: Remote, target: Path, existing: str | None, reasons: Sequence[str]
) -> DataError:
    kept = f"{target} has the checksum {existing}, so it is another file; it was left as it is."
    return DataError(
        "\n".join(
            [
                f"{target.name} could not be downloaded:",
                *(f"  {reason}" for reason in reasons),
                *([kept] if existing else []),
                f"Check the connection and run again: the download resumes. Or put {target.name} "
                f"(MD5 {remote.md5}) by hand into {target.parent}.",
            ]
        )
    )


def _download(
    url: str, part: Path, remote: Remote, on_progress: OnProgress, retries: RetryPolicy
) -> None:
    """Complete `part` from this address and verify it."""
    md5 = remote.md5.lower()
    if part.exists() and compute_md5(part) == md5:  # complete, but killed before the rename
        return
    for attempt in range(retries.attempts):
        try:
            _transfer(url, part, remote.name, on_progress, retries.timeout)
            break
        except _TransferError as error:
            if not error.retry or attempt + 1 == retries.attempts:
                raise
        retries.sleep(2.0**attempt)
    received = compute_md5(part)
    if received != md5:
        part.unlink()
        reason = f"expected the checksum (MD5) {md5}, got {received}; the download was removed"
        raise _TransferError(reason, retry=False)


def _transfer(url: str, part: Path, name: str, on_progress: OnProgress, timeout: float) -> None:
    """Append the missing bytes to `part`; restart it if the server cannot resume there."""
    response, done, total = _open(url, part.stat().st_size if part.exists() else 0, timeout)
    with response, part.open("ab" if done else "wb") as file:
        on_progress(name, done, total)
        while received := _read_chunk(response, done):
            file.write(received)
            done += len(received)
            on_progress(name, done, total)
        file.flush()
        os.fsync(file.fileno())  # the content must be on disk before the rename
    if done < total:
        raise _TransferError(f"the connection closed after {done} of {total} bytes", retry=True)


def _open(url: str, start: int, timeout: float) -> tuple[Any, int, int]:
    """Return a response, the file position of its first byte, and the file's size (0: unknown)."""
    headers = {"User-Agent": "udjfl"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        error.close()
        if start and error.code == 416:  # the part is not the beginning of the server's file
            return _open(url, 0, timeout)
        retry = error.code >= 500 or error.code in RETRY_STATUS
        raise _TransferError(f"the server answered {error.code} {error.reason}", retry) from None
    except (OSError, HTTPException) as error:
        raise _TransferError(_describe(error), retry=True) from None
    span = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status == 200:
        return response, 0, response.length or 0
    if response.status == 206 and span and int(span[1]) == start:
        return response, start, int(span[2]) + 1 if span[3] == "*" else int(span[3])
    response.close()
    if start:
        return _open(url, 0, timeout)
    raise _TransferError(
        f"the server answered {response.status} {response.reason}, without the file", retry=False
    )


def _read_chunk(response: Any, done: int) -> bytes:
    try:
        # Not `read`: it waits for a full chunk, and loses it if the connection breaks before.
        received: bytes = response.read1(CHUNK)
    except (OSError, HTTPException) as error:
        reason = f"the connection broke after {done} bytes ({_describe(error)})"
        raise _TransferError(reason, retry=True) from None
    return received


def _describe(error: Exception) -> str:
    return str(getattr(error, "reason", error)) or type(error).__name__

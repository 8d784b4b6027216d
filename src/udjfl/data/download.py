"""Fetching files: resumed where a transfer stopped, checked before they count, put in place in one step.

A file grows as `<name>.part` beside its place and gets its name only once its checksum is right. Whoever finds the file
under its own name may therefore rely on it, and a stopped download costs only what had not arrived yet.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from udjfl.data.source import Progress, silent
from udjfl.errors import DataError

CHUNK = 1 << 16
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
MAY_PASS = (408, 425, 429)  # as all from 500 on: an answer that may be another one in a moment


@dataclass(frozen=True)
class Remote:
    """A file to be had: its name, the addresses of equal copies, the one to ask first in front, and its MD5 checksum."""

    name: str
    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class Patience:
    """How often one address is tried, how many seconds without a byte end a try, and how to wait between tries."""

    attempts: int = 4
    timeout: float = 30.0
    pause: Callable[[float], None] = time.sleep


PATIENT = Patience()


class _Failed(Exception):
    """A transfer that did not get to its end; `again` says whether another try may."""

    def __init__(self, reason: str, again: bool) -> None:
        self.again = again
        super().__init__(reason)


def fetch(
    url: str, target: Path, md5: str, progress: Progress = silent, patience: Patience = PATIENT
) -> Path:
    """Get the file at `url` to `target`, unless it is there already; return `target`.

    What an earlier call left in `<target>.part` is not asked for again. `progress` gets the name of the file, the bytes
    there are and those there will be, 0 if the server does not say.

    A target with another checksum is not the file asked for: it is damaged, or another version. It stays untouched for as
    long as its replacement is not complete and checked, and is then replaced in one step; when that fails, the DataError
    says that it is still there. A download with a wrong checksum is removed, since going on from it could never succeed.
    """
    return _from_any((url,), target, md5, progress, patience)


def fetch_all(
    remotes: Sequence[Remote],
    folder: Path,
    progress: Progress = silent,
    patience: Patience = PATIENT,
) -> list[Path]:
    """Get these files into a folder, as `fetch` does; a file's other addresses are asked when one fails.

    The first file that no address gives ends it with a DataError; those before it are kept.
    """
    return [
        _from_any(remote.urls, folder / remote.name, remote.md5, progress, patience)
        for remote in remotes
    ]


def checksum(path: Path) -> str:
    """The MD5 of a file, in hexadecimal: what publishers of data give, good against accidents and not against forgery."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _from_any(
    urls: Sequence[str], target: Path, md5: str, progress: Progress, patience: Patience
) -> Path:
    part = target.with_name(f"{target.name}.part")
    try:
        there = checksum(target) if target.exists() else None
        if there == md5.lower():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        reasons = _reasons_not_got(urls, part, target.name, md5.lower(), progress, patience)
        if reasons is None:
            part.replace(target)
            return target
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written or read: {error.strerror or error}. "
            "Make room or give access, or choose another folder, and run again"
        ) from None
    raise DataError(_advice(reasons, target, md5, there))


def _reasons_not_got(
    urls: Sequence[str], part: Path, name: str, md5: str, progress: Progress, patience: Patience
) -> list[str] | None:
    """Why no address gave the file; None when one did, and `part` is it."""
    if (
        part.exists() and checksum(part) == md5
    ):  # left by a process that ended between the last byte and the new name
        return None
    reasons = []
    for url in urls:
        try:
            _try_often(url, part, name, progress, patience)
        except _Failed as failed:
            reasons.append(f"{url}: {failed}")
            continue
        found = checksum(part)
        if found == md5:
            return None
        part.unlink()
        reasons.append(
            f"{url}: expected the checksum (MD5) {md5}, found {found}, and removed what came"
        )
    return reasons


def _advice(reasons: Sequence[str], target: Path, md5: str, there: str | None) -> str:
    old = (
        ""
        if there is None
        else f"\n{target} has the checksum {there}, so it is another file; it was left as it is."
    )
    return (
        f"{target.name} could not be fetched:\n  "
        + "\n  ".join(reasons)
        + old
        + "\nCheck the connection and run again: "
        f"it goes on where it stopped. Or put {target.name} (MD5 {md5}) by hand into {target.parent}."
    )


def _try_often(url: str, part: Path, name: str, progress: Progress, patience: Patience) -> None:
    for attempt in range(patience.attempts):
        try:
            _transfer(url, part, name, progress, patience.timeout)
            return
        except _Failed as failed:
            if not failed.again or attempt + 1 == patience.attempts:
                raise
        patience.pause(2.0**attempt)


def _transfer(url: str, part: Path, name: str, progress: Progress, timeout: float) -> None:
    """Add to the part what is missing; start it again when the server does not go on where it ends."""
    response, done, total = _ask(url, part.stat().st_size if part.exists() else 0, timeout)
    with response, part.open("ab" if done else "wb") as out:
        progress(name, done, total)
        while received := _next(response, done):
            out.write(received)
            done += len(received)
            progress(name, done, total)
        out.flush()
        os.fsync(
            out.fileno()
        )  # so that not even a power cut leaves a file that has its name and not its content
    if done < total:
        raise _Failed(f"the connection closed after {done} of {total} bytes", again=True)


def _ask(url: str, start: int, timeout: float) -> tuple[Any, int, int]:
    """A response, the position its first byte has in the file, and the size of the file (0: unknown)."""
    headers = {"User-Agent": "udjfl"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        error.close()
        if start and error.code == 416:  # the part is no beginning of what the server has
            return _ask(url, 0, timeout)
        raise _Failed(
            f"the server answered {error.code} {error.reason}",
            error.code >= 500 or error.code in MAY_PASS,
        ) from None
    except (OSError, HTTPException) as error:
        raise _Failed(_reason(error), again=True) from None
    span = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status == 200:
        return response, 0, response.length or 0
    if response.status == 206 and span and int(span[1]) == start:
        return response, start, int(span[2]) + 1 if span[3] == "*" else int(span[3])
    response.close()
    if start:
        return _ask(url, 0, timeout)
    raise _Failed(
        f"the server answered {response.status} {response.reason}, without the file", again=False
    )


def _next(response: Any, done: int) -> bytes:
    try:
        # Not `read`: that waits for a full chunk, and loses what it has when the connection breaks before.
        received: bytes = response.read1(CHUNK)
    except (OSError, HTTPException) as error:
        raise _Failed(
            f"the connection broke after {done} bytes ({_reason(error)})", again=True
        ) from None
    return received


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", error)) or type(error).__name__

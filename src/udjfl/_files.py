"""Files: replaced in one step, never through a link, read with a limit; system errors explained.

Everything goes through functions of `os`, one call for each effect on the disk, so that tests can
make each of them fail.
"""

import errno
import json
import os
import secrets
import shlex
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

from udjfl.errors import StorageError

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# A pipe in place of a file must not make a program wait for its other end.
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
MODE = 0o666  # less the umask: readable as the user's other files are, never executable
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
PRIVATE = 0o600  # for its owner only
PART = ".part"
# Files larger than this are read by nothing here: a limit on memory, far above any real file.
MOST_BYTES = 1 << 34


def write_atomic(path: Path, content: bytes, mode: int = MODE) -> None:
    """Replace a file, or leave it as it was; a killed process leaves the old or the new one.

    The content is written beside it first, under a name that nothing else has. A link under the
    final name is replaced, not followed.
    """
    # The name may be as long as the system allows; the one beside it has to be allowed, too.
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}{PART}")
    with explain_os_errors(path):
        try:
            with open_file(beside, NEW_FILE, mode) as descriptor:
                write_all(descriptor, content)
                os.fsync(descriptor)
            beside.replace(path)
        except OSError:
            remove_file(beside)
            raise
        sync_folder(path.parent)


def prepare_file(path: Path) -> None:
    """Make the folder that a file will be written to; an error if it cannot be written there.

    For files that are written after long work: the mistake is told before.
    """
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def make_private_folder(path: Path) -> Path:
    """Make a folder that only its owner can enter, and so every folder above it that is missing."""
    if not path.is_dir():
        make_private_folder(path.parent)
        path.mkdir(exist_ok=True, mode=0o700)  # with `parents`, those would be open to others
    return path


@contextmanager
def open_file(path: Path, flags: int, mode: int = MODE) -> Iterator[int]:
    """Open a plain file by its own name, not through a link; yield its descriptor."""
    descriptor = os.open(path, flags | NO_FOLLOW | NO_WAIT, mode)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of the content."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a plain file of at most so many bytes."""
    with open_file(path, os.O_RDONLY) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most}", str(path))
        parts = []
        while received := os.read(descriptor, 1 << 20):
            parts.append(received)
        return b"".join(parts)


def read_prefix(path: Path, most: int) -> bytes:
    """Read a file, a link or a stream that the user names; more than so many bytes are an error.

    It is not read further than that, so that an endless stream ends, too.
    """
    parts: list[bytes] = []
    with path.open("rb") as file:
        while received := file.read(min(most + 1, 1 << 20)):
            parts.append(received)
            if sum(map(len, parts)) > most:
                raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return b"".join(parts)


def parse_json(content: bytes) -> Any:
    """Parse strict JSON in UTF-8; whatever is wrong with it is a ValueError."""
    try:
        return _DECODER.decode(content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(content: bytes) -> dict[str, Any]:
    """Parse TOML in UTF-8; whatever is wrong with it is a ValueError."""
    try:
        return tomllib.loads(content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_json(value: Any) -> bytes:
    """Return a value as the content of a JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there and can be removed."""
    with suppress(OSError):
        path.unlink()


def check_no_link(path: Path) -> None:
    """Raise an OSError if this name is a link."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def inner_folder(folder: Path, name: str) -> Path:
    """Return a folder in one that may be somebody else's; a link is refused: it could lead out."""
    path = folder / name
    with explain_os_errors(path):
        check_no_link(path)
    return path


def as_argument(path: Path) -> str:
    """Return a path as it is written in a command of a shell in the current folder."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def sync_folder(path: Path) -> None:
    """Make a rename survive a power cut, where the system allows it."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


FREE = "free some space, then `udjfl resume`: what is there is intact"
ELSEWHERE = "choose another folder"
IS_LINK = {errno.ELOOP: "it is a link, and links are not followed; put the file itself there"}
ADVICE = {
    "write": IS_LINK
    | {
        errno.ENOSPC: f"the disk is full; {FREE}",
        errno.EDQUOT: f"the quota is used up; {FREE}",
        errno.EROFS: f"the file system is read-only; {ELSEWHERE}",
        errno.EACCES: f"permission denied; {ELSEWHERE}",
        errno.EPERM: f"permission denied; {ELSEWHERE}",
        errno.ENOENT: f"there can be no such folder; {ELSEWHERE}",
        errno.ENOTDIR: f"a file is in the way; {ELSEWHERE}",
        errno.EISDIR: "it is a folder; name a file in it",
        errno.EEXIST: f"a file is in the way; {ELSEWHERE}",
        errno.ENAMETOOLONG: f"the name is too long; {ELSEWHERE}",
    },
    "read": IS_LINK
    | {
        errno.EACCES: "permission denied; make it readable for this user",
        errno.EPERM: "permission denied; make it readable for this user",
        errno.ENOENT: "there is no such file; check the name and the folder",
        errno.ENOTDIR: "there is no such file: a part of its path is no folder",
        errno.EISDIR: "it is a folder; name a file in it",
        errno.ENAMETOOLONG: "there is no such file: the name is too long",
    },
}


@contextmanager
def explain_os_errors(path: Path, verb: Literal["write", "read"] = "write") -> Iterator[None]:
    """Turn an OSError into a `StorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        advice = ADVICE[verb].get(error.errno or 0, error.strerror or str(error))
        raise StorageError(f"cannot {verb} {path}: {advice}") from error

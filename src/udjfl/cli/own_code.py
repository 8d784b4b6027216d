"""Errors in a user's own methods, models and data: which file and line, in one line."""

import ast
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
)
# A line of a traceback that another process has sent as text.
FRAME = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>\S+)', re.M)

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A line of code, and the function that it is in."""

    file: str
    line: int
    function: str


def describe_own_failure(error: BaseException) -> str | None:
    """Say where a user's own code failed; None if the error did not pass through any."""
    own = [place for place in _find_places(error) if _is_own(place.file)]
    if not own:
        return None
    file, line, function = own[-1]
    what = "".join(traceback.format_exception_only(error)).strip()
    return f"{file}, line {line}, in {function}: {what}"


def _find_places(error: BaseException) -> list[Place]:
    """List the calls that led to an error, the innermost last."""
    places = [
        Place(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    sent = re.findall(FRAME, str(error.__cause__)) if error.__cause__ else []  # by a process
    return [*places, *(_qualify(Place(file, int(line), name)) for file, line, name in sent)]


def _qualify(place: Place) -> Place:
    """Put the class before the function, where the source can be read: a text has it without."""
    try:
        nodes: list[ast.AST] = [ast.parse(Path(place.file).read_bytes())]
    except (OSError, SyntaxError, ValueError):
        return place
    names = []
    for node in nodes:  # from the outside in
        inner = [child for child in ast.iter_child_nodes(node) if _spans(child, place.line)]
        nodes += inner
        names += [child.name for child in inner if isinstance(child, FUNCTION | ast.ClassDef)]
    is_found = bool(names) and names[-1] == place.function
    return place._replace(function=".".join(names)) if is_found else place


def _spans(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", None) or 0)


def _is_own(name: str) -> bool:
    """Tell whether a file is neither of udjfl nor of a library."""
    path = Path(name)
    if not path.is_file() or path == Path(sys.argv[0]):
        return False
    path = path.resolve()
    return not any(path.is_relative_to(folder) for folder in (PACKAGE, *LIBRARIES))

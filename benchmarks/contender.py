"""The child's side of the pipe: `python -m benchmarks.contender MODULE VARIANT WORK`.

One JSON object per line each way.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterable
from typing import IO, Any

import torch

from benchmarks.work import Work


def main() -> None:
    module, variant, work = sys.argv[1:]
    out = _take_standard_output()
    try:
        imported = importlib.import_module(f"benchmarks.contenders.{module}")
        contender = imported.start(Work.from_json(work), variant)
    except Exception as error:
        _send(out, {"error": _reason(error)})
        raise
    _send(out, {"setup": imported.SETUP[variant], "torch": torch.__version__})
    serve(contender, sys.stdin, out)


def serve(contender: Any, lines: Iterable[str], out: IO[str]) -> None:
    """Answer commands, one per line, until `stop` or the end of the input."""
    for line in lines:
        message = json.loads(line)
        if message["command"] == "stop":
            break
        try:
            _send(out, _answer(contender, message["command"], message["rounds"]))
        except Exception as error:
            _send(out, {"error": _reason(error)})
            raise
    contender.stop()


def _take_standard_output() -> IO[str]:
    """Return standard output; what packages print goes to standard error from now on."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _answer(contender: Any, command: str, rounds: int) -> dict[str, Any]:
    if command == "check":
        return contender.check(rounds)
    contender.prepare()
    begin = time.perf_counter()
    outcome = contender.run(rounds)
    return {"seconds": time.perf_counter() - begin, **outcome}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _send(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()

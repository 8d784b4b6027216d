"""The child's side of the pipe: `python -m benchmarks.contender MODULE VARIANT WORK`, one JSON object per line each way."""

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
    out = _own_pipe()
    try:
        found = importlib.import_module(f"benchmarks.contenders.{module}")
        contender = found.start(Work.from_json(work), variant)
    except Exception as error:
        _say(out, {"error": _reason(error)})
        raise
    _say(out, {"setup": found.SETUP[variant], "torch": torch.__version__})
    serve(contender, sys.stdin, out)


def serve(contender: Any, lines: Iterable[str], out: IO[str]) -> None:
    """Do what is asked, line by line, until told to stop or until nobody is left to ask."""
    for line in lines:
        message = json.loads(line)
        if message["do"] == "stop":
            break
        try:
            _say(out, _answer(contender, message["do"], message["rounds"]))
        except Exception as error:
            _say(out, {"error": _reason(error)})
            raise
    contender.stop()


def _own_pipe() -> IO[str]:
    """Standard output for us alone: what packages print goes where their errors go."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _answer(contender: Any, do: str, rounds: int) -> dict[str, Any]:
    if do == "check":
        return contender.check(rounds)
    contender.prepare()
    begin = time.perf_counter()
    outcome = contender.run(rounds)
    return {"seconds": time.perf_counter() - begin, **outcome}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _say(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()

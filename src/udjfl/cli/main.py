"""The entry point of the command: errors and Ctrl-C become lines on standard error.

Nothing slow is imported before `main` is called, so that Ctrl-C is handled from the start.
"""

import os
import signal
import sys
from typing import NoReturn

INTERRUPTED = 130  # the exit code after Ctrl-C, also that of typer
CLEAR_LINE = "\r" + " " * 40 + "\r"


class Interrupted(SystemExit):
    """Raised after Ctrl-C by a command that knows what to print: what goes on without it."""

    def __init__(self, advice: str) -> None:
        super().__init__(INTERRUPTED)
        self.advice = advice


def main() -> None:
    """Run the command line. Errors meant for the user become one line each on standard error."""
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_at_once)
    try:
        _run_app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            # From here a second Ctrl-C, while Python shuts down, must not print a traceback.
            previous = exit_at_once
            from udjfl.cli.wrapping import print_wrapped

            if isinstance(stop, Interrupted):
                advice = stop.advice
            else:
                advice = advise_after_stop(sys.argv[1:])
            print_wrapped(f"udjfl: {advice}")
        raise
    finally:
        signal.signal(signal.SIGINT, previous)


def exit_at_once(*_: object) -> None:
    """Leave on Ctrl-C while there is no work to clean up: during start-up and shutdown."""
    # No print: Python may be writing to the same stream when the signal arrives.
    os.write(2, ((CLEAR_LINE if os.isatty(2) else "") + "udjfl: stopped\n").encode())
    os._exit(INTERRUPTED)


def advise_after_stop(arguments: list[str]) -> str:
    """Return what to print after Ctrl-C: how to continue the work of this command."""
    command = arguments[0] if arguments else ""
    if command in ("run", "compare", "reproduce") and "--out" not in arguments:
        return "stopped; nothing was kept (give --out FOLDER to be able to continue)"
    if command in ("run", "compare"):
        from pathlib import Path

        from udjfl.training.resuming import advise_to_resume

        folder = (arguments[arguments.index("--out") + 1 :] or ["FOLDER"])[0]
        return f"stopped; continue with {advise_to_resume(Path(folder))}"
    continues = command in ("resume", "reproduce") or arguments[:2] == ["data", "prepare"]
    return "stopped; run the same command again to continue" if continues else "stopped"


def _run_app() -> None:
    import contextlib
    import io
    from pathlib import Path

    from udjfl.cli.app import app
    from udjfl.errors import UdjflError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show must not end a long run with a traceback.
            stream.reconfigure(errors="replace")
    with contextlib.suppress(OSError):  # the folder may be gone
        sys.path.append(str(Path.cwd()))  # for methods, models and data of one's own
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, not at the exit of Python, which would print a traceback
    except UdjflError as error:
        _fail(str(error))
    except MemoryError:
        _fail("there is not enough memory; choose a smaller model, or fewer clients")
    except OSError as error:
        _fail(_describe_os_error(error))
    except Exception as error:
        from udjfl.cli.own_code import describe_own_failure

        failure = describe_own_failure(error)
        if failure is None:
            raise
        _fail(failure)


def _describe_os_error(error: OSError) -> str:
    """Return what failed: a file, a connection, or else a stream, which is then left alone."""
    import ssl

    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {reason}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {reason}; check the certificates, and this machine's clock"
    # What is left in the stream must not fail again when Python exits.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return f"cannot write the output: {reason}"


def _fail(message: str) -> NoReturn:
    """Print an error and exit."""
    from udjfl.cli.wrapping import print_wrapped

    for line in message.split("\n"):
        print_wrapped(f"udjfl: {line}")
    sys.exit(2)


if __name__ == "__main__":
    main()

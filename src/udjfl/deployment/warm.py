"""Warm clients: an executor that has imported everything, and forks a process for each message.

Flower starts a new Python for every message to a client, which imports torch: seconds of computing
for milliseconds of work. Beside a SuperNode that leaves its messages to others,

    python -m udjfl.deployment.supernode ... --host 127.0.0.1 --port 9094 \\
        --isolation process --superexec-auth-secret-file node.secret
    python -m udjfl.deployment.warm --runtime-api-address 127.0.0.1:9094 \\
        --superexec-auth-secret-file node.secret

the executor takes each message and handles it in a process of its own, as Flower does, but a fork
of one in which everything is there already. A message whose process is killed or hangs is lost:
the server is told, the client is absent in that round, and the node takes the next message.

It relies on parts of Flower that are not public (`flwr_internals`), and on Linux. With another
Flower, or elsewhere, it warns and runs Flower's own `flower-superexec`, with the same results.
"""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from udjfl.deployment import flwr_internals
from udjfl.deployment.fork_server import ExecutorOptions, ForkServer

logger = logging.getLogger("udjfl")
# numpy and torch start threads, which do not survive a fork. udjfl's clients use one in any case.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Imported before the first message, besides Flower's own parts.
PRELOADED = (
    *("numpy", "torch", "torch.func"),
    *("udjfl.flower", "udjfl.data", "udjfl.engine", "udjfl.uncertainty"),
)


def executor_command(
    address: str,
    secret_file: str | os.PathLike[str],
    *,
    root_certificates: str | os.PathLike[str] | None = None,
    messages: str | os.PathLike[str] | None = None,
    message_timeout: float | None = None,
    preload: Sequence[str] = (),
    supernode_pid: int | None = None,
) -> list[str]:
    """Return the command of the executor of a SuperNode.

    It ends with SIGTERM, or with the SuperNode; if it is killed, start it again.
    Its environment should be `executor_environment()`.

    address            host:port of the SuperNode (its `--host` and `--port`)
    secret_file        the file that the SuperNode has as `--superexec-auth-secret-file`
    root_certificates  the certificate that the SuperNode's port is trusted by; None: no TLS there,
                       as is usual on the loopback interface
    messages           a folder for notes on messages in progress, kept when the executor is started
                       again; None: beside the secret file, with `.messages` at the end
    message_timeout    seconds after which the process of a message is killed; None: when the server
                       no longer waits for the reply
    preload            further modules to import before the first message, such as those of an app
    supernode_pid      the SuperNode's process, with which the executor ends
    """
    command = [sys.executable, "-m", "udjfl.deployment.warm", "--runtime-api-address", address]
    command += ["--superexec-auth-secret-file", os.fspath(secret_file)]
    if root_certificates is not None:
        command += ["--root-certificates", os.fspath(root_certificates)]
    if messages is not None:
        command += ["--messages", os.fspath(messages)]
    if message_timeout is not None:
        command += ["--message-timeout", repr(float(message_timeout))]
    if supernode_pid is not None:
        command += ["--parent-pid", str(supernode_pid)]
    return [*command, *(f"--preload={name}" for name in preload)]


def executor_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of an executor: this (or the given) one, and one thread."""
    given = os.environ if environment is None else environment
    return {**given, **dict.fromkeys(ONE_THREAD, "1")}


def unsupported_reason() -> str | None:
    """Return why clients cannot be kept warm here, or None."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return "only Linux is supported"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"the kernel does not support it ({error})"
    return flwr_internals.find_mismatch()


def import_all(preload: Sequence[str]) -> str | None:
    """Import everything that messages need; return why no process can be forked now, or None."""
    for name in (*PRELOADED, *flwr_internals.PRELOADED, *preload):
        importlib.import_module(name)
    torch = importlib.import_module("torch")
    if torch.cuda.is_initialized():
        return "a preloaded module has initialised CUDA, which does not survive a fork"
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"preloaded modules have started {threads - 1} threads, which do not survive a fork"
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run an executor in this process, which must be a new one."""
    options, preload = _parse(arguments)
    environment = executor_environment()
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    show_log()
    reason = unsupported_reason()
    if reason is None:
        flwr_internals.protect_memory()
        reason = import_all(preload)
    if reason is not None:
        logger.warning(
            "Clients start anew for every message, which takes seconds of computing each: %s",
            reason,
        )
        command = _stock_command(options)
        os.execvp(command[0], command)
    logger.info("Clients are warm: messages to %s are handled by forks", options.address)
    ForkServer(options).run()


def _parse(arguments: Sequence[str] | None) -> tuple[ExecutorOptions, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m udjfl.deployment.warm",
        description="Handle a SuperNode's messages in forks of one process that has imported "
        "everything.",
    )
    parser.add_argument("--runtime-api-address", required=True, help="host:port of the SuperNode")
    parser.add_argument(
        "--superexec-auth-secret-file",
        required=True,
        type=Path,
        help="the file that the SuperNode was started with",
    )
    parser.add_argument(
        "--root-certificates",
        type=Path,
        help="certificate that the SuperNode's port is trusted by (default: a port without TLS)",
    )
    parser.add_argument(
        "--messages",
        type=Path,
        help="folder for notes on messages in progress (default: beside the secret file)",
    )
    parser.add_argument(
        "--message-timeout",
        type=float,
        help="seconds after which the process of a message is killed (default: when the server no "
        "longer waits)",
    )
    parser.add_argument("--parent-pid", type=int, help="process with which the executor ends")
    parser.add_argument(
        "--preload", action="append", default=[], help="module to import before the first message"
    )
    given = parser.parse_args(arguments)
    secret: Path = given.superexec_auth_secret_file
    options = ExecutorOptions(
        given.runtime_api_address,
        secret,
        given.messages or secret.with_name(secret.name + ".messages"),
        given.root_certificates,
        given.message_timeout,
        parent_pid=given.parent_pid,
    )
    return options, given.preload


def show_log() -> None:
    """Write what udjfl has to say to the standard error, and nothing of other libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s udjfl: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _stock_command(options: ExecutorOptions) -> list[str]:
    """Return the command of Flower's own executor."""
    beside = Path(sys.executable).with_name("flower-superexec")
    command = [str(beside) if beside.exists() else beside.name]
    command += ["--runtime-api-address", options.address]
    command += ["--superexec-auth-secret-file", str(options.secret_file)]
    if options.root_certificates is None:
        command.append("--insecure")
    else:
        command += ["--root-certificates", str(options.root_certificates)]
    if options.parent_pid is not None:
        command += ["--parent-pid", str(options.parent_pid)]
    return command


if __name__ == "__main__":
    main()

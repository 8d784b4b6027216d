"""The parts of Flower below its public interface that warm clients and short waits rely on.

Everything of this kind is here and is imported late, so that `find_mismatch` and
`find_supernode_mismatch` can look at the installed Flower first. A Flower that looks different is
not used in this way.
"""

import ast
import base64
import functools
import importlib
import inspect
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from udjfl.deployment.message_journal import PULLED, REPLIED, REPLYING, Journal, Launch
from udjfl.deployment.pauses import GrowingPause, Growth

# Versions whose sources were compared and that the tests ran with: from the first, before the last.
TESTED = ((1, 40), (1, 43))
SUPEREXEC = "flwr.supercore.superexec.run_superexec"
CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
SUPERNODE = "flwr.supernode.start_client_internal"
# Imported before the first fork, so that no message pays for them.
PRELOADED = (SUPEREXEC, CLIENTAPP, "flwr.clientapp", "flwr.app", "flwr.common.config")
# Parameters, or fields, that calls from here name or pass by position.
PARAMETERS = {
    f"{SUPEREXEC}.run_superexec": (
        "runtime_api_address",
        "insecure",
        "root_certificates_path",
        "superexec_auth_secret",
        "runtime_dependency_install",
    ),
    f"{SUPEREXEC}.get_executor": (
        "executor_type",
        "executor_config",
        "insecure",
        "root_certificates_path",
    ),
    f"{CLIENTAPP}.run_clientapp": (
        "runtime_api_address",
        "token",
        "insecure",
        "certificates",
        "parent_pid",
        "runtime_dependency_install",
    ),
    f"{CLIENTAPP}.pull_task_input": ("client",),
    f"{CLIENTAPP}.push_message": ("client", "message", "context"),
    f"{CLIENTAPP}.push_task_output": ("client", "context", "sub_status", "details"),
    "flwr.supercore.superexec.executor.SubprocessExecutor.launch": ("self", "spec"),
    "flwr.supercore.tls.validate_and_resolve_root_certificates": ("root_cert_path", "insecure"),
    "flwr.supercore.auth.load_superexec_auth_secret": ("secret_file",),
    "flwr.supercore.utils.disable_process_dumping": ("strict",),
    "flwr.common.serde.message_to_proto": ("message",),
    "flwr.common.serde.message_from_proto": ("message_proto",),
}
# What a function calls by names of its module, or of the client that it is given, where it can be
# replaced.
CALLS = {
    f"{SUPEREXEC}.run_superexec": {"get_executor"},
    f"{CLIENTAPP}.run_clientapp": {"pull_task_input", "push_message", "push_task_output"},
    f"{CLIENTAPP}.pull_task_input": {"PullMessages"},
}
OTHER_USE = "uses time otherwise than to sleep, or does not"
# Seconds between SuperExec's questions to its SuperNode for a message: at most, and how they grow.
POLL_INTERVAL, LONGEST_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL", 1.0
POLLS = Growth(0.05, 1.1)
# What `run_supernode` wraps, with the parameters that Flower passes by name.
SUPERNODE_PARAMETERS = {
    f"{SUPERNODE}._pull_and_store_message": ("receive",),
    f"{SUPERNODE}._push_messages": ("state", "object_store", "send", "push_object"),
}
FAILED, CRASHED = "failed", 8  # Flower's status of a task, and its code of an app that crashed
START_LIMIT = 600.0  # seconds that a process has until it is told of its message
ANSWER_LIMIT = 30  # seconds that replying in place of an ended process may take


def find_mismatch() -> str | None:
    """Return how the installed Flower differs from what warm clients rely on, or None."""
    if other := _find_other_version():
        return other
    try:
        if other := _find_other_parameters(PARAMETERS):
            return other
        for name, called in CALLS.items():
            if missing := called - _names_in(_find(name).__code__):
                return f"{name} does not call {', '.join(sorted(missing))}"
        if not _only_sleeps(SUPEREXEC):
            return f"{SUPEREXEC} {OTHER_USE}"
    except (ImportError, AttributeError, TypeError, ValueError, OSError, SyntaxError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def find_supernode_mismatch() -> str | None:
    """Return how the installed Flower differs from what `run_supernode` relies on, or None."""
    if other := _find_other_version():
        return other
    try:
        _find("flwr.supernode.cli.flower_supernode")
        if other := _find_other_parameters(SUPERNODE_PARAMETERS):
            return other
        return None if _only_sleeps(SUPERNODE) else f"{SUPERNODE} {OTHER_USE}"
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        return f"{type(error).__name__}: {error}"


def _find_other_parameters(parameters: Mapping[str, tuple[str, ...]]) -> str | None:
    for name, expected in parameters.items():
        found = tuple(inspect.signature(_find(name)).parameters)
        if not set(expected) <= set(found):
            return f"{name} has other parameters: {', '.join(found)}"
    return None


def _find_other_version() -> str | None:
    import flwr

    other = f"flwr is {flwr.__version__}; tested are versions {describe_tested()}"
    try:
        version = tuple(int(part) for part in flwr.__version__.split(".")[:2])
    except ValueError:  # Flower calls itself "unknown" if it is not installed as a package
        return other
    return None if TESTED[0] <= version < TESTED[1] else other


def describe_tested() -> str:
    """Return the tested versions of Flower in words."""
    first, last = (".".join(map(str, edge)) for edge in TESTED)
    return f"from {first}, before {last}"


def protect_memory() -> None:
    """Keep other processes of the user from reading this one's memory, as Flower's own do."""
    _find("flwr.supercore.utils.disable_process_dumping")(strict=False)


def run_superexec(
    address: str,
    secret_file: Path,
    root_certificates: Path | None,
    install_dependencies: bool,
    launches: socket.socket,
) -> None:
    """Run Flower's SuperExec, which fetches tasks; those of clients are sent to `launches`."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import LaunchResult, SubprocessExecutor

    class ForwardingExecutor(SubprocessExecutor):
        """Leaves starting the processes of clients to the process with everything imported."""

        def launch(self, spec: Any) -> LaunchResult:
            clock.restart()  # the next message may come soon
            if spec.task_type != TaskType.CLIENT_APP:
                return super().launch(spec)
            launches.sendall(
                Launch(
                    spec.task_id,
                    spec.runtime_api_address,
                    spec.token,
                    None if spec.insecure else spec.root_certificates_path,
                    spec.runtime_dependency_install,
                ).write()
            )
            return LaunchResult.accepted()

    clock = GrowingPause({float(os.environ.get(POLL_INTERVAL, LONGEST_POLL)): POLLS})
    module: Any = importlib.import_module(SUPEREXEC)
    module.get_executor, module.time = lambda *_, **__: ForwardingExecutor(), clock
    _find(f"{SUPEREXEC}.run_superexec")(
        runtime_api_address=address,
        insecure=root_certificates is None,
        root_certificates_path=None if root_certificates is None else str(root_certificates),
        superexec_auth_secret=_find("flwr.supercore.auth.load_superexec_auth_secret")(
            secret_file=str(secret_file)
        ),
        runtime_dependency_install=install_dependencies,
    )


def run_supernode(clock: Any, wrap: Callable[..., tuple[Any, Any]]) -> None:
    """Run Flower's SuperNode with the arguments of this process.

    `clock.sleep` is how it waits. `wrap` gets its two steps, and returns them changed.
    """
    module: Any = importlib.import_module(SUPERNODE)
    module.time = clock
    module._pull_and_store_message, module._push_messages = wrap(
        module._pull_and_store_message, module._push_messages
    )
    _find("flwr.supernode.cli.flower_supernode")()


def run_message(journal: Journal, limit: float | None) -> None:
    """Run the app on one message; write to the journal how far it got.

    The process is killed, whatever it does, when the server no longer waits for the reply, or
    after `limit` seconds. That holds while it fetches the message too: a run that is stopped in
    the middle of sending one never sends the rest.
    """
    module: Any = importlib.import_module(CLIENTAPP)
    launch = journal.launch
    pull, push, finish = module.pull_task_input, module.push_message, module.push_task_output

    @functools.wraps(pull)
    def pull_task_input(client: Any) -> Any:
        ask = client.PullMessages

        def pull_messages(request: Any) -> Any:
            response = ask(request)
            for message in response.messages_list:
                ttl = message.metadata.ttl
                kill_after(ttl if limit is None else min(ttl, limit))
                journal.note(PULLED, message=_describe(message))
            return response

        client.PullMessages = pull_messages
        return pull(client)

    @functools.wraps(push)
    def push_message(client: Any, message: Any, context: Any) -> None:
        journal.note(REPLYING)
        push(client, message, context)
        journal.note(REPLIED)

    @functools.wraps(finish)
    def push_task_output(client: Any, context: Any, sub_status: str, details: str) -> None:
        # Flower takes the token of a finished task away, and with it the way to reply.
        if journal.stage == REPLIED:
            finish(client=client, context=context, sub_status=sub_status, details=details)

    module.pull_task_input, module.push_message = pull_task_input, push_message
    module.push_task_output = push_task_output
    kill_after(START_LIMIT if limit is None else limit)
    module.run_clientapp(
        runtime_api_address=launch.address,
        token=launch.token,
        insecure=launch.root_certificates is None,
        certificates=_certificates(launch),
        parent_pid=None,
        runtime_dependency_install=launch.install_dependencies,
    )


def kill_after(seconds: float) -> None:
    """Let the kernel kill this process after so many seconds, even if it hangs."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))


def answer(launch: Launch, noted: str | None, reason: str) -> None:
    """Reply in place of a process that ended without a reply: the client is absent this once.

    `noted` is what the journal has of the message, if it was fetched.

    Without a reply Flower's SuperNode would wait, for this message and thereby for ever, unless
    the message had been fetched: then it replies by itself after a minute.
    """
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.common.serde import message_from_proto
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    module: Any = importlib.import_module(CLIENTAPP)
    kill_after(ANSWER_LIMIT)
    client = module.RuntimeHttpClient.from_server_address(
        server_address=launch.address,
        insecure=launch.root_certificates is None,
        root_certificates=_certificates(launch),
        interceptors=[
            module.RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            module.RuntimeTokenHttpInterceptor(launch.token),
        ],
        retry_invoker=module.make_simple_http_retry_invoker(),
    )
    if noted is not None:
        proto = ProtoMessage.FromString(base64.b64decode(noted))
    else:
        waiting = client.PullMessages(PullAppMessagesRequest()).messages_list
        if not waiting:
            return
        proto = waiting[0]
    message = message_from_proto(proto)
    run, node = message.metadata.run_id, message.metadata.dst_node_id
    reply = Message(Error(CRASHED, reason), reply_to=message)
    module.push_message(client, reply, Context(run, node, {}, RecordDict(), {}))
    module.push_task_output(client=client, context=None, sub_status=FAILED, details=reason)


def _certificates(launch: Launch) -> bytes | None:
    """Return the certificates that the SuperNode's port is trusted by; None: it has no TLS."""
    path = launch.root_certificates
    resolve = _find("flwr.supercore.tls.validate_and_resolve_root_certificates")
    found: bytes | None = resolve(path, path is None)
    return found


def _describe(message: Any) -> str:
    """Return a message with an empty content in the place of its own, as text."""
    announced = type(message)()
    announced.metadata.CopyFrom(message.metadata)
    announced.content.SetInParent()
    return base64.b64encode(announced.SerializeToString()).decode()


def _names_in(code: CodeType) -> set[str]:
    """Return the global names that a function and the functions within it use."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return {*code.co_names}.union(*map(_names_in, inner))


def _only_sleeps(module: str) -> bool:
    """Tell if a module of Flower uses `time` to sleep, and for nothing else."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return _uses_of("time", tree) == {"time.sleep"}


def _uses_of(module: str, tree: ast.AST) -> set[str]:
    """Return what a file uses of a module that it imports, such as `time.sleep`."""
    parts = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    ]
    within = {id(node.value) for node in parts}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == module]
    whole = {module for node in names if id(node) not in within}
    from_it = {
        f"from {module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
    }
    return {f"{module}.{node.attr}" for node in parts} | whole | from_it


def _find(name: str) -> Callable[..., Any]:
    """Return a function, or a method of a class, by its full name."""
    owner, _, last = name.rpartition(".")
    try:
        parent: Any = importlib.import_module(owner)
    except ModuleNotFoundError:
        parent = _find(owner)
    found: Callable[..., Any] = getattr(parent, last)
    return found

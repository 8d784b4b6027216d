"""`udjfl flower`: a federation of real machines, on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from udjfl._files import as_argument
from udjfl.cli.command import CommandGroup, LightCommand
from udjfl.cli.main import Interrupted
from udjfl.cli.options import AsJson
from udjfl.cli.progress import show_status
from udjfl.cli.wrapping import print_wrapped
from udjfl.errors import DeploymentError

app = CommandGroup("Deploy a federation on real machines with Flower: a coordinator and nodes.")

LISTEN = "0.0.0.0:8443"
Folder = Annotated[Path, typer.Argument(help="The folder of the coordinator, or of the node.")]
CoordinatorFolder = Annotated[Path, typer.Argument(help="The coordinator's folder.")]
Foreground = Annotated[
    bool, typer.Option("--foreground", help="Stay in this terminal: for systemd and containers.")
]


@app.command("init", short_help="Write an app for your own tables: a model and its data.")
def init_command(
    folder: Annotated[Path, typer.Argument(help="New folder for the coordinator.")],
    like: Annotated[
        Path,
        typer.Option(
            "--like", metavar="FILE", help="CSV file with the columns and texts of all nodes."
        ),
    ],
    target: Annotated[str, typer.Option(help="Column of the labels, or a comparison: 'delay>15'.")],
    model: Annotated[str, typer.Option(help="mlp, logistic, or package.module:function.")] = "mlp",
    drop: Annotated[str, typer.Option(help="Columns to leave out, separated by commas.")] = "",
    categories: Annotated[
        str,
        typer.Option(
            help="Columns whose numbers are codes, or whose rare texts are no ids, separated by "
            "commas."
        ),
    ] = "",
) -> None:
    """Write a Flower app that trains on a CSV file at each node.

    Of the file --like, the names of columns and classes are written to the app, and every text of
    columns with categories: all nodes receive them, so read the list that is printed. Columns whose
    texts seem to be names or ids are left out. Every setting is declared in pyproject.toml, so that
    `udjfl flower run -c` can change it; schema.json and task.py are the parts to change by hand.
    """
    from udjfl.flower.new_app import write_app

    schema = write_app(
        folder, like, target, model, drop=_split(drop), categories=_split(categories)
    )
    print(f"{folder}: an app with {len(schema.columns)} columns, {len(schema.class_names)} classes")
    for name, reason in schema.left_out.items():
        print(f"  left out: {name} ({reason})")
    print("these texts go to every node; leave columns out with --drop:")
    print(f"  {target} (classes): {', '.join(schema.class_names)}")
    for column in schema.columns:
        if column.labels:
            print(f"  {column.name}: {', '.join(column.labels)}")
    print(f"next: udjfl flower keys {as_argument(folder)} --host NAME-OF-THIS-MACHINE")


def _split(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


@app.command(
    "keys", short_help="Make certificates (coordinator) or a key (node).", cls=LightCommand
)
def keys_command(
    folder: Folder,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", help="Coordinator: name or address by which nodes reach it; repeat for more."
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Node: its name in all tables.")
    ] = None,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew", help="Coordinator: a new certificate of the server, for the same names."
        ),
    ] = False,
) -> None:
    """Make the keys of a coordinator (--host) or of a node (--node).

    A coordinator gets an authority (keys/ca.crt, for all nodes) and a certificate of the server,
    valid for 397 days. --renew replaces that certificate, with --host for other names; ca.key has
    to be in its place, and nodes keep their ca.crt. A node gets a key pair; NAME.pub is for the
    coordinator. Private keys stay on the machine they are made on.
    """
    from udjfl.deployment.coordinator import Coordinator
    from udjfl.deployment.node import Node

    if (bool(hosts) or renew) == (node is not None):
        raise DeploymentError("give --host or --renew (the coordinator) or --node (a node)")
    try:
        if node is not None:
            public = Node(folder).make_key(node)
            print(f"{public} is for the coordinator; the key beside it stays here.")
            return
        coordinator = Coordinator(folder)
        coordinator.make_keys(hosts or [], renew)
    except FileExistsError as error:
        raise DeploymentError(_describe_existing(Path(error.filename))) from None
    except FileNotFoundError as error:
        raise DeploymentError(_describe_missing(Path(error.filename))) from None
    if renew:
        down = f"udjfl flower down {as_argument(folder)}"
        print(f"{coordinator.certificate} is new; {down} and up use it.")
        return
    _warn_without_app(folder)
    print(f"{coordinator.ca} is for every node; all other files in that folder stay here.")
    print(f"Compare it by telephone: {_fingerprint(coordinator.ca)}")


def _warn_without_app(folder: Path) -> None:
    """Say that runs need an app, as the folder may be mistyped."""
    if not (folder / "pyproject.toml").exists():
        print_wrapped(f"`{folder}` has no app yet: `udjfl flower init` makes one")


def _describe_existing(path: Path) -> str:
    """Return why a key is not made a second time, and what to do."""
    advice = {
        "server.key": "--renew with --host replaces the server's certificate",
        "server.crt": "--renew with --host replaces the server's certificate",
        "ca.key": "restore ca.crt, which belongs to it, or move it away for another authority",
    }
    return f"{path} exists already; {advice.get(path.name, 'move it away first')}"


def _describe_missing(path: Path) -> str:
    """Return what a certificate needs, and where it comes from."""
    advice = {
        "server.crt": "give the names of the new certificate with --host",
        "ca.crt": "restore it, every node has a copy; the first time, --host alone makes it",
        "ca.key": "put it back for as long as it takes to make a certificate",
    }
    return f"{path} is missing: {advice.get(path.name, 'a certificate needs it')}"


def _fingerprint(path: Path) -> str:
    from udjfl.deployment.keys import fingerprint

    return f"SHA-256 {fingerprint(path)}"


@app.command("up", short_help="Start the coordinator, and admit nodes.", cls=LightCommand)
def up_command(
    folder: CoordinatorFolder,
    keys: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[NAME.pub]...", help="Public keys of nodes to admit, named like the nodes."
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address and port for nodes.")
    ] = LISTEN,
    foreground: Foreground = False,
) -> None:
    """Start a SuperLink that only admitted nodes can use; if it runs, admit more nodes.

    Nodes connect to one port, with TLS. Nothing but what nodes need passes there; runs are started
    on this machine only. The keys of admitted nodes are in nodes/: remove its file, and a node is
    admitted no longer. That is final: to come back, it has to make a new key.
    """
    from udjfl.deployment.coordinator import Coordinator

    coordinator = Coordinator(folder)
    coordinator.check_files()
    coordinator.admit(keys or [])
    if foreground:
        coordinator.run_services(listen)
        return
    with show_status("starting the SuperLink"):
        running = coordinator.running()
        if running is None:
            coordinator.start(listen)
        else:
            coordinator.wait_until_open()
    refused = coordinator.refused()
    names = ", ".join(name for name in coordinator.admitted() if name not in refused) or "none yet"
    address = (coordinator.running() or {}).get("listen", listen)
    print(f"open for nodes on {address}; admitted: {names}")
    for problem in coordinator.unreadable():
        print_wrapped(f"changes nothing: {problem}")
    _warn_without_app(folder)
    if refused:
        raise DeploymentError("; ".join(refused.values()))


@app.command(
    "node", short_help="Start a node: train on the data of this machine.", cls=LightCommand
)
def node_command(
    folder: Annotated[Path, typer.Argument(help="The node's folder.")],
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The coordinator's machine and port.")
    ] = None,
    ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="The coordinator's ca.crt.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="FILE", help="The data of this node.")] = None,
    disclose: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="What may be sent, separated by commas: updates,losses,steps,... "
            "(default: what the method declares).",
        ),
    ] = None,
    stock: Annotated[
        bool,
        typer.Option(
            "--stock",
            help="Use Flower's own programs: a new Python for every message, pauses of seconds.",
        ),
    ] = False,
    foreground: Foreground = False,
) -> None:
    """Start a node: a SuperNode, and a process that runs the app on the data of this machine.

    The flags are kept in node.toml and can be left out the next time. What is sent is logged in
    sent.jsonl. No port is opened to other machines.
    """
    from udjfl.deployment.node import Node
    from udjfl.flower.disclosure import Disclosure

    if disclose is not None:
        Disclosure.of({"disclose": disclose})
    node = Node(folder)
    here = {"ca": ca, "data": data}
    changes = {name: str(Path(path).resolve()) for name, path in here.items() if path is not None}
    settings = node.configure({**changes, "server": server, "disclose": disclose})
    if foreground:
        node.run_services(settings, stock)
        return
    node.check_not_running()
    with show_status(f"connecting {node.name}"):
        problem = node.start(stock)
    if problem is not None:
        print_wrapped(f"{node.name} is not connected: {problem}. It goes on trying.")
        raise typer.Exit(1)
    print(f"{node.name} is online at {settings.server}")


@app.command("status", short_help="Show who is online, and how far the run is.")
def status_command(folder: Folder, json: AsJson = False) -> None:
    """Show a coordinator's nodes, by name, and its latest run; or the state of a node.

    A node is online; behind, if it missed the last round; absent; or was never seen.
    """
    from udjfl.cli.flower_tables import coordinator_view, node_view
    from udjfl.deployment.coordinator import Coordinator
    from udjfl.deployment.node import Node
    from udjfl.deployment.status import read_own_status, read_status
    from udjfl.report.output import show

    coordinator = Coordinator(folder)
    if not coordinator.ca.exists():
        own = read_own_status(Node(folder))  # an error if there is no key either
        show(node_view(own), own.as_dict(), json)
        return
    status = read_status(coordinator)
    show(coordinator_view(status), status.as_dict(), json)


@app.command("run", short_help="Train a method on the nodes.")
def run_command(
    folder: CoordinatorFolder,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "-c", "--set", metavar="NAME=VALUE", help="A setting of the app; repeat for more."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run, in runs/ (default: the method, with a number)."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A finished run of FedAvg, for psi and budgets."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="NAME", help="Continue this run, with its settings.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return at once; `udjfl flower status` shows it.")
    ] = False,
) -> None:
    """Train a method on all admitted nodes and show how far it is.

    Settings are those in pyproject.toml: -c method=rawls -c rounds=20 -c lr=0.3. The run folder is
    runs/NAME: `udjfl report` and `udjfl watch` read it, also while the run goes on. Ctrl-C ends
    this command, not the run. The exit code is 2 if the run fails or is stopped, and the reason is
    printed.
    """
    from udjfl.cli.flower_run import (
        describe_unfinished,
        find_unfinished,
        follow_run,
        prepare_run,
        read_declared,
    )
    from udjfl.deployment.coordinator import Coordinator

    coordinator = Coordinator(folder)
    read_declared(folder)  # an error in another folder, before anything is written there
    with show_status("submitting"), coordinator.submitting():
        others = find_unfinished(coordinator, resume)
        prepared = prepare_run(coordinator, settings or [], name, reference, resume)
        submitted = coordinator.submit(prepared.name, prepared.config, prepared.first_round)
    if others:
        print_wrapped(f"{', '.join(others)}: not finished; the nodes work for all runs")
    if detach:
        print(f"submitted {submitted.name}; udjfl flower status {as_argument(folder)}")
        return
    try:
        follow_run(coordinator, submitted, prepared.rounds)
    except KeyboardInterrupt:
        raise Interrupted(describe_unfinished(coordinator, submitted.name)) from None
    print(f"{submitted.name} is finished: udjfl report {as_argument(submitted.out)}")


@app.command("stop", short_help="Stop the run that goes on; it can be resumed.", cls=LightCommand)
def stop_command(
    folder: CoordinatorFolder,
    name: Annotated[
        str | None, typer.Argument(help="Which run, if several go on.", show_default=False)
    ] = None,
) -> None:
    """Stop a run. `udjfl flower run --resume NAME` continues it from its checkpoint."""
    from udjfl.cli.flower_run import choose_unfinished, resume_command
    from udjfl.deployment.coordinator import Coordinator

    coordinator = Coordinator(folder)
    with coordinator.control() as control:
        chosen = choose_unfinished(coordinator, control, name)
        control.stop(chosen.run_id)
    print(f"stopped {chosen.name}; {resume_command(coordinator, chosen.name)} continues it")


@app.command("down", short_help="Stop the coordinator or the node.", cls=LightCommand)
def down_command(folder: Folder) -> None:
    """Stop all processes that `up` or `node` started in this folder."""
    from udjfl.deployment.supervisor import stop_running

    if not folder.is_dir():
        raise DeploymentError(f"there is no folder {folder}")
    with show_status("stopping"):
        stopped = stop_running(folder.resolve() / "state")
    print(f"{folder} is stopped" if stopped else f"{folder} was not running")

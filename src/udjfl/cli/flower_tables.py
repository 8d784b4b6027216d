"""The tables of `udjfl flower status`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl._files import as_argument

if TYPE_CHECKING:
    from udjfl.deployment.status import CoordinatorStatus, OwnStatus, RunStatus


SOON = timedelta(days=30)


def coordinator_view(status: CoordinatorStatus) -> RenderableType:
    """Return the state of a coordinator: the port, the nodes, the run."""
    if status.running:
        head = f"open for nodes on {status.listen}"
    else:
        head = f"not running: udjfl flower up {as_argument(Path(status.folder))}"
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("node", "state", "since", "missed rounds"):
        table.add_column(heading, no_wrap=heading != "missed rounds")
    for node in status.nodes:
        missed = f"{node.missed}: {node.reason}" if node.missed else ""
        table.add_row(node.name, node.state, format_time(node.since), missed)
    parts: list[RenderableType] = [Text(head)]
    if ending := describe_certificate(status):
        parts.append(Text(ending))
    parts += [table] if status.nodes else [Text("no node is admitted: udjfl flower up NAME.pub")]
    runs = [*status.others, status.run]
    return Group(*parts, *(Text(describe_run(run)) for run in runs))


def describe_certificate(status: CoordinatorStatus) -> str | None:
    """Return what to do about a certificate that is damaged or ends soon; None if neither."""
    if status.problem is not None or status.certificate_until is None:
        return status.problem
    end, now = datetime.fromisoformat(status.certificate_until), datetime.now(UTC)
    if end - now > SOON:
        return None
    what = f"{'ends' if end > now else 'ended'} on {end:%Y-%m-%d}"
    consequence = "" if end > now else ", so no node can connect"
    command = f"udjfl flower keys {as_argument(Path(status.folder))} --renew"
    return f"the server's certificate {what}{consequence}: {command}"


def node_view(status: OwnStatus) -> RenderableType:
    """Return the state of a node: its connection, and what it has sent."""
    if not status.running:
        state = f"not running: udjfl flower node {as_argument(Path(status.folder))}"
    elif status.connected:
        state = f"online at {status.server}"
    else:
        state = f"not connected: {status.problem}"
    sent = "nothing sent yet"
    if status.last_reply is not None:
        values = status.last_reply.get("values", {})
        round = f", round {values['round']}" if "round" in values else ""
        when = format_time(status.last_reply["time"])
        number = "1 reply" if status.replies == 1 else f"{status.replies} replies"
        sent = f"{number} sent, the last one {when}{round} (sent.jsonl has all)"
        if error := status.last_reply.get("error"):
            sent += f"\nthe last one was an error: {error}"
    return Group(Text(f"{status.name}: {state}"), Text(sent))


def describe_run(run: RunStatus | None) -> str:
    """Describe a run in one line, and why it failed."""
    if run is None:
        return "no run yet"
    left = "" if run.seconds_left is None else f", {format_seconds(run.seconds_left)} left"
    method = f" ({run.method})" if run.method else ""
    reason = f": {run.reason}" if run.reason else ""
    return f"run {run.name}{method}: {run.state}, round {run.round} of {run.rounds}{left}{reason}"


def format_seconds(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_time(text: str) -> str:
    """Return a time in ISO 8601 in the time zone of this machine, to the second."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return ""

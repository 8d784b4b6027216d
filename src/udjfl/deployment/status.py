"""The state of a deployment: which nodes are online, absent or behind, and how far a run is."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from udjfl.deployment import keys
from udjfl.deployment.control import FAILED, ONLINE, NodeInfo, RunInfo
from udjfl.deployment.coordinator import Coordinator
from udjfl.deployment.node import Node
from udjfl.deployment.submissions import Submitted
from udjfl.errors import DeploymentError
from udjfl.training.follow import FollowedRun

NEVER, ABSENT, BEHIND, UNKNOWN = "never seen", "absent", "behind", "unknown"


@dataclass(frozen=True)
class NodeStatus:
    """A node: `state` is online, behind (online, but missed the last round), absent, never seen.

    It is unknown while the SuperLink does not answer, or has not read a new key yet.
    `since` is when it went online or away; `missed` the number of rounds of the run it missed.
    """

    name: str
    state: str
    since: str
    missed: int = 0
    reason: str = ""


@dataclass(frozen=True)
class RunStatus:
    """A run: its state (Flower's, or how it finished), its rounds, seconds left.

    `reason` says why it failed, if it did.
    """

    name: str
    method: str
    state: str
    round: int
    rounds: int
    seconds_left: float | None
    reason: str = ""


@dataclass(frozen=True)
class CoordinatorStatus:
    """A coordinator's folder: its nodes and its latest run, and others that go on as well.

    `certificate_until` is the date and time until which the server's certificate is valid;
    `problem` says what is wrong if that, or the authority's, cannot be used.
    """

    folder: str
    running: bool
    listen: str | None
    certificate_until: str | None
    nodes: tuple[NodeStatus, ...]
    run: RunStatus | None
    problem: str | None = None
    others: tuple[RunStatus, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "coordinator", **asdict(self)}


@dataclass(frozen=True)
class OwnStatus:
    """A node's folder. `problem` says why it is not connected."""

    folder: str
    name: str
    server: str | None
    running: bool
    connected: bool
    problem: str | None
    replies: int
    last_reply: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "node", **asdict(self)}


@dataclass
class _Answers:
    """The answers of a SuperLink so far: its nodes, the latest run, why it failed, others."""

    nodes: list[NodeInfo] = field(default_factory=list)
    run: RunInfo | None = None
    reason: str = ""
    others: list[RunStatus] = field(default_factory=list)


def read_status(coordinator: Coordinator) -> CoordinatorStatus:
    """Return the state of a coordinator's folder."""
    running = coordinator.running()
    submitted = coordinator.submitted()
    latest = submitted[-1] if submitted else None
    followed = follow(latest) if latest else None
    answers = _Answers() if running is None else _ask_superlink(coordinator, latest)
    expiry, problem = _check_certificates(coordinator)
    described = None
    if latest is not None and followed is not None:
        described = _describe_run(latest, followed, answers.run, answers.reason)
    return CoordinatorStatus(
        str(coordinator.folder),
        running is not None,
        None if running is None else str(running["listen"]),
        expiry,
        tuple(_describe_nodes(coordinator, answers.nodes, followed)),
        described,
        problem,
        tuple(answers.others),
    )


def _ask_superlink(coordinator: Coordinator, latest: Submitted | None) -> _Answers:
    """Ask for the nodes, the latest run, and others that go on; keep what is answered."""
    answers = _Answers()
    # A SuperLink that is starting does not answer yet: its nodes are unknown.
    with contextlib.suppress(DeploymentError), coordinator.control() as control:
        answers.nodes = control.nodes()
        unfinished = coordinator.unfinished(control)
        for other, info in unfinished.items():
            if other != latest:
                answers.others.append(_describe_run(other, follow(other), info))
        if latest is not None:
            answers.run = unfinished.get(latest) or control.run(latest.run_id)
            if answers.run.outcome == FAILED:
                answers.reason = control.describe_failure(answers.run)
    return answers


def _check_certificates(coordinator: Coordinator) -> tuple[str | None, str | None]:
    """Return until when the server's certificate is valid, if known, and what is wrong, if so."""
    end = None
    try:
        end = coordinator.expiry()
        if coordinator.ca.exists():
            keys.check_authority(coordinator.keys)
    except DeploymentError as error:
        return None if end is None else end.isoformat(), str(error)
    return None if end is None else end.isoformat(), None


def follow(submitted: Submitted) -> FollowedRun:
    """Read the run folder of a submitted run; it may not exist yet."""
    run = FollowedRun(submitted.out)
    run.update()
    return run


def estimate_seconds(submitted: Submitted, run: FollowedRun) -> float | None:
    """Return how long the rest of a run takes at the speed so far; None before its first round."""
    done = run.reached - submitted.first_round
    if done < 1 or not run.rounds:
        return None
    try:
        seconds = (run.path / "records.jsonl").stat().st_mtime - submitted.time
    except OSError:
        return None
    return max(0.0, seconds / done * (run.rounds - run.reached))


def read_own_status(node: Node) -> OwnStatus:
    """Return the state of a node's folder."""
    running = node.running()
    connected, reason = node.read_connection() if running else (False, None)
    replies, last = 0, ""
    if node.sent.exists():
        with node.sent.open(encoding="utf-8") as file:
            for line in file:
                replies, last = replies + 1, line
    return OwnStatus(
        str(node.folder),
        node.name,
        node.read_settings().get("server"),
        running is not None,
        connected,
        None if connected or not running else reason or "no connection yet",
        replies,
        json.loads(last) if last.endswith("}\n") else None,
    )


def _describe_nodes(
    coordinator: Coordinator, nodes: list[NodeInfo], followed: FollowedRun | None
) -> list[NodeStatus]:
    known = {node.name: node for node in nodes}
    described = []
    # A node whose file cannot be read stays admitted.
    for name in sorted({*coordinator.admitted(), *known}):
        node = known.get(name)
        missed = followed.missed.get(name) if followed else None
        is_behind = missed is not None and followed is not None and missed.last == followed.reached
        if node is None:
            state = UNKNOWN
        elif not node.since:
            state = NEVER
        elif node.status != ONLINE:
            state = ABSENT
        else:
            state = BEHIND if is_behind else ONLINE
        since = node.since if node else ""
        count, reason = (missed.rounds, missed.reason) if missed else (0, "")
        described.append(NodeStatus(name, state, since, count, reason))
    return described


def _describe_run(
    submitted: Submitted, followed: FollowedRun, run: RunInfo | None, reason: str = ""
) -> RunStatus:
    method = str(followed.settings.get("method", ""))
    state = followed.status if run is None else run.state
    is_over = state in ("completed", "failed", "stopped", "finished")
    left = None if is_over else estimate_seconds(submitted, followed)
    reached, rounds = followed.reached, followed.rounds
    return RunStatus(submitted.name, method, state, reached, rounds, left, reason)

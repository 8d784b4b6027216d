"""Admission of nodes to a SuperLink: those whose public keys are in nodes/, and no others.

Flower admits no key twice, so a node is unregistered only if its file is gone on two looks in a
row. A file that cannot be read (it is being written, or its disk is away) or a missing folder
changes nothing for nodes that are admitted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from udjfl._files import write_atomic
from udjfl.deployment.control import UNREGISTERED, Control, read_public_key
from udjfl.deployment.supervisor import report
from udjfl.errors import DeploymentError

TAKEN_BACK = "was admitted before and taken back; Flower admits no key twice: ask for a new one"


@dataclass(frozen=True)
class NodeFiles:
    """A look at nodes/.

    keys      public keys by name
    problems  by name, what is wrong with a file that is no public key
    exists    whether there is such a folder
    """

    keys: dict[str, bytes] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    exists: bool = True

    def is_without(self, name: str) -> bool:
        """Tell if the folder is there, and has no file of this node."""
        return self.exists and name not in self.keys and name not in self.problems


def read_node_files(folder: Path) -> NodeFiles:
    """Read the public keys in a folder."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".pub")
    except OSError:
        return NodeFiles(exists=False)
    read: dict[str, bytes] = {}
    problems: dict[str, str] = {}
    for path in paths:
        try:
            read[path.stem] = read_public_key(path)
        except FileNotFoundError:
            continue  # removed since
        except (DeploymentError, OSError) as error:
            problems[path.stem] = str(error)
    return NodeFiles(read, problems)


@dataclass
class Admission:
    """The outcome of admitting keys.

    refused   by name, why a key is not admitted
    problems  why a SuperLink did not do what it was asked for; it can be asked again
    """

    refused: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def write(self, path: Path, wanted: Mapping[str, bytes]) -> None:
        """Write down the refusals, with the keys that they are about."""
        rows = {name: [wanted[name].hex(), why] for name, why in self.refused.items()}
        write_atomic(path, json.dumps(rows).encode())


def read_refused(path: Path, wanted: Mapping[str, bytes]) -> dict[str, str]:
    """Return why keys were refused, by name; a name with another key now is left out."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    keys = {name: key.hex() for name, key in wanted.items()}
    return {name: why for name, (key, why) in rows.items() if keys.get(name) == key}


def admit_only(control: Control, files: NodeFiles, before: NodeFiles | None) -> Admission:
    """Make a SuperLink admit these keys only; what it refuses stops nothing else.

    `before` is the look at nodes/ before this one, if there was one.
    """
    wanted = files.keys
    known = {node.name: node for node in control.nodes()}
    admission = Admission()
    for name, node in known.items():
        is_gone = before is not None and before.is_without(name) and files.is_without(name)
        if is_gone or wanted.get(name, node.key) != node.key:
            try:
                control.unregister(node)
                report(f"node {name} is admitted no longer")
            except DeploymentError as error:
                admission.problems.append(f"{name} is still admitted: {error}")
    taken_back = find_taken_back(control)
    for name, key in wanted.items():
        if key in taken_back:
            admission.refused[name] = f"{name}.pub {TAKEN_BACK}"
            report(f"node {name} is not admitted: {admission.refused[name]}")
        elif name not in known or known[name].key != key:
            try:
                control.register(name, key)
                report(f"node {name} is admitted")
            except DeploymentError as error:
                admission.refused[name] = f"{name}.pub is refused: {error}"
                admission.problems.append(admission.refused[name])
    return admission


def find_taken_back(control: Control) -> set[bytes]:
    """Return the keys that were admitted once: a SuperLink never admits them again."""
    return {node.key for node in control.all_nodes() if node.status == UNREGISTERED}

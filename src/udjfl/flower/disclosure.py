"""Restrictions on what leaves a node: the node's own configuration, whatever the server asks for.

    disclose="updates,losses"     the only things that are sent; without it, all that the method
                                  declares
    disclose-log="sent.jsonl"     a file to which a line is added for every reply

A client's introduction (its id, and the shapes of its data and its model) is always sent.
"""

import json
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from udjfl._files import PRIVATE
from udjfl.errors import SettingsError
from udjfl.flower.messages import HIGH, JUDGED, LOW, NUMBERS
from udjfl.flower.service import CLASS_TERM, SCORE
from udjfl.flower.tensors import BUFFERS, DELTA, EXTRA, describe_tensors, values_of
from udjfl.methods import SERVER_SIDE
from udjfl.methods.reports import EXTRAS
from udjfl.training.state import RunSpec

logger = logging.getLogger("udjfl")
UPDATES, EVALUATIONS, UNCERTAINTIES = "updates", "evaluations", "uncertainties"
# What each tensor and number of a reply discloses, where that has another name.
DISCLOSES = {
    DELTA: UPDATES,
    "test-loss": EVALUATIONS,
    "test-accuracy": EVALUATIONS,
    JUDGED: EVALUATIONS,
    LOW: EVALUATIONS,
    HIGH: EVALUATIONS,
    "epistemic": UNCERTAINTIES,
    "unreliable": UNCERTAINTIES,
    **{sent: name for name, sent in NUMBERS.items()},
}
KNOWN = (
    UPDATES,
    BUFFERS,
    *NUMBERS,
    EVALUATIONS,
    CLASS_TERM,
    SCORE,
    *sorted({*EXTRAS} - SERVER_SIDE),
)


@dataclass(frozen=True)
class Disclosure:
    """The names of what may be sent (None: anything), and the file that says what was."""

    allowed: frozenset[str] | None = None
    log: Path | None = None

    @staticmethod
    def of(node_config: Mapping[str, Any]) -> "Disclosure":
        """Read a node's configuration."""
        log = str(node_config.get("disclose-log", ""))
        path = Path(log) if log else None
        if "disclose" not in node_config:
            return Disclosure(None, path)
        names = [name.strip() for name in str(node_config["disclose"]).split(",")]
        unknown = sorted({name for name in names if name} - {*KNOWN})
        if unknown:
            raise SettingsError(
                f"disclose: unknown {', '.join(unknown)}; known are {', '.join(KNOWN)}"
            )
        return Disclosure(frozenset(names) - {""}, path)

    def check(self, names: Collection[str]) -> None:
        """Raise an error if one of these may not be sent."""
        forbidden = sorted(set(names) - (set(names) if self.allowed is None else self.allowed))
        if forbidden:
            raise SettingsError(
                f"disclose: this node does not send {', '.join(forbidden)}; choose a method that "
                "does not need it, or ask its owner"
            )

    def release(self, kind: str, content: RecordDict) -> RecordDict:
        """Return a reply that may be sent, after it was logged; raise an error for any other."""
        numbers = dict(content.metric_records["metrics"])
        tensors = describe_tensors(content)
        sent = [name.removeprefix(EXTRA) for name in (*tensors, *numbers)]
        self.check({DISCLOSES.get(name, name) for name in sent})
        line = json.dumps(
            {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "message": kind,
                "values": values_of(content),
                "numbers": numbers,
                "tensors": tensors,
            }
        )
        logger.info("Sent to the server: %s", line)
        if self.log is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with os.fdopen(os.open(self.log, flags, PRIVATE), "a", encoding="utf-8") as file:
                file.write(line + "\n")
        return content


def needed_disclosures(spec: RunSpec) -> set[str]:
    """Return what a client must send to take part in a run, as far as the method declares it."""
    method = spec.method
    needed = {UPDATES} | ((method.needs | method.probes) - SERVER_SIDE).intersection(KNOWN)
    return needed | ({UNCERTAINTIES} if spec.needs_uncertainties else set())

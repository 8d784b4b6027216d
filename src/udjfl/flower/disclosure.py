"""Restrictions on what leaves a node: the node's own configuration, whatever a method asks for.

    disclose="updates,losses"     the only things that are sent; without it, all that the method
                                  declares
    disclose-log="sent.jsonl"     a file to which a line is added for every reply

A client's introduction (its id, and the shapes of its data and its model) is always sent. Of an
error, the text is sent if it is one of udjfl's own, without the values of rows that it quotes; of
any other only the type, since its text can quote the data. The node's own log has the whole text.

This binds apps that use `client_app`. The coordinator sends the app, and one with other code can
send what it likes.
"""

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from udjfl._files import PRIVATE
from udjfl.errors import DataError, DeploymentError, SettingsError, UdjflError
from udjfl.flower.messages import HIGH, JUDGED, LOW, NUMBERS, required_numbers
from udjfl.flower.service import CLASS_TERM, SCORE, fact_limits
from udjfl.flower.tensors import BUFFERS, DELTA, EXTRA, describe_tensors, values_of
from udjfl.methods import SERVER_SIDE
from udjfl.methods.reports import EXTRAS
from udjfl.training.state import Run

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
        path = _log_path(node_config)
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
                f"disclose: this node does not send {', '.join(forbidden)}; choose a run that "
                "does not need it, or ask its owner"
            )

    def release(self, kind: str, content: RecordDict) -> RecordDict:
        """Return a reply that may be sent, after it was logged; raise an error for any other."""
        numbers = dict(content.metric_records["metrics"])
        tensors = describe_tensors(content)
        sent = [name.removeprefix(EXTRA) for name in (*tensors, *numbers)]
        self.check({DISCLOSES.get(name, name) for name in sent})
        values = {"values": values_of(content), "numbers": numbers, "tensors": tensors}
        _write_down(self.log, kind, values)
        return content


@contextlib.contextmanager
def releasing_errors(kind: str, node_config: Mapping[str, Any]) -> Iterator[None]:
    """Let an error of the block out, after it was logged, with no more text than may be sent."""
    try:
        yield
    except Exception as error:
        text = releasable_text(error)
        try:
            _write_down(_log_path(node_config), kind, {"error": text})
        except OSError as failed:
            raise DeploymentError(f"disclose-log: {releasable_text(failed)}") from None
        if isinstance(error, DataError):
            raise DataError(error.without_values) from None
        if isinstance(error, UdjflError):
            raise
        raise DeploymentError(text) from None


def releasable_text(error: Exception) -> str:
    """Return what may be sent of an error; what may not is written to the node's own log."""
    name = type(error).__name__
    if isinstance(error, DataError) and error.without_values != str(error):
        logger.error("The values in this error are not sent: %s", error)
        return f"{name}: {error.without_values}"
    if isinstance(error, UdjflError):
        return f"{name}: {error}"
    logger.error("The text of this error is not sent", exc_info=error)
    return f"{name} (its text is in the log of the node)"


def _log_path(node_config: Mapping[str, Any]) -> Path | None:
    log = str(node_config.get("disclose-log", ""))
    return Path(log) if log else None


def _write_down(log: Path | None, kind: str, sent: Mapping[str, Any]) -> None:
    """Add a line about what is sent now."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"time": time, "message": kind, **sent})
    logger.info("Sent to the server: %s", line)
    if log is not None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(log, flags, PRIVATE), "a", encoding="utf-8") as file:
            file.write(line + "\n")


def needed_disclosures(run: Run, has_buffers: bool) -> set[str]:
    """Return what a client must send to take part in a run with this method, data and model.

    Without a service, a run that excludes bad reports goes on without a client's evaluations.
    """
    spec = run.spec
    needed = {UPDATES, *required_numbers(spec, has_buffers)} | ({BUFFERS} if has_buffers else set())
    declared = spec.method.needs | spec.method.probes | run.extras
    needed |= (declared - SERVER_SIDE).intersection(KNOWN)
    if spec.service is not None:
        needed |= {EVALUATIONS, *fact_limits(spec.service, run.federation.n_classes)}
    return needed | ({EVALUATIONS} if run.settings.on_bad_report == "fail" else set())

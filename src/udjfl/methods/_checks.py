"""Checks of a method's declarations, and of the reports that reach it."""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from udjfl.errors import SettingsError, did_you_mean
from udjfl.methods.reports import EXTRAS, Reports

if TYPE_CHECKING:
    from udjfl.methods.base import Method

THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
# A client sends these once, before round 1, so a probe has them as well.
SENT_ONCE = frozenset({"sizes", "uncertainties"})
# The server knows these itself: no client sends them.
SERVER_SIDE = frozenset({"model", "validation_accuracies"})


def check_theories(cls: type) -> None:
    """Reject unknown theories, and theories that would become a parameter."""
    name, theories = getattr(cls, "name", cls.__name__), getattr(cls, "theories", ())
    if "theories" in vars(cls).get("__annotations__", {}):
        raise SettingsError(
            f"{name}: write theories = (...) without a type, or it becomes a parameter"
        )
    for theory in theories if isinstance(theories, tuple) else ():
        if theory not in THEORIES:
            raise SettingsError(f"{name}: theories has {theory!r}.{did_you_mean(theory, THEORIES)}")


def check_declarations(method: "Method") -> None:
    """Reject unknown names in `needs`, `needs_groups` and `probes`."""
    known = {*EXTRAS, "losses", "sizes", "steps", "uncertainties"}
    for attribute in ("needs", "needs_groups", "probes"):
        for name in sorted(getattr(method, attribute) - (known | SERVER_SIDE)):
            raise SettingsError(
                f"{method.name}: {attribute} has {name!r}, which clients do not know."
                f"{did_you_mean(name, known)}"
            )


def require_reports(slot: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method's `plan`, `models_to_score` or `aggregate`: refuse incomplete reports first."""
    check = {
        "plan": _check_probe,
        "models_to_score": _check_unscored_reports,
        "aggregate": _check_reports,
    }[slot]

    @functools.wraps(function)
    def wrapper(self: "Method", state: Any, reports: Any) -> Any:
        check(self, reports)
        try:
            return function(self, state, reports)
        except IndexError:
            _check_indices(self, state, reports)
            raise

    return wrapper


def _check_indices(method: "Method", state: Mapping[str, Tensor], reports: Reports | None) -> None:
    """Refuse reports of a client beyond those that the state was made for.

    Only once a method has looked for it: a state does not say how many clients it is of.
    """
    rows = [len(tensor) for tensor in state.values() if tensor.ndim]
    highest = -1 if reports is None else int(reports.client_indices.max())
    if rows and highest >= min(rows):
        raise SettingsError(
            f"Reports.client_indices: has {highest}, and the state of {method.name} is of fewer "
            "clients; indices count from 0, among the clients that `init` was given"
        )


def _check_reports(method: "Method", reports: Reports) -> None:
    reports.require(*sorted(method.needs))
    if method.needs_groups.intersection(reports.extras):
        reports.require(*sorted(method.needs_groups))


def _check_unscored_reports(method: "Method", reports: Reports) -> None:
    reports.require(*sorted(method.needs - {"validation_accuracies"}))


def _check_probe(method: "Method", probe: Reports | None) -> None:
    if not method.probes:
        return
    if probe is None:
        names = " and ".join(sorted(method.probes))
        raise SettingsError(
            f"{method.name}: needs the clients' {names} before they train; ask for a probe first"
        )
    probe.require(*sorted(method.probes | (method.needs & SENT_ONCE)))


def check_epsilon(method: Any) -> Any:
    """Reject an epsilon, the smallest utility, that is not below M, the largest."""
    if method.epsilon >= method.M:
        raise ValueError(
            f"epsilon is {method.epsilon:g}; it must be below M, which is {method.M:g}: "
            "no loss has that utility"
        )
    return method

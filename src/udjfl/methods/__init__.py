"""The registry of methods. Adding one is a file beside this and a line in METHODS.

Beside UDJ-FL and its reference, FedAvg, the other 17 of Table 1 of Carey & Wu (FAccT 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from udjfl.errors import SettingsError, did_you_mean
from udjfl.methods.adafed import AdaFed
from udjfl.methods.adafedadam import AdaFedAdam
from udjfl.methods.afl import AFL
from udjfl.methods.base import (
    THEORIES,
    Diagnostics,
    Method,
    Plan,
    Reports,
    ServedModels,
    Setup,
    State,
    parameters,
    weighted_sum,
)
from udjfl.methods.cffl import CFFL
from udjfl.methods.corefed import CoreFed
from udjfl.methods.e2fl import E2FL
from udjfl.methods.effl import EFFL
from udjfl.methods.fedavg import FedAvg
from udjfl.methods.fedeba import FedEBA
from udjfl.methods.fedfa import FedFa
from udjfl.methods.fedfair3 import FedFair3
from udjfl.methods.fedfv import FedFV
from udjfl.methods.fedmgda import FedMGDA
from udjfl.methods.focus import Focus
from udjfl.methods.mfairfl import MFairFL
from udjfl.methods.propfair import PropFair
from udjfl.methods.qffl import QFFL
from udjfl.methods.term import TERM
from udjfl.methods.udj import UDJ

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "udj": UDJ,
    "qffl": QFFL,
    "afl": AFL,
    "term": TERM,
    "propfair": PropFair,
    "fedmgda": FedMGDA,
    "fedfv": FedFV,
    "adafed": AdaFed,
    "mfairfl": MFairFL,
    "adafedadam": AdaFedAdam,
    "effl": EFFL,
    "fedfa": FedFa,
    "e2fl": E2FL,
    "fedfair3": FedFair3,
    "fedeba": FedEBA,
    "corefed": CoreFed,
    "focus": Focus,
    "cffl": CFFL,
}

# Short names for points of a family: name -> (method, parameters).
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    theory: ("udj", {"theory": theory}) for theory in THEORIES
}


def method(name: str, /, **params: Any) -> Method:
    """Build a method by name, for example `method("udj", theory="rawls", beta=5)` or `method("rawls", beta=5)`."""
    target, preset = find(name)
    against = [key for key, value in preset.items() if params.get(key, value) != value]
    if against:
        raise SettingsError(
            f"{name}: {against[0]} is what the short name stands for; to choose another, ask for {target!r}"
        )
    try:
        return METHODS[target](**{**preset, **params})
    except (
        SettingsError
    ) as error:  # in the words of whoever asked: by a short name, if that is what they used
        raise SettingsError([name + line.removeprefix(target) for line in error.mistakes]) from None


def parameter_names(text: str) -> set[str]:
    """The parameters of a method, given by its name or as `parse_method` takes it."""
    target, _ = find(text.partition(":")[0].strip())
    return {field.name for field in fields(METHODS[target])}  # type: ignore[arg-type]  # every method is a dataclass


def fixed_parameters(text: str) -> set[str]:
    """The parameters that a method's text sets, by itself or through a short name."""
    name, *pairs = text.split(":")
    return {pair.partition("=")[0].strip() for pair in pairs} | set(find(name.strip())[1])


def find(name: str) -> tuple[str, dict[str, Any]]:
    """The method behind a name, and the parameters the name sets."""
    if name not in METHODS and name not in ALIASES:
        raise SettingsError(
            f"method: unknown name {name!r}.{did_you_mean(str(name), [*METHODS, *ALIASES])}"
        )
    return ALIASES.get(name, (name, {}))


def parse_method(text: str, extra: Mapping[str, Any] | None = None) -> Method:
    """Build a method from text: a name, then any number of `:key=value`, as in `udj:theory=rawls:beta=5`."""
    name, *pairs = text.strip().split(":")
    params: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(
                f"method: {text!r} has {pair!r} where key=value was expected, as in udj:theory=rawls:beta=5"
            )
        params[key.strip()] = value.strip()
    return method(name.strip(), **{**params, **(extra or {})})


__all__ = [
    "ALIASES",
    "METHODS",
    "THEORIES",
    "UDJ",
    "Diagnostics",
    "FedAvg",
    "Method",
    "Plan",
    "Reports",
    "ServedModels",
    "Setup",
    "State",
    "find",
    "fixed_parameters",
    "method",
    "parameter_names",
    "parameters",
    "parse_method",
    "weighted_sum",
]

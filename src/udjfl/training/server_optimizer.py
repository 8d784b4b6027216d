"""Server optimisers: what the server makes of a method's step before it subtracts it.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021, arXiv:2003.00295 (FedAdagrad, FedAdam, FedYogi). Momentum: Hsu, Qi, Brown,
arXiv:1909.06335.

With D the method's step, all by coordinate:

    sgd        lr D                                                        lr 1
    momentum   m <- b1 m + D                 step lr m                     lr 1, b1 0.9
    adagrad    m <- b1 m + (1-b1) D          step lr m / (sqrt(v) + tau)   lr 0.1, b1 0, tau 0.001
               v <- v + D^2
    adam       v <- b2 v + (1-b2) D^2        else as adagrad               b1 0.9, b2 0.99
    yogi       v <- v - (1-b2) D^2 sign(v - D^2)                           b1 0.9, b2 0.99

m begins at 0 and v at tau^2, without a bias correction, as in the paper. Flower's FedAdam begins v
at 0 and corrects the bias: its first steps are longer. Written as in `adam:lr=0.1:tau=0.01`; `sgd`
with lr 1 is the step as it is. A rescaled step can be far longer than the method meant: bounds that
a method proves of its own step, such as a budget's, do not hold of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl._spec import parse_spec
from udjfl.errors import SettingsError, did_you_mean
from udjfl.methods import State

# The options of each kind, with their defaults.
DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 1.0},
    "momentum": {"lr": 1.0, "b1": 0.9},
    "adagrad": {"lr": 0.1, "b1": 0.0, "tau": 1e-3},
    "adam": {"lr": 0.1, "b1": 0.9, "b2": 0.99, "tau": 1e-3},
    "yogi": {"lr": 0.1, "b1": 0.9, "b2": 0.99, "tau": 1e-3},
}
DECAYS = ("b1", "b2")


@dataclass(frozen=True)
class ServerOptimizer:
    """A server optimiser; its state is a dictionary of float64 tensors [D]."""

    kind: str = "sgd"
    lr: float = 1.0
    b1: float = 0.0
    b2: float = 0.0
    tau: float = 0.0

    def init(self, n_parameters: int) -> State:
        """Return the state before round 1."""
        names = {"sgd": (), "momentum": ("m",)}.get(self.kind, ("m", "v"))
        starts = {"m": 0.0, "v": self.tau**2}
        return {
            name: torch.full((n_parameters,), starts[name], dtype=torch.float64) for name in names
        }

    def transform(self, state: State, step: Tensor) -> tuple[State, Tensor]:
        """Return the next state, and the step that the server takes."""
        if self.kind == "sgd":
            return state, step if self.lr == 1 else self.lr * step
        D = step.to(torch.float64)
        if self.kind == "momentum":
            m = self.b1 * state["m"] + D
            return {"m": m}, (self.lr * m).to(step.dtype)
        m = self.b1 * state["m"] + (1 - self.b1) * D
        v, square = state["v"], D.square()
        if self.kind == "adagrad":
            v = v + square
        elif self.kind == "adam":
            v = self.b2 * v + (1 - self.b2) * square
        else:
            v = v - (1 - self.b2) * square * torch.sign(v - square)
        return {"m": m, "v": v}, (self.lr * m / (v.sqrt() + self.tau)).to(step.dtype)


def parse_server_optimizer(text: str) -> ServerOptimizer:
    """Read the setting `server_optimizer`."""
    spec, setting = parse_spec(text, "server_optimizer"), "server_optimizer"
    if spec.name not in DEFAULTS:
        hint = did_you_mean(spec.name, DEFAULTS)
        raise SettingsError(f"{setting}: unknown value {text!r}.{hint}")
    values, mistakes = dict(DEFAULTS[spec.name]), []
    for key, given in spec.options.items():
        if key not in values:
            hint = did_you_mean(key, DEFAULTS[spec.name])
            mistakes.append(f"{setting}: {spec.name} has no option {key!r}.{hint}")
            continue
        values[key] = _as_number(given)
        if key in DECAYS and not 0 <= values[key] < 1:
            mistakes.append(f"{setting}: {key} is {given!r}; give a number from 0, below 1")
        elif key not in DECAYS and not 1e-30 <= values[key] <= 1e30:
            mistakes.append(f"{setting}: {key} is {given!r}; give a finite number above 0")
    if mistakes:
        raise SettingsError(mistakes)
    return ServerOptimizer(spec.name, **values)


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

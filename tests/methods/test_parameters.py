"""Parameters outside their limits: every method refuses them and names itself and the parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest

from udjfl.errors import SettingsError
from udjfl.methods import METHODS, Method

# By method: parameters, and what the message has after the method's name.
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "adafed": [
        ({"gamma": -1.0}, "gamma"),
        ({"ridge": -1e-09}, "ridge"),
        ({"server_lr": 0.0}, "server_lr"),
        ({"step": "long"}, "step"),
        ({"gamma": math.inf}, "gamma"),
        ({"normalise": 3}, "normalise"),
    ],
    "adafedadam": [
        ({"alpha": -1}, "alpha"),
        ({"weights": "papers"}, "weights"),
        ({"server_lr": 0}, "server_lr"),
        ({"beta1": 1}, "beta1"),
        ({"beta2": -0.1}, "beta2"),
        ({"warm_up": -1}, "warm_up"),
        ({"alpha": math.nan}, "alpha"),
    ],
    "afl": [
        ({"lr_lambda": -0.1}, "lr_lambda.*at least 0"),
        ({"lr_lambda": math.inf}, "lr_lambda.*finite"),
        ({"order": "after"}, "order.*step_first"),
        ({"start": "sizes"}, "start.*'size'"),
    ],
    "cffl": [
        ({"alpha": 0.0}, "alpha"),
        ({"clip": 0.0}, "clip"),
        ({"theta": 0.0}, "theta"),
        ({"theta": 1.1}, "theta"),
        ({"coef": 1.5}, "coef"),
        ({"memory": 1.0}, "memory"),
        ({"aggregation": "max"}, "aggregation"),
        ({"download": "all"}, "download"),
    ],
    "corefed": [
        ({"M": 0}, "M: .*more than 0"),
        ({"M": math.inf}, "M: .*finite"),
        ({"epsilon": 0}, "epsilon: .*at least"),
        ({"epsilon": 4}, "epsilon is 4; it must be below M, which is 3"),
        ({"step": "published"}, "step: .*paper"),
        ({"weights": "sizes"}, "weights: .*'size'"),
    ],
    "e2fl": [
        ({"keep": 0.0}, "keep"),
        ({"keep": 1.0}, "keep"),
        ({"groups": 0}, "groups"),
        ({"groups": "many"}, "groups"),
        ({"groups": ()}, "groups"),
    ],
    "effl": [
        ({"eps_vl": 0.0}, "eps_vl"),
        ({"eps_b": -1.0}, "eps_b"),
        ({"eps_vb": 0.0}, "eps_vb"),
        ({"server_lr": 0.0}, "server_lr"),
        ({"eps_vl": math.inf}, "eps_vl"),
    ],
    "fedeba": [
        ({"tau": 0}, "tau"),
        ({"tau": -1}, "tau"),
        ({"tau": math.inf}, "tau"),
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.1}, "alpha"),
        ({"theta": 91}, "theta"),
        ({"prior": "sizes"}, "prior"),
    ],
    "fedfa": [
        ({"beta": -0.1}, "beta"),
        ({"beta": 1.1}, "beta"),
        ({"gamma": 1}, "gamma"),
        ({"gamma": -0.1}, "gamma"),
        ({"server_momentum": "adam"}, "server_momentum"),
    ],
    "fedfair3": [
        ({"cap": 0}, "cap"),
        ({"cap": 1.5}, "cap"),
        ({"penalty": -1}, "penalty"),
        ({"penalty": math.inf}, "penalty"),
        ({"round_times": (1.0, 0.0)}, "round_times"),
        ({"resources": "1,x"}, "resources"),
        ({"preferred_time": 0}, "preferred_time"),
    ],
    "fedfv": [
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.1}, "alpha"),
        ({"tau": -1}, "tau"),
        ({"tau": 0.5}, "tau"),
        ({"alpha": math.nan}, "alpha"),
    ],
    "fedmgda": [
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": 1.1}, "epsilon"),
        ({"server_lr": 0.0}, "server_lr"),
        ({"decay": -1.0}, "decay"),
        ({"l0": "sizes"}, "l0"),
        ({"epsilon": math.nan}, "epsilon"),
    ],
    "focus": [
        ({"models": 0}, "models"),
        ({"models": 1.5}, "models"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": 1e-07}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
    ],
    "mfairfl": [
        ({"lam_start": -1}, "lam_start"),
        ({"lam_rate": -0.1}, "lam_rate"),
        ({"similarity_rate": -0.1}, "similarity_rate"),
        ({"similarity_rate": 1.5}, "similarity_rate"),
    ],
    "ditto": [
        ({"lam": -1}, "lam: .*at least 0"),
        ({"lam": math.inf}, "lam: .*finite"),
        ({"mu": 1}, "mu: no such parameter"),
    ],
    "feddyn": [
        ({"alpha": 0}, "alpha: .*more than 0"),
        ({"alpha": math.nan}, "alpha: .*finite"),
    ],
    "fednova": [({"weights": "steps"}, "weights.*Known: size, uniform")],
    "fedprox": [
        ({"mu": -0.1}, "mu: .*at least 0"),
        ({"mu": "near"}, "mu: "),
        ({"weights": "sizes"}, "weights.*'size'"),
    ],
    "fine-tuning": [
        ({"share": 0}, "share: .*more than 0"),
        ({"share": 1.5}, "share: .*at most 1"),
    ],
    "scaffold": [({"weights": "sizes"}, "weights.*'size'")],
    "propfair": [
        ({"M": 0}, "M: .*more than 0"),
        ({"M": math.inf}, "M: .*finite"),
        ({"epsilon": 0}, "epsilon: .*more than 0"),
        ({"epsilon": 3}, "epsilon is 3; it must be below M, which is 3"),
        ({"M": 0.1}, "epsilon is 0.2; it must be below M, which is 0.1"),
        ({"huber": "maybe"}, "huber: "),
        ({"base": 2}, "base: no such parameter"),
    ],
    "qffl": [
        ({"q": -0.1}, "q.*at least 0"),
        ({"q": math.nan}, "q.*finite"),
        ({"lipschitz": 0}, "lipschitz.*above zero"),
        ({"lipschitz": "-2"}, "lipschitz.*above zero"),
        ({"lipschitz": math.inf}, "lipschitz"),
        ({"lipschitz": "1/lr"}, "lipschitz.*calibrated, paper"),
        ({"weights": "sizes"}, "weights.*'size'"),
    ],
    "term": [
        ({"t": math.nan}, "t: .*finite"),
        ({"t": "hot"}, "t: "),
        ({"step": "offical"}, "step.*official"),
        ({"weights": "sizes"}, "weights.*'size'"),
    ],
}


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [(name, *row) for name, rows in REFUSED.items() for row in rows],
)
def test_bad_parameters_are_refused_by_name(name, params, message):
    with pytest.raises(SettingsError, match=f"^{name}: {message}"):
        METHODS[name](**params)


def test_every_method_is_in_the_table():
    # FedAvg's one parameter is that of others; test_udj.py has UDJ-FL's.
    assert REFUSED.keys() == METHODS.keys() - {"fedavg", "udj"}


def test_a_method_without_parameters_needs_no_decorator():
    class Plain(Method):
        name = title = "plain"
        paper, grade = "none", "recalled"

        def aggregate(self, state, reports):
            return state, reports.deltas[0], {}

    assert (Plain().params, Plain().label, repr(Plain())) == ({}, "plain", "Plain()")

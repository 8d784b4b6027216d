"""Finding methods by name: the registry, short names, text, and what a mistake is told."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import torch

import udjfl
from udjfl.errors import SettingsError
from udjfl.methods import (
    ALIASES,
    METHODS,
    UDJ,
    FedAvg,
    Method,
    Reports,
    Setup,
    method,
    parameters,
    parse_method,
    weighted_sum,
)

THEORIES = {"rawls", "egalitarian", "utilitarian", "desert"}


def mistakes_of(name, /, **params):
    with pytest.raises(SettingsError) as caught:
        method(name, **params)
    return caught.value.mistakes


# --- the table ---


@pytest.mark.parametrize(("name", "kind"), METHODS.items())
def test_every_method_says_what_it_is(name, kind):
    assert issubclass(kind, Method)
    assert kind.name == name
    assert kind.title
    assert kind.paper
    assert kind.grade in ("verified", "partial", "recalled")
    assert isinstance(kind.needs, frozenset)


@pytest.mark.parametrize(("short", "target"), ALIASES.items())
def test_short_names_stand_for_points_of_a_method(short, target):
    assert short not in METHODS
    name, preset = target
    assert method(short) == method(name, **preset)


def test_the_four_theories_have_short_names():
    assert set(ALIASES) >= THEORIES
    for theory in THEORIES:
        assert method(theory).theory == theory
        assert isinstance(method(theory), UDJ)


def test_fedavg_serves_no_theory():
    assert method("fedavg").theories == ("utilitarian",)
    assert method("fedavg") == FedAvg()


def test_the_public_function_is_this_one():
    assert udjfl.method is method
    assert udjfl.method("udj", theory="rawls", beta=5).params["beta"] == 5.0


@pytest.mark.parametrize("name", [*METHODS, *ALIASES])
def test_methods_are_values(name):
    made = method(name) if name != "udj" else method(name, theory="rawls")
    assert made == method(made.name, **made.params)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.step = "paper"


def test_labels_tell_points_apart():
    texts = ["fedavg", "fedavg:weights=uniform", "rawls", "rawls:beta=1", "desert"]
    labels = {parse_method(text).label for text in texts}
    assert len(labels) == 5
    assert "FedAvg" in labels
    assert any("rawls" in label and "beta=1" in label for label in labels)


def test_adding_a_method_is_a_class_and_a_line(monkeypatch):
    @parameters
    class Loudest(Method):
        """Follow the client with the largest update."""

        name: ClassVar[str] = "loudest"
        title: ClassVar[str] = "Loudest"
        paper: ClassVar[str] = "none"
        grade: ClassVar[str] = "recalled"
        scale: float = 1.0

        def aggregate(self, state, reports):
            weights = torch.zeros(len(reports))
            weights[reports.deltas.norm(dim=1).argmax()] = self.scale
            return state, weighted_sum(weights, reports.deltas), {"weight": weights}

    monkeypatch.setitem(METHODS, "loudest", Loudest)
    made = parse_method("loudest:scale=0.5")
    assert made.params == {"scale": 0.5}
    reports = Reports(ids=["a", "b"], deltas=[[1.0, 0.0], [0.0, 4.0]])
    _, step, _ = made.aggregate(made.init(Setup.of(reports)), reports)
    assert step.tolist() == [0, 2]
    assert any("Did you mean 'scale'" in line for line in mistakes_of("loudest", scal=1))


# --- mistakes ---


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("fedavgg", "fedavg"),
        ("rawl", "rawls"),
        ("Desert", "desert"),
        ("utilitarain", "utilitarian"),
    ],
)
def test_unknown_method(typo, meant):
    (line,) = mistakes_of(typo)
    assert f"unknown name {typo!r}" in line
    assert f"Did you mean {meant!r}?" in line
    assert all(name in line for name in [*METHODS, *ALIASES])


def test_unknown_method_like_no_other_gets_the_list():
    (line,) = mistakes_of("xyzzy")
    assert "Did you mean" not in line
    assert "fedavg" in line


@pytest.mark.parametrize(
    ("name", "typo", "meant"),
    [("udj", "bta", "beta"), ("rawls", "gama", "gamma"), ("fedavg", "weight", "weights")],
)
def test_unknown_parameter(name, typo, meant):
    (line,) = mistakes_of(name, **{typo: 1})
    assert line.startswith(f"{name}: {typo}: no such ")
    assert f"Did you mean {meant!r}?" in line


def test_only_parameters_are_offered():
    # The name and the citation of a method are not for setting.
    (line,) = mistakes_of("fedavg", name="x")
    assert "Did you mean 'name'" not in line
    assert line.endswith("Known: weights.")


@pytest.mark.parametrize(
    ("typo", "meant"), [("rawl", "rawls"), ("egaliterian", "egalitarian"), ("Desert", "desert")]
)
def test_unknown_theory(typo, meant):
    (line,) = mistakes_of("udj", theory=typo)
    assert "theory" in line
    assert repr(typo) in line
    assert f"Did you mean {meant!r}?" in line
    assert all(theory in line for theory in THEORIES)


def test_unknown_step_rule_lists_them():
    (line,) = mistakes_of("rawls", step="papr")
    assert "step" in line
    assert all(rule in line for rule in ("paper", "authors", "safe", "calibrated", "normalised"))


def test_every_mistake_is_told_at_once():
    told = mistakes_of("udj", theory="rawls", bta=1, gamma="much", step="papr")
    assert len(told) == 3
    assert all(any(word in line for line in told) for word in ("bta", "gamma", "step"))


@pytest.mark.parametrize("beta", ["many", "1,x", object()])
def test_ill_typed_beta_is_named(beta):
    assert all("beta" in line for line in mistakes_of("rawls", beta=beta))


# --- text ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fedavg", ("fedavg", {})),
        ("rawls", ("udj", {"theory": "rawls"})),
        ("udj:theory=rawls:beta=5", ("udj", {"theory": "rawls", "beta": 5.0})),
        (
            "rawls:beta=1,2,3:gamma=-0.5",
            ("udj", {"theory": "rawls", "beta": (1.0, 2.0, 3.0), "gamma": -0.5}),
        ),
        (" fedavg : weights = uniform ", ("fedavg", {"weights": "uniform"})),
        (
            "udj:beta=2:gamma=1e-3:r=-1:step=safe",
            ("udj", {"beta": 2.0, "gamma": 0.001, "r": -1.0, "step": "safe"}),
        ),
    ],
)
def test_parse_method(text, expected):
    name, params = expected
    assert parse_method(text) == method(name, **params)


def test_parse_method_with_more_parameters():
    assert parse_method("rawls:beta=5", {"gamma": "2", "beta": 1}) == method(
        "rawls", beta=1.0, gamma=2.0
    )
    assert parse_method("rawls", None) == method("rawls")


@pytest.mark.parametrize("text", ["rawls:beta", "rawls:5", "rawls:"])
def test_parse_method_says_what_it_expected(text):
    with pytest.raises(
        SettingsError, match=r"key=value was expected, as in udj:theory=rawls:beta=5"
    ):
        parse_method(text)


@pytest.mark.parametrize("text", ["", ":", "rawl:beta=5"])
def test_parse_method_with_an_unknown_name(text):
    with pytest.raises(SettingsError, match=r"unknown name|key=value"):
        parse_method(text)


def test_a_short_name_keeps_its_meaning():
    with pytest.raises(
        SettingsError, match=r"rawls: theory is what the short name stands for; .* ask for 'udj'"
    ):
        method("rawls", theory="desert")
    assert method("rawls", theory="rawls") == method("rawls")


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"needs": frozenset({"accuracy"})}, "needs has 'accuracy'.*Did you mean 'accuracies'"),
        ({"probes": frozenset({"gradient"})}, "probes has 'gradient'"),
        ({"theories": ("rawl",)}, "theories has 'rawl'.*Did you mean 'rawls'"),
        (
            {"theories": ("rawls",), "__annotations__": {"theories": "tuple[str, ...]"}},
            "write theories .* without a type",
        ),
    ],
)
def test_a_declaration_that_nobody_would_hear(attributes, said):
    made = type("Mine", (FedAvg,), {"name": "mine", **attributes})
    with pytest.raises(SettingsError, match=f"mine: {said}"):
        parameters(made)

"""Methods by name: the registry, short names, specifications, classes of others, and mistakes."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Literal

import pytest
import torch
from pydantic import Field

import udjfl
from udjfl.errors import ReportError, SettingsError
from udjfl.methods import (
    ALIASES,
    METHODS,
    UDJ,
    FedAvg,
    Method,
    Reports,
    Setup,
    declared_needs,
    method,
    parameters,
    register_method,
    weighted_sum,
)
from udjfl.methods.registry import fixed_parameters, parameter_names, shared_parameters

THEORIES = {"rawls", "egalitarian", "utilitarian", "desert"}


def mistakes_of(name, /, **params):
    with pytest.raises(SettingsError) as caught:
        method(name, **params)
    return caught.value.mistakes


# --- the table ---


@pytest.mark.parametrize(("name", "cls"), METHODS.items())
def test_every_method_is_described(name, cls):
    assert issubclass(cls, Method)
    assert cls.name == name
    assert cls.title
    assert cls.paper
    assert cls.grade in ("verified", "partial", "recalled")


@pytest.mark.parametrize("name", sorted({*METHODS, *ALIASES} - {"udj"}))
def test_declared_needs_are_those_of_some_parameters(name):
    rule, declared = method(name), declared_needs(METHODS[method(name).name])
    assert isinstance(rule.needs, frozenset)
    assert {need for need, condition in declared.items() if not condition} <= rule.needs
    assert rule.needs <= set(declared)
    for condition in filter(None, declared.values()):
        assert condition.partition("=")[0] in rule.params


def test_needs_depend_on_the_parameters():
    assert method("fedavg").needs == {"sizes"}
    assert method("fedavg", weights="uniform").needs == frozenset()
    assert method("rawls").needs == {"losses", "steps", "uncertainties"}
    assert method("rawls", step="paper").needs == {"losses", "uncertainties"}
    assert method("cffl").needs == {"sizes", "validation_accuracies"}
    assert method("cffl", theta=0.5).needs == {"sizes", "validation_accuracies", "model"}
    assert declared_needs(METHODS["qffl"]) == {
        "losses": "",
        "sizes": "weights=size",
        "steps": "lipschitz=calibrated",
    }
    assert declared_needs(UDJ) == {"losses": "", "steps": "step=calibrated", "uncertainties": ""}


def test_what_a_method_needs_is_unknown_while_a_parameter_has_no_default():
    class Demanding(FedAvg):
        name = "demanding"
        scale: float = Field(kw_only=True)

    assert declared_needs(parameters(Demanding)) == {}


def test_a_need_of_several_values_is_declared_with_each():
    class Choosy(FedAvg):
        name = "choosy"
        kind: Literal["none", "mean", "worst"] = "none"

        @property
        def needs(self):
            return frozenset({"losses"} if self.kind != "none" else set())

    assert declared_needs(parameters(Choosy)) == {"losses": "kind=mean or kind=worst"}


def test_parameters_that_a_specification_sets():
    assert parameter_names("fedavg:weights=uniform") == {"weights"}
    assert parameter_names("rawls") == set(UDJ.rawls().params)
    assert fixed_parameters("fedavg") == {}
    assert fixed_parameters("rawls:beta=2") == {"theory": "rawls", "beta": "2"}


def test_shared_parameters_go_to_the_methods_that_can_use_them():
    shared = {"weights": "uniform", "beta": 2, "theory": "desert", "cap": 0.7}
    assert shared_parameters("fedavg", shared) == {"weights": "uniform"}
    assert shared_parameters("fedavg:weights=size", shared) == {}
    assert shared_parameters("rawls", shared) == {"beta": 2, "cap": 0.7}
    assert shared_parameters("rawls:beta=3", shared) == {"cap": 0.7}


@pytest.mark.parametrize(
    "read", [method, parameter_names, fixed_parameters, lambda spec: shared_parameters(spec, {})]
)
def test_a_specification_that_sets_a_parameter_twice_is_refused(read):
    with pytest.raises(SettingsError, match=r"^method: "):
        read("rawls:beta=1:beta=2")


@pytest.mark.parametrize(("short", "target"), ALIASES.items())
def test_short_names_stand_for_points_of_a_method(short, target):
    assert short not in METHODS
    name, preset = target
    assert method(short) == method(name, **preset)


def test_the_four_theories_have_short_names():
    assert set(ALIASES) >= THEORIES
    for theory in THEORIES:
        assert method(theory) == UDJ(theory=theory)


def test_fedavg_is_utilitarian():
    assert method("fedavg").theories == ("utilitarian",)
    assert method("fedavg") == FedAvg()


def test_the_function_is_public():
    assert udjfl.method is method
    assert udjfl.method("udj", theory="rawls", beta=5).params["beta"] == 5.0


@pytest.mark.parametrize("name", [*METHODS, *ALIASES])
def test_methods_are_values(name):
    rule = method(name) if name != "udj" else method(name, theory="rawls")
    assert rule == method(rule.name, **rule.params)
    assert rule.spec_name == rule.name
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.name = "other"


def test_equal_methods_have_one_hash_whatever_their_parameters():
    by_id = [method("rawls", beta=beta) for beta in ({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0})]
    assert {by_id[0]: "found"}[by_id[1]] == "found"
    assert len({method("rawls"), method("rawls", beta=5), method("rawls", beta=(1, 2))}) == 2


def test_labels_tell_points_apart():
    texts = ["fedavg", "fedavg:weights=uniform", "rawls", "rawls:beta=1", "desert"]
    labels = {method(text).label for text in texts}
    assert len(labels) == 5
    assert "FedAvg" in labels
    assert any("rawls" in label and "beta=1" in label for label in labels)


# --- methods of other packages ---

OUTSIDE = "examples.my_method:TrimmedMean"


@parameters
class Loudest(Method):
    """Follow the client with the largest update."""

    name = "loudest"
    title = "Loudest"
    paper = "none"
    grade = "recalled"
    needs = frozenset({"losses"})
    scale: float = 1.0

    def aggregate(self, state, reports):
        weights = torch.zeros(len(reports))
        weights[reports.deltas.norm(dim=1).argmax()] = self.scale
        return state, weighted_sum(weights, reports.deltas), {"weight": weights}


@pytest.fixture
def registry(monkeypatch):
    """Undo registrations after a test."""
    before = dict(METHODS)
    yield METHODS
    METHODS.clear()
    METHODS.update(before)


def test_a_registered_class_is_built_by_name(registry):
    assert Loudest().spec_name == f"{__name__}:Loudest"
    assert register_method(Loudest) is Loudest
    rule = method("loudest:scale=0.5")
    assert (rule.params, rule.spec_name) == ({"scale": 0.5}, "loudest")
    reports = Reports(ids=["a", "b"], deltas=[[1.0, 0.0], [0.0, 4.0]], losses=[1.0, 1.0])
    _, step, _ = rule.aggregate(rule.init(Setup.of(reports)), reports)
    assert step.tolist() == [0, 2]
    assert any("Did you mean 'scale'" in line for line in mistakes_of("loudest", scal=1))
    assert "'loudest'" in mistakes_of("loudst")[0]


def test_the_base_class_checks_what_a_method_needs():
    with pytest.raises(ReportError, match="losses was left out"):
        Loudest().aggregate({}, Reports(ids=["a"], deltas=[[1.0]]))


def test_names_are_registered_once(registry):
    register_method(Loudest)
    register_method(Loudest)
    other = type("Other", (Loudest,), {})
    with pytest.raises(SettingsError, match=r"'loudest' is taken; choose another name"):
        register_method(other)
    for name in ("fedavg", "rawls"):
        with pytest.raises(SettingsError, match=rf"'{name}' is taken"):
            register_method(type("Other", (Loudest,), {"name": name}))


def test_a_class_is_built_from_where_it_stands():
    rule = method(f"{OUTSIDE}:drop=2")
    assert (rule.name, rule.params) == ("trimmed-mean", {"drop": 2})
    assert rule.spec_name == OUTSIDE
    assert method(rule.spec_name, **rule.params) == rule
    assert method(OUTSIDE, drop="3").params == {"drop": 3}
    (line,) = mistakes_of(f"{OUTSIDE}:drp=2")
    assert line.startswith(f"{OUTSIDE}: drp: no such ")


def test_an_entry_point_is_a_name(registry, monkeypatch):
    point = importlib.metadata.EntryPoint("trimmed", OUTSIDE, "udjfl.methods")
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda **wanted: [point] if wanted["group"] else []
    )
    assert method("trimmed:drop=2").params == {"drop": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("examples.my_method:main", "examples.my_method:main is not a subclass of udjfl.Method"),
        ("examples.my_method:Trimmed", "cannot import 'examples.my_method:Trimmed'"),
        ("no_such_package:Mean", "cannot import 'no_such_package:Mean'"),
        ("udjfl.methods.base:Method", "decorate it with udjfl.parameters"),
    ],
)
def test_anything_but_a_method_is_refused(text, message):
    (line,) = mistakes_of(text)
    assert message in line


def test_an_incomplete_class_is_refused():
    without_aggregate: type[Method] = parameters(type("Mine", (Method,), {"name": "mine"}))
    with pytest.raises(SettingsError, match="has no aggregate"):
        register_method(without_aggregate)
    nameless = type("Mine", (Method,), {"name": "mine", "aggregate": Loudest.aggregate})
    with pytest.raises(SettingsError, match="does not set title, paper, grade"):
        register_method(parameters(nameless))


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


def test_an_unknown_name_without_a_near_one_lists_all():
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


def test_a_parameter_named_self_is_refused_like_any_other():
    (line,) = mistakes_of("fedavg", **{"self": 1})
    assert line == "fedavg: self: no such parameter. Known: weights."


def test_a_parameter_named_self_is_compared_with_those_that_there_are(registry):
    class Selfless(FedAvg):
        name = "selfless"
        seed: int = 0  # near to it, but not to anything longer

    register_method(parameters(Selfless))
    (line,) = mistakes_of("selfless", **{"self": 1})
    assert "Did you mean 'seed'?" in line


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


def test_all_mistakes_are_listed_at_once():
    lines = mistakes_of("udj", theory="rawls", bta=1, gamma="much", step="papr")
    assert len(lines) == 3
    assert all(any(word in line for line in lines) for word in ("bta", "gamma", "step"))


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
def test_a_specification_is_read(text, expected):
    name, params = expected
    assert method(text) == method(name, **params)


def test_keywords_win_over_the_specification():
    assert method("rawls:beta=5", gamma="2", beta=1) == method("rawls", beta=1.0, gamma=2.0)


@pytest.mark.parametrize("text", ["rawls:beta", "rawls:5", "rawls:"])
def test_an_option_without_a_value_is_refused(text):
    with pytest.raises(
        SettingsError, match=r"key=value was expected, as in udj:theory=rawls:beta=5"
    ):
        method(text)


@pytest.mark.parametrize("text", ["", ":", "rawl:beta=5"])
def test_a_specification_with_an_unknown_name_is_refused(text):
    with pytest.raises(SettingsError, match=r"unknown name|package.module:Name"):
        method(text)


def test_a_short_name_keeps_its_meaning():
    with pytest.raises(
        SettingsError, match=r"rawls: theory is what the short name stands for; .* ask for 'udj'"
    ):
        method("rawls", theory="desert")
    assert method("rawls", theory="rawls") == method("rawls")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"needs": frozenset({"accuracy"})}, "needs has 'accuracy'.*Did you mean 'accuracies'"),
        ({"needs_groups": frozenset({"group_gap"})}, "needs_groups has 'group_gap'"),
        ({"probes": frozenset({"gradient"})}, "probes has 'gradient'"),
        ({"theories": ("rawl",)}, "theories has 'rawl'.*Did you mean 'rawls'"),
        (
            {"theories": ("rawls",), "__annotations__": {"theories": "tuple[str, ...]"}},
            "write theories .* without a type",
        ),
    ],
)
def test_unknown_names_in_declarations_are_refused(attributes, message):
    cls = type("Mine", (FedAvg,), {"name": "mine", **attributes})
    with pytest.raises(SettingsError, match=f"mine: {message}"):
        parameters(cls)()

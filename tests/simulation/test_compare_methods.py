"""The methods that are compared, and parameters shared by several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from short_comparisons import make_settings
from small_runs import compare

import udjfl
from udjfl.errors import SettingsError
from udjfl.methods import ALIASES, METHODS
from udjfl.simulation.compare import choose_methods


def test_fedavg_is_always_first_and_once() -> None:
    for names in (
        ["rawls"],
        ["rawls", "fedavg"],
        ["fedavg", "rawls", "rawls"],
        ["rawls", "fedavg:weights=size"],
    ):
        assert choose_methods(make_settings(methods=names)) == [
            udjfl.FedAvg(),
            udjfl.UDJ(theory="rawls"),
        ]
    both = choose_methods(make_settings(methods=["fedavg:weights=uniform"]))
    assert both == [udjfl.FedAvg(), udjfl.FedAvg(weights="uniform")]


def test_all_is_every_method_and_every_named_point_of_a_family() -> None:
    found = choose_methods(make_settings(methods=["all"]))
    assert {method.name for method in found} == {
        name for name, cls in METHODS.items() if not cls.baseline
    }
    assert {theory for method in found for theory in method.theories} >= set(ALIASES)
    assert found[0] == udjfl.FedAvg()
    assert len(found) == len({method.label for method in found})
    baselines = choose_methods(make_settings(methods=["baselines"]))
    assert [method.name for method in baselines if not method.baseline] == ["fedavg"]
    assert {method.name for method in [*found, *baselines]} == set(METHODS)


def test_parameters_go_to_the_methods_that_have_them() -> None:
    found = choose_methods(
        make_settings(
            methods=["fedavg", "rawls", "utilitarian"], params={"beta": 2, "step": "safe"}
        )
    )
    assert found == [
        udjfl.FedAvg(),
        udjfl.UDJ(theory="rawls", beta=2.0, step="safe"),
        udjfl.UDJ(theory="utilitarian", beta=2.0, step="safe"),
    ]


def test_shared_parameters_go_to_methods_where_they_have_a_meaning() -> None:
    """Of methods with and without a budget, in one comparison."""
    mixed = ["rawls", "udj:theory=rawls:budget=2", "udj:theory=desert:budget=2"]
    _, plain, rawls, desert = choose_methods(
        make_settings(methods=mixed, params={"gamma": 0.5, "caution": 1, "advantage": "fedavg"})
    )
    assert (plain.params["gamma"], plain.params["caution"]) == (0.5, None)
    assert (rawls.params["caution"], rawls.params["advantage"]) == (1.0, "fedavg")
    assert (desert.params["caution"], desert.params["advantage"]) == (1.0, None)
    budgets = choose_methods(make_settings(methods=["rawls", "desert"], params={"budget": 2}))
    assert [method.params["budget"] for method in budgets[1:]] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("methods", "params", "message"),
    [
        (["rawls", "desert"], {"caution": 1}, "rawls: caution applies to a budget"),
        (["rawls", "afl"], {"budget": 2, "gamma": 1}, "rawls: gamma has no effect with a budget"),
    ],
)
def test_a_shared_parameter_that_no_method_can_use_is_refused(
    methods: list[str], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        choose_methods(make_settings(methods=methods, params=params))


def test_parameters_can_complete_a_method_that_needs_them() -> None:
    """Without parameters `udj` cannot be built: `--methods udj -p beta=2 -p gamma=1`."""
    assert choose_methods(make_settings(methods=["udj"], params={"theory": "rawls"}))[1:] == [
        udjfl.UDJ(theory="rawls")
    ]
    found = choose_methods(make_settings(methods=["udj"], params={"beta": 2, "gamma": 1}))
    assert found[1:] == [udjfl.UDJ(beta=2.0, gamma=1.0)]


def test_every_mistake_in_methods_and_parameters_is_reported() -> None:
    with pytest.raises(SettingsError) as caught:
        choose_methods(
            make_settings(methods=["rawlz", "fedavg", "fedaverage", "udj:theory=rawls:beta"])
        )
    text = "\n".join(caught.value.mistakes)
    assert len(caught.value.mistakes) == 3
    for part in (
        "'rawlz'. Did you mean 'rawls'?",
        "'fedaverage'. Did you mean 'fedavg'?",
        "'beta' where key=value",
    ):
        assert part in text
    with pytest.raises(SettingsError) as caught:
        choose_methods(
            make_settings(
                methods=["rawls", "egalitarian"], params={"gamma": "much", "step": "long"}
            )
        )
    assert sorted({sentence.split(": ")[1] for sentence in caught.value.mistakes}) == [
        "gamma",
        "step",
    ]


def test_every_unknown_parameter_is_reported_with_a_hint() -> None:
    with pytest.raises(SettingsError) as caught:
        choose_methods(make_settings(methods=["rawls"], params={"bta": 1, "gama": 2, "beta": 3}))
    assert len(caught.value.mistakes) == 2
    for wrong, right in (("bta", "beta"), ("gama", "gamma")):
        assert any(
            repr(wrong) in sentence and f"Did you mean {right!r}?" in sentence
            for sentence in caught.value.mistakes
        )


def test_an_unknown_method_does_not_hide_an_unknown_parameter() -> None:
    with pytest.raises(SettingsError) as caught:
        choose_methods(
            make_settings(methods=["rawls", "fedaverage"], params={"no_method_has_this": 1})
        )
    assert "fedaverage" in str(caught.value)
    assert "no_method_has_this" in str(caught.value)


def test_a_parameter_for_all_methods_does_not_replace_a_methods_own() -> None:
    found = choose_methods(
        make_settings(
            methods=["rawls:beta=2", "egalitarian"], params={"beta": 3, "theory": "desert"}
        )
    )
    assert [(method.params["theory"], method.params["beta"]) for method in found[1:]] == [
        ("rawls", 2.0),
        ("egalitarian", 3.0),
    ]


def test_parameters_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    with pytest.raises(SettingsError) as caught:
        compare(
            make_settings(methods=["rawls:beta=1;2", "desert:beta=1;2"]),
            federation=federation,
            out=tmp_path / "compared",
        )
    assert len(caught.value.mistakes) == 2
    assert not (tmp_path / "compared").exists()

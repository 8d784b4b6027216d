"""A chosen point as a TOML file, and several methods tuned alike."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from udjfl.methods import METHODS, UDJ, FedAvg, method
from udjfl.search.settings import TuneSettings
from udjfl.search.spaces import find_space, udj_families
from udjfl.search.tuned_methods import to_spec, tune_methods, tuned_config
from udjfl.settings import CompareSettings, RunSettings, validate_settings


@pytest.mark.parametrize("theory", ["rawls", "egalitarian", "utilitarian", "desert"])
def test_the_config_is_that_of_the_chosen_point(theory: str) -> None:
    given: dict[str, Any] = {"data": "scanners", "rounds": 7, "momentum": 0.0, "workers": 2}
    settings = TuneSettings(theory=theory, **given)
    for family in udj_families(theory, 2.0):
        rule = family.at([0.3] * len(family.dimensions)).method
        values = tomllib.loads(tuned_config(settings, rule))
        run = validate_settings(RunSettings, values)
        assert method(run.method, **run.params) == rule
        expected = settings.training.model_copy(update={"workers": 0})
        assert (run.federation.data, run.training) == ("scanners", expected)


def test_lists_and_odd_texts_are_written_as_toml() -> None:
    given: dict[str, Any] = {
        "data": 'h "1"\\\n\x7f/*.csv',
        "target": "ill",
        "drop": ["a, b", "c"],
        "categories": ["d"],
    }
    values = tomllib.loads(tuned_config(TuneSettings(**given), method("rawls")))
    run = validate_settings(RunSettings, values)
    flat = run.federation.to_flat()
    assert {key: flat[key] for key in given} == given


def test_params_by_client_are_written_as_toml() -> None:
    rule = UDJ(beta={"client 1": 2.0, "b": 1.0}, gamma=0.0)
    run = validate_settings(RunSettings, tomllib.loads(tuned_config(TuneSettings(), rule)))
    assert method(run.method, **run.params) == rule


@pytest.mark.parametrize("name", [name for name in METHODS if name != "udj"])
def test_a_method_as_text(name: str) -> None:
    rule = method(name)
    assert method(to_spec(rule)) == rule
    families, _ = find_space(rule, "egalitarian", 2.0)
    for family in families:
        other = family.at([0.8] * len(family.dimensions)).method
        assert method(to_spec(other)) == other


def test_every_method_gets_the_same_search_and_fedavg_none(
    tmp_path: Path, tiny_source: str
) -> None:
    small: dict[str, Any] = {
        "rounds": 3,
        "seeds": [0, 1],
        "hidden": 8,
        "uncertainty_epochs": 2,
        "workers": 1,
    }
    settings = CompareSettings(**{**small, "data": tiny_source})
    methods = [FedAvg(), method("qffl"), method("mfairfl")]
    tuned = tune_methods(settings, methods, out=tmp_path)
    assert (tuned[0], tuned[2]) == (FedAvg(), method("mfairfl"))  # nothing to search
    assert tuned[1].name == "qffl"
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["qffl"]
    assert tune_methods(settings, methods, out=tmp_path) == tuned

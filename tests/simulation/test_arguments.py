"""`simulate` and `compare` take the same data, models, methods and settings."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command, mistakes_of
from programs import run_program
from small_runs import make_federation, read_files, rising_uncertainties
from torch import nn

import udjfl
from udjfl.errors import SettingsError
from udjfl.methods import ALIASES, METHODS
from udjfl.metrics import METRICS
from udjfl.settings import DataSettings, TrainingSettings

Numbers = dict[str, tuple[float | None, float | None]]
TINY: dict[str, Any] = {"rounds": 2, "hidden": 3, "uncertainty_epochs": 1}


def call_simulate(data: Any, method: Any, model: Any = "mlp", **settings: Any) -> Numbers:
    """Return accuracy and uncertainty by client, of one method."""
    result = udjfl.simulate(data, method, model, **{**TINY, **settings})
    return {name: (result.client_scores[name], u) for name, u in result.uncertainty.items()}


def call_compare(data: Any, method: Any, model: Any = "mlp", **settings: Any) -> Numbers:
    """Return the same numbers of the last method of a comparison with one seed."""
    row = udjfl.compare(data, method, model, seeds=1, **{**TINY, **settings}).rows[-1]
    accuracies = {name: summary.values[0] for name, summary in row.client_scores.items()}
    return {name: (accuracies[name], u.values[0]) for name, u in row.uncertainty.items()}


both = pytest.mark.parametrize("call", [call_simulate, call_compare])


def build_small(input_shape: tuple[int, ...], n_classes: int, width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, n_classes))


def mistakes_in(call: Callable[..., Any], *arguments: Any, **settings: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        call(*arguments, **settings)
    return list(caught.value.mistakes)


# --- data


@both
def test_data_can_be_named_with_settings(call: Callable[..., Any], tiny_source: str) -> None:
    accuracies = call(tiny_source, "fedavg", clients=4, partition="iid")
    assert list(accuracies) == ["client-1", "client-2", "client-3", "client-4"]
    loaded = udjfl.load(tiny_source, 4, "iid", 0)
    assert accuracies == call(loaded, "fedavg")
    assert accuracies != call(tiny_source, "fedavg", clients=4, partition="shards")


@both
def test_data_can_be_a_federation_or_a_function_of_the_seed(call: Callable[..., Any]) -> None:
    seeds: list[int] = []

    def make(seed: int) -> udjfl.Federation:
        seeds.append(seed)
        return make_federation(seed=seed + 7)

    assert call(make, "fedavg") == call(make_federation(seed=7), "fedavg")
    assert seeds == [0]


def test_a_function_makes_the_federation_of_each_seed() -> None:
    seeds: list[int] = []

    def make(seed: int) -> udjfl.Federation:
        seeds.append(seed)
        return make_federation(seed=seed)

    udjfl.simulate(make, "fedavg", seed=5, **TINY)
    udjfl.compare(make, "fedavg", seeds=[3, 4], **TINY)
    assert seeds == [5, 3, 4]


@both
@pytest.mark.parametrize("by_seed", [False, True])
def test_settings_of_named_data_are_refused_with_a_federation(
    call: Callable[..., Any], by_seed: bool
) -> None:
    data: Any = (lambda seed: make_federation()) if by_seed else make_federation()
    wrong = {"clients": 2, "partition": "iid", "data_root": "here", "rounds": 0}
    mistakes = mistakes_in(call, data, "fedavg", **wrong)
    names = [line.partition(":")[0] for line in mistakes]
    assert sorted(names) == ["clients", "data_root", "partition", "rounds"]
    assert (
        "clients: applies to data given by name; leave it out with a federation of your own"
        in mistakes
    )


@both
def test_unknown_data_are_reported_with_a_hint(call: Callable[..., Any]) -> None:
    with pytest.raises(udjfl.UdjflError, match="Did you mean 'dirty-digits'"):
        call("dirty-digit", "fedavg")


# --- methods


@both
@pytest.mark.parametrize(
    "method", ["udj:theory=rawls:beta=2", "rawls:beta=2", udjfl.UDJ.rawls(2.0)], ids=str
)
def test_a_method_can_be_a_name_a_specification_or_an_object(
    call: Callable[..., Any], method: Any
) -> None:
    federation = make_federation()
    assert call(federation, method) == call(federation, "rawls:beta=2")


def test_methods_can_be_a_text_a_list_or_mixed() -> None:
    federation = make_federation()
    expected = [udjfl.FedAvg(), udjfl.UDJ.rawls(), udjfl.UDJ.desert()]
    for methods in (
        "rawls,desert",
        " rawls , desert, ",
        "fedavg,rawls,desert,rawls",
        ["rawls", "desert"],
        ("rawls", udjfl.UDJ.desert()),
        [udjfl.UDJ.rawls(), udjfl.UDJ.desert()],
    ):
        compared = udjfl.compare(federation, methods, seeds=1, **TINY)
        assert [row.method for row in compared.rows] == expected, methods


def test_all_stands_for_every_method() -> None:
    compared = udjfl.compare(
        make_federation(), "all", "logistic", seeds=1, rounds=1, uncertainty_epochs=1
    )
    methods = [row.method for row in compared.rows]
    assert {method.name for method in methods} == {
        name for name, cls in METHODS.items() if not cls.baseline
    }
    assert {theory for method in methods for theory in method.theories} >= set(ALIASES)
    assert all(row.failed == {} for row in compared.rows)


@pytest.mark.parametrize("methods", ["", " , ", []])
def test_no_method_is_a_mistake(methods: Any) -> None:
    (line,) = mistakes_in(udjfl.compare, make_federation(), methods, **TINY)
    assert line.startswith("methods: ")


def test_parameters_for_named_methods_are_refused_with_method_objects() -> None:
    (line,) = mistakes_in(
        udjfl.compare, make_federation(), ["desert", udjfl.UDJ.rawls()], params={"beta": 2}, **TINY
    )
    assert line.startswith("params: apply to methods given by name")


@both
def test_unknown_methods_are_reported_with_a_hint(call: Callable[..., Any]) -> None:
    (line,) = mistakes_in(call, make_federation(), "rawlz")
    assert line.startswith("method: unknown name 'rawlz'. Did you mean 'rawls'?")


@both
def test_a_class_is_not_a_method(call: Callable[..., Any]) -> None:
    argument: Any = udjfl.FedAvg if call is call_simulate else [udjfl.FedAvg]
    (line,) = mistakes_in(call, make_federation(), argument)
    assert line.startswith("method: got the class FedAvg; give a name, or a method as ")


# --- models


@both
def test_a_model_can_be_a_name_a_specification_or_a_function(call: Callable[..., Any]) -> None:
    federation = make_federation()
    assert call(federation, "fedavg", "mlp:hidden=4") == call(federation, "fedavg", hidden=4)
    by_function = call(federation, "fedavg", build_small)
    assert by_function == call(federation, "fedavg", f"{__name__}:build_small:width=3")
    assert by_function == call(federation, "fedavg", lambda: build_small((4,), 3))


@both
def test_unknown_models_are_reported_with_a_hint(call: Callable[..., Any]) -> None:
    (line,) = mistakes_in(call, make_federation(), "fedavg", "mpl")
    assert line.startswith("model: unknown name 'mpl'. Did you mean 'mlp'?")


# --- settings


@both
def test_unknown_keywords_are_reported_with_a_hint(call: Callable[..., Any]) -> None:
    lines = mistakes_in(call, make_federation(), "fedavg", roundz=3, lr=-1)
    assert len(lines) == 2
    assert lines[0].startswith("roundz: no such setting. Did you mean 'rounds'? Known: batch_size,")
    assert lines[1].startswith("lr: ")


@both
def test_uncertainties_can_be_given_or_named(call: Callable[..., Any]) -> None:
    federation = make_federation()
    given = rising_uncertainties(federation)
    numbers = call(federation, "rawls", uncertainty=given)
    assert {name: u for name, (_, u) in numbers.items()} == given
    assert call(federation, "rawls", uncertainty="confidence") != call(federation, "rawls")
    (line,) = mistakes_in(call, federation, "rawls", uncertainty="cross-fit")
    assert line.startswith("uncertainty: unknown value 'cross-fit'. Did you mean 'crossfit'?")


@pytest.mark.parametrize("function", [udjfl.simulate, udjfl.compare])
def test_the_signature_lists_every_setting(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    settings = {**DataSettings.flat_fields(), **TrainingSettings.flat_fields()}
    assert set(settings) <= set(parameters)
    for name, field in settings.items():
        if name not in ("data", "model"):
            assert parameters[name].default == field.default, name
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, name
    assert [list(parameters)[index] for index in (0, 2)] == ["data", "model"]
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_the_same_arguments_give_the_same_numbers() -> None:
    """A comparison of one seed has the numbers of two single runs."""
    federation = make_federation()
    fedavg = udjfl.simulate(federation, "fedavg", build_small, seed=3, **TINY)
    rawls = udjfl.simulate(federation, "rawls", build_small, seed=3, reference=fedavg, **TINY)
    compared = udjfl.compare(federation, "rawls", build_small, seeds=[3], **TINY)
    for result, row in zip((fedavg, rawls), compared.rows, strict=True):
        values = {name: summary.values[0] for name, summary in row.metrics.items()}
        zero = dict.fromkeys(("psi", "gain_least_advantaged", "gain_others"), 0.0)
        unknown = {key: None for key, metric in METRICS.items() if metric.needs_groups}
        assert values == {**unknown, **zero, **result.metrics}


# --- a method of another package, on the command line

PACKAGE = '''
from typing import Annotated

from pydantic import Field

import udjfl


@udjfl.parameters
class TrimmedMean(udjfl.Method):
    """Drop a share of the values of every coordinate at each end, average the rest."""

    name = "trimmed-mean"
    title = "Trimmed mean"
    paper = "Yin et al., ICML 2018"
    grade = "recalled"

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.3

    def aggregate(self, state, reports):
        drop = int(self.share * len(reports))
        values = reports.deltas.sort(dim=0).values
        return state, values[drop : len(reports) - drop].mean(dim=0), {}
'''
FLAGS = "--data tiny --clients 4 --model logistic --rounds 4 --uncertainty-epochs 1"


@pytest.fixture
def command(
    tmp_path: Path,
    tiny_source: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Return the command `udjfl`, called in this process, with the package on the path."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_package", raising=False)
    return Command(monkeypatch, capsys)


def test_compare_takes_a_method_of_another_package(tmp_path: Path, command: Command) -> None:
    names = "my_package:TrimmedMean,my_package:TrimmedMean:share=0.2"
    output = command("compare", FLAGS, "--seeds 2 --json --methods", names, "--out", tmp_path / "a")
    assert output.code == 0, output.err
    rows = json.loads(output.out)["methods"]
    assert [(row["method"], row["params"].get("share")) for row in rows] == [
        ("fedavg", None),
        ("trimmed-mean", 0.3),
        ("trimmed-mean", 0.2),
    ]
    before = read_files(tmp_path / "a")
    # 0.2 of 4 clients are none, 0.3 are one: the second is the plain mean, the first is not.
    one, other = (before[f"seed-0/trimmed-mean-share={x}/model.safetensors"] for x in (0.3, 0.2))
    assert one != other
    for path in (tmp_path / "a").rglob("checkpoint.safetensors"):
        path.unlink()
    again = command("resume --trust-model --json", tmp_path / "a")
    assert (again.code, again.out) == (0, output.out)
    assert read_files(tmp_path / "a") == before


def test_a_run_of_a_method_of_another_package_resumes(tmp_path: Path, command: Command) -> None:
    method = "--method my_package:TrimmedMean:share=0.2"
    output = command("run", FLAGS, method, "--json --out", tmp_path / "a")
    assert output.code == 0, output.err
    settings = json.loads((tmp_path / "a" / "settings.json").read_text())
    assert (settings["method"], settings["params"]) == ("my_package:TrimmedMean", {"share": 0.2})
    before = read_files(tmp_path / "a")
    for name in ("checkpoint.safetensors", "model.safetensors", "result.json"):
        (tmp_path / "a" / name).unlink()
    again = command("resume --trust-model --json", tmp_path / "a")
    assert (again.code, again.out) == (0, output.out)
    assert read_files(tmp_path / "a") == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_package:TrimmedMeen", "method: cannot import 'my_package:TrimmedMeen'"),
        ("my_packige:TrimmedMean", "method: cannot import 'my_packige:TrimmedMean'"),
        ("my_package:Field", "method: my_package:Field is not a subclass of udjfl.Method"),
        ("my_package:TrimmedMean:shore=0.2", "Did you mean 'share'?"),
        ("my_package:TrimmedMean:share=0.7", "my_package:TrimmedMean: share: "),
    ],
)
def test_mistakes_in_a_method_of_another_package_are_named(
    command: Command, name: str, message: str
) -> None:
    (line,) = mistakes_of(command("compare", FLAGS, "--methods", name))
    assert message in line


def test_a_method_of_another_package_works_in_a_process_of_its_own(tmp_path: Path) -> None:
    """`PYTHONPATH` reaches the processes of `--jobs` too."""
    (tmp_path / "my_package.py").write_text(PACKAGE)
    flags = (
        "compare --methods my_package:TrimmedMean:share=0.2 --seeds 2 --jobs 2 --json "
        "--model logistic --rounds 2 --uncertainty-epochs 1"
    )
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    printed = run_program(
        [sys.executable, "-m", "udjfl", *flags.split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
    )
    row = json.loads(printed)["methods"][1]
    assert (row["method"], row["params"], len(row["std"]["values"])) == (
        "trimmed-mean",
        {"share": 0.2},
        2,
    )

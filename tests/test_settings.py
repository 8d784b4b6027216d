"""Settings: ranges and defaults; every mistake is reported at once."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import udjfl
from udjfl.errors import SettingsError
from udjfl.settings import (
    CompareSettings,
    DataSettings,
    RunSettings,
    Settings,
    TrainingSettings,
    read_toml,
    validate_settings,
)


def find_mistakes(cls: type[Settings], **values: Any) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        validate_settings(cls, values)
    assert str(caught.value).splitlines() == list(caught.value.mistakes)
    return caught.value.mistakes


# --- every mistake at once


@pytest.mark.parametrize(
    ("values", "mistake"),
    [
        ({"seeds": "ten"}, "seeds: each must be a whole number, got 'ten'"),
        ({"seeds": [0, 1.5]}, "seeds: each must be a whole number, got 1.5"),
        ({"rounds": "ten"}, "rounds: must be a whole number, got 'ten'"),
        ({"rounds": 0}, "rounds: must be at least 1, got 0"),
        ({"lr": None}, "lr: must be a number, got None"),
        ({"lr": 0}, "lr: must be more than 0, got 0"),
        ({"lr": float("inf")}, "lr: must be a finite number, got inf"),
        ({"momentum": 1}, "momentum: must be less than 1, got 1"),
        ({"participation": 2}, "participation: must be at most 1, got 2"),
        ({"nesterov": "perhaps"}, "nesterov: must be true or false, got 'perhaps'"),
    ],
)
def test_a_mistake_is_told_in_plain_words(values: dict[str, Any], mistake: str) -> None:
    assert find_mistakes(CompareSettings, **values) == (mistake,)


def test_every_mistake_is_named_with_its_value() -> None:
    lines = find_mistakes(
        RunSettings,
        rounds=0,
        lr=-1,
        momentum=1,
        participation=0,
        drop_out=1,
        clients="many",
        engine="fast",
        roundz=3,
    )
    assert len(lines) == 8
    by_field = {line.partition(":")[0]: line for line in lines}
    assert set(by_field) == {
        "rounds",
        "lr",
        "momentum",
        "participation",
        "drop_out",
        "clients",
        "engine",
        "roundz",
    }
    for field, value in {
        "rounds": "0",
        "lr": "-1",
        "momentum": "1",
        "clients": "'many'",
        "engine": "'fast'",
    }.items():
        assert value in by_field[field].partition(":")[2]


def test_an_unknown_setting_has_a_suggestion() -> None:
    (line,) = find_mistakes(RunSettings, roundz=3)
    assert line.startswith("roundz: no such setting. Did you mean 'rounds'? Known: batch_size, ")
    (line,) = find_mistakes(RunSettings, qqq=3)
    assert "Did you mean" not in line
    assert "Known: batch_size, " in line


def test_an_unknown_choice_lists_the_known_ones() -> None:
    (line,) = find_mistakes(TrainingSettings, loss_at="recieved")
    assert line.startswith("loss_at: ")
    assert "Did you mean 'received'?" in line
    for choice in ("received", "running", "final"):
        assert choice in line


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "inf", None, [], "", "1e999"])
def test_a_number_must_be_a_finite_number(value: Any) -> None:
    (line,) = find_mistakes(TrainingSettings, lr=value)
    assert line.startswith("lr: ")


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("rounds", [1, "7"], [0, -1, 1.5, "x"]),
        ("lr", [1e-9, "0.5"], [0, -0.1]),
        ("momentum", [0, 0.999], [-0.1, 1]),
        ("batch_size", [1], [0]),
        ("local_epochs", [1], [0]),
        ("hidden", [1], [0]),
        ("participation", [0.001, 1], [0, 1.001]),
        ("drop_out", [0, 0.999], [-0.1, 1]),
        ("uncertainty_models", [2], [1]),
        ("uncertainty_epochs", [0, 1], [-1]),
        ("uncertainty_folds", [2], [1]),
        ("eval_every", [1], [0]),
        ("checkpoint_every", [1], [0]),
        ("on_bad_report", ["fail", "exclude"], ["ignore"]),
        ("uncertainty", ["crossfit", "paper", "confidence", "ensemble"], ["entropies"]),
        ("weight_norm", [True, False], ["perhaps"]),
        ("class_weights", ["none", "1,2", [1, 2]], ["1,nan", "1,inf", "1,0", "1,"]),
    ],
)
def test_values_outside_a_range_are_refused(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        validate_settings(TrainingSettings, {field: value})
    for value in bad:
        (line,) = find_mistakes(TrainingSettings, **{field: value})
        assert line.startswith(f"{field}: "), line


def test_a_setting_in_both_spellings_is_refused() -> None:
    assert validate_settings(TrainingSettings, {"optimizer": "adam"}).optimiser == "adam"
    (line,) = find_mistakes(TrainingSettings, optimizer="adam", optimiser="sgd")
    assert line == "optimiser: is given twice, as optimiser and as optimizer; leave one out"


def test_a_file_is_read_by_our_spelling_so_that_a_flag_replaces_its_value(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('optimizer = "adam"\n')
    assert {**read_toml(tmp_path / "a.toml"), "optimiser": "sgd"} == {"optimiser": "sgd"}
    (tmp_path / "b.toml").write_text('optimizer = "adam"\noptimiser = "sgd"\n')
    with pytest.raises(SettingsError, match="optimiser: is given twice"):
        read_toml(tmp_path / "b.toml")


def test_the_older_name_of_a_measure_is_its_present_one() -> None:
    assert validate_settings(TrainingSettings, {"uncertainty": "entropy"}).uncertainty == "paper"
    (line,) = find_mistakes(TrainingSettings, uncertainty=["entropy"])
    assert line.startswith("uncertainty: ")


def test_settings_cannot_be_changed_afterwards() -> None:
    settings = validate_settings(RunSettings, {})
    with pytest.raises(ValueError, match="frozen"):
        settings.seed = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        settings.training.rounds = 3  # type: ignore[misc]


def test_every_setting_has_a_description_and_a_default() -> None:
    for cls in (RunSettings, CompareSettings):
        for name, field in cls.flat_fields().items():
            assert field.description, name
            assert not field.is_required(), name


# --- seeds


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (3, [0, 1, 2]),
        ("3", [0, 1, 2]),
        (" 3 ", [0, 1, 2]),
        ([0, 3, 7], [0, 3, 7]),
        ([7], [7]),
        ("0,3,7", [0, 3, 7]),
        (" 7, 3 ", [7, 3]),
        ((2, 4), [2, 4]),
    ],
)
def test_seeds_can_be_a_count_a_list_or_a_text(given: Any, seeds: list[int]) -> None:
    assert validate_settings(CompareSettings, {"seeds": given}).seeds == seeds


@pytest.mark.parametrize(
    "given", [0, "0", [], "", "a", "1,b", [-1], "-1", 1.5, True, None, "1;2", [0.5]]
)
def test_unreadable_seeds_are_refused(given: Any) -> None:
    assert all(line.startswith("seeds") for line in find_mistakes(CompareSettings, seeds=given))


@pytest.mark.parametrize("given", [[1, 1], "0,3,0", ["2", 2]])
def test_a_seed_given_twice_is_refused(given: Any) -> None:
    (line,) = find_mistakes(CompareSettings, seeds=given)
    assert line.startswith("seeds: give each seed once")


# --- methods


def test_methods_are_read_from_text() -> None:
    assert validate_settings(CompareSettings, {"methods": "rawls, desert,"}).methods == [
        "rawls",
        "desert",
    ]
    assert validate_settings(CompareSettings, {"methods": ["rawls"]}).methods == ["rawls"]
    (line,) = find_mistakes(CompareSettings, methods=" , ")
    assert line.startswith("methods: ")


# --- TOML


def test_settings_are_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        'rounds = 3\nmethods = ["rawls"]\nseeds = [0, 4]\n[params]\nbeta = 2\n', encoding="utf-8"
    )
    settings = validate_settings(CompareSettings, read_toml(path))
    assert (settings.training.rounds, settings.methods, settings.seeds, settings.params) == (
        3,
        ["rawls"],
        [0, 4],
        {"beta": 2},
    )


def test_invalid_toml_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("rounds = 3\nlr =\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"config: .*s\.toml is not valid TOML: .*line 2"):
        read_toml(path)


def test_toml_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes("method = 'Agüera'".encode("utf-16"))
    with pytest.raises(SettingsError, match=r"s\.toml is not valid TOML"):
        read_toml(path)


def test_unreadable_toml_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"config: cannot read .*none\.toml: No such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match=r"config: cannot read .*: Is a directory"):
        read_toml(tmp_path)


# --- the same settings everywhere


def test_simulate_has_every_training_setting_with_the_same_default() -> None:
    signature = inspect.signature(udjfl.simulate).parameters
    for name, field in TrainingSettings.model_fields.items():
        assert name in signature, name
        assert signature[name].default == field.default, name


def test_run_and_compare_take_the_same_data_and_training_settings() -> None:
    shared = set(DataSettings.flat_fields()) | set(TrainingSettings.flat_fields())
    assert set(RunSettings.flat_fields()) - shared == {"method", "params", "seed"}
    assert set(CompareSettings.flat_fields()) - shared == {"methods", "params", "seeds", "jobs"}


def test_simulate_reports_every_mistake_at_once(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError) as caught:
        udjfl.simulate(federation, "rawls", rounds=0, lr=-1.0, engine="fast")  # type: ignore[arg-type]
    assert [line.partition(":")[0] for line in caught.value.mistakes] == ["rounds", "lr", "engine"]


@pytest.mark.parametrize("seed", [1.5, "one", None])
def test_simulate_refuses_a_seed_that_is_no_whole_number(
    federation: udjfl.Federation, seed: Any
) -> None:
    """Rounded, 1.5 would silently be seed 1, while settings.json has 1.5."""
    with pytest.raises(SettingsError, match="seed"):
        udjfl.simulate(federation, "fedavg", "logistic", rounds=1, uncertainty_epochs=1, seed=seed)


def test_composed_settings_take_flat_names_groups_and_nested_values() -> None:
    training = TrainingSettings(rounds=3)
    for given in (
        CompareSettings(training=training),
        CompareSettings.model_validate({"training": {"rounds": 3}}),
        CompareSettings.model_validate({"rounds": 3}),
    ):
        assert given.training == training
        assert given.to_flat()["rounds"] == 3
        assert CompareSettings.model_validate(given.model_dump()) == given
        assert validate_settings(CompareSettings, given.to_flat()) == given


def test_long_values_are_not_repeated_in_full() -> None:
    for values in (
        {"rounds": 10**400},
        {"rounds": "9" * 400},
        {"lr": "x" * 10_000},
        {"loss_at": "x" * 10_000},
        {"clients": [10**5000]},
    ):
        (line,) = find_mistakes(RunSettings, **values)
        assert len(line) < 300


def test_seeds_fit_in_64_bits() -> None:
    largest = 2**63 - 1
    assert validate_settings(CompareSettings, {"seeds": [largest]}).seeds == [largest]
    for seeds in ([largest + 1], [10**400], f"{largest + 1},"):
        (line,) = find_mistakes(CompareSettings, seeds=seeds)
        assert line.startswith(f"seeds: each must be at most {largest}, got ")
    assert len(find_mistakes(CompareSettings, seeds=10**400)[0]) < 100
    (line,) = find_mistakes(RunSettings, seed=largest + 1)
    assert line == f"seed: must be at most {largest}, got {largest + 1}"

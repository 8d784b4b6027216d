"""Federations from frames: splits, groups, schemas, and what is wrong with the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from table_helpers import change, make_hospital, make_hospitals

from udjfl import Federation
from udjfl.errors import DataError, SettingsError


def test_frames_become_a_federation() -> None:
    hospitals = make_hospitals()
    federation = Federation.from_frames(hospitals, target="ill")
    assert federation.ids == ("north", "south", "west")
    assert federation.class_names == ("ill", "well")
    assert [len(client.test) for client in federation.clients] == [18, 12, 8]  # a fifth
    assert federation.input_shape == (9,)  # age, income, 3 towns, 2 smoker, 2 indicators
    for client in federation.clients:
        assert bool(torch.isfinite(client.train.x).all())
        assert client.train.x[:, 1].mean().item() == pytest.approx(0, abs=1e-6)  # income
        assert client.train.x[:, 1].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    tests = torch.cat([client.test.x for client in federation.clients])
    assert torch.equal(federation.test.x, tests)  # no shared test set: the union
    assert federation.problems == []


def test_the_seed_decides_the_split() -> None:
    hospitals = make_hospitals()
    prints = [
        Federation.from_frames(hospitals, target="ill", seed=seed).fingerprint for seed in (0, 0, 1)
    ]
    assert prints[0] == prints[1] != prints[2]


def test_one_frame_with_a_column_of_clients_is_the_same() -> None:
    hospitals = make_hospitals()
    joined = pd.concat([frame.assign(hospital=name) for name, frame in hospitals.items()])
    one = Federation.from_frames(joined, target="ill", client="hospital")
    assert one.fingerprint == Federation.from_frames(hospitals, target="ill").fingerprint
    with pytest.raises(DataError, match="name the column that says which client"):
        Federation.from_frames(joined, target="ill")


def test_long_numbers_name_clients_of_their_own() -> None:
    frames = {"1000001": make_hospital(0, 30), "1000002": make_hospital(1, 30)}
    joined = pd.concat([f.assign(site=float(name)) for name, f in frames.items()])
    nameless = make_hospital(2, 1).assign(site=np.nan)  # makes the column one of floats
    federation = Federation.from_frames(pd.concat([joined, nameless]), target="ill", client="site")
    assert federation.ids == ("1000001", "1000002")


def test_test_parts_are_stratified() -> None:
    frame = pd.DataFrame({"x": np.arange(100) ** 1.5, "y": [0] * 80 + [1] * 15 + [2] * 5})
    federation = Federation.from_frames({"a": frame, "b": frame + 0}, target="y", categories=[])
    assert [torch.bincount(c.test.y).tolist() for c in federation.clients] == [[16, 3, 1]] * 2


def test_groups_are_on_one_side_in_the_whole_federation() -> None:
    rng = np.random.default_rng(0)
    frames = {
        name: change(make_hospital(seed, 80), patient=rng.integers(0, 30, 80), row=rng.random(80))
        for seed, name in enumerate("abc")
    }
    federation = Federation.from_frames(
        frames, target="ill", group="patient", scaling="none", drop=["age", "income", "town"]
    )
    patient = {
        row: patient for f in frames.values() for row, patient in zip(f.row, f.patient, strict=True)
    }
    column = federation.preprocessing.schema.features.index("row")
    sides = [
        {
            patient[min(patient, key=lambda known: abs(known - value))]
            for client in federation.clients
            for value in getattr(client, side).x[:, column].tolist()
        }
        for side in ("train", "test")
    ]
    assert not sides[0] & sides[1]
    assert sides[1]


def test_groups_of_several_clients_are_noticed() -> None:
    """Each hospital may number its patients from 0."""

    def problems(prefixes: Sequence[str]) -> tuple[str, ...]:
        frames = {
            name: change(make_hospital(seed, 40), patient=[f"{prefix}{i % 20}" for i in range(40)])
            for seed, (name, prefix) in enumerate(zip("ab", prefixes, strict=True))
        }
        return Federation.from_frames(frames, target="ill", group="patient").problems

    (found,) = problems(["p", "p"])
    assert "column 'patient': 20 of 20 values are of several clients" in found
    assert not problems(["a", "b"])


def test_equal_rows_stay_together_unless_they_are_normal() -> None:
    frame = make_hospital(0, 100)
    copied = pd.concat([frame, frame.iloc[:4]])  # 8 of 104 rows have an equal
    problems = Federation.from_frames({"a": copied, "b": make_hospital(1)}, target="ill").problems
    assert problems == []
    coarse = pd.DataFrame({"x": np.arange(100) % 3, "y": np.arange(100) % 2})
    problems = Federation.from_frames(
        {
            "a": coarse,
            "b": frame.rename(columns={"ill": "z"}).assign(y=coarse.y, x=5.5 + np.arange(100))[
                ["x", "y"]
            ],
        },
        target="y",
    ).problems
    assert any("client 'a': 20 of 20 test rows are also train rows" in line for line in problems)


def test_shared_scaling_uses_one_mean_for_all() -> None:
    a, b = make_hospital(0), make_hospital(1)
    b["income"] += 1e6
    frames = {"a": a, "b": b}
    own = Federation.from_frames(frames, target="ill")
    shared = Federation.from_frames(frames, target="ill", scaling="shared")
    assert own.clients[1].train.x[:, 1].mean().item() == pytest.approx(0, abs=1e-5)
    assert shared.clients[0].train.x[:, 1].mean() < -0.9
    assert shared.clients[1].train.x[:, 1].mean() > 0.9


def test_a_shared_test_frame_is_the_global_test_set() -> None:
    test = make_hospital(9, 30)
    federation = Federation.from_frames(make_hospitals(), target="ill", test=test)
    assert len(federation.test) == 30
    mean = federation.preprocessing.numbers[None]["income"]["mean"]
    scale = federation.preprocessing.numbers[None]["income"]["scale"]
    expected = (test.income.to_numpy() - mean) / scale
    assert federation.test.x[:, 1].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_a_sensitive_column_is_numbered_for_all_clients() -> None:
    federation = Federation.from_frames(make_hospitals(), target="ill", sensitive="smoker")
    assert federation.has_groups
    column = federation.preprocessing.schema.features.index("smoker=yes")
    for client in federation.clients:
        assert torch.equal(client.train.group, client.train.x[:, column].long())


def test_what_was_done_is_listed() -> None:
    frame = change(make_hospital(0), number=range(60), note=[f"text {i}" for i in range(60)])
    frames = {"a": frame, "b": make_hospital(1)}
    done = Federation.from_frames(frames, target="ill", drop=["town"]).preprocessing.as_dict()
    assert [entry["column"] for entry in done["columns"]] == ["age", "income", "smoker"]
    assert done["columns"][0]["done"] == (
        "median if missing, scaled by each client, indicator of missing values"
    )
    assert done["left_out"] == {
        "number": "client 'a' alone has it",
        "note": "client 'a' alone has it",
    }


def problems_of(target: str = "ill", **frames: pd.DataFrame) -> str:
    return "\n".join(Federation.from_frames({**make_hospitals(), **frames}, target=target).problems)


NORTH = make_hospitals()["north"]
SOUTH = make_hospitals()["south"]


@pytest.mark.parametrize(
    ("south", "words"),
    [
        (change(SOUTH, town="Ely"), "client 'south', column 'town': constant in the train part"),
        (change(SOUTH, ill="ill"), "client 'south', column 'ill': one class only ('ill')"),
        (change(SOUTH, age=np.nan), "client 'south', column 'age': no value in the train part"),
        (
            change(SOUTH, age=SOUTH.age.where(SOUTH.index % 5 == 0)),
            "of the values are missing",
        ),
        (
            SOUTH.rename(columns={"age": "Age"}),
            "client 'south': does not have column 'age' (is it 'Age'?)",
        ),
        (
            SOUTH.rename(columns={"age": "Age"}),
            "column 'Age' is left out: client 'south' alone has it",
        ),
        (
            change(SOUTH, ill=SOUTH.ill.where(SOUTH.index > 2)),
            "client 'south', column 'ill': 3 of 60 rows have no label and are left out",
        ),
        (
            change(SOUTH, income=SOUTH.income.where(SOUTH.index > 1, np.inf)),
            "client 'south', column 'income': 2 values are infinite and count as missing",
        ),
        (NORTH, "different rows are in both train parts"),
    ],
)
def test_problems_name_client_and_column(south: pd.DataFrame, words: str) -> None:
    assert words in problems_of(south=south)


def test_a_constant_column_is_left_out() -> None:
    frames = {name: change(frame, ward="A") for name, frame in make_hospitals().items()}
    federation = Federation.from_frames(frames, target="ill")
    assert "column 'ward' is left out: constant: 'A' in every train part" in federation.problems
    assert not any("ward" in name for name in federation.preprocessing.schema.features)


@pytest.mark.parametrize("leak", [lambda y: (y == "ill") * 3.0, lambda y: "code " + y.str.upper()])
def test_a_leaked_target_is_found(leak: Any) -> None:
    frames = {name: change(f, outcome=leak(f.ill)) for name, f in make_hospitals().items()}
    (problem,) = Federation.from_frames(frames, target="ill").problems
    assert problem.startswith("column 'outcome' alone predicts 100.0% of 'ill' in the train parts")


def test_a_leak_of_one_client_names_it() -> None:
    leaked = change(SOUTH, age=(SOUTH.ill == "ill") * 3.0)
    (problem,) = Federation.from_frames(
        {**make_hospitals(), "south": leaked}, target="ill"
    ).problems
    assert problem.startswith("client 'south', column 'age': it alone predicts 100.0% of 'ill' in")


def test_what_predicts_few_labels_may_do_so_by_chance() -> None:
    """Four of 48 train rows are ill: the one threshold that finds them proves nothing."""
    ill = np.where(SOUTH.index % 12 == 0, "ill", "well")
    rare = change(SOUTH, ill=ill, age=(ill == "ill") * 3.0)
    assert "alone predicts" not in problems_of(south=rare)


def test_a_leak_of_many_different_numbers_is_found() -> None:
    rng = np.random.default_rng(0)
    frames = {
        name: change(f, outcome=(f.ill == "ill") * 2 + rng.random(len(f)))
        for name, f in make_hospitals().items()
    }
    (problem,) = Federation.from_frames(frames, target="ill").problems
    assert "'outcome' alone predicts 100.0%" in problem


def test_a_category_of_a_test_part_only_is_none_of_the_others() -> None:
    frames = make_hospitals()
    for seed in range(20):  # until the one row is in the test part
        frames["south"].loc[0, "town"] = "Rome"
        federation = Federation.from_frames(frames, target="ill", seed=seed)
        if "town=Rome" not in federation.preprocessing.schema.features:
            break
    (problem,) = federation.problems
    assert problem.startswith(
        "client 'south', column 'town': category 'Rome' is in the test part only (in 1 row)"
    )
    towns = federation.preprocessing.schema.columns[2].features
    assert towns == ("town=Bath", "town=Ely", "town=York")


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ({"south": SOUTH[:1]}, "client 'south' has 1 labelled example: it needs at least 2"),
        (
            {"south": SOUTH.drop(columns="ill")},
            r"client 'south': there is no column 'ill' \(target",
        ),
        (
            {"south": SOUTH.rename(columns={"ill": "Ill"})},
            r"client 'south': there is no column 'ill' \(target\). Did you mean 'Ill'",
        ),
        ({"south": change(SOUTH, ill=1)}, "client 'south', column 'ill': labels are numbers"),
        (
            {"south": change(SOUTH, income=SOUTH.income.astype(str) + " EUR")},
            "column 'income', client 'south': 60 of 60 values are not numbers",
        ),
        ({"south": [1, 2]}, "client 'south': got list; give a DataFrame"),
        (
            {"south": pd.concat([SOUTH, SOUTH[["age"]]], axis=1)},
            "client 'south': has column 'age' more than once",
        ),
    ],
)
def test_unusable_tables_name_client_and_column(frames: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        problems_of(**frames)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target": "sick"}, "there is no column 'sick'"),
        ({"group": "patients"}, "client 'north': there is no column 'patients'"),
        ({"drop": ["twon"]}, "drop: there is no column 'twon'. Did you mean 'town'"),
        ({"drop": ["ill"]}, "is the target"),
        ({"client": "clinic"}, "there is no column 'clinic'"),
        ({"drop": ["age", "income", "town", "smoker"]}, "no column is left to learn from"),
    ],
)
def test_wrong_columns_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Federation.from_frames(make_hospitals(), **{"target": "ill", **settings})


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SettingsError, match="scaling: unknown value"):
        Federation.from_frames(make_hospitals(), target="ill", scaling="minmax")
    with pytest.raises(SettingsError, match="test_share"):
        Federation.from_frames(make_hospitals(), target="ill", test_share=1.5)


def test_numbers_can_be_categories_and_dates_are_days() -> None:
    frames = {
        name: change(
            make_hospital(seed),
            ward=np.arange(60) % 3 + 1,
            day=pd.Timestamp("1970-01-03") + pd.to_timedelta(np.arange(60) % 7, "D"),
        )
        for seed, name in enumerate("ab")
    }
    federation = Federation.from_frames(
        frames, target="ill", categories=["ward"], scaling="none", drop=["age"]
    )
    features = federation.preprocessing.schema.features
    assert {"ward=1", "ward=2", "ward=3", "day"} <= set(features)
    days = federation.clients[0].train.x[:, features.index("day")]
    assert set(days.tolist()) <= set(range(2, 9))

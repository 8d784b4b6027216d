"""Settings from flags and files, and every mistake in them at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, Command, Output, mistakes_of


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--method rwals", "'rwals'. Did you mean 'rawls'?"),
        ("--method udj -p theory=rawl", "Did you mean 'rawls'?"),
        ("--method udj:theory=rawl", "Did you mean 'rawls'?"),
        ("-p bta=3", "bta: no such parameter. Did you mean 'beta'?"),
        ("-p beta=much", "beta: "),
        ("-p step=safest", "Did you mean 'safe'?"),
        ("--data dirty-digit", "Did you mean 'dirty-digits'?"),
        ("--partition shrads", "Did you mean 'shards'?"),
        ("--partition dirichlet:-1", "alpha is -1.0: give a finite number above 0"),
        ("--partition natural", "partition natural: the examples of tiny have no owners"),
        ("--partition shards:mix=3/1", "has 1 in its mix, and clients is 5: make them agree"),
        ("--data tiny:level=3", "level: no such setting"),
        ("--data tiny:level", "key=value was expected, as in tiny:key=value"),
        (
            "--data-root no/such/folder",
            "data_root: no/such/folder does not exist; name the folder that has the data",
        ),
        ("--model mpl", "Did you mean 'mlp'?"),
        ("--model no.such:thing", "cannot import 'no.such:thing'"),
        ("--model cnn --data tiny", "cnn needs images"),
        ("--device nonsense", "device: 'nonsense' cannot be used here"),
        ("--rounds 0", "rounds: must be at least 1, got '0'"),
        ("--rounds many", "rounds: must be a whole number, got 'many'"),
        ("--loss-at recieved", "Did you mean 'received'?"),
        ("--seed -1", "seed: "),
        ("--method udj", "needs theory (rawls, "),
        ("--method udj:beta", "key=value was expected"),
        ("-p beta", "-p beta: expected KEY=VALUE, as in -p beta=5"),
        ("-p =5", "-p =5: expected KEY=VALUE"),
        ("--clients 0", "clients: "),
        ("--clients 40", "Use fewer clients, or another partition"),
        ("--clients 500 --partition iid", "Use at most 100 clients"),
        ("--partition shards:size=50", "Use a shard size of at most "),
    ],
)
def test_one_mistake_is_one_line_with_advice(
    udjfl_command: Command, flags: str, expected: str
) -> None:
    data = "" if "--data" in flags else "--data tiny"
    (line,) = mistakes_of(udjfl_command("run", data, flags))
    assert expected in line


def test_every_mistake_at_once(udjfl_command: Command) -> None:
    output = udjfl_command(
        "run --rounds 0 --lr x --engine fast --method rwals --data dirty-digit",
        "--partition shrads --model mpl --device nonsense -p novalue",
    )
    found = mistakes_of(output)
    for word in (
        "rounds",
        "lr",
        "engine",
        "rwals",
        "dirty-digit",
        "shrads",
        "mpl",
        "nonsense",
        "-p novalue",
    ):
        assert sum(word in line for line in found) == 1, word
    assert len(found) == 9


def test_every_mistake_of_a_comparison_at_once(udjfl_command: Command) -> None:
    found = mistakes_of(
        udjfl_command(
            "compare --methods rwals,udj:theory=dessert,fedavg --seeds 0,0 --data dirty-digit"
        )
    )
    assert len(found) == 4
    for expected in (
        "Did you mean 'rawls'?",
        "Did you mean 'desert'?",
        "give each seed once",
        "Did you mean 'dirty-digits'?",
    ):
        assert sum(expected in line for line in found) == 1, expected


def params_of(output: Output) -> list[dict[str, Any]]:
    assert output.code == 0, output.err
    document = json.loads(output.out)
    return (
        [row["params"] for row in document["methods"]]
        if "methods" in document
        else [document["params"]]
    )


def test_parameters(udjfl_command: Command) -> None:
    (params,) = params_of(
        udjfl_command("run", SMALL, "--json --method rawls -p beta=2.5 -p gamma=0.5")
    )
    assert (params["beta"], params["gamma"]) == (2.5, 0.5)
    (params,) = params_of(
        udjfl_command("run", SMALL, "--json --method udj:theory=rawls -p beta=1,2")
    )
    assert params["beta"] == [1.0, 2.0]
    (params,) = params_of(
        udjfl_command("run", SMALL, "--json --method udj:theory=rawls:beta=3 -p beta=4")
    )
    assert params["beta"] == 4.0


def test_parameters_of_a_comparison_go_to_each_method_that_has_them(udjfl_command: Command) -> None:
    fedavg, *theories = params_of(
        udjfl_command("compare", SMALL, "--json --seeds 1 --methods rawls,desert -p step=safe")
    )
    assert "step" not in fedavg
    assert [params["step"] for params in theories] == ["safe", "safe"]
    (line,) = mistakes_of(udjfl_command("compare", SMALL, "--seeds 1 --methods rawls -p bta=1"))
    assert "'bta'" in line
    assert "Did you mean 'beta'?" in line


def test_a_point_by_hand_from_parameters_alone(udjfl_command: Command) -> None:
    """`udj` needs theory, or beta and gamma; -p gives them just as `udj:beta=2:gamma=0` does."""
    _, params = params_of(
        udjfl_command("compare", SMALL, "--json --seeds 1 --methods udj -p beta=2 -p gamma=0")
    )
    assert (params["beta"], params["gamma"]) == (2.0, 0.0)
    (params,) = params_of(udjfl_command("run", SMALL, "--json --method udj -p beta=2 -p gamma=0"))
    assert (params["beta"], params["gamma"]) == (2.0, 0.0)


def test_settings_from_a_file_and_flags_win(udjfl_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        'data = "tiny"\nclients = 2\nmodel = "logistic"\nrounds = 3\nuncertainty_epochs = 1\n'
        'seed = 5\nmethod = "rawls"\n'
        "[params]\nbeta = 2\ngamma = 3\n"
    )
    document = json.loads(udjfl_command("run --json --config", path, "-p beta=4 --seed 1").out)
    assert (document["seed"], document["params"]["beta"], document["params"]["gamma"]) == (
        1,
        4.0,
        3.0,
    )
    assert document == {
        **json.loads(
            udjfl_command("run", SMALL, "--json --method rawls --seed 1 -p beta=4 -p gamma=3").out
        ),
    }


def test_a_switch_from_a_file_can_be_turned_back(udjfl_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("weight_norm = false\n")
    for flags, kept in (("", False), ("--weight-norm", True), ("--no-weight-norm", False)):
        out = tmp_path / f"run{flags}"
        assert udjfl_command("run", SMALL, "--config", path, flags, "--out", out).code == 0
        assert json.loads((out / "settings.json").read_text())["training"]["weight_norm"] is kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("roundz = 3\nlr = -1\n", ["roundz: no such setting. Did you mean 'rounds'?", "lr: "]),
        ("rounds = 3 3\n", ["is not valid TOML"]),
        ('methods = ["rawls"]\n', ["methods: no such setting. Did you mean 'method'?"]),
        ("params = 3\n", ["params: "]),
        ('params = "beta=3"\n', ["params: "]),
        ("method = 3\nrounds = 0\n", ["method: ", "rounds: "]),
        ("[training]\nrounds = 3\n", ["training: no such setting"]),
    ],
)
def test_mistakes_in_a_file(
    udjfl_command: Command, tmp_path: Path, text: str, expected: list[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    found = mistakes_of(udjfl_command("run --config", path))
    assert len(found) == len(expected)
    for part in expected:
        assert sum(part in line for line in found) == 1


def test_a_file_that_is_not_there(udjfl_command: Command, tmp_path: Path) -> None:
    (line,) = mistakes_of(udjfl_command("run --config", tmp_path / "none.toml"))
    assert "cannot read" in line


def test_both_spellings_of_optimiser_are_understood(udjfl_command: Command) -> None:
    flags = "run --data tiny --clients 2 --model logistic --rounds 5 --uncertainty-epochs 1 --json"
    ours = udjfl_command(flags, "--optimiser adam --lr 0.5").out
    theirs = udjfl_command(flags, "--optimizer adam --lr 0.5").out
    assert ours == theirs
    assert ours != udjfl_command(flags, "--lr 0.5").out
    wrong = udjfl_command(flags, "--optimizer adm")
    assert "optimiser: unknown value 'adm'. Did you mean 'adam'?" in wrong.err
    assert "nesterov: needs" in udjfl_command(flags, "--nesterov --momentum 0").err
    assert "class_weights: is '1,x'" in udjfl_command(flags, "--class-weights 1,x").err

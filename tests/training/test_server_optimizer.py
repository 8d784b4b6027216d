"""Server optimisers by hand, their limits, and around methods in the simulator and on Flower."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Stopped, make_federation, model_bytes, read_files, stop_after, train_briefly
from torch import Tensor

import udjfl
from udjfl.errors import ReportError, SettingsError
from udjfl.methods import METHODS
from udjfl.models import to_vector
from udjfl.training.server_optimizer import DEFAULTS, ServerOptimizer, parse_server_optimizer

D = torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64)


def take(text: str, *steps: Tensor) -> Tensor:
    """Return the last step of an optimiser that is given these steps."""
    optimizer = parse_server_optimizer(text)
    state = optimizer.init(3)
    for step in steps:
        state, taken = optimizer.transform(state, step)
    return taken


def test_two_steps_by_hand() -> None:
    assert take("sgd:lr=0.5", D).tolist() == [1.5, -2.0, 0.0]
    # m = D, then 0.5 D + D
    assert take("momentum:b1=0.5", D, D).tolist() == [4.5, -6.0, 0.0]
    # v = tau^2 = 4, then 4 + 9 = 13, then 13 + 9 = 22 (and 4 + 16 + 16 = 36); m = D
    taken = take("adagrad:tau=2:lr=1", D, D)
    assert taken.tolist() == pytest.approx([3 / (math.sqrt(22) + 2), -4 / 8, 0.0])
    # m = D/2, then 3/4 D; v = (4 + 9)/2 = 6.5, then (6.5 + 9)/2 = 7.75
    taken = take("adam:tau=2:lr=1:b1=0.5:b2=0.5", D, D)
    assert float(taken[0]) == pytest.approx(2.25 / (math.sqrt(7.75) + 2))
    # v = 4 < 9: 4 + 4.5 = 8.5, then 8.5 < 9: 13; second coordinate 4 + 8 = 12, then 20
    taken = take("yogi:tau=2:lr=1:b1=0.5:b2=0.5", D, D)
    assert taken.tolist() == pytest.approx(
        [2.25 / (math.sqrt(13) + 2), -3 / (math.sqrt(20) + 2), 0.0]
    )


def test_yogi_lets_v_fall_by_less_than_adam() -> None:
    """v = 4 > D^2 = 1, b2 = 1/2: Yogi's is 4 - 1/2, Adam's (4 + 1) / 2."""
    small = torch.ones(3, dtype=torch.float64)
    for kind, v in (("yogi", 3.5), ("adam", 2.5)):
        state, _ = ServerOptimizer(kind, 1.0, 0.0, 0.5, 2.0).transform(
            {"m": torch.zeros(3).double(), "v": torch.full((3,), 4.0).double()}, small
        )
        assert state["v"].tolist() == [v] * 3


@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_with_a_large_tau_it_is_the_bare_step(kind: str) -> None:
    """m / (sqrt(v) + tau) with v near tau^2 is m / (2 tau); Adam and Yogi keep v there, too."""
    taken = take(f"{kind}:b1=0:tau=1e9:lr=2e9", D, D)
    torch.testing.assert_close(taken, D, rtol=1e-2, atol=0)


@pytest.mark.parametrize("text", [*DEFAULTS, "momentum:b1=0:lr=0.3"])
def test_no_step_leaves_the_model(text: str) -> None:
    assert not take(text, torch.zeros_like(D), torch.zeros_like(D)).any()
    single = D.to(torch.float32)
    assert take(text, single).dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adm", "server_optimizer: unknown value 'adm'. Did you mean 'adam'"),
        ("sgd:b1=0.9", "sgd has no option 'b1'"),
        ("adam:lr=0", "lr is '0'; give a finite number above 0"),
        ("adam:b1=1", "b1 is '1'; give a number from 0, below 1"),
        ("adam:tau=nan", "tau is 'nan'"),
        ("adam:lr", "where key=value was expected|unknown value"),
    ],
)
def test_mistakes_are_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        train_briefly(make_federation(), server_optimizer=text)


def test_sgd_with_rate_one_changes_no_bit(tmp_path: Path) -> None:
    federation = make_federation()
    plain = train_briefly(federation, "rawls")
    assert model_bytes(plain) == model_bytes(
        train_briefly(federation, "rawls", server_optimizer="sgd:lr=1")
    )
    for text in ("sgd:lr=0.5", "momentum", "adam", "yogi", "adagrad"):
        other = train_briefly(federation, "rawls", server_optimizer=text)
        assert model_bytes(other) != model_bytes(plain)


def test_sgd_scales_the_first_step() -> None:
    federation = make_federation()
    start, half, whole = (
        to_vector(
            train_briefly(federation, rounds=1, server_optimizer=f"sgd:lr={lr}").model
        ).double()
        for lr in (1e-12, 0.5, 1.0)
    )
    torch.testing.assert_close(half - start, (whole - start) / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("text", ["momentum", "adam", "yogi:b1=0", "adagrad"])
def test_stopped_and_resumed_it_ends_in_the_same_bytes(text: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 5, "checkpoint_every": 2, "server_optimizer": text}
    federation = make_federation()
    train_briefly(federation, "scaffold", out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        train_briefly(
            federation, "scaffold", out=tmp_path / "parts", on_progress=stop_after(3), **settings
        )
    train_briefly(federation, "scaffold", out=tmp_path / "parts", resume=True, **settings)
    assert read_files(tmp_path / "parts") == read_files(tmp_path / "whole")


@pytest.mark.parametrize("name", sorted({*METHODS, "rawls"} - {"udj", "focus"}))
def test_it_goes_around_every_method(name: str) -> None:
    result = train_briefly(make_federation(), name, rounds=2, server_optimizer="adam:lr=0.01")
    assert torch.isfinite(to_vector(result.model)).all()


def test_an_optimiser_that_diverges_is_an_error() -> None:
    with pytest.raises(ReportError, match="diverged"):
        train_briefly(make_federation(), server_optimizer="momentum:lr=1e30", rounds=9)


def test_the_applied_step_is_recorded() -> None:
    federation = make_federation()
    plain, half = (
        train_briefly(federation, rounds=1, server_optimizer=f"sgd:lr={lr}") for lr in (1.0, 0.5)
    )
    norms = [run.history.series("step_norm")[1] for run in (plain, half)]
    assert norms[1] == pytest.approx(norms[0] / 2)
    assert isinstance(plain, udjfl.Result)

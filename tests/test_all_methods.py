"""Every method through the simulator, with clients that are not asked, drop out or are excluded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_runs import Stopped, make_federation, read_files, stop_after, train_briefly

from udjfl.methods import ALIASES, METHODS
from udjfl.models import to_vector

NAMES = sorted({*METHODS, *ALIASES} - {"udj"})
FOR_ALL_CLIENTS_ONLY = ("effl",)
every_method = pytest.mark.parametrize("name", NAMES)


def settings(name: str) -> dict[str, Any]:
    asked = {} if name in FOR_ALL_CLIENTS_ONLY else {"participation": 0.5, "drop_out": 0.3}
    return {**asked, "on_bad_report": "exclude", "rounds": 5, "checkpoint_every": 2, "workers": 1}


@every_method
def test_the_engines_agree(name):
    federation = make_federation(n_clients=6)
    serial, *others = (
        train_briefly(federation, name, engine=engine, **settings(name))
        for engine in ("serial", "stacked", "mapped")
    )
    for other in others:
        torch.testing.assert_close(
            to_vector(other.model), to_vector(serial.model), rtol=1e-4, atol=1e-5
        )
        assert other.client_scores == pytest.approx(serial.client_scores, abs=1e-3)
        for client in serial.client_scores:
            for ours, theirs in zip(
                other.model_for(client).parameters(),
                serial.model_for(client).parameters(),
                strict=True,
            ):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@every_method
def test_stopped_and_resumed_it_ends_in_the_same_bytes(name, tmp_path):
    federation = make_federation(n_clients=6)
    train_briefly(federation, name, out=tmp_path / "whole", **settings(name))
    with pytest.raises(Stopped):
        train_briefly(
            federation, name, out=tmp_path / "parts", on_progress=stop_after(3), **settings(name)
        )
    train_briefly(federation, name, out=tmp_path / "parts", resume=True, **settings(name))
    assert read_files(tmp_path / "parts") == read_files(tmp_path / "whole")

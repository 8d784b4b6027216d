"""What clients are served, from what they report."""

from __future__ import annotations

import math

import torch
from small_runs import make_federation

import udjfl
from udjfl.settings import TrainingSettings
from udjfl.training.federation_info import FederationInfo
from udjfl.training.server_state import ServerState
from udjfl.training.service import Checkpoints, PriorAll
from udjfl.training.serving import serve, serve_checkpoints, serve_prior
from udjfl.training.state import Run, RunSpec

IDS = ("a", "b", "c")
U = torch.tensor([0.1, 0.3, 0.5], dtype=torch.float64)


def test_clients_without_a_term_are_served_the_common_model() -> None:
    terms = torch.tensor([[1.0, 3.0], [math.nan, math.nan], [2.0, 2.0]], dtype=torch.float64)
    serving = serve_prior(PriorAll(), IDS, torch.ones(4), terms, U)
    assert serving.changed == ["a", "c"]
    assert serving.facts == {"kappa": {"a": 1.0, "b": 0.0, "c": 1.0}}
    assert serving.models.models.tolist() == [[1, 1, 1, 1]]
    assert serving.models.shares.tolist() == [[1], [1], [1]]
    offset = serving.models.offset(1)
    assert offset is not None
    assert not offset.any()
    assert serving.notes[0].startswith("Served prior-all: every client gets the common model")


def make_kept() -> dict[str, torch.Tensor]:
    """Keep three models; the scores of b and c rise from 0.2 over 0.5 to 0.8."""
    rising = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    return {
        "models": torch.tensor([[1.0], [2.0], [3.0]]),
        "rounds": torch.tensor([1, 2, 3]),
        "scores": torch.stack([rising + 0.1, rising, rising], dim=1),
    }


def test_each_client_is_served_its_checkpoint() -> None:
    """Targets: a 0.9; c 0.25 * 0.8 = 0.2; b in the middle of these, 0.55."""
    serving = serve_checkpoints(Checkpoints(0.25), IDS, make_kept(), U)
    assert serving.changed == ["b", "c"]
    assert serving.facts["served_round"] == {"a": 3.0, "b": 2.0, "c": 1.0}
    assert serving.facts["target"]["b"] == 0.55
    served = serving.models.shares.to(torch.float32) @ serving.models.models
    assert served.flatten().tolist() == [3, 2, 1]
    assert serving.models.offsets is None
    assert "lowers on purpose" in serving.notes[0]
    assert "0.25 of its final score; rho is the dial" in serving.notes[0]
    assert len(serving.notes) == 1


def test_only_models_that_are_served_are_kept() -> None:
    serving = serve_checkpoints(Checkpoints(1.0), IDS, make_kept(), U)
    assert serving.models.models.tolist() == [[3]]
    assert serving.changed == []


def test_a_line_that_rises_is_pointed_out() -> None:
    kept = make_kept()
    kept["scores"][:, 0] = 0.1  # the least uncertain client is served worst
    notes = serve_checkpoints(Checkpoints(0.7), IDS, kept, U).notes
    assert len(notes) == 2
    assert "a smaller rho is needed for desert" in notes[1]


def test_the_final_model_joins_those_of_earlier_rounds() -> None:
    settings = TrainingSettings(rounds=3, service="checkpoints:rho=0.25")
    federation = FederationInfo.of(make_federation())
    run = Run(RunSpec(udjfl.method("fedavg"), settings), federation)
    kept = {name: values[:2] for name, values in make_kept().items()}
    server = ServerState(3, torch.tensor([3.0]), torch.zeros(0), {}, kept)
    final = (0.9, 0.8, 0.8)
    facts = {
        name: torch.tensor([score], dtype=torch.float64)
        for name, score in zip(run.ids, final, strict=True)
    }
    known = dict(zip(run.ids, U.tolist(), strict=True))
    serving = serve(run, server, facts, known)
    assert list(serving.facts["served_round"].values()) == [3, 2, 1]
    del facts["client-2"], known["client-3"]
    serving = serve(run, server, facts, known)
    assert list(serving.facts["served_round"].values()) == [3, 3, 3]

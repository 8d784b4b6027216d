"""Schedules of late, lost, repeated, reordered, lying and returning clients, against the round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_clients import (
    Fault,
    Script,
    ScriptedClients,
    as_client,
    lost,
    play,
    twice,
    with_delta,
    with_numbers,
    without,
)

from udjfl import Method, Reports
from udjfl.errors import DivergedError, QuorumError, ReportError, SettingsError
from udjfl.methods import Plan
from udjfl.training import round as round_module
from udjfl.training.clients import Replies
from udjfl.training.records import Record
from udjfl.training.run_folder import RunFolder
from udjfl.training.server_state import ServerState

LIES: dict[str, tuple[Fault, str]] = {
    "nan update": (with_delta(lambda d: d * torch.nan), "deltas has values that are NaN"),
    "infinite update": (with_delta(lambda d: d + torch.inf), "deltas has values that are NaN"),
    "short update": (with_delta(lambda d: d[:1]), r"deltas has shape \[1\]; the model has 2"),
    "table": (with_delta(lambda d: d[None]), r"deltas has shape \[1, 2\]"),
    "negative loss": (with_numbers(losses=-1.0), "losses is -1; a loss cannot be negative"),
    "nan loss": (with_numbers(losses=float("nan")), "losses is nan"),
    "no uncertainty": (with_numbers(uncertainties=0.0), "uncertainties is 0; it must be above"),
    "no examples": (with_numbers(sizes=0.0), "sizes is 0; it must be above zero"),
    "no loss": (without("losses"), "losses is missing"),
}


def absent(played: Any, round: int) -> dict[str, Any]:
    return played.log.history().by_client("absent", round)


def excluded(played: Any, round: int) -> dict[str, Any]:
    return played.log.history().by_client("excluded", round)


def test_without_faults_fedavg_takes_the_mean_of_the_steps() -> None:
    """From 0, one round, lr 0.1: the step is -0.1 times the mean target by sizes 10, 20, 30."""
    played = play(Script(), rounds=1)
    mean = torch.tensor([(1 * 10 + 2 * 20 + 3 * 30) / 60, -(0 * 10 + 1 * 20 + 2 * 30) / 60])
    torch.testing.assert_close(played.vector, 0.1 * mean)


def test_a_client_that_cannot_be_reached_is_absent_and_returns() -> None:
    played = play(Script(away={2: ["client-2"]}))
    assert absent(played, 2) == {"client-2": "is not connected"}
    assert [asked for _, _, asked in played.clients.asked] == [
        ["client-1", "client-2", "client-3"],
        ["client-1", "client-3"],
        ["client-1", "client-2", "client-3"],
        ["client-1", "client-2", "client-3"],
    ]
    assert absent(played, 3) == {}


def test_a_client_with_a_lost_reply_is_absent_and_the_others_continue() -> None:
    played = play(Script(faults={(2, "client-3"): lost}))
    assert absent(played, 2) == {"client-3": "did not reply in time"}
    assert set(played.log.history().by_client("train_loss", 2)) == {"client-1", "client-2"}
    away = play(Script(away={2: ["client-3"]}))
    assert torch.equal(played.vector, away.vector)  # lost or never asked: the same model


def test_a_round_with_all_replies_lost_changes_nothing() -> None:
    all_lost = {(2, f"client-{i}"): lost for i in (1, 2, 3)}
    assert torch.equal(
        play(Script(faults=all_lost), rounds=2).vector, play(Script(), rounds=1).vector
    )


@pytest.mark.parametrize("name", LIES)
def test_a_wrong_reply_stops_the_run_or_excludes_the_client(name: str) -> None:
    fault, message = LIES[name]
    script = Script(faults={(2, "client-2"): fault})
    with pytest.raises(ReportError, match=f"client 'client-2' in round 2: {message}"):
        play(script)
    played = play(script, on_bad_report="exclude")
    assert list(excluded(played, 2)) == ["client-2"]
    assert torch.equal(played.vector, play(Script(away={2: ["client-2"]})).vector)


def test_a_repeated_reply_counts_once() -> None:
    script = Script(faults={(2, "client-2"): twice})
    with pytest.raises(ReportError, match="client 'client-2' in round 2: id reported twice"):
        play(script)
    played = play(script, on_bad_report="exclude")
    assert torch.equal(played.vector, play(Script()).vector)
    assert excluded(played, 2) == {}  # its first reply is used
    assert "twice" in str(played.log.history().by_client("warning", 2)["client-2"])


def test_a_reply_under_another_clients_id_counts_for_neither() -> None:
    script = Script(faults={(2, "client-2"): as_client("client-1")})
    with pytest.raises(ReportError, match="client 'client-1' in round 2: id reported twice"):
        play(script)
    stranger = Script(faults={(2, "client-2"): as_client("stranger")})
    with pytest.raises(ReportError, match="client 'stranger' in round 2: id does not belong"):
        play(stranger)
    played = play(stranger, on_bad_report="exclude")
    assert torch.equal(played.vector, play(Script(away={2: ["client-2"]})).vector)


def test_a_client_with_too_long_an_update_is_excluded() -> None:
    script = Script(faults={(1, "client-1"): with_delta(lambda d: 1e30 * d)})
    played = play(script, on_bad_report="exclude", max_update_norm=10.0)
    assert "above max_update_norm, 10" in excluded(played, 1)["client-1"]
    assert torch.equal(played.vector, play(Script(away={1: ["client-1"]})).vector)


def test_a_client_with_an_unusable_probe_is_excluded() -> None:
    """FedEBA asks for losses before training."""
    script = Script(probe={(2, "client-2"): with_numbers(losses=float("inf"))})
    with pytest.raises(ReportError, match="client 'client-2' in round 2: losses is inf"):
        play(script, "fedeba")
    played = play(script, "fedeba", on_bad_report="exclude")
    assert list(excluded(played, 2)) == ["client-2"]
    trained = [ids for kind, round, ids in played.clients.asked if (kind, round) == ("train", 2)]
    assert trained == [["client-1", "client-3"]]


def test_a_client_lost_between_probe_and_training_is_absent() -> None:
    played = play(Script(probe={(2, "client-1"): lost}), "fedeba")
    assert absent(played, 2) == {"client-1": "did not reply in time"}
    trained = [ids for kind, round, ids in played.clients.asked if (kind, round) == ("train", 2)]
    assert trained == [["client-2", "client-3"]]


def test_fewer_reports_than_the_quorum_stop_the_run_after_a_whole_round(tmp_path: Path) -> None:
    script = Script(away={3: ["client-1"]}, faults={(3, "client-2"): lost})
    folder = RunFolder.create(tmp_path / "run", {}, {})
    try:
        with pytest.raises(QuorumError, match="round 3: 1 usable reports, fewer than the quorum"):
            play(script, quorum=2, folder=folder, checkpoint_every=100)
        checkpoint, history = folder.rewind()
        assert checkpoint is not None
        assert checkpoint.round == 2
        assert {record.round for record in history.records} == {1, 2}
        resumed = play(Script(), quorum=2, folder=folder)
    finally:
        folder.unlock()
    assert torch.equal(resumed.vector, play(Script()).vector)
    assert resumed.log.history().records == play(Script()).log.history().records


ALL = ("client-1", "client-2", "client-3")


def test_nobody_reached_is_below_any_quorum() -> None:
    with pytest.raises(QuorumError, match="round 2: 0 usable reports, fewer than the quorum of 1"):
        play(Script(away={2: ALL}), quorum=1)
    played = play(Script(away={2: ALL}))
    assert [round for _, round, _ in played.clients.asked] == [1, 3, 4]
    assert torch.equal(played.vector, play(Script(), rounds=3).vector)


def test_a_quorum_lists_who_is_missing_and_why() -> None:
    script = Script(away={1: ["client-1"]}, faults={(1, "client-2"): with_numbers(losses=-1.0)})
    with pytest.raises(QuorumError) as caught:
        play(script, quorum=3, on_bad_report="exclude")
    text = str(caught.value)
    assert "(client-1: is not connected; client 'client-2' in round 1: losses is -1" in text
    assert "The run is as it was after round 0" in text
    assert play(script, quorum=1, on_bad_report="exclude").log.server.round == 4


def test_all_replies_lost_are_below_any_quorum() -> None:
    script = Script(faults={(2, name): lost for name in ALL})
    with pytest.raises(QuorumError, match="round 2: 0 usable reports"):
        play(script, quorum=1)


def test_probes_without_a_reply_are_below_any_quorum() -> None:
    script = Script(probe={(2, name): lost for name in ALL})
    with pytest.raises(QuorumError, match="round 2: 0 usable reports"):
        play(script, "fedeba", quorum=1)
    two = Script(probe={(2, name): lost for name in ALL[:2]})
    with pytest.raises(QuorumError, match="round 2: 1 usable reports"):
        play(two, "fedeba", quorum=2)
    assert play(two, "fedeba", quorum=1).log.server.round == 4


def test_a_round_without_a_probe_trains_nobody() -> None:
    played = play(Script(probe={(2, name): lost for name in ALL}), "fedeba")
    assert [kind for kind, round, _ in played.clients.asked if round == 2] == ["probe"]
    assert absent(played, 2) == dict.fromkeys(ALL, "did not reply in time")
    assert torch.equal(played.vector, play(Script(), "fedeba", rounds=3).vector)


def test_a_client_that_sends_an_unusable_probe_twice_is_excluded_once() -> None:
    """Its second probe is a warning: the first was used."""
    played = play(Script(probe={(1, "client-2"): twice}), "fedeba", on_bad_report="exclude")
    records = [r for r in played.log.history().records if r.round == 1 and r.client == "client-2"]
    assert [r.metric for r in records if r.metric in ("warning", "excluded")] == ["warning"]


class Counting(Method):
    """Counts its plans, and steps by the mean."""

    name = title = "counting"
    paper, grade = "none", "recalled"

    def plan(self, state: Any, probe: Reports | None) -> tuple[Any, Plan]:
        return {"plans": state.get("plans", torch.zeros(())) + 1}, Plan()

    def aggregate(self, state: Any, reports: Reports) -> tuple[Any, torch.Tensor, dict[str, Any]]:
        return state, reports.deltas.mean(dim=0), {}


def test_a_plan_counts_though_all_replies_were_lost() -> None:
    played = play(Script(faults={(2, name): lost for name in ALL}), Counting())
    assert played.log.server.state["plans"] == 4
    nobody = play(Script(away={2: ALL}), Counting())
    assert nobody.log.server.state["plans"] == 3


class Warning(Counting):
    """Says the same in every round, and something else in the third."""

    def warning(self, ids: Any, diagnostics: Any) -> str | None:
        return "of the third" if diagnostics["plans"] == 3 else "of every round"

    def aggregate(self, state: Any, reports: Reports) -> tuple[Any, torch.Tensor, dict[str, Any]]:
        return state, reports.deltas.mean(dim=0), {"plans": state["plans"]}


def test_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    play(Script(), Warning(), rounds=5)
    assert caplog.messages == ["of every round", "of the third"]


def test_received_models_are_kept_for_a_service_that_chooses_among_them() -> None:
    played = play(Script(away={3: ["client-2"]}), service="checkpoints")
    kept = played.log.server.kept
    assert kept["rounds"].tolist() == [1, 2, 3]  # not the initial model, and not the last
    for row in range(3):
        before = play(Script(away={3: ["client-2"]}), rounds=row + 1, service="checkpoints")
        assert torch.equal(kept["models"][row], before.vector)
    assert kept["scores"].isnan().tolist() == [[False] * 3, [False, True, False], [False] * 3]
    records = [r for r in played.log.history().records if (r.round, r.metric) == (2, "score")]
    assert [r.value for r in records] == kept["scores"][0].tolist()
    assert play(Script()).log.server.kept == {}


def test_of_many_models_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_module, "keep_every", lambda rounds, model: rounds // 2)
    played = play(Script(), rounds=6, service="checkpoints")
    assert played.log.server.kept["rounds"].tolist() == [3]


def test_buffers_that_nobody_sends_stay() -> None:
    played = play(Script())
    server = replace(played.log.server, round=0, buffers=torch.tensor([7.0]).double())
    after = round_module.run_round(played.clients.run, server, played.clients).server
    assert after.buffers.tolist() == [7.0]


@pytest.mark.parametrize("planned", [[{}, Plan()], ({}, Plan(), 1), ({}, None), ([], Plan()), None])
def test_a_plan_is_a_pair(planned: Any) -> None:
    class Careless(Counting):
        def plan(self, state: Any, probe: Reports | None) -> tuple[Any, Plan]:
            return planned  # type: ignore[no-any-return]

    with pytest.raises(SettingsError, match=r"counting: plan returned a .*; return \(state, Plan"):
        play(Script(), Careless())


LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("vector", "step", "words"),
    [
        # The model is finite before and after; only its sum is not.
        ([LARGEST, LARGEST], [0.0, 0.0], None),
        ([0.0, 0.0], [torch.inf, 0.0], "the server's step is not finite in round 3"),
        ([0.0, 0.0], [0.0, torch.nan], "the server's step is not finite in round 3"),
        ([LARGEST, 0.0], [-LARGEST, 0.0], "the model is not finite in round 3"),
    ],
)
def test_a_model_is_checked_after_the_step(
    vector: list[float], step: list[float], words: str | None
) -> None:
    run = play(Script(), rounds=1).clients.run
    model = torch.tensor(vector)
    if words is None:
        assert torch.equal(round_module.apply_step(run, model, torch.tensor(step), 3), model)
        return
    with pytest.raises(DivergedError, match=f"^FedAvg: {words}; try a smaller lr"):
        round_module.apply_step(run, model, torch.tensor(step), 3)


def test_scores_of_a_regression_may_be_below_zero() -> None:
    """R2 of a bad model: accuracies could not be."""
    script = Script(faults={(1, "client-1"): with_score(-2.0)})
    with pytest.raises(ReportError, match="client 'client-1' in round 1: scores"):
        play(script, service="checkpoints", rounds=1)
    run = play(Script(), service="checkpoints", rounds=1).clients.run
    numbers = replace(run.federation, labels_are_numbers=True, n_classes=1)
    clients = ScriptedClients(replace(run, federation=numbers), torch.ones(3, 2), script)
    server = ServerState(0, torch.zeros(2), torch.zeros(0), {})
    records = round_module.run_round(clients.run, server, clients).records
    assert next(r.value for r in records if r.metric == "score") == -2.0


def with_score(score: float) -> Fault:
    return lambda reply: (
        replace(reply, extras={**reply.extras, "scores": torch.tensor(score).double()}),
    )


def test_the_loss_of_several_models_is_weighted_by_their_shares() -> None:
    """Two models, three clients. Served none of its own, a client has half of each."""
    each = torch.tensor([[1.0, 3.0], [2.0, 6.0]])
    replies = Replies(ids=("client-3", "client-1"), columns={"losses_of_each": each})
    server = ServerState(0, torch.zeros(2), torch.zeros(0), {})
    shares = torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])

    def mix(n_models: int, served: Any) -> Any:
        method = SimpleNamespace(n_models=n_models, served=lambda state, vector: served)
        run: Any = SimpleNamespace(ids=ALL, method=method)
        return round_module._mix_losses(run, server, {}, replies).columns.get("losses")

    assert mix(2, None).tolist() == [2.0, 4.0]
    assert mix(2, SimpleNamespace(shares=shares)).tolist() == [1.0, 5.0]
    assert mix(3, None) is None


def test_a_probe_has_no_update_in_the_dtype_of_the_model() -> None:
    seen: list[torch.Tensor] = []

    class Looking(Counting):
        probes = frozenset({"losses"})

        def plan(self, state: Any, probe: Reports | None) -> tuple[Any, Plan]:
            assert probe is not None
            seen.append(probe.deltas)
            return state, Plan()

    run = play(Script(), Looking(), rounds=1).clients.run
    clients = ScriptedClients(run, torch.ones(3, 2, dtype=torch.float64), Script())
    server = ServerState(0, torch.zeros(2, dtype=torch.float64), torch.zeros(0), {})
    round_module.open_round(run, server, clients)
    assert [deltas.dtype for deltas in seen] == [torch.float32, torch.float64]
    assert not any(deltas.any() for deltas in seen)


def test_a_client_that_cannot_be_evaluated_is_recorded() -> None:
    played = play(Script(unseen={2: ["client-3"]}))
    history = played.log.history()
    assert history.by_client("not_evaluated", 2) == {"client-3": "did not reply in time"}
    assert set(history.by_client("test_accuracy", 2)) == {"client-1", "client-2"}
    assert set(history.by_client("test_accuracy", 3)) == {"client-1", "client-2", "client-3"}


FAULTS = [None, lost, twice, *(fault for fault, _ in LIES.values())]
SCHEDULES = st.dictionaries(
    st.tuples(st.integers(1, 4), st.sampled_from(["client-1", "client-2", "client-3"])),
    st.sampled_from(FAULTS[1:]),
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(
    schedule=SCHEDULES,
    shuffle=st.randoms(use_true_random=False),
    name=st.sampled_from(["fedavg", "rawls", "fedmgda"]),
)
def test_any_schedule_ends_with_whole_rounds_whatever_the_order(
    schedule: dict[tuple[int, str], Fault], shuffle: Any, name: str
) -> None:
    """Replies in any order give the same bits; every client is used, absent or excluded."""

    def reorder(replies: list[Any]) -> list[Any]:
        # A client's own replies keep their order: the first usable one counts.
        return sorted(replies, key=lambda reply: order[reply.id])

    order = {f"client-{i}": shuffle.random() for i in (1, 2, 3)}
    straight = play(Script(faults=schedule), name, on_bad_report="exclude")
    shuffled = play(Script(faults=schedule, order=reorder), name, on_bad_report="exclude")
    assert torch.equal(straight.vector, shuffled.vector)
    assert _sorted(straight.log.history().records) == _sorted(shuffled.log.history().records)
    assert torch.isfinite(straight.vector).all()
    history = straight.log.history()
    for round in range(1, 5):
        seen = {
            client
            for metric in ("train_loss", "absent", "excluded")
            for client in history.by_client(metric, round)
        }
        assert seen == {"client-1", "client-2", "client-3"}


def _sorted(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (r.round, r.metric, r.client or ""))

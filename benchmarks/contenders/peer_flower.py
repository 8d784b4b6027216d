"""Flower: its simulation engine (Ray), with evaluation on the clients.

A simulation stays up between repetitions: its ServerApp waits for a number of rounds, does them,
and waits again.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import threading
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.contenders.loops import evaluate_client, train_client
from benchmarks.counting import Contender, count_work
from benchmarks.work import MODELS, Work, make_data

SETUP = {
    "federated evaluation": "Clients run the plain loop on one thread, two at a time (one CPU "
    "each); every client trains and evaluates each round; data made once in each worker; the "
    "simulation stays up between repetitions."
}
WORK = "UDJFL_BENCHMARK_WORK"  # workers, other processes, inherit this variable
client_app = ClientApp()


def start(work: Work, variant: str) -> Flower:  # noqa: ARG001 - the interface
    return Flower(work)


@functools.cache
def _worker_data() -> tuple[Work, list[Any], torch.nn.Module]:
    torch.set_num_threads(1)
    work = Work.from_json(os.environ[WORK])
    return work, make_data(work), MODELS[work.model]()


def _receive_model(message: Message) -> torch.nn.Module:
    model = _worker_data()[2]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work, data, _ = _worker_data()
    model, own = _receive_model(message), data[int(context.node_config["partition-id"])]
    metrics = {"num-examples": len(own.y), "steps": 0, "examples": 0}
    if message.content["config"].get("check"):
        with count_work(work.momentum) as counts:
            train_client(model, own, work)
        metrics |= {"steps": counts.steps, "examples": counts.examples}
    else:
        train_client(model, own, work)
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    own = _worker_data()[1][int(context.node_config["partition-id"])]
    loss, accuracy = evaluate_client(_receive_model(message), own.x_test, own.y_test)
    metrics = MetricRecord({"num-examples": len(own.y_test), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _sums(replies: list[RecordDict], _: str) -> MetricRecord:
    """Add up what the clients counted."""
    records = [next(iter(reply.metric_records.values())) for reply in replies]
    return MetricRecord(
        {
            name: sum(int(metrics[name]) for metrics in records)
            for name in ("steps", "examples", "num-examples")
        }
    )


def _means(replies: list[RecordDict], _: str) -> MetricRecord:
    records = [next(iter(reply.metric_records.values())) for reply in replies]
    means = {
        name: sum(float(metrics[name]) for metrics in records) / len(records)
        for name in ("loss", "accuracy")
    }
    return MetricRecord(
        {**means, "num-examples": sum(int(metrics["num-examples"]) for metrics in records)}
    )


class Flower(Contender):
    def __init__(self, work: Work) -> None:
        self.work = work
        os.environ[WORK] = work.to_json()
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self.requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        self.simulation = threading.Thread(target=self._simulate, daemon=True)
        self.simulation.start()
        self._ask(rounds=1)  # until workers are up and have their data

    def _simulate(self) -> None:
        server_app = ServerApp()
        server_app.main()(self._serve)
        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        try:
            run_simulation(server_app, client_app, self.work.clients, backend_config=resources)
        except BaseException as error:
            self.answers.put(error)

    def _serve(self, grid: Grid, context: Context) -> None:
        while (request := self.requests.get()) is not None:
            strategy = FedAvg(
                min_train_nodes=self.work.clients,
                min_evaluate_nodes=self.work.clients,
                min_available_nodes=self.work.clients,
                train_metrics_aggr_fn=_sums,
                evaluate_metrics_aggr_fn=_means,
            )
            initial = ArrayRecord(MODELS[self.work.model]().state_dict())
            config = ConfigRecord({"check": request["check"]})
            self.answers.put(
                strategy.start(grid, initial, num_rounds=request["rounds"], train_config=config)
            )

    def _ask(self, rounds: int, check: bool = False) -> Any:
        self.requests.put({"rounds": rounds, "check": check})
        answer = self.answers.get(timeout=300)
        if isinstance(answer, BaseException):
            raise RuntimeError(f"the simulation ended: {answer}")
        return answer

    def stop(self) -> None:
        self.requests.put(None)
        self.simulation.join(timeout=20)

    def run(self, rounds: int) -> dict[str, float]:
        return self._outcome(self._ask(rounds), rounds)

    def check(self, rounds: int) -> dict[str, float]:
        result = self._ask(rounds, check=True)
        totals = {
            name: sum(int(m[name]) for m in result.train_metrics_clientapp.values())
            for name in ("steps", "examples")
        }
        tested = sum(int(m["num-examples"]) for m in result.evaluate_metrics_clientapp.values())
        return {**self._outcome(result, rounds), **totals, "tested": tested}

    @staticmethod
    def _outcome(result: Any, rounds: int) -> dict[str, float]:
        last = result.evaluate_metrics_clientapp[rounds]
        return {"loss": float(last["loss"]), "accuracy": float(last["accuracy"])}

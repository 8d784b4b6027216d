"""The clients."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from udjfl.flower import ClientData, client_app


def client_data(context: Context) -> ClientData:
    name = str(context.node_config["client-id"])
    with np.load(str(context.node_config["data"])) as file:
        train, test = (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])
        return ClientData(id=name, train=train, test=test, n_classes=int(file["n_classes"]))


def fault_in(round: int, context: Context) -> str:
    """Return the fault of this client in a round, or an empty string."""
    if context.node_config["client-id"] != context.run_config["faulty"]:
        return ""
    faults = str(context.run_config["faults"]).split(",")
    return faults[round - 1] if round <= len(faults) else ""


honest = client_app("mlp", client_data)
app = ClientApp()


def change_value(content: RecordDict, record: str, name: str, change: Callable) -> RecordDict:
    """Return a reply in which one value is changed."""
    values = dict(content[record].items())
    value = values[name]
    values[name] = Array(change(value.numpy())) if isinstance(value, Array) else change(value)
    record_type = {"arrays": ArrayRecord, "config": ConfigRecord}[record]
    return RecordDict({**content, record: record_type(values)})


WRONG_REPLIES = {
    "nan": ("arrays", "delta", lambda delta: delta * np.float32("nan")),
    "shape": ("arrays", "delta", lambda delta: delta[:-1]),
    "huge": ("arrays", "delta", lambda delta: delta * np.float32(1e6)),
    "id": ("config", "client-id", lambda _: "somebody-else"),
}


@app.train()
def train(message: Message, context: Context) -> Message:
    t = int(message.content["config"]["round"])
    fault = fault_in(t, context)
    if fault == "error":
        raise OSError("no space left on this client's disk")
    if fault == "hang":
        (Path(str(context.run_config["gates"])) / f"hanging-{t}").touch()
        time.sleep(3600)
    reply = honest(message, context)
    if fault in WRONG_REPLIES:
        return Message(change_value(reply.content, *WRONG_REPLIES[fault]), reply_to=message)
    return reply


@app.query("introduce")
def introduce(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.query("uncertainty")
def uncertainty(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.query("probe")
def probe(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return honest(message, context)

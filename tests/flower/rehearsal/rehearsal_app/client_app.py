"""The clients."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from udjfl.flower import ClientData, client_app


def client_data(context: Context) -> ClientData:
    with np.load(str(context.node_config["data"])) as file:
        train, test = (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])
        return ClientData(
            id=name(context), train=train, test=test, n_classes=int(file["n_classes"])
        )


def name(context: Context) -> str:
    """Its own, unless it says that it is another."""
    others = [fault.removeprefix("as ") for fault in faults(context) if fault.startswith("as ")]
    return others[0] if others else str(context.node_config["client-id"])


def faults(context: Context) -> list[str]:
    lies = context.node_config["client-id"] == context.run_config["liar"]
    return str(context.run_config["faults"]).split(",") if lies else []


honest = client_app("mlp", client_data)
app = ClientApp()


def changed(content: RecordDict, record: str, name: str, change: Callable) -> RecordDict:
    """A reply of which one value is another."""
    kept = dict(content[record].items())
    kept[name] = (
        Array(change(kept[name].numpy())) if isinstance(kept[name], Array) else change(kept[name])
    )
    kind = {"arrays": ArrayRecord, "config": ConfigRecord, "metrics": MetricRecord}[record]
    return RecordDict({**content, record: kind(kept)})


LIES = {
    "nan": ("arrays", "delta", lambda delta: delta * np.float32("nan")),
    "shape": ("arrays", "delta", lambda delta: delta[:-1]),
    "huge": ("arrays", "delta", lambda delta: delta * np.float32(1e6)),
    "id": ("config", "client-id", lambda _: "somebody-else"),
}


@app.train()
def train(message: Message, context: Context) -> Message:
    t = int(message.content["config"]["round"])
    fault = dict(enumerate(faults(context), start=1)).get(t, "")
    if fault == "error":
        raise OSError("no space left on this client's disk")
    if fault == "hang":
        (Path(str(context.run_config["gates"])) / f"hanging-{t}").touch()
        time.sleep(3600)
    reply = honest(message, context)
    return (
        Message(changed(reply.content, *LIES[fault]), reply_to=message) if fault in LIES else reply
    )


@app.query("introduce")
def introduce(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.query("uncertainty")
def uncertainty(message: Message, context: Context) -> Message:
    reply = honest(message, context)
    twice = changed(reply.content, "metrics", "uncertainty", lambda value: 2 * value)
    return Message(twice, reply_to=message) if "doubt" in faults(context) else reply


@app.query("probe")
def probe(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return honest(message, context)

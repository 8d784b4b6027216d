"""The clients."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from udjfl.flower import ClientData, client_app
from udjfl.flower.tensors import make_records, pack, tensors_of, values_of


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


def change_delta(change: Callable[[Tensor], Tensor]) -> Callable[[RecordDict], RecordDict]:
    """Return a function that changes the update in a reply."""

    def replace(content: RecordDict) -> RecordDict:
        tensors = tensors_of(content)
        packed = pack({**tensors, "delta": change(tensors["delta"])})
        return RecordDict({**content, **make_records(values_of(content), packed)})

    return replace


def change_id(content: RecordDict) -> RecordDict:
    """Return a reply of another client."""
    values = {**values_of(content), "client-id": "somebody-else"}
    return RecordDict({**content, **make_records(values, pack(tensors_of(content)))})


WRONG_REPLIES = {
    "nan": change_delta(lambda delta: delta * float("nan")),
    "shape": change_delta(lambda delta: delta[:-1]),
    "huge": change_delta(lambda delta: delta * 1e6),
    "id": change_id,
}


@app.train()
def train(message: Message, context: Context) -> Message:
    t = int(message.content["config"]["round"])
    fault = fault_in(t, context)
    if fault == "error":
        raise OSError("no space left on this client's disk")
    if fault in ("hang", "wait"):
        gates = Path(str(context.run_config["gates"]))
        (gates / f"hanging-{t}").touch()
        while fault == "hang" or not (gates / f"release-{t}").exists():
            time.sleep(0.1)
    reply = honest(message, context)
    if fault in WRONG_REPLIES:
        return Message(WRONG_REPLIES[fault](reply.content), reply_to=message)
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

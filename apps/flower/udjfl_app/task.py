"""The model and the data: the part to change in an app of your own.

Each node names a client id and a data file (`--node-config 'client-id="north" data="north.npz"'`)
with x_train, y_train, x_test, y_test and n_classes, as `numpy.savez` writes them. The run's
configuration names the server's file: n_classes, x_test and y_test (or only input_shape, the shape
of one example), and x_validation, y_validation for methods that score clients' models. Flower's
simulation runtime has no such files: a data set of udjfl is partitioned into a client per node.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Context

import udjfl
from udjfl.flower import ClientData, ServerData

MODEL = "mlp"  # or "cnn", "logistic", or any function (input_shape, n_classes) -> torch.nn.Module


def client_data(context: Context) -> ClientData:
    """Load the data of the client that this node serves."""
    node = context.node_config
    if "data" in node:
        with np.load(str(node["data"])) as file:
            train, test = (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])
            classes = int(file["n_classes"])
            return ClientData(id=str(node["client-id"]), train=train, test=test, n_classes=classes)
    nodes, clients = int(node["num-partitions"]), int(context.run_config["clients"])
    if nodes != clients:  # the server would partition differently, or wait for missing nodes
        raise udjfl.DataError(
            f"the simulation has {nodes} SuperNodes, the run {clients} clients; give `flwr run` "
            f"--federation-config 'num-supernodes={clients}', or -c 'clients={nodes}'"
        )
    data = _load_federation(context, nodes)
    client = data.clients[int(node["partition-id"])]
    return ClientData(client.id, client.train, client.test, data.n_classes)


def server_data(context: Context) -> ServerData:
    """Load the data of the server."""
    path = str(context.run_config["server-data"])
    if path:
        with np.load(path) as file:
            test, validation = (
                (file[f"x_{side}"], file[f"y_{side}"]) if f"x_{side}" in file else None
                for side in ("test", "validation")
            )
            shape = file["input_shape"] if test is None else test[0].shape[1:]
            return ServerData(
                test, validation, input_shape=tuple(shape), n_classes=int(file["n_classes"])
            )
    data = _load_federation(context, int(context.run_config["clients"]))
    return ServerData(data.test, data.validation, data.input_shape, data.n_classes)


def _load_federation(context: Context, clients: int) -> udjfl.Federation:
    config = context.run_config
    return udjfl.load(str(config["dataset"]), clients=clients, seed=int(config["seed"]))

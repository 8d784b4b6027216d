"""The model and the data: what to change in an app of your own.

A client's data are a file of its own, which its node names: `--node-config 'client-id="north" data="/srv/udjfl/north.npz"'`.
It holds x_train, y_train, x_test, y_test and n_classes, as `numpy.savez` writes them. The server's file, which the run's
configuration names, holds n_classes, x_test and y_test (or, without a test set, input_shape: that of one example), and
x_validation, y_validation for methods that score clients' models.

On Flower's simulation runtime there are no such files: a data set of udjfl is cut into as many clients as there are nodes.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Context

import udjfl
from udjfl.flower import ClientData, ServerData

MODEL = "mlp"  # or "cnn", "logistic", or any function (input_shape, n_classes) -> torch.nn.Module


def client_data(context: Context) -> ClientData:
    node = context.node_config
    if "data" in node:
        with np.load(str(node["data"])) as file:
            train, test = (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])
            return ClientData(
                id=str(node["client-id"]), train=train, test=test, n_classes=int(file["n_classes"])
            )
    nodes, clients = int(node["num-partitions"]), int(context.run_config["clients"])
    if (
        nodes != clients
    ):  # the server would cut the data in another way, or wait for nodes that do not exist
        raise udjfl.DataError(
            f"the simulation has {nodes} SuperNodes, the run {clients} clients; give `flwr run` "
            f"--federation-config 'num-supernodes={clients}', or -c 'clients={nodes}'"
        )
    federation = _cut(context, nodes)
    own = federation.clients[int(node["partition-id"])]
    return ClientData(id=own.id, train=own.train, test=own.test, n_classes=federation.n_classes)


def server_data(context: Context) -> ServerData:
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
    federation = _cut(context, int(context.run_config["clients"]))
    return ServerData(
        federation.test, federation.validation, federation.input_shape, federation.n_classes
    )


def _cut(context: Context, clients: int) -> udjfl.Federation:
    return udjfl.load(
        str(context.run_config["dataset"]), clients=clients, seed=int(context.run_config["seed"])
    )

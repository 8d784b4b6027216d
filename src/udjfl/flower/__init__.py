"""The same methods across real machines, on Flower (https://flower.ai).

Needs `pip install 'udjfl[flower]'`. A user brings a model and two functions, one that loads a
client's own data and one that loads the server's:

    app = client_app("mlp", my_client_data)        # my_client_data(context) -> ClientData
    app = server_app("mlp", my_server_data)        # my_server_data(context) -> ServerData

`MethodStrategy` is the Flower strategy behind `server_app`. `udjfl.flower.settings` has the keys
of a run's configuration; `udjfl.flower.client_app` lists what leaves a client.
"""

import importlib.util

from udjfl.errors import DeploymentError

if importlib.util.find_spec("flwr") is None:
    raise DeploymentError("udjfl.flower needs Flower: pip install 'udjfl[flower]'")

from udjfl.flower.client_app import client_app
from udjfl.flower.data import ClientData, ServerData
from udjfl.flower.server_app import server_app
from udjfl.flower.strategy import MethodStrategy

__all__ = ["ClientData", "MethodStrategy", "ServerData", "client_app", "server_app"]

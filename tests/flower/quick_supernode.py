"""A SuperNode with short waits: `flower-supernode` for tests.

Flower fixes two waits that only cost time here: a SuperNode sleeps 3 s whenever there is no
message, and the SuperLink considers it gone 60 s (twice the heartbeat interval) after its last
heartbeat. The code is Flower's; only these two numbers differ.
"""

import time
from types import SimpleNamespace
from typing import Any

from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode

LONGEST_SLEEP = 0.3
HEARTBEAT = 15  # seconds; Flower accepts no less than 10


def sleep(seconds: float) -> None:
    time.sleep(min(seconds, LONGEST_SLEEP))


replaced: tuple[Any, ...] = (heartbeat, fleet_http_connection)
for module in replaced:
    module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
start_client_internal.time = SimpleNamespace(sleep=sleep)

if __name__ == "__main__":
    flower_supernode()

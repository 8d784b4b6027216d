"""A SuperNode whose end is noticed sooner: `udjfl.deployment.supernode` for tests.

The SuperLink considers a SuperNode gone 60 s (twice the heartbeat interval) after its last
heartbeat. The code is Flower's; only this number differs.
"""

from typing import Any

from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection

from udjfl.deployment.supernode import main

HEARTBEAT = 15  # seconds; Flower accepts no less than 10

replaced: tuple[Any, ...] = (heartbeat, fleet_http_connection)
for module in replaced:
    module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT

if __name__ == "__main__":
    main()

"""Deployments on Flower: what `udjfl flower` does.

keys             certificates and key pairs
coordinator      the coordinator's folder: a SuperLink, behind a proxy, and who is admitted
admission        which keys a SuperLink admits, and why it refuses others
node             a node's folder: a SuperNode and the process that runs apps on its data
proxy            the only open port: a reverse proxy that forwards what nodes need
status           who is online, absent or behind; how far a run is
control          the control side of a SuperLink
supervisor       one process that keeps services running, and stops them together
processes        processes that are stopped with everything they start
service_commands the command lines of the services
flwr_command     the command `flwr`, and the environment of Flower's processes
supernode        a SuperNode that waits no longer than needed
warm             the executor beside it: a process that has imported everything, and
fork_server      forks one for each message;
message_journal  what is noted about messages in progress
pauses           how long they wait
flwr_internals   what these rely on in Flower that is not public
network          ports, and the health of a SuperLink

`udjfl.flower` has the apps that run on a deployment.
"""

import importlib.util

from udjfl.errors import DeploymentError

if importlib.util.find_spec("flwr") is None:  # pragma: no cover - depends on what is installed
    raise DeploymentError("a deployment needs Flower: pip install 'udjfl[flower]'")

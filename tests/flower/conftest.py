"""The deployment that all tests with real processes share; see README.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from shared_deployment import DeployedFederation


@pytest.fixture(scope="session")
def deployed() -> Iterator[DeployedFederation]:
    """Two clients: a SuperLink with TLS and node authentication, and two SuperNodes.

    The SuperLink keeps its state in a file, so that a test can kill it and start it again.
    """
    pytest.importorskip("flwr")
    from shared_deployment import DeployedFederation, make_deployment

    import udjfl

    with make_deployment(keep_state=True) as deployment:
        yield DeployedFederation(deployment, udjfl.load("dirty-digits", clients=2, seed=0))

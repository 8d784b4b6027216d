"""One study for all tests with processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deployed_study import Study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """A coordinator and two hospitals that have joined, by the runbook of docs/deploying.md."""
    from deployed_study import open_study

    yield from open_study(tmp_path_factory.mktemp("runbook"))

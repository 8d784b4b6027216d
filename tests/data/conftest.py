"""Every test of data sources has an empty cache, and no data root of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache folder, which does not exist yet."""
    folder = tmp_path_factory.mktemp("user") / "cache"
    monkeypatch.delenv("UDJFL_DATA", raising=False)
    monkeypatch.setenv("UDJFL_CACHE", str(folder))
    monkeypatch.setenv("no_proxy", "*")
    return folder

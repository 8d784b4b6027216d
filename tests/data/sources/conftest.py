"""Folders with small files in the formats of MNIST and Ambiguous-MNIST."""

from __future__ import annotations

from pathlib import Path

import pytest
from mnist_files import write_digits, write_regenerated, write_release


@pytest.fixture
def release_root(tmp_path: Path) -> Path:
    """MNIST's files, gzipped, and the release."""
    write_digits(tmp_path / "root")
    write_release(tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def regenerated_root(tmp_path: Path) -> Path:
    """MNIST's files, gzipped, and regenerated digits."""
    write_digits(tmp_path / "root")
    write_regenerated(tmp_path / "root")
    return tmp_path / "root"

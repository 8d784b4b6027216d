"""The data files of a deployment: one for each client and one for the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import udjfl


def write_data_files(federation: udjfl.Federation, folder: Path) -> dict[str, Path]:
    """Write `folder/<client id>/data.npz` for each client and `folder/server/data.npz`.

    Returns the clients' files by client id. The files are those that udjfl_app/task.py reads.
    """
    server = {
        "x_test": federation.test.x.numpy(),
        "y_test": federation.test.y.numpy(),
        "n_classes": federation.n_classes,
    }
    if federation.validation is not None:
        server |= {
            "x_validation": federation.validation.x.numpy(),
            "y_validation": federation.validation.y.numpy(),
        }
    _write(server_file(folder), server)
    files = {}
    for client in federation.clients:
        arrays = {
            "x_train": client.train.x.numpy(),
            "y_train": client.train.y.numpy(),
            "x_test": client.test.x.numpy(),
            "y_test": client.test.y.numpy(),
            "n_classes": federation.n_classes,
        }
        files[client.id] = _write(folder / client.id / "data.npz", arrays)
    return files


def server_file(folder: Path) -> Path:
    """Return the path of the server's file below the folder of `write_data_files`."""
    return folder / "server" / "data.npz"


def _write(path: Path, arrays: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, mode=0o700)
    np.savez_compressed(path, **arrays)
    path.chmod(0o600)
    return path

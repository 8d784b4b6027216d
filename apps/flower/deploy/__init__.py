"""Tools around the Flower app: keys and certificates, and deployments on this machine."""

from __future__ import annotations

from pathlib import Path

APP = Path(__file__).resolve().parents[1]

"""Small tables that the tests of tables share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def make_hospital(seed: int, rows: int = 60, noise: float = 0.3) -> pd.DataFrame:
    """Draw patients with unscaled numbers, texts, missing values and text labels."""
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, rows).astype(float)
    income = rng.normal(40_000, 12_000, rows).round(2)
    smoker = rng.choice(["yes", "no"], rows)
    score = (age - 55) / 15 + (smoker == "yes") - (income - 40_000) / 2e4
    ill = score + noise * rng.normal(size=rows) > 0
    frame = pd.DataFrame(
        {
            "age": age,
            "income": income,
            "town": rng.choice(["Bath", "Ely", "York"], rows),
            "smoker": smoker,
            "ill": np.where(ill, "ill", "well"),
        }
    )
    frame.loc[rng.random(rows) < 0.1, "age"] = np.nan
    frame.loc[rng.random(rows) < 0.1, "town"] = None
    return frame


def make_hospitals() -> dict[str, pd.DataFrame]:
    """Draw three hospitals."""
    return {"north": make_hospital(1, 90), "south": make_hospital(2), "west": make_hospital(3, 40)}


def write_hospitals(folder: Path, **changed: pd.DataFrame) -> Path:
    """Write a CSV file for each hospital."""
    folder.mkdir(exist_ok=True)
    for name, frame in {**make_hospitals(), **changed}.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def change(frame: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Return a frame with other columns."""
    return frame.assign(**columns)

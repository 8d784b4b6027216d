"""Tables as pandas frames, which are an extra."""

from collections.abc import Mapping, Sequence
from typing import Any

from udjfl.errors import SettingsError

MISSING = "frames need pandas; install it with: pip install 'udjfl[frames]'"


def make_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a `pandas.DataFrame` with these columns."""
    try:
        import pandas as pd
    except ImportError:
        raise SettingsError(MISSING) from None
    return pd.DataFrame([dict(row) for row in rows], columns=list(columns))

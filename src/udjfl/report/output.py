"""What a command prints on standard output: a table for people, or one JSON document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(view: RenderableType, document: Any, as_json: bool) -> None:
    """Print the document if JSON was asked for, else the view: as wide as the terminal, 120 columns elsewhere."""
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
        return

    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    console.print(view)

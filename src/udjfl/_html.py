"""Small HTML tables for notebooks; every text in them is escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a caption; all columns but the first are aligned to the right."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(map(_cell, range(len(row)), row))}</tr>" for row in rows)
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(column: int, text: str) -> str:
    side = "right" if column else "left"
    return f'<td style="text-align: {side}">{escape(text)}</td>'

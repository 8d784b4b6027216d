"""Write the catalogue of methods and the tables of docs/methods.md from the classes: make docs

Run it after a method was added or changed.
"""

from __future__ import annotations

from pathlib import Path

from udjfl.report.methods import catalogue_markdown, write_catalogue

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- tables: made by `make docs` -->", "<!-- end of tables -->"


def replace_tables(page: str) -> str:
    """Replace the tables between the two marks of the page."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{catalogue_markdown()}\n{END}{after}"


if __name__ == "__main__":
    write_catalogue()
    PAGE.write_text(replace_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

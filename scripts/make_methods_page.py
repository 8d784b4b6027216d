"""Write the tables of docs/methods.md from the registry. Run it after a method was added or changed: make docs"""

from __future__ import annotations

from pathlib import Path

from udjfl.report.methods import catalogue_markdown

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- tables: made by `make docs` -->", "<!-- end of tables -->"


def with_tables(page: str) -> str:
    """The page with the tables between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{catalogue_markdown()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

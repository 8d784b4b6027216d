"""Draw the picture at the top of the README: what each theory does to each client of the demo.

Usage: python scripts/make_demo_picture.py [FOLDER]

FOLDER is one of `udjfl demo --out FOLDER`; without it the demo is run first. Writes
docs/images/demo-light.svg and docs/images/demo-dark.svg.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from udjfl.report.html.change_charts import change_figures
from udjfl.report.html.figure import import_altair
from udjfl.report.html.material import Material, read_material
from udjfl.report.html.svg import chart_spec, import_converter
from udjfl.report.html.theme import DARK
from udjfl.simulation.compare import choose_methods, run_comparison
from udjfl.simulation.demo import demo_settings

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SEEDS, ROUNDS = 30, 50  # as in `udjfl demo`


def main(arguments: list[str]) -> None:
    """Draw the picture from a folder, or from a new run of the demo."""
    if arguments:
        draw(Path(arguments[0]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        settings = demo_settings(SEEDS, ROUNDS, 0)
        folder = Path(temporary) / "demo"
        run_comparison(settings, choose_methods(settings), out=folder, by_name=True)
        draw(folder)


def draw(folder: Path) -> None:
    """Draw the theories within their budgets, in light and dark colours."""
    spec = chart_spec(make_chart(read_material([folder])))
    light: str = import_converter().vegalite_to_svg(spec)
    dark = light
    for colour, lighter in DARK.items():
        dark = dark.replace(colour, lighter)
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "demo-light.svg").write_text(light, encoding="utf-8")
    (IMAGES / "demo-dark.svg").write_text(dark, encoding="utf-8")


def make_chart(material: Material) -> Any:
    """Put the four theories beside each other, each with its verdict."""
    assert material.comparison is not None
    pairs = zip(material.rows, material.comparison.verdicts, strict=True)
    within = [(row, verdicts[0]) for row, verdicts in pairs if row.budget is not None]
    shown = replace(material, rows=(material.rows[0], *(row for row, _ in within)))
    charts = [
        figure.chart.properties(title={"text": row.method.short, "subtitle": verdict.kind})
        for (row, verdict), figure in zip(within, change_figures(shown, 250), strict=True)
    ]
    return import_altair().concat(*charts, columns=2)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The report as one HTML file: no network, no server, the same bytes for the same folders."""

from __future__ import annotations

import base64
import hashlib
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from udjfl._files import write_atomic
from udjfl._ids import printable
from udjfl.errors import SettingsError
from udjfl.report.choosing import guide_document
from udjfl.report.html.curves import Curves
from udjfl.report.html.figure import Figure, method_name, without_checks
from udjfl.report.html.figure_list import FigureList, make_figures
from udjfl.report.html.glance import glance_table
from udjfl.report.html.material import Material, read_material
from udjfl.report.html.provenance import Provenance, describe_provenance
from udjfl.report.html.svg import MISSING, render_svg
from udjfl.report.html.tables import Table, client_table, measure_table
from udjfl.report.html.tuning import Tuning, describe_tuning
from udjfl.report.html.weights import remark_on_weights, weight_table
from udjfl.report.html.words import Account, explain_terms, introduce, write_accounts
from udjfl.report.notes import join_notes, note_equal_rows

MOST_IN_FULL, CURVES_OF_MANY = 10, 2  # with more methods, fewer curves of each: a file below 1 MB
TEMPLATES = Path(__file__).parent / "templates"
LONGEST_NOTE = 600  # characters


@dataclass(frozen=True)
class Rounds:
    """One method over rounds."""

    label: str
    remark: str
    figures: list[Figure]


@dataclass(frozen=True)
class Content:
    """Everything on the page; empty parts are left out."""

    material: Material
    title: str
    introduction: str
    glance: Table | None
    accounts: list[Account]
    terms: dict[str, str]
    clients: Table | None
    notes: list[str]
    measures: Table | None
    more_measures: Table | None
    figures: FigureList
    tuning: Tuning | None
    rounds: list[Rounds]
    weights_remark: str
    weight_results: Table | None
    provenance: Provenance


def write_report(folders: Sequence[Path], path: Path) -> None:
    """Write the report on the runs in these folders to one HTML file."""
    write_atomic(path, render_page(read_material(folders)).encode())


def render_page(material: Material) -> str:
    """Return the report as HTML."""
    environment = make_environment()
    with without_checks():
        content = make_content(material)
    script, style = (read_template(name) for name in ("page.js", "page.css"))
    page: str = environment.get_template("page.html.jinja").render(
        content=content,
        guide=guide_document(),
        style=style,
        script=script,
        script_hash=hash_source(script),
        style_hash=hash_source(style),
    )
    return page


def make_content(material: Material) -> Content:
    """Compute what the page shows."""
    rows = material.rows
    most = None if len(material.curves) <= MOST_IN_FULL else CURVES_OF_MANY
    figures = make_figures(material, most_of_rounds=most)
    return Content(
        material=material,
        title=printable(material.data),
        introduction=introduce(material),
        glance=glance_table(material),
        accounts=write_accounts(material),
        terms=explain_terms(material.score.kind),
        clients=client_table(material) if rows else None,
        notes=_list_notes(material),
        measures=measure_table(material) if rows else None,
        more_measures=measure_table(material, on_request=True) if rows else None,
        figures=figures,
        tuning=describe_tuning(material.tuning) if material.tuning else None,
        rounds=[
            _make_rounds(curves, drawn, most is None)
            for curves, drawn in zip(material.curves, figures.rounds, strict=True)
        ],
        weights_remark=remark_on_weights(material),
        weight_results=weight_table(material),
        provenance=describe_provenance(material),
    )


def _list_notes(material: Material) -> list[str]:
    """List what the runs note on clients, such as uncertainties that cannot be told apart."""
    notes = [*note_equal_rows(material.rows), *join_notes(material.rows)]
    return [textwrap.shorten(printable(note), LONGEST_NOTE, placeholder=" …") for note in notes]


def _make_rounds(curves: Curves, figures: list[Figure], in_full: bool) -> Rounds:
    remarks = []
    if curves.reached < curves.rounds:
        remarks.append(f"Not finished: {curves.reached} of {curves.rounds} rounds.")
    if curves.missed:
        missed = ", ".join(f"{printable(c)} {n}" for c, n in sorted(curves.missed.items())[:10])
        more = len(curves.missed) - 10
        remarks.append(
            f"Rounds missed, absent or excluded: {missed}"
            + (f" and {more} more clients." if more > 0 else ".")
        )
    if not in_full:
        remarks.append("`udjfl figures` draws the rest of its curves.")
    return Rounds(curves.label, " ".join(remarks), figures)


@cache
def make_environment() -> Any:
    """Return the Jinja2 environment of all pages: everything is escaped but our own SVG."""
    try:
        import jinja2
    except ImportError:
        raise SettingsError(MISSING) from None
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Only our own SVG goes onto the page as it is; every other text is escaped.
    environment.filters["svg"] = lambda figure: Markup(render_svg(figure.chart, figure.name))
    environment.filters |= {"method_name": method_name, "printable": printable}
    return environment


def read_template(name: str) -> str:
    """Return the text of a style sheet or script of the pages."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def hash_source(text: str) -> str:
    """Return the hash by which the page allows this script or style, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

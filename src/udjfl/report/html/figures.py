"""The figures of a report as files, for papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from udjfl._files import explain_os_errors, write_atomic
from udjfl.errors import SettingsError, did_you_mean
from udjfl.report.html.figure import Figure
from udjfl.report.html.figure_list import make_figures
from udjfl.report.html.material import Material
from udjfl.report.html.svg import chart_spec, import_converter

FORMATS = ("pdf", "svg", "png")
# Points: the text of a paper is about 3.3 inches wide in two columns, 6.8 in one.
COLUMN_WIDTHS = {1: 240, 2: 490}
CAPTIONS, SOURCE = "captions.md", "Figures of "
PNG_SCALE = 4.0  # 288 dots per inch


def write_figures(
    material: Material, folder: Path, formats: Sequence[str], columns: int = 1, source: str = ""
) -> list[Path]:
    """Write every figure in every format, and a list of their captions; return the files.

    `source` names the runs. A folder that holds figures of others is refused.
    """
    chosen = [name.strip().lower() for name in formats if name.strip()]
    wrong = [name for name in chosen if name not in FORMATS]
    if wrong or not chosen:
        name = wrong[0] if wrong else ""
        raise SettingsError(f"format: unknown value {name!r}.{did_you_mean(name, FORMATS)}")
    figures = make_figures(material, COLUMN_WIDTHS[columns]).flatten()
    return save_figures(figures, folder, chosen, columns, source)


def save_figures(
    figures: Sequence[Figure],
    folder: Path,
    formats: Sequence[str],
    columns: int = 1,
    source: str = "",
) -> list[Path]:
    """Write figures in these formats, and a list of their captions; return the files."""
    written = []
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_others(folder, source)
    for name, content in draw_files(figures, formats, columns, source):
        write_atomic(folder / name, content)
        written.append(folder / name)
    return written


def draw_files(
    figures: Sequence[Figure], formats: Sequence[str], columns: int = 1, source: str = ""
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each figure in each format, then those of their captions."""
    for figure in figures:
        spec = _fit(chart_spec(figure.chart), COLUMN_WIDTHS[columns])
        for name in dict.fromkeys(formats):
            yield f"{figure.name}.{name}", _convert(spec, name)
    yield CAPTIONS, _list_captions(figures, source).encode()


def _refuse_others(folder: Path, source: str) -> None:
    """Raise an error if the folder holds figures of other runs: some would stay among these."""
    captions = folder / CAPTIONS
    if not source or not captions.exists():
        return
    lines = captions.read_text(encoding="utf-8", errors="replace").splitlines()
    before = next((line.removeprefix(SOURCE) for line in lines if line.startswith(SOURCE)), source)
    if before != source:
        raise SettingsError(f"out: {folder} holds the figures of {before}; name another folder")


def _fit(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """Make axes and legends part of the width, so that a figure is as wide as a column."""
    return {**spec, "width": width, "autosize": {"type": "fit-x", "contains": "padding"}}


def _convert(spec: dict[str, Any], name: str) -> bytes:
    converter = import_converter()
    if name == "svg":
        svg: str = converter.vegalite_to_svg(spec)
        return svg.encode()
    if name == "png":
        return bytes(converter.vegalite_to_png(spec, scale=PNG_SCALE))
    return bytes(converter.vegalite_to_pdf(spec))


def _list_captions(figures: Sequence[Figure], source: str) -> str:
    lines = ["# Captions", "", *([f"{SOURCE}{source}", ""] if source else [])]
    for figure in figures:
        lines += [f"- `{figure.name}`: {figure.title}. {figure.caption}"]
    return "\n".join(lines) + "\n"

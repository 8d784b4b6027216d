"""The notebooks of the documentation: run, and turned into pages with their outputs.

A notebook is a Python file of docs/notebooks in jupytext's percent format. It opens in Jupyter with
jupytext, and runs as a plain script too.
"""

from __future__ import annotations

import html
import re
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

ANSI = re.compile(r"\x1b\[[0-9;]*m")
SVG = "image/svg+xml"
# Altair's charts become pictures of the page, without a script that is fetched to draw them.
DRAW_CHARTS = 'import altair\n\naltair.renderers.enable("svg")'
WIDTH = 100  # characters; longer lines of output are wrapped
SECONDS = 300  # a cell that takes longer is an error


def render_notebook(path: Path) -> str:
    """Run a notebook in an empty folder, and return it as Markdown with its outputs."""
    notebook = jupytext.read(path)
    notebook.cells[:0] = jupytext.reads(DRAW_CHARTS, "py:percent").cells
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    del notebook.cells[0]
    return to_markdown(notebook, path.name)


def to_markdown(notebook: Any, name: str) -> str:
    """Write an executed notebook as a page."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            parts += show_outputs(cell.source, cell.outputs)
    note = f"*This page is the notebook `docs/notebooks/{name}`, run when the site was built.*"
    return "\n\n".join([*parts, note]) + "\n"


def show_outputs(source: str, outputs: Sequence[Any]) -> list[str]:
    """Show what a cell printed as one block, without repeated warnings, then its pictures."""
    label = html.escape(f"Chart: {source.splitlines()[-1]}")
    texts = {"stderr": "", "stdout": ""}
    pictures = []
    for output in outputs:
        if output.output_type == "stream":
            texts[output.name] += output.text
        elif SVG in output.data:
            figure = f'<figure class="chart" role="img" aria-label="{label}">'
            pictures.append(f"{figure}{output.data[SVG]}</figure>")
        else:
            texts["stdout"] += f"{ANSI.sub('', output.data['text/plain'])}\n"
    warnings = dict.fromkeys(texts["stderr"].splitlines())  # the same for every seed
    lines = [
        part
        for line in (*warnings, *texts["stdout"].rstrip().splitlines())
        for part in wrap_line(line.rstrip())
    ]
    return ["\n".join(["```text", *lines, "```"])] * bool(lines) + pictures


def wrap_line(line: str) -> list[str]:
    """Cut a long line at spaces; what follows is indented like its beginning."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False) or [""]

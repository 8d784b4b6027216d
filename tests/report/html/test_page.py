"""The page: one file, nothing from outside, the same bytes, whatever the folder is like."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from frontier_cases import make_frontier
from typer.testing import CliRunner

from udjfl.cli.app import app
from udjfl.errors import SettingsError
from udjfl.report.html.material import Material, read_material
from udjfl.report.html.page import render_page, write_report
from udjfl.tasks.scores import ACCURACY

HOSTILE = "<script>alert(1)</script>\x1b[31m[red]\u202e\"'&{{ 7 * 7 }}"


class Elements(HTMLParser):
    """The elements of a page, and the text in its headings."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@pytest.fixture(scope="module")
def page(material: Material) -> str:
    return render_page(material)


def test_the_page_has_every_section(page: str) -> None:
    for section in (
        "glance",
        "words",
        "clients",
        "payers",
        "measures",
        "tradeoffs",
        "rounds",
        "weights",
        "choosing",
        "made",
    ):
        assert f'<section id="{section}"' in page


def test_nothing_is_loaded_from_outside(page: str) -> None:
    elements = Elements(page)
    assert elements.tags.count("script") == elements.tags.count("style") == 1
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(elements.tags)
    addresses = [v for k, v in elements.attributes if k in ("href", "src", "action", "srcset")]
    assert all(address and address.startswith("#") for address in addresses)
    assert "default-src 'none'" in page
    assert not any(k.startswith("on") or k == "style" for k, _ in elements.attributes)


def test_the_same_folder_gives_the_same_bytes(comparison_folder: Path, page: str) -> None:
    assert render_page(read_material([comparison_folder])) == page


def test_ids_are_unique_and_every_figure_has_a_name_and_a_table(page: str) -> None:
    ids = [value for key, value in Elements(page).attributes if key == "id"]
    assert len(set(ids)) == len(ids)
    figures = re.findall(r"<figure>.*?</figure>", page, re.S)
    assert figures
    for figure in figures:
        assert re.search(r'role="group" tabindex="0" aria-label="Figure: [^"]+"', figure)
        assert "<table>" in figure


def rename_client(folder: Path, new: str) -> None:
    """Give the first client of a run another id, in all its files."""
    settings = json.loads((folder / "settings.json").read_text())
    old = settings["federation"]["clients"][0]["id"]
    for file in folder.glob("*.json*"):
        text = file.read_text()
        file.write_text(text.replace(json.dumps(old), json.dumps(new)))


def test_hostile_ids_are_text(run_folder: Path) -> None:
    rename_client(run_folder, HOSTILE)
    page = render_page(read_material([run_folder]))
    elements = Elements(page)
    assert elements.tags.count("script") == 1
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m[red]\\u202e" in page
    assert "{{ 7 * 7 }}" in page


def test_an_unfinished_run_is_told(run_folder: Path) -> None:
    (run_folder / "result.json").unlink()
    page = render_page(read_material([run_folder]))
    assert "Not in this report" in page
    assert "No run here is finished yet." in page
    assert '<section id="rounds"' in page
    assert '<section id="clients"' not in page


def test_a_frontier_has_a_page_of_its_own_and_beside_runs(run_folder: Path, tmp_path: Path) -> None:
    make_frontier().save(tmp_path / "frontier")
    alone = render_page(read_material([tmp_path / "frontier"]))
    assert '<section id="frontier"' in alone
    assert '<section id="clients"' not in alone
    beside = render_page(read_material([run_folder, tmp_path / "frontier"]))
    assert '<section id="frontier"' in beside
    assert '<section id="clients"' in beside


def test_a_damaged_frontier_is_listed(run_folder: Path, tmp_path: Path) -> None:
    make_frontier().save(tmp_path / "frontier")
    (tmp_path / "frontier" / "frontier.json").write_text("{")
    page = render_page(read_material([run_folder, tmp_path / "frontier"]))
    assert "Not in this report" in page
    assert '<section id="frontier"' not in page


def test_the_score_that_is_judged_is_named(material: Material) -> None:
    score = replace(ACCURACY, name="auroc", title="AUROC", is_share=False)
    rows = tuple(replace(row, score=score) for row in material.rows)
    assert "AUROC on its own test data, %" in render_page(replace(material, rows=rows))


def test_one_run_has_a_page(run_folder: Path) -> None:
    page = render_page(read_material([run_folder]))
    assert '<section id="clients"' in page
    assert '<section id="words"' not in page


def test_missing_metrics_are_dashes(run_folder: Path) -> None:
    result = json.loads((run_folder / "result.json").read_text())
    result |= {"global_accuracy": None, "test_sizes": None}
    result["undefined"] = {"global_accuracy": "No single model."}
    (run_folder / "result.json").write_text(json.dumps(result))
    assert "No single model." in render_page(read_material([run_folder]))


def test_the_command_writes_the_page(comparison_folder: Path, tmp_path: Path, page: str) -> None:
    path = tmp_path / "new" / "report.html"
    path.parent.mkdir()
    result = CliRunner().invoke(app, ["report", str(comparison_folder), "--html", str(path)])
    assert result.exit_code == 0, result.output
    assert path.read_text() == page
    assert len(page) < 1_000_000


def test_a_page_that_cannot_be_written_is_an_error(run_folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(run_folder), "--html", str(tmp_path)])
    assert result.exit_code != 0
    assert run_folder.exists()


def test_without_its_packages_the_report_says_how_to_install_them(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    with pytest.raises(SettingsError, match=r"pip install 'udjfl\[report\]'"):
        write_report([run_folder], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    shutil.rmtree(run_folder)

"""Figures as files, and charts for notebooks."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from small_runs import make_federation
from typer.testing import CliRunner

import udjfl
from udjfl.cli.app import app
from udjfl.errors import SettingsError
from udjfl.report.html.figures import COLUMN_WIDTHS, write_figures
from udjfl.report.html.material import read_material

TINY = {"model": "logistic", "rounds": 3, "uncertainty_epochs": 1}


def points_wide(path: Path) -> float:
    with Image.open(path) as image:
        return image.width / 4


def test_every_figure_is_written_in_every_format(run_folder: Path, tmp_path: Path) -> None:
    material = read_material([run_folder])
    written = write_figures(material, tmp_path / "figures", ["svg", " PNG"])
    names = {path.stem for path in written}
    assert {"client-1-scores", "lorenz", "captions"} <= names
    captions = (tmp_path / "figures" / "captions.md").read_text()
    for path in written:
        assert path.stat().st_size > 100
        if path.suffix == ".png":
            assert abs(points_wide(path) - COLUMN_WIDTHS[1]) <= 1
        assert path.stem == "captions" or f"`{path.stem}`" in captions


def test_figures_of_two_columns_are_wider(run_folder: Path, tmp_path: Path) -> None:
    material = read_material([run_folder])
    written = write_figures(material, tmp_path, ["png"], columns=2)
    [lorenz] = [path for path in written if path.stem == "lorenz"]
    assert abs(points_wide(lorenz) - COLUMN_WIDTHS[2]) <= 1


def test_pdf_embeds_its_fonts(run_folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["figures", str(run_folder), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    content = (tmp_path / "out" / "lorenz.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert b"/FontFile2" in content


def test_figures_of_other_runs_are_not_mixed_in(run_folder: Path, tmp_path: Path) -> None:
    material, folder = read_material([run_folder]), tmp_path / "figures"
    write_figures(material, folder, ["svg"], source="runs/a")
    write_figures(material, folder, ["png"], source="runs/a")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SettingsError, match="holds the figures of runs/a; name another folder"):
        write_figures(material, folder, ["svg"], source="runs/b")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("formats", [["gif"], [], [""]])
def test_an_unknown_format_is_refused(run_folder: Path, tmp_path: Path, formats: list[str]) -> None:
    with pytest.raises(SettingsError, match="format"):
        write_figures(read_material([run_folder]), tmp_path / "figures", formats)
    assert not (tmp_path / "figures").exists()


def test_results_and_comparisons_draw_themselves() -> None:
    federation = make_federation(n_clients=3, n=8)
    result = udjfl.simulate(federation, "rawls", **TINY)
    comparison = udjfl.compare(federation, ["fedavg", "rawls"], seeds=2, **TINY)
    charts = [
        result.plot(),
        comparison.plot_clients(),
        comparison.plot_changes(),
        comparison.plot_frontier(),
    ]
    for chart in charts:
        assert chart.to_dict(validate=True)["concat"]

"""The picture at the top of the README is made by a command from the demo."""

from __future__ import annotations

from pathlib import Path

from paired_comparison import compare_gains
from script_modules import load_script

from udjfl.methods import THEORIES, UDJ
from udjfl.report.html.material import Material

ROOT = Path(__file__).parent.parent


def test_the_picture_has_every_theory_within_its_budget() -> None:
    gains = {
        UDJ(theory=theory, budget=budget): [1.0, 0.0, 0.0, 0.0, 1.0]
        for theory in THEORIES
        for budget in (2.0, None)
    }
    comparison = compare_gains(gains)
    material = Material("by hand", comparison.seeds, comparison.rows, comparison, "")
    script = load_script(ROOT / "scripts" / "make_demo_picture.py")
    charts = script.make_chart(material).to_dict(validate=True)["concat"]
    assert [chart["title"]["text"].lower() for chart in charts] == list(THEORIES)


def test_the_pictures_are_there_and_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("demo-light.svg", "demo-dark.svg"):
        assert f"docs/images/{name}" in readme
        content = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
        assert content.startswith("<svg")
        assert all(theory.capitalize() in content for theory in THEORIES)

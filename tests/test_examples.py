"""The examples and the Python in the README run as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from check_docs import write_hospitals
from programs import run_program

import udjfl

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_runs_and_prints_numbers(name: str) -> None:
    printed = run_program([sys.executable, "-W", "error", str(ROOT / "examples" / name), "2"])
    assert printed.count("\n") >= 3
    assert "nan" not in printed


def test_there_is_an_example_for_a_start_for_data_and_for_a_method() -> None:
    assert {"quickstart.py", "my_data.py", "my_method.py"} <= set(EXAMPLES)


def test_a_method_takes_fewer_than_25_lines() -> None:
    text = (ROOT / "examples" / "my_method.py").read_text(encoding="utf-8")
    method = text.split("# start of the method\n")[1].split("# end of the method")[0].strip()
    assert len(method.splitlines()) < 25


def test_the_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hospitals(tmp_path)
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for mark, block in re.findall(r"([^\n]*)\n```python\n(.*?)```", readme, flags=re.DOTALL):
        if mark.startswith("<!-- not run:"):  # with the reason
            continue
        code = compile(block.replace("rounds=100", "rounds=2"), "README.md", "exec")
        exec(code, {"__name__": "readme", "udjfl": udjfl})

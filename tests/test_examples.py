"""The examples run as a newcomer would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["quickstart.py", "my_method.py", "my_data.py"])
def test_example_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name), "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 3
    assert "nan" not in done.stdout


def test_every_example_is_tested() -> None:
    assert sorted(path.name for path in (ROOT / "examples").glob("*.py")) == [
        "my_data.py",
        "my_method.py",
        "quickstart.py",
    ]


def test_a_method_takes_fewer_than_25_lines() -> None:
    text = (ROOT / "examples" / "my_method.py").read_text(encoding="utf-8")
    method = text.split("# start of the method\n")[1].split("# end of the method")[0].strip()
    assert len(method.splitlines()) < 25


def test_the_readmes_python_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    for block in blocks:
        if "x_train" not in block:  # that one stands for the reader's own arrays
            exec(
                compile(block.replace("rounds=100", "rounds=2"), "README.md", "exec"),
                {"__name__": "readme", **_names()},
            )


def _names() -> dict[str, object]:
    import udjfl

    return {"udjfl": udjfl}

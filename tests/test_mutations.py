"""The mutations: what is changed, what is not, and that a change is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mutations import find_mutations

ROOT = Path(__file__).parents[1]
SOURCE = '''
def clip(x, low=0):
    """Return 1 number."""
    if x < low:
        raise ValueError("below 3")
    return min(x + 1, 9)
'''


def test_mutations_by_hand() -> None:
    found = [(each.before, each.after) for each in find_mutations(SOURCE)]
    assert sorted(found) == sorted(
        [
            ("if x < low:", "if x <= low:"),
            ("raise ValueError('below 3')", "pass"),
            ("return min(x + 1, 9)", "return None"),
            ("return min(x + 1, 9)", "return max(x + 1, 9)"),
            ("return min(x + 1, 9)", "return min(x - 1, 9)"),
            ("return min(x + 1, 9)", "return min(x + 2, 9)"),
            ("return min(x + 1, 9)", "return min(x + 1, 10)"),
        ]
    )
    assert {each.function for each in find_mutations(SOURCE)} == {"clip"}


def test_a_mutation_is_of_one_function_and_leaves_the_source_alone() -> None:
    lines = ("class A:", "  def f(self):", "    return [1]", "  def g(self):", "    return 1")
    source = "\n".join(lines)
    found = [(each.function, each.line) for each in find_mutations(source)]
    assert found == [("A.f", 3), ("A.f", 3), ("A.g", 5), ("A.g", 5)]


WEAK = """
from udjfl.errors import SettingsError
from udjfl.training.trust import refuse_code

def test_it():
    refuse_code("folder", {"model": "mlp"})
"""
STRONG = """
import pytest

def test_more():
    with pytest.raises(SettingsError, match="names code"):
        refuse_code("folder", {"model": "their:code"})
"""


def test_a_mutant_survives_a_weak_test_and_not_a_strong_one(tmp_path: Path) -> None:
    test, module = tmp_path / "test_it.py", "src/udjfl/training/trust.py"
    codes, survivors = [], []
    for content in (WEAK, WEAK + STRONG):
        test.write_text(content, encoding="utf-8")
        command = [sys.executable, "scripts/mutants.py", module, "--tests", str(test)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        codes.append(done.returncode)
        survivors.append({line for line in done.stdout.splitlines() if " -> pass" in line})
    assert codes == [1, 0]
    assert len(survivors[0]) == 1
    assert survivors[1] == set()

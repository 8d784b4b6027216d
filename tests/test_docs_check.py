"""The checks of the documentation find what they look for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import check_docs
import docs_pages
import pytest
from docs_samples import find_stale_part


def test_broken_links_are_found() -> None:
    text = "# A `b` c\n[x](docs/no.md) [y](#a-b-c) [z](#d) [w](https://x.org)\n```\n[v](no)\n```\n"
    assert docs_pages.find_anchors(text) == {"a-b-c"}
    assert docs_pages.broken_links("CHANGELOG.md", text)[0] == "docs/no.md"
    assert docs_pages.broken_links("CHANGELOG.md", "[a](docs/data.md#heart)") == []
    assert docs_pages.broken_links("docs/faq.md", "[a](data.md#hart)") == ["data.md#hart"]


def test_blocks_are_found_with_their_comments() -> None:
    text = (
        "<!-- not run: a\nb -->\n```bash\nudjfl x \\\n  y  # z\n# only a comment\n```\n"
        "- item\n\n    ```\n    make a\n    ```\n<!-- before:\nx = 1\n-->\n```python\nx\n```\n"
        "`a.py`:\n\n```python\ny(...)\n```\n```\na picture\n```\n"
    )
    blocks = list(docs_pages.find_blocks("page.md", text))
    assert [block.language for block in blocks] == ["bash", "bash", "python", "python", "text"]
    assert [block.not_run is None for block in blocks] == [False, True, True, False, True]
    assert blocks[0].not_run == "a\nb"
    assert blocks[0].commands == ["udjfl x    y  # z"]
    assert blocks[1].code == "make a\n"
    assert (blocks[2].before, blocks[2].place) == ("x = 1", "page.md:17")
    assert (blocks[2].file, blocks[3].file) == (None, "a.py")


def test_tests_that_do_not_exist_are_found() -> None:
    own = "tests/test_docs_check.py::test_tests_that_do_not_exist_are_found"
    assert docs_pages.find_test(own)
    assert not docs_pages.find_test(f"{own}_at_all")
    assert not docs_pages.find_test("tests/test_docs_check.py")
    assert not docs_pages.find_test("tests/no_file.py::test_it")


def test_a_session_that_prints_something_else_fails() -> None:
    block = docs_pages.Block("page.md", 3, "pycon", ">>> 1 + 1\n3\n")
    with pytest.raises(check_docs.BlockError, match=r"Expected:\s+3\s+Got:\s+2"):
        check_docs.run_session(block, {})


def test_checks_cut_training_short() -> None:
    assert check_docs.shorten_command("udjfl compare --seeds 30  # slow") == (
        "udjfl compare --seeds 30 --rounds 2 --seeds 2"
    )
    assert check_docs.shorten_command("python x.py") == "python x.py"
    assert "--dry-run" in check_docs.shorten_command("make demo")
    assert check_docs.shorten_python("f(seeds=10, rounds=x)") == "f(seeds=2, rounds=x)"


def check_page(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the code blocks of a page with this text."""
    monkeypatch.setattr(check_docs, "read_page", lambda page: text)
    outcome: dict[str, Any] = check_docs.PageCheck("page.md").run()
    return outcome


def test_a_page_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "```python\nx = 1\n```\n```python\nx / 0\n```\n<!-- not run: why -->\n```c\n```\n"
        "<!-- run by: tests/a.py::b -->\n```bash\nfalse\n```\n"
    )
    outcome = check_page(text, monkeypatch)
    assert (outcome["ran"], outcome["skipped"]) == (1, ["page.md:9: why"])
    assert outcome["tested"] == ["page.md:12: tests/a.py::b"]
    assert outcome["failures"] == ["page.md:5: ZeroDivisionError: division by zero"]


def test_output_is_compared_with_what_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "```bash\nprintf 'a 1.0\\nb 2\\n'\n```\n<!-- output -->\n```text\na 1.0\n```\n"
        "<!-- output -->\n```text\nb 3\n```\n```bash\ntrue\n```\n```text\na picture\n```\n"
    )
    outcome = check_page(text, monkeypatch)
    assert outcome["ran"] == 3
    (failure,) = outcome["failures"]
    assert failure.startswith("page.md:10: BlockError: not printed:\nb 3\n")


def test_commands_with_an_output_run_in_full() -> None:
    text = "```bash\na\n```\n<!-- output -->\n```text\nb\n```\n```bash\nc\n```\n```text\nd\n```\n"
    blocks = list(docs_pages.find_blocks("page.md", text))
    assert [block.is_output for block in blocks] == [False, True, False, False]
    assert check_docs.has_output(blocks[1:])
    assert not check_docs.has_output(blocks[3:])
    assert not check_docs.has_output(blocks[2:])


@pytest.mark.parametrize(
    ("sample", "stale"),
    [
        ("FedAvg 81.50 67.42", None),
        ("FedAvg  81.40\n67.42", None),  # other digits, as of another processor; other wrapping
        ("FedAvg 82.50 67.42", None),  # within 2%
        ("FedAvg 84.50 67.42", "FedAvg 84.50 67.42"),
        ("FedAvg ...\nkept: by 3.1", None),
        ("kept: by 3.1 ...\nFedAvg", "FedAvg"),  # the order counts
        ("levelled down: by 3.1", "levelled down: by 3.1"),
        ("kept: by 3.1*", "kept: by 3.1*"),
        ("over 9 seeds", "over 9 seeds"),  # whole numbers are compared exactly
        ("by 3.1 ██│", None),
        ("by 3.1 │██", "by 3.1 │██"),
    ],
)
def test_stale_samples_are_found(sample: str, stale: str | None) -> None:
    printed = "over 10 seeds\nFedAvg   81.50   67.42\nkept: by 3.1 ███│\n"
    assert find_stale_part(sample, printed) == stale


def test_the_hospitals_of_the_tour_are_written_for_other_pages(tmp_path: Path) -> None:
    check_docs.write_hospitals(tmp_path)
    files = sorted(path.name for path in (tmp_path / "hospitals").iterdir())
    assert files == ["east.csv", "north.csv", "south.csv", "west.csv"]


def test_outputs_of_notebooks_become_blocks_and_figures() -> None:
    pytest.importorskip("jupytext")
    from docs_notebooks import SVG, show_outputs

    outputs = [
        SimpleNamespace(output_type="stream", name="stderr", text="careful\ncareful\n"),
        SimpleNamespace(output_type="stream", name="stdout", text=f"a\n  {'word ' * 30}\n"),
        SimpleNamespace(output_type="display_data", data={SVG: "<svg></svg>", "text/plain": "x"}),
    ]
    block, figure = show_outputs('compare("a")\nplot("<a>")', outputs)
    lines = block.splitlines()
    assert (lines[0], lines[1], lines[2], lines[-1]) == ("```text", "careful", "a", "```")
    assert [line.startswith("  word") for line in lines[3:-1]] == [True, True]
    assert max(map(len, lines)) <= 100
    assert "<svg></svg></figure>" in figure
    assert 'aria-label="Chart: plot(&quot;&lt;a&gt;&quot;)"' in figure

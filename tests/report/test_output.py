"""Tables that fit the width of a terminal."""

from __future__ import annotations

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from udjfl.report.output import make_blocks, pack_columns, printable_lines, show

HOSTILE = "[red]<b>\x1b[31m\x07\x9b2J\r\u202e:smile:"


@pytest.mark.parametrize(
    ("widths", "available", "blocks"),
    [
        ([5, 5, 5], 15, [[0, 1, 2]]),
        ([5, 5, 5, 5], 15, [[0, 1], [2, 3]]),  # not three and one
        ([5, 5, 5], 9, [[0], [1], [2]]),
        ([20, 20], 10, [[0], [1]]),  # wider than there is room: still shown
        ([20], 10, [[0]]),
        ([3, 9, 3, 3], 12, [[0, 1], [2, 3]]),
    ],
)
def test_columns_are_packed_into_few_blocks(
    widths: list[int], available: int, blocks: list[list[int]]
) -> None:
    assert pack_columns(widths, available) == blocks


def test_ids_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Markup, emoji names, control characters and right-to-left overrides are shown, not obeyed."""
    table = Table(HOSTILE, box=None)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    show(Group(table, HOSTILE), None, as_json=False)
    shown = capsys.readouterr().out
    assert shown.count("[red]<b>\\x1b[31m") == 4
    assert shown.count(":smile:") == 4
    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(shown)


def test_styles_survive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    show(Text("good", style="green"), None, as_json=False)
    assert capsys.readouterr().out == "\x1b[32mgood\x1b[0m\n"


def test_printable_keeps_lines_and_letters() -> None:
    assert printable_lines("Zürich\n東京\t\x00") == "Zürich\n東京\\t\\x00"


def test_the_space_between_columns_stays(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Client", "Score", box=None)
    table.add_row("a", "1")
    show(table, None, as_json=False)
    assert capsys.readouterr().out.split() == ["Client", "Score", "a", "1"]
    assert printable_lines("   \na") == "   \na"


def test_a_table_of_names_without_a_word() -> None:
    blanks = [Text("\x1c"), Text(" ")]
    view = make_blocks(80, "Client", [Text("A")], blanks, [[Text("1")], [Text("2")]])
    console = Console(width=80)
    with console.capture() as capture:
        console.print(view)
    # Not splitlines, which takes \\x1c for the end of a line.
    assert [line.split()[-1] for line in capture.get().strip("\n").split("\n")] == ["A", "1", "2"]


@pytest.mark.parametrize("width", [60, 120])
def test_a_very_long_id_leaves_room_for_numbers(width: int) -> None:
    long, console = Text("a-very-long-id" * 20), Console(width=width)
    for headings, names in (([Text("Mean")], [long]), ([long], [Text("Mean")])):
        with console.capture() as capture:
            console.print(make_blocks(width, "Client", headings, names, [[Text("62.50")]]))
        assert "62.50" in capture.get()


def test_what_is_continued_of_a_name_is_indented() -> None:
    names = [
        Text.assemble("Rawls", ("\n  UDJ-FL beta=0.578, gamma=0.322, step=safe", "dim")),
        Text("neighbour: UDJ-FL rawls (beta=0.5, gamma=0.2)"),
    ]
    console = Console(width=40, highlight=False)
    with console.capture() as capture:
        console.print(make_blocks(40, "Point", [Text("A")], names, [[Text("1")], [Text("2")]]))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert [line[:14].rstrip() for line in lines[1:]] == [
        "Rawls",
        "  UDJ-FL",
        "  beta=0.578,",
        "  gamma=0.322,",
        "  step=safe",
        "neighbour:",
        "  UDJ-FL rawls",
        "  (beta=0.5,",
        "  gamma=0.2)",
    ]


def test_names_are_folded_further_where_that_saves_a_table() -> None:
    names = [Text("a name of so many letters that a third of the line is full")]
    headings = [Text(f"column-{n}{n}") for n in range(6)]  # 10 wide with the gap
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        console.print(make_blocks(80, "Name", headings, names, [[Text("1")] * 6]))
    lines = capture.get().splitlines()
    assert lines[0].split() == ["Name", *(heading.plain for heading in headings)]
    assert max(map(len, lines)) <= 80

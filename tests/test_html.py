"""Tables for notebooks: what comes from outside is text, never HTML."""

from __future__ import annotations

from udjfl._html import html_table


def test_texts_are_escaped() -> None:
    table = html_table("<b>", ["A & B"], [["<script>", '"x"']])
    assert "<caption>&lt;b&gt;</caption>" in table
    assert "<th>A &amp; B</th>" in table
    assert '<td style="text-align: left">&lt;script&gt;</td>' in table
    assert '<td style="text-align: right">&quot;x&quot;</td>' in table

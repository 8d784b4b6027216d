"""A report's last section: how the numbers were made, as an auditor needs it."""

from __future__ import annotations

from dataclasses import dataclass

from udjfl._ids import printable
from udjfl.report.html.figure import method_name
from udjfl.report.html.material import Material
from udjfl.report.methods import SENT_AS
from udjfl.settings import TrainingSettings
from udjfl.simulation.method_summary import MethodSummary

GRADES = {
    "verified": "checked against the authors' code or paper",
    "partial": "could be checked only in part",
    "recalled": "could not be checked against the authors' code or paper",
    "own": "of no paper; there is nothing to check it against",
}


@dataclass(frozen=True)
class MethodFacts:
    """One method: where it comes from, and what every client sends to the server for it."""

    name: str
    paper: str
    grade: str
    sent: str


@dataclass(frozen=True)
class Provenance:
    """The record of how the runs were made."""

    facts: list[tuple[str, str]]
    settings: list[tuple[str, str, bool]]
    methods: list[MethodFacts]
    fingerprints: list[tuple[int, str]]
    commands: list[str]


def describe_provenance(material: Material) -> Provenance:
    """Collect settings, versions, data and methods; each with whether it is not the default."""
    defaults = {key: field.default for key, field in TrainingSettings.model_fields.items()}
    seeds = ", ".join(map(str, material.seeds))
    versions = ", ".join(f"{k} {v}" for k, v in material.versions.items())
    facts = [
        ("Data", printable(material.data)),
        ("Clients", str(len(material.client_ids))),
        ("Seeds", seeds or "none finished"),
        ("Versions", printable(versions) or "not recorded"),
    ]
    if material.rows:
        facts.append(("Files", _describe_checks(material.unchecked)))
    return Provenance(
        facts,
        [
            (key, printable(str(value)), key in defaults and value != defaults[key])
            for key, value in material.settings.items()
        ],
        [_describe(row) for row in material.rows],
        sorted((seed, value) for seed, value in material.fingerprints.items()),
        [printable(command) for command in material.commands],
    )


def _describe_checks(unchecked: int) -> str:
    if not unchecked:
        return "each as its run wrote it, by the hashes in the manifest of its folder"
    folders = "1 folder has" if unchecked == 1 else f"{unchecked} folders have"
    return f"{folders} no manifest of hashes: a change of their files would not be noticed"


def _describe(row: MethodSummary) -> MethodFacts:
    method = row.method
    names = {*method.needs, *method.probes}
    sent = ["update", *(text for name, text in SENT_AS.items() if name in names)]
    paper, grade = method.paper, f"{method.grade}: {GRADES[method.grade]}"
    if row.budget is not None:
        paper, grade = f"a theory of {paper}", "own: the rule of the budget is udjfl's"
    return MethodFacts(
        method_name(row),
        paper,
        grade,
        ", ".join(sent),
    )

"""Verdicts: did a method deliver the theory that it serves, for whom, and at what price?

`changes` compares a method with FedAvg seed by seed, `promises` with what clients were promised;
`evidence` collects what a theory looks at, `judge` decides, and `sentences` says it.
"""

from udjfl.verdicts.changes import PairedRuns
from udjfl.verdicts.evidence import MARGIN, Evidence, LeastAdvantaged, collect_evidence
from udjfl.verdicts.judge import KINDS, Verdict, VerdictKind, judge, left_out_reason
from udjfl.verdicts.promises import Promise

__all__ = [
    "KINDS",
    "MARGIN",
    "Evidence",
    "LeastAdvantaged",
    "PairedRuns",
    "Promise",
    "Verdict",
    "VerdictKind",
    "collect_evidence",
    "judge",
    "left_out_reason",
]

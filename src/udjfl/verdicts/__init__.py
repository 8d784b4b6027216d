"""Verdicts: did a method deliver the theory that it serves, for whom, and at what price?

`evidence` compares a method with FedAvg seed by seed; `judge` decides, and `sentences` says it.
"""

from udjfl.verdicts.evidence import MARGIN, Evidence, LeastAdvantaged, PairedRuns, collect_evidence
from udjfl.verdicts.judge import KINDS, Verdict, VerdictKind, judge, left_out_reason

__all__ = [
    "KINDS",
    "MARGIN",
    "Evidence",
    "LeastAdvantaged",
    "PairedRuns",
    "Verdict",
    "VerdictKind",
    "collect_evidence",
    "judge",
    "left_out_reason",
]

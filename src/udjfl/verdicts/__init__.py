"""Verdicts: did a method deliver the theory that it serves, for whom, and at what price?

`evidence` compares a method with FedAvg seed by seed; `judge` decides, and `sentences` says it.
`joining` compares each client with itself alone.
"""

from udjfl.verdicts.evidence import MARGIN, Evidence, LeastAdvantaged, PairedRuns, collect_evidence
from udjfl.verdicts.joining import Joining, compare_with_alone
from udjfl.verdicts.judge import KINDS, Verdict, VerdictKind, judge, left_out_reason

__all__ = [
    "KINDS",
    "MARGIN",
    "Evidence",
    "Joining",
    "LeastAdvantaged",
    "PairedRuns",
    "Verdict",
    "VerdictKind",
    "collect_evidence",
    "compare_with_alone",
    "judge",
    "left_out_reason",
]

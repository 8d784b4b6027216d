"""Verdicts: did a method deliver the theory that it serves, for whom, and at what price?

`changes` compares a method with FedAvg seed by seed, `promises` with what clients were promised,
`joining` each client with itself alone; `evidence` collects what a theory looks at, `judge`
decides, and `sentences` says it.
"""

from udjfl.verdicts.changes import PairedRuns
from udjfl.verdicts.evidence import MARGIN, Evidence, LeastAdvantaged, collect_evidence
from udjfl.verdicts.joining import Joining, compare_with_alone
from udjfl.verdicts.judge import KINDS, Verdict, VerdictKind, judge, left_out_reason
from udjfl.verdicts.promises import Promise

__all__ = [
    "KINDS",
    "MARGIN",
    "Evidence",
    "Joining",
    "LeastAdvantaged",
    "PairedRuns",
    "Promise",
    "Verdict",
    "VerdictKind",
    "collect_evidence",
    "compare_with_alone",
    "judge",
    "left_out_reason",
]

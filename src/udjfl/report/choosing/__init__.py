"""A guide from a federation's situation to a theory, a budget, and the commands that try them.

`questions` asks, `advice` answers, `theories` and `cautions` have what is said of each theory.
`view` shows advice on a terminal, `markdown` is the page docs/choosing.md, and `guide_document`
returns everything as plain values. The measured numbers come from the studies of
experiments/JUSTICE.md; `make docs` copies them.
"""

from udjfl.report.choosing.advice import Advice, Step, advise
from udjfl.report.choosing.cautions import CAUTIONS, Caution
from udjfl.report.choosing.document import guide_document
from udjfl.report.choosing.measured import Measurement, read_measurements
from udjfl.report.choosing.questions import QUESTIONS, Answers, Choice, Question, read_answers
from udjfl.report.choosing.theories import THEORIES, Theory

__all__ = [
    "CAUTIONS",
    "QUESTIONS",
    "THEORIES",
    "Advice",
    "Answers",
    "Caution",
    "Choice",
    "Measurement",
    "Question",
    "Step",
    "Theory",
    "advise",
    "guide_document",
    "read_answers",
    "read_measurements",
]

"""A client's aleatoric uncertainty: a property of its data, measured once before training, in nats.

It says how ambiguous the client's labels are given the features: the label entropy H(y|x). Kinds:

    crossfit     models that have, and have not, seen an example: how surprised they are by its
                 label (`crossfit`)
    paper        how unsure a model is of the examples it trained on, after a fixed number of
                 epochs: the paper's; confidence and ensemble are like it (`alone`)
"""

from udjfl.uncertainty.alone import decompose, entropies, entropy, train_alone
from udjfl.uncertainty.crossfit import CrossFit, SeededClients, cross_fit
from udjfl.uncertainty.measure import measure, measure_many
from udjfl.uncertainty.values import (
    INDISTINCT,
    LEARNED_NOTHING,
    ONE_CLASS,
    SMALLEST,
    ClientEvidence,
    Uncertainty,
    largest_uncertainty,
    without_nan,
)

__all__ = [
    "INDISTINCT",
    "LEARNED_NOTHING",
    "ONE_CLASS",
    "SMALLEST",
    "ClientEvidence",
    "CrossFit",
    "SeededClients",
    "Uncertainty",
    "cross_fit",
    "decompose",
    "entropies",
    "entropy",
    "largest_uncertainty",
    "measure",
    "measure_many",
    "train_alone",
    "without_nan",
]

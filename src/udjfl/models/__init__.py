"""Models, and the conversion between a model and one flat vector of its trainable numbers."""

from udjfl.models.inputs import takes_indices, to_inputs, write_inputs
from udjfl.models.networks import (
    MODELS,
    Mixture,
    ModelChoice,
    ShiftedLogits,
    WeightNormLinear,
    build,
    check_fit,
    check_model,
    cnn,
    describe,
    logistic,
    mlp,
    normalised,
    register_model,
)
from udjfl.models.vectors import (
    buffers_from_vector,
    buffers_to_vector,
    from_vector,
    to_vector,
    trainable,
)

__all__ = [
    "MODELS",
    "Mixture",
    "ModelChoice",
    "ShiftedLogits",
    "WeightNormLinear",
    "buffers_from_vector",
    "buffers_to_vector",
    "build",
    "check_fit",
    "check_model",
    "cnn",
    "describe",
    "from_vector",
    "logistic",
    "mlp",
    "normalised",
    "register_model",
    "takes_indices",
    "to_inputs",
    "to_vector",
    "trainable",
    "write_inputs",
]

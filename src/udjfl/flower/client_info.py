"""A client's introduction: what it says of its data and its model before the first round."""

import math
from dataclasses import dataclass

from udjfl.errors import ReportError
from udjfl.flower.messages import NUMBERS, Reply
from udjfl.training.inputs import STORED_TYPES

# The server builds a model of what a client says of its data: so much fits into memory.
MOST_AXES, MOST_FEATURES, MOST_CLASSES = 8, 2**28, 2**20


@dataclass(frozen=True)
class ClientInfo:
    """A client's introduction: everything that all clients have to agree on, and its size."""

    client: str
    input_shape: tuple[int, ...]
    n_classes: int
    has_groups: bool
    model: str
    size: float | None
    input_type: str = "float32"

    @staticmethod
    def of(reply: Reply) -> "ClientInfo":
        """Read an introduction; raises KeyError, TypeError or ValueError if it is incomplete."""
        values = reply.values
        shape, n_classes = tuple(values["input-shape"])[: MOST_AXES + 1], int(values["n-classes"])
        shape = tuple(int(size) for size in shape)
        is_possible = len(shape) <= MOST_AXES and min(shape, default=0) >= 0
        if not is_possible or math.prod(shape) > MOST_FEATURES:
            raise ValueError(f"an example of shape {list(shape)}")
        if not 0 <= n_classes <= MOST_CLASSES:
            raise ValueError(f"{n_classes} classes")
        kind = str(values.get("input-type", "float32"))
        if kind not in STORED_TYPES:
            raise ValueError(f"features of type {kind[:20]}")
        return ClientInfo(
            reply.id,
            shape,
            n_classes,
            bool(values["has-groups"]),
            str(values["model"]),
            reply.numbers.get(NUMBERS["sizes"]),
            kind,
        )

    def check_agreement(self, before: "ClientInfo", expected: "ClientInfo") -> None:
        """Raise an error for a client that has changed, or whose data or model do not fit."""
        # Each field as it is, as it has to be, and the problem if these differ.
        fields = {
            "sizes": (
                self.size,
                before.size,
                f"was {before.size} and is now {self.size}; its data must not change during a run",
            ),
            "input_shape": (
                self.input_shape,
                expected.input_shape,
                f"is {list(self.input_shape)}, elsewhere {list(expected.input_shape)}; bring "
                "features to one shape",
            ),
            "input_type": (
                self.input_type,
                expected.input_type,
                f"is {self.input_type}, elsewhere {expected.input_type}; store features in one "
                "type",
            ),
            "n_classes": (
                self.n_classes,
                expected.n_classes,
                f"is {self.n_classes}, elsewhere {expected.n_classes}; give the number of classes "
                "in the whole federation (0: a regression)",
            ),
            "sensitive attribute": (
                self.has_groups,
                expected.has_groups,
                "has to be there for every client, or for none",
            ),
            "model": (
                self.model,
                expected.model,
                "differs from the server's; give client_app and server_app the same model",
            ),
        }
        for field, (value, required, problem) in fields.items():
            if value != required:
                raise ReportError(self.client, field, problem)

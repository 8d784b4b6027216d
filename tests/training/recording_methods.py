"""Methods that record the reports they get, with slots that a test fills."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

import udjfl
from udjfl.methods import weighted_sum
from udjfl.models import to_vector


class Plain(udjfl.Method):
    """The mean of the updates; records the reports it gets, in `seen`."""

    name: ClassVar[str] = "plain"
    title: ClassVar[str] = "Plain"
    paper: ClassVar[str] = "none"
    grade: ClassVar[Any] = "verified"

    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        seen.append(reports)
        return (
            state,
            weighted_sum(torch.full((len(reports),), 1 / len(reports)), reports.deltas),
            {},
        )


seen: list[udjfl.Reports] = []


def make_method(kind: type[udjfl.Method], **attributes: Any) -> udjfl.Method:
    """Make a method of a subclass with these slots."""
    return udjfl.parameters(type(kind.__name__, (kind,), attributes))()


def model_vector(result: udjfl.Result) -> Tensor:
    return to_vector(result.model)

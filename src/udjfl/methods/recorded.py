"""Methods of other packages as files describe them: they can be shown, not run.

Code that a file names is not imported to show its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from udjfl.methods.base import Diagnostics, Method, Reports, State


class RecordedMethod(Method):
    """A method as a result describes it."""

    paper = ""

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        raise NotImplementedError("it is not imported")

    @property
    def changed(self) -> dict[str, Any]:
        """Nothing: the label, which is its title here, has the parameters."""
        return {}


def record_method(
    name: str, label: str, theories: Sequence[str], grade: str, params: Mapping[str, Any]
) -> Method:
    """Return a method with this label that is not the one it stands for."""
    declared = {
        "name": name,
        "title": label,
        "theories": tuple(theories),
        "grade": grade,
        "params": dict(params),
    }
    method: Method = type("RecordedMethod", (RecordedMethod,), declared)()
    return method

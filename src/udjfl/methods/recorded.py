"""Methods of other packages as files of a run describe them: they can be shown, not run.

Building a method of the form `package.module:Name` imports code. A folder of somebody else's may
name any, so what only shows a folder builds its methods here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from udjfl._spec import names_code
from udjfl.methods.base import Diagnostics, Method, Reports, State
from udjfl.methods.registry import method as build_method


class _RecordedMethod(Method):
    """A method that was not imported."""

    paper = ""

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        raise NotImplementedError("it is not imported")

    @property
    def changed(self) -> dict[str, Any]:
        return {}  # the label, which is its title here, has them


def build_recorded(
    spec: str,
    params: Mapping[str, Any],
    *,
    label: object,
    name: object = "unknown",
    theories: Sequence[object] = (),
    grade: object = "",
) -> Method:
    """Build a method that is known here by its name, without importing code that is named.

    Of others the arguments are all there is to know.
    """
    if not names_code(spec):
        return build_method(spec, **params)
    declared = {
        "name": str(name),
        "title": str(label),
        "theories": tuple(map(str, theories)),
        "grade": str(grade),
        "params": dict(params),
    }
    recorded: Method = type("RecordedMethod", (_RecordedMethod,), declared)()
    return recorded

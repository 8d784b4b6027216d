"""`collect`: builds `Reports` from the usable ones among the replies of a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from udjfl.errors import ReportError
from udjfl.methods.reports import NUMBER_FIELDS, Reports, find_errors


def collect(
    ids: Sequence[str],
    deltas: Tensor,
    columns: Mapping[str, Tensor],
    *,
    all_ids: Sequence[str],
    round: int,
    lr: float,
    momentum: float,
    model: Tensor | None = None,
    rejected: Mapping[int, ReportError] | None = None,
    is_regression: bool = False,
) -> tuple[Reports | None, list[int], dict[str, ReportError]]:
    """Build `Reports` from the usable rows; return it, those rows, and the error of each client.

    Row i of `deltas` and of each column is a reply of client `ids[i]`; `all_ids` are the clients
    of the federation. Rows in `rejected` are not used. The first usable row of a client counts;
    it is an error to reply twice. Without a usable row there are no reports, but None. The rows
    are in the order of the reports.
    """
    indices = {name: index for index, name in enumerate(all_ids)}
    bad = dict(rejected or {})
    for row, name in enumerate(ids):
        if name not in indices:
            problem = "does not belong to this federation"
            bad[row] = ReportError(name, "id", problem, round)

    def usable_rows() -> list[int]:
        first: dict[str, int] = {}
        for row, name in enumerate(ids):
            if row not in bad:
                first.setdefault(name, row)
        return sorted(first.values(), key=lambda row: indices[ids[row]])

    def build(rows: list[int]) -> Reports | None:
        if not rows:
            return None
        everything = rows == list(range(len(deltas)))  # then no copy is made
        pick = {k: v if everything else v[rows] for k, v in columns.items()}
        return Reports(
            ids=[ids[row] for row in rows],
            deltas=deltas if everything else deltas[rows],
            client_indices=torch.tensor([indices[ids[row]] for row in rows]),
            extras={name: value for name, value in pick.items() if name not in NUMBER_FIELDS},
            lr=lr,
            momentum=momentum,
            model=model,
            round=round,
            is_regression=is_regression,
            **{name: value for name, value in pick.items() if name in NUMBER_FIELDS},
        )

    try:
        rows = usable_rows()
        reports = build(rows)
    except ReportError:
        bad = {**find_errors(ids, deltas, columns, round, is_regression), **bad}
        rows = usable_rows()
        reports = build(rows)
    errors = {ids[row]: bad[row] for row in sorted(bad)}
    replies = Counter(name for row, name in enumerate(ids) if row not in bad)
    for name, count in replies.items():
        if count > 1:
            problem = "reported twice in one round; the first report was kept"
            errors[name] = ReportError(name, "id", problem, round)
    return reports, rows, errors

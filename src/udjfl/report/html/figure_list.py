"""All figures of a report, in its order: for the page, for files and for whoever lists them."""

from __future__ import annotations

from dataclasses import dataclass

from udjfl.report.html.change_charts import change_figures
from udjfl.report.html.equality_charts import desert_figures, lorenz_figures
from udjfl.report.html.figure import WIDTH, Figure
from udjfl.report.html.frontier_charts import frontier_figures
from udjfl.report.html.material import Material
from udjfl.report.html.method_charts import tradeoff_figures
from udjfl.report.html.round_charts import round_figures
from udjfl.report.html.score_charts import score_figures
from udjfl.report.html.tuning_charts import tuning_figures
from udjfl.report.html.weight_charts import weight_figures


@dataclass(frozen=True)
class FigureList:
    """The figures of each section; `rounds` has those of each method."""

    changes: list[Figure]
    scores: list[Figure]
    lorenz: list[Figure]
    desert: list[Figure]
    tradeoffs: list[Figure]
    tuning: list[Figure]
    frontier: list[Figure]
    rounds: list[list[Figure]]
    weights: list[Figure]

    def flatten(self) -> list[Figure]:
        """Return all figures, in the order of the report."""
        sections = (
            *(self.changes, self.scores, self.lorenz, self.desert, self.tradeoffs),
            *(self.tuning, self.frontier, *self.rounds, self.weights),
        )
        return [figure for section in sections for figure in section]


def make_figures(
    material: Material, width: int = WIDTH, most_of_rounds: int | None = None
) -> FigureList:
    """Draw every figure that the material allows; over rounds at most so many of each method."""
    sizes = {c: f.train_size for c, f in material.clients.items() if f.train_size}
    return FigureList(
        changes=change_figures(material, width),
        scores=score_figures(material, width),
        lorenz=lorenz_figures(material, width),
        desert=desert_figures(material, width),
        tradeoffs=tradeoff_figures(material, width),
        tuning=tuning_figures(material.tuning, width) if material.tuning else [],
        frontier=frontier_figures(material.frontier, width) if material.frontier else [],
        rounds=[
            round_figures(curves, index, width, most_of_rounds)
            for index, curves in enumerate(material.curves)
        ],
        weights=weight_figures(material.curves, sizes, width),
    )

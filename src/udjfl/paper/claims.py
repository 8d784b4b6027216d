"""The paper's statements about its tables (Carey & Wu, FAccT 2025), as orderings to test.

They are in our words, sentence by sentence. "Highest" and "second" are among the paper's own rows
of a section, whatever else was run. `udjfl.paper.verdicts` turns orderings into a verdict.
"""

from itertools import pairwise

from udjfl.paper.published import TITLE, published_results
from udjfl.paper.search_claims import SEARCH_CLAIMS
from udjfl.paper.tables import Table
from udjfl.paper.verdicts import Claim, Order, Point, Verdict, judge_claims

UTILITARIAN = "UDJ-FL: beta=0, gamma=-1"
UTILITARIAN_TENTH = "UDJ-FL: beta=0.1, gamma=-1"
EGALITARIAN = "UDJ-FL: beta=1, gamma=1"
RAWLS = "UDJ-FL: beta=5, gamma=1"
DESERT = "UDJ-FL: beta=per-client, gamma=0"
DESERT_WEIGHTED = "UDJ-FL: beta=per-client, gamma=-1"
RESULTS, SETTING, APPENDIX = "Section 5.2", "Section 5.1", "Appendix A"


def judge_table(table: Table) -> list[Verdict]:
    """Test what the paper says of a table on our numbers.

    Claims about the other data set of the paper are left out.
    """
    return judge_claims(CLAIMS[table.kind], table)


def _section(theory: str, *excluded: str) -> list[str]:
    """Return the paper's rows of a theory, except those excluded."""
    return [
        label
        for section, label in published_results(next(iter(TITLE)))
        if section == theory and label not in excluded
    ]


def _above(metric: str, row: str, *others: str | None) -> tuple[Order, ...]:
    return tuple(Order(Point(row, metric), Point(other, metric)) for other in others)


def _below(metric: str, row: str, *others: str | None) -> tuple[Order, ...]:
    return tuple(Order(Point(other, metric), Point(row, metric)) for other in others)


def _highest_global(data: str, row: str) -> Claim:
    return Claim(
        id=f"utilitarian-highest-{data}",
        theory="utilitarian",
        where=RESULTS,
        says=f"On {TITLE[data]} UDJ-FL with beta near 0, gamma = -1 has the highest global "
        "accuracy of utilitarian methods.",
        test=f"The row the paper marks best there ({row}) is above every utilitarian row other "
        "than the two with gamma = -1.",
        orders=_above(
            "global_accuracy", row, *_section("utilitarian", UTILITARIAN, UTILITARIAN_TENTH)
        ),
        data=data,
    )


_UTILITARIAN_CLAIMS = (
    _highest_global("dirty-mnist", UTILITARIAN_TENTH),
    _highest_global("cure-tsr", UTILITARIAN),
    Claim(
        id="utilitarian-tenth-above-zero",
        theory="utilitarian",
        where=RESULTS,
        says="On Dirty-MNIST, with gamma = -1, beta = 0.1 has a higher global accuracy than "
        "beta = 0.",
        test="Global accuracy of the one above that of the other.",
        orders=_above("global_accuracy", UTILITARIAN_TENTH, UTILITARIAN),
        data="dirty-mnist",
    ),
    Claim(
        id="utilitarian-tenth-attends",
        theory="utilitarian",
        where=RESULTS,
        says="The reason given for that: beta = 0 neglects the clients of high uncertainty, and "
        "beta = 0.1 learns from them.",
        test="The most uncertain client has a higher accuracy with beta = 0.1 than with beta = 0.",
        orders=_above("accuracy_most_uncertain", UTILITARIAN_TENTH, UTILITARIAN),
        data="dirty-mnist",
    ),
    Claim(
        id="utilitarian-weights-matter",
        theory="utilitarian",
        where=SETTING,
        says="Weighting by uncertainty matters: gamma = -1 serves the utilitarian aim better than "
        "gamma = 0.",
        test="Higher global accuracy with gamma = -1 than with gamma = 0, at beta = 0 and at "
        "beta = 0.1.",
        orders=(
            *_above("global_accuracy", UTILITARIAN, "UDJ-FL: beta=0, gamma=0"),
            *_above("global_accuracy", UTILITARIAN_TENTH, "UDJ-FL: beta=0.1, gamma=0"),
        ),
    ),
)

_EGALITARIAN_CLAIMS = (
    Claim(
        id="egalitarian-lowest-std",
        theory="egalitarian",
        where=RESULTS,
        says="UDJ-FL with beta = 1 and gamma = 1 has the lowest STD of the egalitarian methods, on "
        "both data sets.",
        test="Its STD is below that of every other egalitarian row.",
        orders=_below("std", EGALITARIAN, *_section("egalitarian", EGALITARIAN)),
    ),
    Claim(
        id="egalitarian-below-rawls",
        theory="egalitarian",
        where=f"{RESULTS} (announced in 4.5)",
        says="Methods for Rawls' principle have a higher STD than the egalitarian UDJ-FL: helping "
        "the worst off is not parity.",
        test="The STD of UDJ-FL with beta = 1 and gamma = 1 is below that of every Rawls row.",
        orders=_below("std", EGALITARIAN, *_section("rawls")),
    ),
    Claim(
        id="egalitarian-weights-matter",
        theory="egalitarian",
        where=SETTING,
        says="Weighting by uncertainty matters: gamma = 1 gives more equal accuracies than "
        "gamma = 0.",
        test="Lower STD with gamma = 1 than with gamma = 0, at beta = 1.",
        orders=_below("std", EGALITARIAN, "UDJ-FL: beta=1, gamma=0"),
    ),
)

_RAWLS_CLAIMS = (
    Claim(
        id="rawls-second-dirty-mnist",
        theory="rawls",
        where=RESULTS,
        says="On Dirty-MNIST UDJ-FL with beta = 5, gamma = 1 has the second highest Psi of the "
        "methods for Rawls' principle.",
        test="Its Psi is above that of every Rawls row other than AFL, which the paper marks best; "
        "to be above AFL, too, does not refute it.",
        orders=_above("psi", RAWLS, *_section("rawls", RAWLS, "AFL")),
        data="dirty-mnist",
    ),
    Claim(
        id="rawls-afl-first-dirty-mnist",
        theory="rawls",
        where=RESULTS,
        says="On Dirty-MNIST AFL has the highest Psi of the methods for Rawls' principle.",
        test="AFL's Psi is above that of every other Rawls row.",
        orders=_above("psi", "AFL", *_section("rawls", "AFL")),
        data="dirty-mnist",
    ),
    Claim(
        id="rawls-highest-cure-tsr",
        theory="rawls",
        where=RESULTS,
        says="On CURE-TSR UDJ-FL with beta = 5, gamma = 1 has the highest Psi of the methods for "
        "Rawls' principle.",
        test="Its Psi is above that of every other Rawls row.",
        orders=_above("psi", RAWLS, *_section("rawls", RAWLS)),
        data="cure-tsr",
    ),
    Claim(
        id="rawls-benefits-most",
        theory="rawls",
        where=RESULTS,
        says="UDJ-FL for Rawls' principle benefits the least advantaged client more than the "
        "others, on both data sets.",
        test="Psi is above 0.",
        orders=_above("psi", RAWLS, None),
    ),
    Claim(
        id="rawls-benefits-at-all",
        theory="rawls",
        where=RESULTS,
        says="Read literally, the same sentence says that the least advantaged client benefits. "
        "(Psi is also positive where it loses less than the others do.)",
        test="The most uncertain client has a higher accuracy than under FedAvg.",
        orders=_above("accuracy_most_uncertain", RAWLS, "FedAvg"),
    ),
    Claim(
        id="rawls-weights-matter",
        theory="rawls",
        where=SETTING,
        says="Weighting by uncertainty matters: gamma = 1 serves the least advantaged better than "
        "gamma = 0.",
        test="Higher Psi with gamma = 1 than with gamma = 0, at beta = 5.",
        orders=_above("psi", RAWLS, "UDJ-FL: beta=5, gamma=0"),
    ),
)

_DESERT_CLAIMS = (
    Claim(
        id="desert-first-and-second",
        theory="desert",
        where=RESULTS,
        says="UDJ-FL has the most and second most negative r of the desert methods, on both data "
        "sets: gamma = 0, then -1.",
        test="r with gamma = 0 is below that with gamma = -1 and below CFFL's; r with gamma = -1 "
        "is below CFFL's.",
        orders=(
            *_below("pearson_r", DESERT, DESERT_WEIGHTED, "CFFL"),
            *_below("pearson_r", DESERT_WEIGHTED, "CFFL"),
        ),
    ),
    Claim(
        id="desert-achieved",
        theory="desert",
        where=RESULTS,
        says="UDJ-FL for desert gives accuracies that fall as uncertainty rises.",
        test="r with gamma = 0 is below 0.",
        orders=_below("pearson_r", DESERT, None),
    ),
    Claim(
        id="desert-weights-harm",
        theory="desert",
        where=SETTING,
        says="For desert, weighting by uncertainty as well takes accuracies out of line with "
        "uncertainties, hence gamma = 0.",
        test="r with gamma = 0 is below r with gamma = -1.",
        orders=_below("pearson_r", DESERT, DESERT_WEIGHTED),
    ),
)

RESULTS_CLAIMS = (*_UTILITARIAN_CLAIMS, *_EGALITARIAN_CLAIMS, *_RAWLS_CLAIMS, *_DESERT_CLAIMS)

_CLIENTS = tuple(f"client {number}" for number in range(1, 6))


def _rising(metric: str, rows: tuple[str, ...]) -> tuple[Order, ...]:
    return tuple(Order(Point(later, metric), Point(row, metric)) for row, later in pairwise(rows))


SOLO_CLAIMS = (
    Claim(
        id="solo-uncertainty-rises",
        theory="none",
        where=SETTING,
        says="The share of ambiguous examples sets a client's uncertainty.",
        test="From client 1 to client 5 each has a higher uncertainty than the one before.",
        orders=_rising("uncertainty", _CLIENTS),
    ),
    Claim(
        id="solo-local-accuracy-falls",
        theory="none",
        where="the table",
        says="The more uncertain a client's data, the worse a model of its own does on them.",
        test="From client 1 to client 5 each has a lower accuracy on its own test data than the "
        "one before.",
        orders=_rising("local_accuracy", _CLIENTS[::-1]),
    ),
    Claim(
        id="solo-train-loss-rises",
        theory="none",
        where="Appendix C",
        says="The more uncertain a client's data, the higher its training loss, because the lowest "
        "that any model could reach is higher.",
        test="From client 1 to client 5 each has a higher loss on its own train data than the one "
        "before, after training alone.",
        orders=_rising("train_loss", _CLIENTS),
    ),
)


def _clients(setting: str, *numbers: int) -> tuple[Point, ...]:
    return tuple(Point(setting, f"client_{number}") for number in numbers)


DISTRIBUTION_CLAIMS = (
    Claim(
        id="even-is-stable",
        theory="none",
        where=APPENDIX,
        says="With mostly clean data everywhere the clients have much the same accuracy.",
        test="Client STD is lower in the even setting than in both others: our yardstick, as the "
        "paper has none.",
        orders=_below("std", "even", "clean", "dirty"),
    ),
    Claim(
        id="even-global-below-clients",
        theory="none",
        where=f"{APPENDIX}, footnote",
        says="In the even setting the global model does worse on the clean test set than on any "
        "client's own data.",
        test="Every client's accuracy is above the global accuracy.",
        orders=tuple(
            Order(client, Point("even", "global_accuracy"))
            for client in _clients("even", 1, 2, 3, 4, 5)
        ),
    ),
    Claim(
        id="clean-client-ahead",
        theory="none",
        where=APPENDIX,
        says="In the clean setting the one large clean client does better than any of the four "
        "others.",
        test="Client 1 is above clients 2 to 5.",
        orders=tuple(Order(*_clients("clean", 1, other)) for other in (2, 3, 4, 5)),
    ),
    Claim(
        id="clean-global-above-even",
        theory="none",
        where=APPENDIX,
        says="In the clean setting the global model does better than in the even one, though there "
        "is more dirty data.",
        test="Global accuracy in the clean setting is above that in the even one.",
        orders=_above("global_accuracy", "clean", "even"),
    ),
    Claim(
        id="dirty-client-not-ahead",
        theory="none",
        where=APPENDIX,
        says="In the dirty setting the one large dirty client is not the best served.",
        test="At least one of clients 1 to 4 is above client 5.",
        orders=tuple(Order(*_clients("dirty", other, 5)) for other in (1, 2, 3, 4)),
        need="any",
    ),
    Claim(
        id="dirty-global-lowest",
        theory="none",
        where=APPENDIX,
        says="In the dirty setting the global model does worse than in both others.",
        test="Global accuracy in the dirty setting is below that in the even and in the clean one.",
        orders=_below("global_accuracy", "dirty", "even", "clean"),
    ),
)

CLAIMS = {
    "results": RESULTS_CLAIMS,
    "solo": SOLO_CLAIMS,
    "distributions": DISTRIBUTION_CLAIMS,
    "search": SEARCH_CLAIMS,
}
"""The claims about each kind of table."""

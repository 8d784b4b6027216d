"""The twenty rows of the paper's main table: our methods with the parameters the paper chose."""

from dataclasses import dataclass, replace

from udjfl.methods import UDJ, FedAvg, Method, method
from udjfl.methods.udj import Theory as UdjTheory
from udjfl.paper.profiles import Profile
from udjfl.paper.tables import Theory


@dataclass(frozen=True)
class PaperRow:
    """One row: its section, its name in the paper, its method, and a note for readers."""

    theory: Theory
    label: str
    method: Method
    note: str | None = None


DIVIDES_BY_ZERO = (
    "the authors' code divides by zero here; run as the weighted average it stands for"
)
ONE_BETA = (
    "the authors' code has one beta for all clients and names none; "
    "run with the paper's beta of each client"
)
DISCARDED = "the authors' code solves the problem and then takes the plain average: this is FedAvg"
OWN_DATA = (
    "reputations on data of the server's own; the authors' code takes each client's test data"
)


def paper_rows(profile: Profile) -> list[PaperRow]:
    """Return all rows in the order of the paper's table, FedAvg first."""

    def udj(theory: UdjTheory, label: str, beta: float | None, gamma: float) -> PaperRow:
        step, note = profile.step, None
        if profile.step == "authors":
            if theory == "egalitarian" or (theory == "utilitarian" and beta == 0):  # exponent 1
                step, note = "normalised", DIVIDES_BY_ZERO
            elif theory == "desert":
                note = ONE_BETA
        rule = UDJ(theory=theory, beta=beta, gamma=gamma, step=step, cap=1)
        return PaperRow(theory, label, rule, note)

    lipschitz = "paper"  # 1/lr, in the paper and in the code alike
    mgda = PaperRow("egalitarian", "FedMGDA+", method("fedmgda", epsilon=0.5))
    if profile.discards_fedmgda:
        mgda = replace(mgda, method=FedAvg(weights="uniform"), note=DISCARDED)
    return [
        PaperRow("none", "FedAvg", FedAvg()),
        PaperRow("utilitarian", "PropFair: M=3", method("propfair", M=3)),
        PaperRow("utilitarian", "q-FedAvg: q=0", method("qffl", q=0, lipschitz=lipschitz)),
        PaperRow("utilitarian", "q-FedAvg: q=0.1", method("qffl", q=0.1, lipschitz=lipschitz)),
        udj("utilitarian", "UDJ-FL: beta=0, gamma=0", 0.0, 0.0),
        udj("utilitarian", "UDJ-FL: beta=0.1, gamma=0", 0.1, 0.0),
        udj("utilitarian", "UDJ-FL: beta=0, gamma=-1", 0.0, -1.0),
        udj("utilitarian", "UDJ-FL: beta=0.1, gamma=-1", 0.1, -1.0),
        PaperRow("egalitarian", "TERM", method("term", t=0.01)),
        mgda,
        udj("egalitarian", "UDJ-FL: beta=1, gamma=0", 1.0, 0.0),
        udj("egalitarian", "UDJ-FL: beta=1, gamma=1", 1.0, 1.0),
        PaperRow("rawls", "PropFair: M=2", method("propfair", M=2)),
        PaperRow("rawls", "AFL", method("afl")),
        PaperRow("rawls", "q-FedAvg: q=5", method("qffl", q=5, lipschitz=lipschitz)),
        udj("rawls", "UDJ-FL: beta=5, gamma=0", 5.0, 0.0),
        udj("rawls", "UDJ-FL: beta=5, gamma=1", 5.0, 1.0),
        PaperRow(
            "desert",
            "CFFL",
            method("cffl", alpha=2),
            OWN_DATA if profile.name == "authors" else None,
        ),
        udj("desert", "UDJ-FL: beta=per-client, gamma=-1", None, -1.0),
        udj("desert", "UDJ-FL: beta=per-client, gamma=0", None, 0.0),
    ]

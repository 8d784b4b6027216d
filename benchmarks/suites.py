"""What is measured: which contenders do which work, in how many rounds a repetition."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.work import Work

ENOUGH_REPETITIONS = 7
# With more rounds, small differences in the order of examples grow and say nothing about the work.
CHECKED_ROUNDS = 5


@dataclass(frozen=True)
class Entry:
    """A contender of a suite.

    peer    the name of the environment it runs in; None: this one
    source  another folder to import udjfl from
    """

    title: str
    module: str
    variant: str
    peer: str | None = None
    source: str | None = None


GEMM = Entry("GEMM limit", "gemm", "all cores")
PLAIN = Entry("plain loop", "loops", "plain")
LOADER = Entry("DataLoader + deepcopy loop", "loops", "dataloader")
SERIAL = Entry("udjfl serial", "udjfl_runs", "serial")
STACKED = Entry("udjfl stacked", "udjfl_runs", "stacked")
AUTO = Entry("udjfl", "udjfl_runs", "auto")
FLUKE = Entry("fluke", "peer_fluke", "fedavg", "fluke")
PEERS = (
    FLUKE,
    Entry("pfl-research", "peer_pfl", "fedavg", "pfl"),
    Entry("FedLab", "peer_fedlab", "fedavg", "fedlab"),
    Entry("flgo", "peer_flgo", "fedavg", "flgo"),
)
FLOWER = Entry("Flower simulation", "peer_flower", "federated evaluation", "flower")


@dataclass(frozen=True)
class Suite:
    """Contenders that do the same work in turns.

    ours         the contender that all others are compared with
    beside_busy  repeat everything while another process keeps one core busy
    """

    name: str
    title: str
    work: Work
    rounds: int
    entries: tuple[Entry, ...]
    ours: str
    beside_busy: bool = False

    @property
    def checked_rounds(self) -> int:
        return min(self.rounds, CHECKED_ROUNDS)


ROUND = Suite(
    "round",
    "The round: 5 clients x 4,800 examples",
    Work(),
    20,
    (GEMM, STACKED, SERIAL, PLAIN, LOADER, *PEERS),
    "udjfl stacked",
)
# Measured apart from the others: Ray, which it uses, keeps a part of the machine busy all the time.
FLOWER_ROUND = Suite(
    "flower", "The same round on Flower", Work(), 20, (STACKED, PLAIN, FLOWER), "udjfl stacked"
)
QUICK = replace(ROUND, entries=(GEMM, STACKED, SERIAL, PLAIN))
GRID = Suite(
    "grid",
    "A grid: 8 settings x 15 clients that share their data",
    Work(clients=15, settings=8),
    1,
    (
        GEMM,
        PLAIN,
        Entry("udjfl one by one", "udjfl_grid", "one by one"),
        Entry("udjfl together", "udjfl_grid", "together"),
    ),
    "udjfl together",
)
SMALL = {"train": 48, "test": 12}
MANY = Suite(
    "many",
    "500 clients x 48 examples",
    Work(clients=500, **SMALL),
    20,
    (GEMM, STACKED, PLAIN),
    "udjfl stacked",
)
FEW = Suite(
    "clients_50",
    "50 clients x 48 examples",
    Work(clients=50, **SMALL),
    100,
    (STACKED,),
    "udjfl stacked",
)
MORE = Suite(
    "clients_1000",
    "1,000 clients x 48 examples",
    Work(clients=1000, **SMALL),
    20,
    (STACKED,),
    "udjfl stacked",
)
CNN = Suite(
    "cnn",
    "A CNN: 5 clients x 960 images of 28 x 28",
    Work(train=960, test=240, model="cnn"),
    5,
    (GEMM, AUTO, PLAIN, FLUKE),
    "udjfl",
)
MODULE = Suite(
    "module",
    "Any module: GELU and dropout in the MLP",
    Work(model="gelu"),
    10,
    (GEMM, SERIAL, PLAIN),
    "udjfl serial",
)
BUSY = Suite(
    "busy",
    "Beside one busy process",
    Work(),
    20,
    (STACKED, SERIAL),
    "udjfl stacked",
    beside_busy=True,
)

FULL = (ROUND, FLOWER_ROUND, GRID, MANY, FEW, MORE, CNN, MODULE, BUSY)

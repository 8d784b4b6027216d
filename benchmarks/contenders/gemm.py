"""The machine's limit: the speed of large matrix products on all cores."""

from __future__ import annotations

import os
import time

import torch

from benchmarks.counting import Contender
from benchmarks.work import Work

SIZE, PRODUCTS = 2048, 8
SETUP = {
    "all cores": f"The fastest of {PRODUCTS} products of two {SIZE} x {SIZE} matrices of float32 "
    "in each repetition."
}


def start(work: Work, variant: str) -> Gemm:  # noqa: ARG001 - the limit does not depend on the work
    return Gemm()


class Gemm(Contender):
    """Its outcome is a rate, in floating-point operations per second."""

    def __init__(self) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.a, self.b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
        self.out = torch.empty(SIZE, SIZE)

    def run(self, rounds: int) -> dict[str, float]:
        seconds = []
        for _ in range(PRODUCTS):
            begin = time.perf_counter()
            torch.mm(self.a, self.b, out=self.out)
            seconds.append(time.perf_counter() - begin)
        return {"rate": 2 * SIZE**3 / min(seconds)}

    def check(self, rounds: int) -> dict[str, float]:
        return self.run(rounds)

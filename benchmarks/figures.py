"""Figures from measurements: medians, ratios, fractions of the limit, and whether everybody did the same work."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.work import Work, flops

Results = Mapping[str, Any]
GEMM, PLAIN = "GEMM limit", "plain loop"
# Batches come in different orders, so the models differ a little; without momentum or without shuffling the loss of the
# round is a quarter or more away.
LOSS_OFF, ACCURACY_OFF, TESTED_OFF = 0.06, 0.03, 0.02


def suite_of(results: Results, name: str) -> Mapping[str, Any] | None:
    return results["suites"].get(name)


def seconds(results: Results, suite: str, contender: str, key: str = "seconds") -> float | None:
    """Median seconds of a round, or None if it was not measured."""
    found = (suite_of(results, suite) or {"contenders": {}})["contenders"].get(contender, {})
    return median(found[key]) if found.get(key) and "failed" not in found else None


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def times_faster(results: Results, suite: str, other: str, ours: str) -> float | None:
    """How many times as fast as another contender: 2 is half its time."""
    return ratio(seconds(results, suite, other), seconds(results, suite, ours))


def rate(results: Results, suite: str) -> float | None:
    """Operations a second in large matrix products, in the very run of this suite."""
    found = (suite_of(results, suite) or {"contenders": {}})["contenders"].get(GEMM, {})
    return median(found["rates"]) if found.get("rates") else None


def limit_seconds(results: Results, suite: str) -> float | None:
    """The arithmetic of a round at that rate."""
    peak = rate(results, suite)
    return flops(Work(**results["suites"][suite]["work"])) / peak if peak else None


def fraction_of_limit(results: Results, suite: str, contender: str) -> float | None:
    return ratio(limit_seconds(results, suite), seconds(results, suite, contender))


def memory_mb(results: Results, suite: str, contender: str) -> float | None:
    found = (suite_of(results, suite) or {"contenders": {}})["contenders"].get(contender, {})
    return found["memory"] / 1e6 if "memory" in found else None


def per_client(results: Results, suite: str, contender: str) -> float | None:
    """Seconds of a round for each client."""
    whole = seconds(results, suite, contender)
    return None if whole is None else whole / results["suites"][suite]["work"]["clients"]


def slowdown_beside_busy(results: Results, contender: str) -> float | None:
    return ratio(
        seconds(results, "busy", contender, "busy_seconds"), seconds(results, "busy", contender)
    )


def light_start(results: Results) -> float | None:
    """How many times faster `udjfl --help` is than `import torch`."""
    found = results.get("startup") or {}
    if not found:
        return None
    return median(found["import torch"]) / median(found["udjfl --help"])


def out_of_line(
    check: Mapping[str, float], expected: Mapping[str, int], reference: Mapping[str, float] | None
) -> list[str]:
    """What a contender did that is not everybody's work; empty if nothing. The plain loop is the reference."""
    if "rate" in check:
        return []
    wrong = [
        f"{check[name]:.0f} {name}, not {expected[name]}"
        for name in ("steps", "examples")
        if check[name] != expected[name]
    ]
    if not 0 <= check["tested"] / expected["tested"] - 1 <= TESTED_OFF:
        wrong.append(f"{check['tested']:.0f} tested, not {expected['tested']}")
    if reference and abs(check["loss"] / reference["loss"] - 1) > LOSS_OFF:
        wrong.append(f"loss {check['loss']:.3f}, not about {reference['loss']:.3f}")
    if reference and abs(check["accuracy"] - reference["accuracy"]) > ACCURACY_OFF:
        wrong.append(f"accuracy {check['accuracy']:.1%}, not about {reference['accuracy']:.1%}")
    return wrong


def wrong_work(suite: Mapping[str, Any], contender: str) -> list[str]:
    """`out_of_line` for a contender of a measured suite."""
    check = suite["contenders"][contender].get("check")
    if check is None:
        return []
    reference = suite["contenders"].get(PLAIN, {}).get("check")
    return out_of_line(check, Work(**suite["work"]).expected(suite["checked_rounds"]), reference)

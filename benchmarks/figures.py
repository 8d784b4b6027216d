"""Figures from measurements: medians, ratios, fractions of the limit, and checks of the work."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.work import Work, flops

Results = Mapping[str, Any]
GEMM, PLAIN = "GEMM limit", "plain loop"
# Batches come in different orders, so the models differ a little; without momentum or without
# shuffling the loss of the round differs by a quarter or more.
LOSS_OFF, ACCURACY_OFF, TESTED_OFF = 0.06, 0.03, 0.02


def _record(results: Results, suite: str, contender: str) -> Mapping[str, Any]:
    """Return the measurements of a contender; empty if there are none."""
    contenders = results["suites"].get(suite, {}).get("contenders", {})
    record: Mapping[str, Any] = contenders.get(contender, {})
    return record


def seconds(results: Results, suite: str, contender: str, key: str = "seconds") -> float | None:
    """Return the median seconds of a round, or None if it was not measured."""
    record = _record(results, suite, contender)
    return median(record[key]) if record.get(key) and "failed" not in record else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def times_faster(results: Results, suite: str, other: str, ours: str) -> float | None:
    """Return how many times as fast ours is as another contender: 2 is half its time."""
    return ratio(seconds(results, suite, other), seconds(results, suite, ours))


def rate(results: Results, suite: str) -> float | None:
    """Return operations per second in large matrix products, measured with this suite."""
    record = _record(results, suite, GEMM)
    return median(record["rates"]) if record.get("rates") else None


def limit_seconds(results: Results, suite: str) -> float | None:
    """Return the time of a round's arithmetic at that rate."""
    peak = rate(results, suite)
    return flops(Work(**results["suites"][suite]["work"])) / peak if peak else None


def fraction_of_limit(results: Results, suite: str, contender: str) -> float | None:
    return ratio(limit_seconds(results, suite), seconds(results, suite, contender))


def memory_mb(results: Results, suite: str, contender: str) -> float | None:
    record = _record(results, suite, contender)
    return record["memory"] / 1e6 if "memory" in record else None


def per_client(results: Results, suite: str, contender: str) -> float | None:
    """Return the seconds of a round per client."""
    whole = seconds(results, suite, contender)
    return None if whole is None else whole / results["suites"][suite]["work"]["clients"]


def slowdown_beside_busy(results: Results, contender: str) -> float | None:
    return ratio(
        seconds(results, "busy", contender, "busy_seconds"), seconds(results, "busy", contender)
    )


def start_up_ratio(results: Results) -> float | None:
    """Return how many times as fast `udjfl --help` is as `import torch`."""
    startup = results.get("startup")
    if not startup:
        return None
    return median(startup["import torch"]) / median(startup["udjfl --help"])


def work_differences(
    check: Mapping[str, float], expected: Mapping[str, int], reference: Mapping[str, float] | None
) -> list[str]:
    """Return how a contender's work differs from that of the plain loop, the reference."""
    if "rate" in check:
        return []
    differences = [
        f"{check[name]:.0f} {name}, not {expected[name]}"
        for name in ("steps", "examples")
        if check[name] != expected[name]
    ]
    if not 0 <= check["tested"] / expected["tested"] - 1 <= TESTED_OFF:
        differences.append(f"{check['tested']:.0f} tested, not {expected['tested']}")
    if reference and abs(check["loss"] / reference["loss"] - 1) > LOSS_OFF:
        differences.append(f"loss {check['loss']:.3f}, not about {reference['loss']:.3f}")
    if reference and abs(check["accuracy"] - reference["accuracy"]) > ACCURACY_OFF:
        differences.append(
            f"accuracy {check['accuracy']:.1%}, not about {reference['accuracy']:.1%}"
        )
    return differences


def wrong_work(suite: Mapping[str, Any], contender: str) -> list[str]:
    """Return `work_differences` of a contender of a measured suite."""
    check = suite["contenders"][contender].get("check")
    if check is None:
        return []
    reference = suite["contenders"].get(PLAIN, {}).get("check")
    return work_differences(
        check, Work(**suite["work"]).expected(suite["checked_rounds"]), reference
    )

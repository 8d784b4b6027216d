"""Calls in threads: in order, with their errors, and never nested."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time

import pytest

from udjfl._threads import available_cores, run_in_threads, thread_limit


def sleep_and_identify() -> int:
    time.sleep(0.01)
    return threading.get_ident()


def thread_ids() -> set[int]:
    return set(run_in_threads([sleep_and_identify] * 8))


def test_results_keep_their_order_and_errors_are_raised() -> None:
    def fail() -> int:
        raise ValueError("no")

    with thread_limit(3):
        assert run_in_threads([lambda i=i: i * i for i in range(20)]) == [i * i for i in range(20)]
        with pytest.raises(ValueError, match="no"):
            run_in_threads([lambda: 1, fail, lambda: 2])
    assert available_cores() >= 1


def test_calls_run_here_unless_a_limit_allows_threads() -> None:
    here = {threading.get_ident()}
    assert thread_ids() == here
    with thread_limit(2):
        assert threading.get_ident() not in thread_ids()
        with thread_limit(1):
            assert thread_ids() == here
    assert thread_ids() == here


def test_calls_within_calls_and_in_other_threads_are_serial() -> None:
    seen: list[set[int]] = []
    with thread_limit(2):
        nested = run_in_threads([thread_ids, thread_ids])
        other = threading.Thread(target=lambda: seen.append(thread_ids()))
        other.start()
        other.join()
    assert [len(ids) for ids in (*nested, *seen)] == [1, 1, 1]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    with thread_limit(2):
        thread_ids()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert len(pool.apply_async(thread_ids).get(timeout=60)) >= 1

"""Turning conflicting updates: by hand, against a slow version, and at its edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES

from udjfl.methods._conflicts import LARGEST_TARGET, LONGEST, alignments, cosines, turn


def table(rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def turned_vectors(g: torch.Tensor, order: list[int], **options: Any) -> torch.Tensor:
    return turn(g @ g.T, torch.tensor(order), **options) @ g


def alignments_with(step: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return alignments(g @ g.T, g @ step, step.norm())


def slowly(
    g: torch.Tensor, order: list[int], targets: torch.Tensor, kept: list[bool]
) -> torch.Tensor:
    """Each update by itself, on the vectors, with the formula as it is printed."""
    done = []
    for k, start in enumerate(g):
        h = start.clone()
        for j in order:
            if j == k or kept[k] or not g[j].norm() or not h.norm():
                continue
            s, aim = float(h @ g[j] / (h.norm() * g[j].norm())), float(targets[k, j])
            if s < aim:
                root, root_aim = math.sqrt(max(1 - s * s, 0)), math.sqrt(1 - aim * aim)
                h = h + g[j] * h.norm() * (aim * root - s * root_aim) / (g[j].norm() * root_aim)
        done.append(h)
    return torch.stack(done)


def random_updates(seed: int, m: int = 5, d: int = 7) -> torch.Tensor:
    return torch.randn(m, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_projection_by_hand():
    # g_1 = (2, 0), g_2 = (-1, 1): dot -2, |g_1|^2 = 4, |g_2|^2 = 2.
    # h_1 = (2, 0) + 2/2 (-1, 1) = (1, 1);  h_2 = (-1, 1) + 2/4 (2, 0) = (0, 1).
    coefficients = turn(table([[4.0, -2.0], [-2.0, 2.0]]), torch.tensor([0, 1]))
    assert coefficients.tolist() == [[1.0, 1.0], [0.5, 1.0]]


def test_a_target_above_zero_by_hand():
    # g_1 = (1, 0), g_2 = (0, 2), aim 0.6 = 3/5 for the first: h_1 = (1, a) with 2a / (2
    # sqrt(1+a^2)) = 3/5, so a = 3/4, which is 3/8 of g_2. The second aims at -0.5 and is at 0: it
    # stays.
    targets = table([[0.0, 0.6], [-0.5, 0.0]])
    coefficients = turn(table([[1.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1]), targets)
    torch.testing.assert_close(coefficients, table([[1.0, 0.375], [0.0, 1.0]]))


@pytest.mark.parametrize("seed", range(4))
def test_the_gram_matrix_gives_what_the_vectors_give(seed):
    g, order = random_updates(seed), [3, 0, 4, 1, 2]
    targets = (
        torch.rand(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 0.5
    ) * 0.8
    targets.fill_diagonal_(0.98)  # no update meets itself
    kept = [False, True, False, False, True]
    expected = slowly(g, order, targets, kept)
    assert not torch.allclose(expected, g)
    torch.testing.assert_close(
        turned_vectors(g, order, targets=targets, kept=torch.tensor(kept)), expected
    )
    projected = slowly(g, order, torch.zeros(5, 5), [False] * 5)
    torch.testing.assert_close(turned_vectors(g, order), projected)


def test_the_order_of_turning_counts():
    g = random_updates(1)
    assert not torch.allclose(
        turned_vectors(g, [0, 1, 2, 3, 4]), turned_vectors(g, [4, 3, 2, 1, 0])
    )


@EXAMPLES
@given(seed=st.integers(0, 1000), aim=st.floats(-0.9, 0.9))
def test_the_last_one_met_is_at_the_target(seed, aim):
    g = random_updates(seed, m=3)
    targets = torch.full((3, 3), aim, dtype=torch.float64)
    turned_now = turned_vectors(g, [0, 1, 2], targets=targets)
    before_last = turned_vectors(g, [0, 1], targets=targets)
    angles = cosines(
        torch.cat([before_last, turned_now, g]) @ torch.cat([before_last, turned_now, g]).T
    )
    for k in (0, 1):
        was, now = angles[k, 8], angles[3 + k, 8]
        assert float(now) == pytest.approx(max(aim, float(was)), abs=1e-9)


def test_opposite_updates_cancel_whatever_the_target():
    v = random_updates(0, m=1)[0]
    for aim in (0.0, 0.5, 0.99):
        h = turned_vectors(
            torch.stack([0.3 * v, -0.7 * v]),
            [0, 1],
            targets=torch.full((2, 2), aim, dtype=torch.float64),
        )
        torch.testing.assert_close(h, torch.zeros_like(h), rtol=0, atol=1e-12)


def test_what_rounding_leaves_of_opposite_updates_is_not_stretched():
    # The first two cancel but for one part in 1e7; with a target of 0.99 each of the others would
    # lengthen that sevenfold.
    v = random_updates(2, m=1, d=40)[0]
    others = random_updates(3, m=12, d=40)
    g = torch.cat([torch.stack([v, -v + 1e-7 * others[0]]), others])
    h = turned_vectors(
        g, [1, *range(2, 14), 0], targets=torch.full((14, 14), 0.99, dtype=torch.float64)
    )
    assert h[0].norm() < 1e-6 * v.norm()


def test_a_zero_update_is_skipped():
    g = table([[0.0, 0.0], [1.0, 0.0], [-1.0, 1.0]])
    targets = torch.full((3, 3), 0.5, dtype=torch.float64)
    assert turned_vectors(g, [0, 1, 2], targets=targets)[0].tolist() == [0.0, 0.0]
    torch.testing.assert_close(
        turned_vectors(g, [0, 1, 2], targets=targets)[1:],
        turned_vectors(g[1:], [0, 1], targets=targets[1:, 1:]),
    )


def test_a_target_of_one_is_finite():
    h = turned_vectors(
        table([[1.0, 0.0], [0.0, 1.0]]), [0, 1], targets=torch.ones(2, 2, dtype=torch.float64)
    )
    assert float(alignments_with(table([0.0, 1.0]), h[:1])[0]) == pytest.approx(LARGEST_TARGET)


def test_many_stretches_do_not_run_away():
    g = random_updates(0, m=400, d=500)
    h = turned_vectors(
        g, list(range(400)), targets=torch.full((400, 400), 0.99, dtype=torch.float64)
    )
    ratio = h.norm(dim=1) / g.norm(dim=1)
    assert torch.isfinite(h).all()
    assert float(ratio.max()) == pytest.approx(LONGEST)
    # Shortening does not turn: they still meet the last one at the target.
    torch.testing.assert_close(
        alignments_with(g[-1], h[:-1]), torch.full((399,), 0.99, dtype=torch.float64)
    )


def test_cosines_and_alignments():
    # (3, 4) and (4, 3): 24/25. Nothing has an angle with zero.
    g = table([[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]])
    torch.testing.assert_close(
        cosines(g @ g.T), table([[1.0, 0.96, 0.0], [0.96, 1.0, 0.0], [0.0, 0.0, 0.0]])
    )
    torch.testing.assert_close(alignments_with(table([-2.0, 0.0]), g), table([-0.6, -0.8, 0.0]))
    assert alignments_with(table([0.0, 0.0]), g).tolist() == [0.0, 0.0, 0.0]


def test_a_small_part_across_is_kept() -> None:
    """Nearly opposite updates: the part across is 1e-4 of the length, above what is negligible."""
    g = table([[1.0, 0.0], [-1.0, 1e-4]])
    targets = torch.full((2, 2), 0.5, dtype=torch.float64)
    turned = turned_vectors(g, [0, 1], targets=targets)
    assert cosine(turned[0], g[1]) == pytest.approx(0.5, abs=1e-6)
    assert cosine(turned[1], g[0]) == pytest.approx(0.5, abs=1e-6)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def test_updates_of_any_length_are_turned_alike() -> None:
    """Targets of 0.99 lengthen an update sevenfold each time: it is held to ten times."""
    g = random_updates(3)
    targets = torch.full((5, 5), LARGEST_TARGET, dtype=torch.float64)
    turned = turned_vectors(g, list(range(5)), targets=targets)
    assert (turned.norm(dim=1) <= LONGEST * g.norm(dim=1) * (1 + 1e-9)).all()
    assert (turned.norm(dim=1) > (LONGEST - 1) * g.norm(dim=1)).any()
    tiny = turned_vectors(1e-30 * g, list(range(5)), targets=targets)
    torch.testing.assert_close(1e30 * tiny, turned, rtol=1e-9, atol=0)


def test_cosines_of_tiny_updates_are_those_of_others() -> None:
    g = table([[3.0, 4.0], [4.0, 3.0]])
    assert cosines(1e-60 * (g @ g.T))[0, 1].item() == pytest.approx(24 / 25)
    assert alignments_with(1e-30 * g[1], 1e-30 * g)[0].item() == pytest.approx(24 / 25)


def test_rounding_does_not_make_a_cosine_above_one() -> None:
    # The inner product was rounded up: 1.5 instead of 1.
    gram = table([[1.0, 1.5], [-1.5, 1.0]])
    assert cosines(gram).tolist() == [[1.0, 1.0], [-1.0, 1.0]]
    dots = table([1.5, -1.5])
    assert alignments(torch.eye(2).double(), dots, table(1.0)).tolist() == [1.0, -1.0]


def test_only_what_is_too_long_is_shortened_by_hand() -> None:
    """A target of s lengthens an orthogonal update by 1 / sqrt(1 - s^2): 2.29 and 7.09 here."""
    g = torch.eye(3, dtype=torch.float64)
    targets = torch.zeros(3, 3, dtype=torch.float64)
    targets[0, 2] = LARGEST_TARGET
    once = turned_vectors(g, [1, 2], targets=targets)[0]
    assert once.norm().item() == pytest.approx(1 / math.sqrt(1 - LARGEST_TARGET**2))
    targets[0, 1] = 0.9  # 2.29 * 7.09 = 16.3 is too long
    twice = turned_vectors(g, [1, 2], targets=targets)[0]
    assert twice.norm().item() == pytest.approx(LONGEST)
    assert cosine(twice, g[2]) == pytest.approx(LARGEST_TARGET)

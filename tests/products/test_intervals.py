"""Confidence intervals: how often they hold the truth, and what they are of few samples."""

import numpy as np
import pytest
from benchmarks.intervals import KINDS, measure, too_rare
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import binom, binomtest

from undulatus.products.area import estimate_areas
from undulatus.products.intervals import effective_rows, share_interval
from undulatus.products.scores import score_classes

Z = 1.959963984540054


# Simulated tables; python -m benchmarks.intervals has more of them


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_hold_the_truth_as_often_as_they_say(kind):
    found = measure(KINDS[kind], 40)
    assert [name for name, one in found.items() if too_rare(one)] == []
    printed = [one for one in found.values() if one.printed]
    assert len(printed) > 0.6 * len(found)
    # Of 40 tables, whose estimates are alike in part, as if there were three: 0.95 ± 0.02.
    assert np.mean([one.share for one in printed]) > 0.95 - 5 * 0.02


def test_the_normal_interval_would_be_found_out():
    def wald(joint, cells):
        mapped = joint.sum(axis=0)
        found = estimate_areas(cells[0].T, mapped, ["a", "b", "c"], design="stratified")
        for c, one in enumerate(found.users_accuracy):
            half = 1.96 * np.nan_to_num(one.standard_error)
            yield f"{c}", joint[c, c] / mapped[c], one.value - half, one.value + half

    kind = KINDS["stratified, 50 a stratum, hardly an error"]
    found = measure(type(kind)(kind.joint, kind.draw, wald), 60)
    assert too_rare(found["0"])


# A share of rows


@given(st.integers(2, 400), st.floats(0.001, 0.999))
def test_the_interval_of_a_share_never_holds_it_in_far_less_than_95_percent(n, share):
    x = np.arange(n + 1)
    low, high = share_interval(x / n, n, 0.95)
    held = binom.pmf(x, n, share)[(low <= share) & (share <= high)].sum()
    # Brown, Cai and DasGupta (2001): 0.90 at worst of few, where Wilson's has 0.83.
    assert held > 0.9 - 0.05 * (n < 10)


def test_in_the_middle_it_is_wilson_s():
    for n, x in ((20, 10), (100, 30), (1000, 990)):
        expected = binomtest(x, n).proportion_ci(0.9, method="wilson")
        assert_allclose(share_interval(x / n, n, 0.9), expected, rtol=1e-10)


def test_no_and_all_successes_leave_an_interval():
    assert_allclose(share_interval(0.0, 50, 0.95), [0.0, Z**2 / (50 + Z**2)], atol=1e-12)
    assert_allclose(share_interval(1.0, 50, 0.95), [50 / (50 + Z**2), 1.0], atol=1e-12)


def test_one_row_leaves_none():
    assert np.isnan(share_interval(1.0, 1.0, 0.95)).all()


# Groups


def test_rows_that_are_alike_in_groups_count_as_groups():
    rng = np.random.default_rng(0)
    right = rng.random(400) < 0.7
    share = right.mean()
    sums, sizes = 25 * (right - share), np.full(400, 25.0)
    n = effective_rows(sums, sizes, share * (1 - share), 10_000, 0.95, share)
    # 400, less what Student's t of 399 is longer, and of the variance's own (m - 1) / m.
    assert_allclose(n, 400, rtol=0.02)
    apart = rng.normal(size=400) * np.sqrt(25 * share * (1 - share))
    # A variance of 400 groups varies by √(2 / 400) = 7 %.
    assert_allclose(
        effective_rows(apart, sizes, share * (1 - share), 10_000, 0.95, share), 10_000, rtol=0.35
    )


def test_a_few_groups_that_make_the_variance_lengthen_the_interval():
    sizes = np.full(40, 25.0)
    even = np.tile([2.0, -2.0], 20)
    few = np.zeros(40)
    few[:2] = 2.0 * np.sqrt(20.0) * np.array([1, -1])
    both = [effective_rows(sums, sizes, 0.25, 1000, 0.95, 0.5) for sums in (even, few)]
    # The variances are equal, but that of two groups in 40 has 2 / (1/2 - 1/40) = 4.2 degrees of
    # freedom: t is 2.72 in place of 2.02.
    assert_allclose(both[1] / both[0], (2.02 / 2.72) ** 2, rtol=0.01)


def test_groups_that_are_all_right_count_as_one_row_each():
    codes = np.repeat(np.arange(3), 40)
    found = score_classes(codes, np.eye(3)[codes], range(3), groups=np.arange(120) // 10)
    t = 2.200985160082949  # of 11 degrees of freedom
    assert_allclose(found.accuracy.low, 12 / (12 + t**2), rtol=1e-10)
    # With hardly an error, they are still nearly that.
    wrong = codes.copy()
    wrong[0] = 1
    found = score_classes(wrong, np.eye(3)[codes], range(3), groups=np.arange(120) // 10)
    assert found.accuracy.low < 0.8


# F1 and kappa where nothing was hit, or nothing missed


def test_f1_and_kappa_of_a_perfect_table_have_intervals():
    codes = np.repeat([0, 1], [295, 5])
    found = score_classes(codes, np.eye(2)[codes], [0, 1])
    rare = found.by_class[1].f1
    assert rare.value == rare.high == 1.0
    # Five of five, as a share J, whose F1 is 2 J / (1 + J).
    least = 5 / (5 + Z**2)
    assert_allclose(rare.low, 2 * least / (1 + least), rtol=1e-9)
    assert found.kappa.value == found.kappa.high == 1.0
    assert 0.2 < found.kappa.low < 0.9


def test_f1_and_kappa_of_no_hit_have_intervals():
    codes, said = np.repeat([0, 1], [295, 5]), np.repeat([1, 0], [2, 298])
    found = score_classes(codes, np.eye(2)[said], [0, 1])
    rare = found.by_class[1].f1
    assert rare.value == rare.low == 0.0
    # None of seven rows.
    most = Z**2 / (7 + Z**2)
    assert_allclose(rare.high, 2 * most / (1 + most), rtol=1e-9)
    assert found.kappa.high > 0.2


@pytest.mark.parametrize("groups", [None, np.arange(60) // 5])
def test_no_printed_interval_is_a_point(groups):
    codes = np.repeat([0, 1, 2], [40, 18, 2])
    for said in (codes, np.zeros(60, int), (codes + 1) % 3):
        found = score_classes(codes, np.eye(3)[said], range(3), groups=groups)
        each = [getattr(one, name) for one in found.by_class
                for name in ("producers_accuracy", "users_accuracy", "f1")]  # fmt: skip
        for one in (*found.overall.values(), *each):
            assert np.isnan(one.low) or one.high > one.low


def test_certain_losses_have_no_interval():
    found = score_classes([0, 1, 1], np.eye(2)[[0, 1, 1]], [0, 1])
    assert str(found.nll) == "0.0000"
    assert str(found.ece) == "0.0000"

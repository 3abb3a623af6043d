"""The outer loop on evidences simple enough to know where they lead."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp.ascent import INNER_STEPS, PATIENCE, TIGHTENINGS, Climb, ascend, has_stalled


class Hill:
    """A concave bound -|θ - top|² - slack, whose slack (for ξ) halves at each tightening."""

    def __init__(self, top=(1.0, -2.0), slack=1000.0, reach=10.0):
        self.top = np.array(top)
        self.slack = slack
        self.limits = [(-reach, reach)] * len(self.top)
        self.tightenings = 0

    def tighten(self, theta):
        self.tightenings += 1
        self.slack *= 0.5
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta):
        away = theta - self.top
        return -float(away @ away) - self.slack, -2.0 * away


class Cliff(Hill):
    """A bound whose gradient lies: every step that follows it leads down."""

    def value_and_gradient(self, theta):
        value, gradient = super().value_and_gradient(theta)
        return value, -gradient


class Bump(Hill):
    """A bound exp(-(θ - 6)²/2): so flat at its foot that five trials of a step do not suffice."""

    def __init__(self):
        super().__init__(top=(6.0,), slack=0.0, reach=20.0)

    def value_and_gradient(self, theta):
        height = float(np.exp(-0.5 * np.sum((theta - self.top) ** 2)))
        return height, -(theta - self.top) * height


class Drifting(Hill):
    """A hill whose top is one further along each axis in every iteration."""

    def __init__(self):
        super().__init__(top=(0.0,), reach=100.0)

    def tighten(self, theta):
        self.top = self.top + 1.0 / TIGHTENINGS
        return super().tighten(theta)


def start(evidence):
    return Climb(np.zeros(len(evidence.limits)), ())


def test_an_ascent_converges_to_the_top():
    hill = Hill()
    climb = ascend(hill, start(hill), max_iter=100, tol=1e-8)
    assert climb.outcome == "converged"
    assert_allclose(climb.theta, hill.top, atol=1e-6)
    assert climb.n_iter == len(climb.bounds) < 100


def test_the_bound_never_decreases_and_each_iteration_tightens():
    hill = Hill()
    climb = ascend(hill, start(hill), max_iter=20, tol=0.0)
    assert np.all(np.diff(climb.bounds) >= 0)
    assert hill.tightenings == TIGHTENINGS * climb.n_iter


def test_the_bound_reported_is_the_bound_at_theta():
    hill = Hill()
    seen = []
    ascend(
        hill,
        start(hill),
        max_iter=4,
        tol=0.0,
        report=lambda climb: seen.append(
            (climb.bounds[-1], hill.value_and_gradient(climb.theta)[0])
        ),
    )
    for told, true in seen:
        assert told == true


def test_an_ascent_stops_at_max_iter():
    hill = Hill()
    climb = ascend(hill, start(hill), max_iter=3, tol=1e-12)
    assert (climb.outcome, climb.n_iter) == ("max_iter", 3)


def test_an_iteration_on_the_hyperparameters_is_short():
    calls = []

    class Counting(Hill):
        def value_and_gradient(self, theta):
            calls.append(theta)
            return super().value_and_gradient(theta)

    hill = Counting(top=np.linspace(-3, 3, 30))
    ascend(hill, start(hill), max_iter=1, tol=0.0)
    # Three tightenings evaluate once each; each step has at most five trials, and a first.
    assert len(calls) <= TIGHTENINGS + 1 + 5 * INNER_STEPS


def test_a_search_that_leads_down_is_not_followed():
    cliff = Cliff()
    climb = ascend(cliff, start(cliff), max_iter=5, tol=0.0)
    assert_array_equal(climb.theta, np.zeros(2))
    assert np.all(np.diff(climb.bounds) >= 0)


def test_a_search_that_fails_leaves_theta_and_bound_of_the_same_point():
    bump, seen = Bump(), []

    def report(climb):
        seen.append((climb.bounds[-1], bump.value_and_gradient(climb.theta)[0]))

    ascend(bump, Climb(np.array([2.5]), ()), max_iter=5, tol=0.0, report=report)
    for told, true in seen:
        assert told == true


def test_the_best_point_that_was_evaluated_is_kept():
    tried = []

    class Noting(Bump):
        def value_and_gradient(self, theta):
            value, gradient = super().value_and_gradient(theta)
            tried.append((value, theta.copy()))
            return value, gradient

    climb = ascend(Noting(), Climb(np.array([2.5]), ()), max_iter=1, tol=0.0)
    value, theta = max(tried, key=lambda point: point[0])
    assert climb.bounds == (value,)
    assert_array_equal(climb.theta, theta)


def test_the_hyperparameters_stay_within_their_limits():
    hill = Hill(top=(50.0, -50.0), reach=2.0)
    climb = ascend(hill, start(hill), max_iter=20, tol=1e-6)
    assert_allclose(climb.theta, [2.0, -2.0])


def test_every_iteration_is_reported_with_what_came_before():
    hill, seen = Hill(), []
    climb = ascend(hill, start(hill), max_iter=5, tol=0.0, report=seen.append)
    assert [step.n_iter for step in seen] == [1, 2, 3, 4, 5]
    assert seen[-1].bounds == climb.bounds
    for shorter, longer in pairwise(seen):
        assert longer.bounds[: len(shorter.bounds)] == shorter.bounds


def test_an_ascent_goes_on_from_where_it_was():
    whole = ascend(Hill(), start(Hill()), max_iter=6, tol=0.0)
    hill = Hill()
    half = ascend(hill, start(hill), max_iter=3, tol=0.0)
    rest = ascend(hill, half, max_iter=6, tol=0.0)
    assert rest.bounds == whole.bounds
    assert_array_equal(rest.theta, whole.theta)


def test_an_ascent_that_has_done_its_iterations_does_no_more():
    hill = Hill()
    done = ascend(hill, start(hill), max_iter=3, tol=0.0)
    assert ascend(hill, done, max_iter=3, tol=0.0) == done


def test_an_ascent_that_has_converged_does_no_more():
    hill = Hill()
    done = ascend(hill, start(hill), max_iter=100, tol=1e-6)
    tightenings = hill.tightenings
    assert done.outcome == "converged"
    assert ascend(hill, done, max_iter=100, tol=1e-6) is done
    assert hill.tightenings == tightenings


def test_an_ascent_that_was_interrupted_may_go_on():
    def report(climb):
        if climb.n_iter == 2:
            raise KeyboardInterrupt

    hill = Hill()
    stopped = ascend(hill, start(hill), max_iter=5, tol=0.0, report=report)
    whole = ascend(Hill(), start(Hill()), max_iter=5, tol=0.0)
    assert ascend(hill, stopped, max_iter=5, tol=0.0).bounds == whole.bounds


def test_an_interrupt_keeps_the_last_finished_iteration():
    hill, seen = Hill(), []

    def report(climb):
        seen.append(climb)
        if climb.n_iter == 2:
            raise KeyboardInterrupt

    climb = ascend(hill, start(hill), max_iter=10, tol=0.0, report=report)
    assert climb.outcome == "interrupted"
    assert climb.bounds == seen[-1].bounds
    assert climb.n_iter == 2
    assert_array_equal(climb.theta, seen[-1].theta)


def test_an_interrupt_within_an_iteration_keeps_the_one_before():
    class Interrupted(Hill):
        def tighten(self, theta):
            if self.tightenings == 2 * TIGHTENINGS + 1:
                raise KeyboardInterrupt
            return super().tighten(theta)

    hill, seen = Interrupted(), []
    climb = ascend(hill, start(hill), max_iter=10, tol=0.0, report=seen.append)
    assert (climb.outcome, climb.n_iter) == ("interrupted", 2)
    assert_array_equal(climb.theta, seen[-1].theta)


def test_an_interrupt_before_the_first_iteration_is_passed_on():
    class Interrupted(Hill):
        def tighten(self, theta):
            raise KeyboardInterrupt

    hill = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        ascend(hill, start(hill), max_iter=10, tol=0.0)


def test_a_bound_has_stalled_when_it_grows_by_less_than_its_share():
    # A share of 1e-4 of (1000 + 100) is 0.11.
    assert has_stalled([-1000.10, -1000.0], 1e-4)
    assert not has_stalled([-1000.12, -1000.0], 1e-4)


def test_hundredths_of_a_nat_do_not_matter_on_a_few_rows():
    assert has_stalled([-0.109, -0.1], 1e-4)
    assert not has_stalled([-0.12, -0.1], 1e-4)


def test_a_zero_tolerance_stalls_only_on_the_way_down():
    assert not has_stalled([1.0, 1.0], 0.0)
    assert has_stalled([1.0, 0.9], 0.0)


# With a judge


def judged(judge, max_iter=30, begun=None, evidence=None, **options):
    evidence = evidence or Drifting()
    begun = begun or start(evidence)
    return ascend(evidence, begun, max_iter=max_iter, tol=0.0, judge=judge, **options)


def test_a_judge_ends_the_ascent_when_its_patience_is_over_and_the_best_is_kept():
    # The top is at 1, 2, 3, ... after each iteration, and the judge likes 3.
    climb = judged(lambda theta: abs(theta[0] - 3.0))
    assert (climb.outcome, climb.n_iter) == ("converged", 3 + PATIENCE)
    # A hill is climbed to the end within an iteration, to the rounding of its squares.
    assert_allclose(climb.best, [3.0], atol=1e-6)
    assert_allclose(climb.theta, [3.0 + PATIENCE], atol=1e-6)


def test_the_losses_are_the_judge_s_word_on_the_start_and_after_each_iteration():
    seen = []
    climb = judged(lambda theta: abs(theta[0] - 3.0), report=seen.append)
    places = [0.0, *(state.theta[0] for state in seen)]
    assert climb.losses == tuple(abs(place - 3.0) for place in places)
    assert [len(state.losses) for state in seen] == [state.n_iter + 1 for state in seen]


@given(st.lists(st.floats(0.0, 10.0), min_size=13, max_size=13, unique=True))
def test_whatever_the_judge_says_the_best_is_where_it_said_least(script):
    words, seen = iter(script), []
    climb = judged(lambda theta: next(words), max_iter=len(script) - 1, report=seen.append)
    over = [n for n in range(len(script)) if n - np.argmin(script[: n + 1]) >= PATIENCE]
    end = over[0] if over else len(script) - 1
    assert climb.n_iter == end
    assert climb.outcome == ("converged" if over else "max_iter")
    places = [np.zeros(1), *(state.theta for state in seen)]
    assert_array_equal(climb.best, places[np.argmin(script[: end + 1])])


def test_a_start_that_nothing_betters_is_the_best():
    climb = judged(lambda theta: float(theta[0]))
    assert climb.n_iter == PATIENCE
    assert_array_equal(climb.best, [0.0])


def test_a_judge_changes_nothing_of_the_ascent_but_its_end():
    climb = judged(lambda theta: abs(theta[0] - 3.0))
    plain = ascend(Drifting(), start(Drifting()), max_iter=climb.n_iter, tol=0.0)
    assert climb.bounds == plain.bounds
    assert_array_equal(climb.theta, plain.theta)
    assert (plain.losses, plain.best) == ((), None)


def test_a_judged_ascent_goes_on_from_where_it_was_and_ends_where_it_would_have():
    def judge(theta):
        return abs(theta[0] - 3.0)

    whole = judged(judge)
    for n_iter in (1, 4, whole.n_iter - 1, whole.n_iter):
        drifting = Drifting()
        half = judged(judge, max_iter=n_iter, evidence=drifting)
        rest = judged(judge, begun=half, evidence=drifting)
        assert (rest.bounds, rest.losses) == (whole.bounds, whole.losses)
        assert_array_equal(rest.theta, whole.theta)
        assert_array_equal(rest.best, whole.best)


def test_an_interrupt_while_the_start_is_judged_is_passed_on():
    def judge(theta):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged(judge)


def test_an_interrupt_of_the_judge_keeps_the_best_so_far():
    words = iter([3.0, 1.0, 2.0])

    def judge(theta):
        try:
            return next(words)
        except StopIteration:
            raise KeyboardInterrupt from None

    seen = []
    climb = judged(judge, report=seen.append)
    assert climb.outcome == "interrupted"
    assert_array_equal(climb.best, seen[0].theta)

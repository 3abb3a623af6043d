"""The batch solver: the outer loop on simple bounds, the Fourier evidence, and the whole fit."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import variational
from undulatus.gp.batch import (
    EARLY_STOPPING_ROWS,
    INNER_STEPS,
    PATIENCE,
    TIGHTENINGS,
    Ascent,
    BatchState,
    FourierEvidence,
    ascend,
    fit_batch,
)
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.bound import accumulate
from undulatus.gp.damping import level
from undulatus.gp.held_back import leave_out
from undulatus.gp.passes import Start, fit_posteriors

seeds = st.integers(0, 2**32 - 1)

both_methods = pytest.mark.parametrize("learn_frequencies", [False, True], ids=["RFF", "VFF"])

each_way = pytest.mark.parametrize(
    ("learn_frequencies", "early_stopping"),
    [(False, False), (True, False), (True, True)],
    ids=["RFF", "VFF", "early VFF"],
)


# The outer loop


class Hill:
    """A concave bound -|θ - top|² - slack, whose slack (for ξ) halves at each tightening."""

    def __init__(self, top=(1.0, -2.0), slack=1000.0, limit=10.0):
        self.top = np.array(top)
        self.slack = slack
        self.limits = [(-limit, limit)] * len(self.top)
        self.tightenings = 0

    def tighten(self, theta):
        self.tightenings += 1
        self.slack *= 0.5
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta):
        away = theta - self.top
        return -float(away @ away) - self.slack, -2.0 * away


class Cliff(Hill):
    """A bound with the wrong sign of the gradient: every step along it leads down."""

    def value_and_gradient(self, theta):
        value, gradient = super().value_and_gradient(theta)
        return value, -gradient


class Bump(Hill):
    """A bound exp(-(θ - 6)²/2), so flat far away that a line search of five trials fails."""

    def __init__(self):
        super().__init__(top=(6.0,), slack=0.0, limit=20.0)

    def value_and_gradient(self, theta):
        height = float(np.exp(-0.5 * np.sum((theta - self.top) ** 2)))
        return height, -(theta - self.top) * height


class Drifting(Hill):
    """A hill whose top moves by one along each axis in every iteration."""

    def __init__(self):
        super().__init__(top=(0.0,), limit=100.0)

    def tighten(self, theta):
        self.top = self.top + 1.0 / TIGHTENINGS
        return super().tighten(theta)


def at_zero(evidence):
    return Ascent(np.zeros(len(evidence.limits)))


def test_an_ascent_converges_to_the_top():
    hill = Hill()
    ascent = ascend(hill, at_zero(hill), max_iter=100, tol=1e-8)
    assert ascent.outcome == "converged"
    assert_allclose(ascent.theta, hill.top, atol=1e-6)
    assert ascent.n_iter == len(ascent.bounds) < 100


def test_the_bound_never_decreases_and_each_iteration_tightens_xi():
    hill = Hill()
    ascent = ascend(hill, at_zero(hill), max_iter=20, tol=0.0)
    assert np.all(np.diff(ascent.bounds) >= 0)
    assert hill.tightenings == TIGHTENINGS * ascent.n_iter


def test_the_bound_reported_is_the_bound_at_theta():
    hill = Hill()
    seen = []
    ascend(
        hill,
        at_zero(hill),
        max_iter=4,
        tol=0.0,
        report=lambda ascent: seen.append(
            (ascent.bounds[-1], hill.value_and_gradient(ascent.theta)[0])
        ),
    )
    for reported, recomputed in seen:
        assert reported == recomputed


def test_an_ascent_stops_at_max_iter():
    hill = Hill()
    ascent = ascend(hill, at_zero(hill), max_iter=3, tol=1e-12)
    assert (ascent.outcome, ascent.n_iter) == ("max_iter", 3)


def test_an_iteration_evaluates_the_bound_a_limited_number_of_times():
    calls = []

    class Counting(Hill):
        def value_and_gradient(self, theta):
            calls.append(theta)
            return super().value_and_gradient(theta)

    hill = Counting(top=np.linspace(-3, 3, 30))
    ascend(hill, at_zero(hill), max_iter=1, tol=0.0)
    # Three tightenings evaluate once each; then one first point, and five trials a step.
    assert len(calls) <= TIGHTENINGS + 1 + 5 * INNER_STEPS


def test_a_step_that_lowers_the_bound_is_not_taken():
    cliff = Cliff()
    ascent = ascend(cliff, at_zero(cliff), max_iter=5, tol=0.0)
    assert_array_equal(ascent.theta, np.zeros(2))
    assert np.all(np.diff(ascent.bounds) >= 0)


def test_after_a_failed_line_search_theta_and_bound_belong_together():
    bump, seen = Bump(), []

    def report(ascent):
        seen.append((ascent.bounds[-1], bump.value_and_gradient(ascent.theta)[0]))

    ascend(bump, Ascent(np.array([2.5])), max_iter=5, tol=0.0, report=report)
    for reported, recomputed in seen:
        assert reported == recomputed


def test_the_best_evaluated_point_is_kept():
    tried = []

    class Recording(Bump):
        def value_and_gradient(self, theta):
            value, gradient = super().value_and_gradient(theta)
            tried.append((value, theta.copy()))
            return value, gradient

    ascent = ascend(Recording(), Ascent(np.array([2.5])), max_iter=1, tol=0.0)
    value, theta = max(tried, key=lambda point: point[0])
    assert ascent.bounds == (value,)
    assert_array_equal(ascent.theta, theta)


def test_the_hyperparameters_stay_within_their_limits():
    hill = Hill(top=(50.0, -50.0), limit=2.0)
    ascent = ascend(hill, at_zero(hill), max_iter=20, tol=1e-6)
    assert_allclose(ascent.theta, [2.0, -2.0])


def test_every_iteration_is_reported_with_all_bounds_so_far():
    hill, seen = Hill(), []
    ascent = ascend(hill, at_zero(hill), max_iter=5, tol=0.0, report=seen.append)
    assert [step.n_iter for step in seen] == [1, 2, 3, 4, 5]
    assert seen[-1].bounds == ascent.bounds
    for shorter, longer in pairwise(seen):
        assert longer.bounds[: len(shorter.bounds)] == shorter.bounds


def test_an_ascent_continues_from_its_state():
    whole = ascend(Hill(), at_zero(Hill()), max_iter=6, tol=0.0)
    hill = Hill()
    half = ascend(hill, at_zero(hill), max_iter=3, tol=0.0)
    rest = ascend(hill, half, max_iter=6, tol=0.0)
    assert rest.bounds == whole.bounds
    assert_array_equal(rest.theta, whole.theta)


def test_an_ascent_at_max_iter_does_nothing_more():
    hill = Hill()
    done = ascend(hill, at_zero(hill), max_iter=3, tol=0.0)
    assert ascend(hill, done, max_iter=3, tol=0.0) == done


def test_a_converged_ascent_does_nothing_more():
    hill = Hill()
    done = ascend(hill, at_zero(hill), max_iter=100, tol=1e-6)
    tightenings = hill.tightenings
    assert done.outcome == "converged"
    assert ascend(hill, done, max_iter=100, tol=1e-6) is done
    assert hill.tightenings == tightenings


def test_an_interrupted_ascent_can_be_continued():
    def report(ascent):
        if ascent.n_iter == 2:
            raise KeyboardInterrupt

    hill = Hill()
    stopped = ascend(hill, at_zero(hill), max_iter=5, tol=0.0, report=report)
    whole = ascend(Hill(), at_zero(Hill()), max_iter=5, tol=0.0)
    assert ascend(hill, stopped, max_iter=5, tol=0.0).bounds == whole.bounds


def test_an_interrupt_keeps_the_last_finished_iteration():
    hill, seen = Hill(), []

    def report(ascent):
        seen.append(ascent)
        if ascent.n_iter == 2:
            raise KeyboardInterrupt

    ascent = ascend(hill, at_zero(hill), max_iter=10, tol=0.0, report=report)
    assert ascent.outcome == "interrupted"
    assert ascent.bounds == seen[-1].bounds
    assert ascent.n_iter == 2
    assert_array_equal(ascent.theta, seen[-1].theta)


def test_an_interrupt_within_an_iteration_keeps_the_one_before():
    class Interrupted(Hill):
        def tighten(self, theta):
            if self.tightenings == 2 * TIGHTENINGS + 1:
                raise KeyboardInterrupt
            return super().tighten(theta)

    hill, seen = Interrupted(), []
    ascent = ascend(hill, at_zero(hill), max_iter=10, tol=0.0, report=seen.append)
    assert (ascent.outcome, ascent.n_iter) == ("interrupted", 2)
    assert_array_equal(ascent.theta, seen[-1].theta)


def test_an_interrupt_before_the_first_iteration_is_raised():
    class Interrupted(Hill):
        def tighten(self, theta):
            raise KeyboardInterrupt

    hill = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        ascend(hill, at_zero(hill), max_iter=10, tol=0.0)


# The outer loop with validation rows


def ascend_with_loss(held_back_loss, max_iter=30, ascent=None, evidence=None, **options):
    evidence = evidence or Drifting()
    options |= {"max_iter": max_iter, "tol": 0.0, "held_back_loss": held_back_loss}
    return ascend(evidence, ascent or at_zero(evidence), **options)


def distance_from_three(theta):
    return abs(theta[0] - 3.0)


def test_an_ascent_ends_after_iterations_without_a_lower_loss_and_keeps_the_best_theta():
    # The top is at 1, 2, 3, ... after each iteration; the loss is lowest at 3.
    ascent = ascend_with_loss(distance_from_three)
    assert (ascent.outcome, ascent.n_iter) == ("converged", 3 + PATIENCE)
    # An iteration reaches the top, up to the rounding of its squares.
    assert_allclose(ascent.best_theta, [3.0], atol=1e-6)
    assert_allclose(ascent.theta, [3.0 + PATIENCE], atol=1e-6)


def test_the_losses_are_those_of_the_start_and_after_each_iteration():
    seen = []
    ascent = ascend_with_loss(distance_from_three, report=seen.append)
    thetas = [np.zeros(1), *(state.theta for state in seen)]
    assert ascent.losses == tuple(distance_from_three(theta) for theta in thetas)
    assert [len(state.losses) for state in seen] == [state.n_iter + 1 for state in seen]


@given(st.lists(st.floats(0.0, 10.0), min_size=13, max_size=13, unique=True))
def test_the_best_theta_is_that_of_the_lowest_loss_whatever_the_losses(losses):
    script, seen = iter(losses), []
    ascent = ascend_with_loss(
        lambda theta: next(script), max_iter=len(losses) - 1, report=seen.append
    )
    over = [n for n in range(len(losses)) if n - np.argmin(losses[: n + 1]) >= PATIENCE]
    end = over[0] if over else len(losses) - 1
    assert ascent.n_iter == end
    assert ascent.outcome == ("converged" if over else "max_iter")
    thetas = [np.zeros(1), *(state.theta for state in seen)]
    assert_array_equal(ascent.best_theta, thetas[np.argmin(losses[: end + 1])])


def test_if_the_loss_only_rises_the_start_is_the_best():
    ascent = ascend_with_loss(lambda theta: float(theta[0]))
    assert ascent.n_iter == PATIENCE
    assert_array_equal(ascent.best_theta, [0.0])


def test_held_back_rows_change_only_the_end_of_an_ascent():
    ascent = ascend_with_loss(distance_from_three)
    plain = ascend(Drifting(), at_zero(Drifting()), max_iter=ascent.n_iter, tol=0.0)
    assert ascent.bounds == plain.bounds
    assert_array_equal(ascent.theta, plain.theta)
    assert (plain.losses, plain.best_theta) == ((), None)


def test_an_ascent_with_losses_continues_to_the_same_end():
    whole = ascend_with_loss(distance_from_three)
    for n_iter in (1, 4, whole.n_iter - 1, whole.n_iter):
        drifting = Drifting()
        half = ascend_with_loss(distance_from_three, max_iter=n_iter, evidence=drifting)
        rest = ascend_with_loss(distance_from_three, ascent=half, evidence=drifting)
        assert (rest.bounds, rest.losses) == (whole.bounds, whole.losses)
        assert_array_equal(rest.theta, whole.theta)
        assert_array_equal(rest.best_theta, whole.best_theta)


def test_an_interrupt_while_the_first_loss_is_computed_is_raised():
    def interrupt(theta):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ascend_with_loss(interrupt)


def test_an_interrupt_while_a_later_loss_is_computed_keeps_the_best_theta():
    script, seen = iter([3.0, 1.0, 2.0]), []

    def held_back_loss(theta):
        try:
            return next(script)
        except StopIteration:
            raise KeyboardInterrupt from None

    ascent = ascend_with_loss(held_back_loss, report=seen.append)
    assert ascent.outcome == "interrupted"
    assert_array_equal(ascent.best_theta, seen[0].theta)


# Problems in feature space


def some_pixels(seed=0, n=60, d=2, dtype=np.float64, threads=1, rows_per_block=16):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    positive = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0
    plain = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(x, positive, None, plain, np.dtype(dtype), rows_per_block, threads)


def noisy_pixels(n=100, d=8):
    """Pixels with one feature that depends a little on the class, and seven that do not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    positive = x[:, 0] + rng.normal(size=n) > 0
    plain = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(x, positive, None, plain, np.dtype(np.float64), 64)


def some_start(seed=0, D=5, d=2, lengthscale=1.3, signal_variance=1.7):
    return Start(np.random.default_rng(seed).normal(size=(D, d)), lengthscale, signal_variance)


def some_evidence(learn_frequencies, seed=0, **changes):
    pixels, start = some_pixels(seed, **changes), some_start(seed)
    xi = np.random.default_rng(seed).uniform(0.1, 3.0, pixels.n_rows)
    return FourierEvidence(pixels, start, learn_frequencies, xi)


def fit(pixels, start=None, seed=0, **options):
    defaults = {"learn_frequencies": True, "max_iter": 6, "tol": 0.0, "early_stopping": False}
    rng = np.random.default_rng(seed)
    return fit_batch(pixels, start or some_start(), rng=rng, **(defaults | options))


def start_theta(evidence):
    return evidence.start_theta([evidence.start.signal_variance])


# The evidence


@both_methods
def test_the_starting_theta_describes_the_start(learn_frequencies):
    evidence = some_evidence(learn_frequencies)
    start, theta = evidence.start, start_theta(evidence)
    assert_allclose(evidence.frequencies(theta), start.frequencies, rtol=1e-14)
    assert_allclose(evidence.signal_variances(theta), [start.signal_variance], rtol=1e-14)
    assert_allclose(evidence.lengthscale(theta), start.lengthscale, rtol=1e-14)
    size = 1 + start.unit_frequencies.size if learn_frequencies else 2
    assert len(theta) == len(evidence.limits) == size


@both_methods
@given(seed=seeds)
@settings(max_examples=15)
def test_the_gradient_is_that_of_finite_differences(learn_frequencies, seed):
    evidence = some_evidence(learn_frequencies, seed, n=25)
    theta = start_theta(evidence) + 0.1
    _, found = evidence.value_and_gradient(theta)
    step, expected = 1e-5, np.empty_like(theta)
    for i in range(len(theta)):
        nudge = np.zeros_like(theta)
        nudge[i] = step
        up, down = (evidence.value_and_gradient(theta + s * nudge)[0] for s in (1, -1))
        expected[i] = (up - down) / (2 * step)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@both_methods
def test_the_value_is_the_bound_at_the_effective_frequencies(learn_frequencies):
    evidence = some_evidence(learn_frequencies)
    theta = start_theta(evidence) - 0.2
    value, _ = evidence.value_and_gradient(theta)
    frequencies, signal_variance = evidence.frequencies(theta), evidence.signal_variances(theta)[0]
    statistics = accumulate(evidence.pixels, frequencies, signal_variance, evidence.xi)
    assert value == statistics.bound(statistics.posterior())


@both_methods
def test_after_tightening_the_value_is_that_at_the_new_xi(learn_frequencies):
    evidence = some_evidence(learn_frequencies)
    theta = start_theta(evidence)
    before, _ = evidence.value_and_gradient(theta)
    tight = evidence.tighten(theta)
    assert tight > before
    assert evidence.value_and_gradient(theta)[0] == tight


# Fitting


@both_methods
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_never_decreases(learn_frequencies, seed):
    options = {"learn_frequencies": learn_frequencies, "max_iter": 15}
    fitted = fit(some_pixels(seed), some_start(seed), **options)
    assert len(fitted.bounds) == fitted.n_iter + 1
    slack = 1e-10 * np.abs(fitted.bounds).max()
    assert np.all(np.diff(fitted.bounds) >= -slack)


def test_random_frequencies_keep_their_directions():
    start = some_start()
    fitted = fit(some_pixels(), start, learn_frequencies=False, max_iter=5)
    assert_allclose(fitted.frequencies, start.unit_frequencies / fitted.lengthscale, rtol=1e-12)
    assert fitted.lengthscale != start.lengthscale


def test_learned_frequencies_raise_the_bound_above_random_ones():
    pixels, start = some_pixels(n=120), some_start(D=3)
    random, learned = (
        fit(pixels, start, learn_frequencies=learn, max_iter=30, tol=1e-6)
        for learn in (False, True)
    )
    assert learned.lengthscale == start.lengthscale
    assert learned.bounds[-1] > random.bounds[-1]


@each_way
def test_the_posterior_of_a_fit_is_the_one_at_its_last_bound(
    learn_frequencies, early_stopping, monkeypatch
):
    last_xi = []

    def fit_and_keep_xi(pixels, frequencies, signal_variances, xi, **options):
        last_xi[:] = xi
        return fit_posteriors(pixels, frequencies, signal_variances, xi, **options)

    monkeypatch.setattr(variational, "fit_posteriors", fit_and_keep_xi)
    pixels, options = some_pixels(), {"learn_frequencies": learn_frequencies, "tol": 1e-5}
    options |= {"early_stopping": early_stopping, "variational": False}
    fitted = fit(pixels, max_iter=20, **options)
    statistics = accumulate(pixels, fitted.frequencies, fitted.signal_variance, *last_xi)
    posterior = statistics.posterior()
    # The last statistics were rescaled to the last γ rather than summed again: rounding.
    assert_allclose(fitted.bounds[-1], statistics.bound(posterior), rtol=1e-12)
    assert_allclose(fitted.posterior.mean, posterior.mean, rtol=1e-10, atol=1e-12)
    assert_allclose(fitted.posterior.covariance, posterior.covariance, rtol=1e-10, atol=1e-12)


def assert_same_fit(one, other):
    assert (one.bounds, one.outcome, one.n_iter) == (other.bounds, other.outcome, other.n_iter)
    assert one.validation_losses == other.validation_losses
    assert one.signal_variance == other.signal_variance
    assert_array_equal(one.frequencies, other.frequencies)
    assert_array_equal(one.posterior.mean, other.posterior.mean)
    assert_array_equal(one.posterior.root, other.posterior.root)


@each_way
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit_of_a_fit(learn_frequencies, early_stopping, threads):
    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    one, other = (
        fit(some_pixels(threads=t, rows_per_block=7), max_iter=3, **options) for t in (1, threads)
    )
    assert_same_fit(one, other)


def copy_of(state):
    """The state with its own ξ, which the fit goes on to change."""
    return replace(state, xi=state.xi.copy())


@each_way
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_resumed_fit_is_the_uninterrupted_one_bit_for_bit(
    learn_frequencies, early_stopping, dtype
):
    pixels, kept = some_pixels(dtype=dtype), []
    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    whole = fit(pixels, report=lambda state: kept.append(copy_of(state)), **options)
    for state in kept[:-1:2]:
        assert_same_fit(fit(pixels, resume=state, **options), whole)


def test_resuming_does_not_change_the_given_state():
    pixels, start = some_pixels(), some_start()
    evidence = FourierEvidence(pixels, start, True, np.ones(pixels.n_rows))
    state = BatchState(start, Ascent(start_theta(evidence)), np.ones(pixels.n_rows), seed=0)
    fit(pixels, start, max_iter=1, resume=state)
    assert_array_equal(state.xi, np.ones(pixels.n_rows))
    assert_array_equal(state.ascent.theta, start_theta(evidence))


@pytest.mark.parametrize("variational", [False, True])
def test_an_interrupted_fit_ends_at_the_last_finished_iteration(variational):
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    pixels = some_pixels()
    with pytest.raises(KeyboardInterrupt):
        fit(pixels, max_iter=10, report=report, variational=variational, interruptible=False)
    stopped = fit(pixels, max_iter=10, report=report, variational=variational)
    short = fit(pixels, max_iter=2, variational=variational)
    assert stopped.outcome == "interrupted"
    assert stopped.n_iter == 2
    assert stopped.bounds[:2] == short.bounds[:2]
    assert_array_equal(stopped.frequencies, short.frequencies)
    if variational:
        # The tighter bound, and passes that tighten ξ before it.
        assert stopped.bounds[-2] < stopped.bounds[-1] < short.bounds[-1]
    else:
        # One more pass for the posterior, which does not tighten ξ: the bound stays.
        assert_allclose(stopped.bounds[-1], stopped.bounds[-2], rtol=1e-12)


@pytest.mark.parametrize("name", ["fit_posteriors", "fit_variational"])
def test_an_interrupt_in_the_final_passes_keeps_the_last_finished_one(monkeypatch, name):
    function = getattr(variational, name)
    options = {"max_iter": 2, "variational": name == "fit_variational"}

    def interrupt(*args, **options):
        def report(done, bound):
            if done == 2:
                raise KeyboardInterrupt

        return function(*args, **(options | {"report": report}))

    whole = fit(some_pixels(), **options)
    monkeypatch.setattr(variational, name, interrupt)
    stopped = fit(some_pixels(), **options)
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", 2)
    assert stopped.bounds[:2] == whole.bounds[:2]
    assert whole.bounds[1] < stopped.bounds[-1] < whole.bounds[-1]
    with pytest.raises(KeyboardInterrupt):
        fit(some_pixels(), interruptible=False, **options)


def test_the_outcome_says_why_the_fit_stopped():
    pixels = some_pixels()
    short = fit(pixels, learn_frequencies=False, max_iter=1, tol=1e-12)
    long = fit(pixels, learn_frequencies=False, max_iter=500, tol=1e-3)
    assert (short.outcome, long.outcome) == ("max_iter", "converged")


@each_way
@pytest.mark.parametrize("variational", [False, True])
def test_a_fit_knows_its_spread_and_its_level(learn_frequencies, early_stopping, variational):
    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    options |= {"spread": 0.1, "log_odds": -1.5, "variational": variational, "max_iter": 2}
    fitted = fit(some_pixels(), **options)
    assert fitted.spread == 0.1
    # The quadratic bound's posterior has no level.
    assert fitted.level == (level(-1.5, fitted.signal_variance) if variational else 0.0)


def test_spread_and_level_do_not_change_the_frequencies():
    plain, damped = (
        fit(some_pixels(), max_iter=2, early_stopping=True, **options)
        for options in ({}, {"spread": 0.1, "log_odds": -1.5})
    )
    assert_array_equal(plain.frequencies, damped.frequencies)
    assert plain.validation_losses == damped.validation_losses
    assert not np.array_equal(plain.posterior.mean, damped.posterior.mean)


def test_single_precision_follows_double():
    options = {"learn_frequencies": False, "max_iter": 30, "tol": 1e-5}
    fits = [fit(some_pixels(dtype=dtype), **options) for dtype in (np.float64, np.float32)]
    assert fits[1].posterior.mean.dtype == np.float64
    # Both stop where a pass gains less than a tenth of 1e-5 x (|bound| + 100).
    assert_allclose(fits[1].bounds[-1], fits[0].bounds[-1], rtol=1e-3)


# Early stopping


def stop_early(**options):
    start = some_start(D=20, d=8, lengthscale=3.0)
    return fit(noisy_pixels(), start, early_stopping=True, max_iter=30, **options)


@pytest.fixture
def losses_computed(monkeypatch):
    """Each validation loss that was computed: the evidence, the block, θ and the loss."""
    computed = []
    original = FourierEvidence.held_back_loss

    def held_back_loss(self, block, theta):
        loss = original(self, block, theta)
        computed.append((self, block, theta.copy(), loss))
        return loss

    monkeypatch.setattr(FourierEvidence, "held_back_loss", held_back_loss)
    return computed


def test_the_frequencies_are_those_with_the_lowest_held_back_loss(losses_computed):
    fitted = stop_early()
    losses = [loss for *_, loss in losses_computed]
    assert fitted.validation_losses == tuple(losses)
    # The loss rises again in the end, or this test would show nothing.
    assert min(losses) < losses[0]
    assert min(losses) < losses[-1]
    evidence, _, theta, _ = losses_computed[int(np.argmin(losses))]
    assert_array_equal(fitted.frequencies, evidence.frequencies(theta))


def test_a_fit_ends_when_the_held_back_loss_has_not_fallen_for_some_iterations():
    fitted = stop_early()
    assert fitted.outcome == "converged"
    assert fitted.n_iter == np.argmin(fitted.validation_losses) + PATIENCE < 30


def test_a_fit_that_stopped_early_is_resumed_to_the_same_end():
    kept = []
    whole = stop_early(report=lambda state: kept.append(copy_of(state)))
    for state in kept:
        assert_same_fit(stop_early(resume=state), whole)


def test_the_loss_is_that_of_rows_never_learned_from(losses_computed):
    pixels = some_pixels(n=100)
    fit(pixels, max_iter=2, early_stopping=True)
    for evidence, block, *_ in losses_computed:
        kept = evidence.pixels.rows[evidence.pixels.weight > 0]
        held, learned = ({tuple(row) for row in rows} for rows in (block.x, kept))
        assert (len(held), len(learned)) == (20, 80)
        assert held | learned == {tuple(row) for row in pixels.rows}


def test_the_labels_of_held_back_rows_do_not_affect_the_ascent():
    pixels, paths = some_pixels(n=100), []
    ((learning, held_back),) = leave_out(pixels, 1, np.random.default_rng(0))
    flipped = pixels.codes.copy()
    flipped[held_back] ^= True
    for positive in (pixels.codes, flipped):
        states = []
        given = replace(pixels, codes=positive)
        # Which rows are held back depends on the labels: each part has its share of both classes.
        options = {"split": (learning, held_back), "report": states.append}
        fit(given, max_iter=4, early_stopping=True, **options)
        paths.append([state.ascent.theta for state in states])
    assert_array_equal(*paths)


def test_the_final_passes_of_an_early_stopped_fit_never_lower_the_bound():
    for seed in range(5):
        fitted = fit(some_pixels(seed), some_start(seed), early_stopping=True)
        assert len(fitted.bounds) > 2
        assert np.all(np.diff(fitted.bounds) >= -1e-10 * np.abs(fitted.bounds).max())


@pytest.mark.parametrize(
    ("n_rows", "learn_frequencies"),
    [(EARLY_STOPPING_ROWS - 1, True), (60, False)],
    ids=["few rows", "random frequencies"],
)
def test_nothing_is_held_back_from_a_few_rows_or_random_frequencies(n_rows, learn_frequencies):
    pixels, options = some_pixels(n=n_rows), {"learn_frequencies": learn_frequencies}
    early, whole = (fit(pixels, early_stopping=early, **options) for early in (True, False))
    assert early.validation_losses == ()
    assert_same_fit(early, whole)


def test_some_of_thirty_rows_are_held_back():
    fitted = fit(some_pixels(n=EARLY_STOPPING_ROWS), max_iter=2, early_stopping=True)
    assert len(fitted.validation_losses) == 3

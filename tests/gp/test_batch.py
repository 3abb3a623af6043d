"""The outer loop on evidences simple enough to know where they lead.

RFF-GPC and VFF-GPC in feature space: the evidence, the ascent, and going on from a state.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import batch as batch_module
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
from undulatus.gp.blocks import Pixels, Standardisation
from undulatus.gp.bound import accumulate
from undulatus.gp.passes import Start, fit_posterior, has_stalled, hold_back


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
    return Ascent(np.zeros(len(evidence.limits)))


def test_an_ascent_converges_to_the_top():
    hill = Hill()
    ascent = ascend(hill, start(hill), max_iter=100, tol=1e-8)
    assert ascent.outcome == "converged"
    assert_allclose(ascent.theta, hill.top, atol=1e-6)
    assert ascent.n_iter == len(ascent.bounds) < 100


def test_the_bound_never_decreases_and_each_iteration_tightens():
    hill = Hill()
    ascent = ascend(hill, start(hill), max_iter=20, tol=0.0)
    assert np.all(np.diff(ascent.bounds) >= 0)
    assert hill.tightenings == TIGHTENINGS * ascent.n_iter


def test_the_bound_reported_is_the_bound_at_theta():
    hill = Hill()
    seen = []
    ascend(
        hill,
        start(hill),
        max_iter=4,
        tol=0.0,
        report=lambda ascent: seen.append(
            (ascent.bounds[-1], hill.value_and_gradient(ascent.theta)[0])
        ),
    )
    for told, true in seen:
        assert told == true


def test_an_ascent_stops_at_max_iter():
    hill = Hill()
    ascent = ascend(hill, start(hill), max_iter=3, tol=1e-12)
    assert (ascent.outcome, ascent.n_iter) == ("max_iter", 3)


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
    ascent = ascend(cliff, start(cliff), max_iter=5, tol=0.0)
    assert_array_equal(ascent.theta, np.zeros(2))
    assert np.all(np.diff(ascent.bounds) >= 0)


def test_a_search_that_fails_leaves_theta_and_bound_of_the_same_point():
    bump, seen = Bump(), []

    def report(ascent):
        seen.append((ascent.bounds[-1], bump.value_and_gradient(ascent.theta)[0]))

    ascend(bump, Ascent(np.array([2.5])), max_iter=5, tol=0.0, report=report)
    for told, true in seen:
        assert told == true


def test_the_best_point_that_was_evaluated_is_kept():
    tried = []

    class Noting(Bump):
        def value_and_gradient(self, theta):
            value, gradient = super().value_and_gradient(theta)
            tried.append((value, theta.copy()))
            return value, gradient

    ascent = ascend(Noting(), Ascent(np.array([2.5])), max_iter=1, tol=0.0)
    value, theta = max(tried, key=lambda point: point[0])
    assert ascent.bounds == (value,)
    assert_array_equal(ascent.theta, theta)


def test_the_hyperparameters_stay_within_their_limits():
    hill = Hill(top=(50.0, -50.0), reach=2.0)
    ascent = ascend(hill, start(hill), max_iter=20, tol=1e-6)
    assert_allclose(ascent.theta, [2.0, -2.0])


def test_every_iteration_is_reported_with_what_came_before():
    hill, seen = Hill(), []
    ascent = ascend(hill, start(hill), max_iter=5, tol=0.0, report=seen.append)
    assert [step.n_iter for step in seen] == [1, 2, 3, 4, 5]
    assert seen[-1].bounds == ascent.bounds
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
    def report(ascent):
        if ascent.n_iter == 2:
            raise KeyboardInterrupt

    hill = Hill()
    stopped = ascend(hill, start(hill), max_iter=5, tol=0.0, report=report)
    whole = ascend(Hill(), start(Hill()), max_iter=5, tol=0.0)
    assert ascend(hill, stopped, max_iter=5, tol=0.0).bounds == whole.bounds


def test_an_interrupt_keeps_the_last_finished_iteration():
    hill, seen = Hill(), []

    def report(ascent):
        seen.append(ascent)
        if ascent.n_iter == 2:
            raise KeyboardInterrupt

    ascent = ascend(hill, start(hill), max_iter=10, tol=0.0, report=report)
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
    ascent = ascend(hill, start(hill), max_iter=10, tol=0.0, report=seen.append)
    assert (ascent.outcome, ascent.n_iter) == ("interrupted", 2)
    assert_array_equal(ascent.theta, seen[-1].theta)


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
    return ascend(evidence, begun, max_iter=max_iter, tol=0.0, held_back_loss=judge, **options)


def test_a_judge_ends_the_ascent_when_its_patience_is_over_and_the_best_is_kept():
    # The top is at 1, 2, 3, ... after each iteration, and the judge likes 3.
    ascent = judged(lambda theta: abs(theta[0] - 3.0))
    assert (ascent.outcome, ascent.n_iter) == ("converged", 3 + PATIENCE)
    # A hill is climbed to the end within an iteration, to the rounding of its squares.
    assert_allclose(ascent.best_theta, [3.0], atol=1e-6)
    assert_allclose(ascent.theta, [3.0 + PATIENCE], atol=1e-6)


def test_the_losses_are_the_judge_s_word_on_the_start_and_after_each_iteration():
    seen = []
    ascent = judged(lambda theta: abs(theta[0] - 3.0), report=seen.append)
    places = [0.0, *(state.theta[0] for state in seen)]
    assert ascent.losses == tuple(abs(place - 3.0) for place in places)
    assert [len(state.losses) for state in seen] == [state.n_iter + 1 for state in seen]


@given(st.lists(st.floats(0.0, 10.0), min_size=13, max_size=13, unique=True))
def test_whatever_the_judge_says_the_best_is_where_it_said_least(script):
    words, seen = iter(script), []
    ascent = judged(lambda theta: next(words), max_iter=len(script) - 1, report=seen.append)
    over = [n for n in range(len(script)) if n - np.argmin(script[: n + 1]) >= PATIENCE]
    end = over[0] if over else len(script) - 1
    assert ascent.n_iter == end
    assert ascent.outcome == ("converged" if over else "max_iter")
    places = [np.zeros(1), *(state.theta for state in seen)]
    assert_array_equal(ascent.best_theta, places[np.argmin(script[: end + 1])])


def test_a_start_that_nothing_betters_is_the_best():
    ascent = judged(lambda theta: float(theta[0]))
    assert ascent.n_iter == PATIENCE
    assert_array_equal(ascent.best_theta, [0.0])


def test_a_judge_changes_nothing_of_the_ascent_but_its_end():
    ascent = judged(lambda theta: abs(theta[0] - 3.0))
    plain = ascend(Drifting(), start(Drifting()), max_iter=ascent.n_iter, tol=0.0)
    assert ascent.bounds == plain.bounds
    assert_array_equal(ascent.theta, plain.theta)
    assert (plain.losses, plain.best_theta) == ((), None)


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
        assert_array_equal(rest.best_theta, whole.best_theta)


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
    ascent = judged(judge, report=seen.append)
    assert ascent.outcome == "interrupted"
    assert_array_equal(ascent.best_theta, seen[0].theta)


seeds = st.integers(0, 2**32 - 1)

both_methods = pytest.mark.parametrize("learn_frequencies", [False, True], ids=["RFF", "VFF"])

each_way = pytest.mark.parametrize(
    ("learn_frequencies", "early_stopping"),
    [(False, False), (True, False), (True, True)],
    ids=["RFF", "VFF", "early VFF"],
)


def some_pixels(seed=0, n=60, d=2, dtype=np.float64, threads=1, rows_per_block=16):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    positive = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0
    plain = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(x, positive, None, plain, np.dtype(dtype), rows_per_block, threads)


def noisy_pixels(n=100, d=8):
    """Rows of which one feature tells a little about the class, and the others nothing."""
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


def batch(pixels, start=None, seed=0, **options):
    defaults = {"learn_frequencies": True, "max_iter": 6, "tol": 0.0, "early_stopping": False}
    rng = np.random.default_rng(seed)
    return fit_batch(pixels, start or some_start(), rng=rng, **(defaults | options))


def log_evidence_bound(pixels, frequencies, signal_variance, xi):
    statistics = accumulate(pixels, frequencies, signal_variance, xi)
    return statistics.bound(statistics.posterior())


# The evidence
@both_methods
def test_theta_describes_the_start(learn_frequencies):
    evidence = some_evidence(learn_frequencies)
    start = evidence.start
    frequencies, signal_variance = start.frequencies, start.signal_variance
    assert_allclose(evidence.frequencies(evidence.start_theta), frequencies, rtol=1e-14)
    assert_allclose(evidence.signal_variance(evidence.start_theta), signal_variance, rtol=1e-14)
    assert_allclose(evidence.lengthscale(evidence.start_theta), start.lengthscale, rtol=1e-14)
    assert len(evidence.limits) == len(evidence.start_theta)
    size = 1 + start.unit_frequencies.size if learn_frequencies else 2
    assert len(evidence.start_theta) == size


@both_methods
@given(seed=seeds)
@settings(max_examples=15)
def test_the_gradient_is_that_of_finite_differences(learn_frequencies, seed):
    evidence = some_evidence(learn_frequencies, seed, n=25)
    theta = evidence.start_theta + 0.1
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
    theta = evidence.start_theta - 0.2
    value, _ = evidence.value_and_gradient(theta)
    direct = log_evidence_bound(
        evidence.pixels,
        evidence.frequencies(theta),
        evidence.signal_variance(theta),
        evidence.xi,
    )
    assert value == direct


@both_methods
def test_tightening_changes_what_the_value_is_taken_at(learn_frequencies):
    evidence = some_evidence(learn_frequencies)
    theta = evidence.start_theta
    before, _ = evidence.value_and_gradient(theta)
    tight = evidence.tighten(theta)
    assert tight > before
    assert evidence.value_and_gradient(theta)[0] == tight


# Fitting
@both_methods
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_never_decreases(learn_frequencies, seed):
    options = {"learn_frequencies": learn_frequencies, "max_iter": 15}
    fit = batch(some_pixels(seed), some_start(seed), **options)
    assert len(fit.bounds) == fit.n_iter + 1
    slack = 1e-10 * np.abs(fit.bounds).max()
    assert np.all(np.diff(fit.bounds) >= -slack)


def test_random_frequencies_keep_their_directions():
    start = some_start()
    fit = batch(some_pixels(), start, learn_frequencies=False, max_iter=5)
    assert_allclose(fit.frequencies, start.unit_frequencies / fit.lengthscale, rtol=1e-12)
    assert fit.lengthscale != start.lengthscale


def test_learned_frequencies_raise_the_bound_above_random_ones():
    pixels, start = some_pixels(n=120), some_start(D=3)
    random, learned = (
        batch(pixels, start, learn_frequencies=learn, max_iter=30, tol=1e-6)
        for learn in (False, True)
    )
    assert learned.lengthscale == start.lengthscale
    assert learned.bounds[-1] > random.bounds[-1]


@pytest.fixture
def last_xi(monkeypatch):
    """ξ as the last passes over the pixels left it."""
    kept = {}

    def keep(pixels, frequencies, signal_variance, xi, **options):
        kept["xi"] = np.empty(pixels.n_rows, dtype=pixels.dtype) if xi is None else xi
        return fit_posterior(pixels, frequencies, signal_variance, kept["xi"], **options)

    monkeypatch.setattr(batch_module, "fit_posterior", keep)
    return kept


def assert_posterior_of_all_pixels(fit, pixels, xi):
    statistics = accumulate(pixels, fit.frequencies, fit.signal_variance, xi)
    posterior = statistics.posterior()
    # The last statistics were rescaled to the last γ rather than summed anew: rounding.
    assert_allclose(fit.bounds[-1], statistics.bound(posterior), rtol=1e-12)
    assert_allclose(fit.posterior.mean, posterior.mean, rtol=1e-10, atol=1e-12)
    assert_allclose(fit.posterior.covariance, posterior.covariance, rtol=1e-10, atol=1e-12)


@each_way
def test_the_posterior_handed_out_is_the_one_at_the_bound_handed_out(
    learn_frequencies, early_stopping, last_xi
):
    pixels, options = some_pixels(), {"learn_frequencies": learn_frequencies, "tol": 1e-5}
    fit = batch(pixels, max_iter=20, early_stopping=early_stopping, **options)
    assert_posterior_of_all_pixels(fit, pixels, last_xi["xi"])


@each_way
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit_of_a_fit(learn_frequencies, early_stopping, threads):
    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    fits = [
        batch(some_pixels(threads=t, rows_per_block=7), max_iter=3, **options)
        for t in (1, threads)
    ]
    assert fits[0].held_back_losses == fits[1].held_back_losses
    assert fits[0].bounds == fits[1].bounds
    assert_array_equal(fits[0].frequencies, fits[1].frequencies)
    assert_array_equal(fits[0].posterior.mean, fits[1].posterior.mean)
    assert_array_equal(fits[0].posterior.root, fits[1].posterior.root)


@each_way
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_resumed_fit_is_the_uninterrupted_one_bit_for_bit(
    learn_frequencies, early_stopping, dtype
):
    pixels, kept = some_pixels(dtype=dtype), []

    def keep(state):
        kept.append(replace(state, xi=state.xi.copy()))

    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    whole = batch(pixels, report=keep, **options)
    for state in kept[:-1:2]:
        rest = batch(pixels, resume=state, **options)
        assert (rest.bounds, rest.outcome) == (whole.bounds, whole.outcome)
        assert rest.held_back_losses == whole.held_back_losses
        assert_array_equal(rest.frequencies, whole.frequencies)
        assert_array_equal(rest.posterior.mean, whole.posterior.mean)
        assert rest.signal_variance == whole.signal_variance


def test_resuming_leaves_the_state_it_was_given_alone():
    pixels, start = some_pixels(), some_start()
    evidence = FourierEvidence(pixels, start, True, np.ones(pixels.n_rows))
    state = BatchState(start, Ascent(evidence.start_theta), np.ones(pixels.n_rows), seed=0)
    batch(pixels, start, max_iter=1, resume=state)
    assert_array_equal(state.xi, np.ones(pixels.n_rows))
    assert_array_equal(state.ascent.theta, evidence.start_theta)


def test_an_interrupted_fit_ends_at_the_last_finished_iteration():
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    pixels = some_pixels()
    stopped = batch(pixels, max_iter=10, report=report)
    short = batch(pixels, max_iter=2)
    assert stopped.outcome == "interrupted"
    assert stopped.n_iter == 2
    assert stopped.bounds[:2] == short.bounds[:2]
    assert_array_equal(stopped.frequencies, short.frequencies)
    # One more look at the data for the posterior, none to tighten it: the bound stays.
    assert_allclose(stopped.bounds[-1], stopped.bounds[-2], rtol=1e-12)


def test_an_interrupt_while_a_batch_fit_settles_keeps_the_last_finished_pass(monkeypatch):
    def interrupt(*args, **options):
        def press(done, bound):
            if done == 3:
                raise KeyboardInterrupt

        if options.get("interruptible"):
            options["report"] = press
        return fit_posterior(*args, **options)

    whole = batch(some_pixels(), max_iter=2)
    monkeypatch.setattr(batch_module, "fit_posterior", interrupt)
    stopped = batch(some_pixels(), max_iter=2)
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", 2)
    assert stopped.bounds[:2] == whole.bounds[:2]
    assert whole.bounds[1] < stopped.bounds[-1] < whole.bounds[-1]


def test_the_outcome_says_why_the_fit_stopped():
    pixels = some_pixels()
    short = batch(pixels, learn_frequencies=False, max_iter=1, tol=1e-12)
    long = batch(pixels, learn_frequencies=False, max_iter=500, tol=1e-3)
    assert (short.outcome, long.outcome) == ("max_iter", "converged")


def test_single_precision_follows_double():
    options = {"learn_frequencies": False, "max_iter": 30, "tol": 1e-5}
    fits = [batch(some_pixels(dtype=dtype), **options) for dtype in (np.float64, np.float32)]
    assert fits[1].posterior.mean.dtype == np.float64
    # Both stop within a tenth of 1e-5 x (|bound| + 100) a step of the same maximum.
    assert_allclose(fits[1].bounds[-1], fits[0].bounds[-1], rtol=1e-3)


# Early stopping
def assert_same_fit(one, other):
    assert (one.bounds, one.outcome, one.n_iter) == (other.bounds, other.outcome, other.n_iter)
    assert_array_equal(one.frequencies, other.frequencies)
    assert_array_equal(one.posterior.mean, other.posterior.mean)


def stop_early(**options):
    start = some_start(D=20, d=8, lengthscale=3.0)
    return batch(noisy_pixels(), start, early_stopping=True, max_iter=30, **options)


@pytest.fixture
def told(monkeypatch):
    """Every evidence, with each θ it was asked for a loss at, and the block it was asked of."""
    asked = []
    loss_of = FourierEvidence.held_back_loss

    def note(self, block, theta):
        loss = loss_of(self, block, theta)
        asked.append((self, block, theta.copy(), loss))
        return loss

    monkeypatch.setattr(FourierEvidence, "held_back_loss", note)
    return asked


def test_the_frequencies_are_those_under_which_held_back_rows_were_likeliest(told):
    fit = stop_early()
    losses = [loss for *_, loss in told]
    assert fit.held_back_losses == tuple(losses)
    # They got worse in the end, so that the test tests.
    assert min(losses) < losses[0]
    assert min(losses) < losses[-1]
    evidence, _, theta, _ = told[int(np.argmin(losses))]
    assert_array_equal(fit.frequencies, evidence.frequencies(theta))


def test_a_fit_ends_when_held_back_rows_have_not_become_likelier_for_a_while():
    fit = stop_early()
    assert fit.outcome == "converged"
    assert fit.n_iter == np.argmin(fit.held_back_losses) + PATIENCE < 30


def test_a_fit_that_stopped_early_is_resumed_to_the_same_end():
    kept = []
    whole = stop_early(report=lambda state: kept.append(replace(state, xi=state.xi.copy())))
    for state in kept:
        rest = stop_early(resume=state)
        assert rest.held_back_losses == whole.held_back_losses
        assert_same_fit(rest, whole)


def test_the_loss_is_that_of_rows_that_were_not_learned_from(told):
    pixels = some_pixels(n=100)
    batch(pixels, max_iter=2, early_stopping=True)
    for evidence, block, *_ in told:
        kept = evidence.pixels.rows[evidence.pixels.weight > 0]
        held, learned = ({tuple(row) for row in rows} for rows in (block.x, kept))
        assert (len(held), len(learned)) == (20, 80)
        assert held | learned == {tuple(row) for row in pixels.rows}


def test_the_labels_of_held_back_rows_do_not_lead_the_ascent():
    pixels, paths = some_pixels(n=100), []
    seed = int(np.random.default_rng(0).integers(2**63))
    _, held_back = hold_back(100, np.random.default_rng(seed))
    flipped = pixels.positive.copy()
    flipped[held_back] ^= True
    for positive in (pixels.positive, flipped):
        states = []
        given = replace(pixels, positive=positive)
        batch(given, max_iter=4, early_stopping=True, report=states.append)
        paths.append([state.ascent.theta for state in states])
    assert_array_equal(*paths)


def test_exact_passes_on_all_rows_end_an_early_stopped_fit_and_never_lower_the_bound():
    for seed in range(5):
        fit = batch(some_pixels(seed), some_start(seed), early_stopping=True)
        assert len(fit.bounds) > 2
        assert np.all(np.diff(fit.bounds) >= -1e-10 * np.abs(fit.bounds).max())


@pytest.mark.parametrize(
    ("n_rows", "learn_frequencies"),
    [(EARLY_STOPPING_ROWS - 1, True), (60, False)],
    ids=["few rows", "random frequencies"],
)
def test_nothing_is_held_back_from_a_few_rows_or_random_frequencies(n_rows, learn_frequencies):
    pixels, options = some_pixels(n=n_rows), {"learn_frequencies": learn_frequencies}
    early, whole = (batch(pixels, early_stopping=early, **options) for early in (True, False))
    assert early.held_back_losses == ()
    assert_same_fit(early, whole)


def test_of_thirty_rows_some_are_held_back():
    fit = batch(some_pixels(n=EARLY_STOPPING_ROWS), max_iter=2, early_stopping=True)
    assert len(fit.held_back_losses) == 3

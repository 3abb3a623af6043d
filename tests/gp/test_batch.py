"""The batch solver: the outer loop on simple bounds, the Fourier evidence, and the whole fit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from tests.gp.problems import (
    assert_same,
    central_differences,
    dense_features,
    latent_moments,
    one_against_rest,
    plain,
    repeat_rows,
    some_pixels,
)

from undulatus.gp.backends import HOST
from undulatus.gp.batch import (
    LENGTHSCALE_FACTOR,
    BatchConfig,
    BatchFit,
    FourierEvidence,
    LocalParameters,
    Progress,
    batch_posterior,
    evidence_gradient,
    fit_batch,
    maximise,
)
from undulatus.gp.data import Pixels
from undulatus.gp.inference import PosteriorConfig, WeightSpace, fit_posteriors
from undulatus.gp.likelihood import EXPECTED, QUADRATIC, lambda_xi, log_sigmoid_offset
from undulatus.gp.minibatch import Start
from undulatus.gp.posterior import expected_sigmoid
from undulatus.gp.splits import leave_out
from undulatus.gp.taper import frequency_deviations, prior_mean

seeds = st.integers(0, 2**32 - 1)

both_methods = pytest.mark.parametrize("learn_frequencies", [False, True], ids=["RFF", "VFF"])

each_way = pytest.mark.parametrize(
    ("learn_frequencies", "early_stopping"),
    [(False, False), (True, False), (True, True)],
    ids=["RFF", "VFF", "early VFF"],
)


# The outer loop

CONFIG = BatchConfig(10, 0.0)


class Hill:
    """A concave bound -|θ - top|² - gap, whose gap (of ξ) halves at each update of ξ."""

    def __init__(self, top=(1.0, -2.0), gap=1000.0, limit=10.0):
        self.top, self.gap = np.array(top), gap
        self.limits = [(-limit, limit)] * len(self.top)
        self.updates, self.tried = 0, []

    def update_xi(self, theta):
        self.updates += 1
        self.gap *= 0.5
        return self.value(theta)[0]

    def value_and_gradient(self, theta):
        found = self.value(theta)
        self.tried.append((found[0], theta.copy()))
        return found

    def value(self, theta):
        away = theta - self.top
        return -float(away @ away) - self.gap, -2.0 * away


class Cliff(Hill):
    """A bound with the wrong sign of the gradient: every step along it leads down."""

    def value(self, theta):
        value, gradient = super().value(theta)
        return value, -gradient


class Bump(Hill):
    """A bound exp(-(θ - 6)²/2), so flat far away that a line search of five trials fails."""

    def __init__(self):
        super().__init__(top=(6.0,), gap=0.0, limit=20.0)

    def value(self, theta):
        height = float(np.exp(-0.5 * np.sum((theta - self.top) ** 2)))
        return height, -(theta - self.top) * height


class Drifting(Hill):
    """A hill whose top moves by one along each axis in every iteration."""

    def __init__(self):
        super().__init__(top=(0.0,), limit=100.0)

    def update_xi(self, theta):
        self.top = self.top + 1.0 / CONFIG.updates_xi
        return super().update_xi(theta)


def run(evidence, progress=None, max_iter=5, tol=0.0, **options):
    """The end of an ascent from zero, and its state after each iteration."""
    seen = []

    def report(progress):
        # The bound that is reported is that at the hyperparameters.
        assert progress.bounds[-1] == evidence.value(progress.theta)[0]
        seen.append(progress)

    progress = progress or Progress(np.zeros(len(evidence.limits)))
    options = {"report": report} | options
    return maximise(evidence, progress, BatchConfig(max_iter, tol), **options), seen


def test_an_ascent_converges_to_the_top():
    hill = Hill()
    end, seen = run(hill, max_iter=100, tol=1e-8)
    assert end.outcome == "converged"
    assert_allclose(end.theta, hill.top, atol=1e-6)
    assert end.n_iter == len(end.bounds) == len(seen) < 100
    assert np.all(np.diff(end.bounds) >= 0)
    assert hill.updates == CONFIG.updates_xi * end.n_iter
    # It does nothing more.
    assert run(hill, end, max_iter=100, tol=1e-8) == (end, [])
    assert hill.updates == CONFIG.updates_xi * end.n_iter


def test_an_ascent_continues_from_any_of_its_states():
    whole, seen = run(Hill())
    assert (whole.outcome, whole.n_iter) == ("max_iter", 5)
    for state in seen:
        hill = Hill(gap=1000.0 * 0.5 ** (CONFIG.updates_xi * state.n_iter))
        assert_same(run(hill, state)[0], whole)


def test_an_iteration_evaluates_the_bound_a_limited_number_of_times():
    hill = Hill(top=np.linspace(-3, 3, 30))
    run(hill, max_iter=1)
    # A first point, and five trials a step.
    assert len(hill.tried) <= 1 + 5 * CONFIG.inner_steps


def test_a_step_that_lowers_the_bound_is_not_taken():
    end, _ = run(Cliff())
    assert_array_equal(end.theta, np.zeros(2))
    assert np.all(np.diff(end.bounds) >= 0)


def test_after_a_failed_line_search_the_best_point_that_was_tried_is_kept():
    bump, start = Bump(), Progress(np.array([2.5]))
    end, _ = run(bump, start, max_iter=1)
    value, theta = max(bump.tried, key=lambda point: point[0])
    assert end.bounds == (value,)
    assert_array_equal(end.theta, theta)
    run(Bump(), start)


def test_the_hyperparameters_stay_within_their_limits():
    end, _ = run(Hill(top=(50.0, -50.0), limit=2.0), max_iter=20, tol=1e-6)
    assert_allclose(end.theta, [2.0, -2.0])


@pytest.mark.parametrize("within", [False, True])
def test_an_interrupt_keeps_the_last_finished_iteration(within):
    class Interrupted(Hill):
        def update_xi(self, theta):
            if within and self.updates == 2 * CONFIG.updates_xi + 1:
                raise KeyboardInterrupt
            return super().update_xi(theta)

    def report(progress):
        if not within and progress.n_iter == 2:
            raise KeyboardInterrupt

    stopped, _ = run(Interrupted(), report=report)
    _, seen = run(Hill())
    assert_same(replace(stopped, outcome="max_iter"), seen[1])
    assert stopped.outcome == "interrupted"
    with pytest.raises(KeyboardInterrupt):
        run(Interrupted(), report=report, interruptible=False)


def test_an_interrupt_before_the_first_iteration_is_raised():
    class Interrupted(Hill):
        def update_xi(self, theta):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Interrupted())


# The outer loop with validation rows


def run_with_losses(losses, **options):
    """The end of an ascent with these losses at the start and after each iteration."""
    script = iter(losses)
    given = {"max_iter": len(losses) - 1, "validation_loss": lambda theta: next(script)}
    return run(Drifting(), **(given | options))


@given(st.lists(st.floats(0.0, 10.0), min_size=13, max_size=13, unique=True))
def test_the_best_theta_is_that_of_the_lowest_loss_until_that_has_not_fallen_for_long(losses):
    end, seen = run_with_losses(losses)
    over = [n for n in range(13) if n - np.argmin(losses[: n + 1]) >= CONFIG.patience]
    last = over[0] if over else 12
    assert end.n_iter == last
    assert end.outcome == ("converged" if over else "max_iter")
    assert end.losses == tuple(losses[: last + 1])
    assert [len(state.losses) for state in seen] == [state.n_iter + 1 for state in seen]
    thetas = [np.zeros(1), *(state.theta for state in seen)]
    assert_array_equal(end.best_theta, thetas[np.argmin(losses[: last + 1])])
    # Validation rows change only the end: the top is at 1, 2, 3, ... after each iteration.
    without, _ = run(Drifting(), max_iter=max(last, 1))
    assert without.bounds[:last] == end.bounds
    assert (without.losses, without.best_theta) == ((), None)


def test_an_ascent_with_losses_continues_to_the_same_end():
    losses = [3.0, 2.0, 1.0, *range(2, 12)]
    whole, seen = run_with_losses(losses)
    for state in seen:
        evidence, script = Drifting(), iter(losses[state.n_iter + 1 :])
        for _ in range(CONFIG.updates_xi * state.n_iter):
            evidence.update_xi(state.theta)
        options = {"max_iter": 12, "validation_loss": lambda theta, own=script: next(own)}
        assert_same(run(evidence, state, **options)[0], whole)


def test_an_interrupt_while_a_loss_is_computed_keeps_the_best_theta_if_there_is_one():
    def validation_loss(theta):
        losses.append(1.0 / (1.0 + len(losses)))
        if len(losses) == last:
            raise KeyboardInterrupt
        return losses[-1]

    losses, last = [], 3
    stopped, seen = run(Drifting(), validation_loss=validation_loss)
    assert stopped.outcome == "interrupted"
    assert_array_equal(stopped.best_theta, seen[0].theta)
    losses, last = [], 1
    with pytest.raises(KeyboardInterrupt):
        run(Drifting(), validation_loss=validation_loss)


# Problems in feature space


def some_start(seed=0, D=5, d=2, lengthscale=1.3, signal_variance=1.7):
    return Start(np.random.default_rng(seed).normal(size=(D, d)), lengthscale, signal_variance)


def some_evidence(learn_frequencies, seed=0, **options):
    """The evidence at ξ that are not at their optimum, and θ near the start."""
    pixels, start = some_pixels(seed, weighted=True, **options), some_start(seed)
    weight = pixels.weight
    xi = np.random.default_rng(seed).uniform(0.1, 3.0, (pixels.n_latents, pixels.n_rows))
    local = LocalParameters(2.0 * lambda_xi(xi), log_sigmoid_offset(xi) @ weight)
    evidence = FourierEvidence(pixels, start, learn_frequencies, local)
    variances = [0.5, 2.0, 7.0][: pixels.n_latents]
    return evidence, evidence.start_theta(variances), xi


# The evidence


@both_methods
@pytest.mark.parametrize("classes", [2, 3])
def test_the_starting_theta_describes_the_start(learn_frequencies, classes):
    evidence, theta, _ = some_evidence(learn_frequencies, classes=classes)
    start = evidence.start
    assert_allclose(evidence.frequencies(theta), start.frequencies, rtol=1e-14)
    variances = [0.5, 2.0, 7.0][: evidence.n_latents]
    assert_allclose(evidence.signal_variances(theta), variances, rtol=1e-14)
    assert_allclose(evidence.lengthscale(theta), start.lengthscale, rtol=1e-14)
    size = start.unit_frequencies.size if learn_frequencies else 1
    assert len(theta) == len(evidence.limits) == evidence.n_latents + size
    if not learn_frequencies:
        limits = 1.3 * np.array([1.0 / LENGTHSCALE_FACTOR, LENGTHSCALE_FACTOR])
        assert_allclose(np.exp(evidence.limits[-1]), limits, rtol=1e-12)


@both_methods
@pytest.mark.parametrize("classes", [2, 3])
def test_the_value_is_the_bound_of_dense_formulas(learn_frequencies, classes):
    evidence, theta, xis = some_evidence(learn_frequencies, classes=classes)
    theta = theta - 0.2
    pixels, expected = evidence.pixels, 0.0
    z, _ = dense_features(pixels.rows, evidence.frequencies(theta))
    for c, (gamma, xi) in enumerate(zip(evidence.signal_variances(theta), xis, strict=True)):
        v = pixels.weight * np.where(one_against_rest(pixels, c).codes, 0.5, -0.5)
        A = np.eye(10) + gamma * (z.T * (2.0 * pixels.weight * lambda_xi(xi))) @ z
        projected = np.sqrt(gamma) * z.T @ v
        fitted = projected @ np.linalg.solve(A, projected) - np.linalg.slogdet(A)[1]
        expected += 0.5 * fitted + pixels.weight @ log_sigmoid_offset(xi)
    assert_allclose(evidence.value_and_gradient(theta)[0], expected, rtol=1e-10)


@both_methods
@pytest.mark.parametrize("classes", [2, 3])
@given(seed=seeds)
@settings(max_examples=10)
def test_the_gradient_is_that_of_finite_differences(learn_frequencies, classes, seed):
    evidence, theta, _ = some_evidence(learn_frequencies, seed, n=25, classes=classes)
    theta = theta + 0.1
    _, found = evidence.value_and_gradient(theta)
    expected = central_differences(lambda at: evidence.value_and_gradient(at)[0], theta)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@both_methods
@pytest.mark.parametrize("classes", [2, 3])
def test_an_update_of_xi_sets_it_to_its_optimum_and_returns_the_bound_there(
    learn_frequencies, classes
):
    evidence, theta, _ = some_evidence(learn_frequencies, classes=classes)
    before, _ = evidence.value_and_gradient(theta)
    z, _ = dense_features(evidence.pixels.rows, evidence.frequencies(theta))
    expected = []
    for own in evidence.gaussians(theta):
        mean, variance = latent_moments(z, own.posterior, own.signal_variance)
        expected.append(np.sqrt(variance + mean**2))
    bound = evidence.update_xi(theta)
    assert bound > before
    assert_allclose(evidence.local.precision, 2.0 * lambda_xi(np.array(expected)), rtol=1e-10)
    offsets = log_sigmoid_offset(np.array(expected)) @ evidence.pixels.weight
    assert_allclose(evidence.local.offsets, offsets, rtol=1e-10)
    # Solved anew, from what is stored alone.
    again = FourierEvidence(evidence.pixels, evidence.start, learn_frequencies, evidence.local)
    assert_allclose(again.value_and_gradient(theta)[0], bound, rtol=1e-12)
    for _ in range(5):
        higher = evidence.update_xi(theta)
        assert higher >= bound - 1e-12 * abs(bound)
        bound = higher


@pytest.mark.parametrize("rows_per_block", [7, 60])
@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_and_threads_change_bound_and_gradient_only_by_rounding(rows_per_block, threads):
    evidence, theta, _ = some_evidence(True)
    pixels = replace(evidence.pixels, rows_per_block=rows_per_block, threads=threads)
    other = FourierEvidence(pixels, evidence.start, True, evidence.local)
    for one, same in zip(
        evidence.value_and_gradient(theta), other.value_and_gradient(theta), strict=True
    ):
        assert_allclose(one, same, rtol=1e-10, atol=1e-11)


def test_a_weight_equals_as_many_rows():
    evidence, theta, _ = some_evidence(True)
    counts = np.random.default_rng(1).integers(0, 4, 60)
    weighted = replace(evidence.pixels, weight=counts.astype(float))
    local = evidence.local
    repeated = LocalParameters(np.repeat(local.precision, counts, axis=1), local.offsets)
    one, other = (
        FourierEvidence(pixels, evidence.start, True, own)
        for pixels, own in ((weighted, local), (repeat_rows(weighted, counts), repeated))
    )
    pairs = zip(one.value_and_gradient(theta), other.value_and_gradient(theta), strict=True)
    for mine, theirs in pairs:
        assert_allclose(mine, theirs, rtol=1e-10, atol=1e-11)
    assert_allclose(one.update_xi(theta), other.update_xi(theta), rtol=1e-10)


def test_the_gradients_of_several_latent_functions_add_up():
    evidence, theta, _ = some_evidence(True, classes=3)
    gaussians, frequencies = evidence.gaussians(theta), evidence.frequencies(theta)
    precision = evidence.local.precision
    alone = [
        evidence_gradient(
            one_against_rest(evidence.pixels, c), frequencies, [gaussians[c]], precision[c : c + 1]
        )
        for c in range(3)
    ]
    found = evidence_gradient(evidence.pixels, frequencies, gaussians, precision)
    assert_allclose(found, np.sum(alone, axis=0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_validation_loss_is_that_of_the_posterior_at_theta(classes):
    evidence, theta, _ = some_evidence(True, classes=classes)
    pixels = evidence.pixels
    z, _ = dense_features(pixels.rows, evidence.frequencies(theta))
    scores = np.array(
        [
            expected_sigmoid(*latent_moments(z, own.posterior, own.signal_variance))
            for own in evidence.gaussians(theta)
        ]
    )
    if classes == 2:
        likelihood = np.where(pixels.codes, scores[0], 1.0 - scores[0])
    else:
        likelihood = (scores / scores.sum(axis=0))[pixels.codes, np.arange(60)]
    expected = -np.average(np.log(likelihood), weights=pixels.weight)
    found = evidence.validation_loss(pixels.block(np.arange(60)), theta)
    assert_allclose(found, expected, rtol=1e-10)


# Fitting


def fit(pixels, start=None, seed=0, early_stopping=False, log_odds=None, **options):
    """The fit of few iterations; with early stopping, a fifth of the rows is left out."""
    config = BatchConfig(options.pop("max_iter", 6), options.pop("tol", 0.0))
    split = leave_out(pixels, 1, np.random.default_rng(seed))[0] if early_stopping else None
    posterior = PosteriorConfig(options.pop("bound", QUADRATIC), 20, config.tol)
    options = {"learn_frequencies": True, "posterior": posterior, "split": split} | options
    log_odds = np.zeros(pixels.n_latents) if log_odds is None else np.array(log_odds)
    return fit_batch(BatchFit(pixels, start or some_start(), config, log_odds=log_odds, **options))


@both_methods
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_never_falls(learn_frequencies, seed):
    options = {"learn_frequencies": learn_frequencies, "max_iter": 15}
    fitted = fit(some_pixels(seed, weighted=True), some_start(seed), **options)
    assert len(fitted.bounds) == fitted.n_iter + 1
    assert np.all(np.diff(fitted.bounds) >= -1e-10 * np.abs(fitted.bounds).max())


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
@pytest.mark.parametrize("bound", [QUADRATIC, EXPECTED], ids=["quadratic", "expected"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_posterior_is_that_of_all_rows_at_the_final_frequencies(
    learn_frequencies, early_stopping, bound, classes
):
    pixels, states = some_pixels(classes=classes, weighted=True), []
    log_odds = np.linspace(-1.5, 0.5, pixels.n_latents)
    split = leave_out(pixels, 1, np.random.default_rng(0))[0] if early_stopping else None
    fitted = fit(
        pixels, learn_frequencies=learn_frequencies, split=split, tol=1e-5,
        bound=bound, taper=0.1, log_odds=log_odds, report=states.append,
    )  # fmt: skip
    assert fitted.taper == 0.1
    state = states[-1]
    theta = state.progress.best_theta if early_stopping else state.progress.theta
    learned_from = pixels.keep_weight_of(split[0]) if early_stopping else pixels
    evidence = FourierEvidence(learned_from, state.start, learn_frequencies, state.local)
    assert_array_equal(fitted.frequencies, evidence.frequencies(theta))
    assert fitted.lengthscale == evidence.lengthscale(theta)
    deviations = frequency_deviations(fitted.frequencies, 0.1)
    space = WeightSpace(pixels, fitted.frequencies, deviations, log_odds.tolist())
    config = PosteriorConfig(bound, 20, 1e-5)
    expected, _ = fit_posteriors(space, evidence.gaussians(theta), config)
    for own, other, odds in zip(fitted.latents, expected, log_odds, strict=True):
        # The posterior at θ was solved again from the ξ that are stored: rounding.
        assert_allclose(own.bounds, other.bounds, rtol=1e-8)
        assert_allclose(own.posterior.mean, other.posterior.mean, rtol=1e-5, atol=1e-6)
        b = prior_mean(odds, own.signal_variance) if bound is EXPECTED else 0.0
        assert own.prior_mean == b


def test_taper_and_prior_mean_do_not_change_the_frequencies():
    options = {"max_iter": 2, "early_stopping": True, "bound": EXPECTED}
    one = fit(some_pixels(), **options)
    other = fit(some_pixels(), taper=0.1, log_odds=[-1.5], **options)
    assert_array_equal(one.frequencies, other.frequencies)
    assert one.validation_losses == other.validation_losses
    assert not np.array_equal(one.latents[0].posterior.mean, other.latents[0].posterior.mean)


@each_way
def test_threads_do_not_change_a_bit_of_a_fit(learn_frequencies, early_stopping):
    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    one, three = (
        fit(some_pixels(threads=threads, rows_per_block=7), max_iter=3, **options)
        for threads in (1, 3)
    )
    assert_same(one, three)


def copy_of(state):
    """The state with its own local parameters, which the fit goes on to change."""
    local = LocalParameters(state.local.precision.copy(), state.local.offsets.copy())
    return replace(state, local=local)


@each_way
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_resumed_fit_is_the_uninterrupted_one_bit_for_bit(
    learn_frequencies, early_stopping, dtype
):
    pixels, kept = some_pixels(dtype=dtype, classes=3), []
    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    whole = fit(pixels, report=lambda state: kept.append(copy_of(state)), **options)
    for state in kept[:-1:2]:
        before = copy_of(state)
        resumed = fit(pixels, resume=state, **options)
        assert_same(state, before)
        # The reported state has no posterior: it is solved again from the ξ that are stored.
        assert resumed.n_iter == whole.n_iter
        assert_allclose(resumed.frequencies, whole.frequencies, rtol=1e-10, atol=1e-12)
        assert_same(resumed, whole)


@pytest.mark.parametrize("bound", [QUADRATIC, EXPECTED], ids=["quadratic", "expected"])
def test_an_interrupted_fit_ends_at_the_last_finished_iteration(bound):
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    pixels, options = some_pixels(), {"bound": bound}
    stopped, short = (
        fit(pixels, max_iter=9, report=report, **options),
        fit(pixels, max_iter=2, **options),
    )
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", 2)
    assert_array_equal(stopped.frequencies, short.frequencies)
    assert stopped.bounds[:2] == short.bounds[:2] or bound is EXPECTED
    with pytest.raises(KeyboardInterrupt):
        fit(pixels, max_iter=9, report=report, interruptible=False, **options)


@pytest.mark.parametrize("bound", [QUADRATIC, EXPECTED], ids=["quadratic", "expected"])
def test_an_interrupt_in_the_final_passes_keeps_the_last_finished_one(bound):
    def report_pass(done, bound):
        if done == 2:
            raise KeyboardInterrupt

    options = {"max_iter": 2, "bound": bound, "taper": 0.1}
    whole, stopped = (
        fit(some_pixels(), **options),
        fit(some_pixels(), report_pass=report_pass, **options),
    )
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", 2)
    assert stopped.bounds == whole.bounds[: len(stopped.bounds)]
    assert stopped.bounds[-1] < whole.bounds[-1]
    with pytest.raises(KeyboardInterrupt):
        fit(some_pixels(), report_pass=report_pass, interruptible=False, **options)


def test_the_outcome_says_why_the_fit_stopped():
    short = fit(some_pixels(), learn_frequencies=False, max_iter=1, tol=1e-12)
    long = fit(some_pixels(), learn_frequencies=False, max_iter=500, tol=1e-3)
    assert (short.outcome, long.outcome) == ("max_iter", "converged")


def test_single_precision_follows_double():
    options = {"learn_frequencies": False, "max_iter": 30, "tol": 1e-5}
    fits = [fit(some_pixels(dtype=dtype), **options) for dtype in (np.float64, np.float32)]
    assert fits[1].latents[0].posterior.mean.dtype == np.float64
    # Both stop where a pass gains less than a tenth of 1e-5 x (|bound| + 100).
    assert_allclose(fits[1].bounds[-1], fits[0].bounds[-1], rtol=1e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_fit_on_a_device_is_that_on_the_processor(classes):
    pytest.importorskip("torch", reason="torch is not installed")
    pixels = some_pixels(classes=classes, weighted=True)
    options = {"max_iter": 2, "taper": 0.1, "early_stopping": True}
    here, there = fit(pixels, **options), fit(pixels.on("cpu", False, 5), **options)
    assert_allclose(there.frequencies, here.frequencies, rtol=1e-6, atol=1e-8)
    assert_allclose(there.validation_losses, here.validation_losses, rtol=1e-7)
    assert_allclose(there.bounds, here.bounds, rtol=1e-6)
    assert isinstance(there.latents[0].posterior.mean, np.ndarray)


def test_the_tolerance_of_the_quadratic_passes_is_a_tenth():
    assert batch_posterior(EXPECTED, 1e-3) == PosteriorConfig(EXPECTED, 20, 1e-3)
    assert batch_posterior(QUADRATIC, 1e-3) == PosteriorConfig(QUADRATIC, 20, 1e-4)


# Early stopping


def noisy_pixels(n=100, d=8):
    """Rows with one feature that depends a little on the class, and seven that do not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return Pixels(x, x[:, 0] + rng.normal(size=n) > 0, None, plain(d), HOST, 64)


def stop_early(**options):
    start = some_start(D=20, d=8, lengthscale=3.0)
    return fit(noisy_pixels(), start, early_stopping=True, max_iter=30, **options)


def test_the_frequencies_are_those_with_the_lowest_validation_loss():
    states = []
    fitted = stop_early(report=states.append)
    losses = fitted.validation_losses
    # The loss rises again in the end, or this test would show nothing.
    assert min(losses) < losses[0]
    assert min(losses) < losses[-1]
    best = int(np.argmin(losses))
    theta = states[best - 1].progress.theta
    assert_array_equal(fitted.frequencies.ravel(), theta[1:] / 3.0)
    assert fitted.outcome == "converged"
    assert fitted.n_iter == best + CONFIG.patience < 30


def test_a_fit_that_stopped_early_is_resumed_to_the_same_end():
    kept = []
    whole = stop_early(report=lambda state: kept.append(copy_of(state)))
    for state in kept[::3]:
        assert_same(stop_early(resume=state), whole)


def test_the_labels_of_validation_rows_do_not_affect_the_frequencies_on_the_way():
    pixels, paths = some_pixels(n=100), []
    split = leave_out(pixels, 1, np.random.default_rng(0))[0]
    flipped = pixels.codes.copy()
    flipped[split[1]] ^= True
    for codes in (pixels.codes, flipped):
        states = []
        fit(replace(pixels, codes=codes), max_iter=4, split=split, report=states.append)
        paths.append([state.progress.theta for state in states])
    assert_array_equal(*paths)

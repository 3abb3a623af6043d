"""Frequencies learned on minibatches: every step, the schedule, the best parameters, resuming."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.gp.problems import (
    assert_same,
    central_differences,
    dense_features,
    latent_moments,
    plain,
    quadratic_bound,
    repeat_rows,
    some_pixels,
)

from undulatus.errors import NumericalError
from undulatus.gp import minibatch
from undulatus.gp.backends import HOST, to_host
from undulatus.gp.data import Pixels
from undulatus.gp.inference import AscentConfig, WeightSpace, fit_quadratic
from undulatus.gp.minibatch import Batch, Config, Start, State, Task, optimise
from undulatus.gp.posterior import expected_sigmoid
from undulatus.gp.splits import leave_out
from undulatus.gp.taper import frequency_deviations

both_methods = pytest.mark.parametrize("learn_frequencies", [False, True], ids=["RFF", "VFF"])


def some_start(D=5, d=2, seed=0):
    return Start(np.random.default_rng(seed).normal(size=(D, d)), 1.3, 1.7)


def some_task(pixels=None, start=None, seed=5, split=None, **options):
    """A task that may last as long as ``max_iter`` says."""
    pixels = some_pixels(n=400) if pixels is None else pixels
    if not pixels.xp.on_device:
        pixels = pixels.standardised(pixels.dtype)
    split = split or leave_out(pixels, 1, np.random.default_rng(seed))[0]
    options = {
        "batch_size": 128, "max_iter": 3, "tol": 0.0, "n_total": pixels.n_rows,
        "early_stopping": False, "fewest_iterations": 10_000,
    } | options  # fmt: skip
    return Task(pixels, split, start or some_start(d=pixels.n_features), Config(**options), seed)


def go_on(task, state=None, max_iter=None, **options):
    """The state at the end, and a copy of that after each iteration."""
    seen = []
    (end,) = optimise(
        [task],
        [state or task.first_state()],
        max_iter=max_iter or task.config.max_iter,
        reports=[seen.append],
        **options,
    )
    return end, seen


# Every step, against whole matrices


def slow_steps(task, state, steps):
    """The parameters and losses after some steps from a state at step 0, written out."""
    config, pixels, (_, held_out) = task.config, task.pixels, task.split
    w, gammas = state.parameters.frequencies.copy(), state.parameters.signal_variances.copy()
    grams, hs = state.parameters.gram.copy(), state.parameters.projected.copy()
    k, unit = 2 * len(w), np.sqrt(np.mean(w**2))
    mean_w = square_w = mean_s = square_s = 0.0
    sigma = state.parameters.lengthscale
    signs = np.array(
        [np.where(pixels.against_rest(c).codes, 1.0, -1.0) for c in range(len(gammas))]
    )
    weights = np.ones(pixels.n_rows) if pixels.weight is None else pixels.weight

    def moments():
        """Of the weights of unit features, and the ratio of γ at its fixed point to γ."""
        for gamma, gram, h in zip(gammas, grams, hs, strict=True):
            S = np.linalg.inv(np.eye(k) + gamma * gram)
            m = np.sqrt(gamma) * S @ h
            yield np.sqrt(gamma) * m, gamma * S, (np.trace(S) + m @ m) / k

    found = list(moments())
    for step in range(1, steps + 1):
        rho = max(step**-0.6, 0.1)
        rows = task.minibatch(step - 1)
        x, weight, batch = pixels.rows[rows], weights[rows], len(rows)
        z, untapered = dense_features(x, w, frequency_deviations(w, config.taper))
        sampled = min(config.covariance_rows, batch)
        gradient = 0.0
        for c, (m, S, _) in enumerate(found):
            sign, mean, variance = signs[c][rows], z @ m, np.einsum("ij,jk,ik->i", z, S, z)
            variance[sampled:] = variance[:sampled].mean()
            precision, _, _ = quadratic_bound(mean, variance + gammas[c] * untapered, sign)
            # Eq. 11: posterior and ξ stay. Some rows stand for all in S z.
            in_features = (weight * (0.5 * sign - precision * mean))[:, None] * m
            own = (batch / sampled) * (weight * precision)[:sampled, None]
            in_features[:sampled] -= own * (z[:sampled] @ S)
            in_phases = in_features[:, k // 2 :] * z[:, : k // 2]
            in_phases -= in_features[:, : k // 2] * z[:, k // 2 :]
            gradient = gradient + in_phases.T @ x
            scale = rho * config.n_total / batch
            grams[c] = (1 - rho) * grams[c] + scale * (z.T * (weight * precision)) @ z
            hs[c] = (1 - rho) * hs[c] + scale * z.T @ (0.5 * weight * sign)
        in_scales = np.sum(gradient * w, axis=0)
        if not config.learn_frequencies:
            in_scales = np.full_like(in_scales, in_scales.sum())
        mean_s, square_s = 0.9 * mean_s + 0.1 * in_scales, 0.99 * square_s + 0.01 * in_scales**2
        direction = (mean_s / (1 - 0.9**step)) / np.sqrt(square_s / (1 - 0.99**step))
        growth = np.exp(config.scale_step * direction)
        w, sigma = w * growth, sigma / growth[0]
        if config.learn_frequencies:
            mean_w = 0.9 * mean_w + 0.1 * gradient
            square_w = 0.99 * square_w + 0.01 * gradient**2
            direction = (mean_w / (1 - 0.9**step)) / np.sqrt(square_w / (1 - 0.99**step))
            w = w + config.frequency_step * unit * direction
        if step % config.steps_per_factorisation == 0:
            ratios = np.array([ratio for *_, ratio in found])
            gammas = np.minimum(gammas * ratios**config.variance_exponent, 100.0)
            found = list(moments())
    found = list(moments())
    z, untapered = dense_features(pixels.rows[held_out], w, frequency_deviations(w, config.taper))
    variances = [np.einsum("ij,jk,ik->i", z, S, z) for _, S, _ in found]
    variances += gammas[:, None] * untapered
    scores = expected_sigmoid(np.array([z @ m for m, *_ in found]), variances)
    if len(gammas) == 1:
        likelihood = np.where(pixels.codes[held_out], scores[0], 1.0 - scores[0])
    else:
        likelihood = scores[pixels.codes[held_out], np.arange(len(z))] / scores.sum(axis=0)
    loss = np.average(-np.log(likelihood), weights=weights[held_out])
    return w, sigma, gammas, grams, hs, loss


@both_methods
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("taper", [0.0, 0.2])
def test_an_iteration_is_that_of_whole_matrices(learn_frequencies, classes, taper):
    pixels = some_pixels(n=200, classes=classes, weighted=True)
    options = {"batch_size": 40, "covariance_rows": 15, "piece_rows": 100, "taper": taper}
    task = some_task(pixels, n_total=1000, learn_frequencies=learn_frequencies, **options)
    first = task.first_state()
    end, _ = go_on(task, first, max_iter=1)
    w, sigma, gammas, grams, hs, loss = slow_steps(task, first, 25)
    found = end.parameters
    # Rounding grows from step to step.
    assert_allclose(found.frequencies, w, rtol=1e-8, atol=1e-10)
    assert_allclose(found.signal_variances, gammas, rtol=1e-8)
    assert_allclose(found.gram, grams, rtol=1e-7, atol=1e-7)
    assert_allclose(found.projected, hs, rtol=1e-7, atol=1e-7)
    assert_allclose(end.losses, [loss], rtol=1e-8)
    expected = task.start.lengthscale if learn_frequencies else sigma
    assert_allclose(found.lengthscale, expected, rtol=1e-8)


def test_the_gradient_of_a_minibatch_is_that_of_the_bound_at_fixed_posterior_and_taper():
    pixels = some_pixels(n=60, classes=3, weighted=True)
    task = some_task(pixels, some_start(D=3), taper=0.2)
    state = task.first_state()
    *_, gradient = Batch([task], [state])._sums(np.arange(60)[None])
    w = state.parameters.frequencies
    deviations = frequency_deviations(w, 0.2)

    def moments(own, sign, frequencies):
        z, untapered = dense_features(pixels.rows, frequencies, deviations)
        mean, variance = latent_moments(z, own.posterior, own.signal_variance)
        return mean, variance + own.signal_variance * untapered

    def bound(frequencies):
        total = 0.0
        for c, own in enumerate(state.parameters.gaussians()):
            sign = np.where(pixels.codes == c, 1.0, -1.0)
            precision = quadratic_bound(*moments(own, sign, w), sign)[0]
            mean, variance = moments(own, sign, frequencies)
            own_values = 0.5 * sign * mean - 0.5 * precision * (mean**2 + variance)
            total += pixels.weight @ own_values
        return total

    assert_allclose(gradient[0], central_differences(bound, w), rtol=1e-6, atol=1e-7)


def test_the_first_state_is_the_quadratic_posterior_of_some_rows_scaled_to_all():
    task = some_task(some_pixels(n=500), n_total=4000, start_rows=150)
    learning, _ = task.split
    some = task.pixels.take(learning[::3])
    assert some.n_rows <= 150
    space = WeightSpace(some, task.start.frequencies)
    (end,) = fit_quadratic(space, 1.7, AscentConfig(4, variance_limit=100.0))
    state, scale = task.first_state(), 4000 / some.n_rows
    assert_allclose(state.parameters.gram[0], scale * end.gaussian.sites.gram, rtol=1e-12)
    assert_allclose(
        state.parameters.projected[0], scale * end.gaussian.sites.projected, rtol=1e-12
    )
    assert state.parameters.signal_variances[0] == end.gaussian.signal_variance
    *_, loss = slow_steps(task, state, 0)
    assert_allclose(state.best_loss, loss, rtol=1e-9)
    assert (state.best_iter, state.n_iter, state.step) == (0, 0, 0)
    assert_same(state.best, state.parameters)


def test_a_weight_of_a_row_to_learn_from_counts_as_much_in_the_sums_of_a_minibatch():
    counts = np.random.default_rng(0).integers(0, 4, 60)
    pixels = replace(some_pixels(n=60), weight=counts.astype(float))
    sums = []
    for own in (pixels, repeat_rows(pixels, counts)):
        task = some_task(own, batch_size=10**6, split=(np.arange(own.n_rows),) * 2)
        state = replace(task.first_state(), parameters=some_task(pixels).first_state().parameters)
        # Fewer rows than are multiplied by the covariance: all are.
        sums.append(Batch([task], [state])._sums(np.arange(own.n_rows)[None]))
    for one, other in zip(*sums, strict=True):
        assert_allclose(one, other, rtol=1e-10, atol=1e-10)


# Minibatches


@both_methods
def test_steps_and_iterations_are_counted(learn_frequencies):
    end, seen = go_on(some_task(learn_frequencies=learn_frequencies, max_iter=4))
    assert [state.n_iter for state in seen] == list(range(1, end.n_iter + 1))
    assert [state.step for state in seen] == [25 * state.n_iter for state in seen]


def test_each_epoch_uses_every_learning_row_once_and_in_another_order():
    task = some_task(batch_size=80, split=(np.arange(320), np.arange(320, 400)))
    minibatches = [task.minibatch(step) for step in range(24)]
    for start in range(0, 24, 4):
        assert len(np.unique(np.concatenate(minibatches[start : start + 4]))) == 320
    assert not np.array_equal(minibatches[0], minibatches[4])
    # A minibatch depends on seed and step alone, whatever came before.
    assert_array_equal(task.minibatch(3), minibatches[3])


def test_a_batch_size_above_the_number_of_rows_uses_all_rows():
    task = some_task(some_pixels(n=100), batch_size=10**6, max_iter=1)
    assert_array_equal(np.sort(task.minibatch(7)), task.split[0])
    end, _ = go_on(task)
    assert np.all(np.isfinite(end.parameters.frequencies))


@pytest.mark.parametrize("n_rows", [5, 9])
def test_both_classes_of_a_handful_of_rows_are_learned_from_and_used_for_validation(n_rows):
    task = some_task(some_pixels(n=n_rows), max_iter=1)
    learning, validation = task.split
    assert len(learning) + len(validation) == n_rows
    for part in task.split:
        assert set(task.pixels.codes[part]) == {False, True}
    end, _ = go_on(task)
    assert np.all(np.isfinite(end.parameters.frequencies))
    assert np.all(np.isfinite(end.losses))


def test_the_seed_determines_the_end():
    one, same, other = (go_on(some_task(seed=seed))[0] for seed in (5, 5, 6))
    assert_same(one, same)
    assert not np.array_equal(one.parameters.gram, other.parameters.gram)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_do_not_change_a_bit(dtype):
    # Minibatches of 1,200 rows are five pieces.
    one, other = (
        go_on(
            some_task(
                some_pixels(n=1500, threads=threads, dtype=dtype),
                batch_size=1200, max_iter=1, piece_rows=256,
            )
        )[0]
        for threads in (1, 3)
    )  # fmt: skip
    assert_same(one, other)


def test_pieces_change_sums_only_by_rounding():
    # All rows are multiplied by the covariance: none stands for others.
    one, other = (
        go_on(some_task(batch_size=300, max_iter=1, piece_rows=rows))[0] for rows in (300, 77)
    )
    assert_allclose(other.parameters.frequencies, one.parameters.frequencies, rtol=1e-8)
    assert_allclose(other.losses, one.losses, rtol=1e-8)


def test_single_precision_follows_double():
    # Over one iteration: later, steps that differ by rounding lead to other minima.
    double, single = (
        go_on(some_task(some_pixels(n=400, dtype=dtype), max_iter=1))[0] for dtype in ("f8", "f4")
    )
    assert single.parameters.gram.dtype == np.float64
    assert_allclose(single.losses, double.losses, rtol=1e-2)


# What is learned


def test_random_frequencies_keep_their_directions():
    task = some_task(learn_frequencies=False)
    end, _ = go_on(task)
    ratio = end.parameters.frequencies / task.start.frequencies
    assert_allclose(ratio, ratio[0, 0], rtol=1e-10)
    assert ratio[0, 0] != 1.0
    assert_allclose(end.parameters.lengthscale, 1.3 / ratio[0, 0], rtol=1e-10)


def test_learned_frequencies_change_their_directions_and_keep_the_lengthscale():
    task = some_task()
    end, _ = go_on(task)
    assert np.ptp(end.parameters.frequencies / task.start.frequencies) > 1e-3
    assert end.parameters.lengthscale == 1.3


def test_learning_lowers_the_loss_of_validation_rows():
    end, _ = go_on(some_task(some_pixels(n=2000), max_iter=12))
    # Guessing costs log 2.
    assert end.losses[-1] < min(end.losses[0], np.log(2.0))


def test_the_signal_variance_stays_below_its_limit_while_frequencies_move():
    task = some_task(start=replace(some_start(), signal_variance=1e5))
    _, seen = go_on(task)
    highest = max(state.parameters.signal_variances[0] for state in seen)
    assert highest <= task.config.variance_limit * (1 + 1e-12)


def test_the_signal_variance_follows_its_fixed_point_up_to_its_limit():
    task = some_task(some_pixels(n=60, classes=3))
    batch = Batch([task], [task.first_state()])
    batch._variances[...], batch._ratio[...] = [[10.0, 90.0, 8.0]], [[2.0, 1e6, 0.5]]
    batch._follow_variances()
    exponent = task.config.variance_exponent
    expected = [[10.0 * 2.0**exponent, 100.0, 8.0 * 0.5**exponent]]
    assert_allclose(batch._variances, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "unit_frequencies",
    [np.random.default_rng(0).normal(size=(5, 2)), np.full((5, 2), 0.7)],
    ids=["random", "equal"],
)
def test_a_step_is_a_share_of_the_root_mean_square_of_the_starting_frequencies(unit_frequencies):
    task = some_task(start=Start(unit_frequencies, 1.3, 1.7), steps_per_iteration=1)
    end, _ = go_on(task, max_iter=1)
    before, after = task.start.frequencies, end.parameters.frequencies
    # Adam's first direction is ±1: first in each feature's scale, then in each frequency.
    scale, size = task.config.scale_step, task.config.frequency_step * np.sqrt(np.mean(before**2))
    longer, shorter = (np.abs(after - before * np.exp(sign * scale)) for sign in (1, -1))
    for column in range(2):
        assert any(np.allclose(own[:, column], size, rtol=1e-9) for own in (longer, shorter))


@both_methods
def test_steps_are_annealed_to_zero(learn_frequencies):
    # With a tolerance of -1 the loss never stalls, and steps are annealed at the end.
    task = some_task(max_iter=20, tol=-1.0, learn_frequencies=learn_frequencies)
    end, seen = go_on(task)
    moves = [
        np.linalg.norm(after.parameters.frequencies - before.parameters.frequencies)
        for before, after in pairwise(seen)
    ]
    assert (end.outcome, end.anneal_from) == ("converged", 12 * 25)
    # The last of eight annealed iterations takes steps of (1 - cos(π/8)) / 2, under 4 %.
    assert moves[-1] < 0.1 * max(moves)


# The schedule


def last_iteration(task, losses):
    """The iteration with which an optimisation of these losses ends that anneals when it must."""
    state = replace(task.first_state(), best_loss=np.inf)
    for done in range(1, len(losses) + 1):
        step = done * task.config.steps_per_iteration
        state = task.record(replace(state, step=step), losses[done - 1])
        if state.outcome == "converged":
            return done
    return None


def test_annealing_ends_with_the_last_iteration_or_just_before():
    for iterations in range(2, 60):
        task = some_task(some_pixels(n=50), max_iter=iterations, batch_size=1, tol=-1.0)
        planned = task.config.planned_steps(10, 40) // 25
        assert planned <= task.config.planned_steps(15, 40) // 25 <= iterations
        # One iteration of full steps more makes one or two iterations more in all.
        assert planned - 1 <= last_iteration(task, np.ones(60)) <= planned


@pytest.mark.parametrize("n_learning", [40, 320, 5000, 20_000])
def test_each_row_is_planned_to_be_seen_so_often_but_no_longer_than_allowed(n_learning):
    config = Config(64, 200, 0.0, n_learning)
    for epochs in (config.epochs, config.more_epochs):
        steps = config.planned_steps(epochs, n_learning)
        size = min(64, n_learning)
        assert steps * size / n_learning >= epochs or steps == 200 * 25
        # No more than one iteration too many, unless it is the shortest.
        assert (steps - 25) * size / n_learning < epochs or steps == 12 * 25
    assert replace(config, max_iter=3).planned_steps(15, n_learning) == 3 * 25


def test_an_optimisation_goes_on_for_longer_while_its_loss_falls():
    task = some_task(
        some_pixels(n=5010), batch_size=64, max_iter=1000, tol=-1.0, fewest_iterations=12,
        split=(np.arange(5000), np.arange(5000, 5010)),
    )  # fmt: skip
    planned, most = (task.config.planned_steps(epochs, 5000) // 25 for epochs in (10, 15))
    assert most > 1.4 * planned
    rising, hardly, falling = (np.exp(rate * np.arange(most)) for rate in (0.01, -1e-4, -0.01))
    assert last_iteration(task, rising) in (planned - 1, planned)
    assert last_iteration(task, hardly) in (planned - 1, planned)
    assert last_iteration(task, falling) in (most - 1, most)


def test_a_loss_that_stalls_begins_the_annealing():
    task = some_task(max_iter=200, tol=1e-3)
    # Two windows of 16 iterations without a fall, then two thirds as many annealed ones.
    assert last_iteration(task, np.ones(100)) == 32 + round(32 * 0.4 / 0.6)
    fixed = some_task(max_iter=200, tol=1e-3, learn_frequencies=False)
    assert last_iteration(fixed, np.ones(100)) == 4 + round(4 * 0.4 / 0.6)


# The best parameters, and early stopping


def coins(seed, n=400):
    """Rows whose labels are coin flips: only noise can be learned."""
    rng = np.random.default_rng(seed)
    return Pixels(rng.normal(size=(n, 10)), rng.random(n) < 0.5, None, plain(10), HOST, 256)


def task_on_coins(seed=0, **options):
    start = Start(np.random.default_rng(seed).normal(size=(30, 10)), 3.0, 1.0)
    return some_task(coins(seed), start, **({"max_iter": 25} | options))


def smooth(losses):
    return [np.mean(losses[max(0, i - 3) : i]) for i in range(1, len(losses) + 1)]


def has_worsened(losses, config):
    best = int(np.argmin(smooth(losses)))
    since, window = losses[best + 1 :], config.worsening_window
    limit = config.worsening_factor * smooth(losses)[best]
    return len(since) >= window and np.median(since[-window:]) > limit


@pytest.mark.parametrize("noise", [False, True])
def test_the_parameters_of_the_lowest_smoothed_loss_are_remembered(noise):
    task = task_on_coins(max_iter=12) if noise else some_task(max_iter=12)
    start = task.first_state()
    _, seen = go_on(task, start)
    copies = [start.parameters, *(state.parameters for state in seen)]
    for state in seen:
        smoothed = [start.best_loss, *smooth(state.losses)]
        lowest = int(np.argmin(smoothed))
        assert state.best_iter == lowest
        assert_allclose(state.best_loss, smoothed[lowest], rtol=1e-12)
        assert_same(state.best, copies[lowest])


def test_steps_leave_the_states_that_were_reported_as_they_were():
    copies = []

    def report(state):
        own = state.parameters
        copies.append((state, own.gram.copy(), own.projected.copy(), own.frequencies.copy()))

    task = some_task(max_iter=4)
    optimise([task], [task.first_state()], max_iter=4, reports=[report])
    for state, gram, projected, frequencies in copies:
        assert_array_equal(state.parameters.gram, gram)
        assert_array_equal(state.parameters.projected, projected)
        assert_array_equal(state.parameters.frequencies, frequencies)


def test_early_stopping_ends_as_soon_as_the_losses_have_worsened():
    task = task_on_coins(early_stopping=True)
    stopped, whole = go_on(task)[0], go_on(task_on_coins())[0]
    assert stopped.outcome == "converged"
    assert task.config.worsening_window < stopped.n_iter < whole.n_iter
    assert_array_equal(stopped.losses, whole.losses[: stopped.n_iter])
    ends = [has_worsened(whole.losses[:n], task.config) for n in range(1, whole.n_iter + 1)]
    assert ends.index(True) + 1 == stopped.n_iter


@pytest.mark.parametrize("seed", range(5))
def test_the_end_is_by_the_median_of_the_last_losses_whatever_the_outliers(seed):
    # Losses that grow slowly, one in five of them ten times too large.
    rng = np.random.default_rng(seed)
    losses = np.linspace(1.0, 1.4, 40) * rng.uniform(0.9, 1.1, 40)
    losses *= np.where(rng.random(40) < 0.2, 10.0, 1.0)
    task = some_task(some_pixels(n=50), early_stopping=True, max_iter=400, tol=-1.0)
    ends = [has_worsened(losses[:n], task.config) for n in range(1, 41)]
    assert last_iteration(task, losses) == ends.index(True) + 1 < 40


def test_stopping_before_noise_is_learned_is_better_on_new_rows():
    task = task_on_coins(early_stopping=True)
    new = replace(task, pixels=coins(1, n=2000), split=(np.arange(2000),) * 2)
    stopped, whole = go_on(task)[0], go_on(task_on_coins())[0]
    early, late = (
        Batch([new], [replace(stopped, parameters=own)]).losses()[0]
        for own in (stopped.best, whole.parameters)
    )
    # Coins cost log 2; a loss of 1.2 nats is that of a sure and often wrong classifier.
    assert early < np.log(2.0) + 0.05
    assert late > early + 0.3


# Resuming and interrupts


@both_methods
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_resumed_optimisation_is_the_uninterrupted_one(learn_frequencies, early_stopping):
    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    task = some_task(max_iter=4, **options)
    whole, seen = go_on(task)
    for state in seen:
        assert_same(go_on(some_task(max_iter=4, **options), state)[0], whole)


def test_an_optimisation_that_has_ended_does_nothing_more():
    task = task_on_coins(early_stopping=True)
    whole, seen = go_on(task)
    assert go_on(task, whole)[0] is whole
    for state in seen[::4]:
        assert_same(go_on(task_on_coins(early_stopping=True), state)[0], whole)


def test_an_interrupt_keeps_the_last_finished_iteration():
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    task = some_task(max_iter=10)
    start = [task.first_state()]
    (stopped,) = optimise([task], start, max_iter=10, interruptible=True, reports=[report])
    assert stopped.outcome == "interrupted"
    _, seen = go_on(task)
    assert_same(replace(stopped, outcome="max_iter"), seen[1])
    with pytest.raises(KeyboardInterrupt):
        optimise([task], start, max_iter=10, reports=[report])


def test_an_interrupt_before_the_first_iteration_is_raised(monkeypatch):
    def interrupt(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(Batch, "_take_step", interrupt)
    task = some_task()
    with pytest.raises(KeyboardInterrupt):
        optimise([task], [task.first_state()], max_iter=3, interruptible=True)


# Several estimators at once


def tasks_on_a_device(n=3, classes=3, **options):
    """Tasks of estimators with starts, seeds and validation rows of their own."""
    pytest.importorskip("torch", reason="torch is not installed")
    pixels = some_pixels(n=300, classes=classes, weighted=True)
    splits = leave_out(pixels, n, np.random.default_rng(0))
    return [
        some_task(pixels.on("cpu", False, 5), some_start(seed=i), i, splits[i], **options)
        for i in range(n)
    ]


def on_the_host(task):
    pixels = some_pixels(n=300, classes=task.pixels.n_classes, weighted=True)
    return Task(pixels, task.split, task.start, task.config, task.seed)


@both_methods
def test_estimators_that_learn_together_are_those_that_learn_alone(learn_frequencies):
    options = {"taper": 0.1, "learn_frequencies": learn_frequencies, "covariance_rows": 60}
    # An iteration: rounding grows from step to step.
    tasks = tasks_on_a_device(batch_size=100, **options)
    states = [task.first_state() for task in tasks]
    together = optimise(tasks, states, max_iter=1)
    for task, state, found in zip(tasks, states, together, strict=True):
        own = on_the_host(task)
        first = own.first_state()
        assert_allclose(state.best_loss, first.best_loss, rtol=1e-9)
        (alone,), (on_host,) = (
            optimise([task], [state], max_iter=1),
            optimise([own], [first], max_iter=1),
        )
        for expected in (alone, on_host):
            for name in ("frequencies", "signal_variances", "gram", "projected", "lengthscale"):
                one, other = (to_host(getattr(end.parameters, name)) for end in (found, expected))
                assert_allclose(one, other, rtol=1e-6, atol=1e-6)
            assert_allclose(found.losses, expected.losses, rtol=1e-6)


def test_estimators_end_at_their_own_iterations():
    tasks = tasks_on_a_device(classes=2, max_iter=8, tol=-1.0, batch_size=100)
    tasks[1].config = replace(tasks[1].config, max_iter=8)
    states = [task.first_state() for task in tasks]
    ahead = optimise(tasks[:1], states[:1], max_iter=2)
    reported = []
    ends = optimise(
        tasks, [*ahead, *states[1:]], max_iter=8,
        reports=[lambda state, own=own: reported.append((own, state.n_iter)) for own in range(3)],
    )  # fmt: skip
    # Each iteration of each is reported once, and those behind went first.
    assert sorted(reported) == [(0, i) for i in range(3, len(ends[0].losses) + 1)] + [
        (number, i) for number in (1, 2) for i in range(1, len(ends[number].losses) + 1)
    ]
    assert reported[:4] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    for task, state, end in zip(tasks, states, ends, strict=True):
        (alone,) = optimise([task], [state], max_iter=8)
        assert (alone.outcome, alone.n_iter) == (end.outcome, end.n_iter)


def test_an_interrupt_ends_all_estimators_at_their_last_iteration():
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    tasks = tasks_on_a_device(classes=2, max_iter=5, tol=-1.0)
    ends = optimise(
        tasks,
        [task.first_state() for task in tasks],
        max_iter=5,
        interruptible=True,
        reports=[bool, report, bool],
    )
    assert [end.n_iter for end in ends] == [2, 2, 1]
    assert {end.outcome for end in ends} == {"interrupted"}


def test_on_a_device_an_iteration_that_fails_is_repeated_with_jitter(monkeypatch):
    tasks = tasks_on_a_device(n=1, classes=2)
    states, original, jitters = [tasks[0].first_state()], Batch.losses, []

    def losses(self):
        jitters.append(float(self._jitter[0]))
        return original(self) if jitters[-1] >= 1e-8 else [np.nan]

    monkeypatch.setattr(Batch, "losses", losses)
    (end,) = optimise(tasks, states, max_iter=1)
    assert jitters == [0.0, 1e-10, 1e-8]
    monkeypatch.undo()
    # The steps begin again from where they were: jitter so small changes nothing else.
    (plain_end,) = optimise(tasks, states, max_iter=1)
    assert_allclose(end.losses, plain_end.losses, rtol=1e-3)
    monkeypatch.setattr(Batch, "losses", lambda self: [np.nan])
    with pytest.raises(NumericalError):
        optimise(tasks, states, max_iter=1)


def test_rows_that_may_reach_far_have_phases_in_double_precision_on_a_device():
    pytest.importorskip("torch", reason="torch is not installed")
    for factor, far in ((1.0, False), (100.0, True)):
        pixels = some_pixels(n=100, dtype=np.float32)
        pixels = replace(pixels, rows=factor * pixels.rows).on("cpu", False, 5)
        task = some_task(pixels, split=(np.arange(80), np.arange(80, 100)))
        assert Batch([task], [task.first_state()])._xp.double_phases is far
        assert minibatch.SINGLE_PHASE_LIMIT * task.config.far_share == 128.0


def test_a_state_says_how_far_it_is():
    state = go_on(some_task(max_iter=1))[0]
    assert isinstance(state, State)
    assert state.progress_text == f"validation NLL {state.losses[-1]:.4f}"

"""The stochastic solver: the walk on minibatches, early stopping, and the exact passes."""

from dataclasses import fields, is_dataclass, replace
from itertools import count, cycle, pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import stochastic, variational
from undulatus.gp import walk as walking
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.bound import accumulate, half_slope
from undulatus.gp.damping import damping, level, spreads
from undulatus.gp.fourier import fourier_features
from undulatus.gp.held_back import held_back_loss, leave_out
from undulatus.gp.passes import Start, fit_posteriors, search_fits
from undulatus.gp.posterior import expected_sigmoid, latent_moments, variance_root
from undulatus.gp.stochastic import (
    FRESH_STARTS,
    RACE_GAIN,
    RACE_SHARES,
    USUAL_SHARE,
    along_features,
    draw_sample,
    fit_stochastic,
    race,
    settle_spread,
)
from undulatus.gp.walk import (
    EPOCHS,
    FREQUENCY_STEP,
    LEARNING_VARIANCE_LIMIT,
    MORE_EPOCHS,
    SCALE_STEP,
    SMOOTHING,
    STEPS_PER_ITERATION,
    WORSENING_FACTOR,
    WORSENING_WINDOW,
    WalkSetup,
    first_state,
    walk,
)

both_methods = pytest.mark.parametrize("learn_frequencies", [False, True], ids=["RFF", "VFF"])

each_way = pytest.mark.parametrize(
    ("learn_frequencies", "early_stopping"),
    [(False, False), (True, False), (True, True)],
    ids=["RFF", "VFF", "early VFF"],
)


def some_pixels(n=400, d=2, threads=1, dtype=np.float64, weight=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    positive = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0
    plain = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(x, positive, weight, plain, np.dtype(dtype), 256, threads)


def some_start(D=5, d=2):
    return Start(np.random.default_rng(0).normal(size=(D, d)), 1.3, 1.7)


def take_a_walk(pixels, start=None, **options):
    defaults = {
        "learn_frequencies": True,
        "batch_size": 128,
        "max_iter": 3,
        "tol": 0.0,
        "early_stopping": False,
        "seed": 5,
        "n_total": pixels.n_rows,
    }
    options = defaults | options
    if "split" not in options:
        rng = np.random.default_rng(options["seed"])
        options["split"] = leave_out(pixels, 1, rng)[0]
    return walk(pixels, start or some_start(), **options)


@pytest.fixture(autouse=True)
def long_walks(monkeypatch):
    """Walks on few rows that may last as long as ``max_iter`` says."""
    monkeypatch.setattr(walking, "FEWEST_ITERATIONS", 10_000)


@pytest.fixture
def recorded(monkeypatch):
    """The setup of each step of a walk, and the rows of its minibatch."""
    setups, minibatches = [], []
    original = walking._step

    def step(setup, state, *rest):
        setups.append(setup)
        minibatches.append(setup.minibatch(state.step))
        return original(setup, state, *rest)

    monkeypatch.setattr(walking, "_step", step)
    return setups, minibatches


def assert_same_state(one, other):
    for field in fields(one):
        value, expected = getattr(one, field.name), getattr(other, field.name)
        if is_dataclass(value):
            assert_same_state(value, expected)
        else:
            assert_array_equal(value, expected)


def moments_at(position):
    return [own.moments() for own in position.statistics]


def loss_at(block, position):
    return held_back_loss(
        block, position.frequencies, position.signal_variances, moments_at(position)
    )


# The walk


@both_methods
def test_a_walk_counts_its_steps_and_iterations(learn_frequencies):
    seen = []
    end = take_a_walk(
        some_pixels(), learn_frequencies=learn_frequencies, max_iter=4, report=seen.append
    )
    assert [state.n_iter for state in seen] == list(range(1, end.n_iter + 1))
    assert [state.step for state in seen] == [STEPS_PER_ITERATION * s.n_iter for s in seen]


@both_methods
def test_the_seed_determines_the_walk(learn_frequencies):
    one, same, other = (
        take_a_walk(some_pixels(), learn_frequencies=learn_frequencies, seed=seed)
        for seed in (5, 5, 6)
    )
    assert_same_state(one, same)
    assert not np.array_equal(one.position.gram, other.position.gram)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit_of_a_walk(threads, dtype):
    # Minibatches of 1,200 rows are three pieces of 512.
    one, other = (
        take_a_walk(some_pixels(1500, threads=t, dtype=dtype), batch_size=1200, max_iter=1)
        for t in (1, threads)
    )
    assert_same_state(one, other)


@both_methods
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_continued_walk_is_the_uninterrupted_one(learn_frequencies, early_stopping):
    kept, options = [], {"learn_frequencies": learn_frequencies, "max_iter": 4}
    options["early_stopping"] = early_stopping
    whole = take_a_walk(some_pixels(), report=kept.append, **options)
    for state in kept:
        assert_same_state(take_a_walk(some_pixels(), resume=state, **options), whole)


def test_an_interrupt_keeps_the_last_finished_iteration():
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    stopped = take_a_walk(some_pixels(), max_iter=10, report=report)
    seen = []
    take_a_walk(some_pixels(), max_iter=10, report=seen.append)
    assert stopped.outcome == "interrupted"
    assert_same_state(replace(stopped, outcome=seen[1].outcome), seen[1])


def test_an_interrupt_before_the_first_iteration_is_raised(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(walking, "_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        take_a_walk(some_pixels())


def test_random_frequencies_keep_their_directions():
    start = some_start()
    end = take_a_walk(some_pixels(), start, learn_frequencies=False)
    ratio = end.position.frequencies / start.frequencies
    assert_allclose(ratio, ratio[0, 0], rtol=1e-10)
    assert ratio[0, 0] != 1.0


def test_learned_frequencies_change_their_directions():
    start = some_start()
    ratio = take_a_walk(some_pixels(), start).position.frequencies / start.frequencies
    assert np.ptp(ratio) > 1e-3


def test_the_signal_variance_stays_below_its_limit_while_frequencies_move():
    start = replace(some_start(), signal_variance=1e5)
    seen = []
    take_a_walk(some_pixels(), start, report=seen.append)
    highest = max(state.position.signal_variances[0] for state in seen)
    assert highest <= LEARNING_VARIANCE_LIMIT * (1 + 1e-12)


def test_a_walk_with_enough_iterations_anneals_and_converges():
    end = take_a_walk(some_pixels(), max_iter=10)
    assert end.outcome == "converged"
    assert end.anneal_from > 0
    assert end.n_iter <= 10


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_mean_negative_log_likelihood_of_rows_never_learned_from(
    recorded, weighted
):
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 400) if weighted else None
    pixels = some_pixels(weight=weight)
    end = take_a_walk(pixels, max_iter=1)
    setups, minibatches = recorded
    held = setups[0].held_back
    # A window of a fifth of the weight, give or take a row at either end.
    heaviest = 1.0 if weight is None else weight.max()
    total = 400.0 if weight is None else weight.sum()
    assert abs(held.weight.sum() - 0.2 * total) <= 2.0 * heaviest
    learned = {tuple(pixels.rows[row]) for row in np.concatenate(minibatches)}
    assert not learned & {tuple(row) for row in held.x}
    position = end.position
    posterior, (gamma,) = position.statistics[0].posterior(), position.signal_variances
    z = fourier_features(held.x, position.frequencies, gamma)
    root = variance_root(posterior, gamma)
    mean, variance = latent_moments(z, posterior.mean, root)
    probability = expected_sigmoid(2 * held.v * mean, variance)
    expected = np.average(-np.log(probability), weights=held.weight)
    assert_allclose(end.losses[-1], expected, rtol=1e-9)


def test_a_walk_lowers_the_loss_of_held_back_rows():
    end = take_a_walk(some_pixels(2000), max_iter=12)
    # Guessing costs log 2.
    assert end.losses[-1] < end.losses[0]
    assert end.losses[-1] < np.log(2.0)


def test_each_epoch_uses_every_learning_row_once(recorded):
    split = np.arange(320), np.arange(320, 400)
    take_a_walk(some_pixels(400), batch_size=80, max_iter=1, split=split)
    # 320 rows to learn from: four minibatches of 80.
    _, minibatches = recorded
    for start in range(0, 24, 4):
        epoch = np.concatenate(minibatches[start : start + 4])
        assert len(np.unique(epoch)) == 320


def test_epochs_differ_in_their_order(recorded):
    take_a_walk(some_pixels(400), batch_size=80, max_iter=1)
    _, minibatches = recorded
    assert not np.array_equal(minibatches[0], minibatches[4])


def test_a_batch_size_above_the_number_of_rows_uses_all_rows(recorded):
    end = take_a_walk(some_pixels(100), batch_size=10**6, max_iter=1)
    assert np.all(np.isfinite(end.position.frequencies))
    setups, minibatches = recorded
    for rows in minibatches:
        assert_array_equal(np.sort(rows), setups[0].learning)


@pytest.mark.parametrize("n_rows", [5, 9])
def test_both_classes_of_a_handful_of_rows_are_learned_from_and_held_back(n_rows, recorded):
    pixels = some_pixels(n_rows)
    end = take_a_walk(pixels, max_iter=1)
    setups, _ = recorded
    assert len(setups[0].held_back.x) + len(setups[0].learning) == n_rows
    assert set(setups[0].held_back.v) == {-0.5, 0.5}
    assert set(pixels.codes[setups[0].learning]) == {False, True}
    assert np.all(np.isfinite(end.position.frequencies))
    assert np.all(np.isfinite(end.losses))


def test_the_statistics_are_scaled_to_all_the_rows_the_sample_stands_for():
    pixels = some_pixels()
    small, large = (take_a_walk(pixels, n_total=n, max_iter=1).position for n in (400, 40_000))
    # A hundred times the rows: the statistics of each minibatch count a hundredfold.
    ratio = np.trace(large.gram[0]) / large.signal_variances[0]
    ratio /= np.trace(small.gram[0]) / small.signal_variances[0]
    assert 50 < ratio < 200


# Steps


@pytest.mark.parametrize(
    "unit_frequencies",
    [np.random.default_rng(0).normal(size=(5, 2)), np.full((5, 2), 0.7)],
    ids=["random", "equal"],
)
def test_a_step_is_a_share_of_the_root_mean_square_of_the_starting_frequencies(
    monkeypatch, unit_frequencies
):
    monkeypatch.setattr(walking, "STEPS_PER_ITERATION", 1)
    start = Start(unit_frequencies, 1.3, 1.7)
    after = take_a_walk(some_pixels(), start, max_iter=1).position.frequencies
    before = start.frequencies
    # Adam's first direction is ±1: first in each feature's scale, then in each frequency.
    longer, shorter = (np.abs(after - before * np.exp(sign * SCALE_STEP)) for sign in (1, -1))
    size = FREQUENCY_STEP * np.sqrt(np.mean(before**2))
    for column in range(before.shape[1]):
        assert np.allclose(longer[:, column], size, rtol=1e-9) or np.allclose(
            shorter[:, column], size, rtol=1e-9
        )


def plan(pixels, n_learning, **options):
    """The setup of a walk that learns from the first rows and holds back the others."""
    split = np.arange(n_learning), np.arange(n_learning, pixels.n_rows)
    defaults = {
        "learn_frequencies": True,
        "batch_size": 128,
        "max_iter": 200,
        "tol": 0.0,
        "early_stopping": True,
        "seed": 0,
        "n_total": pixels.n_rows,
        "spread": 0.0,
    }
    return WalkSetup.plan(pixels, split, some_start(), **(defaults | options))


def last_iteration(setup, losses):
    """The iteration with which a walk of these losses ends that anneals when it must."""
    state, losses = first_state(plan(some_pixels(50), 40)), np.array(losses)
    while not state.n_iter or not setup.must_anneal(state):
        done = state.n_iter + 1
        state = replace(state, step=done * STEPS_PER_ITERATION, losses=losses[:done])
    return (state.step + setup.anneal_steps(state.step)) // STEPS_PER_ITERATION


def test_annealing_ends_with_the_last_iteration_or_just_before():
    for iterations in range(2, 120):
        setup = plan(some_pixels(50), 40, max_iter=iterations, batch_size=1)
        assert setup.planned_steps <= setup.most_steps <= iterations * STEPS_PER_ITERATION
        planned = setup.planned_steps // STEPS_PER_ITERATION
        # One iteration of full steps more makes one or two iterations more in all.
        assert planned - 1 <= last_iteration(setup, np.ones(120)) <= planned


@pytest.mark.parametrize("n_learning", [40, 320, 5000, 20_000])
def test_a_walk_is_planned_to_see_each_row_so_often_but_no_longer_than_allowed(
    monkeypatch, n_learning
):
    monkeypatch.setattr(walking, "FEWEST_ITERATIONS", 12)
    pixels = some_pixels(n_learning + 10)
    setup = plan(pixels, n_learning, batch_size=64)
    for steps, asked in [(setup.planned_steps, EPOCHS), (setup.most_steps, MORE_EPOCHS)]:
        assert steps * setup.batch_size / n_learning >= asked
        # No more than one iteration too many, unless it is the shortest walk.
        one_less = (steps - STEPS_PER_ITERATION) * setup.batch_size / n_learning
        assert one_less < asked or steps == 12 * STEPS_PER_ITERATION
    assert plan(pixels, n_learning, max_iter=3).most_steps == 3 * STEPS_PER_ITERATION


def test_a_walk_goes_on_for_longer_while_its_loss_falls(monkeypatch):
    monkeypatch.setattr(walking, "FEWEST_ITERATIONS", 12)
    setup = plan(some_pixels(5010), 5000, batch_size=64, max_iter=1000)
    planned, most = (
        steps // STEPS_PER_ITERATION for steps in (setup.planned_steps, setup.most_steps)
    )
    assert most > 1.4 * planned
    rising, hardly, falling = (np.exp(rate * np.arange(most)) for rate in (0.01, -1e-4, -0.01))
    assert last_iteration(setup, rising) in (planned - 1, planned)
    assert last_iteration(setup, hardly) in (planned - 1, planned)
    assert last_iteration(setup, falling) in (most - 1, most)


def test_the_start_is_fitted_on_at_most_as_many_rows_as_asked_for():
    pixels = some_pixels(1000)
    for start_rows, expected in [(1000, 800), (800, 800), (799, 400), (300, 267)]:
        found = plan(pixels, 800, start_rows=start_rows).start_pixels
        assert found.n_rows == expected <= start_rows
        assert {tuple(row) for row in found.rows} <= {tuple(row) for row in pixels.rows[:800]}


@both_methods
def test_steps_are_annealed_to_zero(learn_frequencies):
    # With a tolerance of -1 the walk never stalls, and anneals at the end.
    seen, options = [], {"learn_frequencies": learn_frequencies, "max_iter": 20, "tol": -1.0}
    take_a_walk(some_pixels(), report=seen.append, **options)
    moves = [
        np.linalg.norm(after.position.frequencies - before.position.frequencies)
        for before, after in pairwise(seen)
    ]
    assert seen[-1].outcome == "converged"
    assert seen[-1].anneal_from == 12 * STEPS_PER_ITERATION
    # The last of eight annealed iterations takes steps of (1 - cos(π/8)) / 2, under 4 %.
    assert moves[-1] < 0.1 * max(moves)


# The best position, and early stopping


def coins(seed, n=400):
    """Pixels whose labels are coin flips: only noise can be learned."""
    rng = np.random.default_rng(seed)
    plain = Standardisation(np.zeros(10), np.ones(10))
    return Pixels(rng.normal(size=(n, 10)), rng.random(n) < 0.5, None, plain, np.dtype(float), 256)


def walk_on_coins(**options):
    start = Start(np.random.default_rng(0).normal(size=(30, 10)), 3.0, 1.0)
    return take_a_walk(coins(0), start, **({"max_iter": 25} | options))


def smooth(losses):
    return [losses[max(0, i - SMOOTHING) : i].mean() for i in range(1, len(losses) + 1)]


def test_the_first_loss_to_beat_is_that_of_the_start():
    pixels = some_pixels()
    setup = plan(pixels, 320)
    state = first_state(setup)
    (fit,) = search_fits(pixels.take(np.arange(320)), setup.start, LEARNING_VARIANCE_LIMIT)
    scaled = fit.statistics.rescale(1.0)
    scaled = replace(scaled, gram=1.25 * scaled.gram, projected=1.25 * scaled.projected)
    expected = held_back_loss(
        setup.held_back, setup.start.frequencies, [fit.signal_variance], [scaled.moments()]
    )
    assert_allclose(state.best_loss, expected, rtol=1e-12)
    assert (state.best_iter, state.n_iter) == (0, 0)
    assert_same_state(state.best, state.position)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_walk_remembers_the_position_of_its_lowest_smoothed_loss(early_stopping):
    options, on_signal, on_coins = {"early_stopping": early_stopping, "max_iter": 12}, [], []
    take_a_walk(some_pixels(), report=on_signal.append, **options)
    walk_on_coins(report=on_coins.append, **options)
    assert on_signal[-1].best_iter > 0
    for seen in (on_signal, on_coins):
        before = seen[0].best_loss if seen[0].best_iter == 0 else np.inf
        for state in seen:
            smoothed = [before, *smooth(state.losses)]
            lowest = int(np.argmin(smoothed))
            assert state.best_iter == lowest
            assert_allclose(state.best_loss, smoothed[lowest], rtol=1e-12)
            if lowest:
                assert_same_state(state.best, seen[lowest - 1].position)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_the_best_position_is_never_worse_on_held_back_rows_than_the_start(seed, spread):
    start = Start(np.random.default_rng(seed).normal(size=(30, 10)), 3.0, 1.0)
    for pixels in (coins(seed), some_pixels(d=10)):
        split = np.arange(320), np.arange(320, 400)
        options = {"split": split, "spread": spread, "early_stopping": True, "max_iter": 10}
        end = take_a_walk(pixels, start, **options)
        setup = replace(plan(pixels, 320), start=start, spread=spread)
        loss_of_start = first_state(setup).best_loss
        assert end.best_loss <= loss_of_start
        if end.best_iter == 0:
            assert_array_equal(end.best.frequencies, start.frequencies)
            assert end.best_loss == loss_of_start


def test_the_best_position_has_the_loss_that_was_computed_there(recorded):
    end = walk_on_coins(max_iter=12)
    assert end.best_iter < end.n_iter
    held_back = recorded[0][0].held_back
    computed = [end.best_loss, *end.losses]
    assert loss_at(held_back, end.best) == computed[end.best_iter]


def test_steps_leave_the_states_that_were_reported_as_they_were():
    kept, copies = [], []

    def report(state):
        kept.append(state)
        copies.append((state.position.gram.copy(), state.position.projected.copy()))

    end = take_a_walk(some_pixels(), max_iter=4, report=report)
    for state, (gram, projected) in zip(kept, copies, strict=True):
        assert_array_equal(state.position.gram, gram)
        assert_array_equal(state.position.projected, projected)
    assert_array_equal(end.best.gram, copies[end.best_iter - 1][0])


def has_worsened(losses):
    best = int(np.argmin(smooth(losses)))
    since = losses[best + 1 :]
    limit = WORSENING_FACTOR * smooth(losses)[best]
    return len(since) >= WORSENING_WINDOW and np.median(since[-WORSENING_WINDOW:]) > limit


def test_early_stopping_ends_a_walk_as_soon_as_its_losses_have_worsened():
    stopped, whole = (walk_on_coins(early_stopping=early) for early in (True, False))
    assert stopped.outcome == "converged"
    assert WORSENING_WINDOW < stopped.n_iter < whole.n_iter
    assert_array_equal(stopped.losses, whole.losses[: stopped.n_iter])
    ends = [has_worsened(whole.losses[:n]) for n in range(1, whole.n_iter + 1)]
    assert ends.index(True) + 1 == stopped.n_iter


def replay_losses(monkeypatch, losses):
    """Let a walk, one minibatch an iteration, see these losses after a very bad start."""
    script = iter([np.inf, *losses])
    monkeypatch.setattr(walking, "held_back_loss", lambda *position: next(script))
    monkeypatch.setattr(walking, "STEPS_PER_ITERATION", 1)


@pytest.mark.parametrize("seed", range(10))
def test_a_walk_ends_by_the_median_of_its_last_losses_whatever_the_outliers(seed, monkeypatch):
    # Losses that grow slowly, one in five of them ten times too large.
    rng = np.random.default_rng(seed)
    losses = np.linspace(1.0, 1.4, 40) * rng.uniform(0.9, 1.1, 40)
    losses *= np.where(rng.random(40) < 0.2, 10.0, 1.0)
    replay_losses(monkeypatch, losses)
    end = take_a_walk(some_pixels(50), early_stopping=True, max_iter=40, tol=-1.0)
    ends = [has_worsened(losses[:n]) for n in range(1, 41)]
    assert end.n_iter == ends.index(True) + 1 < 40


def test_a_walk_whose_losses_do_not_worsen_is_not_ended_early():
    seen, options = [], {"max_iter": 15}
    whole = take_a_walk(some_pixels(2000), report=seen.append, **options)
    assert not any(has_worsened(state.losses) for state in seen)
    assert_same_state(take_a_walk(some_pixels(2000), early_stopping=True, **options), whole)


def test_a_walk_that_ended_early_continues_to_the_same_end_and_no_further():
    kept = []
    whole = walk_on_coins(early_stopping=True, report=kept.append)
    for state in kept[::3]:
        assert_same_state(walk_on_coins(early_stopping=True, resume=state), whole)
    assert walk_on_coins(early_stopping=True, resume=whole) is whole


def test_stopping_before_noise_is_learned_is_better_on_fresh_rows():
    fresh = coins(1, n=2000)
    block = fresh.pick(np.arange(fresh.n_rows))
    early = loss_at(block, walk_on_coins(early_stopping=True).best)
    late = loss_at(block, walk_on_coins().position)
    # Coins cost log 2; a loss of 1.2 nats is that of a sure and often wrong classifier.
    assert early < np.log(2.0) + 0.05
    assert late > early + 0.3


# Damped waves


def test_the_gradient_of_a_step_is_that_of_the_bound_at_fixed_posterior_and_spread(monkeypatch):
    monkeypatch.setattr(walking, "STEPS_PER_ITERATION", 1)
    found, original = [], walking._move_frequencies

    def move_frequencies(setup, state, gradient):
        found.append(gradient)
        return original(setup, state, gradient)

    monkeypatch.setattr(walking, "_move_frequencies", move_frequencies)
    pixels, start, split = some_pixels(60), some_start(D=3), (np.arange(48), np.arange(48, 60))
    take_a_walk(pixels, start, batch_size=48, max_iter=1, split=split, spread=0.2)
    position = first_state(replace(plan(pixels, 48), start=start)).position
    (moments,), (gamma,) = moments_at(position), position.signal_variances
    x, v = pixels.rows[:48], np.where(pixels.codes[:48], 0.5, -0.5)
    kept = damping(x, spreads(position.frequencies, 0.2))
    moment, fresh = moments.second_moment, (1.0 - kept**2) * gamma

    def squares(z):
        return np.einsum("ij,jk,ik->i", z, moment, z) + fresh

    xi = np.sqrt(squares(kept[:, None] * fourier_features(x, position.frequencies, gamma)))

    def bound(frequencies):
        z = kept[:, None] * fourier_features(x, frequencies, gamma)
        return float(np.sum(v * (z @ moments.mean) - half_slope(xi) * squares(z)))

    step, expected = 1e-5, np.empty_like(found[0])
    for index in np.ndindex(expected.shape):
        nudge = np.zeros_like(expected)
        nudge[index] = step
        up, down = (bound(position.frequencies + sign * nudge) for sign in (1, -1))
        expected[index] = (up - down) / (2 * step)
    assert_allclose(found[0], expected, rtol=1e-6, atol=1e-8)


def test_the_losses_of_a_walk_are_those_of_damped_waves(recorded):
    end = take_a_walk(some_pixels(), max_iter=1, spread=0.3)
    held, position = recorded[0][0].held_back, end.position
    moments, spread = moments_at(position), spreads(position.frequencies, 0.3)
    arguments = (held, position.frequencies, position.signal_variances, moments)
    assert end.losses[-1] == held_back_loss(*arguments, spread)
    assert end.losses[-1] != held_back_loss(*arguments)


# How fast waves fade


def replay_spreads(losses, spread=0.1):
    """The spread settled on if the loss of validation rows is this function of the spread."""
    position, given = first_state(plan(some_pixels(), 320)).position, []

    def loss(block, frequencies, signal_variance, moments, own):
        # The same share of every feature's frequencies.
        share = float(own[0] / spreads(frequencies, 1.0)[0])
        given.append(share)
        return losses(share)

    split = np.arange(320), np.arange(320, 400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stochastic, "held_back_loss", loss)
        found = settle_spread(some_pixels(), split, position, spread, 400)
    assert_allclose(given, spread * np.array(stochastic.SPREAD_FACTORS), rtol=1e-12)
    return found


def test_waves_fade_faster_only_if_that_is_better_by_more_than_a_little():
    largest = 0.1 * max(stochastic.SPREAD_FACTORS)
    gain = stochastic.SPREAD_GAIN
    assert replay_spreads(lambda share: 1.0) == 0.1
    assert replay_spreads(lambda share: 1.0 + share) == 0.1

    def falls_to(lowest):
        return lambda share: lowest if share > 0.999 * largest else 1.0

    assert replay_spreads(falls_to(1.001 * gain)) == 0.1
    assert_allclose(replay_spreads(falls_to(0.999 * gain)), largest, rtol=1e-12)


# The race for a starting lengthscale


def ripples(frequency, n=2000, threads=1):
    """Pixels of two features whose class is the sign of a sine of the first."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    plain = Standardisation(np.zeros(2), np.ones(2))
    positive = np.sin(frequency * x[:, 0]) > 0
    return Pixels(x, positive, None, plain, np.dtype(np.float64), 256, threads)


MEAN_DISTANCE = 2.0
"""Root mean square distance of two rows of two standard normal features."""


def run_race(pixels, seed=0, D=16):
    rng = np.random.default_rng(seed)
    units = [rng.normal(size=(D, 2)) for _ in range(2)]
    splits = leave_out(pixels, 2, rng)
    options = {"batch_size": 256, "seed": seed, "n_total": pixels.n_rows}
    return race(pixels, units, MEAN_DISTANCE, splits, **options)


def test_a_race_is_won_by_the_usual_lengthscale_if_nothing_is_much_better():
    assert run_race(ripples(1.0)) == USUAL_SHARE * MEAN_DISTANCE
    flips = replace(ripples(1.0), codes=np.random.default_rng(1).random(2000) < 0.5)
    assert run_race(flips) == USUAL_SHARE * MEAN_DISTANCE


def test_a_race_finds_the_short_lengthscale_of_ripples():
    assert run_race(ripples(6.0)) < USUAL_SHARE * MEAN_DISTANCE


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("frequency", [1.0, 6.0])
def test_threads_do_not_change_who_wins_a_race(frequency, threads):
    one, other = (run_race(ripples(frequency, n=500, threads=t)) for t in (1, threads))
    assert one == other


def replay_race(monkeypatch, losses):
    """Race with these losses of each share in the place of walks; return the share that wins."""
    ran = []

    def iterate(setup, state):
        share = setup.start.lengthscale / MEAN_DISTANCE
        ran.append(share)
        return replace(state, best_loss=losses[share])

    monkeypatch.setattr(stochastic, "iterate", iterate)
    winner = run_race(some_pixels(60), D=2) / MEAN_DISTANCE
    return winner, {share: ran.count(share) for share in RACE_SHARES}


def test_only_the_better_starts_and_the_usual_one_go_on(monkeypatch):
    losses = dict(zip(RACE_SHARES, (0.1, 0.2, 0.3, 0.6, 0.5, 0.4), strict=True))
    monkeypatch.setattr(stochastic, "RACE_ROUNDS", ((2, 2), (3, 1)))
    winner, iterations = replay_race(monkeypatch, losses)
    assert winner == 2.0
    # Two walks each: two iterations, then three of the two best and of the usual one.
    assert iterations == {2.0: 10, 1.0: 10, 0.5: 4, USUAL_SHARE: 10, 0.125: 4, 0.0625: 4}


@pytest.mark.parametrize(("factor", "share"), [(0.999, 0.125), (1.001, USUAL_SHARE)])
def test_another_start_wins_only_if_its_loss_is_a_share_of_the_usual_one(
    monkeypatch, factor, share
):
    losses = dict.fromkeys(RACE_SHARES, 1.0) | {0.125: factor * RACE_GAIN}
    assert replay_race(monkeypatch, losses)[0] == share


# The whole fit


def fit(pixels, start=None, seed=0, **options):
    defaults = {"learn_frequencies": True, "batch_size": 64, "max_iter": 3, "tol": 0.0}
    defaults["early_stopping"] = False
    rng = np.random.default_rng(seed)
    return fit_stochastic(pixels, start or some_start(), rng=rng, **(defaults | options))


def follow_starts(monkeypatch, loss_of):
    """Fit with walks that end at once, with a loss by their lengthscale; return all lengthscales
    and that of the fit."""
    begun = []

    def stand_still(pixels, start, *, resume=None, **settings):
        begun.append(start.lengthscale)
        end = take_a_walk(pixels, start, max_iter=1)
        return replace(end, best_loss=loss_of(start.lengthscale), outcome="converged")

    monkeypatch.setattr(stochastic, "walk", stand_still)
    fitted = fit(some_pixels(200), early_stopping=True)
    return begun, fitted.lengthscale


def test_a_walk_that_learned_nothing_begins_again_from_half_the_lengthscale(monkeypatch):
    first = some_start().lengthscale
    assert follow_starts(monkeypatch, lambda own: 0.1) == ([first], first)
    late = follow_starts(monkeypatch, lambda own: 0.7 if own == first else 0.5)
    assert late == ([first, 0.5 * first], 0.5 * first)


def test_if_no_walk_learned_anything_the_best_counts(monkeypatch):
    first = some_start().lengthscale
    begun, kept = follow_starts(monkeypatch, lambda own: 0.7 + abs(own - 0.5 * first))
    assert begun == [first * 0.5**i for i in range(1 + FRESH_STARTS)]
    assert kept == 0.5 * first


def test_a_fit_of_noise_resumed_at_any_start_is_the_uninterrupted_one():
    noise = np.random.default_rng(1).random(300) < 0.5
    pixels, kept = replace(some_pixels(300), codes=noise), []
    options = {"early_stopping": True, "max_iter": 2}
    whole = fit(pixels, report=kept.append, **options)
    assert len({state.position.lengthscale for state in kept}) == 1 + FRESH_STARTS
    for state in kept:
        assert_same_fit(fit(pixels, resume=state, **options), whole)


def test_fast_ripples_are_found_by_a_fresh_start():
    pixels = ripples(8.0, n=4000)
    start = Start(np.random.default_rng(0).normal(size=(10, 2)), 1.0)
    options = {"batch_size": 256, "max_iter": 12, "early_stopping": True, "tol": 1e-4}
    fitted = fit(pixels, start, **options)
    assert fitted.lengthscale < 1.0
    assert min(fitted.validation_losses) < 0.6


@both_methods
def test_the_exact_passes_never_lower_the_bound_and_are_reported(learn_frequencies):
    reported = []
    fitted = fit(
        some_pixels(n=300),
        learn_frequencies=learn_frequencies,
        # Without a tolerance, steps are tried and taken back until nothing but rounding is left.
        tol=1e-4,
        report_pass=lambda done, bound: reported.append((done, bound)),
    )
    assert np.all(np.diff(fitted.bounds) >= -1e-10 * np.abs(fitted.bounds).max())
    assert reported == list(enumerate(fitted.bounds[: len(reported)], start=1))


@each_way
def test_the_posterior_is_that_of_all_pixels(learn_frequencies, early_stopping, monkeypatch):
    pixels, xi = some_pixels(n=300), np.empty(300)

    def fit_with_xi(pixels, frequencies, signal_variances, _, **options):
        return fit_posteriors(pixels, frequencies, signal_variances, [xi], **options)

    monkeypatch.setattr(variational, "fit_posteriors", fit_with_xi)
    options = {"early_stopping": early_stopping, "variational": False}
    fitted = fit(pixels, learn_frequencies=learn_frequencies, **options)
    statistics = accumulate(pixels, fitted.frequencies, fitted.signal_variance, xi)
    posterior = statistics.posterior()
    # The last statistics were rescaled to the last γ rather than summed again: rounding.
    assert_allclose(fitted.bounds[-1], statistics.bound(posterior), rtol=1e-12)
    assert_allclose(fitted.posterior.mean, posterior.mean, rtol=1e-10, atol=1e-12)
    assert_allclose(fitted.posterior.covariance, posterior.covariance, rtol=1e-10, atol=1e-12)


def test_a_fit_of_random_frequencies_keeps_their_directions():
    start = some_start()
    fitted = fit(some_pixels(n=300), start, learn_frequencies=False)
    assert_allclose(fitted.frequencies, start.unit_frequencies / fitted.lengthscale, rtol=1e-10)


def assert_same_fit(one, other):
    assert (one.bounds, one.outcome, one.n_iter) == (other.bounds, other.outcome, other.n_iter)
    assert one.validation_losses == other.validation_losses
    assert_array_equal(one.frequencies, other.frequencies)
    assert_array_equal(one.posterior.mean, other.posterior.mean)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit_of_a_fit(threads):
    one, other = (fit(some_pixels(n=1500, threads=t), batch_size=1200) for t in (1, threads))
    assert_same_fit(one, other)


@pytest.mark.parametrize("early_stopping", [False, True], ids=["whole", "early"])
def test_a_resumed_fit_is_the_uninterrupted_one_bit_for_bit(early_stopping):
    pixels, kept, options = some_pixels(n=300), [], {"early_stopping": early_stopping}
    whole = fit(pixels, report=kept.append, **options)
    assert [state.n_iter for state in kept] == [1, 2, 3]
    for state in kept:
        # The state's own seed says which rows are held back.
        for seed in (0, 1):
            assert_same_fit(fit(pixels, seed=seed, resume=state, **options), whole)


def test_only_early_stopping_takes_the_best_position_of_the_walk(monkeypatch):
    # Smoothed over three, these are lowest at the fourth.
    script, kept = (0.4, 0.2, 0.1, 0.1, 0.3), []
    losses = cycle([np.inf, *script])
    monkeypatch.setattr(walking, "held_back_loss", lambda *position: next(losses))
    whole = fit(some_pixels(n=300), max_iter=5, report=kept.append)
    best = fit(some_pixels(n=300), max_iter=5, early_stopping=True)
    assert best.validation_losses == whole.validation_losses == script
    assert_array_equal(whole.frequencies, kept[-1].position.frequencies)
    assert_array_equal(best.frequencies, kept[3].position.frequencies)


def test_a_fit_of_random_frequencies_never_stops_early(monkeypatch):
    # Losses of 1, 2, 3, ...: with learned frequencies the walk would end.
    losses = count(1.0)
    monkeypatch.setattr(walking, "held_back_loss", lambda *position: next(losses))
    options = {"learn_frequencies": False, "max_iter": 30, "tol": -1.0}
    early = fit(some_pixels(n=300), early_stopping=True, **options)
    losses = count(1.0)
    whole = fit(some_pixels(n=300), early_stopping=False, **options)
    assert whole.n_iter == 30
    assert_same_fit(early, whole)


def test_an_interrupted_fit_still_makes_one_pass_over_all_pixels():
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    stopped = fit(some_pixels(n=300), max_iter=10, report=report)
    with pytest.raises(KeyboardInterrupt):
        fit(some_pixels(n=300), max_iter=10, report=report, interruptible=False)
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", 2)
    assert len(stopped.bounds) == 1
    assert np.all(np.isfinite(stopped.posterior.mean))


@pytest.mark.parametrize("after", [1, 2, 4])
def test_an_interrupt_in_the_exact_passes_keeps_the_last_finished_one(after):
    def report_pass(done, bound):
        if done == after:
            raise KeyboardInterrupt

    pixels = some_pixels(n=300)
    with pytest.raises(KeyboardInterrupt):
        fit(pixels, report_pass=report_pass, interruptible=False)
    stopped, whole = fit(pixels, report_pass=report_pass), fit(pixels)
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", whole.n_iter)
    assert stopped.bounds == whole.bounds[:after]
    assert_array_equal(stopped.frequencies, whole.frequencies)
    assert np.all(np.isfinite(stopped.posterior.mean))


@pytest.mark.parametrize("variational", [False, True])
def test_a_fit_knows_its_spread_and_its_level(variational):
    options = {"spread": 0.1, "log_odds": -1.5, "variational": variational}
    fitted = fit(some_pixels(n=300), **options)
    assert fitted.spread == 0.1
    # The quadratic bound's posterior has no level.
    assert fitted.level == (level(-1.5, fitted.signal_variance) if variational else 0.0)


# The sample that frequencies are learned on


def test_a_few_pixels_in_memory_are_all_used():
    pixels = some_pixels(n=50)
    assert draw_sample(pixels, np.random.default_rng(0)) is pixels


def test_many_pixels_are_sampled_in_order_and_without_repeats(monkeypatch):
    monkeypatch.setattr(stochastic, "SAMPLE_ROWS", 200)
    pixels = some_pixels(n=1000)
    sample = draw_sample(pixels, np.random.default_rng(0))
    rows = {tuple(row): i for i, row in enumerate(pixels.rows)}
    found = [rows[tuple(row)] for row in sample.rows]
    # Draws of the same row count once: a tenth or so of 200 from 1,000.
    assert 150 < len(found) <= 200
    assert found == sorted(set(found))
    # As likely early as late: the mean of 180 uniform draws, standard error 289/13 = 22.
    assert abs(np.mean(found) - 499.5) < 5 * 22
    assert_array_equal(sample.codes, pixels.codes[found])


def test_the_bytes_of_a_sample_are_limited_too(monkeypatch):
    monkeypatch.setattr(stochastic, "SAMPLE_BYTES", 100 * 2 * 4)
    sample = draw_sample(some_pixels(n=1000, d=2), np.random.default_rng(0))
    assert sample.n_rows <= 100


# Starts along features


def test_frequencies_along_features_keep_their_size_on_average():
    unit = np.random.default_rng(0).normal(size=(3000, 5))
    along = along_features(unit)
    assert np.all(np.count_nonzero(along, axis=1) == 1)
    assert_array_equal(np.count_nonzero(along, axis=0), 600)
    assert_allclose(np.mean(along**2), np.mean(unit**2), rtol=0.1)


def test_a_fresh_start_is_along_features(monkeypatch):
    begun = []

    def stand_still(pixels, start, **settings):
        begun.append(start.unit_frequencies)
        end = take_a_walk(pixels, start, max_iter=1)
        return replace(end, best_loss=0.7, outcome="converged")

    monkeypatch.setattr(stochastic, "walk", stand_still)
    fit(some_pixels(200), early_stopping=True)
    first, *fresh = begun
    assert_array_equal(first, some_start().unit_frequencies)
    for unit in fresh:
        assert_array_equal(unit, along_features(first))

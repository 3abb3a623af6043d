"""The walk on minibatches: what it keeps, what it repeats bit for bit, where it leads."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import passes, stochastic
from undulatus.gp.blocks import Pixels, Standardisation
from undulatus.gp.bound import Statistics
from undulatus.gp.fourier import fourier_features
from undulatus.gp.passes import Start, held_back_loss
from undulatus.gp.posterior import expected_sigmoid, latent_moments, slabs, variance_root
from undulatus.gp.stochastic import (
    FREQUENCY_STEP,
    LEARNING_VARIANCE_LIMIT,
    PATIENCE,
    SCALE_STEP,
    SMOOTHING,
    STEPS_PER_ITERATION,
    WORSE,
    walk,
)

both_methods = pytest.mark.parametrize("learn_frequencies", [False, True], ids=["RFF", "VFF"])


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
    return walk(pixels, start or some_start(), **(defaults | options))


@pytest.fixture
def noted(monkeypatch):
    """The course of a walk and the rows of each of its minibatches, noted as they are taken."""
    courses, minibatches = [], []
    original = stochastic._step

    def step(course, state, *rest):
        courses.append(course)
        minibatches.append(course.minibatch(state.step))
        return original(course, state, *rest)

    monkeypatch.setattr(stochastic, "_step", step)
    return courses, minibatches


def assert_same_walk(one, other):
    for field in fields(one):
        assert_array_equal(getattr(one, field.name), getattr(other, field.name))


@both_methods
def test_a_walk_counts_its_steps_and_iterations(learn_frequencies):
    seen = []
    end = take_a_walk(
        some_pixels(), learn_frequencies=learn_frequencies, max_iter=4, report=seen.append
    )
    assert [state.n_iter for state in seen] == list(range(1, end.n_iter + 1))
    assert [state.step for state in seen] == [STEPS_PER_ITERATION * s.n_iter for s in seen]


@both_methods
def test_one_seed_walks_one_way_and_another_another(learn_frequencies):
    one, same, other = (
        take_a_walk(some_pixels(), learn_frequencies=learn_frequencies, seed=seed)
        for seed in (5, 5, 6)
    )
    assert_same_walk(one, same)
    assert not np.array_equal(one.gram, other.gram)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit_of_a_walk(threads, dtype):
    # Minibatches of 1,200 rows are three pieces of 512.
    one, other = (
        take_a_walk(some_pixels(1500, threads=t, dtype=dtype), batch_size=1200, max_iter=1)
        for t in (1, threads)
    )
    assert_same_walk(one, other)


@both_methods
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_walk_goes_on_as_if_it_had_not_been_interrupted(learn_frequencies, early_stopping):
    kept, options = [], {"learn_frequencies": learn_frequencies, "max_iter": 4}
    options["early_stopping"] = early_stopping
    whole = take_a_walk(some_pixels(), report=kept.append, **options)
    for state in kept:
        assert_same_walk(take_a_walk(some_pixels(), resume=state, **options), whole)


def test_an_interrupt_keeps_the_last_finished_iteration():
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    stopped = take_a_walk(some_pixels(), max_iter=10, report=report)
    seen = []
    take_a_walk(some_pixels(), max_iter=10, report=seen.append)
    assert stopped.outcome == "interrupted"
    assert_same_walk(replace(stopped, outcome=seen[1].outcome), seen[1])


def test_an_interrupt_before_the_first_iteration_is_passed_on(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(stochastic, "_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        take_a_walk(some_pixels())


def test_random_frequencies_keep_their_directions():
    start = some_start()
    end = take_a_walk(some_pixels(), start, learn_frequencies=False)
    ratio = end.frequencies / start.at[0]
    assert_allclose(ratio, ratio[0, 0], rtol=1e-10)
    assert ratio[0, 0] != 1.0


def test_learned_frequencies_move_apart():
    start = some_start()
    ratio = take_a_walk(some_pixels(), start).frequencies / start.at[0]
    assert np.ptp(ratio) > 1e-3


def test_the_signal_variance_stays_below_its_limit_while_frequencies_move():
    start = replace(some_start(), signal_variance=1e5)
    seen = []
    take_a_walk(some_pixels(), start, report=seen.append)
    assert all(s.signal_variance <= LEARNING_VARIANCE_LIMIT * (1 + 1e-12) for s in seen)


def test_a_walk_that_is_given_the_time_anneals_and_converges():
    end = take_a_walk(some_pixels(), max_iter=10)
    assert end.outcome == "converged"
    assert end.anneal_from > 0
    assert end.n_iter <= 10


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_mean_negative_log_likelihood_of_rows_never_walked_on(noted, weighted):
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 400) if weighted else None
    pixels = some_pixels(weight=weight)
    end = take_a_walk(pixels, max_iter=1)
    courses, minibatches = noted
    held = courses[0].held_back
    assert len(held.x) == pixels.n_rows // 5
    learned = {tuple(pixels.rows[row]) for row in np.concatenate(minibatches)}
    assert not learned & {tuple(row) for row in held.x}
    posterior = Statistics(end.gram, end.projected, 0.0).posterior()
    z = fourier_features(held.x, end.frequencies, end.signal_variance)
    root = variance_root(posterior, end.signal_variance)
    mean, variance = latent_moments(z, posterior.mean, slabs(root, np.float64))
    probability = expected_sigmoid(2 * held.v * mean, variance)
    expected = np.average(-np.log(probability), weights=held.weight)
    assert_allclose(end.losses[-1], expected, rtol=1e-9)


def test_walking_lowers_the_loss_of_held_back_rows():
    end = take_a_walk(some_pixels(2000), max_iter=12)
    # Guessing costs log 2.
    assert end.losses[-1] < end.losses[0]
    assert end.losses[-1] < np.log(2.0)


def test_every_row_that_is_learned_from_comes_once_an_epoch(noted):
    take_a_walk(some_pixels(400), batch_size=80, max_iter=1)
    # 320 rows are learned from: four minibatches of 80.
    _, minibatches = noted
    for start in range(0, 24, 4):
        epoch = np.concatenate(minibatches[start : start + 4])
        assert len(np.unique(epoch)) == 320


def test_epochs_differ_in_their_order(noted):
    take_a_walk(some_pixels(400), batch_size=80, max_iter=1)
    _, minibatches = noted
    assert not np.array_equal(minibatches[0], minibatches[4])


def test_a_batch_larger_than_the_data_is_the_data(noted):
    end = take_a_walk(some_pixels(100), batch_size=10**6, max_iter=1)
    assert np.all(np.isfinite(end.frequencies))
    _, minibatches = noted
    assert all(len(np.unique(rows)) == 80 for rows in minibatches)


@pytest.mark.parametrize("n_rows", [2, 5, 9])
def test_of_a_handful_of_rows_one_is_held_back(n_rows, noted):
    end = take_a_walk(some_pixels(n_rows), max_iter=1)
    courses, _ = noted
    assert len(courses[0].held_back.x) == 1
    assert len(courses[0].learning) == n_rows - 1
    assert np.all(np.isfinite(end.frequencies))
    assert np.all(np.isfinite(end.losses))


def test_a_walk_stands_for_all_the_rows_it_was_sampled_from():
    pixels = some_pixels()
    small, large = (take_a_walk(pixels, n_total=n, max_iter=1) for n in (400, 40_000))
    # A hundred times the rows: the statistics of each minibatch count a hundredfold.
    ratio = np.trace(large.gram) / large.signal_variance
    ratio /= np.trace(small.gram) / small.signal_variance
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
    monkeypatch.setattr(stochastic, "STEPS_PER_ITERATION", 1)
    start = Start(unit_frequencies, 1.3, 1.7)
    end = take_a_walk(some_pixels(), start, max_iter=1)
    before = start.at[0]
    # Adam's first direction is ±1: first in each feature's scale, then in each frequency.
    longer, shorter = (
        np.abs(end.frequencies - before * np.exp(sign * SCALE_STEP)) for sign in (1, -1)
    )
    size = FREQUENCY_STEP * np.sqrt(np.mean(before**2))
    for column in range(before.shape[1]):
        assert np.allclose(longer[:, column], size, rtol=1e-9) or np.allclose(
            shorter[:, column], size, rtol=1e-9
        )


@both_methods
def test_steps_are_annealed_to_nothing(learn_frequencies):
    # Losses that fall by less than minus their size: the walk never stalls, and anneals last.
    seen, options = [], {"learn_frequencies": learn_frequencies, "max_iter": 20, "tol": -1.0}
    take_a_walk(some_pixels(), report=seen.append, **options)
    moves = [
        np.linalg.norm(after.frequencies - before.frequencies) for before, after in pairwise(seen)
    ]
    assert seen[-1].outcome == "converged"
    assert seen[-1].anneal_from == 12 * STEPS_PER_ITERATION
    # The last of eight annealed iterations takes steps of (1 - cos(π/8)) / 2, under 4 %.
    assert moves[-1] < 0.1 * max(moves)


# The best place, and the end


def coins(seed, n=400):
    """Labels that are coins: all there is to learn is noise."""
    rng = np.random.default_rng(seed)
    plain = Standardisation(np.zeros(10), np.ones(10))
    return Pixels(rng.normal(size=(n, 10)), rng.random(n) < 0.5, None, plain, np.dtype(float), 256)


def walk_on_coins(**options):
    start = Start(np.random.default_rng(0).normal(size=(30, 10)), 3.0, 1.0)
    return take_a_walk(coins(0), start, **({"max_iter": 25} | options))


def smoothed(losses):
    return [losses[max(0, i - SMOOTHING) : i].mean() for i in range(1, len(losses) + 1)]


def assert_best_of(state, seen):
    least = smoothed(state.losses)
    place = int(np.argmin(least))
    assert state.best_iter == place + 1
    assert_allclose(state.best_loss, least[place], rtol=1e-12)
    for name in ("frequencies", "signal_variance", "gram", "projected"):
        assert_array_equal(getattr(state, f"best_{name}"), getattr(seen[place], name))


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_walk_remembers_where_its_smoothed_loss_was_least(early_stopping):
    options, on_signal, on_coins = {"early_stopping": early_stopping, "max_iter": 12}, [], []
    take_a_walk(some_pixels(), report=on_signal.append, **options)
    walk_on_coins(report=on_coins.append, **options)
    for seen in (on_signal, on_coins):
        for state in seen:
            assert_best_of(state, seen)


def test_a_walk_at_its_best_has_the_posterior_and_the_loss_of_that_place(noted):
    seen = []
    end = walk_on_coins(max_iter=12, report=seen.append)
    best, place = end.at_its_best(), seen[end.best_iter - 1]
    assert end.best_iter < end.n_iter
    held = noted[0][0].held_back
    loss = held_back_loss(held, best.frequencies, best.signal_variance, best.statistics.moments())
    assert loss == end.losses[end.best_iter - 1]
    assert_array_equal(best.statistics.gram, place.gram)
    assert_array_equal(best.statistics.projected, place.projected)
    # How it went is not forgotten.
    assert_array_equal(best.losses, end.losses)
    assert (best.outcome, best.n_iter) == (end.outcome, end.n_iter)


def has_worsened(losses):
    best = int(np.argmin(smoothed(losses)))
    since = losses[best + 1 :]
    bar = WORSE * smoothed(losses)[best]
    return len(since) >= PATIENCE and np.median(since[-PATIENCE:]) > bar


@pytest.fixture
def never_again(monkeypatch):
    """A walk that worsens ends: there is no coarser start."""
    monkeypatch.setattr(stochastic, "COARSENINGS", 0)


@pytest.mark.usefixtures("never_again")
def test_early_stopping_ends_a_walk_as_soon_as_its_losses_have_worsened():
    stopped, whole = (walk_on_coins(early_stopping=early) for early in (True, False))
    assert stopped.outcome == "converged"
    assert PATIENCE < stopped.n_iter < whole.n_iter
    assert_array_equal(stopped.losses, whole.losses[: stopped.n_iter])
    ends = [has_worsened(whole.losses[:n]) for n in range(1, whole.n_iter + 1)]
    assert ends.index(True) + 1 == stopped.n_iter


@pytest.mark.usefixtures("never_again")
@pytest.mark.parametrize("seed", range(10))
def test_a_walk_ends_by_the_median_of_its_last_losses_however_wild_they_are(seed, monkeypatch):
    # Losses that grow slowly, one in five of them ten times too large.
    rng = np.random.default_rng(seed)
    script = np.linspace(1.0, 1.4, 40) * rng.uniform(0.9, 1.1, 40)
    script *= np.where(rng.random(40) < 0.2, 10.0, 1.0)
    words = iter(script)
    monkeypatch.setattr(stochastic, "held_back_loss", lambda *place: next(words))
    monkeypatch.setattr(stochastic, "STEPS_PER_ITERATION", 1)
    end = take_a_walk(some_pixels(50), early_stopping=True, max_iter=40, tol=-1.0)
    ends = [has_worsened(script[:n]) for n in range(1, 41)]
    assert end.n_iter == ends.index(True) + 1 < 40


def test_a_walk_whose_losses_do_not_worsen_is_not_ended_early():
    seen, options = [], {"max_iter": 15}
    whole = take_a_walk(some_pixels(2000), report=seen.append, **options)
    assert not any(has_worsened(state.losses) for state in seen)
    assert_same_walk(take_a_walk(some_pixels(2000), early_stopping=True, **options), whole)


def test_a_walk_that_ended_early_goes_on_to_the_same_end_and_no_further():
    kept = []
    whole = walk_on_coins(early_stopping=True, report=kept.append)
    for state in kept[::3]:
        assert_same_walk(walk_on_coins(early_stopping=True, resume=state), whole)
    assert walk_on_coins(early_stopping=True, resume=whole) is whole


# Again, from a coarser start


def scripted(monkeypatch, *attempts):
    """A walk of 60 iterations at most whose losses are these, attempt by attempt."""
    words = iter(np.concatenate(attempts))
    monkeypatch.setattr(stochastic, "held_back_loss", lambda *place: next(words))
    monkeypatch.setattr(stochastic, "STEPS_PER_ITERATION", 1)
    monkeypatch.setattr(passes, "COARSENINGS", 0)  # Before the first attempt.
    seen = []
    start = some_start()
    end = take_a_walk(some_pixels(50), start, early_stopping=True, max_iter=60, tol=-1.0,
                      report=seen.append)  # fmt: skip
    assert end is seen[-1]
    return seen, start.lengthscale


def falls_and_rises(least, n=12):
    """Losses that a walk has worsened after, at the last."""
    losses = np.full(n, 1.5 * least)
    losses[: n - PATIENCE] = np.linspace(1.2 * least, least, n - PATIENCE)
    assert [has_worsened(losses[:k]) for k in (n - 1, n)] == [False, True]
    return losses


def test_a_walk_that_worsens_begins_again_at_twice_the_lengthscale_while_that_helps(monkeypatch):
    attempts = [falls_and_rises(least) for least in (0.5, 0.4, 0.3)]
    seen, lengthscale = scripted(monkeypatch, *attempts)
    assert [state.n_iter for state in seen] == list(range(1, 37))
    assert_array_equal(seen[-1].losses, np.concatenate(attempts))
    began = [state.began for state in seen]
    assert began == [0] * 11 + [12] * 12 + [24] * 13
    assert [state.lengthscale / lengthscale for state in seen] == [2.0 ** (b / 12) for b in began]
    # Twice at most: back to the lengthscale of random frequencies.
    assert seen[-1].outcome == "converged"
    # Each begins as if it were the first, but for the memory of the best place.
    assert (seen[11].step, seen[11].anneal_from) == (0, -1)
    assert not seen[11].momentum.any()
    assert seen[12].step == 1
    assert_allclose(seen[12].unit, seen[0].unit / 2.0, rtol=1e-12)
    assert seen[-1].best_iter == 24 + 12 - PATIENCE
    assert_array_equal(seen[-1].best_frequencies, seen[24 + 11 - PATIENCE].frequencies)
    assert seen[-1].at_its_best().lengthscale == 4.0 * lengthscale


def test_a_walk_ends_where_a_coarser_start_did_not_help_and_remembers_the_finer(monkeypatch):
    seen, lengthscale = scripted(monkeypatch, falls_and_rises(0.5), falls_and_rises(0.6))
    assert seen[-1].n_iter == 24
    assert seen[-1].outcome == "converged"
    assert seen[-1].best_iter == 12 - PATIENCE
    best = seen[-1].at_its_best()
    assert best.lengthscale == lengthscale
    assert_array_equal(best.frequencies, seen[11 - PATIENCE].frequencies)


def test_a_walk_does_not_begin_again_when_over_half_its_iterations_are_spent(monkeypatch):
    late = np.concatenate([np.linspace(1.0, 0.7, 19), falls_and_rises(0.5)])
    seen, _ = scripted(monkeypatch, late)
    assert seen[-1].n_iter == 31
    assert seen[-1].began == 0


def test_a_walk_that_begins_again_has_annealed_when_its_iterations_are_spent(monkeypatch):
    falling = np.linspace(0.4, 0.3, 48)
    seen, _ = scripted(monkeypatch, falls_and_rises(0.5), falling)
    assert seen[-1].n_iter == 60
    assert seen[-1].outcome == "converged"
    # 48 are left: three fifths of them, then the steps shrink.
    assert seen[-1].anneal_from == 29


def test_a_coarser_start_is_better_on_fresh_rows_than_learning_noise():
    # A signal in one of twenty features, from so fine a start that the noise is learned first.
    def rows(seed, n):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 20))
        plain = Standardisation(np.zeros(20), np.ones(20))
        cloudy = np.sin(x[:, 0]) + 0.3 * rng.normal(size=n) > 0
        return Pixels(x, cloudy, None, plain, np.dtype(float), 256)

    start = Start(np.random.default_rng(0).normal(size=(10, 20)), 1.5, 1.0)
    fresh = rows(1, 4000)
    block = fresh.pick(np.arange(fresh.n_rows))

    def loss_of(end):
        return held_back_loss(
            block, end.frequencies, end.signal_variance, end.statistics.moments()
        )

    ends = []
    for coarsenings in (0, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stochastic, "COARSENINGS", coarsenings)
            patch.setattr(passes, "COARSENINGS", 0)
            end = take_a_walk(rows(0, 600), start, early_stopping=True, max_iter=120)
            ends.append(end.at_its_best())
    assert ends[1].lengthscale > ends[0].lengthscale
    assert loss_of(ends[1]) < loss_of(ends[0])


def test_learning_noise_for_less_long_is_better_on_fresh_rows():
    fresh = coins(1, n=2000)
    block = fresh.pick(np.arange(fresh.n_rows))
    early, late = walk_on_coins(early_stopping=True).at_its_best(), walk_on_coins()
    loss_early, loss_late = (
        held_back_loss(block, end.frequencies, end.signal_variance, end.statistics.moments())
        for end in (early, late)
    )
    # Coins cost log 2; a loss of 1.2 nats is that of a sure and often wrong classifier.
    assert loss_early < np.log(2.0) + 0.05
    assert loss_late > loss_early + 0.3

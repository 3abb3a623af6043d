"""The walk on minibatches: what it keeps, what it repeats bit for bit, where it leads."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import stochastic
from undulatus.gp.blocks import Pixels, Standardisation
from undulatus.gp.evidence import Statistics
from undulatus.gp.fourier import fourier_features
from undulatus.gp.logistic import expected_sigmoid
from undulatus.gp.posterior import latent_moments, slabs, variance_root
from undulatus.gp.settling import Start
from undulatus.gp.stochastic import (
    FREQUENCY_STEP,
    LEARNING_VARIANCE_LIMIT,
    SCALE_STEP,
    STEPS_PER_ITERATION,
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
def test_a_walk_goes_on_as_if_it_had_not_been_interrupted(learn_frequencies):
    kept, options = [], {"learn_frequencies": learn_frequencies, "max_iter": 4}
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
    assert len(held.x) == pixels.n_rows // 10
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
    take_a_walk(some_pixels(400), batch_size=90, max_iter=1)
    # 360 rows are learned from: four minibatches of 90.
    _, minibatches = noted
    for start in range(0, 24, 4):
        epoch = np.concatenate(minibatches[start : start + 4])
        assert len(np.unique(epoch)) == 360


def test_epochs_differ_in_their_order(noted):
    take_a_walk(some_pixels(400), batch_size=90, max_iter=1)
    _, minibatches = noted
    assert not np.array_equal(minibatches[0], minibatches[4])


def test_a_batch_larger_than_the_data_is_the_data(noted):
    end = take_a_walk(some_pixels(100), batch_size=10**6, max_iter=1)
    assert np.all(np.isfinite(end.frequencies))
    _, minibatches = noted
    assert all(len(np.unique(rows)) == 90 for rows in minibatches)


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
    seen = []
    take_a_walk(
        some_pixels(), learn_frequencies=learn_frequencies, max_iter=20, report=seen.append
    )
    moves = [
        np.linalg.norm(after.frequencies - before.frequencies) for before, after in pairwise(seen)
    ]
    assert seen[-1].outcome == "converged"
    # The last of eight annealed iterations takes steps of (1 - cos(π/8)) / 2, under 4 %.
    assert moves[-1] < 0.1 * max(moves)

"""Where a fit starts: lengthscales by the bound or by successive halving, tapers by groups."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.gp.problems import dense_features, plain, quadratic_bound, some_pixels

from undulatus.gp import search
from undulatus.gp.backends import HOST
from undulatus.gp.data import Pixels
from undulatus.gp.inference import AscentConfig, WeightSpace, fit_quadratic
from undulatus.gp.minibatch import Config, Start, Task
from undulatus.gp.posterior import expected_sigmoid
from undulatus.gp.search import (
    BoundSearch,
    HalvingSearch,
    TaperSearch,
    along_features,
    choose_lengthscale,
    choose_start,
    choose_taper,
)
from undulatus.gp.splits import leave_out
from undulatus.gp.taper import frequency_deviations

MEAN_DISTANCE = 2.0
"""Root mean square distance of two rows of two standard normal features."""

UNIT = np.random.default_rng(0).normal(size=(5, 2))


# By the bound


@pytest.mark.parametrize("classes", [2, 3])
def test_the_lengthscale_with_the_best_bound_is_chosen(classes):
    pixels, options = some_pixels(n=100, classes=classes), BoundSearch((1.0, 0.3, 0.1, 0.03, 0.01))
    found = choose_start(pixels, UNIT, MEAN_DISTANCE, np.random.default_rng(0), search=options)
    bounds = {}
    for share in options.shares:
        space = WeightSpace(pixels, UNIT / (share * MEAN_DISTANCE))
        ends = fit_quadratic(space, 1.0, AscentConfig(options.passes))
        variance = np.mean([end.gaussian.signal_variance for end in ends])
        bounds[share * MEAN_DISTANCE] = (sum(end.bounds[-1] for end in ends), variance)
    best = max(bounds, key=lambda lengthscale: bounds[lengthscale][0])
    assert (found.lengthscale, found.signal_variance) == (best, bounds[best][1])
    assert_array_equal(found.unit_frequencies, UNIT)
    # The best one is neither the first nor the last that is tried.
    assert best not in (max(bounds), min(bounds))


def test_lengthscales_are_compared_on_some_of_many_rows(monkeypatch):
    seen, original = [], Pixels.take
    monkeypatch.setattr(
        Pixels, "take", lambda self, chosen: seen.append(chosen) or original(self, chosen)
    )
    choose_start(
        some_pixels(n=100), UNIT, 2.0, np.random.default_rng(0), search=BoundSearch(rows=40)
    )
    (chosen,) = seen
    assert len(np.unique(chosen)) == 40
    assert_array_equal(chosen, np.sort(chosen))


# By successive halving


def ripples(frequency, n=2000, threads=1):
    """Rows of two features whose class is the sign of a sine of the first."""
    x = np.random.default_rng(0).normal(size=(n, 2))
    return Pixels(x, np.sin(frequency * x[:, 0]) > 0, None, plain(2), HOST, 256, threads)


def halve(pixels, D=16, **options):
    """The share of the mean distance that is chosen."""
    rng = np.random.default_rng(0)
    units = [rng.normal(size=(D, 2)) for _ in range(2)]
    splits = leave_out(pixels, 2, rng)
    config = Config(256, 1000, 0.0, pixels.n_rows)
    found = choose_lengthscale(pixels, units, MEAN_DISTANCE, splits, config, 0, **options)
    return found / MEAN_DISTANCE


def test_the_usual_lengthscale_wins_if_nothing_is_much_better():
    assert halve(ripples(1.0)) == HalvingSearch().usual
    flips = replace(ripples(1.0), codes=np.random.default_rng(1).random(2000) < 0.5)
    assert halve(flips) == HalvingSearch().usual


def test_the_short_lengthscale_of_ripples_is_found():
    assert halve(ripples(6.0)) < HalvingSearch().usual


@pytest.mark.parametrize("frequency", [1.0, 6.0])
def test_threads_do_not_change_which_lengthscale_wins(frequency):
    one, three = (halve(ripples(frequency, n=500, threads=threads)) for threads in (1, 3))
    assert one == three


def replay(monkeypatch, losses, **options):
    """Choose by these losses of each share; return the share, and the iterations of each."""
    iterations = []

    def optimise(tasks, states, *, max_iter):
        (task,), (state,) = tasks, states
        share = task.start.lengthscale / MEAN_DISTANCE
        iterations.extend([share] * (max_iter - state.n_iter))
        return [replace(state, losses=np.zeros(max_iter), best_loss=losses[share])]

    monkeypatch.setattr(search, "optimise", optimise)
    monkeypatch.setattr(Task, "first_state", lambda task: FIRST)
    found = halve(some_pixels(), D=2, search=HalvingSearch(**options))
    return found, {share: iterations.count(share) for share in HalvingSearch().shares}


FIRST = Task(
    some_pixels(n=20),
    (np.arange(10), np.arange(10, 20)),
    Start(UNIT, 1.0),
    Config(5, 1, 0.0, 20),
    0,
).first_state()


def test_only_the_better_candidates_and_the_usual_one_go_on(monkeypatch):
    shares = HalvingSearch().shares
    losses = dict(zip(shares, (0.1, 0.2, 0.3, 0.6, 0.5, 0.4), strict=True))
    winner, iterations = replay(monkeypatch, losses, rounds=((2, 2), (3, 1)))
    assert winner == 2.0
    # Two splits each: two iterations, then three of the two best and of the usual one.
    assert iterations == {2.0: 10, 1.0: 10, 0.5: 4, 0.25: 10, 0.125: 4, 0.0625: 4}


@pytest.mark.parametrize(("factor", "share"), [(0.999, 0.125), (1.001, 0.25)])
def test_another_wins_only_if_its_loss_is_a_share_of_the_usual_one(monkeypatch, factor, share):
    losses = dict.fromkeys(HalvingSearch().shares, 1.0)
    losses[0.125] = factor * HalvingSearch().gain
    assert replay(monkeypatch, losses)[0] == share


# The taper


def parameters_of(pixels):
    split = np.arange(320), np.arange(320, 400)
    task = Task(pixels, split, Start(UNIT, 1.3, 1.7), Config(128, 1, 0.0, 400), 0)
    return split, task.first_state().parameters


def replay_losses(monkeypatch, losses):
    """The taper chosen if the loss of validation rows is this function of the taper."""
    given = []

    def loss(block, frequencies, deviations, *moments):
        # The same share of every feature's frequencies.
        given.append(float(deviations[0] / frequency_deviations(frequencies, 1.0)[0]))
        return losses(given[-1])

    monkeypatch.setattr(search, "validation_loss", loss)
    pixels = some_pixels(n=400)
    found = choose_taper(pixels, *parameters_of(pixels), 0.1, 400)
    assert_allclose(given, 0.1 * np.array(TaperSearch().factors), rtol=1e-12)
    return found


def test_features_are_tapered_more_only_if_that_is_better_by_more_than_a_little(monkeypatch):
    largest, gain = 0.1 * max(TaperSearch().factors), TaperSearch().gain
    assert replay_losses(monkeypatch, lambda taper: 1.0) == 0.1
    assert replay_losses(monkeypatch, lambda taper: 1.0 + taper) == 0.1

    def falls_to(lowest):
        return lambda taper: lowest if taper > 0.999 * largest else 1.0

    assert replay_losses(monkeypatch, falls_to(1.001 * gain)) == 0.1
    assert_allclose(replay_losses(monkeypatch, falls_to(0.999 * gain)), largest, rtol=1e-12)


def test_the_loss_of_a_taper_is_that_of_the_posterior_of_the_other_rows_scaled_to_all(monkeypatch):
    losses, original = [], search.validation_loss
    monkeypatch.setattr(
        search, "validation_loss", lambda *given: losses.append(original(*given)) or losses[-1]
    )
    pixels = some_pixels(n=400, weighted=True)
    (learning, held_out), parameters = parameters_of(pixels)
    options = TaperSearch(factors=(1.0,), passes=1, rows=110)
    choose_taper(pixels, (learning, held_out), parameters, 0.2, 5000, options)
    # One pass over every third row at fixed γ, whose sites count 5000 / 107 times.
    rows, w = learning[::3], parameters.frequencies
    (start,), deviations = parameters.gaussians(), frequency_deviations(w, 0.2)
    gamma = start.signal_variance
    z, untapered = dense_features(pixels.rows[rows], w, deviations)
    sign, weight = np.where(pixels.codes[rows], 1.0, -1.0), pixels.weight[rows]
    mean = np.sqrt(gamma) * z @ start.posterior.mean
    variance = gamma * (np.sum((z @ start.posterior.root.T) ** 2, axis=1) + untapered)
    c, h, _ = quadratic_bound(mean, variance, sign)
    scale = 5000 / len(rows)
    covariance = np.linalg.inv(np.eye(10) / gamma + scale * (z.T * (weight * c)) @ z)
    mean = covariance @ (scale * z.T @ (weight * h))
    z, untapered = dense_features(pixels.rows[held_out], w, deviations)
    variance = np.einsum("ij,jk,ik->i", z, covariance, z) + gamma * untapered
    sign = np.where(pixels.codes[held_out], 1.0, -1.0)
    likelihood = np.log(expected_sigmoid(sign * (z @ mean), variance))
    expected = -np.average(likelihood, weights=pixels.weight[held_out])
    assert_allclose(losses, [expected], rtol=1e-9)


def test_the_taper_on_a_device_is_that_on_the_processor(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    losses, original = [], search.validation_loss
    monkeypatch.setattr(
        search, "validation_loss", lambda *given: losses.append(original(*given)) or losses[-1]
    )
    pixels = some_pixels(n=400, classes=3, weighted=True)
    split, parameters = parameters_of(pixels)
    for own in (pixels, pixels.on("cpu", False, 5)):
        choose_taper(own, split, parameters, 0.1, 400)
    assert_allclose(losses[3:], losses[:3], rtol=1e-9)


# Starts along features


def test_frequencies_along_features_keep_their_size_on_average():
    unit = np.random.default_rng(0).normal(size=(3000, 5))
    along = along_features(unit)
    assert np.all(np.count_nonzero(along, axis=1) == 1)
    assert_array_equal(np.count_nonzero(along, axis=0), 600)
    assert_allclose(np.mean(along**2), np.mean(unit**2), rtol=0.1)

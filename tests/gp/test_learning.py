"""The whole fit by minibatches: restarts, resuming, interrupts, the posterior of all rows."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.gp.problems import assert_same, some_pixels

from undulatus.gp import learning
from undulatus.gp.backends import to_host
from undulatus.gp.inference import PosteriorConfig, WeightSpace, fit_posteriors
from undulatus.gp.learning import (
    RESTARTS,
    MinibatchFit,
    draw_sample,
    fit_minibatch,
    minibatch_posterior,
)
from undulatus.gp.likelihood import EXPECTED, QUADRATIC
from undulatus.gp.minibatch import Config, Start
from undulatus.gp.search import along_features
from undulatus.gp.splits import leave_out, shares_entropy
from undulatus.gp.taper import frequency_deviations, prior_mean

START = Start(np.random.default_rng(0).normal(size=(5, 2)), 1.3, 1.7)

each_way = pytest.mark.parametrize(
    ("learn_frequencies", "early_stopping"),
    [(False, False), (True, False), (True, True)],
    ids=["RFF", "VFF", "early VFF"],
)


def some_fit(pixels=None, seed=0, start=START, log_odds=None, **options):
    pixels = some_pixels(n=300) if pixels is None else pixels
    own = {
        name: options.pop(name) for name in list(options) if name in MinibatchFit.__annotations__
    }
    own = {"posterior": PosteriorConfig(EXPECTED, 20, 1e-4)} | own
    options = {"early_stopping": False, "max_iter": 3, "tol": 0.0} | options
    # Fits of few rows may last as long as ``max_iter`` says.
    config = Config(64, n_total=pixels.n_rows, fewest_iterations=10_000, **options)
    sample = pixels if pixels.xp.on_device else pixels.standardised(pixels.dtype)
    split = own.pop("split", None) or leave_out(pixels, 1, np.random.default_rng(seed))[0]
    log_odds = np.zeros(pixels.n_latents) if log_odds is None else np.array(log_odds)
    return MinibatchFit(pixels, sample, split, start, config, log_odds=log_odds, seed=seed, **own)


def fit(pixels=None, **options):
    return fit_minibatch([some_fit(pixels, **options)])[0]


# Restarts


def follow_starts(monkeypatch, loss_of, **options):
    """Fit with optimisations that end at once, with a loss by their lengthscale; return all starts
    and the lengthscale of the fit."""
    starts, original = [], learning.optimise

    def optimise(tasks, states, *, max_iter, **named):
        (end,) = original(tasks, states, max_iter=1)
        starts.append(tasks[0].start)
        loss = loss_of(tasks[0].start.lengthscale)
        return [replace(end, best_loss=loss, outcome="converged")]

    monkeypatch.setattr(learning, "optimise", optimise)
    fitted = fit(early_stopping=True, **options)
    return [start.lengthscale for start in starts], fitted.lengthscale, starts


def test_an_optimisation_that_learned_nothing_begins_again_from_half_the_lengthscale(monkeypatch):
    first = START.lengthscale
    assert follow_starts(monkeypatch, lambda own: 0.1)[:2] == ([first], first)
    monkeypatch.undo()
    later = follow_starts(monkeypatch, lambda own: 0.7 if own == first else 0.5)
    assert later[:2] == ([first, 0.5 * first], 0.5 * first)


def test_if_no_optimisation_learned_anything_the_best_counts(monkeypatch):
    first = START.lengthscale
    begun, kept, starts = follow_starts(monkeypatch, lambda own: 0.7 + abs(own - 0.5 * first))
    assert begun == [first * 0.5**i for i in range(1 + RESTARTS)]
    assert kept == 0.5 * first
    assert_array_equal(starts[0].unit_frequencies, START.unit_frequencies)
    for start in starts[1:]:
        assert_array_equal(start.unit_frequencies, along_features(START.unit_frequencies))
        assert start.signal_variance == START.signal_variance


def test_chance_is_the_entropy_of_the_shares_of_the_classes_among_validation_rows(monkeypatch):
    pixels = some_pixels(n=300)
    rows = np.argsort(pixels.codes, kind="stable")
    # One in eight validation rows is of the second class.
    split = np.sort(rows[70:-10]), np.sort(np.r_[rows[:70], rows[-10:]])
    chance = shares_entropy(pixels.block(split[1]))
    assert_allclose(chance, -(0.125 * np.log(0.125) + 0.875 * np.log(0.875)), rtol=1e-12)
    for factor, starts in ((0.979, 1), (0.981, 1 + RESTARTS)):
        loss = factor * chance
        begun, *_ = follow_starts(monkeypatch, lambda _, own=loss: own, pixels=pixels, split=split)
        monkeypatch.undo()
        assert len(begun) == starts


def test_fast_ripples_are_found_by_a_restart():
    pixels = some_pixels(n=4000)
    pixels = replace(pixels, codes=np.sin(8.0 * pixels.rows[:, 0]) > 0)
    start = Start(np.random.default_rng(0).normal(size=(10, 2)), 1.0)
    fitted = fit(pixels, start=start, early_stopping=True, max_iter=12, tol=1e-4)
    assert fitted.lengthscale < 1.0
    assert min(fitted.validation_losses) < 0.6


# The posterior of all rows


@each_way
@pytest.mark.parametrize("bound", [QUADRATIC, EXPECTED], ids=["quadratic", "expected"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_posterior_is_that_of_all_rows_at_the_end(
    learn_frequencies, early_stopping, bound, classes
):
    pixels, ends = some_pixels(n=300, classes=classes, weighted=True), []
    log_odds = np.linspace(-1.5, 0.5, pixels.n_latents)
    config = PosteriorConfig(bound, 6, 1e-4 if bound is EXPECTED else 1e-5)
    fitted = fit(
        pixels, learn_frequencies=learn_frequencies, early_stopping=early_stopping, taper=0.1,
        posterior=config, log_odds=log_odds, report=ends.append,
    )  # fmt: skip
    end = ends[-1].best if early_stopping else ends[-1].parameters
    deviations = frequency_deviations(end.frequencies, 0.1)
    space = WeightSpace(pixels, end.frequencies, deviations, log_odds.tolist())
    latents, _ = fit_posteriors(space, end.gaussians(), config)
    assert_same(fitted.latents, latents)
    assert_array_equal(fitted.frequencies, end.frequencies)
    assert (fitted.lengthscale, fitted.taper) == (end.lengthscale, 0.1)
    assert fitted.validation_losses == tuple(ends[-1].losses)
    for own, odds in zip(fitted.latents, log_odds, strict=True):
        expected = prior_mean(odds, own.signal_variance) if bound is EXPECTED else 0.0
        assert own.prior_mean == expected
        assert np.all(np.diff(own.bounds) >= -1e-10 * np.abs(own.bounds).max())


def test_the_sample_may_be_smaller_than_the_rows_of_the_posterior():
    pixels = some_pixels(n=400)
    some = pixels.take(np.arange(0, 400, 2))
    own = some_fit(some)
    whole, part = fit_minibatch([replace(own, pixels=pixels)])[0], fit_minibatch([own])[0]
    assert_array_equal(whole.frequencies, part.frequencies)
    # Twice the rows: the posterior is surer.
    traces = [np.trace(each.latents[0].posterior.covariance) for each in (whole, part)]
    assert traces[0] < traces[1]


def test_groups_left_out_choose_the_taper(monkeypatch):
    chosen = []

    def choose_taper(sample, split, parameters, taper, n_total):
        chosen.append((taper, n_total))
        return 4.0 * taper

    monkeypatch.setattr(learning, "choose_taper", choose_taper)
    groups = np.arange(300) % 20
    for grouped, early_stopping in ((True, True), (True, False), (False, True)):
        pixels = replace(some_pixels(n=300), groups=groups if grouped else None)
        fitted = fit(pixels, early_stopping=early_stopping, taper=0.1, max_iter=1)
        assert fitted.taper == (0.4 if grouped and early_stopping else 0.1)
    assert chosen == [(0.1, 300)]


def test_only_early_stopping_takes_the_best_parameters(monkeypatch):
    # Smoothed over three, these are lowest at the fourth.
    script, kept = (0.4, 0.2, 0.1, 0.1, 0.3), []
    from undulatus.gp import minibatch

    for early_stopping, at in ((False, 4), (True, 3)):
        losses = iter([np.inf, *script])
        monkeypatch.setattr(minibatch, "validation_loss", lambda *given, own=losses: next(own))
        kept.clear()
        fitted = fit(max_iter=5, early_stopping=early_stopping, report=kept.append, tol=-1.0)
        assert fitted.validation_losses == script
        assert_array_equal(fitted.frequencies, kept[at].parameters.frequencies)


def test_the_tolerance_of_the_passes_is_three_times_that_of_the_optimisation():
    assert minibatch_posterior(EXPECTED, 1e-3) == PosteriorConfig(EXPECTED, 25, 3e-3)


# Threads, resuming, interrupts


def test_threads_do_not_change_a_bit_of_a_fit():
    one, three = (fit(some_pixels(n=1500, threads=threads), piece_rows=32) for threads in (1, 3))
    assert_same(one, three)


@each_way
def test_a_resumed_fit_is_the_uninterrupted_one_bit_for_bit(learn_frequencies, early_stopping):
    options = {"learn_frequencies": learn_frequencies, "early_stopping": early_stopping}
    kept = []
    whole = fit(report=kept.append, **options)
    assert [state.n_iter for state in kept] == [1, 2, 3]
    for state in kept:
        assert_same(fit(resume=state, **options), whole)


def test_a_fit_of_noise_resumed_at_any_start_is_the_uninterrupted_one():
    noise = np.random.default_rng(1).random(300) < 0.5
    pixels, kept = replace(some_pixels(n=300), codes=noise), []
    options = {"early_stopping": True, "max_iter": 2}
    whole = fit(pixels, report=kept.append, **options)
    assert len({state.parameters.lengthscale for state in kept}) == 1 + RESTARTS
    for state in kept:
        assert_same(fit(pixels, resume=state, **options), whole)


def test_an_interrupted_fit_still_makes_one_pass_over_all_rows():
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    stopped = fit(max_iter=10, report=report)
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", 2)
    assert len(stopped.latents[0].bounds) == 1
    assert np.all(np.isfinite(stopped.latents[0].posterior.mean))
    with pytest.raises(KeyboardInterrupt):
        fit(max_iter=10, report=report, interruptible=False)


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupt_in_the_passes_keeps_the_last_finished_one(after):
    def report_pass(done, bound):
        if done == after:
            raise KeyboardInterrupt

    stopped, whole = fit(report_pass=report_pass), fit()
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", whole.n_iter)
    assert stopped.bounds == whole.bounds[: len(stopped.bounds)]
    assert len(stopped.bounds) <= after
    assert_array_equal(stopped.frequencies, whole.frequencies)
    with pytest.raises(KeyboardInterrupt):
        fit(report_pass=report_pass, interruptible=False)


def test_several_estimators_fitted_together_are_those_fitted_alone():
    pytest.importorskip("torch", reason="torch is not installed")
    pixels = some_pixels(n=300).on("cpu", False, 5)
    splits = leave_out(pixels, 3, np.random.default_rng(0))
    # The second one learns nothing: its labels are noise, and it begins again.
    noise = replace(pixels, codes=np.random.default_rng(1).random(300) < 0.5)
    options = {"early_stopping": True, "max_iter": 1, "taper": 0.1}
    options["posterior"] = PosteriorConfig(QUADRATIC, 3, 0.0)

    def fits():
        return [
            some_fit(noise if i == 1 else pixels, i, split=splits[i], **options) for i in range(3)
        ]

    together = fit_minibatch(fits())
    for found, own in zip(together, fits(), strict=True):
        (alone,) = fit_minibatch([own])
        assert found.lengthscale == alone.lengthscale
        assert_allclose(found.frequencies, alone.frequencies, rtol=1e-6, atol=1e-8)
        assert_allclose(found.bounds, alone.bounds, rtol=1e-6)
        assert_allclose(found.validation_losses, alone.validation_losses, rtol=1e-6)
        assert isinstance(to_host(found).frequencies, np.ndarray)


# The sample that frequencies are learned on


def test_a_few_rows_in_memory_are_all_used():
    pixels = some_pixels(n=50)
    assert draw_sample(pixels, np.random.default_rng(0)) is pixels


def test_many_rows_are_sampled_in_order_and_without_repeats(monkeypatch):
    monkeypatch.setattr(learning, "SAMPLE_ROWS", 200)
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
    monkeypatch.setattr(learning, "SAMPLE_BYTES", 100 * 2 * 4)
    sample = draw_sample(some_pixels(n=1000), np.random.default_rng(0))
    assert sample.n_rows <= 100

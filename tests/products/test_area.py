"""Areas and accuracies of a map from a sample: published numbers, formulas, and simulations."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from undulatus.errors import InputError
from undulatus.products.area import estimate_areas
from undulatus.products.intervals import share_interval

# Olofsson et al. (2014), Table 8: rows are mapped classes.
CELLS = np.array([[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]])
MAPPED = np.array([200_000, 150_000, 3_200_000, 6_450_000])
NAMES = ["deforestation", "forest gain", "stable forest", "stable non-forest"]

seeds = st.integers(0, 2**32 - 1)


def values(estimates):
    return np.array([estimate.value for estimate in estimates])


def errors(estimates):
    return np.array([estimate.standard_error for estimate in estimates])


def random_sample(seed, k=3):
    rng = np.random.default_rng(seed)
    return rng.integers(1, 30, (k, k)) + 40 * np.eye(k, dtype=int), rng.integers(1, 1000, k)


# The published example


@pytest.mark.parametrize("design", ["simple", "stratified"])
def test_the_example_of_the_paper_is_reproduced(design):
    found = estimate_areas(CELLS, MAPPED, NAMES, design=design)
    # As printed there: 235,086 pixels ± 68,418, of 95 % confidence.
    assert round(found.areas[0].value) == 235_086
    assert round(1.96 * found.areas[0].standard_error) == 68_418
    # Their interval is ± 1.96 standard errors. Three samples of 490 make most of it: by how few
    # they are, it reaches farther up and less far down (194,983 to 371,305).
    assert 190_000 < found.areas[0].low < 235_086 - 0.5 * 68_418
    assert 235_086 + 1.5 * 68_418 < found.areas[0].high < 380_000
    assert round(found.accuracy.value, 2) == 0.95
    assert round(1.96 * found.accuracy.standard_error, 2) == 0.02
    assert_allclose(values(found.users_accuracy), [0.88, 0.73, 0.93, 0.96], atol=0.005)
    assert_allclose(1.96 * errors(found.users_accuracy), [0.07, 0.10, 0.04, 0.02], atol=0.005)
    assert_allclose(values(found.producers_accuracy), [0.75, 0.85, 0.93, 0.96], atol=0.005)
    assert_allclose(1.96 * errors(found.producers_accuracy)[[0, 2]], [0.21, 0.03], atol=0.005)


def test_in_hectares_it_is_the_area_that_the_paper_reports():
    found = estimate_areas(CELLS, 0.09 * MAPPED, NAMES, design="stratified", unit="ha")
    assert found.areas[0].text(0) == "21,158 ± 3,142"
    assert round(1.96 * found.areas[0].standard_error) == 6158
    assert_allclose(values(found.areas).sum(), 900_000)
    assert "area, ha" in found.table()


# The formulas as they are printed, one by one


def as_printed(n, mapped):
    """Equations 1 to 10, in the order and the letters of the paper."""
    q, total = len(n), mapped.sum()
    W, n_row = mapped / total, n.sum(axis=1)
    U = np.diag(n) / n_row
    N_hat = np.array([sum(mapped[i] * n[i, j] / n_row[i] for i in range(q)) for j in range(q)])
    P = np.array([mapped[j] * U[j] / N_hat[j] for j in range(q)])
    V_P = []
    for j in range(q):
        first = mapped[j] ** 2 * (1 - P[j]) ** 2 * U[j] * (1 - U[j]) / (n_row[j] - 1)
        second = sum(
            mapped[i] ** 2 * n[i, j] / n_row[i] * (1 - n[i, j] / n_row[i]) / (n_row[i] - 1)
            for i in range(q)
            if i != j
        )
        V_P.append((first + P[j] ** 2 * second) / N_hat[j] ** 2)
    p = W[:, None] * n / n_row[:, None]
    S_area = [np.sqrt(sum((W[i] * p[i, k] - p[i, k] ** 2) / (n_row[i] - 1) for i in range(q)))
              for k in range(q)]  # fmt: skip
    return {
        "accuracy": (np.trace(p), np.sqrt(np.sum(W**2 * U * (1 - U) / (n_row - 1)))),
        "users_accuracy": (U, np.sqrt(U * (1 - U) / (n_row - 1))),
        "producers_accuracy": (P, np.sqrt(V_P)),
        "areas": (total * p.sum(axis=0), total * np.array(S_area)),
    }


@given(seeds)
def test_every_estimate_is_that_of_the_printed_equation(seed):
    cells, mapped = random_sample(seed)
    found = estimate_areas(cells, mapped, list("abc"), design="stratified")
    for name, (value, error) in as_printed(cells, mapped).items():
        estimates = getattr(found, name)
        estimates = (estimates,) if name == "accuracy" else estimates
        assert_allclose(values(estimates), np.atleast_1d(value), rtol=1e-10)
        assert_allclose(errors(estimates), np.atleast_1d(error), rtol=1e-8)


@given(seeds)
def test_areas_sum_to_that_of_the_map_and_scale_with_it(seed):
    cells, mapped = random_sample(seed)
    one = estimate_areas(cells, mapped, list("abc"))
    ten = estimate_areas(cells, 10 * mapped, list("abc"))
    assert_allclose(values(one.areas).sum(), mapped.sum(), rtol=1e-12)
    assert_allclose(errors(ten.areas), 10 * errors(one.areas), rtol=1e-12)
    assert_allclose(values(ten.producers_accuracy), values(one.producers_accuracy), rtol=1e-12)


@given(seeds)
def test_a_map_without_errors_has_the_areas_that_it_shows(seed):
    _, mapped = random_sample(seed)
    found = estimate_areas(np.diag([9, 5, 7]), mapped, list("abc"), design="simple")
    assert_allclose(values(found.areas), mapped, rtol=1e-12)
    # A standard error of zero would say that there are none, an interval says what is missed.
    assert np.isnan(errors(found.areas)).all()
    for area, shown in zip(found.areas, mapped, strict=True):
        assert area.low < shown < area.high
    assert found.accuracy.low < 0.9 < found.accuracy.high == found.accuracy.value
    assert "± 0" not in found.table()
    assert any("no proof" in note for note in found.notes)


@given(seeds)
def test_clusters_of_one_pixel_are_a_sample_of_pixels(seed):
    cells, mapped = random_sample(seed)
    single = np.repeat(np.eye(9, dtype=int), cells.ravel(), axis=0).reshape(-1, 3, 3)
    clusters = estimate_areas(single, mapped, list("abc"), design="clusters")
    pixels = estimate_areas(single, mapped, list("abc"), design="simple")
    assert clusters.clusters == cells.sum()
    assert pixels.clusters is None
    for name in ("users_accuracy", "producers_accuracy", "areas"):
        one, other = getattr(clusters, name), getattr(pixels, name)
        assert_allclose(values(one), values(other), rtol=1e-12)
        # n in place of n - 1 samples of a class, and m / (m - 1) for all: 43 samples or more.
        assert_allclose(errors(one), errors(other), rtol=0.5 / 42 + 1e-3)


def test_the_same_pixels_again_in_each_cluster_add_nothing():
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 4, (30, 3, 3)) + np.eye(3, dtype=int)
    mapped = [5, 3, 2]
    one = estimate_areas(cells, mapped, list("abc"), design="clusters")
    tenfold = estimate_areas(10 * cells, mapped, list("abc"), design="clusters")
    assert_allclose(errors(tenfold.areas), errors(one.areas), rtol=1e-12)
    pixels = estimate_areas(10 * cells, mapped, list("abc"), design="simple")
    assert (errors(pixels.areas) < 0.6 * errors(one.areas)).all()


# Intervals (how often they hold the truth is in test_intervals.py)


@given(seeds)
def test_user_s_accuracy_of_pixels_has_the_interval_of_a_share(seed):
    cells, mapped = random_sample(seed)
    found = estimate_areas(cells, mapped, list("abc"), design="stratified")
    ends = share_interval(np.diag(cells) / cells.sum(axis=1), cells.sum(axis=1), 0.95)
    assert_allclose([(one.low, one.high) for one in found.users_accuracy], np.transpose(ends))


@given(seeds)
def test_intervals_of_large_samples_are_those_of_standard_errors(seed):
    cells, mapped = random_sample(seed)
    # Shares of 1/100 and more in 10,000 samples a class: Wilson's differ from them by 1/√n.
    found = estimate_areas(10_000 * cells, mapped, list("abc"), design="stratified")
    for one in (found.accuracy, *found.areas, *found.producers_accuracy):
        half = 1.96 * one.standard_error
        assert_allclose([one.value - one.low, one.high - one.value], half, rtol=0.03)


@given(seeds, st.sampled_from(["stratified", "clusters"]))
def test_every_interval_holds_its_estimate_and_is_possible(seed, design):
    rng = np.random.default_rng(seed)
    cells, mapped = rng.poisson(0.7, (6, 3, 3)), rng.integers(0, 5, 3)
    mapped[0] += 1
    cells[0, 0, 0] += 1
    found = estimate_areas(cells, mapped, list("abc"), design=design)
    shares = [*found.users_accuracy, *found.producers_accuracy, found.accuracy]
    for most, estimates in ((mapped.sum(), found.areas), (1.0, shares)):
        for one in estimates:
            if np.isfinite(one.low):
                assert -1e-9 <= one.low <= one.value + 1e-9
                assert one.value - 1e-9 <= one.high <= most * (1.0 + 1e-9)
                assert one.high > one.low


# What cannot be said is not said


def test_a_mapped_class_without_a_sample_leaves_areas_unknown_and_says_so():
    found = estimate_areas([[9, 1, 0], [0, 0, 0], [1, 0, 9]], [5, 3, 2], list("abc"))
    assert np.isnan(values(found.areas)).all()
    assert np.isnan(found.accuracy.value)
    assert_allclose(values(found.users_accuracy), [0.9, np.nan, 0.9])
    assert "30.0% of the map is b, but no sample lies there" in found.notes[0]
    assert json.loads(json.dumps(found.as_dict()))["accuracy"]["value"] is None
    assert " - " in found.table()


def test_a_class_that_is_not_on_the_map_does_not_matter():
    found = estimate_areas([[9, 1, 0], [2, 8, 0], [0, 0, 0]], [6, 4, 0], list("abc"))
    assert_allclose(values(found.areas), [0.9 * 6 + 0.2 * 4, 0.1 * 6 + 0.8 * 4, 0.0])
    assert np.isnan(found.producers_accuracy[2].value)
    assert found.notes == ()


def test_one_sample_of_a_class_has_no_standard_error():
    found = estimate_areas([[8, 2], [0, 1]], [1, 1], ["a", "b"], design="stratified")
    assert found.users_accuracy[1].value == 1.0
    assert np.isnan(found.users_accuracy[1].standard_error)
    assert np.isnan(errors(found.areas)).all()
    assert np.isnan(found.users_accuracy[1].low)
    assert any("Only one sample is mapped as b" in note for note in found.notes)


def test_a_class_in_one_cluster_has_no_standard_error():
    cells = [[[5, 1], [0, 0]], [[4, 0], [0, 0]], [[0, 0], [1, 9]]]
    found = estimate_areas(cells, [1, 1], ["a", "b"], design="clusters")
    assert np.isfinite(found.users_accuracy[0].standard_error)
    assert np.isnan(found.users_accuracy[1].standard_error)
    assert any("only 3 clusters" in note for note in found.notes)


def test_every_table_says_what_it_assumes():
    said = {
        design: estimate_areas(CELLS[None].repeat(3, 0), MAPPED, NAMES, design=design).table()
        for design in (None, "simple", "stratified", "clusters")
    }
    assert "No sampling design was given" in said[None]
    assert "assume a probability sample" in said[None]
    assert "from the whole map, post-stratified" in said["simple"]
    assert "within each mapped class" in said["stratified"]
    assert "one of 3 clusters" in said["clusters"]


@pytest.mark.parametrize(
    ("cells", "mapped", "design", "said"),
    [
        ([[1, 2]], [1, 1], None, "2 classes"),
        ([[1, 0], [0, 1]], [1, 1, 1], None, "2 classes"),
        ([[1, 0], [0, -1]], [1, 1], None, "none is negative"),
        ([[1, 0], [0, np.nan]], [1, 1], None, "finite"),
        ([[1, 0], [0, 1]], [0, 0], None, "above zero"),
        ([[1, 0], [0, 1]], [1, 1], "clusters", "cells of each"),
        ([[1, 0], [0, 1]], [1, 1], "random", "one of simple, stratified, clusters"),
    ],
)
def test_what_is_no_sample_is_an_error(cells, mapped, design, said):
    with pytest.raises(InputError, match=said):
        estimate_areas(cells, mapped, ["a", "b"], design=design)

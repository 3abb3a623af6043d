"""Rows added to a fitted model, and forgotten again."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from undulatus import GPC, RFFGPC, VFFGPC, load_model, save_model
from undulatus.errors import InputError
from undulatus.estimators import updates
from undulatus.gp import exact, update
from undulatus.gp.features import fourier_features
from undulatus.gp.kernels import find_kernel
from undulatus.gp.likelihood import EXPECTED, expected_log_sigmoid
from undulatus.gp.posterior import solve_posterior
from undulatus.gp.taper import frequency_deviations, kept_share

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def draw(n, seed=0, classes=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    score = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=n)
    return X, np.digitize(score, np.linspace(-1.0, 1.0, classes + 1)[1:-1])


def fit(classes=2, posterior="variational", n_estimators=2, **options):
    X, y = draw(400, classes=classes)
    options = {"max_iter": 5, "random_state": 0, "solver": "stochastic"} | options
    return VFFGPC(6, n_estimators=n_estimators, posterior=posterior, **options).fit(X, y)


def precision_of(posterior):
    lower = np.linalg.inv(posterior.root)
    return lower @ lower.T


def slow_update(model, number, latent, X, positive):
    """The posterior with new rows, by a general optimiser over its mean and root.

    The old posterior is the prior; q is the Gaussian with the best bound.
    """
    fit, own = model.estimators_[number], model.estimators_[number].latents[latent]
    x = model.standardisation_(np.asarray(X, dtype=float), np.float64)
    share = kept_share(x, frequency_deviations(fit.frequencies, fit.taper))
    z = share[:, None] * fourier_features(x, fit.frequencies, own.signal_variance)
    fresh = (1.0 - share**2) * own.signal_variance
    sign, prior = np.where(positive, 1.0, -1.0), precision_of(own.posterior)
    projected = prior @ own.posterior.mean
    # The optimum has A = prior + Zᵗ diag(c) Z: a search over c and h, one each a row.

    def unpack(theta):
        c, h = np.exp(theta[: len(x)]), theta[len(x) :]
        return solve_posterior(prior + z.T @ (c[:, None] * z), projected + z.T @ h)

    def loss(theta):
        q = unpack(theta)
        mean, variance = z @ q.mean + own.prior_mean, np.sum((z @ q.root.T) ** 2, axis=1) + fresh
        value = expected_log_sigmoid(sign * mean, variance)[0].sum()
        difference = q.mean - own.posterior.mean
        divergence = 0.5 * (
            np.trace(prior @ q.covariance)
            + difference @ prior @ difference
            - len(q.mean)
            + q.log_determinant
            - own.posterior.log_determinant
        )
        return divergence - value

    start = np.concatenate([np.full(len(x), np.log(0.2)), 0.5 * sign])
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    return unpack(found.x), found.fun


@pytest.mark.parametrize("classes", [2, 3])
def test_an_update_is_the_best_gaussian_with_the_old_posterior_as_prior(classes):
    model = fit(classes)
    X, y = draw(4, seed=1, classes=classes)
    slow = [
        [
            slow_update(model, m, c, X, y == (1 if classes == 2 else c))[0]
            for c in range(len(fit.latents))
        ]
        for m, fit in enumerate(model.estimators_)
    ]
    model = model.update(X, y)
    for fit_, expected in zip(model.estimators_, slow, strict=True):
        for own, oracle in zip(fit_.latents, expected, strict=True):
            assert_allclose(own.posterior.mean, oracle.mean, atol=1e-3)
            assert_allclose(own.posterior.covariance, oracle.covariance, atol=1e-3)


@pytest.mark.parametrize("posterior", ["variational", "bound"])
@pytest.mark.parametrize("rows", [5, 40])
def test_at_its_end_an_update_is_where_its_own_passes_would_stay(posterior, rows):
    """A posterior fitted so: the terms of old rows held, those of new rows at their optimum."""
    model = fit(posterior=posterior)
    before = [own.posterior for estimator in model.estimators_ for own in estimator.latents]
    X, y = draw(rows, seed=2)
    model = model.update(X, y)
    x = model.standardisation_(X, np.float64)
    after = [(estimator, own) for estimator in model.estimators_ for own in estimator.latents]
    for old, (estimator, own) in zip(before, after, strict=True):
        share = kept_share(x, frequency_deviations(estimator.frequencies, estimator.taper))
        z = share[:, None] * fourier_features(x, estimator.frequencies, own.signal_variance)
        fresh = (1.0 - share**2) * own.signal_variance
        mean = z @ own.posterior.mean + own.prior_mean
        variance = np.sum((z @ own.posterior.root.T) ** 2, axis=1) + fresh
        sign = np.where(y == 1, 1.0, -1.0)
        if posterior == "variational":
            _, slope, c = expected_log_sigmoid(sign * mean, variance)
            h = sign * slope + c * mean
        else:
            xi = np.sqrt(mean**2 + variance)
            c, h = np.tanh(0.5 * xi) / (2.0 * xi), 0.5 * sign
        precision = precision_of(old)
        again = solve_posterior(
            precision + z.T @ (c[:, None] * z),
            precision @ old.mean + z.T @ (h - own.prior_mean * c),
        )
        assert_allclose(own.posterior.mean, again.mean, atol=1e-8 * np.abs(again.mean).max())
        scale = np.abs(again.covariance).max()
        assert_allclose(own.posterior.covariance, again.covariance, atol=1e-8 * scale)


@pytest.mark.parametrize("classes", [2, 4])
def test_threads_do_not_change_a_bit(classes, monkeypatch):
    monkeypatch.setattr(updates, "LATENTS_AT_ONCE", 3)
    model, new, rows = fit(classes, n_estimators=5), draw(30, 2, classes), draw(50, seed=3)[0]
    found = []
    for threads in (1, 3):
        model.n_jobs = threads
        model = model.update(*new)
        updated = model.predict_proba(rows)
        found.append((updated, model.forget().predict_proba(rows)))
        model = fit(classes, n_estimators=5)
    assert_array_equal(found[0][0], found[1][0])
    assert_array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize("posterior", ["variational", "bound"])
def test_the_sites_of_latent_functions_do_not_depend_on_each_other(posterior, monkeypatch):
    """Found together or one by one, they are the same to the tolerance of the ascent."""
    new, rows = draw(25, 2, 3), draw(50, seed=3)[0]
    together = fit(3, posterior, n_estimators=3).update(*new).predict_proba(rows)
    one_by_one = update.UpdateConfig(stack_bytes=1)
    monkeypatch.setattr(update.find_sites, "__defaults__", (one_by_one,))
    alone = fit(3, posterior, n_estimators=3).update(*new).predict_proba(rows)
    assert_allclose(alone, together, atol=1e-9)


def test_a_correction_may_outweigh_everything():
    model, (X, y) = fit(), draw(6, seed=3)
    model = model.update(X, 1 - y, np.full(6, 1e18))
    assert_array_equal(model.predict(X), 1 - y)


@pytest.mark.parametrize("posterior", ["variational", "bound"])
@pytest.mark.parametrize("kind", ["fourier", "exact"])
def test_enormous_weights_leave_the_digits_of_what_was_learned_before(kind, posterior):
    """They count as if they were the largest that do, also when they are forgotten."""
    model = fit(posterior=posterior) if kind == "fourier" else fit_exact(posterior=posterior)
    (X, y), rows = draw(6, seed=3), draw(100, seed=4)[0]
    plain = model.predict_proba(rows)
    config = update.UpdateConfig()
    largest = (
        config.largest_weight if posterior == "variational" else config.largest_conjugate_weight
    )
    expected = model.update(X, 1 - y, np.full(6, largest)).predict_proba(rows)
    for weight in (1e21, 1e29):
        corrected = model.update(X, 1 - y, np.full(6, weight))
        assert_array_equal(corrected.predict(X), 1 - y)
        # The variance of these models is above one, where the largest weight has an effect.
        assert_allclose(corrected.predict_proba(rows), expected, atol=1e-2)
        # Precisions up to 1e6 in all, added and taken away in double precision.
        assert_allclose(corrected.forget().predict_proba(rows), plain, atol=1e-8)


def test_corrected_pixels_get_their_class_and_others_hardly_change():
    model = fit(n_estimators=3)
    X = np.array([[0.1, 0.0, 2.5]]) + 0.02 * np.random.default_rng(0).normal(size=(30, 3))
    wrong = model.predict(X)
    away = draw(200, seed=5)[0]
    away = away[np.linalg.norm(away - X.mean(axis=0), axis=1) > 2.5]
    before = model.predict_proba(away)
    model = model.update(X, 1 - wrong)
    assert np.mean(model.predict(X) == 1 - wrong) > 0.9
    assert np.median(np.abs(model.predict_proba(away) - before)) < 0.05


@pytest.mark.parametrize("kind", ["fourier", "exact"])
def test_updates_leave_the_model_as_it_is(kind):
    model, rows = fit(3) if kind == "fourier" else fit_exact(3), draw(60, seed=3)[0]
    model.class_weight, model.provenance_ = {0: 1.0}, {"seed": 0}
    first = model.predict_proba(rows)
    once = model.update(*draw(20, seed=6, classes=3))
    second = once.predict_proba(rows)
    twice = once.update(3.0 * rows, np.zeros(60, int))
    back = twice.forget(0)
    twice.fit_report_["rows"], twice.class_weight[0] = 0, 9.0
    assert np.abs(second - first).max() > 1e-3
    for own, count, expected in ((model, 0, first), (once, 1, second)):
        assert_array_equal(own.predict_proba(rows), expected)
        assert len(getattr(own, "updates_", ())) == count
        assert own.class_weight == {0: 1.0}
        assert own.fit_report_["rows"] > 0
    assert (len(twice.updates_), len(back.updates_)) == (2, 1)
    assert back.provenance_ == {"seed": 0}
    with pytest.raises(InputError, match="y holds 7"):
        model.update(rows, np.full(60, 7))
    assert_array_equal(model.predict_proba(rows), first)


@pytest.mark.parametrize("classes", [2, 4])
def test_forgotten_updates_leave_no_trace(classes):
    model, rows = fit(classes), draw(100, seed=3)[0]
    plain, quantiles = model.predict_proba(rows), model.feature_quantiles_
    first, second = (draw(20, seed=seed, classes=classes) for seed in (6, 7))
    model = model.update(3.0 * first[0], first[1])
    once = model.predict_proba(rows)
    model = model.update(*second)
    assert len(model.updates_) == 2
    model = model.forget()
    assert_allclose(model.predict_proba(rows), once, atol=1e-9)
    model = model.update(*second).forget(0)
    # The second stays, with the sites it was given when the first was there.
    assert len(model.updates_) == 1
    model = model.forget(0)
    assert model.updates_ == ()
    assert_allclose(model.predict_proba(rows), plain, atol=1e-9)
    assert_array_equal(model.feature_quantiles_, quantiles)


def test_labelled_rows_are_no_longer_outside():
    model = fit()
    far = np.full((40, 3), 6.0) + 0.1 * np.random.default_rng(0).normal(size=(40, 3))
    before = model.latent_mean_and_variance(far)[1]
    model = model.update(far, np.ones(40, dtype=int))
    assert np.all(model.feature_quantiles_[-1] >= far.max(axis=0))
    assert np.all(model.latent_mean_and_variance(far)[1] < before)
    assert np.all(model.predict(far) == 1)


@pytest.mark.parametrize("classes", [2, 4])
def test_updates_are_in_the_model_file(classes, tmp_path):
    model, rows = fit(classes), draw(50, seed=3)[0]
    plain = model.predict_proba(rows)
    model = model.update(*draw(20, seed=8, classes=classes))
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    loaded = load_model(path)
    assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows))
    assert loaded.updates_[0].codes.dtype == model.updates_[0].codes.dtype
    assert_allclose(loaded.forget().predict_proba(rows), plain, atol=1e-9)


def test_a_weight_of_two_equals_a_row_given_twice():
    X, y = draw(10, seed=4)
    weighted, repeated = fit(), fit()
    weighted = weighted.update(X, y, np.where(np.arange(10) < 4, 2.0, 1.0))
    repeated = repeated.update(np.concatenate([X, X[:4]]), [*y, *y[:4]])
    rows = draw(50, seed=5)[0]
    assert_allclose(weighted.predict_proba(rows), repeated.predict_proba(rows), atol=1e-8)


def test_a_new_fit_forgets_updates():
    model = fit().update(*draw(5, seed=1))
    model.fit(*draw(400))
    assert not hasattr(model, "updates_")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X, np.full(9, 7)), r"y holds 7, but the model knows the classes 0, 1"),
        (lambda X, y: (X, y[:-1]), r"y has shape \(8,\)"),
        (lambda X, y: (X[:, :2], y), "2 features"),
        (lambda X, y: (np.where(np.arange(3) == 1, np.nan, X), y), "NaN"),
        (lambda X, y: (np.zeros((20_001, 3)), y), "at most 20,000 rows"),
    ],
)
def test_bad_rows_are_named_and_change_nothing(change, message):
    model, (X, y) = fit(), draw(9, seed=1)
    before = model.predict_proba(X)
    with pytest.raises(InputError, match=message):
        model.update(*change(X, y))
    assert_array_equal(model.predict_proba(X), before)
    assert not hasattr(model, "updates_")


def test_what_is_not_there_cannot_be_forgotten():
    model = fit()
    with pytest.raises(InputError, match="no update -1 to forget: the model has 0"):
        model.forget()
    model = model.update(*draw(3, seed=1))
    with pytest.raises(InputError, match="no update 1 to forget"):
        model.forget(1)


def test_random_frequencies_take_updates_too():
    X, y = draw(300)
    model = RFFGPC(10, n_estimators=1, random_state=0).fit(X, y)
    new = draw(30, seed=9)
    before = model.predict_proba(new[0])[np.arange(30), new[1]]
    model = model.update(*new)
    assert np.mean(model.predict_proba(new[0])[np.arange(30), new[1]] - before) > 0.0


# The exact classifier


def fit_exact(classes=2, posterior="variational", kernel="rbf"):
    X, y = draw(80, classes=classes)
    return GPC(posterior=posterior, kernel=kernel, tol=1e-3).fit(X, y)


def covariance_of(model, latent):
    kernel, own = find_kernel(model.kernel), model.latents_[latent]
    squares = np.sum((model.training_[:, None] - model.training_[None]) ** 2, axis=-1)
    return own.signal_variance * kernel.correlation(squares / own.lengthscale**2)


def dense_posterior(covariance, precision, projected):
    """N((K⁻¹ + P)⁻¹h, (K⁻¹ + P)⁻¹) without an inverse of K."""
    root = np.sqrt(precision)
    inner = np.linalg.inv(np.eye(len(root)) + root[:, None] * covariance * root)
    posterior = covariance - covariance @ (root[:, None] * inner * root) @ covariance
    return posterior @ projected, posterior


def dense_sites(model, latent):
    """Precisions, and precisions times centres, of all rows, less the prior mean.

    α is (I + PK)⁻¹h.
    """
    posterior = model.latents_[latent].posterior
    precision = posterior.roots**2
    covariance = covariance_of(model, latent)
    return precision, posterior.alpha + precision * (covariance @ posterior.alpha)


@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
@pytest.mark.parametrize("posterior", ["variational", "bound"])
@pytest.mark.parametrize("classes", [2, 3])
def test_an_update_of_the_exact_classifier_is_where_its_own_passes_would_stay(
    classes, posterior, kernel
):
    """Old sites stay; those of new rows are at their optimum under the posterior of all."""
    model = fit_exact(classes, posterior, kernel)
    latents, n = range(len(model.latents_)), len(model.training_)
    before = [dense_sites(model, latent) for latent in latents]
    X, y = draw(15, seed=2, classes=classes)
    X[3] = X[4]
    model = model.update(X, y)
    for latent in latents:
        precision, projected = dense_sites(model, latent)
        scale = np.abs(before[latent][1]).max()
        assert_allclose(precision[:n], before[latent][0], rtol=1e-9)
        assert_allclose(projected[:n], before[latent][1], atol=1e-9 * scale)
        prior_mean = model.latents_[latent].prior_mean
        mean, covariance = dense_posterior(covariance_of(model, latent), precision, projected)
        mean, variance = mean[n:] + prior_mean, np.diagonal(covariance)[n:]
        sign = np.where(y == (1 if classes == 2 else latent), 1.0, -1.0)
        if posterior == "variational":
            _, slope, c = expected_log_sigmoid(sign * mean, variance)
            h = sign * slope + c * mean
        else:
            xi = np.sqrt(mean**2 + variance)
            c, h = np.tanh(0.5 * xi) / (2.0 * xi), 0.5 * sign
        assert_allclose(precision[n:], c, rtol=1e-7)
        assert_allclose(projected[n:], h - prior_mean * c, rtol=1e-7, atol=1e-7)
        found = model.latent_mean_and_variance(X)
        # The ensemble's form is (n,) of two classes and (n, k) of more.
        own = [np.reshape(values, (15, -1))[:, latent] for values in found]
        assert_allclose(own[0], mean, atol=1e-7)
        assert_allclose(own[1], variance, atol=1e-7)


def test_an_update_of_the_exact_classifier_is_the_best_gaussian():
    """A general optimiser over c and h of the new rows finds the same."""
    model, (X, y) = fit_exact(), draw(3, seed=1)
    n, own = len(model.training_), model.latents_[0]
    old = dense_sites(model, 0)
    prior_mean, _ = model.latent_mean_and_variance(X)
    model = model.update(X, y)
    covariance = covariance_of(model, 0)
    _, prior = dense_posterior(
        covariance, np.append(old[0], np.zeros(3)), np.append(old[1], np.zeros(3))
    )
    prior, sign = prior[n:, n:], np.where(y == 1, 1.0, -1.0)
    inverse = np.linalg.inv(prior)

    def moments(theta):
        q = np.linalg.inv(inverse + np.diag(np.exp(theta[:3])))
        return q @ (inverse @ prior_mean + theta[3:]), q

    def loss(theta):
        mean, q = moments(theta)
        value = expected_log_sigmoid(sign * mean, np.diagonal(q))[0].sum()
        difference = mean - prior_mean
        squares = np.trace(inverse @ q) + difference @ inverse @ difference
        return 0.5 * (squares - np.linalg.slogdet(q)[1]) - value

    found = minimize(loss, np.r_[np.full(3, -1.5), 0.5 * sign], options={"gtol": 1e-9})
    mean, q = moments(found.x)
    assert own.lengthscale == model.latents_[0].lengthscale
    assert_allclose(model.latent_mean_and_variance(X)[0], mean, atol=1e-4)
    assert_allclose(model.latent_mean_and_variance(X)[1], np.diagonal(q), atol=1e-4)


@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
def test_the_root_of_new_rows_has_their_directions_only(kernel):
    model = fit_exact(kernel=kernel)
    own, x = model.latents_[0], np.repeat(draw(40, seed=2)[0], 5, axis=0)
    _, root = exact.mean_and_root(own, model.training_, x, find_kernel(kernel))
    old = dense_sites(model, 0)
    both = np.concatenate([model.training_, x])
    squares = np.sum((both[:, None] - both[None]) ** 2, axis=-1)
    prior = own.signal_variance * find_kernel(kernel).correlation(squares / own.lengthscale**2)
    none = np.zeros(len(x))
    _, covariance = dense_posterior(prior, np.append(old[0], none), np.append(old[1], none))
    assert root.shape[1] <= 40
    left_out = exact.ROOT_TOLERANCE * own.signal_variance
    # Beside what is left out, the rounding of two ways to the covariance.
    assert_allclose(root @ root.T, covariance[-len(x) :, -len(x) :], atol=10.0 * left_out)


def test_rows_that_are_known_beyond_doubt_stay_where_they_are():
    mean, sign, ones = np.linspace(-2.0, 2.0, 5), np.ones(5), np.ones(5)
    rows = update.NewRows(mean, np.zeros((5, 0)), 0.0 * ones, sign, ones, 1.0)
    (sites,) = update.find_sites([rows], EXPECTED)
    _, slope, curvature = expected_log_sigmoid(mean, 0.0 * ones)
    assert_allclose(sites.precision, curvature, rtol=1e-9)
    assert_allclose(sites.projected, slope + curvature * mean, rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_exact_classifier_forgets_without_a_trace(classes, tmp_path):
    model, rows = fit_exact(classes), draw(60, seed=3)[0]
    plain, quantiles = model.predict_proba(rows), model.feature_quantiles_
    first, second = draw(12, seed=6, classes=classes), draw(7, seed=7, classes=classes)
    model = model.update(3.0 * first[0], first[1], np.full(12, 2.0)).update(*second)
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    loaded = load_model(path)
    assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows))
    assert loaded.updates_[0].codes.dtype == model.updates_[0].codes.dtype
    loaded = loaded.forget(0)
    assert len(loaded.training_) == 80 + 7
    assert_array_equal(loaded.training_[80:], model.training_[92:])
    assert len(loaded.updates_) == 1
    loaded = loaded.forget()
    assert loaded.updates_ == ()
    assert_allclose(loaded.predict_proba(rows), plain, atol=1e-9)
    assert_array_equal(loaded.feature_quantiles_, quantiles)


def test_a_model_whose_update_has_other_latent_functions_is_not_saved(tmp_path):
    model = fit_exact(3).update(*draw(5, seed=1, classes=3))
    short = replace(model.updates_[0], precision=model.updates_[0].precision[:, :2])
    model.updates_ = (short,)
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match="'precision' as float64"):
        save_model(model, path)
    assert not path.exists()

"""All of scikit-learn's own checks, on every estimator; few frequencies change no rule."""

import inspect
import re

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from undulatus.estimators.fourier import FourierGPC

from undulatus import GPC, RFFGPC, VFFGPC, FourierFeatures

ESTIMATORS = [
    GPC(),
    RFFGPC(10, n_estimators=2),
    VFFGPC(10, n_estimators=2),
    VFFGPC(5, n_estimators=1),
    FourierFeatures(),
]
BY_THE_MEAN = {
    "check_decision_proba_consistency": "A single model decides by its latent mean. Its "
    "probabilities depend on the variance too, which may order rows differently."
}


def expected_failures(estimator):
    return BY_THE_MEAN if getattr(estimator, "n_estimators", 2) == 1 else {}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("options", [{"n_estimators": 1}, {"n_estimators": 2}, None], ids=str)
def test_the_docstring_lists_what_a_fit_report_holds(options):
    model = GPC(max_iter=2) if options is None else VFFGPC(3, max_iter=2, **options)
    X = np.random.default_rng(0).normal(size=(60, 2))
    report = model.fit(X, X[:, 0] > 0).fit_report_
    described = inspect.getdoc(type(model)).split("fit_report_ : dict")[1]
    described = described.split("feature_quantiles_")[0]
    assert set(re.findall(r'``"(\w+)"``', described)) == set(report)
    lists = {name for name, value in report.items() if isinstance(value, list)}
    members = 0 if options is None else options["n_estimators"]
    assert lists == [set(), {"validation_nll"}, {"validation_nll", "starting_lengthscale"}][members]
    if members == 2:
        assert [len(report[name]) for name in lists] == [2, 2]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("piped", [False, True], ids=["alone", "in a Pipeline"])
@pytest.mark.parametrize("search", ["cross_validate", "GridSearchCV"])
def test_groups_of_a_search_reach_the_fit_or_a_warning_says_that_they_do_not(
    search, piped, monkeypatch
):
    X = np.random.default_rng(0).normal(size=(120, 2))
    y, groups = X[:, 0] > 0, np.arange(120) // 10
    model = RFFGPC(3, n_estimators=1, solver="batch", max_iter=1)
    seen, real = [], FourierGPC._prepare
    monkeypatch.setattr(
        FourierGPC, "_prepare", lambda *given: seen.append(given[4]) or real(*given)
    )

    def run(model):
        model = make_pipeline(StandardScaler(), model) if piped else model
        if search == "GridSearchCV":
            return GridSearchCV(model, {}, cv=GroupKFold(2), refit=False).fit(X, y, groups=groups)
        routed = sklearn.get_config()["enable_metadata_routing"]
        given = {"params": {"groups": groups}} if routed else {"groups": groups}
        return cross_validate(model, X, y, cv=GroupKFold(2), **given)

    with pytest.warns(UserWarning, match="RFFGPC learns without them"):
        run(model)
    assert seen == [None, None]
    with sklearn.config_context(enable_metadata_routing=True):
        run(model)
        assert [len(set(own)) for own in seen[2:]] == [6, 6]
        run(model.set_fit_request(groups=False))
    assert seen[4:] == [None, None]

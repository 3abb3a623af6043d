"""All of scikit-learn's own checks, on every estimator; few frequencies change no rule."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from undulatus import GPC, RFFGPC, VFFGPC, FourierFeatures


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [GPC(), RFFGPC(20), VFFGPC(20), VFFGPC(5, n_members=3), FourierFeatures()]
)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)

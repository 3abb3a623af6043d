"""scikit-learn's own checks, all of them, on every estimator as it comes."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from undulatus import GPC, RFFGPC, VFFGPC, FourierFeatures


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([GPC(), RFFGPC(), VFFGPC(), FourierFeatures()])
def test_scikit_learns_contract_is_kept(estimator, check):
    check(estimator)

"""scikit-learn's own checks, all of them, on every estimator as it comes."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from undulatus import GPC, RFFGPC, VFFGPC, FourierFeatures


def known_failures(estimator):
    # Strictly in test_fourier.py: test_predicting_leaves_the_model_as_it_was.
    if isinstance(estimator, RFFGPC | VFFGPC):
        return {"check_dict_unchanged": "predicting keeps a root in the model"}
    return {}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [GPC(), RFFGPC(), VFFGPC(), FourierFeatures()],
    expected_failed_checks=known_failures,
)
def test_scikit_learns_contract_is_kept(estimator, check):
    check(estimator)

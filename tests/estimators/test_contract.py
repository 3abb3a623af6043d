"""All of scikit-learn's own checks, on every estimator; few frequencies change no rule."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from undulatus import GPC, RFFGPC, VFFGPC, FourierFeatures


def expected_failed_checks(estimator):
    """The decision is the latent mean; a probability depends on the latent variance, too."""
    # Of a committee, the decision is the logit of the probability.
    if isinstance(estimator, FourierFeatures) or getattr(estimator, "n_members", 1) > 1:
        return {}
    return {"check_decision_proba_consistency": expected_failed_checks.__doc__}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [GPC(), RFFGPC(20), VFFGPC(20), VFFGPC(5, n_members=3), FourierFeatures()],
    expected_failed_checks=expected_failed_checks,
)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)

from sklearn.utils.estimator_checks import parametrize_with_checks
import pytest
from undulatus import *
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([VFFGPC(), RFFGPC(), GPC(), FourierFeatures()])
def test_sk(estimator, check):
    check(estimator)

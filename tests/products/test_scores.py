"""Scores, compared with a calculation by hand and with scikit-learn."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binomtest
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    cohen_kappa_score,
    confusion_matrix,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from undulatus.errors import InputError
from undulatus.products.scores import Scores, expected_calibration_error, score, score_classes

seeds = st.integers(0, 2**32 - 1)


def random_case(seed, n=200):
    rng = np.random.default_rng(seed)
    probability = rng.uniform(0.001, 0.999, n)
    positive = rng.random(n) < probability
    positive[:2] = [True, False]
    return positive, probability


def test_scores_of_four_pixels_are_those_calculated_by_hand():
    positive = np.array([True, False, True, False])
    probability = np.array([0.9, 0.2, 0.4, 0.6])
    found = score(positive, probability)
    assert found.accuracy == 0.5
    assert_allclose(found.nll, -np.log([0.9, 0.8, 0.4, 0.4]).mean(), rtol=1e-12)
    assert_allclose(found.brier, (0.01 + 0.04 + 0.36 + 0.36) / 4, rtol=1e-12)
    # Pairs of a positive and a negative: 0.9 beats both, 0.4 beats 0.2 only.
    assert found.auc == 0.75
    # Each pixel has a bin of its own: the gaps are 0.1, 0.2, 0.6, 0.6.
    assert_allclose(found.ece, 1.5 / 4, rtol=1e-12)


@given(seeds)
def test_scores_equal_those_of_scikit_learn(seed):
    positive, probability = random_case(seed)
    found = score(positive, probability)
    assert_allclose(found.accuracy, accuracy_score(positive, probability > 0.5), rtol=1e-12)
    assert_allclose(found.nll, log_loss(positive, probability), rtol=1e-12)
    assert_allclose(found.brier, brier_score_loss(positive, probability), rtol=1e-12)
    assert_allclose(found.auc, roc_auc_score(positive, probability), rtol=1e-12)


@given(seeds, st.integers(1, 30))
def test_the_calibration_error_is_the_mean_gap_over_bins(seed, bins):
    positive, probability = random_case(seed)
    total = 0.0
    for low in np.arange(bins) / bins:
        inside = (probability >= low) & (probability < low + 1 / bins)
        if inside.any():
            gap = abs(probability[inside].mean() - positive[inside].mean())
            total += gap * inside.mean()
    # A probability on an edge may fall into either bin by rounding: one row of 200.
    assert abs(expected_calibration_error(positive, probability, bins) - total) <= 2 / 200


def test_labels_drawn_from_the_probabilities_make_them_calibrated():
    rng = np.random.default_rng(0)
    n = 100_000
    probability = rng.beta(0.5, 0.5, n)
    positive = rng.random(n) < probability
    # A bin of n/15 rows has a gap of standard error at most 0.5 / sqrt(n/15); its mean size
    # is 0.8 of that, and 15 of them average to 0.0049: allow half as much again.
    assert expected_calibration_error(positive, probability) < 0.5 * np.sqrt(15 / n)


def test_overconfidence_is_a_calibration_error():
    rng = np.random.default_rng(0)
    positive = rng.random(20_000) < 0.7
    assert_allclose(expected_calibration_error(positive, np.full(20_000, 0.95)), 0.25, atol=0.02)


def test_certain_and_right_is_the_best_score():
    positive = np.array([True, False, True])
    found = score(positive, positive.astype(float))
    assert (found.accuracy, found.auc) == (1.0, 1.0)
    assert_allclose([found.nll, found.brier, found.ece], 0.0, atol=1e-12)


def test_certain_and_wrong_is_a_finite_score():
    found = score(np.array([True, False]), np.array([0.0, 1.0]))
    assert np.isfinite(found.nll)
    assert found.nll > 30
    assert found.brier == found.ece == 1.0


@pytest.mark.parametrize("label", [True, False])
def test_one_class_alone_has_no_auc(label):
    found = score(np.full(5, label), np.linspace(0.1, 0.9, 5))
    assert np.isnan(found.auc)
    assert np.isfinite([found.accuracy, found.nll, found.brier, found.ece]).all()


def test_labels_may_be_numbers():
    probability = np.array([0.9, 0.2, 0.4])
    numbers = score(np.array([1, 0, 1]), probability)
    assert numbers == score(np.array([True, False, True]), probability)


def test_scores_are_plain_numbers_by_name():
    found = score(*random_case(0)).as_dict()
    assert set(found) == set(Scores.__dataclass_fields__)
    assert all(type(value) is float for value in found.values())


# Any number of classes

NAMES = ("cloud", "land", "snow", "water")


def drawn_classes(seed, n=300, k=4, sharpness=3.0):
    """Probabilities of k classes, and labels that are right more often than they say."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, k, n)
    codes[:k] = range(k)
    latent = rng.normal(size=(n, k))
    latent[np.arange(n), codes] += sharpness
    probability = np.exp(latent)
    return np.array(NAMES[:k])[codes], probability / probability.sum(axis=1, keepdims=True)


def estimates_of(scores):
    each = [getattr(one, name) for one in scores.by_class for name in CLASS_SCORES]
    return [*scores.overall.values(), *each]


CLASS_SCORES = ("producers_accuracy", "users_accuracy", "f1", "ece")

each_k = pytest.mark.parametrize("k", [2, 3, 4])


def slow_calibration_error(happened, probability, weight, bins=15):
    total = 0.0
    for index in range(bins):
        gap = 0.0
        for true, chance, mass in zip(happened, probability, weight, strict=True):
            if min(int(chance * bins), bins - 1) == index:
                gap += mass * (chance - true)
        total += abs(gap)
    return total / sum(weight)


@each_k
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_of_classes_equal_those_of_scikit_learn(k, weighted):
    y, probability = drawn_classes(1, k=k)
    weight = np.random.default_rng(2).uniform(0.0, 3.0, len(y)) if weighted else None
    classes = list(NAMES[:k])
    found = score_classes(y, probability, classes, weight=weight)
    predicted = np.array(classes)[probability.argmax(axis=1)]
    options = {"labels": classes, "sample_weight": weight}
    confusion = confusion_matrix(y, predicted, **options)
    assert_allclose(found.confusion, confusion, rtol=1e-12)
    each = precision_recall_fscore_support(y, predicted, **options)
    for name, expected in zip(("users_accuracy", "producers_accuracy", "f1"), each, strict=False):
        values = [getattr(one, name).value for one in found.by_class]
        assert_allclose(values, expected, rtol=1e-12)
    assert_allclose(found.kappa.value, cohen_kappa_score(y, predicted, **options), rtol=1e-12)
    assert_allclose(found.nll.value, log_loss(y, probability, **options), rtol=1e-12)
    assert_allclose(
        found.accuracy.value, accuracy_score(y, predicted, sample_weight=weight), rtol=1e-12
    )
    assert [one.true for one in found.by_class] == pytest.approx(confusion.sum(axis=1))
    assert [one.predicted for one in found.by_class] == pytest.approx(confusion.sum(axis=0))


@each_k
@pytest.mark.parametrize("weighted", [False, True])
def test_brier_and_calibration_equal_loops_over_rows(k, weighted):
    y, probability = drawn_classes(3, n=80, k=k, sharpness=0.5)
    weight = np.random.default_rng(4).uniform(0.0, 3.0, len(y)) if weighted else None
    found = score_classes(y, probability, NAMES[:k], weight=weight)
    weight = np.ones(len(y)) if weight is None else weight
    brier, right = 0.0, []
    for row, (label, chances) in enumerate(zip(y, probability, strict=True)):
        right.append(NAMES[int(chances.argmax())] == label)
        for name, chance in zip(NAMES, chances, strict=False):
            brier += weight[row] * (chance - (name == label)) ** 2
    assert_allclose(found.brier.value, brier / weight.sum(), rtol=1e-12)
    top = slow_calibration_error(right, probability.max(axis=1), weight)
    assert_allclose(found.ece.value, top, rtol=1e-10)
    each = [
        slow_calibration_error(y == name, probability[:, column], weight)
        for column, name in enumerate(NAMES[:k])
    ]
    assert_allclose([one.ece.value for one in found.by_class], each, rtol=1e-10)
    assert_allclose(found.classwise_ece.value, np.mean(each), rtol=1e-10)


def test_two_classes_have_the_scores_of_the_second_and_twice_its_brier():
    positive, probability = random_case(0)
    both = np.column_stack([1.0 - probability, probability])
    found, expected = score_classes(positive, both, [False, True]), score(positive, probability)
    assert_allclose(found.accuracy.value, expected.accuracy, rtol=1e-12)
    assert_allclose(found.nll.value, expected.nll, rtol=1e-12)
    assert_allclose(found.brier.value, 2.0 * expected.brier, rtol=1e-12)
    assert_allclose(found.by_class[1].ece.value, expected.ece, rtol=1e-10)


@given(seeds, st.permutations(range(4)))
def test_permuting_classes_permutes_the_confusion_matrix_and_the_scores(seed, order):
    y, probability = drawn_classes(seed, n=60)
    found = score_classes(y, probability, NAMES)
    permuted = score_classes(y, probability[:, order], [NAMES[i] for i in order])
    assert_array_equal(permuted.confusion, found.confusion[np.ix_(order, order)])
    for one, index in zip(permuted.by_class, order, strict=True):
        expected = found.by_class[index]
        assert (one.name, one.true, one.predicted) == (
            NAMES[index],
            expected.true,
            expected.predicted,
        )
        for name in CLASS_SCORES:
            same(getattr(one, name), getattr(expected, name))
    for name, estimate in permuted.overall.items():
        same(estimate, found.overall[name])


def same(one, other):
    """The same sums in another order differ by rounding, beside scores of order one."""
    assert_allclose(
        [one.value, one.low, one.high], [other.value, other.low, other.high], atol=1e-12
    )


@given(seeds, st.integers(1, 200), st.sampled_from(["rows", "groups", "weights"]))
def test_every_interval_holds_its_score(seed, n, kind):
    rng = np.random.default_rng(seed)
    probability = rng.dirichlet(np.full(3, 0.7), n)
    y = rng.integers(0, 3, n)
    options = {
        "rows": {},
        "groups": {"groups": rng.integers(0, 5, n)},
        "weights": {"weight": rng.exponential(size=n)},
    }[kind]
    for estimate in estimates_of(score_classes(y, probability, range(3), **options)):
        if np.isnan(estimate.low):
            assert np.isnan(estimate.high)
        else:
            assert estimate.low <= estimate.value <= estimate.high


def test_intervals_shrink_with_the_root_of_the_rows():
    widths = []
    for n in (400, 6_400):
        found = score_classes(*drawn_classes(0, n=n, sharpness=1.0), NAMES)
        widths.append([e.high - e.low for e in (found.accuracy, found.kappa, found.nll)])
    ratio = np.array(widths[0]) / widths[1]
    # Four in the mean. Percentiles of 1,000 resamples vary by 5 % in each width, and so do the
    # variances of 400 rows.
    assert_allclose(ratio, 4.0, rtol=0.25)


def test_wilson_intervals_of_shares_are_those_of_scipy():
    y, probability = drawn_classes(0, sharpness=1.0)
    found = score_classes(y, probability, NAMES, confidence=0.9)
    predicted = probability.argmax(axis=1)
    right = np.array(NAMES)[predicted] == y
    shares = {"accuracy": (found.accuracy, np.ones(len(y), bool))}
    for column, one in enumerate(found.by_class):
        shares[f"producer's {one.name}"] = one.producers_accuracy, y == one.name
        shares[f"user's {one.name}"] = one.users_accuracy, predicted == column
    for name, (estimate, among) in shares.items():
        test = binomtest(int(right[among].sum()), int(among.sum()))
        expected = test.proportion_ci(0.9, method="wilson")
        assert_allclose([estimate.low, estimate.high], expected, rtol=1e-10, err_msg=name)


def test_groups_of_equal_rows_widen_intervals_as_their_size_says():
    y, probability = drawn_classes(0, n=300, sharpness=1.0)
    alone = score_classes(y, probability, NAMES)
    copies = np.repeat(np.arange(300), 9)
    repeated = {"y_true": y[copies], "probability": probability[copies], "classes": NAMES}
    as_rows = score_classes(**repeated)
    as_groups = score_classes(**repeated, groups=copies)
    for name in ("accuracy", "kappa", "nll", "brier"):
        one, rows, groups = (s.overall[name] for s in (alone, as_rows, as_groups))
        assert_allclose(groups.value, one.value, rtol=1e-12)
        # Nine copies say nothing new; counted as rows they make intervals a third as wide. The
        # share of groups has 299 in place of 300, and percentiles vary by 5 %.
        assert_allclose(groups.high - groups.low, one.high - one.low, rtol=0.2)
        assert_allclose(rows.high - rows.low, (one.high - one.low) / 3, rtol=0.25)


def test_one_group_has_scores_without_intervals():
    y, probability = drawn_classes(0)
    found = score_classes(y, probability, NAMES, groups=np.zeros(len(y)))
    assert found.groups == 1
    assert np.isfinite([e.value for e in estimates_of(found)]).all()
    assert np.isnan([(e.low, e.high) for e in estimates_of(found)]).all()
    assert str(found.accuracy) == f"{found.accuracy.value:.4f}"


@each_k
def test_perfect_prediction_is_the_best_score(k):
    codes = np.arange(12) % k
    found = score_classes(codes, np.eye(k)[codes], range(k))
    assert_array_equal(found.confusion, np.diag(np.bincount(codes)))
    assert found.accuracy.value == found.accuracy.high == 1.0
    # Wilson: twelve of twelve still leave n / (n + z²) as the lower end.
    assert_allclose(found.accuracy.low, 12 / (12 + 1.959963984540054**2), rtol=1e-12)
    assert found.kappa.value == 1.0
    for one in found.by_class:
        assert one.producers_accuracy.value == one.users_accuracy.value == one.f1.value == 1.0
    for name in ("nll", "brier", "ece", "classwise_ece"):
        assert_allclose(found.overall[name].value, 0.0, atol=1e-12)


def test_certain_and_wrong_has_a_finite_loss_and_a_brier_of_two():
    found = score_classes([1, 2, 0], np.eye(3), range(3))
    assert found.accuracy.value == 0.0
    assert 30 < found.nll.value < np.inf
    assert found.brier.value == 2.0


def test_weights_equal_repeated_rows():
    y, probability = drawn_classes(0, n=50)
    times = np.random.default_rng(1).integers(0, 4, 50)
    weighted = score_classes(y, probability, NAMES, weight=times)
    repeated = score_classes(np.repeat(y, times), np.repeat(probability, times, axis=0), NAMES)
    assert_allclose(weighted.confusion, repeated.confusion, rtol=1e-12)
    for one, other in zip(estimates_of(weighted), estimates_of(repeated), strict=True):
        assert_allclose(one.value, other.value, rtol=1e-9, atol=1e-12)


def test_a_class_that_never_occurs_has_no_accuracy():
    y = ["land", "snow", "land"]
    probability = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0]])
    found = score_classes(y, probability, ["land", "snow", "water"])
    water = found.by_class[2]
    assert all(map(np.isnan, (water.producers_accuracy.value, water.users_accuracy.value)))
    assert str(water.f1) == "-"
    assert found.as_dict()["by_class"][2]["f1"] == {"value": None, "low": None, "high": None}


def test_rows_of_one_class_have_no_kappa():
    found = score_classes([0, 0, 0], np.tile([0.9, 0.1], (3, 1)), [0, 1])
    assert np.isnan(found.kappa.value)
    assert found.accuracy.value == 1.0


def test_a_higher_confidence_needs_a_wider_interval():
    y, probability = drawn_classes(0, sharpness=1.0)
    narrow, wide = (score_classes(y, probability, NAMES, confidence=c) for c in (0.5, 0.99))
    for one, other in zip(estimates_of(narrow), estimates_of(wide), strict=True):
        if np.isnan(one.low):
            assert np.isnan(other.low)
            continue
        assert other.low <= one.low
        assert one.high <= other.high


def test_scores_are_plain_values_for_json_and_for_a_row_of_csv():
    y, probability = drawn_classes(0)
    found = score_classes(y, probability, NAMES, groups=np.arange(len(y)) // 10)
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain == found.as_dict()
    assert plain["classes"] == list(NAMES)
    assert plain["confusion"] == found.confusion.tolist()
    assert plain["groups"] == 30
    assert plain["by_class"][2]["name"] == "snow"
    row = found.as_row()
    assert row["accuracy_low"] == found.accuracy.low
    assert row["f1_snow"] == found.by_class[2].f1.value
    assert all(isinstance(value, (int, float)) for value in row.values())


def test_the_table_names_every_class_and_is_aligned():
    y, probability = drawn_classes(0)
    names = ["high cloud", "land", "snow", "water"]
    text = score_classes(y, probability, NAMES, names=names).table()
    assert "high cloud" in text
    overall, by_class, confusion = text.split("\n\n")
    assert overall.splitlines()[0] == "300 rows, intervals of 0.95 confidence"
    assert len(by_class.splitlines()) == 5
    for part in (by_class, confusion):
        assert len({len(line) for line in part.splitlines()}) == 1
    head, *lines = confusion.splitlines()
    assert head.split() == ["true", "\\", "predicted", "high", "cloud", "land", "snow", "water",
                            "all"]  # fmt: skip
    assert lines[-1].split()[-1] == "300"


# Input that cannot be scored

GOOD = np.full((3, 3), 1.0 / 3.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probability": GOOD[:, :2]}, r"shape \(3, 2\), but there are 3 classes.*\(n, 3\)"),
        ({"probability": GOOD[:, 0]}, r"shape \(3,\), but there are 3 classes"),
        ({"probability": GOOD[:2]}, r"probability has 2 rows, but y_true has 3"),
        ({"probability": GOOD * [[1], [np.nan], [1]]}, r"NaN or infinite in 1 of 3 rows.*row 1"),
        ({"probability": GOOD * [[1], [1], [2]]}, r"1 of 3 rows.*first row 2.*sum 2\).*Divide"),
        ({"probability": [[1.5, -0.5, 0.0]] * 3}, r"3 of 3 rows.*1\.5, -0\.5, 0 "),
        ({"y_true": ["a", "d", "e"]}, r"2 rows of classes.*'d', 'e'.*\n  classes: 'a', 'b', 'c'"),
        ({"y_true": [0.0, np.nan, 1.0]}, r"nan"),
        ({"y_true": [["a"], ["b"], ["c"]]}, r"y_true has shape \(3, 1\)"),
        ({"y_true": [], "probability": GOOD[:0]}, r"y_true has shape \(0,\)"),
        ({"classes": ["a", "b", "b"]}, r"different classes.*'a', 'b', 'b'"),
        ({"classes": ["a"]}, r"two or more"),
        ({"weight": [1.0, 2.0]}, r"weight has shape \(2,\), but y_true has 3 rows"),
        ({"weight": [1.0, -2.0, 1.0]}, r"weight is -2 in row 1"),
        ({"weight": [0.0, 0.0, 0.0]}, r"weight is 0 in every row"),
        ({"groups": [1]}, r"groups has shape \(1,\)"),
        ({"names": ["a"]}, r"names has 1 names, but there are 3 classes"),
        ({"confidence": 95}, r"confidence is 95.*between 0 and 1"),
        ({"bins": 0}, r"bins is 0"),
    ],
)
def test_input_that_cannot_be_scored_is_named(change, message):
    given = {"y_true": ["a", "b", "c"], "probability": GOOD, "classes": ["a", "b", "c"]}
    with pytest.raises(InputError, match=f"(?s){message}"):
        score_classes(**(given | change))


def test_probabilities_in_single_precision_sum_closely_enough():
    y, probability = drawn_classes(0)
    single = score_classes(y, probability.astype(np.float32), NAMES)
    assert_allclose(single.nll.value, score_classes(y, probability, NAMES).nll.value, rtol=1e-4)

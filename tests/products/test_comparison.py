"""Two models or maps compared by paired differences on the same rows."""

import json

import numpy as np
import pytest
from benchmarks.differences import SAMPLES, measure
from numpy.testing import assert_allclose
from scipy.stats import t
from sklearn.metrics import log_loss, precision_score, recall_score

from undulatus.errors import InputError
from undulatus.products.comparison import compare_classes, fewest_groups, match_classes


def draw(rng, groups=12, size=30, gain=0.0):
    """Return truth, probabilities of two models, and groups; half of the groups are hard."""
    group = np.repeat(np.arange(groups), size)
    truth = rng.integers(0, 3, len(group))
    hard = rng.normal(0.0, 0.6, groups)[group]
    logits = rng.normal(size=(2, len(group), 3)) + 0.7 * rng.normal(size=(len(group), 3))
    for logit, shift, odd in zip(
        logits, (1.0, 1.0 + gain), rng.normal(0, 0.5, (2, groups)), strict=True
    ):
        logit[np.arange(len(group)), truth] += shift + hard + odd[group]
    chances = np.exp(logits)
    return truth, chances / chances.sum(axis=2, keepdims=True), group


def scores_by_hand(truth, chances, weight):
    """Return accuracy, NLL, and producer's and user's accuracy of class 1, of each model."""
    found = []
    for probability in chances:
        said, weighted = probability.argmax(axis=1), {"sample_weight": weight}
        of_one = {"labels": [1], "average": "micro", **weighted}
        found.append(
            [
                np.average(said == truth, weights=weight),
                log_loss(truth, probability, labels=[0, 1, 2], **weighted),
                recall_score(truth, said, **of_one),
                precision_score(truth, said, **of_one),
            ]
        )
    return np.array(found)


@pytest.mark.parametrize("weighted", [False, True])
def test_standard_errors_are_those_of_leaving_out_one_group_at_a_time(weighted):
    rng = np.random.default_rng(0)
    truth, chances, group = draw(rng)
    weight = rng.uniform(0.5, 2.0, len(truth)) if weighted else np.ones(len(truth))
    found = compare_classes(truth, *chances, range(3), weight=weight, groups=group)
    whole = scores_by_hand(truth, chances, weight)
    without = np.array(
        [scores_by_hand(truth[kept], chances[:, kept], weight[kept])
         for kept in (group != g for g in range(12))]
    )  # fmt: skip
    moved = (without[:, 1] - without[:, 0]) - (whole[1] - whole[0])
    error = np.sqrt(11 / 12 * np.sum(moved**2, axis=0))
    one = found.by_class[1]
    listed = [found.accuracy, found.nll, one.producers_accuracy, one.users_accuracy]
    assert_allclose([[d.first for d in listed], [d.second for d in listed]], whole, rtol=1e-10)
    assert_allclose([d.value for d in listed], whole[1] - whole[0], rtol=1e-9)
    assert_allclose([d.standard_error for d in listed], error, rtol=1e-9)
    halves = [(d.high - d.low) / 2 / d.standard_error for d in listed]
    # Groups that make most of the variance leave fewer degrees of freedom.
    assert all(t.ppf(0.975, 11) - 1e-9 <= half < t.ppf(0.975, 3) for half in halves)


def test_a_bootstrap_over_groups_gives_nearly_the_same_standard_error():
    truth, chances, group = draw(np.random.default_rng(1), groups=40)
    found = compare_classes(truth, *chances, range(3), groups=group).nll
    loss = -np.log(chances[:, np.arange(len(truth)), truth])
    each = (loss[1] - loss[0]).reshape(40, -1).mean(axis=1)
    rng = np.random.default_rng(2)
    means = each[rng.integers(0, 40, (4000, 40))].mean(axis=1)
    # The bootstrap has sqrt(39 / 40) of it, and of 4,000 samples 5 / sqrt(8000) of noise.
    assert found.standard_error == pytest.approx(means.std(), rel=0.0126 + 0.056)


@pytest.mark.parametrize("gain", [0.0, 0.4])
def test_intervals_hold_a_known_difference_as_often_as_they_say(gain):
    many = draw(np.random.default_rng(3), groups=20_000, size=10, gain=gain)
    known = compare_classes(many[0], *many[1], range(3), groups=many[2])
    rng = np.random.default_rng(4)
    held = np.zeros(2)
    for _ in range(400):
        truth, chances, group = draw(rng, groups=25, size=10, gain=gain)
        found = compare_classes(truth, *chances, range(3), groups=group)
        held += [
            one.low <= true.value <= one.high
            for one, true in ((found.accuracy, known.accuracy), (found.nll, known.nll))
        ]
    # Five standard errors of a share of 0.95 among 400.
    assert np.all(held / 400 > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 400))


@pytest.mark.parametrize("name", SAMPLES)
def test_models_are_not_called_different_by_chance(name):
    held, verdicts, _ = measure(SAMPLES[name], 100)
    # Five standard errors of a share of 0.95 among 100, and of groups that hardly differ less.
    assert held > 0.95 - 5 * 0.022
    if "both" in name:
        assert verdicts < 0.05 + 5 * 0.022


def test_pairs_tell_what_two_intervals_do_not():
    """One model is right wherever the other is, and in one row more of each group."""
    group = np.repeat(np.arange(20), 10)
    right = np.tile(np.arange(10), 20) < 2 + (group % 5)
    more = np.tile(np.arange(10), 20) < 3 + (group % 5)
    sure = np.array([[0.1, 0.9], [0.9, 0.1]])
    y = np.zeros(200, int)
    found = compare_classes(
        y, sure[right.astype(int)], sure[more.astype(int)], [0, 1], groups=group,
        called=("old.undulatus", "new.undulatus"),
    )  # fmt: skip
    assert found.accuracy.value == pytest.approx(0.1)
    # As every group differs alike, what is left is that of rows drawn by themselves.
    assert found.accuracy.standard_error == pytest.approx(np.sqrt(0.1 * 0.9 / 200))
    assert found.verdicts[0].startswith("Accuracy: new.undulatus is better by 0.1000 (0.05")
    assert found.verdicts[1].startswith("NLL: new.undulatus is better by 0.2197 (0.1")
    swapped = compare_classes(
        y, sure[more.astype(int)], sure[right.astype(int)], [0, 1], groups=group
    )
    assert swapped.accuracy.value == pytest.approx(-0.1)
    assert all(": first is better by" in verdict for verdict in swapped.verdicts)


def test_equal_models_do_not_differ_and_like_ones_are_within_chance():
    truth, chances, group = draw(np.random.default_rng(5))
    same = compare_classes(truth, chances[0], chances[0], range(3), groups=group)
    assert same.accuracy.value == 0.0
    assert np.isnan(same.accuracy.standard_error)
    assert same.verdicts[0] == "Accuracy: the two do not differ in any row."
    sure = np.tile([0.9, 0.1], (60, 1))
    alike = compare_classes(
        np.zeros(60, int), 1.0 - sure, sure, [0, 1], groups=np.arange(60) // 10
    )
    assert alike.verdicts[0] == "Accuracy: other is better by 1.0000 in every row alike."
    like = compare_classes(truth, *chances, range(3), groups=group)
    assert "is within what chance does" in like.verdicts[0]


def test_too_few_groups_have_no_interval_and_that_is_said():
    truth, chances, group = draw(np.random.default_rng(6), groups=5)
    found = compare_classes(truth, *chances, range(3), groups=group)
    for one in (found.accuracy, found.nll):
        assert np.isfinite(one.value)
        assert np.isnan([one.standard_error, one.low, one.high]).all()
    assert found.verdicts[1] == (
        "NLL: 5 groups are too few to tell a difference from chance; it takes 6."
    )
    assert (fewest_groups(0.95), fewest_groups(0.9), fewest_groups(0.5)) == (6, 5, 2)


def test_a_class_that_one_of_them_never_predicts_has_no_difference_of_user_s_accuracy():
    y = np.repeat([0, 1], 50)
    never, good = np.tile([0.9, 0.1], (100, 1)), 0.1 + 0.8 * np.eye(2)[y]
    found = compare_classes(y, never, good, [0, 1], groups=np.arange(100) // 10)
    one = found.by_class[1]
    assert np.isnan(one.users_accuracy.value)
    assert one.producers_accuracy.value == 1.0
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["by_class"][1]["users_accuracy"]["value"] is None
    assert plain["verdicts"] == list(found.verdicts)
    line = next(line for line in found.table().splitlines() if "user's accuracy, 1" in line)
    assert line.split()[-5:] == ["-", "1.0000", "-", "-", "-"]


def test_classes_are_matched_by_name():
    assert match_classes(["a", "b"], ["b", "a"]).tolist() == [1, 0]
    with pytest.raises(InputError, match=r"only the first has: snow\n  only the other has: ice"):
        match_classes(["a", "snow"], ["a", "ice"])

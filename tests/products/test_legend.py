"""Legends: defaults, the order of the model's classes, files, and errors that name the classes."""

import json

import numpy as np
import pytest

from undulatus import RFFGPC, load_model, save_model
from undulatus.errors import InputError
from undulatus.products import Legend
from undulatus.products.legend import COLOURS_BY_NAME, PALETTE, legend_of_label

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def fitted(classes):
    rng = np.random.default_rng(0)
    y = np.array(classes)[np.arange(90) % len(classes)]
    return RFFGPC(3, n_estimators=1, max_iter=2, random_state=0).fit(rng.normal(size=(90, 2)), y)


@pytest.fixture(scope="module")
def surfaces():
    return fitted(["land", "snow", "water"])


def test_classes_that_are_bytes_are_their_own_codes_and_others_are_counted():
    assert Legend((10, 20, 255)).codes == (10, 20, 255)
    assert Legend(("a", "b", "c")).codes == (0, 1, 2)
    assert Legend((False, True)).codes == (0, 1)
    assert Legend((-1, 1)).codes == (0, 1)


def test_the_missing_code_is_the_largest_that_no_class_has():
    assert Legend((0, 1)).missing == 255
    assert Legend((0, 254, 255)).missing == 253


def test_names_become_words_of_letters_and_digits():
    legend = Legend((0, 1, 2, 3), names=("open water", "Wüste (hell)", "snow/ice", "3"))
    assert legend.flag_meanings == "open_water Wuste_hell snow_ice class_3"


@pytest.mark.parametrize("count", [3, 40, 255])
def test_default_colours_are_distinct_enough_to_be_told_apart(count):
    colours = Legend(tuple(f"c{i}" for i in range(count))).colours
    assert colours[:3] == PALETTE[:3]
    assert len(set(colours[:40])) == min(count, 40)


def test_clear_and_cloud_have_the_colours_of_cloud_masks_wherever_they_stand():
    assert Legend(("cloud", "clear")).colours == ("#f7f7f7", "#3b6e8f")


def test_words_in_names_choose_colours_and_no_two_classes_have_the_same():
    colours = Legend(("town", "open water", "fresh water", "road")).colours
    assert colours[1] == COLOURS_BY_NAME["water"] == PALETTE[0]
    assert len(set(colours)) == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"names": ("land", "snow")}, "3 classes has 2 names"),
        ({"names": ("a b", "a_b", "c")}, "a_b, a_b, c"),
        ({"names": (1, 2, "c")}, "names of a legend are texts, but 1, 2, 'c'"),
        ({"codes": (0, 1, 256)}, "0, 1, 256"),
        ({"codes": (0, 1, 1)}, "distinct numbers from 0 to 255"),
        ({"colours": ("#000000", "red", "#ffffff")}, "'red'"),
        ({"cloud": "fog"}, "'fog' is cloud, but its names are 'land', 'snow', 'water'"),
    ],
)
def test_what_cannot_be_a_legend_is_named(given, words):
    with pytest.raises(InputError, match=words):
        Legend(("land", "snow", "water"), **given)


@pytest.mark.parametrize("classes", [("one",), ("a", "a"), tuple(range(256))])
def test_a_legend_has_two_to_255_classes_each_once(classes):
    with pytest.raises(InputError, match="2 to 255 classes, each once"):
        Legend(classes)


def test_a_legend_follows_the_order_of_the_models_classes(surfaces):
    given = Legend(("water", "land", "snow"), names=("sea", "soil", "ice"), codes=(7, 8, 9))
    found = given.for_model(surfaces)
    assert found.classes == ("land", "snow", "water")
    assert found.names == ("soil", "ice", "sea")
    assert found.codes == (8, 9, 7)


def test_classes_that_the_model_lacks_or_that_are_left_out_are_named(surfaces):
    with pytest.raises(InputError) as error:
        Legend(("land", "snow", "fog")).for_model(surfaces)
    assert str(error.value).splitlines() == [
        "The legend does not fit the model.",
        "  classes of the model that it lacks: 'water'",
        "  classes that the model does not have: 'fog'",
        "Give a legend of the model's own classes: 'land', 'snow', 'water'.",
    ]


def test_a_legend_is_stored_with_the_model_and_restored(surfaces, tmp_path):
    legend = Legend(("water", "land", "snow"), codes=(7, 8, 9), cloud="snow")
    legend.attach_to(surfaces)
    save_model(surfaces, tmp_path / "model")
    assert Legend.of(load_model(tmp_path / "model")) == legend.for_model(surfaces)


def test_a_stored_legend_of_another_model_is_refused(surfaces):
    other = fitted(["clear", "cloud"])
    with pytest.raises(InputError, match="does not fit"):
        Legend(("land", "water")).attach_to(other)
    other.provenance_ = {"legend": Legend(("land", "water")).as_dict()}
    with pytest.raises(InputError, match="does not fit"):
        Legend.of(other)


def test_a_legend_survives_json_and_unknown_fields_are_named():
    legend = Legend((0, 1, 2), names=("a", "b", "c"), cloud="c")
    assert Legend.from_dict(json.loads(json.dumps(legend.as_dict()))) == legend
    with pytest.raises(InputError, match="colors"):
        Legend.from_dict({"classes": [0, 1], "colors": []})
    for wrong in (5, "ab", [[0], [1]]):
        with pytest.raises(InputError, match="classes of a legend are a list"):
            Legend.from_dict({"classes": wrong})


@pytest.mark.parametrize(
    "classes", [["cloud", "land"], ["clear", "cloudy"], ["cloud", "land", "sea"], [0, 1], [1, 2]]
)
def test_a_class_is_not_cloud_by_its_name_or_its_position(classes):
    assert Legend.of(fitted(classes)).cloud is None


@pytest.mark.parametrize("chain", ["landmarks", "sounder"])
def test_a_model_that_a_chain_fitted_before_it_stored_legends_has_clear_and_cloud(chain):
    model = fitted([0, 1])
    model.provenance_ = {"chain": chain, "label": "mask"}
    assert Legend.of(model).names == ("clear", "cloud")
    assert Legend.of(model).cloud_index == 1


def flags(*meanings, values=None):
    return {"flag_values": values or range(len(meanings)), "flag_meanings": " ".join(meanings)}


@pytest.mark.parametrize(
    ("name", "attrs", "names", "cloud"),
    [
        ("cloud_mask_l2", {}, ("clear", "cloud"), "cloud"),
        ("mask", {"standard_name": "cloud_binary_mask"}, ("clear", "cloud"), "cloud"),
        ("mask", {"flag_meanings": "dry wet"}, ("dry", "wet"), None),
        ("mask", flags("wet", "dry", values=[1, 0]), ("dry", "wet"), None),
        ("water", {}, ("0", "1"), None),
        ("mask", flags("cloud_free", "cloudy"), ("clear", "cloud"), "cloud"),
        # Flags count for more than the order of values.
        ("cloud_mask", flags("cloudy", "clear"), ("cloud", "clear"), "cloud"),
        ("surface", flags("sea", "land", "cloud"), ("sea", "land", "cloud"), "cloud"),
        ("cloud", flags("sea", "land", "ice"), ("sea", "land", "ice"), None),
        # Partly cloudy is cloudy too, so one of these classes is not all the cloud.
        (
            "cloud_class",
            flags("clear", "partly_cloudy", "cloudy"),
            ("clear", "partly_cloudy", "cloudy"),
            None,
        ),
        ("aerosol", flags("cloud_free", "dust", "smoke"), ("cloud_free", "dust", "smoke"), None),
    ],
)
def test_a_label_is_cloud_only_if_it_says_so(name, attrs, names, cloud):
    found = legend_of_label(name, attrs, tuple(range(len(names))))
    assert (found.names, found.cloud) == (names, cloud)


def test_values_of_a_label_are_codes_and_those_without_a_flag_their_own_names():
    found = legend_of_label("surface", flags("sea", "ice", values=[3, 40]), (3, 7, 40))
    assert found.codes == found.classes == (3, 7, 40)
    assert found.names == ("sea", "7", "ice")

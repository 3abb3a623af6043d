"""Files that somebody forged, with right checksums: refused, or models with valid predictions."""

import json
import math
import os
import random
import subprocess
import sys
import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
from benchmarks import forged_models
from benchmarks.forgery import Array, forge, put_together, take_apart
from numpy.testing import assert_array_equal

from undulatus import RFFGPC, load_model, save_model
from undulatus.errors import InputError, ModelFileError
from undulatus.products.provenance import Provenance
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.storage import schema
from undulatus.storage.codec import pack_triangle, unpack_triangle

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PER_KIND = 100
"""Forged files of each kind; ``python -m benchmarks.forged_models`` tries more."""


@cache
def sound_files():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return forged_models.sound_files()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "forged.undulatus"


def assert_refused(path, words=""):
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_forged_files_are_refused_or_predict_validly():
    tally = forged_models.try_files(0, PER_KIND * len(sound_files()), seed=1)
    assert tally.lost == []
    # It is of no use unless some files pass, and most do not.
    assert tally.outcomes[forged_models.REFUSED] > 0.5 * tally.outcomes.total()
    for outcome in (forged_models.IDENTICAL, forged_models.ANOTHER):
        assert tally.outcomes[outcome] > 0.02 * tally.outcomes.total()


def test_a_file_put_together_again_is_the_same_model(path):
    for name, content in sound_files().items():
        parts = take_apart(content)
        assert take_apart(put_together(parts)) == parts
        if not name.startswith("checkpoint"):
            path.write_bytes(put_together(parts))
            forged_models.predict_all(load_model(path))


def test_forging_depends_on_its_seed_alone():
    content = sound_files()["rff"]
    assert forge(content, random.Random(3)) == forge(content, random.Random(3))


# Fields, one at a time


def forged(name, path, alter):
    parts = take_apart(sound_files()[name])
    alter(parts.header, parts.arrays)
    path.write_bytes(put_together(parts))
    return path


def set_field(*keys, to):
    """Return a function that sets a field of a header, found by its keys."""

    def alter(header, arrays):
        for key in keys[:-1]:
            header = header[key]
        header[keys[-1]] = to

    return alter


def set_array(name, change):
    def alter(header, arrays):
        arrays[name] = Array.of(np.ascontiguousarray(change(arrays[name].values())))

    return alter


def with_entry(place, value):
    def change(values):
        values[place] = value
        return values

    return change


LABELS = {"dtype": "<i8"}
UPPER = with_entry((0, 1), 0.25)


def as_square(change):
    """Change a triangle after it became the square that files had up to schema 3."""
    return lambda own: change(unpack_triangle(own, "C"))


FIELDS = {
    "NaN in the header": ("rff", set_field("prior_log_ratio", to=math.nan), "NaN"),
    "a number past doubles": ("rff", set_field("prior_log_ratio", to=10**400), "too large"),
    "a boolean as a number": ("rff", set_field("prior_log_ratio", to=True), "prior_log_ratio is"),
    "a text as a number": ("rff", set_field("n_features", to="2"), "n_features is '2'"),
    "no features": ("rff", set_field("n_features", to=0), "n_features is 0"),
    "a schema of another type": ("rff", set_field("schema", to=True), "schema True"),
    "classes swapped": ("rff", set_field("classes", to={"array": [1, 0], **LABELS}), "sorted"),
    "classes twice": ("rff", set_field("classes", to={"array": [1, 1], **LABELS}), "twice"),
    "one class": ("rff", set_field("classes", to={"array": [1], **LABELS}), "two or more"),
    "a class too many": (
        "rff",
        set_field("classes", to={"array": [0, 1, 2], **LABELS}),
        "lacks latents",
    ),
    "classes in a matrix": (
        "rff",
        set_field("classes", to={"array": [[0, 1]], **LABELS}),
        "shape",
    ),
    "labels longer than their type": (
        "rff",
        set_field("classes", to={"array": ["aa", "bb"], "dtype": "<U1"}),
        "fit its dtype",
    ),
    "an enormous dtype": (
        "rff",
        set_field("classes", to={"array": ["a", "b"], "dtype": "<U400000000"}),
        "dtype",
    ),
    "texts as numbers": (
        "rff",
        set_field("classes", to={"array": ["0", "1"], "dtype": "<f8"}),
        "another type",
    ),
    "an unknown field": ("rff", set_field("extra", to=1), "'extra', which is not known"),
    "a wrong kernel": ("rff", set_field("params", "kernel", to="exp"), "'kernel' parameter"),
    "a wrong type of parameter": ("rff", set_field("params", "tol", to="0"), "'tol' parameter"),
    "a list as parameter": ("rff", set_field("params", "tol", to=[0.1]), "list"),
    "a million threads": ("rff", set_field("params", "n_jobs", to=10**6), "threads"),
    "negative weights": (
        "rff",
        set_field("params", "class_weight", to={"pairs": [[0, -1.0], [1, 1.0]]}),
        "weight",
    ),
    "a key twice in a parameter": (
        "rff",
        set_field("params", "class_weight", to={"pairs": [[0, 1.0], [0, 1.0]]}),
        "mapping",
    ),
    "texts as frequencies": (
        "rff",
        set_field("params", "init_frequencies", to={"array": [["a"]], "dtype": "<U1"}),
        "numbers",
    ),
    "an unknown parameter": ("rff", set_field("params", "odd", to=1), "odd"),
    "a lengthscale of zero": ("rff", set_field("estimators", 0, "lengthscale", to=0.0), "1e-50"),
    "a negative taper": ("rff", set_field("estimators", 0, "taper", to=-1.0), "taper is -1.0"),
    "an enormous prior mean": (
        "rff",
        set_field("estimators", 0, "prior_mean", to=1e300),
        "prior_mean is 1e+300",
    ),
    "half an iteration": ("rff", set_field("estimators", 0, "n_iter", to=1.5), "n_iter is 1.5"),
    "an unknown end": ("rff", set_field("estimators", 0, "stopped", to="x"), "stopped is 'x'"),
    "losses that are no list": (
        "rff",
        set_field("estimators", 0, "validation_nll", to=1.0),
        "list",
    ),
    "a negative jitter": (
        "rff",
        set_field("estimators", 0, "posterior", "jitter", to=-1e-3),
        "jitter is -0.001",
    ),
    "an unknown precision": (
        "rff",
        set_field("fitted", "fit_report_", "prediction_precision", to="half"),
        "precision",
    ),
    "names that are numbers": ("rff", set_field("feature_names", to=[1, 2]), "feature_names[0]"),
    "estimators by the million": (
        "rff",
        set_field("estimators", to=[{}] * 10**5),
        "estimators[0] lacks",
    ),
    "updates without end": ("rff", set_field("updates", to=10**15), "updates"),
    "provenance that is a list": ("rff", set_field("provenance", to=[]), "provenance is []"),
    "a seed that is a text": ("rff", set_field("provenance", "seed", to="0"), "seed is '0'"),
    "a legend without classes": ("rff", set_field("provenance", "legend", to={}), "lacks classes"),
    "codes that are texts": (
        "rff",
        set_field("provenance", "legend", "codes", to=["0"]),
        "legend.codes[0] is '0'",
    ),
    "an enormous window": (
        "rff",
        set_field("provenance", "image_features", "windows", to=[10**9 + 1]),
        "windows[0]",
    ),
    "a matrix in no order": (
        "pipeline-scaler-pca",
        set_field("steps", 1, 1, "order", to={}),
        "order",
    ),
    "a step's wrong parameter": (
        "pipeline-scaler-pca",
        set_field("steps", 0, 1, "params", "with_mean", to="no"),
        "with_mean",
    ),
    "no regimes": ("regimes", set_field("regimes", to=[]), "0 regimes"),
    "an empty regime": ("regimes-classes", set_field("regimes", 0, 2, to="0.0"), "rising edges"),
    "regimes that overlap": ("regimes", set_field("regimes", 0, 2, to="70.0"), "contiguous"),
    "regimes in another order": (
        "regimes",
        lambda header, arrays: header["regimes"].reverse(),
        "features",
    ),
    "an edge that is no number": ("regimes", set_field("regimes", 0, 1, to="nan"), "edge 'nan'"),
    "an edge in other words": ("regimes", set_field("regimes", 0, 1, to="0"), "edge '0'"),
    "a regime's name twice": ("regimes", set_field("regimes", 1, 0, to="day"), "distinct names"),
    "too wide a blend": ("regimes", set_field("blend", to=31.0), "blend"),
    "other classes than its classifiers'": (
        "regimes",
        set_field("classes", to={"array": [1, 2], **LABELS}),
        "other classes",
    ),
    "an update of no regime": ("regimes", set_field("updates", to=[["dusk"]]), "which it lacks"),
    "a diagonal of zero": (
        "rff",
        set_array("0/posterior_root", with_entry((2,), 0.0)),
        "diagonal",
    ),
    "a diagonal of zero in a square": (
        "rff",
        set_array("0/posterior_root", as_square(with_entry((1, 1), 0.0))),
        "diagonal",
    ),
    "a root that is no triangle": (
        "rff",
        set_array("0/posterior_root", as_square(UPPER)),
        "above",
    ),
    "a factor that is no triangle": ("gpc", set_array("0/factor", as_square(UPPER)), "above"),
    "a root of another size": (
        "rff",
        set_array("0/posterior_root", lambda own: own[:-1]),
        "holds",
    ),
    "a factor with a huge inverse": (
        "gpc",
        set_array("0/factor", as_square(lambda own: np.tril(1e40 ** (1.0 - np.eye(len(own)))))),
        "cannot be inverted",
    ),
    "an enormous root": ("rff", set_array("0/posterior_root", lambda own: 1e60 * own), "1e+50"),
    "enormous weights in single precision": (
        "rff-single",
        set_array("0/posterior_mean", lambda own: own + 1e13),
        "1e+12",
    ),
    "no waves": ("rff", set_array("0/frequencies", lambda own: own[:0]), "frequencies"),
    "quantiles that fall": ("rff", set_array("feature_quantiles", lambda own: own[::-1]), "rise"),
    "a scale of denormals": (
        "vff-tolerant",
        set_array("scale", lambda own: own * 1e-310),
        "exceed",
    ),
    "codes of no class": (
        "vff-updated",
        set_array("updates/0/codes", lambda own: own + 9),
        "codes",
    ),
    "codes in fractions": (
        "vff-updated",
        set_array("updates/0/codes", lambda own: 0.5 * own + 0.25),
        "codes",
    ),
    "a weight below zero": (
        "vff-updated",
        set_array("updates/0/weight", lambda own: -own),
        "from 0",
    ),
    "a range that falls": (
        "vff-updated",
        set_array("updates/0/range_before", lambda own: own[::-1]),
        "rise",
    ),
    "enormous components": (
        "pipeline-scaler-pca",
        set_array("1/components_", lambda own: own * 1e200),
        "enormous",
    ),
}


@pytest.mark.parametrize(("name", "alter", "words"), FIELDS.values(), ids=FIELDS)
def test_a_field_that_means_nothing_is_refused_by_its_name(name, alter, words, path):
    assert_refused(forged(name, path, alter), words)


def test_classifiers_of_other_classes_than_each_other_are_refused(path):
    def alter(header, arrays):
        header["members"][0]["classes"] = {"array": [1, 2], "dtype": "<i8"}

    assert_refused(forged("regimes", path, alter), "different classes")


def test_arrays_that_share_their_bytes_are_refused(path):
    parts = take_apart(sound_files()["rff"])

    def overlap(entries):
        entries["scale"]["data_offsets"] = entries["centre"]["data_offsets"]

    parts.lies["entries"] = overlap
    path.write_bytes(put_together(parts))
    assert_refused(path, "lengths of its arrays")


def test_a_key_given_twice_is_refused(path):
    parts = take_apart(sound_files()["rff"])
    parts.lies["text"] = lambda text: text.replace('"kind":', '"kind": "GPC", "kind":', 1)
    path.write_bytes(put_together(parts))
    assert_refused(path, "twice")


def test_every_field_of_provenance_that_chains_store_is_described():
    assert set(Provenance.__dataclass_fields__) <= set(schema.Provenance.__annotations__)


# Found by the fuzzer


def test_a_nan_that_signals_is_refused_before_it_is_computed_with(path):
    def alter(header, arrays):
        signalling = np.full(3, 0x7FF4000000000000, np.uint64).view(np.float64)
        arrays["updates/0/codes"] = Array("F64", [3], signalling.tobytes())

    assert_refused(forged("vff-updated", path, alter), "NaN or infinity")


VALID = {
    "waves without a length": ("rff-single", set_array("0/frequencies", lambda own: 0.0 * own)),
    "a blend of denormals": ("regimes", set_field("blend", to=1e-310)),
    "a wide range of regimes": ("regimes", set_field("regimes", 0, 1, to="-1.7e+308")),
}


@pytest.mark.parametrize(("name", "alter"), VALID.values(), ids=VALID)
def test_an_odd_model_that_is_still_one_predicts_validly(name, alter, path):
    forged_models.predict_all(load_model(forged(name, path, alter)))


# Small files that ask for much

ASK_FOR_MUCH = """
import json, resource, sys, time
import numpy as np
from undulatus import load_model
from undulatus.errors import ModelFileError

load_model(sys.argv[1])
before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
for path in sys.argv[2:]:
    began = time.process_time()
    try:
        load_model(path)
    except ModelFileError as error:
        took = time.process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found[path] = [took, (peak - before) / 1024, str(error)]
print(json.dumps(found))
"""


def sparse(path, parts, name, shape):
    """Write a file whose last array is as long as its shape says, but takes no room on disk."""
    parts.arrays.pop(name, None)
    start = sum(len(array.content) for array in parts.arrays.values())
    parts.arrays[name] = Array("F64", shape, b"")
    length = 8 * math.prod(shape)

    def declare(entries):
        entries[name]["data_offsets"] = [start, start + length]

    parts.lies["entries"] = declare
    path.write_bytes(put_together(parts))
    os.truncate(path, path.stat().st_size + length)
    return path


def test_a_small_file_that_asks_for_much_is_refused_at_once(tmp_path):
    sound = tmp_path / "sound"
    sound.write_bytes(sound_files()["rff"])
    unknown, history, root = (take_apart(sound_files()["rff"]) for _ in range(3))
    n = 11_000
    # All but the root is as it should be.
    root.arrays["0/frequencies"] = Array.of(np.ones((n, 2)))
    root.arrays["0/posterior_mean"] = Array.of(np.ones(2 * n))
    paths = [
        sparse(tmp_path / "an unknown array", unknown, "extra", [2**29]),
        sparse(tmp_path / "a history", history, "0/lower_bounds", [2**29]),
        sparse(tmp_path / "a root", root, "0/posterior_root", [n * (2 * n + 1)]),
    ]
    fields = {
        "a dtype": set_field("classes", to={"array": ["a", "b"], "dtype": "<U400000000"}),
        "deep lists": set_field("prior_log_ratio", to="@deep@"),
        "a million estimators": set_field("estimators", to=[{}] * 10**6),
        "parameters by the thousand": set_field("params", to={str(n): 1 for n in range(10**5)}),
        "updates without end": set_field("updates", to=2**62),
    }
    paths += [forged("rff", tmp_path / name, alter) for name, alter in fields.items()]
    run = subprocess.run(
        [sys.executable, "-c", ASK_FOR_MUCH, sound, *paths],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert set(found) == set(map(str, paths)), "a file was accepted"
    assert "diagonal" in found[str(tmp_path / "a root")][2]
    for path, (seconds, megabytes, message) in found.items():
        assert path in message
        assert seconds < 1.0, path
        assert megabytes < 200.0, path


# Paths that are no files


def test_what_is_no_file_is_refused_without_being_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    names = ("pipe", "dangling", "loop", "", "nothing", "a" * 5000)
    for path in [*(tmp_path / name for name in names), "/dev/zero", "bad\0name"]:
        with pytest.raises(ModelFileError):
            load_model(path)


# What is saved can be loaded


@pytest.fixture(scope="module")
def table():
    X, y = forged_models.make_rows(80, 0)
    return pd.DataFrame(X, columns=["R1", "BT9"]), y > 0


def small():
    return RFFGPC(2, n_estimators=2, max_iter=1, random_state=0)


NAMES = [("day", "day/1"), ("0", "1"), ("1", "0"), ("a/b", "a"), ("", " "), ("ξ", "\x1b[31m")]


@pytest.mark.parametrize("names", NAMES, ids=repr)
def test_regimes_of_any_names_are_saved_and_loaded(names, table, path):
    X, y = table
    X = X.assign(angle=np.linspace(0.0, 100.0, len(X)))
    regimes = (Regime(names[0], 0.0, 50.0), Regime(names[1], 50.0, 101.0, ("BT9",)))
    model = RegimeClassifier(small(), regimes, by="angle").fit(X, y)
    save_model(model, path)
    again = load_model(path)
    assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.regimes_ == model.regimes_
    assert list(again.estimators_) == list(names)


ODD = {
    "NaN": ({"a": [1.0, math.nan]}, r"provenance_\['a'\]\[1\] is nan"),
    "a numpy number": ({"n": np.int64(3)}, r"provenance_\['n'\] is a int64.*tolist"),
    "a numpy array": ({"n": np.ones(3)}, "is a ndarray"),
    "a key that is a number": ({"days": {1: "a"}}, r"provenance_\['days'\] has the key 1"),
    "a set": ({"days": {1, 2}}, "is a set"),
    "bytes": ({"a": b"x"}, "is a bytes"),
    "half a character": ({"a": "\ud800"}, "half of a character"),
    "a list": ([1, 2], "provenance is"),
    "a seed that is a text": ({"seed": "0"}, "provenance.seed is '0'"),
}


@pytest.mark.parametrize(("provenance", "words"), ODD.values(), ids=ODD)
def test_provenance_that_could_not_be_loaded_is_not_saved(provenance, words, table, path):
    model = small().fit(*table)
    model.provenance_ = provenance
    save_model(small().fit(*table), path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=words):
        save_model(model, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_tuples_and_floats_of_numpy_in_provenance_become_plain(table, path):
    model = small().fit(*table)
    model.provenance_ = {"days": (1, (2.5, None)), "share": np.float64(0.5)}
    save_model(model, path)
    found = load_model(path).provenance_
    assert found == {"days": [1, [2.5, None]], "share": 0.5}
    assert type(found["share"]) is float


def test_a_model_with_a_parameter_changed_after_fit_to_nonsense_is_not_saved(table, path):
    model = small().fit(*table).set_params(kernel="cubic")
    with pytest.raises(InputError, match="'kernel' parameter"):
        save_model(model, path)
    assert not path.exists()


def test_a_model_whose_fitted_numbers_were_spoiled_is_not_saved(table, path):
    model = small().fit(*table)
    model.feature_quantiles_ = model.feature_quantiles_[::-1]
    with pytest.raises(InputError, match="do not rise"):
        save_model(model, path)
    assert not path.exists()


# Triangles


@pytest.mark.parametrize("k", [1, 2, 3, 50])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_triangle_takes_half_the_room_and_is_the_same_again(k, order):
    matrix = np.tril(np.random.default_rng(k).normal(size=(k, k)))
    values = pack_triangle(matrix)
    assert len(values) == k * (k + 1) // 2
    found = unpack_triangle(values, order)
    assert_array_equal(found, matrix)
    assert found.flags.f_contiguous if order == "F" else found.flags.c_contiguous
    assert_array_equal(unpack_triangle(matrix, order), matrix)


@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_every_number_on_the_diagonal_of_a_triangle_must_be_positive(step):
    k = 13
    sound = pack_triangle(np.tril(-np.ones((k, k))) + 3.0 * np.eye(k))
    check = schema.packed_triangle(1e3)

    def faults(values):
        parts = range(0, len(values), step)
        return [check(values[first : first + step], first) for first in parts]

    assert not any(faults(sound))
    for place in np.flatnonzero(sound > 0):
        wrong = sound.copy()
        wrong[place] = -1.0
        assert faults(wrong).count("a diagonal that is not positive") == 1
    assert any(faults(1e4 * sound))

"""Faults of what is given to ``fit`` and ``predict``."""

from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import scipy.sparse
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from tests.faults.fault import Fault, gives, refused, same, sound

from undulatus import GPC, FourierFeatures, SpectralPCA
from undulatus.errors import (
    InputError,
    ModelFileError,
    NotEnoughMemoryError,
    NotFiniteError,
    TooManyRowsError,
)
from undulatus.regimes import Regime, RegimeClassifier

ROWS = 60


def with_value(values, place, value):
    """Return a copy of values with another one in a place."""
    copied = np.array(values, dtype=object if value is None else None)
    copied[place] = value
    return copied


def masked(values):
    """Return values of which the first is masked."""
    first = np.zeros(np.shape(values), dtype=bool)
    first[0] = True
    return np.ma.masked_array(values, mask=first)


def far_apart(shop):
    """Return the probabilities of two classes, of which one has two rows of 502."""
    rng = np.random.default_rng(1)
    return shop.probabilities(rng.normal(size=(502, 2)), np.arange(502) < 2)


def in_regimes(shop, X=None, y=None, **columns):
    """Fit two regimes by a sun that is high for the first half of the rows."""
    sun = np.repeat([20.0, 70.0], ROWS // 2)
    table = shop.table.assign(**{"sun": sun} | columns) if X is None else X
    regimes = (Regime("high", 0.0, 45.0), Regime("low", 45.0, 90.0))
    model = RegimeClassifier(shop.classifier(), regimes, by="sun")
    return shop.fit(table, y, model=model)


def as_memory_map(shop):
    np.save("rows.npy", shop.X)
    return np.load("rows.npy", mmap_mode="r")


def interrupted(shop, step=1, **options):
    """Press Ctrl-C in a fit, and return the classifier."""
    model = shop.classifier(**options)
    with shop.interrupt(step):
        try:
            shop.fit(model=model)
        except KeyboardInterrupt:
            return model
    return model


def continued(shop, **options):
    """Interrupt a fit that has a checkpoint, fit again, and compare with an undisturbed fit."""
    options = {"tol": 0.0, "max_iter": 6} | options
    interrupted(shop, 3, checkpoint="state", **options)
    again = shop.fit(model=shop.classifier(checkpoint="state", **options))
    whole = shop.fit(model=shop.classifier(**options))
    return again.predict_proba(shop.X), whole.predict_proba(shop.X)


def scores_of_interrupted_folds(shop):
    with shop.interrupt(1):
        return cross_val_score(shop.classifier(), shop.X, shop.y, cv=3)


def with_more_iterations(shop, solver):
    """Fit three iterations, raise ``max_iter`` to eight, and return how many were done then."""
    options = {"solver": solver, "tol": 0.0, "checkpoint": "state"}
    shop.fit(model=shop.classifier(max_iter=3, **options))
    return shop.fit(model=shop.classifier(max_iter=8, **options)).n_iter_


def with_damaged_checkpoint(shop):
    shop.fit(model=shop.classifier(checkpoint="state"))
    state = Path("state")
    state.write_bytes(state.read_bytes()[:-100])
    return shop.fit(model=shop.classifier(checkpoint="state"))


def refitted_on_nan(shop):
    """Fit, fail to fit again, and predict."""
    model = shop.fit()
    try:
        shop.fit(with_value(shop.X, (0, 0), np.nan), model=model)
    except NotFiniteError:
        return model.predict(shop.X)


FAULTS = (
    # Values of features
    Fault(
        "NaN in the rows of a fit",
        lambda shop: shop.fit(with_value(shop.X, (3, 1), np.nan)),
        refused(NotFiniteError, "NaN: first at row 3, column 1"),
    ),
    Fault(
        "infinity in the rows of a fit",
        lambda shop: shop.fit(with_value(shop.X, (3, 1), -np.inf)),
        refused(NotFiniteError, "infinity .* row 3, column 1"),
    ),
    Fault(
        "NaN in the rows of a prediction",
        lambda shop: shop.fit().predict_proba(with_value(shop.X, (3, 1), np.nan)),
        refused(NotFiniteError, "row 3, column 1"),
    ),
    Fault(
        "a value too large for single precision",
        lambda shop: shop.fit(with_value(shop.X.astype(np.float32), (3, 1), np.float32(np.inf))),
        refused(NotFiniteError, "too large"),
    ),
    Fault(
        "a column of netCDF's default fill value",
        lambda shop: shop.fit(np.column_stack([shop.X, np.full(ROWS, 9.969209968386869e36)])),
        refused(InputError, r"column 3 are too large.*9.97e\+36"),
    ),
    Fault(
        "rows times 1e150",
        lambda shop: shop.fit(shop.X * 1e150),
        refused(InputError, "too large.*rescale"),
    ),
    Fault(
        "rows times 1e-30",
        lambda shop: (shop.probabilities(shop.X * 2.0**-100), shop.probabilities()),
        same(),
    ),
    Fault(
        "rows times 1e20 that are not standardised",
        lambda shop: shop.fit(shop.X * 1e20, model=shop.classifier(standardize=False)),
        refused(InputError, "leave standardize=True"),
    ),
    Fault(
        "a value far outside training, in a prediction of a model without a warp",
        lambda shop: shop.fit(model=shop.classifier(warp=False)).predict(shop.X * 1e30),
        refused(InputError, "too far"),
    ),
    Fault(
        "a constant column",
        lambda shop: shop.probabilities(np.column_stack([shop.X, np.full(ROWS, 7.0)])),
        sound(),
    ),
    Fault("all rows equal", lambda shop: shop.probabilities(np.ones((ROWS, 2))), sound()),
    Fault(
        "rows given twice",
        lambda shop: (
            shop.fit(np.repeat(shop.X, 2, axis=0), np.repeat(shop.y, 2)).predict_proba(shop.X),
            shop.fit(sample_weight=np.full(ROWS, 2.0)).predict_proba(shop.X),
        ),
        same(),
    ),
    Fault(
        "columns that are sums of others",
        lambda shop: shop.probabilities(np.column_stack([shop.X, shop.X.sum(axis=1), shop.X])),
        sound(),
    ),
    Fault(
        "fewer rows than waves, and than columns",
        lambda shop: shop.probabilities(np.eye(4, 9), [0, 1, 0, 1]),
        sound(),
    ),
    Fault(
        "a masked value in the rows of a fit",
        lambda shop: shop.fit(masked(shop.X)),
        refused(InputError, "X has 3 of its 180 values masked"),
    ),
    Fault(
        "a masked value in the rows of a prediction",
        lambda shop: shop.fit().predict(masked(shop.X)),
        refused(InputError, "masked"),
    ),
    Fault(
        "masked rows in the chunks of a dask array",
        lambda shop: shop.fit(
            da.from_array(masked(shop.X), chunks=20), model=shop.classifier(solver="stochastic")
        ),
        refused(InputError, "masked"),
    ),
    Fault(
        "masked rows for principal components",
        lambda shop: SpectralPCA(2).fit(masked(shop.X)),
        refused(InputError, "masked"),
    ),
    Fault(
        "a masked array without a masked value",
        lambda shop: (shop.probabilities(np.ma.masked_array(shop.X)), shop.probabilities()),
        same(),
    ),
    # Forms of features
    Fault(
        "rows in Fortran's order",
        lambda shop: (shop.probabilities(np.asfortranarray(shop.X)), shop.probabilities()),
        same(),
    ),
    Fault(
        "rows of the other byte order",
        lambda shop: (shop.probabilities(shop.X.astype(">f8")), shop.probabilities()),
        same(),
    ),
    Fault(
        "rows in a read-only memory map",
        lambda shop: (shop.probabilities(as_memory_map(shop)), shop.probabilities()),
        same(),
    ),
    Fault(
        "rows in half precision",
        lambda shop: (
            shop.probabilities(shop.X.astype(np.float16)),
            shop.probabilities(shop.X.astype(np.float16).astype(np.float64)),
        ),
        same(),
    ),
    Fault(
        "rows of whole numbers",
        lambda shop: (
            shop.probabilities((1000 * shop.X).astype(np.int16)),
            shop.probabilities((1000 * shop.X).astype(np.int16).astype(float)),
        ),
        same(),
    ),
    Fault("no rows", lambda shop: shop.fit(shop.X[:0], []), refused(InputError, "0 sample")),
    Fault(
        "one row as a vector",
        lambda shop: shop.fit(shop.X[0], [0]),
        refused(InputError, "Expected 2D array"),
    ),
    Fault(
        "a sparse matrix",
        lambda shop: shop.fit(scipy.sparse.csr_array(shop.X)),
        refused(TypeError, "[Ss]parse"),
    ),
    Fault(
        "complex rows",
        lambda shop: shop.fit(shop.X.astype(complex)),
        refused(InputError, "[Cc]omplex"),
    ),
    Fault(
        "text in a table",
        lambda shop: shop.fit(shop.table.assign(B03="much")),
        refused(InputError, "could not convert string"),
    ),
    Fault(
        "another number of features",
        lambda shop: shop.fit().predict(shop.X[:, :2]),
        refused(InputError, "2 features.*3 features"),
    ),
    Fault(
        "columns in another order",
        lambda shop: shop.fit(shop.table).predict(shop.table[["B08", "B02", "B03"]]),
        refused(InputError, "same order"),
    ),
    Fault(
        "a renamed column",
        lambda shop: shop.fit(shop.table).predict(shop.table.rename(columns={"B02": "blue"})),
        refused(InputError, "blue"),
    ),
    # Labels
    Fault(
        "no labels",
        lambda shop: shop.classifier().fit(shop.X, None),
        refused(InputError, "requires y"),
    ),
    Fault(
        "NaN among the labels",
        lambda shop: shop.fit(y=with_value(shop.y.astype(float), 5, np.nan)),
        refused(InputError, "y contains NaN"),
    ),
    Fault(
        "None among the labels",
        lambda shop: shop.fit(y=with_value(shop.y, 5, None)),
        refused(InputError, "y contains None .*row 5"),
    ),
    Fault(
        "a missing value among labels of pandas",
        lambda shop: shop.fit(y=pd.Series(shop.y, dtype="Int64").mask(shop.y == 1)),
        refused(InputError, "y contains NaN"),
    ),
    Fault(
        "a masked label",
        lambda shop: shop.fit(y=masked(shop.y)),
        refused(InputError, "y has 1 of"),
    ),
    Fault(
        "numbers to regress on as labels",
        lambda shop: shop.fit(y=shop.X[:, 0]),
        refused(InputError, "Unknown label type: continuous"),
    ),
    Fault(
        "identifiers as labels",
        lambda shop: shop.fit(np.zeros((1500, 1)), np.arange(1500)),
        refused(InputError, "at most 999 classes.*identifier"),
    ),
    Fault(
        "text and numbers as labels",
        lambda shop: shop.fit(y=["cloud", *shop.y[1:]]),
        refused(InputError, "text and numbers together"),
    ),
    Fault(
        "bytes as labels",
        lambda shop: shop.fit(y=shop.y.astype("S1")),
        refused(InputError, "bytes is not supported"),
    ),
    Fault(
        "labels of one class",
        lambda shop: shop.fit(y=np.ones(ROWS)),
        refused(InputError, "needs two classes.*1.0"),
    ),
    Fault(
        "one row of a third class",
        lambda shop: shop.fit(y=with_value(shop.y, 0, 2)),
        refused(InputError, "two rows or more .*one of 2"),
    ),
    Fault(
        "numbers in an array of objects as labels",
        lambda shop: (shop.probabilities(y=shop.y.astype(object)), shop.probabilities()),
        same(),
    ),
    Fault(
        "labels of text",
        lambda shop: set(shop.fit(y=np.array(["land", "cloud"])[shop.y]).predict(shop.X).tolist()),
        gives({"land", "cloud"}),
    ),
    Fault(
        "labels of a category with a level that no row has",
        lambda shop: shop.fit(
            y=pd.Categorical.from_codes(shop.y, ["a", "b", "c"])
        ).classes_.tolist(),
        gives(["a", "b"]),
    ),
    Fault("two rows of 502 in one class", far_apart, sound()),
    # Weights and groups
    Fault(
        "weights past 1e300",
        lambda shop: shop.fit(sample_weight=np.full(ROWS, 1e301)),
        refused(InputError, "weights of the rows are too large"),
    ),
    Fault(
        "a negative weight",
        lambda shop: shop.fit(sample_weight=with_value(np.ones(ROWS), 0, -1.0)),
        refused(InputError, "[Nn]egative"),
    ),
    Fault(
        "a weight that is NaN",
        lambda shop: shop.fit(sample_weight=with_value(np.ones(ROWS), 0, np.nan)),
        refused(InputError, "NaN"),
    ),
    Fault(
        "a masked weight",
        lambda shop: shop.fit(sample_weight=masked(np.ones(ROWS))),
        refused(InputError, "sample_weight has 1 of"),
    ),
    Fault(
        "weights that are all zero",
        lambda shop: shop.fit(sample_weight=np.zeros(ROWS)),
        refused(InputError, "at least one non-zero"),
    ),
    Fault(
        "balanced weights of a class without weight",
        lambda shop: shop.fit(
            model=shop.classifier(class_weight="balanced"), sample_weight=1.0 - shop.y
        ),
        refused(InputError, r"none of positive weight of 1\."),
    ),
    Fault(
        "a class weight that is NaN",
        lambda shop: shop.fit(model=shop.classifier(class_weight={0: np.nan, 1: 1.0})),
        refused(InputError, "class 0 the weight nan"),
    ),
    Fault(
        "a negative class weight",
        lambda shop: shop.fit(model=GPC(class_weight={0: -1.0, 1: 1.0})),
        refused(InputError, "class 0 the weight -1"),
    ),
    Fault(
        "class frequencies that do not sum to one",
        lambda shop: shop.fit(model=shop.classifier(prior_correction={0: 0.5, 1: 0.6})),
        refused(InputError, "prior_correction .*sum to 1"),
    ),
    Fault(
        "a weight that outweighs all other rows",
        lambda shop: shop.fit(sample_weight=with_value(np.ones(ROWS), 7, 1e20)),
        refused(InputError, r"weights of rows reach from 1 to 1e\+20"),
    ),
    Fault(
        "infinity as a class",
        lambda shop: shop.fit(y=np.where(shop.y == 1, np.inf, 0.0)),
        refused(InputError, "y contains NaN or infinity"),
    ),
    Fault(
        "text among numbers in a column of objects",
        lambda shop: shop.fit(X=with_value(shop.X.astype(object), (3, 1), "cloud")),
        refused(InputError, "could not convert string to float: 'cloud'"),
    ),
    Fault(
        "None among the groups",
        lambda shop: shop.fit(groups=with_value(np.arange(ROWS) // 9, 7, None)),
        refused(InputError, "groups contains None .*row 7"),
    ),
    Fault(
        "no time among groups of days",
        lambda shop: shop.fit(
            groups=with_value(np.full(ROWS, "2010-01-01", "M8[D]"), 7, np.datetime64("NaT"))
        ),
        refused(InputError, "groups contains None .*row 7"),
    ),
    Fault(
        "a masked group",
        lambda shop: shop.fit(groups=masked(np.arange(ROWS) // 9)),
        refused(InputError, "groups has 1 of"),
    ),
    Fault(
        "one group for all rows",
        lambda shop: (shop.probabilities(groups=np.ones(ROWS)), shop.probabilities()),
        same(),
    ),
    # Regimes
    Fault(
        "a regime with rows of one class only",
        lambda shop: in_regimes(shop, y=np.arange(ROWS) < 15),
        refused(InputError, "Regime 'low' .*too few rows.*0 of class True"),
    ),
    Fault(
        "a row whose sun is NaN",
        lambda shop: in_regimes(shop, sun=with_value(np.full(ROWS, 20.0), 0, np.nan)),
        refused(InputError, "'sun' is missing .*1 of 60 rows"),
    ),
    Fault(
        "text as the height of the sun",
        lambda shop: in_regimes(shop, sun=with_value(np.full(ROWS, 20.0, object), 0, "noon")),
        refused(InputError, "'sun', which assigns rows to regimes, must hold numbers: .*'noon'"),
    ),
    Fault(
        "NaN in a row of a regime",
        lambda shop: in_regimes(shop, B03=with_value(shop.X[:, 1], 41, np.nan)),
        refused(InputError, "Regime 'low': .*row 41, column 'B03'"),
    ),
    Fault(
        "suns on the edges of regimes",
        lambda shop: in_regimes(shop).assign([0.0, 45.0, np.nextafter(90.0, 0.0), 90.0]).tolist(),
        gives([0, 1, 1, -1]),
    ),
    # Memory
    Fault(
        "a billion waves",
        lambda shop: shop.fit(model=shop.classifier(n_frequencies=10**9)),
        refused(NotEnoughMemoryError, "n_frequencies=1000000000.* GiB of memory is available"),
    ),
    Fault(
        "features of a billion waves",
        lambda shop: FourierFeatures(10**9).fit(shop.X),
        refused(NotEnoughMemoryError, "FourierFeatures with n_frequencies=1000000000"),
    ),
    Fault(
        "two million rows for an exact process",
        lambda shop: GPC().fit(np.zeros((2_000_000, 1)), np.arange(2_000_000) % 2),
        refused(TooManyRowsError, "2000000 training rows.*RFFGPC or VFFGPC"),
    ),
    # Fits that end early
    Fault(
        "a prediction before any fit",
        lambda shop: shop.classifier().predict(shop.X),
        refused(NotFittedError, "not fitted"),
    ),
    Fault("a prediction after a fit that failed", refitted_on_nan, refused(NotFittedError, "")),
    Fault(
        "Ctrl-C in a fit",
        lambda shop: interrupted(shop).predict(shop.X),
        refused(NotFittedError, "not fitted"),
    ),
    Fault(
        "Ctrl-C in a fit that keeps the best so far",
        lambda shop: interrupted(shop, on_interrupt="keep").fit_report_["stopped"],
        gives("interrupted"),
    ),
    Fault(
        "Ctrl-C in a cross-validation",
        scores_of_interrupted_folds,
        refused(KeyboardInterrupt, ""),
    ),
    Fault("Ctrl-C in a fit with a checkpoint", continued, same()),
    Fault(
        "Ctrl-C in a stochastic fit with a checkpoint",
        lambda shop: continued(shop, solver="stochastic"),
        same(),
    ),
    Fault(
        "a checkpoint of other data",
        lambda shop: (
            shop.fit(model=shop.classifier(checkpoint="state")),
            shop.fit(shop.X + 1.0, model=shop.classifier(checkpoint="state")),
        ),
        refused(InputError, "state belongs to another fit.*differs: the data"),
    ),
    Fault(
        "a checkpoint cut short",
        with_damaged_checkpoint,
        refused(ModelFileError, "state: is truncated"),
    ),
    Fault(
        "a checkpoint of a stochastic fit of fewer iterations",
        lambda shop: with_more_iterations(shop, "stochastic"),
        refused(InputError, r"max_iter \(8, in the checkpoint 3\)"),
    ),
    Fault(
        "a checkpoint of a batch fit of fewer iterations",
        lambda shop: with_more_iterations(shop, "batch"),
        gives(8),
    ),
    Fault(
        "an update with a new class",
        lambda shop: shop.fit().update(shop.X, shop.y + 5),
        refused(InputError, "new class needs a new fit"),
    ),
    Fault(
        "an update with NaN",
        lambda shop: shop.fit().update(with_value(shop.X, (3, 1), np.nan), shop.y),
        refused(NotFiniteError, "row 3, column 1"),
    ),
)

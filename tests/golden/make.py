"""Write the golden files of a release: small models, scenes and maps, and what was predicted.

Run it for each release, by that release, from the root of the repository:

    python tests/golden/make.py

It writes the folder ``tests/golden/VERSION``, which is then committed. A development version, such
as 0.2.0.dev0, writes the folder of the release to come, 0.2.0, and replaces it: run it whenever
the schema of model files or the layers of maps change, and for the last time by the release
itself. Files of a release are never written again: they show that what users have on disk still
loads and predicts the same, so the script refuses to replace them. ``tests/test_golden.py`` reads
every folder it finds. A folder holds

``NAME.undulatus``
    A fitted model. One that works in single precision says so in its name.
``predictions.npz``
    For each model, under ``NAME/``: ``rows`` to predict, the ``columns`` they have where the model
    knows them by name, ``provenance`` as JSON where the model has one, and what it predicts, under
    the name of the method. Where a method returns two things, they are columns of one array.
``NAME.scene.nc``, ``NAME.map.nc``, ``NAME.map.zarr``, ``NAME.map.tif``
    A scene, and the map that the model of that name makes of it. Beside a GeoTIFF of classes are
    its other layers, in ``NAME.map_layers.tif``.

New features of a release get new models here; old ones stay, so that folders can be compared.
"""

import json
import shutil
import warnings
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

# All that the script needs of the package: when a module moves, this is the place to follow.
from undulatus import GPC, RFFGPC, VFFGPC, save_model
from undulatus.estimators.pca import SpectralPCA
from undulatus.products.images import fit_image
from undulatus.products.landmarks import fit_scene
from undulatus.products.maps import map_scene
from undulatus.products.sounder import fit_spectra
from undulatus.regimes import MEDIAN, Regime, RegimeClassifier
from undulatus.scenes import synthetic_landmark, synthetic_sounder
from undulatus.scenes.files.writing import write_dataset

ANGLE = "solar_zenith_angle"
BANDS = ["R1", "R2", "BT7", "BT9", "BT10"]
NOISE = np.array([0.02, 0.02, 0.3, 0.2, 0.25])
METHODS = (
    "predict",
    "predict_proba",
    "decision_function",
    "latent_mean_and_variance",
    "predict_proba_and_variance",
)
PAPER = {"posterior": "bound", "warp": False}
"""Models of 0.1.0 were the paper's, with one set of waves that do not fade."""
ROWS_TO_PREDICT = 40
EXACT_ROWS = 30
"""Rows that an exact model learns from: its file grows with their square."""
UNDECIDED = 1e-4
"""Another rounding must not change a label: no probability is this close to 1/2, or to that of
another class."""


def main():
    release, development, _ = version("undulatus").partition(".dev")
    folder = Path(__file__).parent / release
    if folder.exists() and not development:
        raise SystemExit(f"{folder} is there already, and those of a release are not rewritten.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    predictions = {}
    cases = chain(
        classifiers(),
        committees(),
        labels_and_weights(),
        many_classes(),
        updates(),
        pipelines(),
        regimes(),
    )
    with warnings.catch_warnings():
        # Whether a model is the best there is does not matter here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, model, rows in cases:
            keep(name, model, rows, folder, predictions)
        # Whole spectra are in 0.1.0: they would make this folder half as large again.
        scenes = [landmarks(), scores(), image(), image_of_classes()]
        for name, model, scene, suffixes in scenes:
            scene = keep_maps(name, model, scene, folder, suffixes)
            keep(name, model, rows_of(model, scene), folder, predictions)
    np.savez_compressed(folder / "predictions.npz", **predictions)


def keep(name, model, rows, folder, predictions):
    """Save a model, and add what it predicts of some rows."""
    save_model(model, folder / f"{name}.undulatus")
    predictions[f"{name}/rows"] = np.asarray(rows)
    if isinstance(rows, pd.DataFrame):
        predictions[f"{name}/columns"] = np.array([str(column) for column in rows.columns])
    if hasattr(model, "provenance_"):
        predictions[f"{name}/provenance"] = np.array(json.dumps(model.provenance_))
    members = model.estimators_.values() if hasattr(model, "regimes_") else []
    for method in METHODS:
        if all(hasattr(each, method) for each in (model, *members)):
            found = getattr(model, method)(rows)
            found = np.column_stack(found) if isinstance(found, tuple) else found
            # Classes may be Python strings in an array of objects, which only a pickle could hold.
            predictions[f"{name}/{method}"] = found.astype(str) if found.dtype == object else found
    ordered = np.sort(predictions[f"{name}/predict_proba"], axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    if lead.min() < 2.0 * UNDECIDED:
        raise SystemExit(f"{name} cannot decide about row {lead.argmin()}: change its seed.")


def keep_maps(name, model, scene, folder, suffixes):
    """Write a scene and the maps of it; return the scene as it is read again."""
    write_dataset(scene, folder / f"{name}.scene.nc")
    with xr.open_dataset(folder / f"{name}.scene.nc", decode_coords="all") as opened:
        scene = opened.load()
    for suffix in suffixes:
        write_dataset(map_scene(model, scene), folder / f"{name}.map.{suffix}")
    return scene


def cloudy_rows(n, seed):
    """Return a table of five bands, and True where a curved border has cloud."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 2))
    reflectance = 0.3 + 0.15 * hidden[:, :1] + NOISE[:2] * rng.normal(size=(n, 2))
    temperature = 280.0 + 10.0 * hidden[:, 1:] + 3.0 * NOISE[2:] * rng.normal(size=(n, 3))
    latent = np.sin(1.5 * hidden[:, 0]) - 0.8 * hidden[:, 1] + 0.5 * rng.normal(size=n)
    return pd.DataFrame(np.hstack([reflectance, temperature]), columns=BANDS), latent > 0.2


def three_classes(n, seed):
    """Return the table of five bands, and one of three words for each row."""
    table, _ = cloudy_rows(n, seed)
    warm, bright = (table[name] - table[name].median() for name in ("BT9", "R1"))
    codes = np.where(bright / 0.15 - warm / 10.0 > 0.6, 0, np.where(warm > 0.0, 1, 2))
    return table, np.array(["cloud", "land", "water"])[codes]


def classifiers():
    """Yield name, fitted model and rows of each classifier: solvers, precisions, kernels."""
    table, cloud = cloudy_rows(400, seed=0)
    rows = cloudy_rows(ROWS_TO_PREDICT, seed=1)[0].to_numpy()
    models = {
        "gpc": GPC(**PAPER),
        "rff-batch": _rff(solver="batch"),
        "rff-batch-single": _rff(solver="batch", precision="single"),
        "rff-stochastic": _rff(solver="stochastic"),
        "rff-stochastic-single": _rff(solver="stochastic", precision="single"),
        "rff-matern32": _rff(kernel="matern32"),
        "rff-tolerant": _rff(20, variance_tolerance=1e-2),
        "rff-tolerant-single": _rff(variance_tolerance=1e-2, precision="single"),
        "vff-batch": _vff(solver="batch"),
        "vff-batch-single": _vff(solver="batch", precision="single"),
        "vff-stochastic": _vff(solver="stochastic"),
        "vff-stochastic-single": _vff(solver="stochastic", precision="single"),
        "vff-matern52": _vff(kernel="matern52"),
    }
    for name, model in models.items():
        n = EXACT_ROWS if name == "gpc" else len(table)
        yield name, model.fit(table.to_numpy()[:n], cloud[:n].astype(int)), rows


def committees():
    """Yield name, fitted model and rows of committees, warps, levels and waves that fade."""
    table, cloud = cloudy_rows(400, seed=0)
    rows = cloudy_rows(ROWS_TO_PREDICT, seed=1)[0].to_numpy(copy=True)
    # The last rows are away from what was learned from, and far away.
    rows[-8:-4] *= 2.0
    rows[-4:] *= 1e4
    rare = {"class_weight": {False: 3.0, True: 1.0}, "prior_correction": [0.6, 0.4]}
    members = {"n_estimators": 3, "random_state": 0}
    models = {
        "gpc-level": GPC(),
        "rff-level": RFFGPC(8, n_estimators=1, random_state=0, warp=False, taper=0.0),
        "vff-fading": VFFGPC(6, n_estimators=1, random_state=0, max_iter=20, **rare),
        "vff-tolerant-fading": VFFGPC(20, n_estimators=1, random_state=0, variance_tolerance=1e-2),
        "rff-committee": RFFGPC(8, **members),
        "vff-committee": VFFGPC(6, max_iter=20, solver="stochastic", **members, **rare),
        "vff-committee-single": VFFGPC(6, max_iter=20, precision="single", **members),
    }
    for name, model in models.items():
        n = EXACT_ROWS if name == "gpc-level" else len(table)
        yield name, model.fit(table.to_numpy()[:n], cloud[:n]), rows


def labels_and_weights():
    """Yield name, fitted model and rows of what else is kept: classes, names, priors, starts."""
    table, cloud = cloudy_rows(400, seed=0)
    unseen = cloudy_rows(ROWS_TO_PREDICT, seed=1)[0]
    X, rows = table.to_numpy(), unseen.to_numpy()
    words = np.where(cloud, "cloud", "clear")
    day = np.arange(len(X)) // 40
    balanced = {"class_weight": "balanced", "prior_correction": "training"}
    exact = GPC(kernel="matern52", **balanced, **PAPER).fit(X[:EXACT_ROWS], words[:EXACT_ROWS])
    yield "gpc-matern52-balanced-words", exact, rows
    yield "vff-booleans-names", _vff().fit(table, cloud), unseen
    yield "vff-words", _vff().fit(X, words.astype(object), groups=day), rows
    shares = {"clear": 0.8, "cloud": 0.2}
    weighted = _vff(class_weight={"clear": 1.0, "cloud": 3.0}, prior_correction=shares)
    yield "vff-weights-priors", weighted.fit(X, words, sample_weight=1.0 + cloud), rows
    start = np.random.default_rng(0).normal(size=(6, len(BANDS)))
    mean, deviation = X.mean(axis=0), X.std(axis=0)
    given = _vff(init_frequencies=start, standardize=False).fit((X - mean) / deviation, words)
    given.provenance_ = {"source": "a table", "shares": shares, "days": [0, 1], "note": None}
    yield "vff-given-frequencies", given, (rows - mean) / deviation


def many_classes():
    """Yield name, fitted model and rows of models of three classes."""
    table, words = three_classes(400, seed=10)
    rows = three_classes(ROWS_TO_PREDICT, seed=11)[0]
    few = {"n_estimators": 2, "max_iter": 5, "random_state": 0}
    shares = {"cloud": 0.2, "land": 0.3, "water": 0.5}
    models = {
        "classes-gpc": GPC(max_iter=5),
        "classes-rff-single": RFFGPC(6, precision="single", **few),
        "classes-vff": VFFGPC(5, **few),
        "classes-vff-priors": VFFGPC(5, prior_correction=shares, class_weight="balanced", **few),
        "classes-vff-tolerant": VFFGPC(5, variance_tolerance=1e-2, **few),
        "classes-pipeline": Pipeline([("reduce", PCA(3)), ("classify", VFFGPC(5, **few))]),
    }
    for name, model in models.items():
        n = EXACT_ROWS if "gpc" in name else len(table)
        given = table.to_numpy()[:n] if "pipeline" in name else table[:n]
        yield name, model.fit(given, words[:n]), rows.to_numpy() if "pipeline" in name else rows


def updates():
    """Yield name, fitted model and rows of models with corrections."""
    table, words = three_classes(300, seed=12)
    more, labels = three_classes(5, seed=13)
    rows = three_classes(ROWS_TO_PREDICT, seed=14)[0].to_numpy()
    X, wet = table.to_numpy(), words == "water"
    few = {"n_estimators": 2, "max_iter": 5, "random_state": 0}
    exact = GPC(max_iter=5).fit(X[:EXACT_ROWS], wet[:EXACT_ROWS])
    yield "updated-gpc", exact.update(more.to_numpy(), labels == "water"), rows
    twice = VFFGPC(5, **few).fit(X, words).update(more.to_numpy(), labels)
    weights = np.arange(1.0, 4.0)
    yield "updated-vff", twice.update(more.to_numpy()[:3], labels[:3], weights), rows
    table[ANGLE] = np.linspace(0.0, 120.0, len(table))
    more[ANGLE] = [10.0, 20.0, 30.0, 100.0, 110.0]
    unseen = three_classes(ROWS_TO_PREDICT, seed=15)[0]
    unseen[ANGLE] = np.linspace(0.0, 119.0, len(unseen))
    # Names that only numbered tensors can tell apart.
    named = (Regime("day", 0.0, 90.0), Regime("day/1", 90.0, np.inf, ("BT7", "BT9", "BT10")))
    model = RegimeClassifier(VFFGPC(5, **few), named, blend=5.0).fit(table, words)
    yield "updated-regimes-classes", model.update(more, labels), unseen


def _columns():
    """A transformer for some columns each, and one for the rest."""
    scaled = Pipeline([("fill", SimpleImputer(strategy="median")), ("scale", StandardScaler())])
    kinds = OneHotEncoder(categories=[[-1.0, 0.0]], handle_unknown="ignore", sparse_output=False)
    return ColumnTransformer(
        [("scaled", scaled, [0, 1]), ("kinds", kinds, [2])], remainder=SimpleImputer()
    )


def pipelines():
    """Yield name, fitted model and rows of each Pipeline that can be saved."""
    table, cloud = cloudy_rows(300, seed=2)
    unseen = cloudy_rows(ROWS_TO_PREDICT, seed=3)[0]
    X, rows = table.to_numpy(), unseen.to_numpy()
    steps = {
        "scaler-vff": [StandardScaler(), _vff()],
        "scaler-pca-rff": [StandardScaler(), PCA(3, whiten=True), _rff()],
        "incremental-pca-vff": [IncrementalPCA(3, batch_size=100), _vff()],
        "spectral-pca-vff": [SpectralPCA(3, noise=NOISE), _vff()],
        "passthrough-gpc": ["passthrough", StandardScaler(with_mean=False), GPC(**PAPER)],
        "scaler-pca-rff-single": [StandardScaler(), PCA(2), _rff(precision="single")],
        "columns-vff": [_columns(), _vff()],
    }
    for name, parts in steps.items():
        n = EXACT_ROWS if "gpc" in name else len(X)
        model = Pipeline([(f"step {number}", part) for number, part in enumerate(parts)])
        yield f"pipeline-{name}", model.fit(X[:n], cloud[:n].astype(int)), rows
    named = Pipeline([("scale", StandardScaler()), ("classify", _vff())]).fit(table, cloud)
    yield "pipeline-names", named, unseen


def regimes():
    """Yield name, fitted model and rows of classifiers by illumination."""
    table, cloud = cloudy_rows(600, seed=4)
    table[ANGLE] = np.random.default_rng(5).uniform(0.0, 120.0, len(table))
    unseen = cloudy_rows(ROWS_TO_PREDICT, seed=6)[0]
    unseen[ANGLE] = np.linspace(0.0, 119.0, len(unseen))
    night = Regime("night", 90.0, np.inf, ("BT7", "BT9", "BT10"))
    three = (Regime("high", 0.0, MEDIAN), Regime("low", MEDIAN, 90.0), night)
    two = (Regime("day", 0.0, 90.0), night)
    reduced = Pipeline([("reduce", PCA(3)), ("classify", _vff())])
    models = {
        "vff": RegimeClassifier(_vff(), three),
        "blend": RegimeClassifier(_vff(), three, blend=8.0),
        "blend-single": RegimeClassifier(_rff(precision="single"), two, blend=8.0),
        "pipeline": RegimeClassifier({"day": reduced, "night": _rff()}, two),
    }
    for name, model in models.items():
        yield f"regimes-{name}", model.fit(table, np.where(cloud, "cloud", "clear")), unseen


def landmarks():
    """Return the model of a few synthetic days, and acquisitions from night to noon."""
    days = synthetic_landmark(4, seed=1).load()
    model = fit_scene(days, n_frequencies=5, pixels=300)
    scene = days.isel(time=[4, 28, 31, 34, 40, 52]).copy(deep=True)
    scene["IR_108"][{"time": 4, "y": 7, "x": 9}] = np.nan
    return "landmarks", model, scene, ("nc", "zarr")


def scores():
    """Return the model of 300 scores a spectrum, as EUMETSAT sends them; here, some channels."""
    spectra = synthetic_sounder(300, seed=5).load()
    channels = (spectra["radiance"] / spectra["noise"]).isel(channel=slice(0, 8400, 28))
    columns = channels.rename(channel="component").drop_vars("wavenumber")
    columns = columns.astype(np.float32).assign_attrs(units="1")
    taken = spectra.drop_vars(["radiance", "noise", "wavenumber"]).assign(scores=columns)
    model = fit_spectra(taken, method="rff", n_frequencies=5, components=4)
    return "scores", model, taken.isel(sample=slice(12)), ("nc",)


def image():
    """Return a model of named bands, and an image with its bands along one dimension."""
    table, cloud = cloudy_rows(400, seed=7)
    model = _vff(precision="single").fit(table, np.where(cloud, "cloud", "clear"))
    pixels = cloudy_rows(120, seed=8)[0].to_numpy().astype(np.float32).reshape(10, 12, len(BANDS))
    pixels[3, 4, 1] = np.nan
    pixels[5, 6, 3] += 100.0
    coords = {"band": BANDS, "y": np.arange(10.0), "x": np.arange(12.0)}
    bands = xr.DataArray(pixels.transpose(2, 0, 1), coords, ("band", "y", "x"))
    return "image-single", model, bands.to_dataset(name="image"), ("nc",)


def image_of_classes():
    """Return a model of three classes with features made from bands, and an image of these."""
    rng = np.random.default_rng(16)
    truth = np.repeat(np.repeat([[0, 1, 2], [2, 0, 1]], 9, axis=0), 8, axis=1)
    spectra = np.array([[0.9, 0.8], [0.2, 0.5], [0.1, 0.05]])
    pixels = spectra[truth].transpose(2, 0, 1) + 0.03 * rng.normal(size=(2, *truth.shape))
    pixels[0, 3, 4] = np.nan
    coords = {
        "band": ["red", "nir"],
        "y": 5e6 - 10.0 * np.arange(truth.shape[0]),
        "x": 3e5 + 10.0 * np.arange(truth.shape[1]),
    }
    bands = xr.DataArray(pixels.astype(np.float32), coords, ("band", "y", "x"))
    places = {"dims": ("y", "x"), "coords": {name: coords[name] for name in ("y", "x")}}
    labels = xr.DataArray(truth.astype(np.uint8) + 1, **places)
    model = fit_image(
        bands, labels, indices=["NDVI"], windows=[3], n_frequencies=5, n_estimators=2, seed=0
    )
    return "image-classes", model, bands.to_dataset(name="image"), ("nc", "tif")


def rows_of(model, scene):
    """Return some rows for a model that was fitted for maps of a scene."""
    if "image_features" in getattr(model, "provenance_", {}):
        low, high = model.feature_quantiles_[[1, 5]]
        rows = np.random.default_rng(0).uniform(low, high, (ROWS_TO_PREDICT, len(low)))
        return pd.DataFrame(rows, columns=model.feature_names_in_)
    if "image" in scene:
        return cloudy_rows(ROWS_TO_PREDICT, seed=9)[0]
    if isinstance(model, Pipeline):
        return scene["scores"].values[[0, 3]].astype(np.float64)
    # Values between the quartiles of what was learned from by day.
    low, high = model.estimators_["high"].feature_quantiles_[[2, 4]]
    rng = np.random.default_rng(0)
    rows = rng.uniform(low, high, (ROWS_TO_PREDICT, len(low)))
    table = pd.DataFrame(rows, columns=model.regimes_[0].features)
    return table.assign(**{ANGLE: np.linspace(0.0, 119.0, len(table))})


def _rff(n_frequencies=8, **options):
    return RFFGPC(n_frequencies, n_estimators=1, random_state=0, taper=0.0, **PAPER, **options)


def _vff(n_frequencies=6, **options):
    options |= {"n_estimators": 1, "max_iter": 20, "random_state": 0, "taper": 0.0, **PAPER}
    return VFFGPC(n_frequencies, **options)


if __name__ == "__main__":
    main()

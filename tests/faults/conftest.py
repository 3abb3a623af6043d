"""The workshop in which faults are made: its files are made once in a process."""

import warnings

import pytest
from tests.faults.fault import Workshop

from undulatus import save_model
from undulatus.products import fit_image, fit_scene
from undulatus.scenes import synthetic_landmark, write_dataset


@pytest.fixture(scope="session")
def store(tmp_path_factory, small_image, image_files):
    """Two synthetic days, a labelled image, and a small model of each."""
    folder = tmp_path_factory.mktemp("store")
    days = synthetic_landmark(2, seed=1, chunk_days=1)
    write_dataset(days, folder / "days.zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = {"n_frequencies": 3, "n_estimators": 1, "seed": 0}
        clouds = fit_scene(days, method="rff", pixels=400, holdout=0.5, **few)
        cover = fit_image(
            image_files / "image.tif", image_files / "fields.gpkg", method="rff", **few
        )
    save_model(clouds, folder / "clouds.undulatus")
    save_model(cover, folder / "cover.undulatus")
    for name in ("image.tif", "fields.gpkg"):
        (folder / name).write_bytes((image_files / name).read_bytes())
    return folder


@pytest.fixture
def shop(store, tmp_path, monkeypatch):
    """A workshop whose folder is the current one."""
    monkeypatch.chdir(tmp_path)
    return Workshop(store, tmp_path)

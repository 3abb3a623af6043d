"""Three synthetic days, and made-up maps of them."""

import numpy as np
import pytest
import xarray as xr


@pytest.fixture(scope="session")
def scene(days):
    """Three days of a scene, with a gap of ten acquisitions on the first."""
    kept = np.delete(np.arange(3 * 96), slice(20, 30))
    return days.isel(time=kept).compute()


@pytest.fixture(scope="session")
def maps(scene):
    """A made-up map of the three days: the truth, less certain, with one pixel missing."""
    probability = (0.1 + 0.8 * scene["cloud_truth"]).astype(np.float32)
    probability[:, 3, 4] = np.nan
    mask = (probability > 0.5).where(probability.notnull(), 255).astype(np.uint8)
    return xr.Dataset(
        {
            "cloud_mask": mask,
            "cloud_probability": probability,
            "cloud_latent_variance": 0.5 * probability,
        },
        attrs=scene.attrs,
    )


CLASSES = {2: "sea", 3: "land", 9: "cloud"}
"""Codes and names of a made-up map of classes."""


@pytest.fixture(scope="session")
def class_flags():
    """Attributes of the classes, in a map and in a label."""
    return {
        "flag_values": np.array(list(CLASSES), np.uint8),
        "flag_meanings": " ".join(CLASSES.values()),
        "flag_colors": "#0072b2 #c8a165 #f7f7f7",
    }


@pytest.fixture(scope="session")
def labelled_scene(scene, class_flags):
    """The three days with a label of three classes: the Level-2 mask over land and sea."""
    surface = scene["land_mask"].astype(int) + 2
    label = xr.where(scene["cloud_mask_l2"] == 1, 9, surface).transpose("time", "y", "x")
    return scene.assign(surface=label.astype(np.uint8).assign_attrs(class_flags))


@pytest.fixture(scope="session")
def class_maps(scene, class_flags):
    """A made-up map of three classes: the true clouds, with one pixel missing."""
    surface = scene["land_mask"].astype(int) + 2
    truth = xr.where(scene["cloud_truth"] == 1, 9, surface).transpose("time", "y", "x")
    names = xr.DataArray(list(CLASSES.values()), dims="class_name")
    each = xr.DataArray(list(CLASSES), dims="class_name", coords={"class_name": names})
    probability = xr.where(truth == each, 0.7, xr.where(each == 9, 0.25, 0.05))
    # Of a cloudy pixel, land and sea share the rest.
    probability = (probability / probability.sum("class_name")).astype(np.float32)
    probability = probability.transpose("class_name", "time", "y", "x")
    probability[:, :, 3, 4] = np.nan
    codes = truth.where(probability.isel(class_name=0).notnull(), 255).astype(np.uint8)
    return xr.Dataset(
        {
            "class": codes.drop_vars("class_name").assign_attrs(class_flags),
            "class_probability": probability,
            "class_latent_variance": 2.0 * probability,
        },
        attrs=scene.attrs,
    )

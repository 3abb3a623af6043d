"""Three synthetic days, and a made-up map of them."""

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

"""Landsat folders: reflectances and temperatures by the coefficients beside them."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from undulatus.errors import SceneError
from undulatus.scenes import open_image
from undulatus.scenes.files.images import band_names

LEVEL2 = """GROUP = LANDSAT_METADATA_FILE
  SPACECRAFT_ID = "LANDSAT_9"
  GROUP = LEVEL2_SURFACE_REFLECTANCE_PARAMETERS
    REFLECTANCE_MULT_BAND_2 = 2.75e-05
    REFLECTANCE_ADD_BAND_2 = -0.2
    REFLECTANCE_MULT_BAND_5 = 2.75e-05
    REFLECTANCE_ADD_BAND_5 = -0.2
  END_GROUP = LEVEL2_SURFACE_REFLECTANCE_PARAMETERS
  GROUP = LEVEL2_SURFACE_TEMPERATURE_PARAMETERS
    TEMPERATURE_MULT_BAND_ST_B10 = 0.00341802
    TEMPERATURE_ADD_BAND_ST_B10 = 149.0
  END_GROUP = LEVEL2_SURFACE_TEMPERATURE_PARAMETERS
  GROUP = LEVEL1_RADIOMETRIC_RESCALING
    REFLECTANCE_MULT_BAND_2 = 2.0000E-05
    REFLECTANCE_ADD_BAND_2 = -0.100000
  END_GROUP = LEVEL1_RADIOMETRIC_RESCALING
END_GROUP = LANDSAT_METADATA_FILE
END
"""

LEVEL1 = """SPACECRAFT_ID = "LANDSAT_8"
SUN_ELEVATION = 30.0
REFLECTANCE_MULT_BAND_2 = 2.0000E-05
REFLECTANCE_ADD_BAND_2 = -0.100000
REFLECTANCE_MULT_BAND_8 = 2.0000E-05
REFLECTANCE_ADD_BAND_8 = -0.100000
RADIANCE_MULT_BAND_10 = 3.3420E-04
RADIANCE_ADD_BAND_10 = 0.10000
K1_CONSTANT_BAND_10 = 774.8853
K2_CONSTANT_BAND_10 = 1321.0789
"""


def write_folder(folder, small_image, text, numbers):
    folder.mkdir()
    (folder / "LC09_X_MTL.txt").write_text(text)
    for name, number in numbers.items():
        values = np.full((6, 8), number, np.uint16)
        values[0, 0] = 0
        small_image.write(folder / f"LC09_X_{name}.TIF", values=values, names=None)
    return folder


def test_level_2_is_surface_reflectance_and_temperature(small_image, tmp_path):
    numbers = {"SR_B2": 10_000, "SR_B5": 20_000, "ST_B10": 45_000, "QA_PIXEL": 1}
    image = open_image(write_folder(tmp_path / "l2", small_image, LEVEL2, numbers))
    assert band_names(image) == ["SR_B2", "SR_B5", "ST_B10"]
    expected = [10_000 * 2.75e-5 - 0.2, 20_000 * 2.75e-5 - 0.2, 45_000 * 0.00341802 + 149.0]
    assert_allclose(image.values[:, 3, 3], expected, rtol=1e-6)
    assert np.isnan(image.values[:, 0, 0]).all()


def test_level_1_is_divided_by_the_height_of_the_sun(small_image, tmp_path):
    numbers = {"B2": 20_000, "B8": 20_000, "B10": 25_000}
    image = open_image(write_folder(tmp_path / "l1", small_image, LEVEL1, numbers))
    assert band_names(image) == ["B2", "B10"]  # Without the panchromatic band.
    radiance = 25_000 * 3.342e-4 + 0.1
    expected = [(20_000 * 2e-5 - 0.1) / 0.5, 1321.0789 / math.log(774.8853 / radiance + 1.0)]
    assert_allclose(image.values[:, 3, 3], expected, rtol=1e-6)


def test_a_folder_without_usable_bands_is_refused(small_image, tmp_path):
    folder = write_folder(tmp_path / "none", small_image, LEVEL2, {"QA_PIXEL": 1})
    with pytest.raises(SceneError, match="holds no band whose coefficients"):
        open_image(folder)

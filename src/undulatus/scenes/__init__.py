"""The Earth: images and spectra in xarray, from satellites or synthetic, without any model."""

from undulatus.scenes import features, illumination, masks, sampling, scene, spectra
from undulatus.scenes.files import seviri
from undulatus.scenes.files.opening import open_data, open_map, open_scene, open_spectra
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.files.zarr_store import verify
from undulatus.scenes.scene import check_scene
from undulatus.scenes.spectra import check_spectra
from undulatus.scenes.twins.landmark import synthetic_landmark
from undulatus.scenes.twins.sounder import synthetic_sounder

__all__ = [
    "check_scene",
    "check_spectra",
    "features",
    "illumination",
    "masks",
    "open_data",
    "open_map",
    "open_scene",
    "open_spectra",
    "sampling",
    "scene",
    "seviri",
    "spectra",
    "synthetic_landmark",
    "synthetic_sounder",
    "verify",
    "write_dataset",
]

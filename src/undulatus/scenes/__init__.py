"""The Earth: images and spectra in xarray, from satellites or synthetic, without any model.

>>> from undulatus import scenes
>>> [name for name in dir(scenes) if name.startswith(("open", "write"))]
['open_data', 'open_image', 'open_map', 'open_scene', 'open_spectra', 'write_dataset']

Each name is imported when it is first used.
"""

from undulatus._lazy import lazy_names

_MODULES = (
    "features",
    "illumination",
    "image_features",
    "masks",
    "radiometry",
    "sampling",
    "scene",
    "spectra",
    "visible",
)

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **{name: name for name in _MODULES},
        "as_swath": "spectra",
        "check_scene": "scene",
        "check_spectra": "spectra",
        "open_data": "files.opening",
        "open_image": "files.images",
        "open_map": "files.opening",
        "open_scene": "files.opening",
        "open_spectra": "files.opening",
        "seviri": "files.seviri",
        "synthetic_landmark": "simulators.landmark",
        "synthetic_sounder": "simulators.sounder",
        "verify": "files.zarr_store",
        "write_dataset": "files.writing",
    },
)

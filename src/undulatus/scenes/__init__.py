"""The Earth: scenes of named bands in xarray, from satellites or synthetic; no model in sight."""

from undulatus.scenes import features, illumination, masks, pixels, scene, seviri
from undulatus.scenes.scene import check_scene
from undulatus.scenes.synthetic_landmark import synthetic_landmark

__all__ = [
    "check_scene",
    "features",
    "illumination",
    "masks",
    "pixels",
    "scene",
    "seviri",
    "synthetic_landmark",
]

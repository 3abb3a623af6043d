"""Browsers of maps: folders of static pages that open from disk, without a server.

:func:`build_site` shows the acquisitions of a map in time, :func:`browse_image` the map of one
image in a file; :func:`build_image_site` is for what is open already (:func:`raster_map`,
:func:`dataset_map`, :func:`open_picture`).
"""

from undulatus.products.browse.image_map import dataset_map, open_picture, raster_map
from undulatus.products.browse.image_site import browse_image, build_image_site
from undulatus.products.browse.site import build_site

__all__ = [
    "browse_image",
    "build_image_site",
    "build_site",
    "dataset_map",
    "open_picture",
    "raster_map",
]

"""What people make with a model: fits, maps, scores, pictures, video, pages.

>>> from undulatus import products
>>> print(*(name for name in dir(products) if name.startswith(("fit_", "map_", "score_"))))
fit_image fit_scene fit_spectra map_scene score_image score_scene score_spectra
>>> print(*(name for name in dir(products) if name.endswith(("_labels", "_image", "_basis"))))
adapt_image fit_image score_image scoring_basis suggest_labels update_image

These are the workflow, and ``Legend`` names the classes of a map; the modules have all else.
Each is imported when it is first used.
"""

from undulatus._lazy import lazy_names

_MODULES = (
    "area",
    "browse",
    "demo",
    "explain",
    "images",
    "landmarks",
    "maps",
    "orbit",
    "pictures",
    "pytroll",
    "scores",
    "sounder",
    "suggest",
    "video",
)

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **{name: name for name in _MODULES},
        "fit_image": "images",
        "score_image": "image_scores",
        "scoring_basis": "basis",
        "fit_scene": "landmarks",
        "score_scene": "landmarks",
        "compare_maps": "map_comparison",
        "map_scene": "maps",
        "Legend": "legend",
        "fit_spectra": "sounder",
        "score_spectra": "sounder",
        "suggest_labels": "suggest",
        "adapt_image": "new_labels",
        "update_image": "new_labels",
    },
)

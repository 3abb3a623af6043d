"""A browser of maps: a folder of static pages that open from disk, without a server."""

from undulatus.products.browse.site import build_site

__all__ = ["build_site"]

"""Every new file of a folder mapped once, unattended: see :mod:`.watcher`."""

from undulatus.products.watch.arrivals import Arrivals
from undulatus.products.watch.health import HealthFile, read_health
from undulatus.products.watch.watcher import MapOptions, Watcher, watching

__all__ = ["Arrivals", "HealthFile", "MapOptions", "Watcher", "read_health", "watching"]

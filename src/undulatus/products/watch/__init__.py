"""Every new file of a folder mapped once, unattended: see :mod:`.watcher`."""

from undulatus.products.watch.alarm import Alarm
from undulatus.products.watch.arrivals import Arrivals
from undulatus.products.watch.health import HealthFile, Limits, prometheus_text, read_health
from undulatus.products.watch.report import draw_report, read_report
from undulatus.products.watch.watcher import MapOptions, Watcher, watching

__all__ = [
    "Alarm",
    "Arrivals",
    "HealthFile",
    "Limits",
    "MapOptions",
    "Watcher",
    "draw_report",
    "prometheus_text",
    "read_health",
    "read_report",
    "watching",
]

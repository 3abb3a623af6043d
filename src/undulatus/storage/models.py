"""Every kind of model that a file may hold."""

from undulatus.storage import gaussian, pipelines, regimes
from undulatus.storage.kinds import Kind

KINDS: dict[str, Kind] = {**gaussian.KINDS, **pipelines.KINDS, **regimes.KINDS}

"""What a model remembers of its fit: the data, how they were split, and the method."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class Provenance:
    """What a model was fitted on; a field that is None is unknown, or does not apply.

    A model carries it as a dict of plain values, ``model.provenance_``, which is stored in the
    model file: :meth:`as_dict` makes that dict, :meth:`of` reads it.
    """

    chain: str | None = None
    """``"landmarks"`` or ``"sounder"``."""
    method: str | None = None
    label: str | None = None
    """The variable that was learned from."""
    legend: dict[str, Any] | None = None
    """Names, codes and colours of the classes (:meth:`undulatus.products.Legend.as_dict`)."""
    class_profiles: dict[str, Any] | None = None
    """Quantiles of the training values of each class: ``features`` has their names, ``quantiles``
    are shares, and ``values`` has, by the name of a class, a list over quantiles of lists over
    features."""

    # Of scenes
    daytime_median_degrees: float | None = None
    """Edge between the regimes high and mid."""
    held_out_days: list[str] | None = None
    """YYYY-MM-DD, UTC."""
    coast_width: int | None = None
    training_pixels: dict[str, int] | None = None
    """By regime."""

    # Of spectra
    measurement: str | None = None
    units: str | None = None
    channels: int | None = None
    training_spectra: int | None = None
    spectra_with_missing_values: int | None = None

    cloud_share: float | dict[str, float | None] | None = None
    """Of the labels; for scenes by regime."""
    held_out_cells: list[str] | None = None
    """Cells of strata, for spectra."""
    seed: int | None = None
    source: str | None = None
    platform_name: str | None = None
    calibration_mode: str | None = None

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return what a model remembers; nothing is known of one without ``provenance_``."""
        stored = getattr(model, "provenance_", {})
        return cls(**{f.name: stored[f.name] for f in fields(cls) if f.name in stored})

    def as_dict(self) -> dict[str, Any]:
        """Return the known fields as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

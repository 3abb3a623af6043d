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
    """``"landmarks"``, ``"sounder"`` or ``"image"``."""
    method: str | None = None
    label: str | None = None
    """The variable that was learned from, or the file of labels of an image."""
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
    training_days: list[str] | None = None
    """Days that were learned from."""
    coast_width: int | None = None
    training_pixels: dict[str, int] | None = None
    """By regime; of images, by class."""

    # Of spectra
    measurement: str | None = None
    units: str | None = None
    channels: int | None = None
    channel_set: str | None = None
    """What the channels are called, if they are not IASI's 8,461 ..."""
    wavenumbers: list[float] | None = None
    """... and where they lie, cm⁻¹."""
    training_spectra: int | None = None
    spectra_with_missing_values: int | None = None

    # Of images
    images: list[str] | None = None
    """Their paths, or ``image 1`` and so on."""
    field: str | None = None
    """The field of the labels with the class."""
    split: str | None = None
    """The field of the labels that says what is held out, if one does."""
    image_features: dict[str, Any] | None = None
    """How features are made (:meth:`undulatus.scenes.image_features.ImageFeatures.as_dict`)."""
    processing_baseline: str | None = None
    """Of Sentinel-2, if its offset was not applied."""
    group_unit: str | None = None
    """What was held out whole: polygon, square, image, or a field of the labels."""
    crs: str | None = None
    """Of the bounds of groups."""
    training_groups: dict[str, list[float]] | None = None
    """Groups that were learned from: west, south, east and north of each."""
    held_out_groups: dict[str, list[float]] | None = None
    """Groups kept for scores."""

    updates: list[dict[str, Any]] | None = None
    """Labels that were added after the fit: ``label``, ``images``, ``pixels`` by class, and the
    ``command``, if one added them."""

    adaptations: list[dict[str, Any]] | None = None
    """Labels of the one scene that a shared model was adapted to, likewise."""

    cloud_share: float | dict[str, float | None] | None = None
    """Of the labels, where it is known which class is cloud; for scenes by regime."""
    class_shares: dict[str, Any] | None = None
    """Of the labels by the names of classes, unless these are clear and cloud; for scenes by
    regime and name."""
    held_out_cells: list[str] | None = None
    """Cells of strata, for spectra."""
    training_cells: list[str] | None = None
    """Cells that were learned from."""
    seed: int | None = None
    version: str | None = None
    """Of the package."""
    command: str | None = None
    """The command that makes the model again, if it was made by one (``undulatus fit``). What does
    not change the model is left out: where it is written, ``--resume``, logs."""
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

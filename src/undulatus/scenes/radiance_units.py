"""How units of spectral radiance are spelled, and how many mW m⁻² sr⁻¹ (cm⁻¹)⁻¹ each is.

Blanks, dots, carets, stars, underscores and raised digits do not matter. After milliwatts
(``mW``) or watts (``W``) come, per cm⁻¹ or per m⁻¹ alike::

    m-2 sr-1 (cm-1)-1    m-2 sr-1 cm      cm m-2 sr-1
    /m2/sr/cm-1          /m2/sr/(cm-1)    /m2 sr cm-1
    /(m2 sr cm-1)        /(m2 sr (cm-1))  /(m2 sr)/cm-1    /(m2 sr)/(cm-1)

Per metre, ``W m-1 sr-1`` is understood too: what is left when metres are cancelled. But
``mW m-2 sr-1 cm-1`` is refused, since it may be meant per cm⁻¹ or per cm.
"""

from __future__ import annotations

RADIANCE_UNITS = "mW m-2 sr-1 (cm-1)-1"
"""The units of radiances everywhere in undulatus."""
_PER_CM = (
    "m-2sr-1(cm-1)-1", "m-2sr-1cm", "cmm-2sr-1", "/m2/sr/cm-1", "/m2/sr/(cm-1)", "/m2srcm-1",
    "/(m2srcm-1)", "/(m2sr(cm-1))", "/(m2sr)/cm-1", "/(m2sr)/(cm-1)",
)  # fmt: skip
_PER_M = (*(form.replace("cm", "m") for form in _PER_CM), "m-1sr-1")
_FACTORS = {
    **{f"mW{form}": 1.0 for form in _PER_CM},
    **{f"W{form}": 1e3 for form in _PER_CM},
    # A metre holds a hundred centimetres, so a step of 1 cm⁻¹ is one of 100 m⁻¹.
    **{f"mW{form}": 1e2 for form in _PER_M},
    **{f"W{form}": 1e5 for form in _PER_M},
}
_PLAIN = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--", " .·*^_{}")  # noqa: RUF001


def radiance_factor(units: str) -> float | None:
    """Return what to multiply radiances in these units by, or None if they are not clear.

    >>> radiance_factor("mW/m^2/sr/cm^-1"), radiance_factor("W m-2 sr-1 (m-1)-1")
    (1.0, 100000.0)
    >>> radiance_factor("K") is None
    True
    """
    return _FACTORS.get(units.translate(_PLAIN))

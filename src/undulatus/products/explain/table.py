"""Explanations as tables: all channels in a file, the cosines of the largest weight as text."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from undulatus._files import atomic_write
from undulatus._plain import cell_text
from undulatus.products.explain.cosines import (
    KELVIN,
    Explanation,
    by_regime,
    overall_importance,
)
from undulatus.scenes.channels import ABSORPTION_BANDS, WINDOWS, absorbers

Array = npt.NDArray[Any]

MOST_LINES = 10
"""Cosines listed as text, by default."""

ALL_CLASSES = "all classes"
"""Stands for the class where all of them are taken together."""

_REGIONS_NAMED = 3
"""Regions or features named in a line of text."""


def write_csv(explanations: Sequence[Explanation], path: str | Path) -> None:
    """Write a row for each channel or feature, of each regime and class if there are several.

    Columns are ``wavenumber`` and ``absorbers``, or ``feature``; ``importance``; and for each
    cosine, by rank, ``wave_1_pattern`` and ``wave_1_frequency``, or ``wave_1_direction`` in place
    of a pattern that is not known. With more than two classes, ``importance_for_all`` is that for
    all of them together. Lines that begin with ``#`` give units and the weights of the cosines;
    ``pandas.read_csv(path, comment="#")`` reads the table.
    """
    path = Path(path)
    with (
        atomic_write(path) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8") as file,
    ):
        for explanation in explanations:
            _write_header(explanation, file)
        most = max(len(explanation.weights) for explanation in explanations)
        # Texts are quoted: a "#" in the name of a feature must not begin a comment.
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writerow(_columns(explanations, most))
        groups = by_regime(explanations)
        for group in groups:
            for explanation in group:
                overall = overall_importance(group) if explanation.of_class else None
                rows = _rows(explanation, overall, most, with_regime=len(groups) > 1)
                writer.writerows(map(cell_text, row) for row in rows)


def _write_header(explanation: Explanation, file: TextIO) -> None:
    profile = "direction" if explanation.pattern is None else "pattern"
    named = {"regime": explanation.regime, "class": explanation.of_class}
    regime = "".join(f"# {what}: {_in_one_cell(name)}\n" for what, name in named.items() if name)
    importance = "K" if explanation.unit == KELVIN else "share of the phases' variance"
    file.write(
        f"{regime}# {profile}: {_profile_unit(explanation)}, "
        f"towards {_in_one_cell(explanation.towards)}\n"
        f"# frequency: radians per {explanation.frequency_step}\n"
        f"# importance: {importance}\n"
        f"# wave, weight, share of weight, amplitude, standard deviation of its phase (radians)\n"
    )
    cosines = zip(
        explanation.weights,
        explanation.shares,
        explanation.amplitudes,
        explanation.phase_deviations,
        strict=True,
    )
    for rank, values in enumerate(cosines, 1):
        file.write(f"# {rank}, {', '.join(f'{value:.6g}' for value in values)}\n")


def _in_one_cell(text: str) -> str:
    """Return a text for a comment, in which commas would begin further cells."""
    return str(cell_text(text)).replace(",", " ").replace(";", " ")


def _profile_unit(explanation: Explanation) -> str:
    if explanation.unit == KELVIN:
        return "K per standard deviation of the phase"
    if explanation.pattern is not None:
        return "correlation with the phase"
    return "share in the phase, squares sum to one, features taken as uncorrelated"


def _columns(explanations: Sequence[Explanation], most: int) -> list[str]:
    first = explanations[0]
    place = ["feature"] if first.wavenumbers is None else ["wavenumber", "absorbers"]
    profile = "direction" if first.pattern is None else "pattern"
    cosines = chain.from_iterable(
        (f"wave_{rank}_{profile}", f"wave_{rank}_frequency") for rank in range(1, most + 1)
    )
    regime = ["regime"] if len(by_regime(explanations)) > 1 else []
    if first.of_class:
        return [*regime, "class", *place, "importance", "importance_for_all", *cosines]
    return [*regime, *place, "importance", *cosines]


def _rows(
    explanation: Explanation, overall: Array | None, most: int, with_regime: bool
) -> Iterator[list[Any]]:
    count = len(explanation.weights)
    pairs = np.stack([explanation.profile, explanation.frequency], axis=1)
    values = pairs.reshape(2 * count, -1)
    before = [explanation.regime] if with_regime else []
    before += [explanation.of_class] if explanation.of_class else []
    importance = [explanation.importance] if overall is None else [explanation.importance, overall]
    for place, *row in zip(_places(explanation), *importance, *values, strict=True):
        yield [*before, *place, *map(_rounded, row), *[""] * (2 * (most - count))]


def _places(explanation: Explanation) -> list[list[Any]]:
    """Return the columns that name each channel or feature."""
    if explanation.wavenumbers is None:
        return [[name] for name in explanation.names]
    gases = absorbers(explanation.wavenumbers)
    return [list(pair) for pair in zip(explanation.wavenumbers.tolist(), gases, strict=True)]


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")


def summary_lines(explanations: Sequence[Explanation], most: int = MOST_LINES) -> list[str]:
    """Return a table for the terminal: cosines by weight, and where each is strongest.

    The number beside a region of the spectrum is the mean pattern there, in K; beside a feature,
    it is the correlation with the phase or the signed share in it. The phase's deviation is given
    if it is known. At most ``most`` cosines are listed; the last line is for all cosines together.
    More than two classes have a table each, and a line for all of them.
    """
    lines: list[str] = []
    for group in by_regime(explanations):
        for explanation in group:
            if explanation.heading:
                lines += [*([""] if lines else []), explanation.heading]
            lines += _cosine_lines(explanation, most)
        if group[0].of_class:
            first = group[0]
            regime = f"regime {first.regime}, " if first.regime else ""
            regions = _all_cosines_regions(first, overall_importance(group))
            lines += ["", f"{regime}{ALL_CLASSES}", _line(first, "all", "100.0%", "", regions)]
    return lines


def _cosine_lines(explanation: Explanation, most: int) -> list[str]:
    lines = [_line(explanation, "cosine", "weight", "phase", "strongest in")]
    cosines = zip(
        explanation.shares, explanation.phase_deviations, explanation.profile, strict=True
    )
    for rank, (share, deviation, profile) in enumerate(cosines, 1):
        if rank > most:
            lines.append(f"      and {len(explanation.weights) - most} more")
            break
        regions = _cosine_regions(explanation, profile)
        phase = f"{deviation:.1f} rad"
        lines.append(_line(explanation, str(rank), f"{share:.1%}", phase, regions))
    everything = _all_cosines_regions(explanation, explanation.importance)
    return [*lines, _line(explanation, "all", "100.0%", "", everything)]


def _line(explanation: Explanation, rank: str, share: str, phase: str, regions: str) -> str:
    phase = "" if explanation.pattern is None else f"{phase:>8}  "
    return f"{rank:>4}  {share:>6}  {phase}{regions}"


def strongest(explanation: Explanation, profile: Array) -> list[tuple[str, float]]:
    """Return regions of the spectrum, or features, with the value of a profile (d,) there.

    The strongest come first. For a profile in K, regions are ranked by the root mean square and
    the value is the mean; otherwise the value is the sum of squares, the region's share.
    """
    if explanation.wavenumbers is None:
        named = zip(explanation.names, profile.tolist(), strict=True)
        return sorted(named, key=lambda entry: -abs(entry[1]))
    inside = {
        region.name: profile[held]
        for region in (*ABSORPTION_BANDS, *WINDOWS)
        if (held := region.holds(explanation.wavenumbers)).any()
    }
    if explanation.unit != KELVIN:
        shares = {name: float(np.sum(part**2)) for name, part in inside.items()}
        return sorted(shares.items(), key=lambda entry: -entry[1])
    ranked = sorted(inside.items(), key=lambda entry: -float(np.mean(entry[1] ** 2)))
    return [(name, float(part.mean())) for name, part in ranked]


def _cosine_regions(explanation: Explanation, profile: Array) -> str:
    if explanation.unit == KELVIN:
        form = "{} ({:+.1f} K)"
    else:
        form = "{} ({:+.2f})" if explanation.wavenumbers is None else "{} ({:.0%})"
    return _region_texts(explanation, profile, form)


def _all_cosines_regions(explanation: Explanation, importance: Array) -> str:
    if explanation.unit == KELVIN:
        return _region_texts(explanation, importance, "{} ({:.1f} K)")
    profile = importance if explanation.wavenumbers is None else np.sqrt(importance)
    return _region_texts(explanation, profile, "{} ({:.0%})")


def _region_texts(explanation: Explanation, profile: Array, form: str) -> str:
    return ", ".join(
        form.format(*entry) for entry in strongest(explanation, profile)[:_REGIONS_NAMED]
    )

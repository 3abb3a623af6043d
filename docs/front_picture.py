"""Draw the picture of the front page: an image, its map, and where to doubt the map.

python docs/front_picture.py

The image of ``undulatus demo``; labels lie in its upper half, and the lower half is drawn.
Written to ``docs/_static/front.jpg``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from PIL import Image, ImageDraw, ImageFont

from undulatus.products import fit_image, map_scene
from undulatus.products.demo import write_example
from undulatus.scenes import open_image

OUTPUT = Path(__file__).parent / "_static" / "front.jpg"

TOP, HEIGHT, WIDTH = 436, 420, 512
"""Rows of the unseen half that are drawn, and the width of the image, in pixels."""

GAP = 12

Array = npt.NDArray[Any]


def _bytes(values: Array) -> Array:
    return (255 * np.clip(values, 0.0, 1.0)).astype(np.uint8)


def _outlined(image: Array, cloud: Array) -> Array:
    """Return a darkened image with cloud in blue, and a light line around it."""
    grey = 0.55 * image.mean(axis=2, keepdims=True).repeat(3, axis=2)
    tint = np.array([0.30, 0.66, 0.93])
    shown = np.where(cloud[..., None], 0.35 * grey + 0.65 * tint, grey)
    edge = np.zeros(cloud.shape, bool)
    edge[1:] |= cloud[1:] != cloud[:-1]
    edge[:, 1:] |= cloud[:, 1:] != cloud[:, :-1]
    shown[edge] = (0.95, 0.97, 1.0)
    return shown


def _doubted(image: Array, entropy: Array) -> Array:
    """Return a dark image on which doubt glows."""
    grey = 0.35 * image.mean(axis=2, keepdims=True).repeat(3, axis=2)
    share = (entropy / np.log(2.0))[..., None]
    return (1.0 - share) * grey + share * colormaps["inferno"](0.35 + 0.55 * share[..., 0])[
        ..., :3
    ]


def main() -> None:
    """Fit, map, and draw three panels side by side."""
    paths = write_example(tempfile.mkdtemp())
    image = open_image(paths[0])
    maps = map_scene(fit_image(image, paths[1]), image).compute()
    rows = slice(TOP, TOP + HEIGHT)
    colour = np.clip(image.values[[3, 2, 1]].transpose(1, 2, 0)[rows] / 0.75, 0.0, 1.0) ** 0.8
    cloud = maps["class_probability"].values[rows] > 0.5
    panels = (
        ("the image", colour),
        ("the map: cloud", _outlined(colour, cloud)),
        ("where to doubt the map", _doubted(colour, maps["class_entropy"].values[rows])),
    )
    picture = Image.new("RGB", (3 * WIDTH + 2 * GAP, HEIGHT), "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(22)
    for number, (title, values) in enumerate(panels):
        left = number * (WIDTH + GAP)
        picture.paste(Image.fromarray(_bytes(values)), (left, 0))
        box = draw.textbbox((left + 14, 10), title, font=font)
        draw.rectangle((box[0] - 8, box[1] - 6, box[2] + 8, box[3] + 6), fill=(12, 28, 42))
        draw.text((left + 14, 10), title, font=font, fill="white")
    picture.save(OUTPUT, quality=88)


if __name__ == "__main__":
    main()

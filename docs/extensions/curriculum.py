"""The order of the lessons."""

LESSONS = (
    "your_image",
    "many_classes",
    "unseen_scenes",
    "few_labels",
    "new_place",
    "landmark_year",
    "soundings",
    "large_tile",
    "on_a_gpu",
    "boosting",
)


class Curriculum:
    """Sorts the scripts of the gallery as they stand in ``LESSONS``."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> int:
        """Return the place of a script."""
        return LESSONS.index(name.removesuffix(".py"))

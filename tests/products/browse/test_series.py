import base64
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from undulatus.products.browse.series import MISSING_BYTE, SeriesWriter, as_bytes

probabilities = st.floats(0.0, 1.0) | st.just(np.nan)


@given(st.lists(probabilities, min_size=1))
def test_bytes_tell_probabilities_to_half_a_step_and_what_is_missing(values):
    values = np.array(values)
    coded = as_bytes(values)
    missing = np.isnan(values)
    assert np.array_equal(coded == MISSING_BYTE, missing)
    # Rounded to the nearest of 255 levels; a little more for rounding in double precision.
    assert np.all(np.abs(coded / 254 - values)[~missing] <= 0.5 / 254 + 1e-12)


def test_a_row_holds_the_probabilities_of_its_pixels_through_all_pieces(tmp_path):
    rng = np.random.default_rng(0)
    probability = rng.uniform(size=(7, 3, 5))
    probability[2, 1, 4] = np.nan
    with SeriesWriter(tmp_path, 3) as series:
        series.add(probability[:4])
        series.add(probability[4:])
    for row in range(3):
        text = (tmp_path / f"{row}.js").read_text()
        head, tail = f"undulatusRow({row},[\n", ",\n]);\n"
        assert text.startswith(head)
        assert text.endswith(tail)
        pieces = json.loads(f"[{text.removeprefix(head).removesuffix(tail)}]")
        found = np.concatenate([np.frombuffer(base64.b64decode(p), np.uint8) for p in pieces])
        assert np.array_equal(found.reshape(7, 5), as_bytes(probability[:, row]))

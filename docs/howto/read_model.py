"""Read a model of VFFGPC or RFFGPC and predict with it, with nothing but the standard library.

python read_model.py MODEL VALUE VALUE ...

Prints the classes and their probabilities for one row of feature values.
"""

import json
import math
import struct
import sys


def read(path):
    """Return the header of a model file, and its arrays as flat lists by name."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        table = json.loads(file.read(length))
        data = file.read()
    text = table.pop("__metadata__")["undulatus"].partition(" ")[2]
    arrays = {}
    for name, entry in table.items():
        first, last = entry["data_offsets"]
        if entry["dtype"] == "F64":
            arrays[name] = struct.unpack(f"<{(last - first) // 8}d", data[first:last])
    return json.loads(text)["header"], arrays


def standardise(row, arrays):
    """Return a row as the model sees it: tails compressed, centred and scaled."""
    x = list(row)
    if "warp_middle" in arrays:
        x = [
            math.asinh((v - a) / b)
            for v, a, b in zip(x, arrays["warp_middle"], arrays["warp_width"])
        ]
    return [(v - c) / s for v, c, s in zip(x, arrays["centre"], arrays["scale"])]


def kept_share(x, frequencies, taper, slope, arrays):
    """Return the share of the features kept at x: 1 among the training rows, 0 far away."""
    d = len(x)
    quantiles = arrays["feature_quantiles"]  # 7 rows of d: least, 1, 25, 50, 75, 99 %, largest
    low, first, third, high = (
        standardise(quantiles[row * d : (row + 1) * d], arrays) for row in (0, 2, 4, 6)
    )
    exponent, outside = 0.0, 0.0
    for k in range(d):
        typical = sum(w[k] ** 2 for w in frequencies) / len(frequencies)
        below, above = max(first[k] - low[k], 0.05), max(high[k] - third[k], 0.05)
        excess = max(low[k] - x[k], 0.0) / below + max(x[k] - high[k], 0.0) / above
        exponent += taper**2 * typical * x[k] ** 2
        outside += excess**2
    exponent += 4.0 * outside * (outside + slope) / (outside + 1.0)
    return math.exp(-0.5 * exponent)


def latent(features, share, own, mean, root, shift, log_ratio):
    """Return the sigmoid of the latent mean over what its variance makes of it, corrected."""
    scale = math.sqrt(own["signal_variance"] / (len(features) / 2))
    z = [scale * feature for feature in features]
    k = len(z)
    learned_mean = sum(a * b for a, b in zip(z, mean))
    start = [i * (i + 1) // 2 for i in range(k)]  # of the rows of the lower triangle
    learned_variance = sum(
        sum(root[start[i] + j] * z[j] for j in range(i + 1)) ** 2 for i in range(k)
    )
    prior_variance = (1.0 - share**2) * own["signal_variance"]
    mu = share * learned_mean + own["prior_mean"]
    mu += shift * math.sqrt(1.0 + math.pi / 8.0 * prior_variance)
    variance = share**2 * learned_variance + prior_variance
    log_odds = mu / math.sqrt(1.0 + math.pi / 8.0 * variance) + log_ratio
    return 1.0 / (1.0 + math.exp(-log_odds))


def probabilities(header, arrays, row):
    """Return the probability of each class, in the order of the header's classes.

    Of a model that was adapted to a scene it is that of the shared model.
    """
    x = standardise(row, arrays)
    d, totals = len(x), None
    ratio = header.get("prior_log_ratio", header.get("prior_shift"))
    many = isinstance(ratio, list)
    # Models of 0.1 and 0.2, saved again, correct two classes by a shift of the latent mean.
    corrected = (0.0, 0.0) if many else (ratio, 0.0) if "prior_shift" in header else (0.0, ratio)
    for number, estimator in enumerate(header["estimators"]):
        flat = arrays[f"{number}/frequencies"]
        frequencies = [flat[i : i + d] for i in range(0, len(flat), d)]
        phases = [sum(a * b for a, b in zip(w, x)) for w in frequencies]
        features = [math.cos(p) for p in phases] + [math.sin(p) for p in phases]
        taper = estimator["taper"]
        slope = header.get("edge_slope", 1.0)
        share = kept_share(x, frequencies, taper, slope, arrays) if taper else 1.0
        found = []
        for index, own in enumerate(estimator["latents"] if many else [estimator]):
            prefix = f"{number}/{index}/" if many else f"{number}/"
            mean, root = arrays[prefix + "posterior_mean"], arrays[prefix + "posterior_root"]
            found.append(latent(features, share, own, mean, root, *corrected))
        if many:
            found = [p * math.exp(s) for p, s in zip(found, ratio)]
            found = [p / sum(found) for p in found]
        else:
            found = [1.0 - found[0], found[0]]
        totals = found if totals is None else [a + b for a, b in zip(totals, found)]
    return [p / sum(totals) for p in totals]


if __name__ == "__main__":
    header, arrays = read(sys.argv[1])
    print(header["classes"], probabilities(header, arrays, [float(v) for v in sys.argv[2:]]))

"""Validation rows: which are left out while frequencies are learned, and how likely they are.

Frequencies are learned from the other rows, so that the loss of the validation rows shows when
they begin to fit noise, and which start is the better one.
"""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from undulatus.gp.backends import Array, to_host
from undulatus.gp.data import Block, Pixels, map_blocks
from undulatus.gp.posterior import scaled_mean
from undulatus.gp.taper import tapered_features

VALIDATION_SHARE = 0.2
"""Share of the rows that is left out for validation ..."""

VALIDATION_ROWS = 2048
"""... and the most rows on which the validation loss is computed."""

LARGEST_SHARE = 0.5
"""A group with more than this share of the weight is never left out: little would be left."""

Split = tuple[Array, Array]
"""Numbers of the rows to learn frequencies from and of those for validation, each sorted."""


def validation_loss(
    block: Block,
    frequencies: Array,
    deviations: Array | None,
    signal_variances: Array,
    means: Array,
    covariances: Array,
) -> float:
    """Return the mean negative log likelihood (nats) of validation rows.

    Of each of C latent functions, one for two classes and otherwise one a class, are given the
    signal variance, and the mean (C, k) and covariance (C, k, k) of the weights of unit features.
    """
    xp = block.xp
    z, untapered = tapered_features(block.x, frequencies, deviations, xp)
    scaled = []
    for variance, mean, covariance in zip(signal_variances, means, covariances, strict=True):
        product = xp.multiply(z, xp.astype(covariance, z.dtype))
        spread = xp.maximum(xp.row_dots(product, z), 0.0) + variance * untapered
        scaled.append(scaled_mean(z @ xp.astype(mean, z.dtype), spread, xp))
    if block.n_latents == 1:
        log_likelihood = xp.log_expit(xp.double(2.0 * block.targets(0) * scaled[0]))
    else:
        logs = xp.log_expit(xp.double(xp.stack(scaled)))
        codes = xp.astype(block.codes, xp.int64)
        log_likelihood = logs[codes, np.arange(len(z))] - xp.logsumexp(logs, axis=0)
    return float(-np.average(to_host(log_likelihood), weights=to_host(block.weight)))


def shares_entropy(block: Block) -> float:
    """Return the loss of validation rows of which only the shares of the classes are known."""
    totals = np.bincount(to_host(block.codes), weights=to_host(block.weight))
    return float(np.sum(entr(totals / totals.sum())))


def number_groups(groups: Array) -> Array | None:
    """Return each row's group as a number, (n,), or None if there are fewer than two groups."""
    names, numbers = np.unique(groups, return_inverse=True)
    return np.asarray(numbers) if len(names) > 1 else None


# Which rows


def leave_out(pixels: Pixels, n_estimators: int, rng: np.random.Generator) -> list[Split]:
    """Return the rows that each estimator learns frequencies from, and those for its validation.

    Groups, or equal rows where there are no groups, lie on a circle in random order, each on an
    arc as long as its weight. Estimator i leaves out those with the middle of their arc in the
    fifth of the circle that begins at i/n_estimators: five estimators leave out each row once. A
    weight of 2 has the same arc as a row given again later.

    Every estimator learns from all classes, and validates on all where that is possible. The loss
    is computed on a sample of the validation rows, if they are many.
    """
    seed = int(rng.integers(2**63))
    held: list[Array] = []
    if pixels.groups is not None:
        names, numbers = np.unique(pixels.groups, return_inverse=True)
        shuffled = np.random.default_rng(seed).permutation(len(names))
        held = _leave_out_units(pixels, shuffled[numbers], n_estimators)
    if not held or not all(rows.any() for rows in held):
        # There are no groups, or none that can be spared.
        held = _leave_out_units(pixels, _number_equal_rows(pixels, seed), n_estimators)
    splits = []
    for estimator, is_held in enumerate(held):
        if is_held.any():
            learning, validation = np.flatnonzero(~is_held), np.flatnonzero(is_held)
        else:
            # Hardly any distinct rows: the same ones must do for both.
            learning = validation = np.arange(pixels.n_rows)
        if len(validation) > VALIDATION_ROWS:
            # A sample, of each class its share.
            own = np.random.default_rng([seed, estimator])
            of_class = [
                validation[pixels.codes[validation] == code] for code in range(pixels.n_classes)
            ]
            drawn = [
                own.choice(rows, -(-VALIDATION_ROWS * len(rows) // len(validation)), replace=False)
                for rows in of_class
            ]
            validation = np.sort(np.concatenate(drawn))
        splits.append((learning, validation))
    return splits


def _number_equal_rows(pixels: Pixels, seed: int) -> Array:
    """Return a number for each row, (n,), the same for equal rows, and random otherwise.

    It depends on which rows are equal and on their order, not on their values: a model is the
    same in other units.
    """
    parts = map_blocks(
        lambda rows: digest_rows(to_host(pixels.rows[rows]), seed),
        pixels.n_rows,
        pixels.rows_per_block,
        pixels.threads,
    )
    digests = np.concatenate(list(parts))
    _, first, distinct = np.unique(digests, return_index=True, return_inverse=True)
    shuffled = np.empty(len(first), dtype=np.int64)
    shuffled[np.argsort(first)] = np.random.default_rng(seed).permutation(len(first))
    return shuffled[distinct]


def digest_rows(rows: Array, seed: int) -> Array:
    """Return 64 pseudo-random bits of each row, (n,), equal for equal values of any type.

    Each column is mixed in by the finaliser of SplitMix64 (Steele et al. 2014,
    doi:10.1145/2660193.2660195).
    """
    # Adding zero turns -0 into 0.
    columns = (np.asarray(rows, dtype=np.float64) + 0.0).T.copy().view(np.uint64)
    state = np.full(len(rows), np.uint64(seed))
    for column in columns:
        state = (state ^ column) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def _leave_out_units(pixels: Pixels, units: Array, n_estimators: int) -> list[Array]:
    """Return which rows each estimator leaves out, (n,) bool; none if it cannot spare any.

    Rows leave by units, whose numbers, from 0 on, are given for each row. Units lie on a circle of
    circumference 1 in the order of their numbers, but those with rows of the same classes are
    spread evenly among the others, so that every part of the circle has its share of each.
    """
    weight = np.ones(pixels.n_rows) if pixels.weight is None else pixels.weight
    by_class = np.array(
        [
            np.bincount(units, weights=np.where(pixels.codes == code, weight, 0.0))
            for code in range(pixels.n_classes)
        ]
    )
    total = by_class.sum(axis=0)
    may_leave = total <= LARGEST_SHARE * total.sum()
    arcs = np.where(may_leave, total, 0.0)
    # Whether each unit holds rows of each class, (units, classes).
    holds = by_class.T > 0
    middle = np.empty(len(total))
    # By digests of the rows: to sort the rows themselves takes several times as long.
    _, kinds = np.unique(digest_rows(holds, 0), return_inverse=True)
    for kind in range(kinds.max() + 1):
        middle[kinds == kind] = _middles(arcs[kinds == kind])
    order = np.argsort(middle, kind="stable")
    middle[order] = _middles(arcs[order])
    left_out = []
    for begin in np.arange(n_estimators) / n_estimators:
        held = may_leave & ((middle - begin) % 1.0 < VALIDATION_SHARE)
        centre = begin + 0.5 * VALIDATION_SHARE
        distance = np.abs((middle - centre + 0.5) % 1.0 - 0.5)
        for holders in holds.T:
            if held[holders].all():
                # Learn from the unit farthest away, the last one that the window reached.
                held[np.argmax(np.where(holders, distance, -1.0))] = False
        for holders in holds.T:
            if not held[holders].any():
                # Leave out the nearest one that leaves all classes to learn from.
                left = np.count_nonzero(holds[~held], axis=0)
                spare = (left - holds >= 1).all(axis=1) & may_leave & holders
                if spare.any():
                    held[np.argmin(np.where(spare, distance, np.inf))] = True
        left_out.append(held[units])
    return left_out


def _middles(arcs: Array) -> Array:
    """Return the middle of each of consecutive arcs, as a share of their sum."""
    ends = np.cumsum(arcs)
    return np.asarray((ends - 0.5 * arcs) / max(arcs.sum(), np.finfo(np.float64).tiny))

"""Gaussian-process classifiers in a file: GPC, RFFGPC and VFFGPC, all tensors float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from undulatus.estimators import GPC, RFFGPC, VFFGPC
from undulatus.estimators.updates import Update
from undulatus.gp.blocks import Standardisation, Warp, count_latents
from undulatus.gp.exact import ExactFit, ExactPosterior
from undulatus.gp.passes import FourierFit, LatentFit
from undulatus.gp.posterior import Posterior
from undulatus.storage.codec import (
    Codec,
    Header,
    InvalidModelError,
    Tensors,
    decode_value,
    encode_value,
    join_tensors,
    list_feature_names,
    restore_feature_names,
    split_tensors,
    with_memory_order,
)

Shapes = dict[str, tuple[int | None, ...]]

FACTOR_ORDER = "F"
"""Memory order of LAPACK's factors."""

_SCALARS = ("log_determinant", "quadratic", "jitter")
"""Plain values of a posterior over the weights of Fourier features."""

COMMITTEE = "committee"
"""The field of a header that lists the members of a committee."""

UPDATES = "updates"
"""The field of a header that counts updates, and the first part of their tensors' names."""

_UPDATE_SHAPES: dict[str, tuple[int | str, ...]] = {
    "rows": ("n", "d"),
    "codes": ("n",),
    "weight": ("n",),
    "precision": ("members", "latents", "n"),
    "projected": ("members", "latents", "n"),
    "range_before": (2, "d"),
}
"""Tensors of an update: names and numbers of its dimensions."""

LATENTS = "latents"
"""The field of a header that lists latent functions, where there may be several."""

WARP = ("warp_middle", "warp_width")
"""Tensors of a standardisation that compresses tails."""


@dataclass(frozen=True)
class _ClassifierLayout:
    """What a file holds of one classifier's fit, and how the fit is restored from it."""

    model: type
    describe: Callable[[Any], tuple[Tensors, Header]]
    shapes: Callable[[Tensors, Header], Shapes]
    restore: Callable[[Any, Tensors, Header], None]


def _describe(layout: _ClassifierLayout, model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model)
    of_fit, fit_header = layout.describe(model)
    standardisation = model.standardisation_
    tensors = {
        "centre": standardisation.centre,
        "scale": standardisation.scale,
        "feature_quantiles": model.feature_quantiles_,
        **of_fit,
        **_describe_updates(model),
    }
    if standardisation.warp is not None:
        tensors |= zip(
            WARP, (standardisation.warp.middle, standardisation.warp.width), strict=True
        )
    params = model.get_params(deep=False)
    header = {
        "params": {name: encode_value(value) for name, value in params.items()},
        "classes": encode_value(model.classes_),
        "feature_names": list_feature_names(model),
        "n_features": model.n_features_in_,
        "prior_shift": _plain(model._prior_shift),
        UPDATES: len(getattr(model, "updates_", ())),
        **fit_header,
    }
    return {name: np.asarray(array) for name, array in tensors.items()}, header


def _build(layout: _ClassifierLayout, tensors: Tensors, header: Header) -> Any:
    params = {name: decode_value(value) for name, value in header["params"].items()}
    # Version 0.1.0 had one member with the bound's posterior, whose waves went on for ever.
    earlier: dict[str, Any] = {"posterior": "bound", "warp": False}
    if layout.model is not GPC:
        earlier |= {"n_members": 1, "spread": 0.0}
    model = layout.model(**(earlier | params))
    tensors, updates = _separate_updates(tensors, header)
    d = header["n_features"]
    shapes: Shapes = {"centre": (d,), "scale": (d,), "feature_quantiles": (None, d)}
    warped = any(name in tensors for name in WARP)
    if warped:
        shapes |= dict.fromkeys(WARP, (d,))
    _require_shapes(tensors, {**shapes, **layout.shapes(tensors, header)})
    for name in ("scale", *WARP[1:][:warped]):
        _require_positive(tensors[name])
    model.n_features_in_ = d
    restore_feature_names(model, header["feature_names"])
    model.classes_ = decode_value(header["classes"])
    if model.classes_.ndim != 1 or len(model.classes_) < 2:
        raise InvalidModelError(
            f"holds classes of shape {model.classes_.shape}, but two or more are expected."
        )
    warp = Warp(*(tensors[name] for name in WARP)) if warped else None
    model.standardisation_ = Standardisation(tensors["centre"], tensors["scale"], warp)
    model.feature_quantiles_ = tensors["feature_quantiles"]
    model._prior_shift = np.array(header["prior_shift"], dtype=np.float64, ndmin=1)
    latents = count_latents(len(model.classes_))
    if model._prior_shift.shape != (latents,):
        raise InvalidModelError(
            f"holds a shift of the prior of shape {model._prior_shift.shape}, but ({latents},) is "
            f"expected."
        )
    layout.restore(model, tensors, header)
    _restore_updates(model, updates)
    return model


def _plain(values: Any) -> Any:
    """Return the only number of an array, or a list of them."""
    return float(values[0]) if len(values) == 1 else values.tolist()


def _require_positive(values: Any) -> None:
    if not np.all(values > 0):
        raise InvalidModelError("holds a scale or signal variance that is not positive.")


def _require_shapes(tensors: Tensors, shapes: Shapes) -> None:
    if set(tensors) != set(shapes):
        odd = ", ".join(sorted(set(tensors) ^ set(shapes)))
        raise InvalidModelError(f"lacks tensors, or has unexpected ones: {odd}.")
    for name, shape in shapes.items():
        found = tensors[name].shape
        fits = len(found) == len(shape) and all(
            expected in (None, size) for expected, size in zip(shape, found, strict=True)
        )
        if not fits or tensors[name].dtype != np.float64:
            raise InvalidModelError(
                f"holds {name!r} as {tensors[name].dtype} {found}, but {shape} is expected."
            )


# Updates of any of them


def _describe_updates(model: Any) -> Tensors:
    return join_tensors(
        {
            f"{UPDATES}/{number}": {
                name: np.asarray(getattr(update, name), dtype=np.float64)
                for name in _UPDATE_SHAPES
            }
            for number, update in enumerate(getattr(model, "updates_", ()))
        }
    )


def _separate_updates(tensors: Tensors, header: Header) -> tuple[Tensors, list[Tensors]]:
    """Return the tensors of a fit, and those of each update of it, in order."""
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{UPDATES}/")}
    names = [f"{UPDATES}/{number}" for number in range(header.get(UPDATES, 0))]
    rest = {name: tensor for name, tensor in tensors.items() if name not in own}
    return rest, list(split_tensors(own, names).values())


def _restore_updates(model: Any, updates: list[Tensors]) -> None:
    k, d = len(model.classes_), model.n_features_in_
    for own in updates:
        sizes = {
            "n": len(own.get("codes", ())),
            "d": d,
            "members": len(getattr(model, "members_", (model,))),
            "latents": count_latents(k),
        }
        _require_shapes(
            own,
            {
                name: tuple(sizes[size] if isinstance(size, str) else size for size in shape)
                for name, shape in _UPDATE_SHAPES.items()
            },
        )
    codes = np.dtype(bool) if k == 2 else np.min_scalar_type(k - 1)
    if updates:
        model.updates_ = tuple(
            Update(**(own | {"codes": own["codes"].astype(codes)})) for own in updates
        )


# RFFGPC and VFFGPC


def _describe_fourier(model: Any) -> tuple[Tensors, Header]:
    tensors = {str(number): _member_tensors(fit) for number, fit in enumerate(model.members_)}
    members = [
        {
            "lengthscale": fit.lengthscale,
            "spread": fit.spread,
            "n_iter": fit.n_iter,
            "stopped": fit.outcome,
            "held_back_nll": list(fit.held_back_losses),
            **_describe_latents(fit),
        }
        for fit in model.members_
    ]
    return join_tensors(tensors), {
        COMMITTEE: members,
        "fitted": {"fit_report_": model.fit_report_},
    }


def _describe_latents(fit: FourierFit) -> Header:
    """Return the plain values of the only latent function, or a list of those of each."""
    latents = [
        {
            "signal_variance": own.signal_variance,
            "level": own.level,
            "posterior": {name: getattr(own.posterior, name) for name in _SCALARS},
        }
        for own in fit.latents
    ]
    return latents[0] if len(latents) == 1 else {LATENTS: latents}


def _member_tensors(fit: FourierFit) -> Tensors:
    if len(fit.latents) == 1:
        return {"frequencies": fit.frequencies, **_latent_tensors(fit.latents[0])}
    latents = {str(number): _latent_tensors(own) for number, own in enumerate(fit.latents)}
    return {"frequencies": fit.frequencies, **join_tensors(latents)}


def _latent_tensors(own: LatentFit) -> Tensors:
    return {
        "bound_history": np.array(own.bounds),
        "posterior_mean": own.posterior.mean,
        "posterior_root": own.posterior.root,
    }


def _fourier_shapes(tensors: Tensors, header: Header) -> Shapes:
    if COMMITTEE not in header:
        return _member_shapes(tensors, header["n_features"], None)
    parts = zip(_split_members(tensors, header).items(), header[COMMITTEE], strict=True)
    shapes = {
        name: _member_shapes(own, header["n_features"], facts.get(LATENTS))
        for (name, own), facts in parts
    }
    return {f"{name}/{key}": shape for name, own in shapes.items() for key, shape in own.items()}


def _member_shapes(tensors: Tensors, d: int, latents: list[Header] | None) -> Shapes:
    k = 2 * len(tensors["frequencies"])
    own: Shapes = {"bound_history": (None,), "posterior_mean": (k,), "posterior_root": (k, k)}
    if latents is not None:
        numbered = range(len(latents))
        own = {f"{number}/{key}": own[key] for number in numbered for key in own}
    return {"frequencies": (None, d), **own}


def _split_members(tensors: Tensors, header: Header) -> dict[str, Tensors]:
    """Return the tensors of each member of a committee, by its number."""
    own = {name: tensor for name, tensor in tensors.items() if "/" in name}
    names = [str(number) for number in range(len(header[COMMITTEE]))]
    if not names:
        raise InvalidModelError("holds a committee without members.")
    return split_tensors(own, names)


def _restore_fourier(model: Any, tensors: Tensors, header: Header) -> None:
    model.fit_report_ = header["fitted"]["fit_report_"]
    if COMMITTEE in header:
        parts = _split_members(tensors, header).values()
        described = zip(parts, header[COMMITTEE], strict=True)
        model.members_ = tuple(
            _restore_member(own, facts, model._n_latents) for own, facts in described
        )
        return
    fitted = header["fitted"]
    facts = {
        "signal_variance": fitted["signal_variance_"],
        "lengthscale": fitted["lengthscale_"],
        "n_iter": fitted["n_iter_"],
        "stopped": fitted["fit_report_"]["stopped"],
        "held_back_nll": fitted["fit_report_"].get("held_back_nll", []),
        "posterior": header["posterior"],
    }
    model.members_ = (_restore_member(tensors, facts, model._n_latents),)


def _restore_member(tensors: Tensors, facts: dict[str, Any], n_latents: int) -> FourierFit:
    spread = facts.get("spread", 0.0)
    if not (np.isfinite(spread) and spread >= 0.0):
        raise InvalidModelError(f"holds a spread of {spread}.")
    described = facts.get(LATENTS, [facts])
    if len(described) != n_latents:
        raise InvalidModelError(
            f"holds {len(described)} latent functions, but its classes need {n_latents}."
        )
    if LATENTS in facts:
        numbers = [str(number) for number in range(n_latents)]
        own = {name: tensor for name, tensor in tensors.items() if "/" in name}
        parts = list(split_tensors(own, numbers).values())
    else:
        parts = [tensors]
    return FourierFit(
        frequencies=tensors["frequencies"],
        lengthscale=facts["lengthscale"],
        latents=tuple(
            _restore_latent(part, own) for part, own in zip(parts, described, strict=True)
        ),
        n_iter=facts["n_iter"],
        outcome=facts["stopped"],
        held_back_losses=tuple(facts["held_back_nll"]),
        spread=spread,
    )


def _restore_latent(tensors: Tensors, facts: dict[str, Any]) -> LatentFit:
    _require_positive(facts["signal_variance"])
    own_level = facts.get("level", 0.0)
    if not np.isfinite(own_level):
        raise InvalidModelError(f"holds a level of {own_level}.")
    root = with_memory_order(tensors["posterior_root"], FACTOR_ORDER)
    return LatentFit(
        signal_variance=facts["signal_variance"],
        posterior=Posterior(mean=tensors["posterior_mean"], root=root, **facts["posterior"]),
        bounds=tuple(tensors["bound_history"].tolist()),
        level=own_level,
    )


# GPC


def _describe_exact(model: Any) -> tuple[Tensors, Header]:
    tensors = {str(number): _exact_tensors(fit) for number, fit in enumerate(model.latents_)}
    facts = [
        {
            "signal_variance": fit.signal_variance,
            "lengthscale": fit.lengthscale,
            "level": fit.level,
            "stopped": fit.outcome,
            "jitter": fit.posterior.jitter,
        }
        for fit in model.latents_
    ]
    header = {LATENTS: facts, "fitted": {"fit_report_": model.fit_report_}}
    return {"training": model.training_, **join_tensors(tensors)}, header


def _exact_tensors(fit: ExactFit) -> Tensors:
    return {
        "bound_history": np.array(fit.bounds),
        "alpha": fit.posterior.alpha,
        "roots": fit.posterior.roots,
        "factor": fit.posterior.factor,
    }


def _exact_shapes(tensors: Tensors, header: Header) -> Shapes:
    n = len(tensors["training"])
    own: Shapes = {"bound_history": (None,), "alpha": (n,), "roots": (n,), "factor": (n, n)}
    if LATENTS in header:
        numbered = range(len(header[LATENTS]))
        own = {f"{number}/{key}": own[key] for number in numbered for key in own}
    return {"training": (None, header["n_features"]), **own}


def _restore_exact(model: Any, tensors: Tensors, header: Header) -> None:
    model.training_ = tensors["training"]
    model.fit_report_ = header["fitted"]["fit_report_"]
    if LATENTS in header:
        facts = header[LATENTS]
        own = {name: tensor for name, tensor in tensors.items() if "/" in name}
        parts = list(split_tensors(own, [str(number) for number in range(len(facts))]).values())
    else:
        # Version 0.1.0 had two classes and knew no level.
        fitted = header["fitted"]
        facts, parts = (
            [
                {
                    "signal_variance": fitted["signal_variance_"],
                    "lengthscale": fitted["lengthscale_"],
                    "level": fitted.get("level_", 0.0),
                    "stopped": fitted["fit_report_"]["stopped"],
                    "jitter": header["posterior"]["jitter"],
                }
            ],
            [tensors],
        )
    if len(facts) != model._n_latents:
        raise InvalidModelError(
            f"holds {len(facts)} latent functions, but its classes need {model._n_latents}."
        )
    model.latents_ = tuple(
        _restore_exact_fit(part, own) for part, own in zip(parts, facts, strict=True)
    )


def _restore_exact_fit(tensors: Tensors, facts: Header) -> ExactFit:
    _require_positive(facts["signal_variance"])
    return ExactFit(
        lengthscale=facts["lengthscale"],
        signal_variance=facts["signal_variance"],
        posterior=ExactPosterior(
            alpha=tensors["alpha"],
            roots=tensors["roots"],
            factor=with_memory_order(tensors["factor"], FACTOR_ORDER),
            jitter=facts["jitter"],
        ),
        bounds=tuple(tensors["bound_history"].tolist()),
        outcome=facts["stopped"],
        level=facts["level"],
    )


_LAYOUTS = (
    _ClassifierLayout(GPC, _describe_exact, _exact_shapes, _restore_exact),
    _ClassifierLayout(RFFGPC, _describe_fourier, _fourier_shapes, _restore_fourier),
    _ClassifierLayout(VFFGPC, _describe_fourier, _fourier_shapes, _restore_fourier),
)

CODECS = {
    layout.model.__name__: Codec(layout.model, partial(_describe, layout), partial(_build, layout))
    for layout in _LAYOUTS
}

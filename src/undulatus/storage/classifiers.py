"""Gaussian-process classifiers in a file: GPC, RFFGPC and VFFGPC, all tensors float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
from scipy.linalg.lapack import dtrcon
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError, NumericalError
from undulatus.estimators import GPC, RFFGPC, VFFGPC
from undulatus.estimators.adaptation import MOST_ROWS as MOST_SCENE_ROWS
from undulatus.estimators.updates import MOST_ROWS, Update
from undulatus.gp.data import Standardisation, Warp, count_latents, longest_row, row_lengths
from undulatus.gp.exact import ExactFit, ExactPosterior
from undulatus.gp.posterior import FourierFit, LatentFit, Posterior
from undulatus.gp.taper import EARLIER_EDGE_SLOPE
from undulatus.storage import schema
from undulatus.storage.codec import (
    Array,
    Codec,
    Header,
    InvalidModelError,
    Stored,
    Tensor,
    Tensors,
    decode_value,
    encode_value,
    join_tensors,
    list_feature_names,
    pack_triangle,
    require_fields,
    restore_feature_names,
    restore_params,
    split_tensors,
    unpack_triangle,
)
from undulatus.storage.schema import Form, Forms, triangle_form, up_to, within

FACTOR_ORDER = "F"
"""Memory order of LAPACK's factors."""

_SCALARS = ("log_determinant", "quadratic", "jitter")
"""Plain values of a posterior over the weights of Fourier features."""

ESTIMATORS = "estimators"
"""The field of a header that lists the estimators of an ensemble."""

UPDATES = "updates"
"""The field of a header that counts updates, and the first part of their tensors' names."""

ADAPTATION = "adaptation"
"""The field of a header that says whether a model was adapted, and the first part of the names of
the tensors of the labelled rows."""

_UPDATE_TENSORS = ("rows", "codes", "weight", "precision", "projected", "range_before")
"""Tensors of an update."""

LATENTS = "latents"
"""The field of a header that lists latent functions, where there may be several."""

PRIORS, EARLIER_PRIORS = "prior_log_ratio", "prior_shift"
"""The fields of a header with the correction for other frequencies of the classes. Up to schema 3
that of two classes was a shift of the latent mean: such a model predicts as it did."""

WARP = ("warp_middle", "warp_width")
"""Tensors of a standardisation that compresses tails."""

LARGEST = 1e100
"""Products of two numbers up to this, and their sums, do not overflow in double precision."""

LARGEST_OF_ROOTS = {"double": 1e50, "single": 1e6}
"""Entries of a root by the precision of predictions; those of a fit are at most about 1 ..."""

LARGEST_OF_FREQUENCIES = {"double": LARGEST, "single": 1e12}
"""... and frequencies and weights: sums of their products and squares must not overflow."""

FARTHEST = 1e18
"""Standardised training values: beyond this no row can be classified, whatever the frequencies."""

LARGEST_INVERSE = 1e12
"""Norm of a factor's inverse; by its definition the inverse of a GPC's is at most about 1."""


@dataclass(frozen=True)
class _ClassifierLayout:
    """What a file holds of one classifier's fit, and how the fit is restored from it."""

    model: type
    describe: Callable[[Any], tuple[Tensors, Header]]
    hint: Callable[[Header, int], Any]
    """Returns what its header may be, by a part of it and the number of latent functions."""
    forms: Callable[[Stored, Header], Forms]
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
    adapted = hasattr(model, "adaptation_")
    if adapted:
        # The shared model and the labels: what they make of it is computed again.
        tensors |= join_tensors({ADAPTATION: _update_tensors(model.adaptation_)})
        tensors["feature_quantiles"] = model.forget().feature_quantiles_
    if standardisation.warp is not None:
        tensors |= zip(
            WARP, (standardisation.warp.middle, standardisation.warp.width), strict=True
        )
    # Where a model computes is the machine's affair.
    params = {name: own for name, own in model.get_params(deep=False).items() if name != "device"}
    header = {
        "params": {name: encode_value(value) for name, value in params.items()},
        "classes": encode_value(model.classes_),
        "feature_names": list_feature_names(model),
        "n_features": model.n_features_in_,
        **_describe_priors(model),
        UPDATES: len(getattr(model, "updates_", ())),
        ADAPTATION: adapted,
        **fit_header,
    }
    return {name: np.asarray(array) for name, array in tensors.items()}, header


def _build(layout: _ClassifierLayout, stored: Stored, header: Header) -> Any:
    require_fields(header.get("classes"), schema.EncodedArray, "classes")
    classes = _restore_classes(header["classes"])
    latents = count_latents(len(classes))
    require_fields(header, layout.hint(header, latents))
    _require_report(header["fitted"]["fit_report_"])
    model = _restore_params(layout, header["params"])
    model.n_features_in_ = header["n_features"]
    restore_feature_names(model, header["feature_names"])
    model.classes_ = classes
    _restore_priors(model, header, latents)
    model.fit_report_ = header["fitted"]["fit_report_"]
    stored, updates = _separate_updates(stored, header)
    stored, scene = _separate(stored, ADAPTATION)
    if bool(scene) != header.get(ADAPTATION, False):
        raise InvalidModelError("lacks the labels of its scene, or has them without saying so.")
    forms = layout.forms(stored, header)
    tensors = schema.read_forms(stored, {**_shared_forms(stored, header["n_features"]), **forms})
    _restore_standardisation(model, tensors)
    layout.restore(model, tensors, header)
    _restore_updates(model, updates)
    return _restore_scene(model, scene) if scene else model


def _restore_params(layout: _ClassifierLayout, described: Header) -> Any:
    # Version 0.1.0 had one estimator with the bound's posterior, without a taper.
    earlier: dict[str, Any] = {"posterior": "bound", "warp": False}
    if layout.model is not GPC:
        earlier |= {"n_estimators": 1, "taper": 0.0}
    model = restore_params(layout.model, described, earlier)
    for name in ("class_weight", "prior_correction", "init_frequencies"):
        value = getattr(model, name, None)
        numbers = list(value.values()) if isinstance(value, dict) else value
        if numbers is None or isinstance(numbers, str):
            continue
        array = np.asarray(numbers)
        signed = name == "init_frequencies"
        if array.dtype.kind not in "iuf" or not (signed or (array >= 0).all()):
            raise InvalidModelError(f"has numbers as {name} that it does not take.")
    return model


def _restore_classes(described: Header) -> Array:
    classes: Array = decode_value(described)
    if classes.ndim != 1 or not 2 <= len(classes) <= schema.MOST_PARTS:
        raise InvalidModelError(
            f"holds classes of shape {classes.shape}, but two or more are expected."
        )
    if not (classes[1:] > classes[:-1]).all():
        raise InvalidModelError("holds classes that are not sorted, or some of them twice.")
    return classes


def _describe_priors(model: Any) -> Header:
    if model._latent_shift:
        return {EARLIER_PRIORS: model._latent_shift}
    return {PRIORS: _plain(model._prior_shift)}


def _restore_priors(model: Any, header: Header, latents: int) -> None:
    if (PRIORS in header) == (EARLIER_PRIORS in header):
        raise InvalidModelError(f"has a broken header: needs {PRIORS} or {EARLIER_PRIORS}.")
    found = header.get(PRIORS, header.get(EARLIER_PRIORS))
    model._prior_shift = np.array(found, dtype=np.float64, ndmin=1)
    if model._prior_shift.shape != (latents,):
        raise InvalidModelError(
            f"holds a shift of the prior of shape {model._prior_shift.shape}, but ({latents},) is "
            f"expected."
        )
    if latents == 1 and EARLIER_PRIORS in header:
        model._latent_shift, model._prior_shift = float(model._prior_shift[0]), np.zeros(1)


def _require_report(report: Header) -> None:
    known = schema.FitReport.__annotations__
    require_fields(
        {name: value for name, value in report.items() if name in known},
        schema.FitReport,
        "fit_report_",
    )
    if "precision" not in report:
        raise InvalidModelError("has a broken header: fit_report_ lacks precision.")


def _plain(values: Any) -> Any:
    """Return the only number of an array, or a list of them."""
    return float(values[0]) if len(values) == 1 else values.tolist()


def _shared_forms(stored: Stored, d: int) -> Forms:
    """Return the forms of the tensors that every classifier has."""
    any_size, quantiles = up_to(inf), Form((7, d), up_to(inf))
    forms = {
        "centre": Form((d,), any_size),
        "scale": Form((d,), schema.positive),
        "feature_quantiles": quantiles,
    }
    if any(name in stored for name in WARP):
        # What a warp gives lies between -36 and 36.
        forms |= {"centre": Form((d,), up_to(40.0)), "scale": Form((d,), within(1e-30, 40.0))}
        forms |= {WARP[0]: Form((d,), any_size), WARP[1]: Form((d,), schema.positive)}
    return forms


def _restore_standardisation(model: Any, tensors: Tensors) -> None:
    warp = Warp(*(tensors[name] for name in WARP)) if WARP[0] in tensors else None
    model.standardisation_ = Standardisation(tensors["centre"], tensors["scale"], warp)
    model.feature_quantiles_ = tensors["feature_quantiles"]
    if not schema.rising(model.feature_quantiles_):
        raise InvalidModelError("holds 'feature_quantiles' that do not rise.")


def _numbered(count: int, forms: Forms) -> Forms:
    return {f"{number}/{key}": form for number in range(count) for key, form in forms.items()}


def _in_parts(tensors: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """Return the tensors of numbered parts, in order; those without a number are left out."""
    own = {name: tensor for name, tensor in tensors.items() if "/" in name}
    return list(split_tensors(own, [str(number) for number in range(count)]).values())


# Updates of any of them


def _describe_updates(model: Any) -> Tensors:
    return join_tensors(
        {
            f"{UPDATES}/{number}": _update_tensors(update)
            for number, update in enumerate(getattr(model, "updates_", ()))
        }
    )


def _update_tensors(update: Update) -> Tensors:
    return {name: np.asarray(getattr(update, name), np.float64) for name in _UPDATE_TENSORS}


def _separate_updates(stored: Stored, header: Header) -> tuple[Stored, list[Stored]]:
    """Return the tensors of a fit, and those of each update of it, in order."""
    rest, own = _separate(stored, UPDATES)
    count = header.get(UPDATES, 0)
    if len(own) != count * len(_UPDATE_TENSORS):
        raise InvalidModelError(f"holds {len(own)} tensors of {count} updates.")
    names = [f"{UPDATES}/{number}" for number in range(count)]
    return rest, list(split_tensors(own, names).values())


def _separate(stored: Stored, name: str) -> tuple[Stored, Stored]:
    """Return the tensors whose names do not begin with a part, and those that do."""
    own = {key: tensor for key, tensor in stored.items() if key.startswith(f"{name}/")}
    return {key: tensor for key, tensor in stored.items() if key not in own}, own


def _restore_update(model: Any, stored: Stored, most: int) -> Update:
    k, d = len(model.classes_), model.n_features_in_
    sites = len(getattr(model, "estimators_", (model,))), count_latents(k)
    n = stored["codes"].shape[0] if "codes" in stored and stored["codes"].shape else 0
    forms = {
        "rows": Form((n, d), up_to(inf)),
        "codes": Form((None,), schema.codes_below(k), most),
        "weight": Form((n,), within(0.0, inf)),
        "precision": Form((*sites, n), within(0.0, inf)),
        "projected": Form((*sites, n), up_to(inf)),
        "range_before": Form((2, d), up_to(inf)),
    }
    own = schema.read_forms(stored, forms)
    if not schema.rising(own["range_before"]):
        raise InvalidModelError("holds an update of a range that does not rise.")
    codes = np.dtype(bool) if k == 2 else np.min_scalar_type(k - 1)
    return Update(**(own | {"codes": own["codes"].astype(codes)}))


def _restore_scene(model: Any, stored: Stored) -> Any:
    (labels,) = split_tensors(stored, [ADAPTATION]).values()
    update = _restore_update(model, labels, MOST_SCENE_ROWS)
    if not np.array_equal(update.range_before, model.feature_quantiles_[[0, -1]]):
        raise InvalidModelError("was adapted from another range than it has.")
    try:
        adapted = model._in_scene(update)
    except (InputError, NumericalError) as error:
        raise InvalidModelError(f"holds labels of a scene that it cannot take: {error}") from error
    return adapted


def _restore_updates(model: Any, updates: list[Stored]) -> None:
    found = [_restore_update(model, stored, MOST_ROWS) for stored in updates]
    if isinstance(model, GPC) and sum(len(own.rows) for own in found) >= len(model.training_):
        raise InvalidModelError("holds updates of more rows than it has.")
    if found:
        model.updates_ = tuple(found)


# RFFGPC and VFFGPC


def _describe_fourier(model: Any) -> tuple[Tensors, Header]:
    tensors = {
        str(number): _estimator_tensors(fit) for number, fit in enumerate(model.estimators_)
    }
    estimators = [
        {
            "lengthscale": fit.lengthscale,
            "taper": fit.taper,
            "n_iter": fit.n_iter,
            "stopped": fit.outcome,
            "validation_nll": list(fit.validation_losses),
            **_describe_latents(fit),
        }
        for fit in model.estimators_
    ]
    return join_tensors(tensors), {
        ESTIMATORS: estimators,
        "edge_slope": model._edge_slope,
        "fitted": {"fit_report_": model.fit_report_},
    }


def _describe_latents(fit: FourierFit) -> Header:
    """Return the plain values of the only latent function, or a list of those of each."""
    latents = [
        {
            "signal_variance": own.signal_variance,
            "prior_mean": own.prior_mean,
            "posterior": {name: getattr(own.posterior, name) for name in _SCALARS},
        }
        for own in fit.latents
    ]
    return latents[0] if len(latents) == 1 else {LATENTS: latents}


def _estimator_tensors(fit: FourierFit) -> Tensors:
    if len(fit.latents) == 1:
        return {"frequencies": fit.frequencies, **_latent_tensors(fit.latents[0])}
    latents = {str(number): _latent_tensors(own) for number, own in enumerate(fit.latents)}
    return {"frequencies": fit.frequencies, **join_tensors(latents)}


def _latent_tensors(own: LatentFit) -> Tensors:
    return {
        "lower_bounds": np.array(own.bounds),
        "posterior_mean": own.posterior.mean,
        "posterior_root": pack_triangle(own.posterior.root),
    }


def _fourier_hint(header: Header, latents: int) -> Any:
    if ESTIMATORS not in header:
        return schema.FourierBefore
    return schema.FourierOfTwoClasses if latents == 1 else schema.FourierOfMoreClasses


def _fourier_forms(stored: Stored, header: Header) -> Forms:
    report, d = header["fitted"]["fit_report_"], header["n_features"]
    precision = report.get("prediction_precision", report["precision"])
    if ESTIMATORS not in header:
        return _estimator_forms(stored, d, None, precision)
    estimators = header[ESTIMATORS]
    if not estimators:
        raise InvalidModelError("holds an ensemble without estimators.")
    return join_tensors(
        {
            str(number): _estimator_forms(own, d, facts.get(LATENTS), precision)
            for number, (own, facts) in enumerate(
                zip(_in_parts(stored, len(estimators)), estimators, strict=True)
            )
        }
    )


def _estimator_forms(
    stored: Stored, d: int, latents: list[Header] | None, precision: str
) -> Forms:
    shape = stored["frequencies"].shape if "frequencies" in stored else ()
    k = 2 * shape[0] if shape else 0
    frequencies, roots = LARGEST_OF_FREQUENCIES[precision], LARGEST_OF_ROOTS[precision]
    root = "posterior_root" if latents is None else "0/posterior_root"
    own = {
        "lower_bounds": Form((None,), up_to(inf), schema.MOST_BOUNDS),
        "posterior_mean": Form((k,), up_to(frequencies)),
        "posterior_root": triangle_form(stored, root, k, roots),
    }
    if latents is not None:
        own = _numbered(len(latents), own)
    return {"frequencies": Form((None, d), up_to(frequencies)), **own}


def _restore_fourier(model: Any, tensors: Tensors, header: Header) -> None:
    if ESTIMATORS in header:
        facts = header[ESTIMATORS]
        parts = _in_parts(tensors, len(facts))
    else:
        fitted = header["fitted"]
        known = {"validation_nll": [], **fitted["fit_report_"]}
        require_fields(known["validation_nll"], list[float], "validation_nll")
        facts, parts = (
            [
                {
                    "signal_variance": fitted["signal_variance_"],
                    "lengthscale": fitted["lengthscale_"],
                    "n_iter": fitted["n_iter_"],
                    "stopped": known["stopped"],
                    "validation_nll": known["validation_nll"],
                    "posterior": header["posterior"],
                }
            ],
            [tensors],
        )
    described = zip(parts, facts, strict=True)
    model.estimators_ = tuple(
        _restore_estimator(own, each, model._n_latents) for own, each in described
    )
    model._edge_slope = header.get("edge_slope", EARLIER_EDGE_SLOPE)
    _require_own_range(model)


def _require_own_range(model: Any) -> None:
    """Require that rows like those of the training data can be classified."""
    x = model.standardisation_(model.feature_quantiles_, np.float64)
    median = row_lengths(x[[len(x) // 2]])
    if not np.abs(x).max() <= FARTHEST or not median <= longest_row(model.frequencies_):
        raise InvalidModelError("holds scales or frequencies that its own training data exceed.")


def _restore_estimator(tensors: Tensors, facts: Mapping[str, Any], n_latents: int) -> FourierFit:
    described = facts.get(LATENTS, [facts])
    if len(described) != n_latents:
        raise InvalidModelError(
            f"holds {len(described)} latent functions, but its classes need {n_latents}."
        )
    parts = _in_parts(tensors, n_latents) if LATENTS in facts else [tensors]
    return FourierFit(
        frequencies=tensors["frequencies"],
        lengthscale=facts["lengthscale"],
        latents=tuple(
            _restore_latent(part, own) for part, own in zip(parts, described, strict=True)
        ),
        n_iter=facts["n_iter"],
        outcome=facts["stopped"],
        validation_losses=tuple(facts["validation_nll"]),
        taper=facts.get("taper", 0.0),
    )


def _restore_latent(tensors: Tensors, facts: Mapping[str, Any]) -> LatentFit:
    root = unpack_triangle(tensors["posterior_root"], FACTOR_ORDER)
    return LatentFit(
        signal_variance=facts["signal_variance"],
        posterior=Posterior(mean=tensors["posterior_mean"], root=root, **facts["posterior"]),
        bounds=tuple(tensors["lower_bounds"].tolist()),
        prior_mean=facts.get("prior_mean", 0.0),
    )


# GPC


def _describe_exact(model: Any) -> tuple[Tensors, Header]:
    tensors = {str(number): _exact_tensors(fit) for number, fit in enumerate(model.latents_)}
    facts = [
        {
            "signal_variance": fit.signal_variance,
            "lengthscale": fit.lengthscale,
            "prior_mean": fit.prior_mean,
            "stopped": fit.outcome,
            "jitter": fit.posterior.jitter,
        }
        for fit in model.latents_
    ]
    header = {LATENTS: facts, "fitted": {"fit_report_": model.fit_report_}}
    return {"training": model.training_, **join_tensors(tensors)}, header


def _exact_tensors(fit: ExactFit) -> Tensors:
    return {
        "lower_bounds": np.array(fit.bounds),
        "alpha": fit.posterior.alpha,
        "roots": fit.posterior.roots,
        "factor": pack_triangle(fit.posterior.factor),
    }


def _exact_hint(header: Header, latents: int) -> Any:
    return schema.Exact if LATENTS in header else schema.ExactBefore


def _exact_forms(stored: Stored, header: Header) -> Forms:
    shape = stored["training"].shape if "training" in stored else ()
    n = shape[0] if shape else 0
    own = {
        "lower_bounds": Form((None,), up_to(inf), schema.MOST_BOUNDS),
        "alpha": Form((n,), up_to(LARGEST)),
        "roots": Form((n,), within(0.0, LARGEST)),
        "factor": triangle_form(stored, "0/factor" if LATENTS in header else "factor", n, LARGEST),
    }
    if LATENTS in header:
        own = _numbered(len(header[LATENTS]), own)
    return {"training": Form((None, header["n_features"]), up_to(LARGEST)), **own}


def _restore_exact(model: Any, tensors: Tensors, header: Header) -> None:
    model.training_ = tensors["training"]
    if LATENTS in header:
        facts = header[LATENTS]
        parts = _in_parts(tensors, len(facts))
    else:
        # Version 0.1.0 had two classes and a prior mean of zero.
        fitted = header["fitted"]
        facts, parts = (
            [
                {
                    "signal_variance": fitted["signal_variance_"],
                    "lengthscale": fitted["lengthscale_"],
                    "prior_mean": fitted.get("prior_mean_", 0.0),
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


def _restore_exact_fit(tensors: Tensors, facts: Mapping[str, Any]) -> ExactFit:
    factor = unpack_triangle(tensors["factor"], FACTOR_ORDER)
    _require_bounded_inverse(factor)
    return ExactFit(
        lengthscale=facts["lengthscale"],
        signal_variance=facts["signal_variance"],
        posterior=ExactPosterior(
            alpha=tensors["alpha"],
            roots=tensors["roots"],
            factor=factor,
            jitter=facts["jitter"],
        ),
        bounds=tuple(tensors["lower_bounds"].tolist()),
        outcome=facts["stopped"],
        prior_mean=facts["prior_mean"],
    )


def _require_bounded_inverse(factor: Array) -> None:
    """Require that no prediction overflows when it is multiplied by the factor's inverse."""
    norm = np.abs(factor).sum(axis=0).max()
    share, _ = dtrcon(factor, norm="1", uplo="L")
    if not share * norm * LARGEST_INVERSE >= 1.0:
        raise InvalidModelError("holds a 'factor' that cannot be inverted.")


_LAYOUTS = (
    _ClassifierLayout(GPC, _describe_exact, _exact_hint, _exact_forms, _restore_exact),
    _ClassifierLayout(RFFGPC, _describe_fourier, _fourier_hint, _fourier_forms, _restore_fourier),
    _ClassifierLayout(VFFGPC, _describe_fourier, _fourier_hint, _fourier_forms, _restore_fourier),
)

CODECS = {
    layout.model.__name__: Codec(layout.model, partial(_describe, layout), partial(_build, layout))
    for layout in _LAYOUTS
}

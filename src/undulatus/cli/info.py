"""The command ``info``: what a model file holds, in a user's words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import MODEL_PATH, require_model
from undulatus.cli.session import printable

MOST_LISTED = 6
"""Values of a list that are printed; of a longer one, its length, first and last."""

NEAR_CHANCE = 0.98
"""A validation NLL above this share of the chance level's says that little was learned."""

CHAINS = {"image": "images", "landmarks": "scenes", "sounder": "spectra"}
"""What a model was fitted on, by the ``chain`` it remembers."""


@click.command()
@click.argument("model", type=MODEL_PATH)
def info(model: Path) -> None:
    """Print what the file MODEL holds.

    Its classes and their legend, the data it learned from, its classifiers with their latent
    functions and the shares of classes in training, and how their fits went.
    """
    from undulatus.products.legend import Legend
    from undulatus.storage import load_model

    require_model(model)
    fitted = load_model(model)
    _print(f"{model}: {type(fitted).__name__}")
    _print(f"classes: {', '.join(map(str, fitted.classes_))}")
    facts = dict(getattr(fitted, "provenance_", {}))
    _print_legend(Legend.of(fitted), of_image=facts.get("chain") == "image")
    _print_provenance(facts)
    if not hasattr(fitted, "regimes_"):
        _print_steps(fitted)
        return
    for regime in fitted.regimes_:
        low, high = regime.edges
        classifier = fitted.estimators_[regime.name]
        _print(f"\n{regime.name}: {fitted.by} from {low:g} to {high:g}")
        _print(f"classifier: {type(classifier).__name__}")
        if hasattr(classifier, "steps"):
            _print_steps(classifier)
        else:
            _print_classifier(classifier, regime.features)


def _print(line: str) -> None:
    """Print a line of what a file says, which may hold anything."""
    click.echo(printable(line))


def _print_legend(legend: Any, *, of_image: bool) -> None:
    """Print the code, name and colour of each class in a map, and which is cloud."""
    rows = zip(legend.codes, legend.names, legend.colours, strict=True)
    _print(f"legend: {', '.join(f'{code} {name} {colour}' for code, name, colour in rows)}")
    # Land cover has no cloud to know of.
    if legend.cloud is not None or not of_image:
        _print(f"cloud: {legend.cloud or 'not known'}")


def _print_provenance(facts: dict[str, Any]) -> None:
    for name in ("legend", "class_profiles"):
        facts.pop(name, None)
    if "chain" in facts:
        _print(f"fitted on: {CHAINS.get(facts['chain'], facts['chain'])}")
        del facts["chain"]
    if "training_groups" in facts:
        unit = facts.pop("group_unit", "group")
        training, held_out = (
            len(facts.pop(f"{side}_groups", ())) for side in ("training", "held_out")
        )
        _print(f"groups ({unit}): {training} in training, {held_out} held out for scores")
    named = {"class_shares": "shares of classes in the labels", "cloud_share": "share of cloud"}
    facts = {
        named.get(name, name): _percent(value) if name in named else value
        for name, value in facts.items()
    }
    if isinstance(facts.get("image_features"), dict):
        facts["image_features"] = {k: v for k, v in facts["image_features"].items() if v}
    _print_facts(facts)


def _percent(shares: Any) -> Any:
    """Return shares, or those in a dict, as texts."""
    if isinstance(shares, dict):
        return {name: _percent(share) for name, share in shares.items()}
    return f"{shares:.1%}" if isinstance(shares, float) else shares


def _print_steps(model: Any) -> None:
    """Print the steps of a Pipeline, if it is one, and the classifier at its end."""
    for name, step in getattr(model, "steps", []):
        _print(f"\n{name}: {type(step).__name__}")
        for attribute in ("n_features_in_", "n_components_", "n_samples_seen_"):
            if hasattr(step, attribute) and not hasattr(step, "signal_variance_"):
                _print(f"{attribute.strip('_').replace('_', ' ')}: {getattr(step, attribute)}")
        if hasattr(step, "explained_variance_ratio_"):
            _print(f"explained variance: {step.explained_variance_ratio_.sum():.6f}")
    classifier = model[-1] if hasattr(model, "steps") else model
    _print_classifier(classifier, getattr(classifier, "feature_names_in_", None))


def _print_classifier(classifier: Any, features: Any) -> None:
    from undulatus.estimators.interpret import class_shares, latent_functions

    names = "" if features is None else f" ({', '.join(map(str, features))})"
    _print(f"features: {classifier.n_features_in_}{names}")
    if len(getattr(classifier, "estimators_", ())) > 1:
        _print(f"estimators of the ensemble: {len(classifier.estimators_)}")
    if hasattr(classifier, "adaptation_"):
        labels = Counter(classifier.classes_[classifier.adaptation_.codes.astype(int)].tolist())
        counted = ", ".join(f"{label} {labels[label]}" for label in sorted(labels))
        _print(f"adapted to a scene by {labels.total()} labelled rows: {counted}")
    _print(f"latent functions: {len(latent_functions(classifier))}")
    shares = class_shares(classifier)
    if shares is not None:
        pairs = zip(classifier.classes_, shares, strict=True)
        listed = ", ".join(f"{label} {share:.1%}" for label, share in pairs)
        _print(f"shares of classes in training: {listed}")
    # GPC has one of each for every class, if there are more than two.
    _print(f"signal variance: {_numbers_text(classifier.signal_variance_)}")
    _print(f"lengthscale: {_numbers_text(classifier.lengthscale_)}")
    _print(f"lower bound on the log evidence: {classifier.lower_bound_:.6g}")
    _print_fit(dict(classifier.fit_report_), shares)


def _print_fit(report: dict[str, Any], shares: Any) -> None:
    """Print how a fit went: what it ended with, and how well it tells rows that it kept aside."""
    rows, steps = (_count_text(report.pop(name, None)) for name in ("rows", "steps"))
    solver, stopped = report.pop("solver", None), report.pop("stopped", None)
    unit = "minibatches" if solver == "stochastic" else "iterations"
    ended = {
        "converged": f"converged after {steps} {unit}",
        "max_iter": f"ended at max_iter, after {steps} {unit}, before it converged: fit again "
        f"with a larger max_iter",
        "interrupted": f"interrupted after {steps} {unit}: the best found by then",
    }.get(str(stopped), f"{stopped} after {steps} {unit}")
    _print(f"fit: {ended}, of {rows} rows, by the {solver} solver")
    lowest = _lowest_losses(report.pop("validation_nll", []))
    if lowest:
        _print(f"validation NLL: {_validation_text(lowest, shares)}")
    precision, predicting = report.pop("precision", None), report.pop("prediction_precision", None)
    predictions = "" if predicting in (None, precision) else f", {predicting} in predictions"
    _print(f"precision: {precision}{predictions}")
    if jitter := report.pop("jitter", 0.0):
        _print(f"jitter: {jitter:.3g}, added so that the posterior could be factorised")
    report.pop("starting_lengthscale", None)
    # Of a version to come.
    _print_facts(report)


def _count_text(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int) else "an unknown number of"


def _lowest_losses(losses: list[Any]) -> list[float]:
    """Return the lowest loss of each estimator along the way, of means of three as they count."""
    each = losses if losses and isinstance(losses[0], list) else [losses]
    windows = [[own[max(0, i - 2) : i + 1] for i in range(len(own))] for own in each if own]
    return [min(sum(window) / len(window) for window in own) for own in windows]


def _validation_text(lowest: list[float], shares: Any) -> str:
    """Return the loss of rows kept aside while learning, beside that of the class shares alone."""
    from scipy.special import entr

    mean = sum(lowest) / len(lowest)
    text = f"{mean:.3g} nats a row, of rows kept aside while learning"
    if len(lowest) > 1:
        text += f", the mean of {len(lowest)} estimators ({min(lowest):.3g} to {max(lowest):.3g})"
    if shares is None:
        return text
    chance = float(entr(shares).sum())
    text += f"; the class shares alone give {chance:.3g}"
    if mean > NEAR_CHANCE * chance:
        text += ". That is chance level: these features hardly tell the classes apart"
    return text


def _numbers_text(values: Any) -> str:
    listed = values if hasattr(values, "__len__") else [values]
    return ", ".join(f"{value:.6g}" for value in listed)


def _print_facts(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        _print(f"{name.replace('_', ' ')}: {_short_text(value)}")


def _short_text(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value):
        return "; ".join(map(_short_text, value))
    if isinstance(value, list) and len(value) > MOST_LISTED:
        return f"{len(value)}: {_short_text(value[0])} to {_short_text(value[-1])}"
    if isinstance(value, list):
        return ", ".join(map(_short_text, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short_text(item)}" for key, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)

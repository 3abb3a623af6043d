"""Plant faults in the mathematics, one at a time, and see whether the tests catch them.

python -m benchmarks.planted_faults [--only N ...]

Each fault is a small change of one line of `src/undulatus/gp` or `src/undulatus/estimators`: a
sign, a factor, a forgotten weight, a dropped term. It is planted in a temporary copy of the tree,
where the tests run that mirror its module, then those of the whole folder, then those of the
estimators, until one fails. That test must pass without the fault. Prints a line a fault and, at
the end, how many were caught; the exit status is 1 if any was missed. It stops before the first
run if the text that a fault replaces is not found exactly once: change the fault with the code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

AT_ONCE = 2
"""Faults that are tried at a time."""

SECONDS = 1800
"""A run of tests that takes longer counts as caught: the fault made something go on for ever."""


@dataclass(frozen=True)
class Fault:
    """A line of ``src/undulatus/path`` in which ``new`` takes the place of ``old``."""

    path: str
    old: str
    new: str
    what: str

    @property
    def source(self) -> str:
        """The file's path in the tree."""
        return f"src/undulatus/{self.path}"

    def tests(self, root: Path) -> Iterator[list[str]]:
        """Yield what to run in turn: the mirrored tests, the folder's, those of the estimators."""
        package, module, *_ = Path(self.path).with_suffix("").parts
        mirrored = f"tests/{package}/test_{module}.py"
        if (root / mirrored).exists():
            yield [mirrored]
        yield [f"tests/{package}"]
        if package == "gp":
            yield ["tests/estimators"]


FAULTS = (
    # The bounds
    Fault(
        "gp/likelihood.py",
        "return xp.tanh(0.5 * xi) / (4.0 * xi)",
        "return xp.tanh(0.5 * xi) / (2.0 * xi)",
        "λ(ξ) twice as large",
    ),
    Fault(
        "gp/likelihood.py",
        "xi = xp.sqrt(variance + mean**2)",
        "xi = xp.sqrt(variance)",
        "ξ² without the squared mean",
    ),
    Fault(
        "gp/likelihood.py",
        "return RowSites(curvature, sign * slope, value)",
        "return RowSites(curvature, slope, value)",
        "residuals of both classes with one sign",
    ),
    Fault(
        "gp/likelihood.py",
        "xp.maximum(curvature / deviation, SMALLEST_PRECISION)",
        "xp.maximum(curvature, SMALLEST_PRECISION)",
        "the curvature not divided by the deviation",
    ),
    # Inference
    Fault(
        "gp/inference.py",
        "residual, precision = weight * sites.residual, weight * sites.precision",
        "residual, precision = sites.residual, weight * sites.precision",
        "residuals without the weights of rows",
    ),
    Fault(
        "gp/inference.py",
        "precision * untapered, weight * sites.value]",
        "precision * untapered, sites.value]",
        "values of the bound without the weights of rows",
    ),
    Fault(
        "gp/inference.py",
        "variance += view.signal_variance * untapered",
        "variance += untapered",
        "the untapered variance without the signal variance",
    ),
    Fault(
        "gp/inference.py",
        "target = target + q.prior_mean * total_precision",
        "target = 1.0 * target",
        "the prior mean missing in Σ sh",
    ),
    Fault(
        "gp/inference.py",
        "(sites.projected - b * sites.projected_precision)",
        "(sites.projected)",
        "the prior mean missing where the posterior is solved",
    ),
    Fault(
        "gp/inference.py",
        "fitted += b * (2.0 * target - b * precision) - gaussian.signal_variance * untapered",
        "fitted += b * (2.0 * target - b * precision)",
        "the untapered variance missing in the evidence",
    ),
    Fault(
        "gp/inference.py",
        "rest = b * (2.0 * target - b * precision) - ratio * signal_variance * untapered",
        "rest = b * (2.0 * target - b * precision) - signal_variance * untapered",
        "a signal variance chosen as if the untapered part did not grow with it",
    ),
    Fault(
        "gp/inference.py",
        "if growth >= 0.0:",
        "if growth >= -1.0:",
        "steps that lower the bound are kept",
    ),
    # Gradients
    Fault(
        "gp/gradients.py",
        "in_phases -= in_cosines",
        "in_phases += in_cosines",
        "a sign where a pair of features is rotated",
    ),
    Fault(
        "gp/gradients.py",
        "* -(z.shape[-2] / rows)",
        "* -1.0",
        "some rows do not stand for the others",
    ),
    # The taper
    Fault(
        "gp/taper.py",
        "return xp.exp(-0.5 * (squares @ (x * x).T))",
        "return xp.exp(-(squares @ (x * x).T))",
        "a taper twice as fast",
    ),
    Fault(
        "gp/taper.py",
        "share**2 * variance + untapered",
        "share * variance + untapered",
        "the variance tapered like a deviation",
    ),
    Fault(
        "gp/taper.py",
        "xp.maximum(first - low, SMALLEST_MARGIN)",
        "xp.maximum(high - third, SMALLEST_MARGIN)",
        "the margin above the range taken for that below",
    ),
    # Posteriors
    Fault(
        "gp/posterior.py",
        "return 0.5 * (squares - len(self.mean) + self.log_determinant)",
        "return 0.5 * (squares - len(self.mean) - self.log_determinant)",
        "the sign of log|A| in the divergence",
    ),
    Fault(
        "gp/posterior.py",
        "smallest = tolerance / (signal_variance * PROBABILITY_PER_VARIANCE)",
        "smallest = tolerance / PROBABILITY_PER_VARIANCE",
        "directions dropped without regard to the signal variance",
    ),
    # The exact process
    Fault(
        "gp/exact.py",
        "in_lengthscale = -np.exp(theta[0]) * slope",
        "in_lengthscale = np.exp(theta[0]) * slope",
        "the sign of the gradient in the lengthscale",
    ),
    Fault(
        "gp/exact.py",
        "sites = Sites(weight * precision, weight * (residual + precision * total))",
        "sites = Sites(weight * precision, weight * (residual + precision * own.posterior.mean))",
        "sites centred at the latent mean less its prior mean",
    ),
    # Updates
    Fault(
        "gp/update.py",
        "pulled = factors.projected - latent.prior_mean * factors.precision",
        "pulled = factors.projected",
        "the prior mean missing where rows are added",
    ),
    Fault(
        "gp/update.py",
        'variance = np.einsum("lij,lij->li", spread, spread) + self.prior_variance',
        'variance = np.einsum("lij,lij->li", spread, spread)',
        "the untapered variance of new rows dropped",
    ),
    # Minibatches
    Fault(
        "gp/minibatch.py",
        "row_weight = config.n_total / self._batch_rows",
        "row_weight = len(self._tasks[0].split[0]) / self._batch_rows",
        "sums scaled to the learning rows instead of all rows",
    ),
    Fault(
        "gp/minibatch.py",
        "running / (1.0 - decay**step) for running, decay",
        "running for running, decay",
        "Adam without the correction of its first steps",
    ),
    Fault(
        "gp/minibatch.py",
        "gradient = gradient + xp.double(",
        "gradient = xp.double(",
        "the gradient of the last latent function alone",
    ),
    # Algorithm 1
    Fault(
        "gp/batch.py",
        "rest = np.array([-np.sum(in_frequencies * frequencies)])",
        "rest = np.array([np.sum(in_frequencies * frequencies)])",
        "the sign of the gradient in the lengthscale of random frequencies",
    ),
    # Ensembles, splits, models
    Fault(
        "gp/ensemble.py",
        "xp.mean(variances, axis=0) + xp.mean((means - mean) ** 2, axis=0)",
        "xp.mean(variances, axis=0)",
        "the variance of an ensemble without what its estimators differ by",
    ),
    Fault(
        "gp/splits.py",
        "float(-np.average(to_host(log_likelihood), weights=to_host(block.weight)))",
        "float(-np.average(to_host(log_likelihood)))",
        "the validation loss without weights",
    ),
    Fault(
        "gp/model.py",
        "scale = np.sqrt(own.signal_variance / len(fit.frequencies))",
        "scale = np.sqrt(own.signal_variance / len(fit.latents))",
        "features scaled by the number of latent functions",
    ),
    # From the user's data to the mathematics, and back
    Fault(
        "estimators/training.py",
        "weight = apply_class_weights(factors, codes, weight)",
        "weight = apply_class_weights(None, codes, weight)",
        "class_weight forgotten",
    ),
    Fault(
        "estimators/training.py",
        "np.bincount(index.ravel(), weights=weight, minlength=len(distinct))",
        "np.bincount(index.ravel(), minlength=len(distinct))",
        "equal rows merged without their weights",
    ),
    Fault(
        "estimators/training.py",
        "return Standardisation(mean, scale, warp), variance / scale**2",
        "return Standardisation(mean, scale**2, warp), variance / scale**2",
        "features divided by their variances",
    ),
    Fault(
        "estimators/training.py",
        "return log_odds(real) - log_odds(trained)",
        "return log_odds(real) + log_odds(trained)",
        "a sign in prior_correction of two classes",
    ),
    Fault(
        "estimators/training.py",
        "return np.asarray(np.log(real) - np.log(trained))",
        "return np.asarray(np.log(real))",
        "the training shares missing in prior_correction of more classes",
    ),
    Fault(
        "estimators/training.py",
        "return np.asarray(np.log(shares[1:] / (1.0 - shares[1:])))",
        "return np.asarray(np.log((1.0 - shares[1:]) / shares[1:]))",
        "classes swapped in the log odds that set the prior mean",
    ),
    Fault(
        "estimators/validation.py",
        "    return number_groups(given)",
        "    return None if number_groups(given) is None else np.arange(n_rows)",
        "a group for each row",
    ),
    Fault(
        "estimators/base.py",
        "np.where(codes == code, 1.0, -1.0) for code in latents",
        "np.where(codes == code, -1.0, 1.0) for code in latents",
        "classes swapped in an update",
    ),
    Fault(
        "estimators/updates.py",
        "                untapered * own.signal_variance,",
        "                untapered,",
        "the untapered variance of an update without the signal variance",
    ),
    Fault(
        "estimators/exact.py",
        "slice(first, first + rows[0])",
        "slice(first, first + rows[-1])",
        "as many rows forgotten as the last update had",
    ),
)


def copy_tree(to: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__", "results", "*.pyc")
    for folder in ("src", "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, to / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", to)


def find_mistakes(faults: tuple[Fault, ...]) -> list[str]:
    """Return what is wrong with the faults themselves."""
    found = []
    for fault in faults:
        count = (ROOT / fault.source).read_text(encoding="utf-8").count(fault.old)
        if count != 1:
            found.append(f"{fault.source}: {fault.old.strip()!r} found {count} times, not once")
    return found


def failed_test(root: Path, tests: list[str]) -> str | None:
    """Return the first test that fails in a tree, or None if all pass."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    try:
        run = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"a run of {' '.join(tests)} that does not end"
    if run.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", run.stdout, re.MULTILINE)
    if failed is None:
        end = f"pytest {' '.join(tests)} ended with {run.returncode} and named no test"
        raise SystemExit(f"{end}:\n{run.stdout}{run.stderr}")
    return failed[1]


def try_fault(fault: Fault) -> tuple[str | None, str]:
    """Return the test that catches a fault, or None, and what else there is to say."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder)
        copy_tree(root)
        path = root / fault.source
        sound = path.read_text(encoding="utf-8")
        broken = []
        for tests in fault.tests(root):
            path.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
            test = failed_test(root, tests)
            if test is None:
                continue
            path.write_text(sound, encoding="utf-8")
            if "does not end" in test or failed_test(root, [test]) is None:
                return test, ""
            broken.append(test)
    return None, f" ({', '.join(broken)} fails without the fault, too)" if broken else ""


def main() -> int:
    """Try the faults; return 1 if any was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="N", help="numbers of faults, counted from 1"
    )
    numbers = parser.parse_args().only or range(1, len(FAULTS) + 1)
    if mistakes := find_mistakes(FAULTS):
        print("\n".join(mistakes))
        return 1
    caught = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        chosen = [FAULTS[number - 1] for number in numbers]
        for number, fault, (test, remark) in zip(
            numbers, chosen, pool.map(try_fault, chosen), strict=True
        ):
            caught += test is not None
            outcome = f"caught by {test}" if test else f"MISSED{remark}"
            print(f"{number:2} {fault.path}: {fault.what}: {outcome}", flush=True)
    print(f"caught {caught} of {len(numbers)}")
    return int(caught < len(numbers))


if __name__ == "__main__":
    sys.exit(main())

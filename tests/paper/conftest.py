"""A small part to fit (two classes, three features, two runs), and made-up records of runs."""

import numpy as np
import pytest

from undulatus.paper.problems import write_part
from undulatus.paper.runs import RunFacts
from undulatus.paper.trials import Trial

ROWS, TEST = 4000, 500


def write_small_part(folder):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS + TEST, 3)).astype(np.float32)
    latent = np.sin(2.0 * features[:, 0]) + features[:, 1]
    truth = (latent > 0).astype(np.uint8)
    wrong = rng.random(len(truth)) < 0.1
    columns = {
        "features": features,
        "labels": np.where(wrong, 1 - truth, truth).astype(np.uint8),
        "truth": truth,
        "coast": features[:, 2] > 1.0,
        "groups": np.arange(len(truth)) // 50,
    }
    test = np.arange(ROWS, ROWS + TEST)
    runs = [(rng.permutation(ROWS), test) for _ in range(2)]
    write_part(folder, columns, runs, most_frequencies=20, seed=0, cloud_share=0.4)


def make_trial(method="rff", n=300, frequencies=5, run=0, **settings):
    if method == "gpc":
        return Trial("landmarks", "gpc", "exact", n, 3, run, 0, None, "high", **settings)
    settings = {"solver": "stochastic", "regime": "high", "frequencies": frequencies, **settings}
    return Trial("landmarks", method, n=n, d=3, run=run, seed=0, **settings)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper") / "data"
    write_small_part(folder / "high")
    return folder


@pytest.fixture(scope="session")
def trial():
    return make_trial


@pytest.fixture(scope="session")
def small_part():
    return write_small_part


ENVIRONMENT = {
    "undulatus": "0.1.0",
    "python": "3.11.2",
    "numpy": "2.3.0",
    "cpu": "made up",
    "cores": 2,
    "platform": "Linux",
}


def run_facts(experiment, data=None):
    """The facts of a made-up run."""
    simulator = {
        "source": "a simulator",
        "synthetic": True,
        "path": None,
        "test_rows": 1000,
        "d": 16,
    }
    return RunFacts(
        experiment,
        "quick",
        7,
        data=data or simulator,
        environment=ENVIRONMENT,
        grid={"D": [10, 50, 200]},
        started="2024-05-01T12:00:00+00:00",
        seconds=754.2,
    )


def _record(**fields):
    waves, regime = f"-D{fields['D']}" if fields["D"] else "", fields.get("regime", "spectra")
    setting = f"{fields['method']}-{fields['solver']}-n{fields['n']}{waves}"
    scores = {"nll": 0.3, "ece": 0.02, "auc": 0.95}
    name = f"{regime}-{setting}-run{fields['run']}"
    return {"id": name, "seed": fields["run"], "status": "done", **scores, **fields}


def landmark_records(solvers=("batch",), runs=3):
    """Records over landmarks, by closed forms, for which every claim of the paper is true.

    Errors add up: one falls with n, one with D (half as large again for rff as for vff), one
    grows from regime to regime. GPC has no error from D.
    """
    records = []
    for place, regime in enumerate(("high", "mid", "low", "night")):
        for run in range(runs):
            best = 0.97 - 0.03 * place + 0.0002 * run
            common = {
                "experiment": "landmarks",
                "regime": regime,
                "d": 6 if regime == "night" else 16,
                "run": run,
                "test_rows": 1000,
                "coast_accuracy": best - 0.05,
                "coast_label_accuracy": best - 0.08 + 0.001 * run,
            }
            for n in (5_000, 10_000, 15_000):
                accuracy = best - 0.02 * 10_000 / n
                records.append(
                    _record(
                        method="gpc",
                        solver="exact",
                        n=n,
                        D=None,
                        accuracy=accuracy,
                        train_accuracy=accuracy + 0.01,
                        fit_cpu_seconds=1e-8 * n**3,
                        predict_cpu_seconds=1e-8 * n**2,
                        **common,
                    )
                )
            for method, loss, cost in (("vff", 0.02, 1e-5), ("rff", 0.03 + 1e-4 * run, 1e-6)):
                for solver in solvers:
                    for n in (10_000, 50_000, 300_000):
                        for D in (10, 50, 200):
                            accuracy = best - 0.02 * 10_000 / n - loss * 10 / D
                            records.append(
                                _record(
                                    method=method,
                                    solver=solver,
                                    n=n,
                                    D=D,
                                    accuracy=accuracy,
                                    train_accuracy=accuracy + 0.01,
                                    fit_cpu_seconds=cost * n * D,
                                    predict_cpu_seconds=1e-4 + 1e-7 * D**2,
                                    **common,
                                )
                            )
    return records


def sounder_records(solvers=("batch",), runs=3):
    """Records on spectra, by closed forms, for which every claim of the paper is true."""
    records = []
    for run in range(runs):
        common = {"experiment": "iavisa", "d": 100, "run": run, "test_rows": 5000}
        whole = 19_938 + run % 2
        for n in (1_000, 5_000, 10_000, whole):
            records.append(
                _record(
                    method="gpc",
                    solver="exact",
                    n=n,
                    D=None,
                    all=n == whole,
                    accuracy=0.81 - 20 / n + 0.001 * run,
                    train_accuracy=0.9,
                    fit_cpu_seconds=1e-8 * n**3,
                    predict_cpu_seconds=5e-8 * n**2,
                    **common,
                )
            )
        for solver in solvers:
            for D in (1, 2, 5, 10, 25, 50, 100, 150):
                vff = 0.85 - 0.01 * abs(np.log2(D / 5)) + 0.0005 * run
                rff = 0.70 + 0.02 * np.log10(D)
                for method, accuracy, learned, cost in (
                    ("vff", vff, min(1.0, 0.84 + 0.03 * np.log2(D)), 8e-3),
                    ("rff", rff, rff + 0.01, 1e-4),
                ):
                    records.append(
                        _record(
                            method=method,
                            solver=solver,
                            n=whole,
                            D=D,
                            accuracy=accuracy,
                            train_accuracy=learned,
                            fit_cpu_seconds=cost * whole * D,
                            predict_cpu_seconds=5e-3 + 5e-4 * D,
                            **common,
                        )
                    )
    return records


MADE_UP = {"landmarks": landmark_records, "iavisa": sounder_records}


@pytest.fixture
def made_up():
    """Make a run's facts and records: ``made_up(experiment, change)``.

    ``change`` takes a record and returns another in its place, or None to leave it out.
    """

    def make(experiment, change=lambda record: record, data=None, **options):
        changed = (change(dict(record)) for record in MADE_UP[experiment](**options))
        records = [record for record in changed if record is not None]
        return run_facts(experiment, data), records

    return make

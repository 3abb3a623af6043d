"""Time the arithmetic of one exact pass on a GPU with torch. Prints JSON.

python -m benchmarks.gpu_pass [ROWS] [D] [FEATURES]

The package itself computes on CPUs. This times the same products on random numbers in single
precision: features, ξ and statistics; for prediction the variance.
"""

from __future__ import annotations

import json
import sys
import time

import torch


def measure(n: int, n_frequencies: int, d: int) -> dict[str, float | int | str]:
    """Return the times of a pass, and of a prediction with variance, over ``n`` rows in memory."""
    device = torch.device("cuda")
    k = 2 * n_frequencies
    x = torch.randn(n, d, device=device)
    w = torch.randn(d, n_frequencies, device=device)
    second_moment = torch.randn(k, k, device=device)
    weight = torch.rand(n, device=device)

    def features() -> torch.Tensor:
        phase = x @ w
        return torch.cat([phase.cos(), phase.sin()], 1)

    def exact_pass() -> torch.Tensor:
        z = features()
        xi = ((z @ second_moment) * z).sum(1).abs().sqrt()
        scaled = z * (weight * torch.tanh(xi / 2) / (2 * xi + 1e-6)).sqrt()[:, None]
        return scaled.T @ scaled

    def predict() -> torch.Tensor:
        z = features()
        return (z @ second_moment).square().sum(1)

    results: dict[str, float | int | str] = {"rows": n, "D": n_frequencies, "features": d}
    for name, work in (("pass", exact_pass), ("predict", predict)):
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - began) / 10
        results[f"{name}_seconds"] = seconds
        results[f"{name}_million_rows_a_second"] = n / seconds / 1e6
    return results | {"device": torch.cuda.get_device_name()}


if __name__ == "__main__":
    given = [int(value) for value in sys.argv[1:]]
    print(json.dumps(measure(*(given + [1_000_000, 200, 16][len(given) :])), indent=2))

"""GPyTorch's stochastic variational GP classifier, set up as in its documentation."""

from __future__ import annotations

import time

import gpytorch
import numpy as np
import torch


class _Latent(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: torch.Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        strategy = gpytorch.variational.VariationalStrategy(
            self, inducing, distribution, learn_inducing_locations=True
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1])
        )

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class SVGP:
    """RBF kernel with ARD, Bernoulli likelihood, Adam with step 0.01."""

    def __init__(self, n_inducing: int, steps: int, batch_size: int, device: str = "cpu") -> None:
        self.n_inducing, self.steps, self.batch_size = n_inducing, steps, batch_size
        self.device = device
        self.watch = {steps // 10, steps // 3}

    def fit(self, X: np.ndarray, y: np.ndarray) -> SVGP:
        """Fit to rows of two classes, 0 and 1."""
        torch.manual_seed(0)
        self.mean, self.scale = X.mean(axis=0), X.std(axis=0)
        self.scale[self.scale == 0] = 1.0
        x, target = self._tensor(X), torch.from_numpy(y.astype(np.float32)).to(self.device)
        chosen = torch.randperm(len(x))[: self.n_inducing].to(self.device)
        self.model = _Latent(x[chosen].clone()).to(self.device)
        self.likelihood = gpytorch.likelihoods.BernoulliLikelihood().to(self.device)
        objective = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=len(x))
        optimiser = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.model.train()
        self.snapshots: list[tuple[float, dict[str, torch.Tensor]]] = []
        began = time.perf_counter()
        for step in range(1, self.steps + 1):
            chosen = torch.randint(len(x), (min(self.batch_size, len(x)),), device=self.device)
            optimiser.zero_grad()
            loss = -objective(self.model(x[chosen]), target[chosen])
            loss.backward()
            optimiser.step()
            if step in self.watch:
                self.snapshots.append((time.perf_counter() - began, self.state()))
        self.model.eval()
        return self

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the learned parameters."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Go back to a snapshot."""
        self.model.load_state_dict(state)
        self.model.eval()

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the probability of each class."""
        with torch.no_grad():
            parts = [
                self.likelihood(self.model(self._tensor(X[i : i + 8192]))).mean.cpu().numpy()
                for i in range(0, len(X), 8192)
            ]
        p = np.concatenate(parts)
        return np.column_stack([1.0 - p, p])

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the likelier class."""
        return (self.predict_proba(X)[:, 1] > 0.5).astype(int)

    def _tensor(self, X: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(((X - self.mean) / self.scale).astype(np.float32))
        return x.to(self.device)

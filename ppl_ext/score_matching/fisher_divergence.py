"""Fisher divergence by reparameterised draws without arrays: ``FisherVI``.

Lowers E_q |grad log q - s|^2 in the guide's parameters, where s is the target's score and the
draws move with the parameters. So the model is differentiated twice: the gradient holds, beside
that of log q, products of the Hessian of log pi with the residual. Equation 4 of M. Kim,
"Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural Networks"
(https://arxiv.org/abs/2602.05873), which names the Euclidean norm Fisher (Hyvarinen 2005) and the
norm of Cov(q) Score (Barp et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_ext.engines.descent import warn_of_squared_noise
from ppl_ext.engines.guide_engine import GuideShell
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice, check_count, refuse

NORMS = ("euclidean", "covariance")
#: Models with more latent dimensions are refused unless told otherwise.
MAX_DIMENSION = 10_000


class FisherShell(GuideShell):
    """Score matching over the guide's own draws, differentiated through the draws.

    Each package's ``FisherVI`` has the whole text.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: Any = None,
        norm: str = "euclidean",
        num_samples: int = 1,
        max_dimension: int = MAX_DIMENSION,
        *,
        total_steps: int | None = None,
        **options: Any,
    ) -> None:
        refuse(type(self), options, "clip_norm", "initial_scale")
        super().__init__(model, guide, optim, num_samples, total_steps=total_steps, **options)
        check_choice("norm", norm, NORMS)
        check_count("max_dimension", max_dimension)
        self.norm = norm
        self.max_dimension = max_dimension

    def _settings(self) -> dict[str, str]:
        return {"norm": self.norm, **super()._settings()}

    def _check_dimension(self, dim: int) -> None:
        if dim > self.max_dimension:
            raise ArgumentError(
                f"Expected at most max_dimension={self.max_dimension} latent dimensions, found "
                f"{dim}: each step differentiates the model twice, which takes a large model's "
                f"memory several times over. Pass max_dimension={dim} to do it all the same, or "
                "use ProximalScoreVI, which needs no second derivative."
            )

    def _check_guide(self, density: Any, parameters: Any, reparameterised: bool) -> None:
        name = type(density.guide).__name__
        if not reparameterised:
            raise ArgumentError(
                f"Expected a guide whose draws can be reparameterised, found {name}, whose "
                "posterior has no rsample. Use a Normal guide or a flow, or ProximalScoreVI, which "
                "does not differentiate draws."
            )
        if self.norm == "covariance":
            try:
                density.moments(parameters)
            except ArgumentError as error:
                raise ArgumentError(
                    "Expected a guide whose covariance has a closed form for norm='covariance', "
                    f"found {name}. Use norm='euclidean', or AutoDiagonalNormal, "
                    "AutoMultivariateNormal, AutoLowRankMultivariateNormal or AutoGaussianMixture."
                ) from error

    _warn_unless_exact = warn_of_squared_noise

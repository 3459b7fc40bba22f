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

    Each step takes one optimizer step down

        E_q |grad log q - s|^2

    where s is the target's score, in the Euclidean norm or in that of the guide's covariance. The
    gradient is that of the Monte Carlo estimate with the noise of the draws held fixed, through
    the draws, the score of the guide, the score of the model and, for ``norm="covariance"``, the
    norm.

    It depends on its start. The norm of Cov(q) does not see the directions in which the guide is
    narrow: while the mean is far, a guide that shrinks everywhere lowers the objective, and then
    stays. Start at least as wide as the posterior (``init_scale=1.0``; the host's default is 0.1)
    and not far from it.

    Parameters
    ----------
    model : callable
        The host's model, used as it is; it is differentiated twice.
    guide : AutoContinuous
        An autoguide of the model that has a log density over the flat unconstrained vector and
        reparameterised draws, or the class, which is then called with the model. In Pyro the
        guide object holds the fit at any time and starts from the values that it has.
    optim : optimizer or mapping, optional
        Pyro's (see ``pyro_ext.optim.EngineOptimizer``), NumPyro's or optax's; or a mapping that
        gives sites optimizers of their own, see
        :class:`~ppl_ext.score_matching.options.GradientSteps`. Default: Adam with a learning rate
        that falls from 0.01 to 0 along a cosine over the run.
    norm : {"euclidean", "covariance"}
        "euclidean" is |r|^2 (Fisher). "covariance" is r^T Cov(q) r (Score), which does not depend
        on the units of the latents; for guides with a covariance in closed form: Normals and
        mixtures of them.
    num_samples : int
        Draws S per step.
    max_dimension : int
        Models with more latent dimensions are refused, because of the second derivatives. Raise
        it to fit them all the same.
    total_steps : int, optional
        Length of the run that the default optimizer's rate falls over, when steps are taken one
        by one; ``run`` sets its own.
    **options
        Options of every engine but ``init_strategy``; see the package's ``Engine``. In Pyro the
        guide is converted to ``dtype``.

    Notes
    -----
    The loss is the objective at the draws; ``info`` holds the means of log p (tempered as the
    target is, from the minibatch) and of log q there. A step takes
    about as long as two of other engines: a product with the Hessian costs as much as two
    gradients, one of which is the score itself.

    Scores enter squared, so that with minibatches the objective holds the variance of the score
    besides, and the fit is drawn to where that is small: unlike ``ProximalScoreVI`` this engine
    is biased by noise that depends on the parameters. Noise of ``Noisy`` scores is not
    differentiated and biases only ``norm="covariance"``.

    Draws of a guide whose posterior is a mixture choose a component, and a choice has no
    derivative: with a posterior that offers a stand-in, such as the straight-through gradient of
    ``AutoGaussianMixture``, the gradient in the mixture's weights is biased as the stand-in is.

    References
    ----------
    A. Hyvarinen, "Estimation of non-normalized statistical models by score matching", JMLR 2005,
    https://jmlr.org/papers/v6/hyvarinen05a.html; A. Barp et al., "Minimum Stein discrepancy
    estimators", NeurIPS 2019, https://arxiv.org/abs/1906.08283.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, its draws cannot be reparameterised, or it has no
        covariance in closed form for ``norm="covariance"``; the model has more than
        ``max_dimension`` dimensions; or an option is out of range.
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

"""The flat log density of a guide: what score-based inference needs to know of a host's autoguide.

A guide takes part in score-based inference through a ``FlatDensity``: a view of the guide
as a density log q(theta) over the flat unconstrained vector, with pure functions of a dictionary
of *unconstrained* parameter arrays under the host's names: in Pyro as in
``guide.named_parameters()``, in NumPyro ``auto_loc``, ... Normal guides have closed forms for the
score, grad_theta log q(theta); other continuous guides whose posterior can be evaluated at a given
point are differentiated automatically. The registry is open: ``register_flat_density`` adds a guide
class. Setting a guide up leaves Pyro's global param store as it was.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Literal, NamedTuple

from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError
from ppl_ext.guides.arrays import ArrayFunctions
from ppl_ext.start.given import as_array
from ppl_ext.start.start import Mode, Start

#: Dimensions up to which a covariance that is given in parts is formed for a start.
MOST_DENSE = 2_000

CovarianceStructure = Literal["diagonal", "full", "low_rank", "matrix_normal", "layer_low_rank"]


class Moments(NamedTuple):
    """First two moments of a Normal guide.

    ``mean`` is (D,). ``scale`` is the standard deviations (D,) of a diagonal guide, and the lower
    triangular Cholesky factor (D, D) of the covariance of any other.
    """

    mean: Any
    scale: Any


@documents_subclasses
class FlatDensityShell:
    """Flat log density of an ``AutoContinuous`` guide, by automatic differentiation.

    Each package's ``FlatDensity`` has the whole text.
    """

    arrays: ClassVar[type[ArrayFunctions]]
    covariance_structure: CovarianceStructure | None = None
    guide: Any

    @property
    def dim(self) -> int:
        """Length D of the flat unconstrained vector."""
        return int(self.guide.latent_dim)

    def initial_parameters(self) -> Any:
        """The guide's unconstrained parameters, by name: a copy of Pyro's present ones; NumPyro's
        initial ones, made anew."""
        raise NotImplementedError

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        """Log density at theta (..., D), shape (...,)."""
        raise NotImplementedError

    def score(self, parameters: Any, theta: Any) -> Any:
        """Gradient of the log density with respect to theta, (..., D).

        Differentiable in the parameters (in Pyro where they require gradients).
        """
        raise NotImplementedError

    def log_prob_and_score(self, parameters: Any, theta: Any) -> tuple[Any, Any]:
        """:meth:`log_prob` and :meth:`score`, which have much in common."""
        return self.log_prob(parameters, theta), self.score(parameters, theta)

    def mean_square_residual(self, parameters: Any, theta: Any, target: Any) -> tuple[Any, Any]:
        """Mean over draws of ||grad log q(theta) - target||^2, and its gradient.

        Parameters
        ----------
        parameters : dict of arrays
        theta, target : arrays (S, D)
            Held fixed.

        Returns
        -------
        value : scalar array
        gradient : dict of arrays
            With respect to ``parameters``.
        """
        raise NotImplementedError

    def moments(self, parameters: Any) -> Moments:
        """Mean and scale of a Normal guide.

        Raises
        ------
        ArgumentError
            The guide is not a Normal.
        """
        raise ArgumentError(
            f"Expected a Normal guide, found {type(self.guide).__name__}, whose moments have no "
            "closed form. Draw samples instead."
        )

    def set_moments(self, parameters: Any, moments: Moments) -> Any:
        """New parameters with which a diagonal or full Normal guide has these moments.

        Raises
        ------
        ArgumentError
            The guide is not a diagonal or full Normal.
        """
        raise ArgumentError(
            "Expected AutoDiagonalNormal or AutoMultivariateNormal, found "
            f"{type(self.guide).__name__}, which cannot be set to given moments."
        )

    def set_scale(self, parameters: Any, scale: float) -> Any:
        """New parameters of a Normal guide with this standard deviation everywhere.

        The mean is the same, and so is W of a low-rank covariance; others are uncorrelated.

        Raises
        ------
        ArgumentError
            The guide is not one that can be set to a scale.
        """
        raise ArgumentError(
            "Expected AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal or "
            f"AutoMatrixNormal with initial_scale, found {type(self.guide).__name__}. Leave "
            "initial_scale out, and give the guide its scale where it is made (init_scale)."
        )

    @property
    def takes_start(self) -> bool:
        """Whether the guide can be put to a start."""
        return type(self).set_start is not FlatDensityShell.set_start

    def as_start(self, parameters: Any) -> Start | None:
        """The guide as a start; None where its Normals have no closed form, or are too large."""
        structure = self.covariance_structure
        if structure is None or (structure != "diagonal" and self.dim > MOST_DENSE):
            return None
        mean, scale = (as_array(each) for each in self.moments(parameters))
        return Start((Mode(mean, scale, 0.0, 0.0),), 0)

    def set_start(self, parameters: Any, start: Start) -> Any:
        """New parameters with which the guide is as near to a start as its family allows.

        Diagonal guides take the standard deviations of each coordinate given the others, which
        are those of the best diagonal Normal by KL(q || p); so do flows and guides with a low rank
        in each layer, whose flows and factors stay as they were.

        Raises
        ------
        ArgumentError
            The guide's family is not one of those that can.
        """
        raise ArgumentError(
            "Expected AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, "
            "AutoMatrixNormal, AutoLayerLowRankNormal, AutoPlanarFlow or AutoGaussianMixture with "
            "full covariances, found "
            f"{type(self.guide).__name__}, which cannot be put to a start. Leave start out, and "
            "give the guide its place where it is made (init_loc_fn)."
        )

    def _not_invertible(self, error: Exception) -> ArgumentError:
        return ArgumentError(
            f"Expected a guide whose log density can be evaluated at any point, found "
            f"{type(self.guide).__name__}, which cannot be inverted ({error}). {ALTERNATIVES}"
        )


def has_own_start(guide: Any, place: Any) -> bool:
    """Whether a guide has another place or scale to start at than its class's default.

    One that is None, or that the class does not take, was not given.
    """
    options = {"init_loc_fn": place, "init_scale": getattr(guide, "_init_scale", None)}
    defaults = inspect.signature(type(guide).__init__).parameters
    return any(
        value is not None and name in defaults and value != defaults[name].default
        for name, value in options.items()
    )


ALTERNATIVES = (
    "Use AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, "
    "AutoLayerLowRankNormal, AutoMatrixNormal, AutoGaussianMixture or AutoPlanarFlow, or another "
    "AutoContinuous guide whose posterior has an evaluable log density; or register one "
    "with register_flat_density."
)

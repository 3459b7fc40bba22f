"""Mixtures of Normals over the flat unconstrained vector: options, densities, scores.

The guide q(theta) = sum_k w_k N(theta; mu_k, Sigma_k) can hold several modes, which no single
Normal can. It is an ordinary host autoguide: it works in ``SVI`` and ``Predictive``, and
score-based engines match its score

    grad log q(theta) = sum_k r_k(theta) Sigma_k^{-1} (mu_k - theta),

where r_k(theta) is the posterior probability of component k at theta.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError
from ppl_ext.guides.arrays import LOG_TWO_PI, ArrayFunctions
from ppl_ext.guides.flat_density import FlatDensityShell, Moments
from ppl_ext.options import check_choice, check_count, check_number, is_number
from ppl_ext.start.given import as_array
from ppl_ext.start.start import Mode, Start

COVARIANCES = ("diag", "full", "low_rank")
#: Halvings of a bracket when the distribution function is inverted: more than a float64 can tell.
HALVINGS = 100
#: Least weight of a component at a start.
LEAST_WEIGHT = 1e-3


@documents_subclasses
class MixtureFormulas:
    """Mixture of K Normals over vectors of length D, with draws that can be differentiated.

    Draws are exact: a component is chosen by the largest of the logits with Gumbel noise added,
    and the draw is that component's. See ``AutoGaussianMixture`` for their gradient.

    Parameters
    ----------
    logits : array (K,)
        Logarithms of the weights, up to a constant.
    loc : array (K, D)
        Means.
    scale : array (K, D), optional
        Standard deviations; with ``cov_factor`` the S of S (I + W W^T) S.
    scale_tril : array (K, D, D), optional
        Lower triangular Cholesky factors of the covariances, in place of ``scale``.
    cov_factor : array (K, D, r), optional
        The W of S (I + W W^T) S.
    temperature : float
        Of the softmax that stands for the choice of the component in gradients.
    """

    arrays: ClassVar[type[ArrayFunctions]]

    def __init__(
        self,
        logits: Float[Any, " K"],
        loc: Float[Any, "K D"],
        *,
        scale: Float[Any, "K D"] | None = None,
        scale_tril: Float[Any, "K D D"] | None = None,
        cov_factor: Float[Any, "K D r"] | None = None,
        temperature: float = 0.05,
        validate_args: bool | None = None,
    ) -> None:
        self.logits: Any = logits
        self.loc: Any = loc
        self.scale: Any = scale
        self.scale_tril: Any = scale_tril
        self.cov_factor: Any = cov_factor
        self.temperature = temperature
        # What follows in a package's class is the host's distribution.
        shapes: Any = loc.shape[:0], loc.shape[-1:]
        super().__init__(*shapes, validate_args=validate_args)  # type: ignore[call-arg]

    def _noisy(self, noise: Any, inner: Any, gumbel: Any) -> tuple[Any, Any]:
        """Each component's draw (..., K, D), and the logits with noise (..., K).

        From standard Normal numbers (..., D), and (..., r) where there is a factor, and standard
        Gumbel numbers (..., K).
        """
        # Every component's draw from the same noise: only one of them is used.
        if self.scale_tril is not None:
            draws = self.loc + self.arrays.xp.einsum("kde,...e->...kd", self.scale_tril, noise)
        else:
            draws = noise[..., None, :]
            if self.cov_factor is not None:
                draws = draws + self.arrays.xp.einsum("kdr,...r->...kd", self.cov_factor, inner)
            draws = self.loc + self.scale * draws
        return draws, self.logits + gumbel

    def _chosen(self, draws: Any, perturbed: Any) -> Any:
        """The draw of the component with the largest noisy logit, differentiable, (..., D)."""
        soft = self.arrays.softmax(perturbed / self.temperature)
        # In value exactly the choice; in the gradient the choice's soft stand-in.
        chosen = self.arrays.largest(perturbed) + (soft - self.arrays.detached(soft))
        return self.arrays.xp.einsum("...k,...kd->...d", chosen, draws)

    def score(self, value: Any) -> Any:
        """Gradient of the log density with respect to ``value`` (..., D)."""
        joint, pull = self._components(value)
        return self.arrays.xp.einsum("...k,...kd->...d", self.arrays.softmax(joint), pull)

    def quantile(self, probabilities: Any) -> Any:
        """Quantiles of every coordinate's own distribution, for probabilities of any shape (...).

        The distribution function of a coordinate is a weighted sum of the components' and has no
        closed inverse; it is inverted by bisection between the least and the greatest of the
        components' quantiles, which always enclose the mixture's. Where it is flat to rounding,
        as between two distant modes, the middle of the flat part is taken.

        Returns
        -------
        array (..., D)
        """
        xp = self.arrays.xp
        weights, scale = self.arrays.softmax(self.logits), self._marginal_scale()
        level = self.arrays.as_array(probabilities, scale)[..., None]
        of_components = self.loc + scale * self.arrays.ndtri(level)[..., None]

        def below(point: Any) -> Any:
            standard = (point[..., None, :] - self.loc) / scale
            return xp.einsum("k,...kd->...d", weights, self.arrays.ndtr(standard))

        def halved(ends: tuple[Any, ...]) -> tuple[Any, ...]:
            (low, high), (low_of_last, high_of_last) = ends
            # Halved before they are added, so that the sum does not overflow.
            first, last = 0.5 * low + 0.5 * high, 0.5 * low_of_last + 0.5 * high_of_last
            left, right = below(first) < level, below(last) <= level
            return (
                (xp.where(left, first, low), xp.where(left, high, first)),
                (xp.where(right, last, low_of_last), xp.where(right, high_of_last, last)),
            )

        bracket = xp.amin(of_components, -2), xp.amax(of_components, -2)
        # Brackets of the first point where the function reaches the level, and of the last.
        (_, first), (last, _) = self.arrays.repeated(HALVINGS, halved, (bracket, bracket))
        return 0.5 * first + 0.5 * last

    @property
    def mean(self) -> Any:
        """Mean (D,)."""
        return self.arrays.softmax(self.logits) @ self.loc

    @property
    def variance(self) -> Any:
        """Variance of each coordinate (D,)."""
        second = self._marginal_scale() ** 2 + (self.loc - self.mean) ** 2
        return self.arrays.softmax(self.logits) @ second

    @property
    def covariance_matrix(self) -> Any:
        """Covariance (D, D): that within the components and that of their means."""
        einsum = self.arrays.xp.einsum
        weights, apart = self.arrays.softmax(self.logits), self.loc - self.mean
        between = einsum("k,kd,ke->de", weights, apart, apart)
        if self.scale_tril is not None:
            root = self.scale_tril
            return between + einsum("k,kdr,ker->de", weights, root, root)
        within = self.arrays.xp.diag(weights @ self.scale**2)
        if self.cov_factor is not None:
            root = self.scale[..., None] * self.cov_factor
            within = within + einsum("k,kdr,ker->de", weights, root, root)
        return between + within

    def _marginal_scale(self) -> Any:
        """Standard deviation of each component in each coordinate, (K, D)."""
        if self.scale_tril is not None:
            return self.arrays.xp.sqrt((self.scale_tril**2).sum(-1))
        if self.cov_factor is None:
            return self.scale
        return self.scale * self.arrays.xp.sqrt(1.0 + (self.cov_factor**2).sum(-1))

    def _components(self, value: Any) -> tuple[Any, Any]:
        """Log of weight times density of each component (..., K), and each one's score.

        The score of component k is Sigma_k^{-1} (mu_k - theta), (..., K, D).
        """
        xp, (number, dim) = self.arrays.xp, self.loc.shape
        difference = self.loc - value[..., None, :]

        def rows(points: Any) -> Any:
            # Components first: one triangular solve per component, points in the rows.
            return xp.moveaxis(points.reshape(-1, number, dim), 0, 1)

        def restored(found: Any) -> Any:
            return xp.moveaxis(found, 0, 1).reshape(difference.shape)

        if self.scale_tril is not None:
            standard = self.arrays.solve_lower(self.scale_tril, rows(difference))
            pull = restored(self.arrays.solve_lower(self.scale_tril, standard, transpose=True))
            square = (standard**2).sum(-1).T.reshape(difference.shape[:-1])
            log_determinant = xp.log(self.arrays.diagonal(self.scale_tril)).sum(-1)
        else:
            standard = difference / self.scale
            log_determinant = xp.log(self.scale).sum(-1)
            if self.cov_factor is None:
                square = (standard**2).sum(-1)
            else:
                # With c = (I + W^T W)^{-1} W^T z: (I + W W^T)^{-1} z = z - W c, and
                # z^T (I + W W^T)^{-1} z = |z - W c|^2 + |c|^2, which no rounding makes negative.
                factor = self.cov_factor
                identity = self.arrays.identity(factor.shape[-1], factor)
                capacitance = xp.linalg.cholesky(identity + factor.mT @ factor)
                within = self.arrays.solve_lower(capacitance, rows(standard) @ factor)
                within = self.arrays.solve_lower(capacitance, within, transpose=True)
                left = rows(standard) - within @ factor.mT
                square = (left**2).sum(-1) + (within**2).sum(-1)
                square = square.T.reshape(difference.shape[:-1])
                standard = restored(left)
                diagonal = self.arrays.diagonal(capacitance)
                log_determinant = log_determinant + xp.log(diagonal).sum(-1)
            pull = standard / self.scale
        log_weights = self.arrays.log_softmax(self.logits)
        return log_weights - log_determinant - 0.5 * (square + dim * LOG_TWO_PI), pull


@documents_subclasses
class MixtureGuide:
    """Mixture of K Normals over the flat unconstrained vector.

    Each package's ``AutoGaussianMixture`` has the whole text.
    """

    def _set_options(
        self,
        num_components: int,
        covariance: str,
        rank: int | None,
        init_scale: float,
        init_spread: float,
        temperature: float,
    ) -> None:
        check_count("num_components", num_components)
        check_choice("covariance", covariance, COVARIANCES)
        if rank is not None and covariance != "low_rank":
            raise ArgumentError(
                f"Expected no rank with covariance={covariance!r}, found rank={rank!r}. Leave it "
                "out, or use covariance='low_rank'."
            )
        check_count("rank", rank, optional=True)
        check_number("init_scale", init_scale)
        if not is_number(init_spread) or not 1.0 <= init_spread < math.inf:
            raise ArgumentError(f"Expected a finite init_spread >= 1, found {init_spread!r}.")
        check_number("temperature", temperature)
        self.num_components = num_components
        self.covariance = covariance
        self.rank = rank
        self.temperature = temperature
        self._init_scale, self._init_spread = init_scale, init_spread

    def _initial_scales(self) -> list[float]:
        """Standard deviations at which the components start, from the narrowest to the widest."""
        if self.num_components == 1:
            return [self._init_scale]
        last = self.num_components - 1
        steps = (2.0 * k / last - 1.0 for k in range(self.num_components))
        return [self._init_scale * self._init_spread**step for step in steps]

    def _initial_rank(self, dim: int) -> int:
        """Columns r of W for D coordinates: those asked for, or the square root of D, rounded.

        Raises
        ------
        ArgumentError
            There are more columns than coordinates.
        """
        found = round(dim**0.5) if self.rank is None else self.rank
        if found > dim:
            raise ArgumentError(
                f"Expected a rank of at most the number of latents, {dim}, found rank={found}."
            )
        return found

    def get_posterior(self, *args: Any, **kwargs: Any) -> Any:
        """The mixture, a distribution over the flat vector.

        Its parameters are the present ones in Pyro; in NumPyro those of a dictionary ``params``,
        as ``SVI.get_params`` or an engine's result gives them.
        """
        raise NotImplementedError

    def median(self, *args: Any, **kwargs: Any) -> Any:
        """Median of each coordinate, by site, in the constrained space."""
        raise NotImplementedError

    def quantiles(self, *args: Any, **kwargs: Any) -> Any:
        """Quantiles of each coordinate, by site, in the constrained space.

        Parameters
        ----------
        params : dict of arrays
            In NumPyro: as ``SVI.get_params`` or an engine's result gives them.
        quantiles : list, array or, in NumPyro, float
            Probabilities between 0 and 1.

        Returns
        -------
        dict of arrays
            By site, with the quantiles along the first dimension.
        """
        raise NotImplementedError


class Components(NamedTuple):
    """Components of a mixture with full covariances.

    Parameters
    ----------
    logits : array (K,)
        Logarithms of the weights, up to a constant.
    loc : array (K, D)
        Means.
    scale_tril : array (K, D, D)
        Lower triangular Cholesky factors of the covariances.
    """

    logits: Any
    loc: Any
    scale_tril: Any


class MixtureDensity(FlatDensityShell):
    """``AutoGaussianMixture``: closed-form score, so that its fit needs one reverse pass."""

    def _mixture(self, parameters: Any) -> Any:
        """The distribution with these parameters."""
        raise NotImplementedError

    def _check_full(self) -> None:
        if self.guide.covariance != "full":
            raise ArgumentError(
                "Expected AutoGaussianMixture with covariance='full', found "
                f"{self.guide.covariance!r}."
            )

    def components(self, parameters: Any) -> Components:
        """The components, for ``covariance="full"``.

        Raises
        ------
        ArgumentError
            The guide has another covariance.
        """
        self._check_full()
        mixture = self._mixture(parameters)
        return Components(mixture.logits, mixture.loc, mixture.scale_tril)

    def set_components(self, parameters: Any, components: Components) -> Any:
        """New parameters with which the guide has these components, for ``covariance="full"``.

        Raises
        ------
        ArgumentError
            The guide has another covariance.
        """
        raise NotImplementedError

    @property
    def takes_start(self) -> bool:
        return bool(self.guide.covariance == "full")

    def as_start(self, parameters: Any) -> Start | None:
        if not self.takes_start:
            return None
        logits, *normals = (as_array(each) for each in self.components(parameters))
        normal = zip(*normals, logits, strict=True)
        modes = [Mode(loc, root, float(logit), 0.0) for loc, root, logit in normal]
        return Start(tuple(sorted(modes, key=lambda mode: mode.log_mass, reverse=True)), 0)

    def set_start(self, parameters: Any, start: Start) -> Any:
        """A component for each mode, by weight; the others at draws of the modes."""
        like = self.components(parameters).loc
        number = len(like)
        modes, weights = start.modes[:number], start.weights[:number]
        drawn = start.draw(number)[len(modes) :]
        # What was drawn belongs to the mode of most mass where it is as good as all.
        share = np.full(number, weights[0] / (1 + len(drawn)))
        share[1 : len(modes)] = weights[1:]
        found = Components(
            np.log(np.maximum(share, LEAST_WEIGHT)),
            np.concatenate([[mode.mean for mode in modes], drawn]),
            np.stack([mode.root for mode in modes] + [modes[0].root] * len(drawn)),
        )
        arrays = (self.arrays.as_array(each, like) for each in found)
        return self.set_components(parameters, Components(*arrays))

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        return self._mixture(parameters).log_prob(theta)

    def score(self, parameters: Any, theta: Any) -> Any:
        return self._mixture(parameters).score(theta)

    def moments(self, parameters: Any) -> Moments:
        """Mean (D,) and Cholesky factor (D, D) of the covariance of the whole mixture.

        Exact, but they do not determine the mixture, unlike a Normal guide's.
        """
        mixture = self._mixture(parameters)
        return Moments(mixture.mean, self.arrays.xp.linalg.cholesky(mixture.covariance_matrix))

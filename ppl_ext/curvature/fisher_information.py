"""Fisher information of observed distributions in their parameters, as a square root.

For an observation with parameters theta the Fisher information F(theta) is the expectation of
the outer product of the score in theta. What curvature needs of it is a linear map, the root,
from changes of the parameters to vectors r with |r|^2 = dtheta^T F dtheta: composed with the
program that computes the parameters, its Jacobian J_r gives the generalised Gauss-Newton matrix
J_r^T J_r, which is positive semidefinite whatever the program (Martens 2020, "New insights and
perspectives on the natural gradient method", sections 6 and 8).

Roots are found by the class of the distribution; ``register_output_fisher`` adds one. Classes
without one have a Monte Carlo root, made of scores at values drawn from the distribution. So have
mixtures of one family, ``MixtureSameFamily``, in the parameters of their two parts.

The closed forms stand here for the arrays of either package, in :class:`FisherRoots`. In them
``p`` are the parameters, by name, and ``t`` their changes.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ppl_ext.curvature.program_curvature import RepeatedComponent, merged_output
from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError

Parameters = Mapping[str, Any]
#: Maps parameters and their changes, each of shape batch + own, to roots (batch + (R,)).
Root = Callable[[Parameters, Parameters], Any]

EULER = 0.5772156649015329


@documents_subclasses
class FisherRoots(abc.ABC):
    """Roots of the Fisher information of one host's distributions.

    Parameters
    ----------
    host : str
        Name of the host, for messages.
    distributions : module
        The host's distributions. Those that the table below names have a root.
    functions : module
        ``torch`` or ``jax.numpy``, for those functions that have one name and meaning in both.
    base : str
        What stands before the names of the parameters of a zero-inflated distribution's base.
    """

    host: str
    distributions: Any
    functions: Any
    base: str

    def __init__(self) -> None:
        self.roots: dict[type, Root] = {}
        for names, root in self._table():
            for name in names.split():
                # Each host has its own names; a name that one lacks costs nothing.
                kind = getattr(self.distributions, name, None)
                # Some names are functions that choose among classes, which have names of their own.
                if isinstance(kind, type):
                    self.roots[kind] = root

    # -- what the packages' arrays do not share -----------------------------------------------

    @abc.abstractmethod
    def sigmoid(self, x: Any) -> Any:
        """The logistic function."""

    @abc.abstractmethod
    def softmax(self, x: Any) -> Any:
        """Chances along the last axis from their logarithms, up to a constant."""

    @abc.abstractmethod
    def trigamma(self, x: Any) -> Any:
        """Derivative of the digamma function."""

    @abc.abstractmethod
    def solve_lower(self, factor: Any, right: Any) -> Any:
        """Solutions of lower triangular systems for the columns of ``right``."""

    @abc.abstractmethod
    def gradient(self, function: Callable[[Parameters], Any]) -> Callable[[Parameters], Any]:
        """The gradient of a function of parameters whose value is one number."""

    @abc.abstractmethod
    def is_floating(self, value: Any) -> bool:
        """Whether an array holds numbers in floating point."""

    def moving(self, output: Any) -> dict[str, Any]:
        """The parameters of a site that are no whole numbers: those that can be differentiated."""
        return {name: value for name, value in output.parameters.items() if self.is_floating(value)}

    # -- whitened outputs ---------------------------------------------------------------------

    def whitened_outputs(
        self,
        point: Mapping[str, Any],
        outputs: Mapping[str, Any],
        names: Sequence[str],
        temperature: float,
        roots: Mapping[str, Callable[[Parameters], Any]],
        repeated: Mapping[str, Sequence[RepeatedComponent]],
        merge: bool,
    ) -> list[Any]:
        """Outputs of some sites at a position, whitened at another: vectors to be put together.

        Components in ``repeated`` are merged, of all sites, or left out.
        """
        parts = [
            self._whitened(
                point[name], outputs[name], temperature, roots[name], repeated.get(name, ())
            )
            for name in names
        ]
        for name in repeated if merge else ():
            weight = point[name].weight / temperature
            parts += self._merged(point[name], outputs[name], weight, roots[name], repeated[name])
        return parts

    def no_changes(self, output: Any) -> dict[str, Any]:
        """Changes of a site's parameters that are all zero, in floating point."""
        kind = next((each.dtype for each in self.moving(output).values()), None)
        zeros = self.functions.zeros_like
        return {name: zeros(value, dtype=kind) for name, value in output.parameters.items()}

    def _whitened(
        self,
        point: Any,
        output: Any,
        temperature: float,
        root: Callable[[Parameters], Any],
        left_out: Sequence[RepeatedComponent],
    ) -> Any:
        """A site's outputs (R,) at a position, whitened at another, without some components.

        Parameters
        ----------
        point, output : Output
            The site where it is whitened, and at the position.
        temperature : float
        root : callable
            The root at ``point``, from changes of the parameters.
        left_out : sequence of RepeatedComponent
        """
        # The root is linear in the changes, so that of the parameters themselves has the Jacobian
        # that is wanted; parameters that are whole numbers do not change.
        values = output.parameters.items()
        found = root({n: each if self.is_floating(each) else 0.0 * each for n, each in values})
        if left_out:
            skipped = {each.component for each in left_out}
            kept = [found[..., k] for k in range(found.shape[-1]) if k not in skipped]
            found = self.functions.stack(kept, -1) if kept else found[..., :0]
        factor = self.functions.sqrt(point.weight / temperature)
        # Weights are of the elements of the batch, and the root has an axis of components more.
        own = (1,) * (found.ndim - factor.ndim)
        return (found * factor.reshape((*factor.shape, *own))).reshape(-1)

    def _merged(
        self,
        point: Any,
        output: Any,
        weight: Any,
        root: Callable[[Parameters], Any],
        repeated: Sequence[RepeatedComponent],
    ) -> list[Any]:
        """A site's merged whitened outputs, a vector (n,) for each repeated component.

        ``weight`` is the factor on each element, in the shape of the batch; the rest is as in
        :meth:`_whitened`.
        """
        found, nothing = [], self.no_changes(point)
        for component, name, axes in repeated:
            change = {**nothing, name: self.functions.ones_like(nothing[name])}
            value, of_change = output.parameters[name], root(change)[..., component]
            found.append(merged_output(self.functions, of_change, weight, value, axes))
        return found

    # -- registry -----------------------------------------------------------------------------

    def register(self, *distributions: type) -> Callable[[Root], Root]:
        """Decorator that gives distributions the root of their Fisher information.

        Parameters
        ----------
        *distributions : type
            Classes of the host's distributions, which share the root. A subclass does not inherit
            it, since it may have other parameters.

        Returns
        -------
        decorator
            Takes ``root(parameters, tangents)``, linear in the tangents: both map names of the
            distribution's arguments to arrays of shape batch + own, and the result has shape
            batch + (R,), with the squared length dtheta^T F dtheta.

        Raises
        ------
        ArgumentError
            A class is no distribution of the host.

        Examples
        --------
        >>> @register_output_fisher(dist.Exponential)  # doctest: +SKIP
        ... def exponential(parameters, tangents):
        ...     return (tangents["rate"] / parameters["rate"])[..., None]
        """
        for each in distributions:
            if not (isinstance(each, type) and issubclass(each, self.distributions.Distribution)):
                raise ArgumentError(
                    f"Expected classes of {self.host} distributions, found {each!r}. Register the "
                    "class, such as dist.Normal, not one of its objects."
                )

        def register(root: Root) -> Root:
            self.roots.update(dict.fromkeys(distributions, root))
            return root

        return register

    def root_for(self, distribution: type) -> Root | None:
        """The root registered for a class, None when there is none."""
        return self.roots.get(distribution)

    def known_root(self, output: Any, tangents: Parameters, otherwise: Callable[[], Any]) -> Any:
        """Root of a site's Fisher information, where known, from changes of its parameters."""
        if (root := self.root_for(output.distribution)) is not None:
            return root(output.parameters, tangents)
        return otherwise() if output.base is None else self.zero_inflated(output, tangents)

    def needs_draws(self, output: Any) -> bool:
        """Whether a site's Fisher information is made of values drawn from its distribution."""
        return self.root_for(output.distribution) is None and output.base is None

    @staticmethod
    def rebuilt(output: Any, parameters: Parameters) -> Any:
        """A site's distribution from its parameters, some of them given, one per element.

        Raises a ValueError where they are not, or where the events are others.
        """
        for name, value in output.parameters.items():
            if tuple(value.shape[: len(output.batch)]) != output.batch:
                raise ValueError(f"{name} of shape {tuple(value.shape)}, not one per element")
        built = output.built(parameters)
        if tuple(built.event_shape) != output.event_shape:
            raise ValueError(f"events of shape {built.event_shape}, not {output.event_shape}")
        return built

    def cannot_draw(self, output: Any, error: Exception) -> ArgumentError:
        """What is said of a distribution without a root that is not built or drawn from either."""
        return ArgumentError(
            f"Site '{output.name}': expected a distribution whose Fisher information is known, or "
            f"one that can be built from its arguments {sorted(output.parameters)} and drawn from, "
            f"found {output.distribution.__name__} ({error}). Give its Fisher information with "
            "register_output_fisher."
        )

    def _table(self) -> Iterator[tuple[str, Root]]:
        """Names of distributions, in one or both of the hosts, and the root that they share."""
        yield "Normal LogNormal", self._location_scale(1.0, 2.0)
        yield "Laplace", self._location_scale(1.0, 1.0)
        yield "Cauchy", self._location_scale(0.5, 0.5)
        yield "Logistic", self._location_scale(1.0 / 3.0, (3.0 + math.pi**2) / 9.0)
        yield "Gumbel", self._by_matrix(["loc", "scale"], _gumbel)
        yield "HalfNormal", lambda p, t: (math.sqrt(2.0) * t["scale"] / p["scale"])[..., None]
        yield "HalfCauchy", lambda p, t: (math.sqrt(0.5) * t["scale"] / p["scale"])[..., None]
        yield "StudentT", self._student_t
        yield "MultivariateNormal", self._multivariate_normal

        yield "Bernoulli BernoulliLogits BernoulliProbs", self._bernoulli
        yield "Binomial BinomialLogits BinomialProbs", self._times(self._bernoulli)
        yield "Geometric GeometricLogits GeometricProbs", self._geometric
        yield (
            "Categorical CategoricalLogits CategoricalProbs OneHotCategorical",
            self._categorical,
        )
        yield "Multinomial MultinomialLogits MultinomialProbs", self._times(self._categorical)
        yield "OrderedLogistic", self._ordered_logistic
        yield "Poisson", self._poisson
        yield "GammaPoisson", self._gamma_poisson
        yield (
            "NegativeBinomial NegativeBinomialLogits NegativeBinomialProbs",
            self._negative_binomial_by_odds,
        )
        yield "NegativeBinomial2", self._negative_binomial_2

        yield "Exponential", lambda p, t: (t["rate"] / p["rate"])[..., None]
        yield "Gamma InverseGamma", self._by_matrix(["rate", "concentration"], self._gamma)
        yield "Weibull", self._by_matrix(["scale", "concentration"], _weibull)
        yield "Dirichlet", self._dirichlet
        yield "Beta", self._beta

    # -- tools --------------------------------------------------------------------------------

    def _stacked(self, *parts: Any) -> Any:
        shape = np.broadcast_shapes(*(tuple(part.shape) for part in parts))
        broadcast = [self.functions.broadcast_to(part, shape) for part in parts]
        return self.functions.stack(broadcast, axis=-1)

    def _by_matrix(
        self, names: Sequence[str], matrix: Callable[[Parameters], Sequence[Sequence[Any]]]
    ) -> Root:
        """Root of a Fisher matrix in scalar parameters: the transposed Cholesky factor."""

        def root(parameters: Parameters, tangents: Parameters) -> Any:
            # Two by two in all uses, so that a factor for each element is cheap.
            rows = [self._stacked(*row) for row in matrix(parameters)]
            fisher = self.functions.stack(rows, axis=-2)
            return self._by_factor(fisher, self._stacked(*(tangents[name] for name in names)))

        return root

    def _by_factor(self, fisher: Any, change: Any) -> Any:
        factor = self.functions.linalg.cholesky(fisher)
        return self.functions.einsum("...ij,...i->...j", factor, change)

    def _times(self, root: Root) -> Root:
        """Root of the sum of ``total_count`` independent observations."""
        return lambda p, t: self.functions.sqrt(p["total_count"])[..., None] * root(p, t)

    # -- location and scale -------------------------------------------------------------------

    def _location_scale(self, location: float, scale: float) -> Root:
        """F = diag(location, scale) / scale^2, for symmetric families of location and scale."""
        return lambda p, t: self._stacked(
            math.sqrt(location) * t["loc"] / p["scale"],
            math.sqrt(scale) * t["scale"] / p["scale"],
        )

    def _student_t_matrix(self, p: Parameters) -> list[list[Any]]:
        df, scale = p["df"], p["scale"]
        own = 0.25 * (self.trigamma(df / 2) - self.trigamma((df + 1) / 2)) - (df + 5) / (
            2 * df * (df + 1) * (df + 3)
        )
        cross = -2.0 / (scale * (df + 1) * (df + 3))
        return [[2 * df / ((df + 3) * scale**2), cross], [cross, own]]

    def _student_t(self, p: Parameters, t: Parameters) -> Any:
        """Lange, Little and Taylor 1989, appendix B."""
        rest = self._by_matrix(["scale", "df"], self._student_t_matrix)
        location = self.functions.sqrt((p["df"] + 1) / (p["df"] + 3)) * t["loc"] / p["scale"]
        return self.functions.concatenate([location[..., None], rest(p, t)], axis=-1)

    def _multivariate_normal(self, p: Parameters, t: Parameters) -> Any:
        """Location: L^-1 dloc. Scale: (A + A^T) / sqrt(2) with A = L^-1 dL."""
        # The model gave one of three forms; with A = L^-1 dSigma L^-T, F is |A|^2 / 2 in all.
        if "scale_tril" in p:
            factor = p["scale_tril"]
            # Entries above the diagonal are no parameters.
            change = self.solve_lower(factor, self.functions.tril(t["scale_tril"]))
            change = (change + change.mT) / math.sqrt(2.0)
        else:
            name = "covariance_matrix" if "covariance_matrix" in p else "precision_matrix"
            factor = self.functions.linalg.cholesky(p[name])
            half = self.solve_lower(factor, (t[name] + t[name].mT) / 2.0)
            change = self.solve_lower(factor, half.mT) / math.sqrt(2.0)
        # dloc' Sigma^-1 dloc, with L of the covariance, or of its inverse.
        if "scale_tril" in p or "covariance_matrix" in p:
            location = self.solve_lower(factor, t["loc"][..., None])[..., 0]
        else:
            location = (factor.mT @ t["loc"][..., None])[..., 0]
        change = change.reshape((*location.shape[:-1], -1))
        return self.functions.concatenate([location, change], axis=-1)

    # -- counts and labels --------------------------------------------------------------------

    def _bernoulli(self, p: Parameters, t: Parameters) -> Any:
        if "logits" in p:
            chance = self.sigmoid(p["logits"])
            return (self.functions.sqrt(chance * (1 - chance)) * t["logits"])[..., None]
        return (t["probs"] / self.functions.sqrt(p["probs"] * (1 - p["probs"])))[..., None]

    def _geometric(self, p: Parameters, t: Parameters) -> Any:
        if "logits" in p:
            return (self.functions.sqrt(self.sigmoid(-p["logits"])) * t["logits"])[..., None]
        return (t["probs"] / (p["probs"] * self.functions.sqrt(1 - p["probs"])))[..., None]

    def _categorical(self, p: Parameters, t: Parameters) -> Any:
        """F = diag(p) - p p^T in logits.

        In probabilities F = diag(1 / p) for changes that keep the sum; a change of the sum alone
        changes nothing.
        """
        functions = self.functions
        if "logits" in p:
            chances = self.softmax(p["logits"])
            mean = (chances * t["logits"]).sum(axis=-1, keepdims=True)
            return functions.sqrt(chances) * (t["logits"] - mean)
        total = p["probs"].sum(axis=-1, keepdims=True)
        chances, change = p["probs"] / total, t["probs"] / total
        roots = functions.sqrt(chances)
        # A class of chance 0 is never seen; its own change would be divided by 0.
        safe = functions.where(chances > 0, roots, 1.0)
        own = functions.where(chances > 0, change / safe, 0.0)
        return own - roots * change.sum(axis=-1, keepdims=True)

    def _ordered_logistic(self, p: Parameters, t: Parameters) -> Any:
        """Changes of the classes' chances over the roots of these."""
        functions = self.functions

        def differences(below: Any, last: float) -> Any:
            ends = functions.zeros_like(below[..., :1])
            return functions.diff(functions.concatenate([ends, below, ends + last], axis=-1))

        below = self.sigmoid(p["cutpoints"] - p["predictor"][..., None])
        # The chance of class k is the difference of neighbouring logistic functions, and so is its
        # change.
        moved = below * (1 - below) * (t["cutpoints"] - t["predictor"][..., None])
        # A class between cutpoints that rounding has made equal would be divided by zero.
        chances = functions.clip(differences(below, 1.0), min=functions.finfo(below.dtype).tiny)
        return differences(moved, 0.0) / functions.sqrt(chances)

    def _poisson(self, p: Parameters, t: Parameters) -> Any:
        return (t["rate"] / self.functions.sqrt(p["rate"]))[..., None]

    def _negative_binomial(self, mean: Any, size: Any, mean_change: Any, size_change: Any) -> Any:
        """Root in the mean mu and the number r of failures, which are orthogonal.

        F_mu = r / (mu (mu + r)), and F_r = trigamma(r) - E trigamma(r + Y) - mu / (r (r + mu)).
        With trigamma and the differences of reciprocals as Laplace transforms this is one integral
        over t > 0, of a smooth function that is bounded by exp(-r t); in log t the trapezoidal
        rule takes it to rounding.
        """
        exp, expm1, log = self.functions.exp, self.functions.expm1, self.functions.log
        # Outside of these ends the integrand is below rounding.
        ends = log(1e-7 / (mean + size)), log(60.0 / size)
        nodes = self.functions.linspace(0.0, 1.0, 257, dtype=mean.dtype)
        width = (ends[1] - ends[0])[..., None]
        t = exp(ends[0][..., None] + width * nodes)
        r, mu = size[..., None], mean[..., None]
        # By expm1 and log1p: for small t the terms cancel in all digits.
        gone = -expm1(-t)
        seen = -expm1(-r * self.functions.log1p(mu / r * gone))
        integrand = exp(-r * t) * (t / gone * seen + expm1(-mu * t)) * t * width
        own = self.functions.trapezoid(integrand, dx=1.0 / 256.0)
        return self._stacked(
            self.functions.sqrt(size / (mean * (mean + size))) * mean_change,
            # Rounding of an integral that is nearly zero.
            self.functions.sqrt(self.functions.clip(own, min=0.0)) * size_change,
        )

    def _negative_binomial_2(self, p: Parameters, t: Parameters) -> Any:
        return self._negative_binomial(p["mean"], p["concentration"], t["mean"], t["concentration"])

    def _gamma_poisson(self, p: Parameters, t: Parameters) -> Any:
        # mu = a / b, so that dmu = (da - mu db) / b.
        mean = p["concentration"] / p["rate"]
        change = (t["concentration"] - mean * t["rate"]) / p["rate"]
        return self._negative_binomial(mean, p["concentration"], change, t["concentration"])

    def _negative_binomial_by_odds(self, p: Parameters, t: Parameters) -> Any:
        count, count_change = p["total_count"], t["total_count"]
        if "logits" in p:
            # mu = r times the odds, whose derivative is the odds in logits and 1 / (1 - p)^2 in
            # probabilities.
            odds = self.functions.exp(p["logits"])
            change = odds * t["logits"]
        else:
            left = 1 - p["probs"]
            odds, change = p["probs"] / left, t["probs"] / left**2
        mean_change = count_change * odds + count * change
        return self._negative_binomial(count * odds, count, mean_change, count_change)

    def zero_inflated(self, output: Any, tangents: Parameters) -> Any:
        """Root for a zero with the gate's chance q, and else a draw of the base distribution.

        With p0 and s0 the base's probability and score of zero, F is that of the event "zero" plus
        that of the rest: P0 u u^T + [[(1 - p0) / (1 - q), p0 s0^T], [p0 s0, (1 - q) (F - p0 s0
        s0^T)]] with P0 = q + (1 - q) p0 and u = [1 - p0, (1 - q) p0 s0] / P0.

        Raises
        ------
        ArgumentError
            The base has no closed form, or parameters that are no numbers.
        """
        functions, base = self.functions, output.base
        assert base is not None
        inside = {
            name.removeprefix(self.base): value
            for name, value in output.parameters.items()
            if name.startswith(self.base)
        }
        root = self.root_for(base)
        if root is None or any(value.shape != output.batch for value in inside.values()):
            raise ArgumentError(
                f"Site '{output.name}': expected a zero-inflated distribution on a base with "
                f"scalar parameters and known Fisher information, found {base.__name__}. Give that "
                f"of {output.distribution.__name__} with register_output_fisher."
            )
        # The number of a Binomial's trials may be kept in floating point, but is no parameter.
        fixed = {"total_count"} if base.__name__.startswith("Binomial") else set()
        names = [name for name in sorted(set(inside) - fixed) if self.is_floating(inside[name])]
        moving = {name: inside[name] for name in names}

        def log_zero(parameters: Parameters) -> Any:
            given = {**inside, **parameters}
            return base(**given).log_prob(functions.zeros(output.batch))

        if "gate" in output.parameters:
            q, q_change = output.parameters["gate"], tangents["gate"]
        else:
            q = self.sigmoid(output.parameters["gate_logits"])
            q_change = q * (1 - q) * tangents["gate_logits"]
        p0 = functions.exp(log_zero(moving))
        slopes = self.gradient(lambda parameters: log_zero(parameters).sum())(moving)
        s0 = functions.stack([slopes[name] for name in names], axis=-1)
        zeros = {name: functions.zeros_like(value) for name, value in inside.items()}
        # A root is linear in the changes, so unit changes give its columns.
        basis = [root(inside, {**zeros, name: zeros[name] + 1.0}) for name in names]
        columns = functions.stack(basis, axis=-1)
        own = functions.einsum("...ri,...rj->...ij", columns, columns)

        weighted = p0[..., None] * s0
        corner = ((1 - p0) / (1 - q))[..., None]
        rest = (1 - q)[..., None, None] * (own - weighted[..., None] * s0[..., None, :])
        top = functions.concatenate([corner, weighted], axis=-1)[..., None, :]
        bottom = functions.concatenate([weighted[..., None], rest], axis=-1)
        outside = functions.concatenate([top, bottom], axis=-2)
        zero = q + (1 - q) * p0
        u = [(1 - p0)[..., None], ((1 - q) * p0)[..., None] * s0]
        u = functions.concatenate(u, axis=-1) / zero[..., None]
        # The event "zero" has the score u.
        fisher = outside + zero[..., None, None] * u[..., None] * u[..., None, :]
        change = self._stacked(q_change, *(tangents[f"{self.base}{name}"] for name in names))
        # Where a gate or a base is certain the matrix is singular, and has no Cholesky factor.
        values, vectors = functions.linalg.eigh(fisher)
        turned = functions.einsum("...ij,...i->...j", vectors, change)
        return functions.sqrt(functions.clip(values, min=0.0)) * turned

    # -- positive values and proportions ------------------------------------------------------

    def _gamma(self, p: Parameters) -> list[list[Any]]:
        cross = -1.0 / p["rate"]
        own = self.trigamma(p["concentration"])
        return [[p["concentration"] / p["rate"] ** 2, cross], [cross, own]]

    def _dirichlet(self, p: Parameters, t: Parameters) -> Any:
        """F = diag(trigamma(a)) - trigamma(sum a)."""
        a = p["concentration"]
        identity = self.functions.diag(self.functions.ones_like(a.reshape((-1, a.shape[-1]))[0]))
        fisher = identity * self.trigamma(a)[..., None]
        fisher = fisher - self.trigamma(a.sum(axis=-1))[..., None, None]
        return self._by_factor(fisher, t["concentration"])

    def _beta(self, p: Parameters, t: Parameters) -> Any:
        """As a Dirichlet distribution of two, which some hosts keep it as."""
        if "concentration" in p:
            return self._dirichlet(p, t)
        names = "concentration1", "concentration0"
        both, change = (self._stacked(*(each[name] for name in names)) for each in (p, t))
        return self._dirichlet({"concentration": both}, {"concentration": change})


def _gumbel(p: Parameters) -> list[list[Any]]:
    unit = p["scale"] ** -2
    cross = (EULER - 1.0) * unit
    return [[unit, cross], [cross, (math.pi**2 / 6.0 + (1.0 - EULER) ** 2) * unit]]


def _weibull(p: Parameters) -> list[list[Any]]:
    cross = -(1.0 - EULER) / p["scale"]
    own = (math.pi**2 / 6.0 + (1.0 - EULER) ** 2) / p["concentration"] ** 2
    return [[(p["concentration"] / p["scale"]) ** 2, cross], [cross, own]]

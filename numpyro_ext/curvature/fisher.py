"""Fisher information of observed distributions in their parameters, as a square root.

For an observation with parameters theta the Fisher information F(theta) is the expectation of
the outer product of the score in theta. What curvature needs of it is a linear map, the root,
from changes of the parameters to vectors r with |r|^2 = dtheta^T F dtheta: composed with the
program that computes the parameters, its Jacobian J_r gives the generalised Gauss-Newton matrix
J_r^T J_r, which is positive semidefinite whatever the program (Martens 2020, "New insights and
perspectives on the natural gradient method", sections 6 and 8).

Roots are found by the class of the distribution; :func:`register_output_fisher` adds one. Classes
without one have a Monte Carlo root, made of scores at values drawn from the distribution. So have
mixtures of one family, ``MixtureSameFamily``, in the parameters of their two parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import polygamma

from numpyro_ext.density.outputs import BASE, Output
from ppl_ext.errors import ArgumentError

Parameters = Mapping[str, Array]
#: Maps parameters and their changes, each of shape batch + own, to roots (batch + (R,)).
Root = Callable[[Parameters, Parameters], Array]

_ROOTS: dict[type, Root] = {}
EULER = 0.5772156649015329


def register_output_fisher(*distributions: type) -> Callable[[Root], Root]:
    """Decorator that gives distributions the root of their Fisher information.

    Parameters
    ----------
    *distributions : type
        Classes of NumPyro distributions, which share the root. A subclass does not inherit it,
        since it may have other parameters.

    Returns
    -------
    decorator
        Takes ``root(parameters, tangents)``, linear in the tangents: both map names of the
        distribution's arguments to arrays of shape batch + own, and the result has shape
        batch + (R,), with the squared length dtheta^T F dtheta.

    Raises
    ------
    ArgumentError
        A class is no NumPyro distribution.

    Examples
    --------
    >>> @register_output_fisher(dist.Exponential)
    ... def exponential(parameters, tangents):
    ...     return (tangents["rate"] / parameters["rate"])[..., None]
    """
    for each in distributions:
        if not (isinstance(each, type) and issubclass(each, dist.Distribution)):
            raise ArgumentError(
                f"Expected classes of NumPyro distributions, found {each!r}. Register the class, "
                "such as dist.Normal, not one of its objects."
            )

    def register(root: Root) -> Root:
        _ROOTS.update(dict.fromkeys(distributions, root))
        return root

    return register


def root_for(distribution: type) -> Root | None:
    """The root registered for a class, None when there is none."""
    return _ROOTS.get(distribution)


def needs_draws(output: Output) -> bool:
    """Whether a site's Fisher information is made of values drawn from its distribution."""
    return root_for(output.distribution) is None and output.base is None


def fisher_root(output: Output, tangents: Parameters, rng_key: Array, draws: int = 16) -> Array:
    """Root of an observed site's Fisher information, shape batch + (R,).

    Parameters
    ----------
    output : Output
        The site at the point where F is taken.
    tangents : dict of str to array
        Changes of ``output.parameters``.
    rng_key : array
        For distributions without a registered root.
    draws : int
        Values drawn for these.
    """
    root = root_for(output.distribution)
    if root is not None:
        return root(output.parameters, tangents)
    if output.base is not None:
        return _zero_inflated(output, tangents)
    return _monte_carlo_root(output, tangents, rng_key, draws)


def _monte_carlo_root(output: Output, tangents: Parameters, rng_key: Array, draws: int) -> Array:
    """1/S sum of score score^T at S values drawn from the distribution; positive semidefinite."""
    moving = {
        name: value
        for name, value in output.parameters.items()
        if jnp.issubdtype(value.dtype, jnp.floating)
    }

    try:
        built = output.built(moving)
        if tuple(built.event_shape) != output.event_shape:
            raise ValueError(f"events of shape {built.event_shape}, not {output.event_shape}")
        values = jax.lax.stop_gradient(built.sample(rng_key, (draws,)))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ArgumentError(
            f"Site '{output.name}': expected a distribution whose Fisher information is known, or "
            f"one that can be built from its arguments {sorted(output.parameters)} and drawn from, "
            f"found {output.distribution.__name__} ({error}). Give its Fisher information with "
            "register_output_fisher."
        ) from error

    def root(value: Array) -> Array:
        # The elements are independent: the gradient of the sum is that of each.
        scores = jax.grad(lambda parameters: output.built(parameters).log_prob(value).sum())(moving)
        return sum(
            (
                (scores[name] * tangents[name]).reshape((*output.batch, -1)).sum(-1)
                for name in moving
            ),
            jnp.zeros(output.batch),
        )

    return jnp.moveaxis(jax.vmap(root)(values), 0, -1) / math.sqrt(draws)


def trigamma(x: Array) -> Array:
    """Derivative of the digamma function."""
    return polygamma(1, x)


def _stacked(*parts: Array) -> Array:
    return jnp.stack(parts, axis=-1)


def _by_matrix(
    names: Sequence[str], matrix: Callable[[Parameters], Sequence[Sequence[Array]]]
) -> Root:
    """Root of a Fisher matrix in scalar parameters: the transposed Cholesky factor."""

    def root(parameters: Parameters, tangents: Parameters) -> Array:
        rows = matrix(parameters)
        shape = parameters[names[0]].shape
        fisher = jnp.stack(
            [jnp.stack([jnp.broadcast_to(x, shape) for x in row], -1) for row in rows], -2
        )
        change = _stacked(*(tangents[name] for name in names))
        factor = jnp.linalg.cholesky(fisher)
        return jnp.einsum("...ij,...i->...j", factor, change)

    return root


# -- location and scale ---------------------------------------------------------------------------


def _location_scale(location: float, scale: float) -> Root:
    """F = diag(location, scale) / scale^2, for symmetric families of location and scale."""

    def root(p: Parameters, t: Parameters) -> Array:
        return _stacked(
            math.sqrt(location) * t["loc"] / p["scale"],
            math.sqrt(scale) * t["scale"] / p["scale"],
        )

    return root


register_output_fisher(dist.Normal, dist.LogNormal)(_location_scale(1.0, 2.0))
register_output_fisher(dist.Laplace)(_location_scale(1.0, 1.0))
register_output_fisher(dist.Cauchy)(_location_scale(0.5, 0.5))
register_output_fisher(dist.Logistic)(_location_scale(1.0 / 3.0, (3.0 + math.pi**2) / 9.0))
register_output_fisher(dist.Gumbel)(
    _by_matrix(
        ["loc", "scale"],
        lambda p: [
            [p["scale"] ** -2, (EULER - 1.0) * p["scale"] ** -2],
            [
                (EULER - 1.0) * p["scale"] ** -2,
                (math.pi**2 / 6.0 + (1.0 - EULER) ** 2) * p["scale"] ** -2,
            ],
        ],
    )
)


@register_output_fisher(dist.HalfNormal)
def _half_normal(p: Parameters, t: Parameters) -> Array:
    return (math.sqrt(2.0) * t["scale"] / p["scale"])[..., None]


@register_output_fisher(dist.HalfCauchy)
def _half_cauchy(p: Parameters, t: Parameters) -> Array:
    return (math.sqrt(0.5) * t["scale"] / p["scale"])[..., None]


def _student_t_matrix(p: Parameters) -> list[list[Array]]:
    df, scale = p["df"], p["scale"]
    own = 0.25 * (trigamma(df / 2) - trigamma((df + 1) / 2)) - (df + 5) / (
        2 * df * (df + 1) * (df + 3)
    )
    cross = -2.0 / (scale * (df + 1) * (df + 3))
    return [[2 * df / ((df + 3) * scale**2), cross], [cross, own]]


_student_t_rest = _by_matrix(["scale", "df"], _student_t_matrix)


@register_output_fisher(dist.StudentT)
def _student_t(p: Parameters, t: Parameters) -> Array:
    """Lange, Little and Taylor 1989, appendix B."""
    location = jnp.sqrt((p["df"] + 1) / (p["df"] + 3)) * t["loc"] / p["scale"]
    return jnp.concatenate([location[..., None], _student_t_rest(p, t)], -1)


@register_output_fisher(dist.MultivariateNormal)
def _multivariate_normal(p: Parameters, t: Parameters) -> Array:
    """Location: L^-1 dloc. Scale: (A + A^T) / sqrt(2) with A = L^-1 dL."""
    factor = p["scale_tril"]

    def whitened(rows: Array) -> Array:
        return jax.scipy.linalg.solve_triangular(factor, rows, lower=True)

    location = whitened(t["loc"][..., None])[..., 0]
    # Entries above the diagonal are no parameters.
    change = whitened(jnp.tril(t["scale_tril"]))
    change = (change + jnp.swapaxes(change, -1, -2)) / math.sqrt(2.0)
    return jnp.concatenate([location, change.reshape(*location.shape[:-1], -1)], -1)


# -- counts and labels ----------------------------------------------------------------------------


def _logits_variance(logits: Array) -> Array:
    chance = jax.nn.sigmoid(logits)
    return chance * (1 - chance)


@register_output_fisher(dist.BernoulliLogits)
def _bernoulli_logits(p: Parameters, t: Parameters) -> Array:
    return (jnp.sqrt(_logits_variance(p["logits"])) * t["logits"])[..., None]


@register_output_fisher(dist.BernoulliProbs)
def _bernoulli_probs(p: Parameters, t: Parameters) -> Array:
    return (t["probs"] / jnp.sqrt(p["probs"] * (1 - p["probs"])))[..., None]


@register_output_fisher(dist.BinomialLogits)
def _binomial_logits(p: Parameters, t: Parameters) -> Array:
    variance = p["total_count"] * _logits_variance(p["logits"])
    return (jnp.sqrt(variance) * t["logits"])[..., None]


@register_output_fisher(dist.BinomialProbs)
def _binomial_probs(p: Parameters, t: Parameters) -> Array:
    variance = p["probs"] * (1 - p["probs"])
    return (jnp.sqrt(p["total_count"] / variance) * t["probs"])[..., None]


@register_output_fisher(dist.GeometricLogits)
def _geometric_logits(p: Parameters, t: Parameters) -> Array:
    return (jnp.sqrt(jax.nn.sigmoid(-p["logits"])) * t["logits"])[..., None]


@register_output_fisher(dist.GeometricProbs)
def _geometric_probs(p: Parameters, t: Parameters) -> Array:
    return (t["probs"] / (p["probs"] * jnp.sqrt(1 - p["probs"])))[..., None]


@register_output_fisher(dist.CategoricalLogits)
def _categorical_logits(p: Parameters, t: Parameters) -> Array:
    """F = diag(p) - p p^T."""
    chances = jax.nn.softmax(p["logits"], axis=-1)
    return jnp.sqrt(chances) * (t["logits"] - (chances * t["logits"]).sum(-1, keepdims=True))


@register_output_fisher(dist.CategoricalProbs)
def _categorical_probs(p: Parameters, t: Parameters) -> Array:
    """F = diag(1 / p) for changes that keep the sum; a change of the sum alone changes nothing."""
    chances = p["probs"] / p["probs"].sum(-1, keepdims=True)
    change = t["probs"] / p["probs"].sum(-1, keepdims=True)
    roots = jnp.sqrt(chances)
    # A class of chance 0 is never seen; its own change would be divided by 0.
    safe = jnp.where(chances > 0, roots, 1.0)
    return jnp.where(chances > 0, change / safe, 0.0) - roots * change.sum(-1, keepdims=True)


@register_output_fisher(dist.MultinomialLogits)
def _multinomial_logits(p: Parameters, t: Parameters) -> Array:
    return jnp.sqrt(p["total_count"])[..., None] * _categorical_logits(p, t)


@register_output_fisher(dist.MultinomialProbs)
def _multinomial_probs(p: Parameters, t: Parameters) -> Array:
    return jnp.sqrt(p["total_count"])[..., None] * _categorical_probs(p, t)


@register_output_fisher(dist.OrderedLogistic)
def _ordered_logistic(p: Parameters, t: Parameters) -> Array:
    """Changes of the classes' chances over the roots of these."""

    def differences(below: Array, last: float) -> Array:
        ends = jnp.zeros_like(below[..., :1])
        return jnp.diff(jnp.concatenate([ends, below, ends + last], -1), axis=-1)

    below = jax.nn.sigmoid(p["cutpoints"] - p["predictor"][..., None])
    moved = below * (1 - below) * (t["cutpoints"] - t["predictor"][..., None])
    chances = jnp.maximum(differences(below, 1.0), jnp.finfo(below.dtype).tiny)
    return differences(moved, 0.0) / jnp.sqrt(chances)


@register_output_fisher(dist.Poisson)
def _poisson(p: Parameters, t: Parameters) -> Array:
    return (t["rate"] / jnp.sqrt(p["rate"]))[..., None]


def _negative_binomial(mean: Array, size: Array, mean_change: Array, size_change: Array) -> Array:
    """Root in the mean mu and the number r of failures, which are orthogonal.

    F_mu = r / (mu (mu + r)), and F_r = trigamma(r) - E trigamma(r + Y) - mu / (r (r + mu)). With
    trigamma and the differences of reciprocals as Laplace transforms this is one integral over
    t > 0, of a smooth function that is bounded by exp(-r t); in log t the trapezoidal rule takes
    it to rounding.
    """
    ends = jnp.log(1e-7 / (mean + size)), jnp.log(60.0 / size)
    nodes = jnp.linspace(0.0, 1.0, 257)
    width = (ends[1] - ends[0])[..., None]
    t = jnp.exp(ends[0][..., None] + width * nodes)
    r, mu = size[..., None], mean[..., None]
    gone = -jnp.expm1(-t)
    seen = -jnp.expm1(-r * jnp.log1p(mu / r * gone))
    integrand = jnp.exp(-r * t) * (t / gone * seen + jnp.expm1(-mu * t)) * t * width
    own = jnp.trapezoid(integrand, dx=1.0 / 256.0, axis=-1)
    return _stacked(
        jnp.sqrt(size / (mean * (mean + size))) * mean_change,
        jnp.sqrt(jnp.maximum(own, 0.0)) * size_change,
    )


@register_output_fisher(dist.NegativeBinomial2)
def _negative_binomial_2(p: Parameters, t: Parameters) -> Array:
    return _negative_binomial(p["mean"], p["concentration"], t["mean"], t["concentration"])


@register_output_fisher(dist.GammaPoisson)
def _gamma_poisson(p: Parameters, t: Parameters) -> Array:
    mean = p["concentration"] / p["rate"]
    change = (t["concentration"] - mean * t["rate"]) / p["rate"]
    return _negative_binomial(mean, p["concentration"], change, t["concentration"])


def _odds(count: Array, count_change: Array, odds: Array, odds_change: Array) -> Array:
    return _negative_binomial(
        count * odds, count, count_change * odds + count * odds_change, count_change
    )


@register_output_fisher(dist.NegativeBinomialProbs)
def _negative_binomial_probs(p: Parameters, t: Parameters) -> Array:
    left = 1 - p["probs"]
    return _odds(p["total_count"], t["total_count"], p["probs"] / left, t["probs"] / left**2)


@register_output_fisher(dist.NegativeBinomialLogits)
def _negative_binomial_logits(p: Parameters, t: Parameters) -> Array:
    odds = jnp.exp(p["logits"])
    return _odds(p["total_count"], t["total_count"], odds, odds * t["logits"])


def _zero_inflated(output: Output, tangents: Parameters) -> Array:
    """Root for a zero with the gate's chance q, and else a draw of the base distribution.

    With p0 and s0 the base's probability and score of zero, F is that of the event "zero" plus
    that of the rest: P0 u u^T + [[(1 - p0) / (1 - q), p0 s0^T], [p0 s0, (1 - q) (F - p0 s0 s0^T)]]
    with P0 = q + (1 - q) p0 and u = [1 - p0, (1 - q) p0 s0] / P0.
    """
    base = output.base
    assert base is not None
    inside = {
        name.removeprefix(BASE): value
        for name, value in output.parameters.items()
        if name.startswith(BASE)
    }
    root = root_for(base)
    if root is None or any(value.shape != output.batch for value in inside.values()):
        raise ArgumentError(
            f"Site '{output.name}': expected a zero-inflated distribution on a base with scalar "
            f"parameters and known Fisher information, found {base.__name__}. Give that of "
            f"{output.distribution.__name__} with register_output_fisher."
        )
    names = [name for name in sorted(inside) if jnp.issubdtype(inside[name].dtype, jnp.floating)]
    moving = {name: inside[name] for name in names}

    def log_zero(parameters: Parameters) -> Array:
        return base(**{**inside, **parameters}).log_prob(jnp.zeros(output.batch))

    if "gate" in output.parameters:
        q, q_change = output.parameters["gate"], tangents["gate"]
    else:
        logits = output.parameters["gate_logits"]
        q = jax.nn.sigmoid(logits)
        q_change = q * (1 - q) * tangents["gate_logits"]
    p0 = jnp.exp(log_zero(moving))
    slopes = jax.grad(lambda parameters: log_zero(parameters).sum())(moving)
    s0 = jnp.stack([slopes[name] for name in names], -1)
    zeros = {name: jnp.zeros_like(value) for name, value in inside.items()}
    basis = [root(inside, {**zeros, name: zeros[name] + 1.0}) for name in names]
    columns = jnp.stack(basis, -1)
    own = jnp.einsum("...ri,...rj->...ij", columns, columns)

    weighted = p0[..., None] * s0
    corner = ((1 - p0) / (1 - q))[..., None]
    rest = (1 - q)[..., None, None] * (own - weighted[..., None] * s0[..., None, :])
    top = jnp.concatenate([corner, weighted], -1)[..., None, :]
    bottom = jnp.concatenate([weighted[..., None], rest], -1)
    outside = jnp.concatenate([top, bottom], -2)
    zero = q + (1 - q) * p0
    u = jnp.concatenate([(1 - p0)[..., None], ((1 - q) * p0)[..., None] * s0], -1) / zero[..., None]
    fisher = outside + zero[..., None, None] * u[..., None] * u[..., None, :]
    change = _stacked(q_change, *(tangents[f"{BASE}{name}"] for name in names))
    # Where a gate or a base is certain the matrix is singular, which a Cholesky factor cannot be.
    values, vectors = jnp.linalg.eigh(fisher)
    turned = jnp.einsum("...ij,...i->...j", vectors, change)
    return jnp.sqrt(jnp.maximum(values, 0.0)) * turned


# -- positive values and proportions --------------------------------------------------------------


@register_output_fisher(dist.Exponential)
def _exponential(p: Parameters, t: Parameters) -> Array:
    return (t["rate"] / p["rate"])[..., None]


register_output_fisher(dist.Gamma, dist.InverseGamma)(
    _by_matrix(
        ["rate", "concentration"],
        lambda p: [
            [p["concentration"] / p["rate"] ** 2, -1.0 / p["rate"]],
            [-1.0 / p["rate"], trigamma(p["concentration"])],
        ],
    )
)
register_output_fisher(dist.Weibull)(
    _by_matrix(
        ["scale", "concentration"],
        lambda p: [
            [(p["concentration"] / p["scale"]) ** 2, -(1.0 - EULER) / p["scale"]],
            [
                -(1.0 - EULER) / p["scale"],
                (math.pi**2 / 6.0 + (1.0 - EULER) ** 2) / p["concentration"] ** 2,
            ],
        ],
    )
)


def _beta_matrix(p: Parameters) -> list[list[Array]]:
    one, zero = p["concentration1"], p["concentration0"]
    both = trigamma(one + zero)
    return [[trigamma(one) - both, -both], [-both, trigamma(zero) - both]]


register_output_fisher(dist.Beta)(_by_matrix(["concentration1", "concentration0"], _beta_matrix))


@register_output_fisher(dist.Dirichlet)
def _dirichlet(p: Parameters, t: Parameters) -> Array:
    """F = diag(trigamma(a)) - trigamma(sum a)."""
    a = p["concentration"]
    fisher = jnp.eye(a.shape[-1]) * trigamma(a)[..., None]
    fisher = fisher - trigamma(a.sum(-1))[..., None, None]
    return jnp.einsum("...ij,...i->...j", jnp.linalg.cholesky(fisher), t["concentration"])


__all__ = ["Parameters", "Root", "fisher_root", "register_output_fisher", "root_for"]

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext.density.outputs import BASE, Output

Parameters = Mapping[str, Tensor]
#: Maps parameters and their changes, each of shape batch + own, to roots (batch + (R,)).
Root = Callable[[Parameters, Parameters], Tensor]

_ROOTS: dict[type, Root] = {}
EULER = 0.5772156649015329


def register_output_fisher(*distributions: type) -> Callable[[Root], Root]:
    """Decorator that gives distributions the root of their Fisher information.

    Parameters
    ----------
    *distributions : type
        Classes of Pyro distributions, which share the root. A subclass does not inherit it,
        since it may have other parameters.

    Returns
    -------
    decorator
        Takes ``root(parameters, tangents)``, linear in the tangents: both map names of the
        distribution's arguments to tensors of shape batch + own, and the result has shape
        batch + (R,), with the squared length dtheta^T F dtheta.

    Raises
    ------
    ArgumentError
        A class is no Pyro distribution.

    Examples
    --------
    >>> @register_output_fisher(dist.Exponential)
    ... def exponential(parameters, tangents):
    ...     return (tangents["rate"] / parameters["rate"])[..., None]
    """
    for each in distributions:
        if not (isinstance(each, type) and issubclass(each, dist.Distribution)):
            raise ArgumentError(
                f"Expected classes of Pyro distributions, found {each!r}. Register the class, "
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


@contextmanager
def same_draws(seed: int) -> Iterator[None]:
    """Context in which torch's global generator starts at ``seed``, and is put back after."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def fisher_root(output: Output, tangents: Parameters, values: Sequence[Tensor] = ()) -> Tensor:
    """Root of an observed site's Fisher information, shape batch + (R,).

    Parameters
    ----------
    output : Output
        The site at the point where F is taken.
    tangents : dict of str to tensor
        Changes of ``output.parameters``.
    values : sequence of tensors
        For distributions without a registered root: values by :func:`drawn_values`.
    """
    root = root_for(output.distribution)
    if root is not None:
        return root(output.parameters, tangents)
    if output.base is not None:
        return _zero_inflated(output, tangents)
    return _monte_carlo_root(output, tangents, values)


def drawn_values(output: Output, draws: int = 16) -> list[Tensor]:
    """Values of a site drawn from its distribution, by torch's global generator.

    They cannot be drawn inside ``torch.func.vmap``.

    Raises
    ------
    ArgumentError
        The distribution cannot be built from its parameters, or not be drawn from.
    """
    try:
        for name, value in output.parameters.items():
            if value.shape[: len(output.batch)] != output.batch:
                raise ValueError(f"{name} of shape {tuple(value.shape)}, not one per element")
        built = output.built({})
        if tuple(built.event_shape) != output.event_shape:
            raise ValueError(f"events of shape {built.event_shape}, not {output.event_shape}")
        return [built.sample().detach() for _ in range(draws)]
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ArgumentError(
            f"Site '{output.name}': expected a distribution whose Fisher information is known, or "
            f"one that can be built from its arguments {sorted(output.parameters)} and drawn from, "
            f"found {output.distribution.__name__} ({error}). Give its Fisher information with "
            "register_output_fisher."
        ) from error


def _monte_carlo_root(output: Output, tangents: Parameters, values: Sequence[Tensor]) -> Tensor:
    """1/S sum of score score^T at S values drawn from the distribution; positive semidefinite."""
    moving = {name: value for name, value in output.parameters.items() if value.is_floating_point()}

    def root(value: Tensor) -> Tensor:
        # The elements are independent: the gradient of the sum is that of each.
        scores = torch.func.grad(lambda parameters: output.built(parameters).log_prob(value).sum())(
            moving
        )
        parts = [
            (scores[name] * tangents[name]).reshape((*output.batch, -1)).sum(-1) for name in moving
        ]
        return torch.stack(parts).sum(0)

    return torch.stack([root(value) for value in values], -1) / math.sqrt(len(values))


def trigamma(x: Tensor) -> Tensor:
    """Derivative of the digamma function."""
    return torch.special.polygamma(1, x)


def _stacked(*parts: Tensor) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*parts), dim=-1)


def _by_matrix(
    names: Sequence[str], matrix: Callable[[Parameters], Sequence[Sequence[Tensor]]]
) -> Root:
    """Root of a Fisher matrix in scalar parameters: the transposed Cholesky factor."""

    def root(parameters: Parameters, tangents: Parameters) -> Tensor:
        rows = matrix(parameters)
        shape = parameters[names[0]].shape
        fisher = torch.stack([torch.stack([x.expand(shape) for x in row], -1) for row in rows], -2)
        change = _stacked(*(tangents[name] for name in names))
        factor = torch.linalg.cholesky(fisher)
        return torch.einsum("...ij,...i->...j", factor, change)

    return root


# -- location and scale ---------------------------------------------------------------------------


def _location_scale(location: float, scale: float) -> Root:
    """F = diag(location, scale) / scale^2, for symmetric families of location and scale."""

    def root(p: Parameters, t: Parameters) -> Tensor:
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
def _half_normal(p: Parameters, t: Parameters) -> Tensor:
    return (math.sqrt(2.0) * t["scale"] / p["scale"])[..., None]


@register_output_fisher(dist.HalfCauchy)
def _half_cauchy(p: Parameters, t: Parameters) -> Tensor:
    return (math.sqrt(0.5) * t["scale"] / p["scale"])[..., None]


def _student_t_matrix(p: Parameters) -> list[list[Tensor]]:
    df, scale = p["df"], p["scale"]
    own = 0.25 * (trigamma(df / 2) - trigamma((df + 1) / 2)) - (df + 5) / (
        2 * df * (df + 1) * (df + 3)
    )
    cross = -2.0 / (scale * (df + 1) * (df + 3))
    return [[2 * df / ((df + 3) * scale**2), cross], [cross, own]]


_student_t_rest = _by_matrix(["scale", "df"], _student_t_matrix)


@register_output_fisher(dist.StudentT)
def _student_t(p: Parameters, t: Parameters) -> Tensor:
    """Lange, Little and Taylor 1989, appendix B."""
    location = torch.sqrt((p["df"] + 1) / (p["df"] + 3)) * t["loc"] / p["scale"]
    return torch.cat([location[..., None], _student_t_rest(p, t)], -1)


@register_output_fisher(dist.MultivariateNormal)
def _multivariate_normal(p: Parameters, t: Parameters) -> Tensor:
    """Location: L^-1 dloc. Scale: (A + A^T) / sqrt(2) with A = L^-1 dL, for dL as for dSigma."""
    # The model gave one of three forms; with A = L^-1 dSigma L^-T, F is |A|^2 / 2 in all of them.
    if "scale_tril" in p:
        factor = p["scale_tril"]
        # Entries above the diagonal are no parameters.
        change = torch.linalg.solve_triangular(factor, t["scale_tril"].tril(), upper=False)
        change = (change + change.mT) / math.sqrt(2.0)
    else:
        name = "covariance_matrix" if "covariance_matrix" in p else "precision_matrix"
        factor = torch.linalg.cholesky(p[name])
        half = torch.linalg.solve_triangular(factor, (t[name] + t[name].mT) / 2.0, upper=False)
        change = torch.linalg.solve_triangular(factor, half.mT, upper=False) / math.sqrt(2.0)
    if "precision_matrix" in p:
        location = (factor.mT @ t["loc"][..., None])[..., 0]
    else:
        location = torch.linalg.solve_triangular(factor, t["loc"][..., None], upper=False)[..., 0]
    return torch.cat([location, change.reshape(*location.shape[:-1], -1)], -1)


# -- counts and labels ----------------------------------------------------------------------------


def _logits_variance(logits: Tensor) -> Tensor:
    chance = torch.sigmoid(logits)
    return chance * (1 - chance)


@register_output_fisher(dist.Bernoulli)
def _bernoulli(p: Parameters, t: Parameters) -> Tensor:
    if "logits" in p:
        return (torch.sqrt(_logits_variance(p["logits"])) * t["logits"])[..., None]
    return (t["probs"] / torch.sqrt(p["probs"] * (1 - p["probs"])))[..., None]


@register_output_fisher(dist.Binomial)
def _binomial(p: Parameters, t: Parameters) -> Tensor:
    return torch.sqrt(p["total_count"])[..., None] * _bernoulli(p, t)


@register_output_fisher(dist.Geometric)
def _geometric(p: Parameters, t: Parameters) -> Tensor:
    if "logits" in p:
        return (torch.sqrt(torch.sigmoid(-p["logits"])) * t["logits"])[..., None]
    return (t["probs"] / (p["probs"] * torch.sqrt(1 - p["probs"])))[..., None]


@register_output_fisher(dist.Categorical, dist.OneHotCategorical)
def _categorical(p: Parameters, t: Parameters) -> Tensor:
    """F = diag(p) - p p^T in logits.

    In probabilities F = diag(1 / p) for changes that keep the sum; a change of the sum alone
    changes nothing.
    """
    if "logits" in p:
        chances = torch.softmax(p["logits"], dim=-1)
        mean = (chances * t["logits"]).sum(-1, keepdim=True)
        return torch.sqrt(chances) * (t["logits"] - mean)
    total = p["probs"].sum(-1, keepdim=True)
    chances, change = p["probs"] / total, t["probs"] / total
    roots = torch.sqrt(chances)
    # A class of chance 0 is never seen; its own change would be divided by 0.
    safe = torch.where(chances > 0, roots, 1.0)
    own = torch.where(chances > 0, change / safe, 0.0)
    return own - roots * change.sum(-1, keepdim=True)


@register_output_fisher(dist.Multinomial)
def _multinomial(p: Parameters, t: Parameters) -> Tensor:
    return torch.sqrt(p["total_count"])[..., None] * _categorical(p, t)


@register_output_fisher(dist.OrderedLogistic)
def _ordered_logistic(p: Parameters, t: Parameters) -> Tensor:
    """Changes of the classes' chances over the roots of these."""

    def differences(below: Tensor, last: float) -> Tensor:
        ends = torch.zeros_like(below[..., :1])
        return torch.diff(torch.cat([ends, below, ends + last], -1), dim=-1)

    below = torch.sigmoid(p["cutpoints"] - p["predictor"][..., None])
    moved = below * (1 - below) * (t["cutpoints"] - t["predictor"][..., None])
    chances = differences(below, 1.0).clamp_min(torch.finfo(below.dtype).tiny)
    return differences(moved, 0.0) / torch.sqrt(chances)


@register_output_fisher(dist.Poisson)
def _poisson(p: Parameters, t: Parameters) -> Tensor:
    return (t["rate"] / torch.sqrt(p["rate"]))[..., None]


def _negative_binomial(
    mean: Tensor, size: Tensor, mean_change: Tensor, size_change: Tensor
) -> Tensor:
    """Root in the mean mu and the number r of failures, which are orthogonal.

    F_mu = r / (mu (mu + r)), and F_r = trigamma(r) - E trigamma(r + Y) - mu / (r (r + mu)). With
    trigamma and the differences of reciprocals as Laplace transforms this is one integral over
    t > 0, of a smooth function that is bounded by exp(-r t); in log t the trapezoidal rule takes
    it to rounding.
    """
    ends = torch.log(1e-7 / (mean + size)), torch.log(60.0 / size)
    nodes = torch.linspace(0.0, 1.0, 257, dtype=mean.dtype)
    width = (ends[1] - ends[0])[..., None]
    t = torch.exp(ends[0][..., None] + width * nodes)
    r, mu = size[..., None], mean[..., None]
    gone = -torch.expm1(-t)
    seen = -torch.expm1(-r * torch.log1p(mu / r * gone))
    integrand = torch.exp(-r * t) * (t / gone * seen + torch.expm1(-mu * t)) * t * width
    own = torch.trapezoid(integrand, dx=1.0 / 256.0, dim=-1)
    return _stacked(
        torch.sqrt(size / (mean * (mean + size))) * mean_change,
        torch.sqrt(own.clamp_min(0.0)) * size_change,
    )


@register_output_fisher(dist.GammaPoisson)
def _gamma_poisson(p: Parameters, t: Parameters) -> Tensor:
    mean = p["concentration"] / p["rate"]
    change = (t["concentration"] - mean * t["rate"]) / p["rate"]
    return _negative_binomial(mean, p["concentration"], change, t["concentration"])


def _odds(count: Tensor, count_change: Tensor, odds: Tensor, odds_change: Tensor) -> Tensor:
    return _negative_binomial(
        count * odds, count, count_change * odds + count * odds_change, count_change
    )


@register_output_fisher(dist.NegativeBinomial)
def _negative_binomial_by_odds(p: Parameters, t: Parameters) -> Tensor:
    if "logits" in p:
        odds = torch.exp(p["logits"])
        return _odds(p["total_count"], t["total_count"], odds, odds * t["logits"])
    left = 1 - p["probs"]
    return _odds(p["total_count"], t["total_count"], p["probs"] / left, t["probs"] / left**2)


def _zero_inflated(output: Output, tangents: Parameters) -> Tensor:
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
    # The number of a Binomial's trials is kept as a tensor, but is no parameter.
    fixed = {"total_count"} if base is dist.Binomial else set()
    names = [
        name for name in sorted(inside) if inside[name].is_floating_point() and name not in fixed
    ]
    moving = {name: inside[name] for name in names}

    def log_zero(parameters: Parameters) -> Tensor:
        return base(**{**inside, **parameters}).log_prob(torch.zeros(output.batch))

    if "gate" in output.parameters:
        q, q_change = output.parameters["gate"], tangents["gate"]
    else:
        logits = output.parameters["gate_logits"]
        q = torch.sigmoid(logits)
        q_change = q * (1 - q) * tangents["gate_logits"]
    p0 = torch.exp(log_zero(moving))
    slopes = torch.func.grad(lambda parameters: log_zero(parameters).sum())(moving)
    s0 = torch.stack([slopes[name] for name in names], -1)
    zeros = {name: torch.zeros_like(value) for name, value in inside.items()}
    basis = [root(inside, {**zeros, name: zeros[name] + 1.0}) for name in names]
    columns = torch.stack(basis, -1)
    own = torch.einsum("...ri,...rj->...ij", columns, columns)

    weighted = p0[..., None] * s0
    corner = ((1 - p0) / (1 - q))[..., None]
    rest = (1 - q)[..., None, None] * (own - weighted[..., None] * s0[..., None, :])
    top = torch.cat([corner, weighted], -1)[..., None, :]
    bottom = torch.cat([weighted[..., None], rest], -1)
    outside = torch.cat([top, bottom], -2)
    zero = q + (1 - q) * p0
    u = torch.cat([(1 - p0)[..., None], ((1 - q) * p0)[..., None] * s0], -1) / zero[..., None]
    fisher = outside + zero[..., None, None] * u[..., None] * u[..., None, :]
    change = _stacked(q_change, *(tangents[f"{BASE}{name}"] for name in names))
    # Where a gate or a base is certain the matrix is singular, which a Cholesky factor cannot be.
    values, vectors = torch.linalg.eigh(fisher)
    turned = torch.einsum("...ij,...i->...j", vectors, change)
    return torch.sqrt(values.clamp_min(0.0)) * turned


# -- positive values and proportions --------------------------------------------------------------


@register_output_fisher(dist.Exponential)
def _exponential(p: Parameters, t: Parameters) -> Tensor:
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


@register_output_fisher(dist.Dirichlet, dist.Beta)
def _dirichlet(p: Parameters, t: Parameters) -> Tensor:
    """F = diag(trigamma(a)) - trigamma(sum a). Beta is kept as a Dirichlet of two."""
    a = p["concentration"]
    fisher = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device) * trigamma(a)[..., None]
    fisher = fisher - trigamma(a.sum(-1))[..., None, None]
    return torch.einsum("...ij,...i->...j", torch.linalg.cholesky(fisher), t["concentration"])


__all__ = [
    "Parameters",
    "Root",
    "drawn_values",
    "fisher_root",
    "needs_draws",
    "register_output_fisher",
    "root_for",
]

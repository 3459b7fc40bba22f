"""``random_module``: a module of flax or equinox whose parameters are latent sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from numpyro_ext.networks.modules import take_apart
from ppl_ext.documented import documented
from ppl_ext.networks.parameters import Parameter
from ppl_ext.networks.random_module import DOCUMENTATION, draw_parameters, expandable


@documented(
    DOCUMENTATION,
    example="net.layer1.kernel",
    module="flax.nnx.Module, flax.linen.Module or equinox.Module",
    evaluation="``module.eval()`` of nnx, ``equinox.nn.inference_mode``",
    host="NumPyro",
    initial="""
        input_shape : tuple of int, optional
            Of linen, whose modules have no parameters of their own: the shape of an input, rows
            included, by which they are made.
        variables : mapping, optional
            Of linen: what ``module.init`` returns, where its values are needed, by a prior around
            them or by layers without prior.
        """,
)
def random_module(
    name: str,
    module: Any,
    prior: Any,
    *,
    input_shape: tuple[int, ...] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A module of flax (nnx, linen) or equinox as a program: its parameters are latent sites.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> from flax import nnx
    >>> network = nnx.Linear(2, 1, use_bias=False, rngs=nnx.Rngs(0))
    >>> def model(x, y=None):
    ...     net = nx.random_module("net", network, dist.Normal(0.0, 1.0))
    ...     with numpyro.plate("rows", len(x)):
    ...         numpyro.sample("y", dist.Normal(net(x)[:, 0], 0.1), obs=y)
    >>> x = jnp.tile(jnp.eye(2), (10, 1))
    >>> engine = nx.GSM(model)
    >>> result = engine.run(jax.random.key(0), 50, x, x @ jnp.array([1.0, -1.0]))
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 100)
    >>> print(draws["net.kernel"].mean(0).round().flatten())
    [ 1. -1.]
    """
    parameters, with_values = take_apart(module, input_shape, variables)
    return with_values(draw_parameters(name, parameters, prior, Host(), _is_distribution))


def _is_distribution(value: Any) -> bool:
    return isinstance(value, dist.Distribution)


class Host:
    """See :class:`ppl_ext.networks.priors.Host`."""

    dist = dist

    def sample(self, name: str, distribution: Any, shape: tuple[int, ...]) -> Array:
        """See :class:`ppl_ext.networks.priors.Host`."""
        expanded = distribution.expand(expandable(distribution, shape, name))
        return numpyro.sample(name, expanded.to_event(len(expanded.batch_shape)))

    def deterministic(self, name: str, value: Array) -> Array:
        """See :class:`ppl_ext.networks.priors.Host`."""
        return numpyro.deterministic(name, value)

    def filled(self, parameter: Parameter, number: Any) -> Array:
        """See :class:`ppl_ext.networks.priors.Host`."""
        return jnp.asarray(number, parameter.value.dtype)

    def array(self, parameter: Parameter, values: Any) -> Array:
        """See :class:`ppl_ext.networks.priors.Host`."""
        return jnp.asarray(values, parameter.value.dtype)

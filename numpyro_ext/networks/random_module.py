"""``random_module``: a module of flax or equinox whose parameters are latent sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from numpyro_ext.networks.modules import take_apart
from ppl_ext.networks.parameters import Parameter
from ppl_ext.networks.random_module import draw_parameters, expandable


def random_module(
    name: str,
    module: Any,
    prior: Any,
    *,
    input_shape: tuple[int, ...] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A module of flax (nnx, linen) or equinox as a program: its parameters are latent sites.

    Call it inside of the model and outside of every plate. It draws the parameters and returns the
    module with these, to be called on the rows. The module itself stays as it is.

    Parameters
    ----------
    name : str
        Sites are named by it and by the parameter's path in the module, with dots:
        ``net.layer1.kernel``.
    module : flax.nnx.Module, flax.linen.Module or equinox.Module
        It must treat every row by itself and draw nothing at random: batch normalisation and
        dropout have to be in evaluation mode (``module.eval()`` of nnx,
        ``equinox.nn.inference_mode``).
    prior
        Of the parameters, one of

        - a distribution of NumPyro, for each entry of all parameters;
        - a ready one of ``priors``, such as ``priors.ScaledNormal()``, for all;
        - a function of a parameter's name, without that of the random module, and its shape that
          returns any of these, or None;
        - a dictionary from names, or patterns such as "head.*" and "*.bias", to any of these or
          None. A name itself comes before patterns, the first that fits before others.

        Parameters whose prior is None are constants with the module's values.
    input_shape : tuple of int, optional
        Of linen, whose modules have no parameters of their own: the shape of an input, rows
        included, by which they are made.
    variables : mapping, optional
        Of linen: what ``module.init`` returns, where its values are needed, by a prior around
        them or by layers without prior.

    Returns
    -------
    callable
        The module with the drawn parameters.

    Raises
    ------
    ArgumentError
        The name or the prior is none, a parameter has no prior, a pattern fits no parameter, or
        the call stands inside of a plate.
    ModelCheckError
        A layer uses the statistics of the batch, or draws at random.

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

"""``random_module``: a torch module whose parameters are latent sites."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_ext.errors import HeldParameterWarning
from ppl_ext.networks.parameters import Parameter, names_of
from ppl_ext.networks.random_module import draw_parameters, expandable
from pyro_ext.networks.modules import take_apart


def random_module(name: str, module: torch.nn.Module, prior: Any) -> Callable[..., Any]:
    """A torch module as a program: its parameters are latent sites.

    Call it inside of the model and outside of every plate. It draws the parameters and returns the
    module with these, to be called on the rows. The module itself stays as it is.

    Parameters
    ----------
    name : str
        Sites are named by it and by the parameter's path in the module, with dots:
        ``net.layer1.weight``.
    module : torch.nn.Module
        It must treat every row by itself and draw nothing at random: batch normalisation and
        dropout have to be in evaluation mode (``module.eval()``).
    prior
        Of the parameters, one of

        - a distribution of Pyro, for each entry of all parameters;
        - a ready one of ``priors``, such as ``priors.ScaledNormal()``, for all;
        - a function of a parameter's name, without that of the random module, and its shape that
          returns any of these, or None;
        - a dictionary from names, or patterns such as "head.*" and "*.bias", to any of these or
          None. A name itself comes before patterns, the first that fits before others.

        Parameters whose prior is None are constants with the module's values.

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
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> network = torch.nn.Linear(2, 1, bias=False)
    >>> def model(x, y=None):
    ...     net = px.random_module("net", network, dist.Normal(0.0, 1.0))
    ...     with pyro.plate("rows", len(x)):
    ...         pyro.sample("y", dist.Normal(net(x)[:, 0], 0.1), obs=y)
    >>> x = torch.eye(2).repeat(10, 1)
    >>> engine = px.GSM(model, seed=0)
    >>> result = engine.run(50, x, x @ torch.tensor([1.0, -1.0]))
    >>> print(engine.get_samples(100)["net.weight"].mean(0).round().tolist())
    [[1.0, -1.0]]
    """
    parameters, with_values = take_apart(module)
    values = draw_parameters(name, parameters, prior, Host(), _is_distribution)
    _warn_of_frozen(name, module, values)
    return with_values(values)


#: Modules of which it was said that they have frozen parameters: a model is run many times.
_told: WeakSet[torch.nn.Module] = WeakSet()


def _warn_of_frozen(name: str, module: torch.nn.Module, values: Mapping[str, Any]) -> None:
    """Say that parameters which torch would not train have priors."""
    frozen = {path: each for path, each in module.named_parameters() if not each.requires_grad}
    drawn = [path for path in frozen if path in values]
    if drawn and module not in _told:
        _told.add(module)
        warnings.warn(
            f"Parameters of '{name}' that have requires_grad=False get priors, and are inferred, "
            f"as all others: {names_of(drawn)}. To hold them at their values, give "
            f"None as their prior: prior={{'{drawn[0]}': None, '*': ...}}.",
            HeldParameterWarning,
            stacklevel=3,
        )


def _is_distribution(value: Any) -> bool:
    # Those of Pyro are made by a metaclass of their own, and all derive from torch's.
    return isinstance(value, torch.distributions.Distribution)


class Host:
    """See :class:`ppl_ext.networks.priors.Host`."""

    dist = dist

    def sample(self, name: str, distribution: Any, shape: tuple[int, ...]) -> Tensor:
        """See :class:`ppl_ext.networks.priors.Host`."""
        expanded = distribution.expand(expandable(distribution, shape, name))
        # Without a number, to_event() would leave a site without dimensions as it is as well.
        return pyro.sample(name, expanded.to_event(len(expanded.batch_shape)))

    def deterministic(self, name: str, value: Tensor) -> Tensor:
        """See :class:`ppl_ext.networks.priors.Host`."""
        return pyro.deterministic(name, value, event_dim=value.dim())

    def filled(self, parameter: Parameter, number: Any) -> Tensor:
        """See :class:`ppl_ext.networks.priors.Host`."""
        return torch.as_tensor(number).to(parameter.value)

    def array(self, parameter: Parameter, values: Any) -> Tensor:
        """See :class:`ppl_ext.networks.priors.Host`."""
        return torch.as_tensor(values).to(parameter.value).detach()

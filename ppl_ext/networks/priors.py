"""Priors that are ready for the parameters of networks.

They go into ``random_module`` as the prior of all parameters, in a dictionary, or as what a
function of the name and the shape returns. Scales are those of weights that sum ``fan_in`` inputs,
so that the outputs of a layer keep their size whatever its width. What has no inputs, biases and
the scales of normalisation, has a Normal prior with the centre that a layer needs (0, and 1 for
scales of normalisation).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ppl_ext.errors import ArgumentError
from ppl_ext.networks.parameters import Parameter
from ppl_ext.options import check_number


class Host(Protocol):
    """What priors need of a host."""

    #: The host's distributions.
    dist: Any

    def sample(self, name: str, distribution: Any, shape: tuple[int, ...]) -> Any:
        """A sample site whose value has the given shape, all of it one event."""

    def deterministic(self, name: str, value: Any) -> Any:
        """A deterministic site."""

    def filled(self, parameter: Parameter, number: float) -> Any:
        """A number as an array () of the parameter's dtype, where the parameter is."""

    def array(self, parameter: Parameter, values: Any) -> Any:
        """Values of the parameter's shape as an array of its dtype, where the parameter is."""


class Prior(ABC):
    """A prior that may have latent sites of its own."""

    @abstractmethod
    def value(self, site: str, parameter: Parameter, host: Host) -> Any:
        """The parameter's value, drawn at the site's name and at names that start with it."""


@dataclass(frozen=True)
class ScaledNormal(Prior):
    """Normal with variance ``scale``² / fan-in.

    Parameters
    ----------
    scale : float
        1 keeps the size of linear layers' outputs; sqrt(2) that of layers with ReLU. Biases have
        this standard deviation itself.

    Notes
    -----
    One site: ``net.layer1.weight``.

    References
    ----------
    R. M. Neal, "Bayesian learning for neural networks", 1996,
    https://doi.org/10.1007/978-1-4612-0745-0.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("scale", self.scale, above=0)

    def value(self, site: str, parameter: Parameter, host: Host) -> Any:
        number = self.scale / math.sqrt(parameter.fan_in)
        location, scale = host.filled(parameter, parameter.centre), host.filled(parameter, number)
        return host.sample(site, host.dist.Normal(location, scale), parameter.shape)


@dataclass(frozen=True)
class ScaledStudentT(Prior):
    """Student's t, whose heavy tails let a few weights be large; scale ``scale`` / sqrt(fan-in).

    Parameters
    ----------
    df : float
        Degrees of freedom; the variance is finite above 2.
    scale : float
        As of ``ScaledNormal``.

    Notes
    -----
    One site: ``net.layer1.weight``.

    References
    ----------
    V. Fortuin et al., "Bayesian neural network priors revisited", 2022,
    https://arxiv.org/abs/2102.06571.
    """

    df: float = 3.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("df", self.df, above=0)
        check_number("scale", self.scale, above=0)

    def value(self, site: str, parameter: Parameter, host: Host) -> Any:
        number = self.scale / math.sqrt(parameter.fan_in)
        arguments = (self.df, parameter.centre, number)
        distribution = host.dist.StudentT(*(host.filled(parameter, each) for each in arguments))
        return host.sample(site, distribution, parameter.shape)


@dataclass(frozen=True, eq=False)
class Pretrained(Prior):
    """Normal around given weights, for fine-tuning with error bars.

    Parameters
    ----------
    scale : float
        Standard deviation of every entry.
    values : mapping of str to array, optional
        The weights by parameter name. Default: those of the module. Large ones are better passed
        through an argument of the model than closed over: they are no constants of the program
        then.

    Notes
    -----
    One site: ``net.layer1.weight``.
    """

    scale: float
    values: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_number("scale", self.scale, above=0)

    def value(self, site: str, parameter: Parameter, host: Host) -> Any:
        values = parameter.value
        if self.values is not None:
            if parameter.name not in self.values:
                raise ArgumentError(
                    f"Expected pre-trained values of parameter '{parameter.name}', found "
                    f"{sorted(self.values)[:10]}. Give all, or a prior for each by a dictionary."
                )
            values = self.values[parameter.name]
        if tuple(values.shape) != parameter.shape:
            raise ArgumentError(
                f"Expected pre-trained values of shape {parameter.shape} for parameter "
                f"'{parameter.name}', found {tuple(values.shape)}."
            )
        location = host.array(parameter, values)
        distribution = host.dist.Normal(location, host.filled(parameter, self.scale))
        return host.sample(site, distribution, parameter.shape)

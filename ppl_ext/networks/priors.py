"""Priors that are ready for the parameters of networks.

They go into ``random_module`` as the prior of all parameters, in a dictionary, or as what a
function of the name and the shape returns. Scales are divided by the root of a weight's ``fan_in``,
the number of inputs that its unit sums, so that the outputs of a layer keep their size whatever its
width. What has no inputs, biases and the scales of normalisation, has a prior without groups around
the centre that a layer needs (0, and 1 for scales of normalisation).

Priors with scales of their own are written non-centred: ``net.layer1.weight`` is a deterministic
site, the product of standard Normal ``net.layer1.weight.unscaled`` and of a scale for each group,
made of the sites ``.local`` and, for a horseshoe, ``.global`` and ``.slab``. Of a layer that is
sparse by inputs, an input that does not matter has small weights to all units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from ppl_ext.errors import ArgumentError
from ppl_ext.networks.parameters import Parameter
from ppl_ext.options import check_choice, check_count, check_number

#: Which weights of a layer share a scale: those from one input, those into one unit, or none.
Group = Literal["input", "unit", "weight"]


class Host(Protocol):
    """What priors need of a host."""

    #: The host's distributions.
    dist: Any

    def sample(self, name: str, distribution: Any, shape: tuple[int, ...]) -> Any:
        """A sample site whose value has the given shape, all of it one event."""

    def deterministic(self, name: str, value: Any) -> Any:
        """A deterministic site."""

    def filled(self, parameter: Parameter, number: Any) -> Any:
        """A number, or a latent one, as an array () of the parameter's dtype, where it is."""

    def array(self, parameter: Parameter, values: Any) -> Any:
        """Values of the parameter's shape as an array of its dtype, where the parameter is."""


def check_scale(name: str, value: Any) -> None:
    """See that an option is a positive number, or the value of a latent site without dimensions.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if getattr(value, "shape", None) == ():
        return
    check_number(name, value)


def by_fan_in(scale: Any, parameter: Parameter) -> Any:
    """A scale divided by the root of the number of inputs that a unit sums."""
    return scale / math.sqrt(parameter.fan_in)


class Prior(ABC):
    """A prior that may have latent sites of its own."""

    @abstractmethod
    def value(self, site: str, parameter: Parameter, host: Host) -> Any:
        """The parameter's value, drawn at the site's name and at names that start with it."""


@dataclass(frozen=True)
class ScaledNormal(Prior):
    """Normal with standard deviation ``scale`` / sqrt(fan-in).

    Parameters
    ----------
    scale : float or array ()
        1 keeps the size of linear layers' outputs; sqrt(2) that of layers with ReLU. Biases have
        this standard deviation itself. It may be the value of a latent site of the model.

    Notes
    -----
    One site: ``net.layer1.weight``.

    References
    ----------
    R. M. Neal, "Bayesian learning for neural networks", 1996,
    https://doi.org/10.1007/978-1-4612-0745-0.
    """

    scale: Any = 1.0

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)

    def value(self, site: str, parameter: Parameter, host: Host) -> Any:
        number = by_fan_in(self.scale, parameter)
        location, scale = host.filled(parameter, parameter.centre), host.filled(parameter, number)
        return host.sample(site, host.dist.Normal(location, scale), parameter.shape)


@dataclass(frozen=True)
class ScaledStudentT(Prior):
    """Student's t, whose heavy tails let a few weights be large; scale ``scale`` / sqrt(fan-in).

    Parameters
    ----------
    df : float
        Degrees of freedom; the variance is finite above 2.
    scale : float or array ()
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
    scale: Any = 1.0

    def __post_init__(self) -> None:
        check_number("df", self.df)
        check_scale("scale", self.scale)

    def value(self, site: str, parameter: Parameter, host: Host) -> Any:
        arguments = (self.df, parameter.centre, by_fan_in(self.scale, parameter))
        distribution = host.dist.StudentT(*(host.filled(parameter, each) for each in arguments))
        return host.sample(site, distribution, parameter.shape)


@dataclass(frozen=True, eq=False)
class Pretrained(Prior):
    """Normal around given weights, for fine-tuning with error bars.

    Parameters
    ----------
    scale : float or array ()
        Standard deviation of every entry.
    values : mapping of str to array, optional
        The weights by parameter name. Default: those of the module. Large ones are better passed
        through an argument of the model than closed over: they are no constants of the program
        then.

    Notes
    -----
    One site: ``net.layer1.weight``.
    """

    scale: Any
    values: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)

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
        # The hosts' look at the parameters is compiled for every shape in NumPyro.
        scale = host.filled(parameter, self.scale)
        distribution = host.dist.Normal(location, scale, validate_args=False)
        return host.sample(site, distribution, parameter.shape)


@dataclass(frozen=True)
class Grouped(Prior):
    """Weights that are Normal, given a scale for each group of them.

    Parameters
    ----------
    group : {"input", "unit", "weight"}
        Which weights of a layer share a scale. Those of an input, whose scale goes to zero where
        the input does not matter; those of a unit, which leaves units out; or none.
    """

    group: Group = field(default="input", kw_only=True)

    def __post_init__(self) -> None:
        check_choice("group", self.group, get_args(Group))

    @abstractmethod
    def scales(self, site: str, parameter: Parameter, groups: tuple[int, ...], host: Host) -> Any:
        """Scales in the shape ``groups``, of sites of their own."""

    def value(self, site: str, parameter: Parameter, host: Host) -> Any:
        if not parameter.inputs:
            if len(parameter.shape) > 1:
                raise ArgumentError(
                    f"Expected weights of a layer, whose inputs and units are known, for "
                    f"{type(self).__name__}, found parameter '{parameter.name}' of shape "
                    f"{parameter.shape}. Give it a prior of its own: {{'{parameter.name}': "
                    "priors.ScaledNormal(), '*': ...}."
                )
            return ScaledNormal().value(site, parameter, host)
        every = tuple(range(len(parameter.shape)))
        axes = {"input": parameter.inputs, "unit": parameter.units, "weight": every}[self.group]
        sizes = tuple(parameter.shape[axis] for axis in axes)
        scales = self.scales(site, parameter, sizes, host)
        along = tuple(size if axis in axes else 1 for axis, size in enumerate(parameter.shape))
        zero, one = host.filled(parameter, 0.0), host.filled(parameter, 1.0)
        unscaled = host.sample(f"{site}.unscaled", host.dist.Normal(zero, one), parameter.shape)
        return host.deterministic(site, unscaled * scales.reshape(along))


@dataclass(frozen=True)
class GroupScales(Grouped):
    """Each group's scale is half-Cauchy with scale ``scale`` / sqrt(fan-in).

    A group may be close to zero or large, without regard to the others.

    Parameters
    ----------
    scale : float or array ()
        As of ``ScaledNormal``.
    group : {"input", "unit", "weight"}
        Which weights of a layer share a scale.

    Notes
    -----
    Sites: ``net.layer1.weight.local`` in the groups' shape, and ``.unscaled``.

    References
    ----------
    R. M. Neal, "Bayesian learning for neural networks", 1996, section 1.2.3 (automatic relevance
    determination), https://doi.org/10.1007/978-1-4612-0745-0.
    """

    scale: Any = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale("scale", self.scale)

    def scales(self, site: str, parameter: Parameter, groups: tuple[int, ...], host: Host) -> Any:
        scale = host.filled(parameter, by_fan_in(self.scale, parameter))
        return host.sample(f"{site}.local", host.dist.HalfCauchy(scale), groups)


@dataclass(frozen=True)
class Horseshoe(Grouped):
    r"""Regularised horseshoe: most groups are next to zero, and a few have the scale of a slab.

    The scale of group j is :math:`\tau \lambda_j c / \sqrt{c^2 + \tau^2 \lambda_j^2}` with
    local scales :math:`\lambda_j \sim C^+(0, 1)`, the global scale
    :math:`\tau \sim C^+(0, \tau_0)` and the slab
    :math:`c^2 \sim \mathrm{InvGamma}(\nu / 2, \nu s^2 / 2)`.

    Parameters
    ----------
    global_scale : float
        :math:`\tau_0`, the smaller the fewer groups matter; see ``global_scale``.
    slab_scale, slab_df : float
        s and :math:`\nu`: a group that is not shrunk has Student-t weights of this scale.
    group : {"input", "unit", "weight"}
        Which weights of a layer share a scale.

    Notes
    -----
    Sites: ``net.layer1.weight.local`` in the groups' shape, ``.global``, ``.slab`` (c²) and
    ``.unscaled``.

    References
    ----------
    J. Piironen and A. Vehtari, "Sparsity information and regularization in the horseshoe and other
    shrinkage priors", 2017, equations 2.8 and 2.12, https://doi.org/10.1214/17-EJS1337SI; S. Ghosh,
    J. Yao and F. Doshi-Velez, "Model selection in Bayesian neural networks via horseshoe priors",
    2019, https://arxiv.org/abs/1705.10388.
    """

    global_scale: float
    slab_scale: float = 2.0
    slab_df: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("global_scale", "slab_scale", "slab_df"):
            check_number(name, getattr(self, name))

    def scales(self, site: str, parameter: Parameter, groups: tuple[int, ...], host: Host) -> Any:
        def filled(number: float) -> Any:
            return host.filled(parameter, number)

        shape, rate = 0.5 * self.slab_df, 0.5 * self.slab_df * self.slab_scale**2
        spread = host.sample(f"{site}.global", host.dist.HalfCauchy(filled(self.global_scale)), ())
        slab = host.sample(f"{site}.slab", host.dist.InverseGamma(filled(shape), filled(rate)), ())
        local = host.sample(f"{site}.local", host.dist.HalfCauchy(filled(1.0)), groups)
        return regularised(spread * local, slab)


def regularised(scale: Any, slab: Any) -> Any:
    """A horseshoe's scale, bounded by the slab's: c s / sqrt(c² + s²), ``slab`` being c²."""
    # Without c itself, which would be a root, and without c² times s, which overflows for a large
    # slab.
    return scale / (1.0 + scale * scale / slab) ** 0.5


def global_scale(relevant: float, groups: int, rows: int, noise: float = 1.0) -> float:
    """The scale of a horseshoe's global scale at which so many groups are expected to matter.

    tau_0 = p_0 / (D - p_0) sigma / sqrt(n).

    Parameters
    ----------
    relevant, groups : float, int
        p_0, how many groups are expected to matter, of how many D.
    rows : int
        n, of the data.
    noise : float
        sigma, standard deviation of the noise; 2 for classes of about the same number.

    Raises
    ------
    ArgumentError
        Some are not positive, or ``relevant`` is not less than ``groups``.

    References
    ----------
    J. Piironen and A. Vehtari, 2017, equation 3.12, https://doi.org/10.1214/17-EJS1337SI.
    """
    for name, value in {"relevant": relevant, "noise": noise}.items():
        check_number(name, value)
    check_count("groups", groups)
    check_count("rows", rows)
    if relevant >= groups:
        raise ArgumentError(
            f"Expected relevant less than groups={groups}, found {relevant:g}. Where most groups "
            "matter take ScaledNormal or GroupScales."
        )
    return relevant / (groups - relevant) * noise / math.sqrt(rows)


def group_scales(draws: Mapping[str, Any], parameter: str) -> NDArray[Any]:
    """Scales of a parameter's groups in draws of a program: how much each group matters.

    Parameters
    ----------
    draws : mapping of str to array (S, *site shape)
        As ``get_samples`` gives them.
    parameter : str
        Site of the parameter: "net.layer1.weight".

    Returns
    -------
    array (S, *groups)

    Raises
    ------
    ArgumentError
        The draws have no scales of this parameter.
    """
    found = {name: draws.get(f"{parameter}.{name}") for name in ("local", "global", "slab")}
    if found["local"] is None:
        there = sorted(name.removesuffix(".local") for name in draws if name.endswith(".local"))
        raise ArgumentError(
            f"Expected draws of scales of '{parameter}', found those of {there}. Name a parameter "
            "with a prior of group scales or a horseshoe."
        )
    local = np.asarray(found["local"])
    if found["global"] is None:
        return local
    along = (len(local),) + (1,) * (local.ndim - 1)
    spread, slab = (np.asarray(found[name]).reshape(along) for name in ("global", "slab"))
    return regularised(spread * local, slab)

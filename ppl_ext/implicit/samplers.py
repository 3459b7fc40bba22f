"""Samplers: what turns noise into draws, with parameters that are fitted.

A sampler is an immutable description. Its formulas take the array functions of a package, so that
they stand here once. All noise is standard Normal.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError
from ppl_ext.implicit.noise import Normals, drawn, moments_of
from ppl_ext.options import check_count, check_number, describe, described

#: Nats that a unit of a parameter of steps' lengths stands for: optimizers move all parameters at
#: one rate, and lengths of steps have further to go than weights of a network.
NATS = 4.0
#: Log of the scale, in units of the start's, at which the Normals of ``SemiImplicit`` begin.
LOG_SCALE = -2.0

Parameters = dict[str, Any]
#: Of what scores remember and positions (S, D): scores (S, D) and what is remembered next.
Scores = Callable[[Any, Any], tuple[Any, Any]]


class Network(NamedTuple):
    """A network of a framework, apart from its parameters.

    Parameters
    ----------
    initial : dict of str to array
        Its parameters as they were given.
    with_values : callable
        From parameters to a function of inputs.
    """

    initial: Mapping[str, Any]
    with_values: Callable[[Mapping[str, Any]], Callable[..., Any]]

    @classmethod
    def of(cls, parameters: Mapping[str, Any], with_values: Any) -> Network:
        """What a package takes a module apart into."""
        return cls({name: each.value for name, each in parameters.items()}, with_values)


class Context(NamedTuple):
    """What draws are made of besides parameters and noise.

    Parameters
    ----------
    f : ArrayFunctions
    normals : Normals
        The noise that a sampler begins with.
    scores : callable
        The target's scores.
    memory : any
        What scores remember, such as the order of minibatches.
    networks : tuple of Network
        Of the sampler's modules, in their order.
    """

    f: Any
    normals: Normals
    scores: Scores
    memory: Any
    networks: tuple[Network, ...] = ()


@documents_subclasses
class Sampler(abc.ABC):
    """What turns noise into draws."""

    #: Standard deviations of the noise that it begins with, in units of the start's.
    spread: float

    @property
    def modules(self) -> tuple[Any, ...]:
        """Networks of a framework that it has."""
        return ()

    @abc.abstractmethod
    def parameter_shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Shapes of its own parameters, without those of modules."""

    @abc.abstractmethod
    def initial(self, noise: Parameters) -> Parameters:
        """Its own parameters from standard Normal numbers of these shapes."""

    @abc.abstractmethod
    def noise_shapes(self, number: int, dim: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the noise of so many draws."""

    @abc.abstractmethod
    def draw(
        self, context: Context, parameters: Parameters, noise: Parameters
    ) -> tuple[Float[Any, "S D"], Any]:
        """Draws (S, D), differentiable in the parameters, and what scores remember then."""

    @property
    def description(self) -> str:
        """What a saved state belongs to, in words that any process says."""
        return describe(self)

    @classmethod
    def check(cls, sampler: object) -> None:
        """See that an object is a sampler.

        Raises
        ------
        ArgumentError
            It is something else.
        """
        if not isinstance(sampler, Sampler):
            raise ArgumentError(
                "Expected a sampler, such as PushForward(), SemiImplicit() or UnrolledSGLD(), "
                f"found {described(sampler)}."
            )


def _begun(context: Context, noise: Parameters) -> Float[Any, "S D"]:
    return drawn(context.f, context.normals, noise["which"], noise["base"])


@dataclass(frozen=True)
class PushForward(Sampler):
    """A network of noise: draws are x + scale * network(x, e).

    x is noise of the start, a mixture of Normals near the modes, which the network sees in units of
    the mixture's mean and standard deviations; e are ``extra_noise`` standard Normal numbers; and
    scale are these standard deviations. The default network begins at zero, so that the first draws
    are the start's.

    Parameters
    ----------
    network : sequence of int, or module
        Widths of hidden layers, with tanh between them; or a network from (S, D + extra_noise) to
        (S, D) of the framework: a torch module, or one of flax.nnx or equinox. A hypernetwork that
        makes the weights of a model's layers is such a module, whose outputs are the flat latents.
    extra_noise : int
        Numbers e for each draw. With none the draws are a map of the start's.
    spread : float
        Standard deviations of x, in units of the start's.

    Raises
    ------
    ArgumentError
        An option is out of range.

    Examples
    --------
    >>> PushForward((32,)).parameter_shapes(3)["weight1"]
    (32, 3)
    """

    network: Any = (64, 64)
    extra_noise: int = 2
    spread: float = 1.0

    def __post_init__(self) -> None:
        if _is_widths(self.network):
            for width in self.network:
                check_count("a width of network", width)
        elif not callable(self.network):
            raise ArgumentError(
                "Expected network to be widths of hidden layers, such as (64, 64), or a module, "
                f"found {described(self.network)}."
            )
        check_count("extra_noise", self.extra_noise, least=0)
        check_number("spread", self.spread)

    @property
    def modules(self) -> tuple[Any, ...]:
        """The network, where it is a module."""
        return () if _is_widths(self.network) else (self.network,)

    @property
    def description(self) -> str:
        """Modules by the name of their class."""
        of = type(self.network).__name__ if self.modules else describe(self.network)
        return f"{type(self).__name__}({of}, {self.extra_noise}, {self.spread})"

    def _outputs(self, dim: int) -> int:
        return dim

    def parameter_shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the layers."""
        if self.modules:
            return {}
        sizes = [dim + self.extra_noise, *self.network, self._outputs(dim)]
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (inputs, units) in enumerate(itertools.pairwise(sizes)):
            shapes |= {f"weight{layer}": (inputs, units), f"bias{layer}": (units,)}
        return shapes

    def initial(self, noise: Parameters) -> Parameters:
        """Weights of variance one over the inputs; biases and the last layer are zero."""
        last = f"weight{len(noise) // 2 - 1}"
        return {
            name: value * (len(value) ** -0.5 if name[:6] == "weight" and name != last else 0.0)
            for name, value in noise.items()
        }

    def noise_shapes(self, number: int, dim: int) -> dict[str, tuple[int, ...]]:
        """Of the start, and the network's own."""
        extra = {"extra": (number, self.extra_noise)} if self.extra_noise else {}
        return {"which": (number,), "base": (number, dim), **extra}

    def _network(
        self, context: Context, parameters: Parameters, noise: Parameters
    ) -> tuple[Any, Any, Any]:
        """The start's noise x, its scale, and what the network makes of it."""
        xp, x = context.f.xp, _begun(context, noise)
        mean, scale = moments_of(xp, context.normals)
        # In units of the start, so that tanh bends over the posterior whatever the units of the
        # model.
        inputs = (x - mean) / scale
        if self.extra_noise:
            inputs = xp.concatenate([inputs, noise["extra"]], -1)
        if self.modules:
            found = context.networks[0].with_values(parameters)(inputs)
            expected = (len(x), self._outputs(x.shape[-1]))
            if tuple(found.shape) != expected:
                raise ArgumentError(
                    f"Expected a network from {tuple(inputs.shape)} to {expected}, found outputs "
                    f"of shape {tuple(found.shape)}."
                )
            return x, scale, found
        layers = len(self.network)
        for layer in range(layers):
            inputs = xp.tanh(inputs @ parameters[f"weight{layer}"] + parameters[f"bias{layer}"])
        return x, scale, inputs @ parameters[f"weight{layers}"] + parameters[f"bias{layers}"]

    def draw(
        self, context: Context, parameters: Parameters, noise: Parameters
    ) -> tuple[Float[Any, "S D"], Any]:
        """x + scale * network."""
        x, scale, moved = self._network(context, parameters, noise)
        return x + scale * moved, context.memory


@dataclass(frozen=True)
class SemiImplicit(PushForward):
    """A Normal whose mean and scale are outputs of a network of noise.

    Draws are x + scale * (m + exp(r) * n), where (m, r) is the network of :class:`PushForward` and
    n are standard Normal numbers: given x and e a draw is Normal, over them it is a mixture of
    infinitely many (M. Yin and M. Zhou, "Semi-implicit variational inference", ICML 2018,
    https://arxiv.org/abs/1805.11183). Unlike a push-forward it has a density everywhere.

    Parameters
    ----------
    network : sequence of int, or module
        As in :class:`PushForward`, with 2 D outputs: first m, then r + 2.
    extra_noise : int
    spread : float
        As in :class:`PushForward`.

    Raises
    ------
    ArgumentError
        An option is out of range.

    Examples
    --------
    >>> SemiImplicit((32,)).parameter_shapes(3)["weight1"]
    (32, 6)
    """

    def _outputs(self, dim: int) -> int:
        return 2 * dim

    def noise_shapes(self, number: int, dim: int) -> dict[str, tuple[int, ...]]:
        """And the Normal's own."""
        return {**super().noise_shapes(number, dim), "normal": (number, dim)}

    def draw(
        self, context: Context, parameters: Parameters, noise: Parameters
    ) -> tuple[Float[Any, "S D"], Any]:
        """x + scale * (m + exp(r) * n)."""
        x, scale, found = self._network(context, parameters, noise)
        dim = x.shape[-1]
        width = context.f.xp.exp(found[:, dim:] + LOG_SCALE)
        return x + scale * (found[:, :dim] + width * noise["normal"]), context.memory


@dataclass(frozen=True)
class UnrolledSGLD(Sampler):
    """A few Langevin steps whose lengths are learnt, with gradients through all of them.

    Step t moves draws, in units of the standard deviations of the start, by d / (1 + |d|) and by
    Normal noise of variance h, where d = h/2 times the score and h = exp(log_step[t]), one for each
    step and coordinate. Drifts are tamed so that no length of step can send draws to infinity (N.
    Brosse, A. Durmus, E. Moulines and S. Sabanis, "The tamed unadjusted Langevin algorithm", 2019,
    https://arxiv.org/abs/1710.05559). The lengths are variational parameters (section 3.3.2 of
    "Bayesian computation in deep learning"). Every step costs a score, and for its gradient a
    product with the Hessian.

    Parameters
    ----------
    num_steps : int
        Steps T.
    step_size : float
        Length h of all steps at first, in units of the start's variances.
    begin : Sampler, optional
        What the steps begin at, fitted with them; no other steps. Default: the start's noise.
    spread : float
        Standard deviations of that noise, in units of the start's. Of ``begin``, where it is given,
        the sampler's own counts.

    Raises
    ------
    ArgumentError
        An option is out of range.

    Examples
    --------
    >>> UnrolledSGLD(5, begin=PushForward((8,))).parameter_shapes(2)["log_step"]
    (5, 2)
    """

    num_steps: int = 10
    step_size: float = 0.1
    begin: Sampler | None = None
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        check_number("step_size", self.step_size)
        check_number("spread", self.spread)
        if self.begin is not None:
            self.check(self.begin)
            if isinstance(self.begin, UnrolledSGLD):
                raise ArgumentError(
                    "Expected begin to be a sampler without steps, such as PushForward(), found "
                    f"{described(self.begin)}. Take more steps, num_steps=..., in place of two "
                    "UnrolledSGLD."
                )
            object.__setattr__(self, "spread", self.begin.spread)

    @property
    def modules(self) -> tuple[Any, ...]:
        """Those of the sampler that the steps begin at."""
        return () if self.begin is None else self.begin.modules

    @property
    def description(self) -> str:
        """With that of the sampler that the steps begin at."""
        begin = "" if self.begin is None else self.begin.description
        return f"UnrolledSGLD({self.num_steps}, {self.step_size}, {self.spread}, {begin})"

    def parameter_shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Lengths of steps, in logarithms, and what the beginning has."""
        begin = {} if self.begin is None else self.begin.parameter_shapes(dim)
        return {**begin, "log_step": (self.num_steps, dim)}

    def initial(self, noise: Parameters) -> Parameters:
        """All steps as long as ``step_size``."""
        begin = {name: value for name, value in noise.items() if name != "log_step"}
        # Zero stands for ``step_size``, so that optimizers begin at numbers of order one.
        own = {"log_step": 0.0 * noise["log_step"]}
        return {**({} if self.begin is None else self.begin.initial(begin)), **own}

    def noise_shapes(self, number: int, dim: int) -> dict[str, tuple[int, ...]]:
        """Of the beginning and of each step."""
        begin = (
            {"which": (number,), "base": (number, dim)}
            if self.begin is None
            else self.begin.noise_shapes(number, dim)
        )
        return {**begin, "steps": (self.num_steps, number, dim)}

    def draw(
        self, context: Context, parameters: Parameters, noise: Parameters
    ) -> tuple[Float[Any, "S D"], Any]:
        """The last positions."""
        xp = context.f.xp
        if self.begin is None:
            z, memory = _begun(context, noise), context.memory
        else:
            own = {name: value for name, value in parameters.items() if name != "log_step"}
            z, memory = self.begin.draw(context, own, noise)
        _, scale = moments_of(xp, context.normals)
        variances = self.step_size * xp.exp(NATS * parameters["log_step"])

        def step(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            number, z, memory = carry
            scores, memory = context.scores(memory, z)
            variance = variances[number]
            drift = 0.5 * variance * scale * scores
            drift = drift / (1.0 + xp.abs(drift))
            z = z + scale * (drift + xp.sqrt(variance) * noise["steps"][number])
            return number + 1, z, memory

        _, z, memory = context.f.repeated(self.num_steps, step, (0, z, memory))
        return z, memory


def _is_widths(network: Any) -> bool:
    return isinstance(network, Sequence) and not isinstance(network, str)

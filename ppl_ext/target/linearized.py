"""Observed distributions of a model made linear at one position.

A Gaussian whose precision is the Gauss-Newton matrix belongs to the model with outputs that are
linear in its parameters (A. Immer, M. Korzepa and M. Bauer, "Improving predictions of Bayesian
neural nets via local linearization", 2021, https://arxiv.org/abs/2008.08400). What is linear are
the parameters of the observed distribution on a scale of all real numbers, its natural one for the
usual families: locations and logits as they are, probabilities of two classes by their logit and of
several by their logarithms, and positive parameters (scales, rates) by their logarithm, so that
they stay positive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ppl_ext.errors import ArgumentError
from ppl_ext.target.outputs import COMPONENT, MIXING, ObservedOutput


class Scale(NamedTuple):
    """A map of a parameter to an unconstrained scale, ``natural``, and its inverse, ``value``."""

    natural: Callable[[Any], Any]
    value: Callable[[Any], Any]


def identity(value: Any) -> Any:
    """The scale of parameters that are without bounds."""
    return value


def scale_of(
    constraint: Any, host: Any, simplex: Scale, inside: Callable[[Any], Any] = identity
) -> Scale | None:
    """The scale without bounds of parameters under a constraint; None for counts.

    Parameters
    ----------
    constraint
    host : module
        The host's ``constraints`` and ``biject_to``.
    simplex : Scale
        Of probabilities that sum to one.
    inside : callable
        Keeps probabilities of two classes off 0 and 1, whose logits are not finite.

    Raises
    ------
    NotImplementedError
        There is none.
    """
    base = getattr(constraint, "base_constraint", constraint)
    if base.is_discrete:
        return None
    if base is host.constraints.real:
        return Scale(identity, identity)
    if base is host.constraints.simplex:
        return simplex
    transform = host.biject_to(constraint)
    if base is host.constraints.unit_interval:
        return Scale(lambda value: transform.inv(inside(value)), transform)
    return Scale(transform.inv, transform)


class Linearized:
    """The outputs of one observed site on natural scales.

    Parameters
    ----------
    output : ObservedOutput
    scale_of : callable
        From a constraint of the host to a :class:`Scale`; None for numbers that are counted, and
        a ``NotImplementedError`` for constraints that have none.

    Raises
    ------
    ArgumentError
        A parameter has no such scale.
    """

    def __init__(
        self, output: ObservedOutput[Any], scale_of: Callable[[Any], Scale | None]
    ) -> None:
        self.output = output
        self.scales: dict[str, Scale] = {}
        for name in output.parameters:
            constraint = _constraint(output, name)
            try:
                # A zero-inflated distribution has the parameters of its base under other names.
                if constraint is None or output.base is not None:
                    raise NotImplementedError
                scale = scale_of(constraint)
            except NotImplementedError:
                raise ArgumentError(
                    "Expected observed distributions whose parameters are real, positive, "
                    f"probabilities or counts, to make them linear, found parameter '{name}' of "
                    f"{output.distribution.__name__} at site '{output.name}'. Leave linearize out, "
                    "or write the site as a distribution whose parameters are so."
                ) from None
            if scale is not None:
                self.scales[name] = scale

    def natural(self) -> dict[str, Any]:
        """The parameters on their natural scales."""
        given = self.output.parameters
        return {name: scale.natural(given[name]) for name, scale in self.scales.items()}

    def distribution(self, natural: Mapping[str, Any]) -> Any:
        """The site's distribution at other values of these, masked as the site is."""
        values = {name: scale.value(natural[name]) for name, scale in self.scales.items()}
        found = self.output.built(values)
        if self.output.mask is not None:
            found = found.mask(self.output.mask)
        return found.to_event(self.output.declared) if self.output.declared else found


class Outputs:
    """All observed sites of a target, as functions of the position z (D,).

    Parameters
    ----------
    target : LogDensity
    data : Data
    indices : dict of str to array
        Rows of the subsampled plates.
    scale_of : callable
        As :class:`Linearized` takes it.
    """

    def __init__(
        self, target: Any, data: Any, indices: Any, scale_of: Callable[[Any], Scale | None]
    ) -> None:
        self._of, self._scale_of = (lambda z: target.outputs(z, data, indices)), scale_of

    def at(self, z: Any) -> dict[str, Linearized]:
        """The sites."""
        return {name: Linearized(each, self._scale_of) for name, each in self._of(z).items()}

    def natural(self, z: Any) -> dict[str, dict[str, Any]]:
        """Their parameters on natural scales, by site."""
        return {name: each.natural() for name, each in self.at(z).items()}


def moved_by(
    sites: Mapping[str, Linearized],
    values: Mapping[str, Mapping[str, Any]],
    moves: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """The distributions of all sites whose parameters, on natural scales, have moved."""
    return {
        name: site.distribution({key: values[name][key] + moves[name][key] for key in site.scales})
        for name, site in sites.items()
    }


def _constraint(output: ObservedOutput[Any], name: str) -> Any:
    """The constraint of a parameter, as its class declares it."""
    kind, own = output.distribution, name
    if output.parts is not None:
        for prefix, part in ((MIXING, output.parts.mixing), (COMPONENT, output.parts.component)):
            if name.startswith(prefix):
                kind, own = part, name.removeprefix(prefix)
    declared = getattr(kind, "arg_constraints", None)
    return declared.get(own) if isinstance(declared, Mapping) else None

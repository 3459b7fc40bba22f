"""What a Stan program is as a program of either host: one latent vector and a factor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self

from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.stan.compilation import compiled
from ppl_ext.stan.density import StanDensity
from ppl_ext.stan.inputs import read_data, read_program
from ppl_ext.target.scores import Array

#: The latent site and the factor. Stan lets no name of a program end in two underscores.
POSITION, LOG_DENSITY = "unconstrained__", "lp__"
#: What is said of a derivative that Stan does not have.
NO_THIRD = "A Stan program has first and second derivatives, and third ones were asked for."


@documents_subclasses
class StanProgramShell(Generic[Array]):
    """A Stan program with data, as a program of the host; see ``stan.model``.

    Parameters
    ----------
    density : StanDensity

    Attributes
    ----------
    parameter_sites : tuple of str
        Stan's parameters, transformed parameters and, if asked for, generated quantities: the
        deterministic sites that draws of the program have.
    """

    #: The host, and what makes its arrays.
    host: Any
    arrays: Any

    def __init__(self, density: StanDensity) -> None:
        self.density = density
        self.parameter_sites = tuple(density.shapes)

    @classmethod
    def model(
        cls,
        program: str | os.PathLike[str],
        data: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        generated_quantities: bool = False,
        seed: int = 0,
        threads: int | None = None,
        stanc_args: Sequence[str] = (),
        make_args: Sequence[str] = (),
    ) -> Self:
        """A Stan program with data as a program of the host without arguments.

        The program is compiled by BridgeStan unless that has been done before; see
        :mod:`ppl_ext.stan.compilation` for where it is kept.

        Parameters
        ----------
        program : str or path
            A file, or the program's text.
        data : mapping, str or path, optional
            Names to numbers and arrays, or such an object in JSON: a file or its text.
        generated_quantities : bool
            Whether draws have the program's generated quantities as well.
        seed : int
            Seed of the random numbers that the program draws in its transformed data and in its
            generated quantities. The latter are a function of it and of the parameters.
        threads : int, optional
            At most this many particles are evaluated at once. Default: the number of processors.
        stanc_args, make_args : sequence of str
            Further arguments for the Stan compiler, which gets each as it is, and for make, which
            expands them as it does those of its command line.

        Returns
        -------
        StanProgram

        Raises
        ------
        ArgumentError
            The program or its data cannot be read, the program is no valid Stan, or the data do not
            fit it; the message is Stan's own.
        ToolchainError
            BridgeStan's sources, make or a C++ compiler are missing.
        ImportError
            The package ``bridgestan`` is not installed.
        """
        text, name = read_program(program)
        read = read_data(data)  # compiling takes a minute, which data that are none would lose
        density = StanDensity(
            compiled(text, name, stanc_args, make_args),
            read,
            name=name,
            seed=seed,
            generated_quantities=generated_quantities,
            threads=threads,
        )
        return cls(density)

    def __call__(self) -> None:
        """The host's program."""
        # Masked, a standard normal is a flat prior that hosts can draw starting points from.
        normal = self.host.distributions.Normal(self.arrays.zeros(self.density.dim), 1.0)
        z = self.host.sample(POSITION, normal.to_event(1).mask(False))
        self.host.factor(LOG_DENSITY, self.log_density(z))
        for name, value in self.constrain(z).items():
            self._record(name, value)

    def _record(self, name: str, value: Array) -> Any:
        """A deterministic site of the host."""
        return self.host.deterministic(name, value)

    def log_density(self, z: Float[Array, "*P D"]) -> Float[Array, "*P"]:
        """Stan's log density (...) at unconstrained positions (..., D), with its gradient.

        Where Stan rejects a position the density is -inf and the gradient zero.
        """
        raise NotImplementedError

    def _constrained(self, z: Array) -> Any:
        """All numbers of the parameters, (..., number), at positions (..., D)."""
        raise NotImplementedError

    def constrain(self, z: Float[Array, "*P D"]) -> dict[str, Array]:
        """Values (..., *shape) of the parameters at positions (..., D), without gradients."""
        flat = self._constrained(z)
        return {
            name: flat[..., where].reshape(flat.shape[:-1] + self.density.shapes[name])
            for name, where in self.density.slices().items()
        }

    def __repr__(self) -> str:
        return f"StanProgram({self.density.name!r}, {self.density.dim} unconstrained numbers)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.density.settings)


def _rebuilt(kind: type[StanProgramShell[Any]], settings: dict[str, Any]) -> StanProgramShell[Any]:
    return kind(StanDensity(**settings))

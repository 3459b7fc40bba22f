"""NumPyro's own Stein kernels as kernels of this package.

``numpyro.contrib.einstein.stein_kernels.SteinKernel.compute`` gives a function of two particles:
a scalar (mode "norm"), one value for each coordinate ("vector"), or a matrix ("matrix"). In the
Stein direction at z_i it is called as k(z_j, z_i) and differentiated in its first argument.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float
from numpyro.contrib.einstein.stein_kernels import ProbabilityProductKernel, SteinKernel

from numpyro_ext.kernels.classes import Kernel, default_kernel
from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.base import KernelState


@dataclass(frozen=True, eq=False, repr=False)
class HostKernel(Kernel):
    """A NumPyro ``SteinKernel``, in any of its three modes.

    The particles are taken one at a time, so that memory stays near (P, D) for the mode
    "norm", (P, D^2) for the others.

    Parameters
    ----------
    kernel : SteinKernel
        The host's kernel.
    sites : mapping of str to slice, optional
        Ranges of the flat vector by site, for kernels that treat sites apart
        (``GraphicalKernel``). By default the whole vector is one site, ``"particles"``.
    seed : int, default 0
        Seed of kernels that draw random features; these stay the same in all steps.

    Raises
    ------
    ArgumentError
        If the kernel is no ``SteinKernel``, or compares guides rather than points.
    """

    kernel: SteinKernel
    sites: Mapping[str, slice] | None = field(default=None, repr=False)
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, SteinKernel):
            raise ArgumentError(
                "Expected a numpyro.contrib.einstein SteinKernel, found "
                f"{type(self.kernel).__name__}."
            )
        if isinstance(self.kernel, ProbabilityProductKernel):
            raise ArgumentError(
                "Expected a kernel on particles, found ProbabilityProductKernel, which compares "
                "the Gaussian guides of NumPyro's SteinVI. Use RBF() or another kernel of points."
            )

    def init(self, particles: Float[Array, "P D"]) -> KernelState:
        """The random key of the next step."""
        return {"rng_key": jax.random.split(self._key())[0]}

    def with_sites(self, sites: Mapping[str, slice]) -> Self:
        """This kernel with the ranges of the sites, unless it was given some."""
        return self if self.sites is not None else dataclasses.replace(self, sites=dict(sites))

    def _key(self) -> Array:
        return jax.random.PRNGKey(self.seed)

    def _ranges(self, dim: int) -> dict[str, tuple[int, int]]:
        """Sites as the host's kernels expect them: name to (start, stop)."""
        if self.sites is None:
            return {"particles": (0, dim)}
        # The host's own names are those of its guide's parameters.
        local = getattr(self.kernel, "local_kernel_fns", {})
        return {
            f"{name}_auto_loc" if f"{name}_auto_loc" in local else name: (part.start, part.stop)
            for name, part in self.sites.items()
        }

    def _function(
        self, key: Array, particles: Array, scores: Array
    ) -> Callable[[Array, Array], Array]:
        # The host keeps random features on the kernel object. Drawn anew, from one seed, each
        # time a step is traced, they depend neither on other users of that object nor on
        # whether this process made the first step; and under jit they would be tracers that
        # outlive their trace.
        with jax.ensure_compile_time_eval():
            self.kernel.init(jax.random.split(self._key())[1], particles.shape)

        def loss(_: Array, particle: Array, index: Array) -> Array:
            # The host's kernels only differentiate the loss; this one's gradient is the score.
            return jnp.vdot(lax.stop_gradient(scores)[index], particle)

        return self.kernel.compute(key, particles, self._ranges(particles.shape[1]), loss)

    def direction(
        self, state: KernelState, particles: Float[Array, "P D"], scores: Float[Array, "P D"]
    ) -> tuple[Float[Array, "P D"], KernelState]:
        """Direction phi, shape (P, D); see :meth:`Kernel.direction`."""
        key, kernel_key = jax.random.split(state["rng_key"])
        kernel = self._function(kernel_key, particles, scores)
        num, dim = particles.shape
        mode = self.kernel.mode

        def at(point: Array) -> Array:
            # sum_j grad_{z_j} k(z_j, z_i) is the gradient in a shift common to all z_j.
            def summed(shift: Array) -> Array:
                return jax.vmap(lambda z: kernel(z + shift, point))(particles).sum(axis=0)

            values = jax.vmap(lambda z: kernel(z, point))(particles)
            origin = jnp.zeros_like(point)
            if mode == "norm":
                return values @ scores + jax.grad(summed)(origin)
            if mode == "vector":
                slope = jnp.diagonal(jax.jacfwd(summed)(origin))
                return (values * scores).sum(axis=0) + slope

            def column(b: Array) -> Array:
                tangent = jax.nn.one_hot(b, dim, dtype=point.dtype)
                return jax.jvp(summed, (origin,), (tangent,))[1][:, b]

            slope = lax.map(column, jnp.arange(dim)).sum(axis=0)
            return jnp.einsum("jab,jb->a", values, scores) + slope

        return lax.map(at, particles) / num, {"rng_key": key}

    def gram(self, state: KernelState, particles: Float[Array, "P D"]) -> Float[Array, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P).

        Raises
        ------
        ArgumentError
            In the modes "vector" and "matrix", whose values are not numbers.
        """
        if self.kernel.mode != "norm":
            raise ArgumentError(
                f'Expected a scalar kernel (mode "norm"), found mode "{self.kernel.mode}", which '
                "has no single Gram matrix."
            )
        _, kernel_key = jax.random.split(state["rng_key"])
        kernel = self._function(kernel_key, particles, jnp.zeros_like(particles))
        return jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(particles))(particles)


def as_kernel(
    kernel: Kernel | SteinKernel | None, sites: Mapping[str, slice] | None = None
) -> Kernel:
    """A kernel of this package from what a user may pass.

    Parameters
    ----------
    kernel : Kernel, numpyro SteinKernel or None
        None means :func:`~numpyro_ext.kernels.default_kernel`.
    sites : mapping of str to slice, optional
        Ranges of the flat vector by site, handed on to the host's kernels.

    Raises
    ------
    ArgumentError
        If the object is none of these.
    """
    if kernel is None:
        return default_kernel()
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, SteinKernel):
        return HostKernel(kernel, sites)
    raise ArgumentError(
        "Expected a kernel of numpyro_ext.kernels, a numpyro.contrib.einstein SteinKernel, or "
        f"None, found {type(kernel).__name__}. Pass an instance, for example RBF(), not a class."
    )

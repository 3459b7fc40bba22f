"""Starting positions: draws of the init strategy, kept where density and score are finite."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float
from numpyro import handlers
from numpyro.infer import init_to_uniform

from numpyro_ext.density.check import parameters_are_valid
from numpyro_ext.density.evaluation import Evaluation
from numpyro_ext.density.first_run import InitStrategy
from numpyro_ext.density.handlers import LOG_DETERMINANT, run_trace, site_log_prob
from numpyro_ext.density.layout import Data
from numpyro_ext.programs import Program
from ppl_ext.arguments import nonfinite_arguments
from ppl_ext.errors import ArgumentError, ModelCheckError

TRIES = 100  # as many as numpyro.infer.util.find_valid_initial_params makes
#: Longer vectors are drawn as one by the host's usual strategy: a draw for each of a network's many
#: sites takes many times as long to compile.
LONG = 2**18


class Attempt(NamedTuple):
    """A position drawn by the init strategy.

    Parameters
    ----------
    rng_key : key
        For the next attempt.
    position : array (D,)
    finite : bool
        Whether density and score are finite there.
    valid : bool
        Whether all distributions' parameters are what they have to be.
    """

    rng_key: Array
    position: Float[Array, " D"]
    finite: Bool[Array, ""]
    valid: Bool[Array, ""]


class NotDifferentiableError(ModelCheckError):
    """A density has no gradient, or no compiled program, in the form that arguments have."""


class StartingPositions:
    """Draws starting positions.

    One position is drawn after another, so that one program serves any number of them.
    """

    def __init__(self, evaluation: Evaluation, init_strategy: InitStrategy) -> None:
        self._evaluation = evaluation
        self._bound = evaluation.bound
        self._strategy = init_strategy
        self._programs: dict[Any, Program] = {}
        self._prior: Program | None = None

    def attempt(self, data: Data, rng_key: Array) -> Attempt:
        """Draw a position and look at it."""
        # A key of its own for the next attempt: ``seed`` splits the one that it gets for each site,
        # so that with the same key a site would get the numbers of the site after it.
        own, following = random.split(rng_key)
        radius = self._radius
        if radius is None:
            seeded = handlers.seed(self._bound.controlled(self._bound.rows_for_values()), own)
            model = handlers.substitute(seeded, substitute_fn=self._strategy)
            trace = run_trace(model, data.args, data.kwargs)
            position = self._bound.unconstrained(trace)
        else:
            shape, dtype = (self._bound.layout.dim,), self._bound.dtype
            position = random.uniform(own, shape, dtype, -radius, radius)
            trace = self._bound.trace(position, data, self._bound.first_rows())
        # One batch of rows is enough to tell; a full sweep could be long.
        found = self._evaluation.score(data, self._bound.first_rows(), position)
        finite = jnp.isfinite(found.log_prior + found.log_likelihood)
        finite &= jnp.isfinite(found.score).all()
        return Attempt(following, position, finite, parameters_are_valid(trace))

    @property
    def _radius(self) -> float | None:
        """Of the cube in which a long position is drawn; None where the strategy draws by site."""
        strategy = self._strategy
        is_usual = getattr(strategy, "func", strategy) is init_to_uniform
        if not is_usual or self._bound.layout.dim <= LONG:
            return None
        return float(getattr(strategy, "keywords", {}).get("radius", 2.0))

    def positions(self, num: int, rng_key: Array, data: Data) -> Float[Array, "P D"]:
        """Positions where density and score are finite.

        Where key or data are traced, positions that stay bad are returned as they are.

        Raises
        ------
        ModelCheckError
            After 100 draws there is none; the message names the site at fault.
        """
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((rng_key, data))):
            return self._traced(random.split(rng_key, num), data)
        kind = _kind(rng_key)
        every = np.asarray(_splitting(num)(rng_key))
        found = [self._first_finite(bits, kind, data) for bits in every]
        # Stacked on the host: ``jnp.stack`` would compile a program for each number of positions.
        return jax.device_put(np.stack(found).astype(self._bound.dtype))

    def from_prior(self, num: int, rng_key: Array, data: Data) -> Float[Array, "P D"]:
        """Positions of draws of the prior, by a forward run of the model for each.

        Raises
        ------
        NotImplementedError
            A latent site has a distribution without draws, as an improper one.
        """
        kind, bound = _kind(rng_key), self._bound

        def drawn(bits: Array, data: Data) -> Array:
            def one(bits: Array) -> Array:
                model = bound.controlled(bound.rows_for_values())
                seeded = handlers.seed(model, bits if kind is None else _key(bits, kind))
                return bound.unconstrained(run_trace(seeded, data.args, data.kwargs))

            return lax.map(one, bits)

        if self._prior is None:
            self._prior = Program(drawn, rarely=True)
        return self._prior(_splitting(num)(rng_key), data)

    def check(self, rng_key: Array, data: Data, judge: Callable[[Attempt], None]) -> None:
        """See that there is a finite position; the last attempt of many is shown to ``judge``.

        Raises
        ------
        ModelCheckError
            There is none; the message names the site at fault.
        """
        try:
            self._first_finite(np.asarray(_bits(rng_key)), _kind(rng_key), data, judge)
        except jax.errors.UnexpectedTracerError as error:
            raise ModelCheckError(
                "The model keeps an array that it computed in an earlier run, in functools.cache "
                "or an attribute, say, and that run was traced. Expected every run to compute its "
                "own; compute the array outside the model, or with NumPy."
            ) from error
        except (ArgumentError, ModelCheckError):
            raise
        except (TypeError, ValueError, NotImplementedError) as error:
            raise NotDifferentiableError(
                "The model runs, but its density cannot be differentiated: "
                f"{type(error).__name__}: {error}\nExpected JAX's operations on everything that "
                "depends on a latent site, and those that JAX can differentiate backwards: not "
                "pure_callback, nor loops whose length is found as they run."
            ) from error

    def forget(self) -> None:
        """Let go of compiled programs; one that is wanted again is compiled again."""
        self._programs.clear()
        self._prior = None

    def _first_finite(
        self,
        bits: Any,
        kind: Any,
        data: Data,
        judge: Callable[[Attempt], None] | None = None,
    ) -> Any:
        def attempt(bits: Array, data: Data) -> Attempt:
            found = self.attempt(data, bits if kind is None else _key(bits, kind))
            # As bits: what goes into and comes out of a program that is found again has one type,
            # whether keys are typed or not.
            return found._replace(rng_key=_bits(found.rng_key))

        if kind not in self._programs:
            self._programs[kind] = Program(attempt, rarely=True)
        for _ in range(TRIES):
            found: Attempt = self._programs[kind](bits, data)
            # Distributions may have parameters that are not valid at some values of the latents.
            if found.finite and found.valid:
                return np.asarray(found.position)
            bits = found.rng_key
        if judge is not None:
            judge(found)
        if found.finite:
            return np.asarray(found.position)
        raise self._nowhere_finite(found.position, data)

    def _traced(self, keys: Array, data: Data) -> Float[Array, "P D"]:
        attempt = jax.vmap(partial(self.attempt, data))

        def unfinished(carry: tuple[Array, Attempt]) -> Array:
            tries, found = carry
            return (tries < TRIES) & ~found.finite.all()

        def again(carry: tuple[Array, Attempt]) -> tuple[Array, Attempt]:
            tries, found = carry
            fresh = attempt(found.rng_key)
            # All are drawn again, as a compiled loop cannot leave some out; those that were finite
            # are kept.
            position = jnp.where(found.finite[:, None], found.position, fresh.position)
            finite = found.finite | fresh.finite
            return tries + 1, fresh._replace(position=position, finite=finite)

        start = jnp.zeros((len(keys), self._bound.layout.dim), self._bound.dtype)
        nowhere = jnp.zeros(len(keys), bool)
        first = Attempt(keys, start, nowhere, nowhere)
        found: Attempt = lax.while_loop(unfinished, again, (jnp.asarray(0), first))[1]
        return found.position

    def _log_densities(
        self, position: Float[Array, " D"], data: Data
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Log density of each site, and each latent site's gradient."""
        indices = self._bound.first_rows()
        log_densities: dict[str, Array] = {}
        for name, site in self._bound.trace(position, data, indices).items():
            if site["type"] == "sample":
                label = site["infer"].get(LOG_DETERMINANT, name)
                before = log_densities.get(label, jnp.zeros(()))
                log_densities[label] = before + site_log_prob(site)
        score = self._evaluation.score(data, indices, position).score
        return log_densities, self._bound.layout.split(score)

    def _nowhere_finite(self, position: Array, data: Data) -> ModelCheckError:
        values, gradients = Program(self._log_densities, rarely=True)(position, data)
        faults = [
            f"'{n}' (log density {float(v)})" for n, v in values.items() if not np.isfinite(v)
        ]
        if faults:
            where = f"log density is not finite at site {', '.join(faults)}"
        else:
            sites = [f"'{n}'" for n, v in gradients.items() if not np.isfinite(v).all()]
            where = f"gradient is not finite at latent site {', '.join(sites)}"
        return ModelCheckError(
            "Cannot find valid initial parameters. Please check your model again. After "
            f"{TRIES} draws of the init strategy the {where}. Look for NaN or values "
            "outside the support in the data, or start elsewhere with init_strategy, for example "
            "numpyro.infer.init_to_median or init_to_value(values=...)."
            + nonfinite_arguments(self._bound.model, data.args, data.kwargs)
        )


def _is_typed(rng_key: Array) -> bool:
    return jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)


def _bits(rng_key: Array) -> Array:
    return random.key_data(rng_key) if _is_typed(rng_key) else rng_key


def numbers_of_key(rng_key: Array) -> list[int]:
    """The numbers of a key, as seeds for NumPy.

    Raises
    ------
    ArgumentError
        The key is traced.
    """
    if isinstance(rng_key, jax.core.Tracer):
        raise ArgumentError(
            "Expected a key with values to draw from a start, found one that jax.jit traces. Call "
            "init outside of jax.jit, or leave start out."
        )
    return [int(each) for each in np.asarray(_bits(rng_key)).ravel()]


@lru_cache(maxsize=32)
def _splitting(num: int) -> Program:
    """The bits of so many keys: one program for all targets, which JAX traces once."""
    return Program(lambda rng_key: _bits(random.split(rng_key, num)), rarely=True)


def _kind(rng_key: Array) -> Any:
    return random.key_impl(rng_key) if _is_typed(rng_key) else None


def _key(bits: Array, kind: Any) -> Array:
    return random.wrap_key_data(bits, impl=kind)

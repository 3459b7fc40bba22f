"""Setting a host guide up in one compiled program.

NumPyro sets a guide up by running the model and its gradient operation by operation, each of
which JAX compiles: a hundred small programs where one does. Here the host's own set-up is traced
and compiled whole, with the random key and the model's arrays as its arguments. What the guide
then holds are tracers; the program returns their values, which are put in their places.

The host looks for initial values of finite density and gradient in a loop, in which a network is
compiled once more and slow to run. Here the prior's alone is looked for in that loop; whether the
whole density is finite there is seen after it, and the host's own set-up runs where it is not.

Where no value is asked for, none is drawn: a program that draws the values of a network's many
sites, from the prior and by the init strategy, takes half a minute to compile.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpyro import handlers
from numpyro.distributions import Distribution
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import Transform, biject_to
from numpyro.infer.autoguide import AutoGuide
from numpyro.primitives import Messenger

from numpyro_ext.density.handlers import WithoutDiscrete, handling, is_latent
from numpyro_ext.density.layout import Data
from numpyro_ext.programs import Program
from numpyro_ext.sharding import mesh_of
from ppl_ext.process import swapped

#: Objects of the host whose attributes are searched for tracers.
_SEARCHED = (Constraint, Distribution, Messenger, Transform)
#: What a model that needs concrete values raises when it is traced.
_TRACING_ERRORS = (AssertionError, AttributeError, IndexError, TypeError, ValueError)


def set_up(guide: AutoGuide, rng_key: Array, data: Data, *, drawn: bool = True) -> None:
    """Set a guide up on its model with these arguments, whether or not it was set up before.

    The guide ends as the host's ``_setup_prototype`` leaves it under this key. A model or an
    ``init_loc_fn`` that cannot be traced is run as the host does.

    Parameters
    ----------
    guide : AutoGuide
    rng_key : array
    data : Data
        Arguments of the model.
    drawn : bool
        Whether initial values are asked for. Where they are not, every latent site is at 0 in
        unconstrained space, and neither the density nor the init strategy is looked at.

    Raises
    ------
    RuntimeError
        The host finds no initial values of finite density.
    """
    before = dict(vars(guide))
    found: dict[int, Any] = {}

    # Arguments, which the guide then shares with the caller: as values of the program they would
    # be copies. Not NumPy's, which may change, nor those that a mesh moves to other devices.
    given: dict[int, Array] = {}
    leaves = jax.tree.leaves(data)
    moved = mesh_of([rng_key, *leaves]) is not None
    can_share = [isinstance(leaf, Array) and not moved for leaf in leaves]

    def note(tracer: Any) -> Any:
        if id(tracer) not in given:
            found[id(tracer)] = tracer
        return tracer

    def compiled(rng_key: Array, data: Data, zero: Array) -> tuple[Array, list[Array]]:
        traced = zip(jax.tree.leaves(data), leaves, can_share, strict=True)
        given.update((id(tracer), leaf) for tracer, leaf, can in traced if can)
        _host_set_up(guide, rng_key, data, _PriorAlone if drawn else partial(_Undrawn, zero=zero))
        if not drawn:
            _replace_tracers(vars(guide), note)
            return jnp.asarray(True), list(found.values())
        # The host judges initial values by the same derivative. A model with a while loop has
        # forward derivatives only.
        gradient = jax.jacfwd if guide._forward_mode_differentiation else jax.grad

        def potential(values: Any) -> tuple[Array, Array]:
            return (value := guide._potential_fn(values)), value

        # Minibatches that the model draws itself need a key.
        with handling(), handlers.seed(rng_seed=rng_key):
            slopes, value = gradient(potential, has_aux=True)(guide._init_locs)
        judged = [jnp.isfinite(leaf).all() for leaf in (value, *jax.tree.leaves(slopes))]
        _replace_tracers(vars(guide), note)
        return jnp.stack(judged).all(), list(found.values())

    try:
        valid, values = Program(compiled, rarely=True)(rng_key, data, np.zeros(()))
        # Inside another trace nobody can tell yet.
        done = isinstance(valid, jax.core.Tracer) or bool(valid)
    except _TRACING_ERRORS:
        done = False
    if done:
        concrete = given | dict(zip(found, values, strict=True))
        vars(guide).update(_replace_tracers(vars(guide), lambda tracer: concrete[id(tracer)]))
        return
    # The attempt has left tracers in the guide. The host's set-up begins with the guide as it was.
    vars(guide).clear()
    vars(guide).update(before)
    # The host draws up to a hundred positions. Where a rate is negative at one, it takes the next.
    with handling(), swapped(numpyro.validation_enabled(False)):
        _host_set_up(guide, rng_key, data)


def _host_set_up(
    guide: AutoGuide, rng_key: Array, data: Data, sees: Callable[..., Any] = lambda model: model
) -> None:
    """The host's set-up, of what ``sees`` makes of the model."""
    model, strategy, own_class = guide.model, guide.init_loc_fn, type(guide)
    seen = sees(WithoutDiscrete(model))
    guide.model = seen
    # A strategy would draw values in place of the zeros.
    if isinstance(seen, _Undrawn):
        guide.init_loc_fn = partial(_as_it_is)
    guide.__class__ = type(own_class.__name__, (own_class, _OrderOfTrace), {})
    try:
        with handling(), handlers.seed(rng_seed=rng_key):
            guide._setup_prototype(*data.args, **data.kwargs)
    finally:
        guide.__class__ = own_class
        guide.model, guide.init_loc_fn = model, strategy
    if isinstance(seen, _PriorAlone):
        seen.reveal(guide.prototype_trace)


class _PriorAlone(Messenger):
    """Leaves the density of what is observed out, until it is told to reveal it.

    Nothing that only observations depend on is then computed, as the compiler leaves it out too.
    """

    hides = True

    def process_message(self, msg: dict[str, Any]) -> None:
        """Hide the density of a site."""
        if self.hides and msg["type"] == "sample" and msg["is_observed"]:
            msg["fn"] = msg["fn"].mask(False)

    def reveal(self, trace: dict[str, Any]) -> None:
        """From now on hide nothing, nor in what was traced."""
        self.hides = False
        for site in trace.values():
            if site["type"] == "sample" and site["is_observed"]:
                site["fn"] = site["fn"].base_dist


class _Undrawn(_PriorAlone):
    """Puts latent sites at 0 in unconstrained space as well, until it is told to reveal.

    Parameters
    ----------
    model : callable
    zero : array ()
        An argument of the program: what follows from constants the compiler works out itself,
        number by number, which takes it half a minute for ten million of them.
    """

    def __init__(self, model: Callable[..., Any], zero: Array) -> None:
        super().__init__(model)
        self._zero = zero

    def process_message(self, msg: dict[str, Any]) -> None:
        """Give a latent site its value."""
        super().process_message(msg)
        if self.hides and is_latent(msg) and msg["value"] is None:
            transform = biject_to(msg["fn"].support)
            shape, kind = transform.inverse_shape(msg["fn"].shape()), jnp.zeros(()).dtype
            msg["value"] = transform(jnp.full(shape, self._zero, kind))


def _as_it_is(site: Any) -> None:
    """An init strategy that leaves a site at the value that it has."""


class _OrderOfTrace(AutoGuide):
    """Put before ``AutoGuide`` in a guide's classes while it is set up.

    When its first try cannot be judged, or is none, the host keeps the initial values in a compiled
    loop, from which they come in the order of their names. All that is made of them follows the
    model's.
    """

    _init_locs: dict[str, Any]

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        names = [name for name in self.prototype_trace if name in self._init_locs]
        self._init_locs = {name: self._init_locs[name] for name in names}


def _replace_tracers(
    value: Any, replace: Callable[[Any], Any], seen: dict[int, Any] | None = None
) -> Any:
    """The value with every tracer in it replaced; parts without tracers are the very same.

    Searched are containers, partial functions, the host's handlers, distributions, transforms and
    constraints, and other registered pytrees.
    """
    seen = {} if seen is None else seen
    if isinstance(value, jax.core.Tracer):
        return replace(value)
    if id(value) in seen:
        return seen[id(value)][1]
    # With the value itself, whose identity nothing else can take as long as it is kept.
    seen[id(value)] = value, value
    again = partial(_replace_tracers, replace=replace, seen=seen)
    new = value
    if isinstance(value, dict):
        entries = {key: again(entry) for key, entry in value.items()}
        if any(entries[key] is not entry for key, entry in value.items()):
            new = copy.copy(value)
            new.update(entries)
    elif isinstance(value, list | tuple):
        parts = [again(part) for part in value]
        if any(a is not b for a, b in zip(parts, value, strict=True)):
            new = value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    elif isinstance(value, partial):
        held = value.func, value.args, value.keywords
        replaced = again(held)
        if replaced is not held:
            function, args, keywords = replaced
            new = type(value)(function, *args, **keywords)
    elif isinstance(value, _SEARCHED):
        attributes = vars(value)
        replaced = again(attributes)
        if replaced is not attributes:
            new = copy.copy(value)
            vars(new).update(replaced)
    elif value is not None and not jax.tree_util.all_leaves([value]):
        children, treedef = jax.tree.flatten(value, is_leaf=lambda node: node is not value)
        replaced = again(children)
        if replaced is not children:
            new = jax.tree.unflatten(treedef, replaced)
    seen[id(value)] = value, new
    return new

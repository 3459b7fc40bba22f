"""First run of a model: its structure, and the values its parameters are held at.

The run uses the engine's own initialisation strategy at every latent site, so that sites which
cannot be sampled (``ImproperUniform``) work. It may be traced: then nothing is computed and
nothing compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from numpyro import handlers
from numpyro.distributions import MaskedDistribution
from numpyro.infer import init_to_uniform

from numpyro_ext.density.handlers import (
    LOG_DETERMINANT,
    InitialStates,
    PlateRecorder,
    Site,
    Trace,
    belongs_to_prior,
    handling,
    is_enumerated,
    is_factor,
    is_latent,
    is_observation,
    site_log_prob,
    transform_of,
)
from numpyro_ext.density.layout import Data, DataPlate, Layout
from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.networks.random_module import note
from ppl_ext.process import swapped
from ppl_ext.target.bound_model import Found
from ppl_ext.target.families import family_of, is_improper, is_made_of
from ppl_ext.target.scores import check_each_once, check_masks, check_observations, check_weights

InitStrategy = Callable[..., Any]


def as_init_strategy(strategy: InitStrategy | None) -> Callable[[Site], Any]:
    """A NumPyro init strategy as a function of one site (default ``init_to_uniform``).

    Accepts the strategies of ``numpyro.infer`` with or without having been called, and any
    function that maps a site to an initial (constrained) value or None.
    """
    if strategy is None:
        return partial(init_to_uniform)
    if not callable(strategy):
        raise ArgumentError(
            f"init_strategy must be a callable, such as numpyro.infer.init_to_median or "
            f"init_to_value(values=...); found {type(strategy).__name__}."
        )
    return strategy


@dataclass
class FirstRun:
    """What one seeded run of the model showed.

    Parameters
    ----------
    trace : dict
        The trace, as far as the run came.
    plates : PlateRecorder
        Plates met, and which of them left the choice of rows to the engine.
    states : dict
        ``mutable`` sites as they were before the run changed them.
    error : Exception or None
        What stopped the run, if anything did.
    """

    trace: Trace
    plates: PlateRecorder
    states: dict[str, Any]
    error: Exception | None = None

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Each ``mutable`` site before and after the run."""
        return {
            name: (before, self.trace[name]["value"])
            for name, before in self.states.items()
            if name in self.trace
        }


def first_run(
    model: Callable[..., Any], rng_key: Array, data: Data, init_strategy: InitStrategy | None
) -> FirstRun:
    """Run ``model`` once with its latent sites at the strategy's initial values.

    An error inside the model is kept in the result rather than raised, so that the model check
    can explain it with what was met before it.
    """
    plates = PlateRecorder(model)
    states = InitialStates(plates)
    seeded = handlers.substitute(
        handlers.seed(states, rng_key), substitute_fn=as_init_strategy(init_strategy)
    )
    tracer = handlers.trace(seeded)
    # As JAX's arrays, which every evaluation has: NumPy's have other types, and are indexed
    # otherwise.
    arguments = data.on_device()
    error = None
    try:
        with handling(), swapped(warnings.catch_warnings()):
            # The target reports the site itself when no initial value helps.
            warnings.filterwarnings("ignore", "Out-of-support values provided to log prob method")
            tracer(*arguments.args, **arguments.kwargs)
            for site in tracer.trace.values():
                _check_site(site)
    except Exception as raised:  # noqa: BLE001 the check tells of it
        error = raised
    return FirstRun(getattr(tracer, "trace", {}), plates, states.states, error)


def _check_site(site: Site) -> None:
    """See that the shapes at a site go together, and that each datum counts once."""
    if site["type"] == "sample":
        with _classes_named(site):
            site_log_prob(site)  # shapes that do not go together show here
        if site["scale"] is not None and jnp.ndim(site["scale"]):
            log_prob = jax.eval_shape(site["fn"].log_prob, site["value"])
            check_weights(site["name"], "scale", site["scale"].shape, log_prob.shape)
    if is_observation(site):
        shape, frames = jnp.shape(site["value"]), site["cond_indep_stack"]
        check_masks(site["name"], site["fn"], shape, frames)
        check_observations(site["name"], site["fn"], shape, frames)
        if not site.get("_control_flow_done", False):  # steps are of no plate
            check_each_once(site["name"], site["fn"], shape, frames)


@contextmanager
def _classes_named(site: Any) -> Iterator[None]:
    """Context in which a distribution of whole numbers may meet those with a fraction.

    Raises
    ------
    ModelCheckError
        It indexes by them, which JAX refuses.
    """
    try:
        yield
    except TypeError as error:
        if not jnp.issubdtype(jnp.result_type(site["value"]), jnp.floating):
            raise
        if "integer" not in str(error):
            raise
        raise ModelCheckError(
            f"The density of site '{site['name']}' fails with values of type "
            f"{jnp.result_type(site['value'])}: {error}. Pass classes as whole numbers, "
            "y.astype(int)."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Structure(Found):
    """The fixed structure of a model with given arguments.

    Parameters
    ----------
    layout : Layout
        Latent sites and their unconstrained shapes at full length.
    plates : dict of str to DataPlate
        Subsampled plates whose rows the model looks up by the plate's indices.
    batch_plates : dict of str to DataPlate
        Plates smaller than their size because a batch was passed as arguments.
    local_sites : tuple of str
        Latent sites inside a subsampled plate.
    observed_sites : tuple of str
        Observed sites other than factors.
    has_likelihood : bool
        Whether there are observed sites or factors inside a plate.
    sees_data : bool
        Whether there are observed sites or factors.
    are_masked : bool
        Whether all observed sites have a mask.
    enumerated : tuple of str
        Discrete latent sites, which are summed out.
    nesting : int
        Plates that are open at once, at most.
    held : dict
        Values of ``param`` and ``mutable`` sites.
    states : tuple of str
        Which of them are ``mutable`` sites.
    latent_values : dict
        Shapes and dtypes of the constrained latent sites, as the first run met them.
    """

    held: dict[str, Any]
    states: tuple[str, ...] = ()
    latent_values: dict[str, jax.ShapeDtypeStruct] = field(default_factory=dict)
    has_likelihood: bool = True
    sees_data: bool = True
    are_masked: bool = False


def structure_of(run: FirstRun) -> Structure:
    """Read the structure off a completed first run.

    Every subsampled plate is listed under ``plates``; telling apart those whose indices the
    model does not use needs a second look (:func:`numpyro_ext.density.index_use.index_use`).
    """
    requested = {
        name: sizes for name, sizes in run.plates.requested.items() if sizes[0] != sizes[1]
    }
    dims = {
        frame.name: frame.dim
        for site in run.trace.values()
        for frame in site.get("cond_indep_stack", ())
    }
    plates = {
        name: DataPlate(name, size, subsample_size, dims.get(name, -1))
        for name, (size, subsample_size) in requested.items()
    }

    shapes: dict[str, tuple[int, ...]] = {}
    local: list[str] = []
    latent_values: dict[str, jax.ShapeDtypeStruct] = {}
    for name, site in run.trace.items():
        if not is_latent(site):
            continue
        transform = transform_of(site)
        value = site["value"]
        latent_values[name] = jax.ShapeDtypeStruct(jnp.shape(value), jnp.result_type(value))
        # Of the rows of this run; axes of subsampled plates are made as long as their plates below.
        shape = list(jnp.shape(transform.inv(value)))
        for frame in site["cond_indep_stack"]:
            if frame.name in plates:
                shape[frame.dim - transform.domain.event_dim] = plates[frame.name].size
                if name not in local:
                    local.append(name)
        shapes[name] = tuple(shape)

    held = {name: site["value"] for name, site in run.trace.items() if site["type"] == "param"}
    for name in held:
        _note_network(name, shapes)
    # Mutable sites as they were before the run, and not as it left them.
    held.update({name: state for name, state in run.states.items() if name in run.trace})
    families = {name: family_of(run.trace[name]["fn"]) for name in shapes}
    improper = tuple(name for name in shapes if is_improper(run.trace[name]["fn"]))
    return Structure(
        layout=Layout(tuple(shapes), shapes, families, improper),
        plates=plates,
        local_sites=tuple(local),
        observed_sites=tuple(n for n, site in run.trace.items() if is_observation(site)),
        held=held,
        states=tuple(name for name in run.states if name in run.trace),
        latent_values=latent_values,
        has_likelihood=any(
            site["type"] == "sample" and not belongs_to_prior(site) for site in run.trace.values()
        ),
        sees_data=any(
            is_observation(site) or (is_factor(site) and LOG_DETERMINANT not in site["infer"])
            for site in run.trace.values()
            if site["type"] == "sample"
        ),
        are_masked=all(
            is_made_of(site["fn"], MaskedDistribution)
            for site in run.trace.values()
            if is_observation(site)
        ),
        enumerated=tuple(name for name, site in run.trace.items() if is_enumerated(site)),
        nesting=max(
            [
                0,
                *(-dim for dim in dims.values() if dim is not None),
                *(len(s["fn"].batch_shape) for s in run.trace.values() if s["type"] == "sample"),
            ]
        ),
    )


def _note_network(name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Note one of the host's random modules; one layer alone is a regression, not a network.

    They hold their structure as a parameter, and draw an array at a site for each of its leaves.
    """
    module = name.removesuffix("$params")
    layers = [site for site, shape in shapes.items() if site.startswith(module) and len(shape) > 1]
    if module != name and len(layers) > 1:
        note(module)


def held_without_prior(structure: Structure) -> dict[str, int]:
    """``param`` values that stay at their initial values for want of a prior: name to size.

    The random modules replace each parameter that has a prior by a shape; Equinox modules keep
    it, and are told apart by the name of the latent site.
    """
    sizes: dict[str, int] = {}
    for name, value in structure.held.items():
        if name in structure.states:
            continue
        leaves, _ = jax.tree.flatten_with_path(value)
        prefix = name.removesuffix("$params")
        for path, leaf in leaves:
            if not jnp.size(leaf):
                continue
            key = jax.tree_util.keystr(path)[1:]
            replaced = key and any(
                latent.startswith(prefix) and latent.endswith(key)
                for latent in structure.layout.names
            )
            if not replaced:
                label = jax.tree_util.keystr(path, simple=True, separator=".")
                sizes[f"{name}.{label}" if label else name] = int(jnp.size(leaf))
    return sizes

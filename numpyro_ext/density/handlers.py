"""NumPyro effect handlers of the target layer: subsample control, unconstraining at run time,
and the log density's terms with the part (prior or likelihood) that each belongs to.

Everything is built on ``numpyro.handlers.substitute`` with a function, because that is the one
handler that ``numpyro.contrib.control_flow.scan`` carries into its body. The log determinant of
a transform is emitted as an observed ``Delta`` site at the place of the latent site, so that
plate scales apply to it. What ``handlers.scale`` and ``handlers.mask`` do to it, and in
``numpyro.infer.util.potential_energy`` leave there, is taken off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpyro
from jax import Array, random
from jaxtyping import Float
from numpyro import handlers
from numpyro.distributions import Delta, Independent, biject_to, constraints
from numpyro.distributions.distribution import ExpandedDistribution, MaskedDistribution, Unit
from numpyro.distributions.util import is_identically_one, sum_rightmost
from numpyro.infer.util import helpful_support_errors
from numpyro.primitives import _PYRO_STACK, Messenger

from numpyro_ext.density.layout import Indices
from ppl_ext import process
from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.target.discrete import support_error
from ppl_ext.target.families import is_made_of
from ppl_ext.target.missing_rows import MissingRows
from ppl_ext.target.scores import check_subsample_size, repeated_plates_error

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Site = dict[str, Any]
Trace = dict[str, Site]

# Key in a site's ``infer`` dictionary that marks a log determinant and names its latent site.
LOG_DETERMINANT = "_log_determinant_of"


class PlateControl(Messenger):
    """Gives the plates named in ``indices`` those rows, however many there are.

    The plate's scale becomes size / number of rows, and NumPyro's warning about a changed
    subsample size does not appear, because the message's own arguments are rewritten. A plate
    whose batch came as arguments (``batch_plates``) gets as many rows as it asks for; nobody
    looks at which.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        indices: Indices,
        sizes: Mapping[str, int],
        batch_plates: Collection[str] = (),
    ) -> None:
        self.indices = indices
        self.sizes = sizes
        self.batch_plates = batch_plates
        super().__init__(fn)

    def process_message(self, msg: Site) -> None:
        """Answer a plate's request for rows."""
        if msg["type"] != "plate":
            return
        name, size = msg["name"], msg["args"][0]
        if name in self.indices:
            if size != self.sizes[name]:
                raise ArgumentError(
                    f"Plate '{name}' was expected to have {self.sizes[name]} rows, as when the "
                    f"engine was initialised, but these arguments give it {size}. Pass arguments "
                    "of the same full size, or initialise the engine again."
                )
            rows = self.indices[name]
            # Both: the host takes its scale from the arguments and warns where the value has
            # another length.
            msg["value"], msg["args"] = rows, (size, rows.shape[0])
        elif name in self.batch_plates and msg["value"] is None:
            msg["value"] = jnp.arange(msg["args"][1])


class PlateRecorder(Messenger):
    """Records the plates that ask for a subsample and answers with their first rows.

    The first rows are as good as any for finding the model's structure, and cheaper and more
    repeatable than a random draw. Every plate met is recorded, with its full and subsample
    size; ``requested`` holds those that left the choice of rows to the engine.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.sizes: dict[str, tuple[int, int]] = {}
        self.requested: dict[str, tuple[int, int]] = {}
        super().__init__(fn)

    def process_message(self, msg: Site) -> None:
        """Record a plate and answer its request for rows."""
        if msg["type"] != "plate":
            return
        size, subsample_size = msg["args"]
        if subsample_size is None:
            subsample_size = size
        name, sizes = msg["name"], (size, subsample_size)
        # A plate may be opened twice where it holds all rows: nothing has to be chosen for it.
        if name in self.sizes and (sizes != self.sizes[name] or size != subsample_size):
            raise repeated_plates_error([name])
        self.sizes[name] = sizes
        if msg["value"] is None:
            check_subsample_size(name, size, subsample_size)
            self.requested[name] = (size, subsample_size)
            msg["value"] = jnp.arange(subsample_size)


class OneRow(Messenger):
    """Gives every plate its first row, which goes with arrays of any length.

    A model whose arrays do not fit its plates can so be run to the end. ``requested`` holds the
    size of each plate and the number of rows that it asks for.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.requested: dict[str, tuple[int, int]] = {}
        super().__init__(fn)

    def process_message(self, msg: Site) -> None:
        """Record a plate and answer with one row."""
        if msg["type"] != "plate":
            return
        size, rows = msg["args"]
        self.requested[msg["name"]] = (size, size if rows is None else rows)
        msg["value"], msg["args"] = jnp.arange(1), (size, 1)


class InitialStates(Messenger):
    """Keeps a copy of every ``mutable`` site as it is before the model changes it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.states: dict[str, Any] = {}
        super().__init__(fn)

    def postprocess_message(self, msg: Site) -> None:
        """Copy the container of a mutable site; its arrays cannot change."""
        if msg["type"] == "mutable" and msg["value"] is not None:
            # After the host's own handling, which makes the first value, and before the model
            # writes to it.
            self.states[msg["name"]] = jax.tree.map(lambda leaf: leaf, msg["value"])


class FixedKey(Messenger):
    """Answers ``numpyro.prng_key()`` with one fixed key, as NumPyro's own potentials do."""

    def process_message(self, msg: Site) -> None:
        """Supply the key."""
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = random.key(0)


class KeyRecorder(Messenger):
    """Records whether the model asks for a random key."""

    met = False

    def process_message(self, msg: Site) -> None:
        """Record a request."""
        self.met |= msg["type"] == "prng_key"


class WithoutDiscrete(Messenger):
    """Hides discrete latent sites, at some values, and what is observed where there are any.

    So a host guide sees the continuous sites alone. Whether it starts where the density is finite
    is for the target to say, which sums the discrete sites out.
    """

    met = False

    def __enter__(self) -> WithoutDiscrete:
        self.met = False
        return super().__enter__()

    def process_message(self, msg: Site) -> None:
        """Hide a site."""
        if msg["type"] != "sample":
            return
        if is_enumerated(msg):
            self.met = True
            msg["stop"] = True
            if msg["value"] is None:
                msg["value"] = msg["fn"].sample(
                    random.key(0), msg["kwargs"].get("sample_shape", ())
                )
        elif self.met and msg["is_observed"]:
            msg["stop"] = True


def missing_observations(name: str) -> ArgumentError:
    """The error for a site that was observed at set-up and is not in a later call."""
    return ArgumentError(
        f"Expected the observations of site '{name}', which was observed when the engine was set "
        "up, found none in these arguments. Pass them in the place that they had then; for "
        "predictions on new data use predictive_distribution, or Predictive(model, "
        "posterior_samples=engine.get_samples(...))."
    )


#: What NumPyro writes before names in the first steps of a ``scan`` with discrete sites, where a
#: site has its value from inside of the scan.
BEFORE = "_PREV_"


def value_of(trace: Trace, name: str) -> Array:
    """A site's value; of one in a ``scan`` with discrete sites that of all steps."""
    return _of_all_steps(trace, name, lambda site: site["value"])


def position_of(trace: Trace, name: str) -> Array:
    """The same in unconstrained space. Bounds may differ from step to step."""
    return _of_all_steps(trace, name, lambda site: transform_of(site).inv(site["value"]))


def _of_all_steps(trace: Trace, name: str, of: Callable[[Site], Array]) -> Array:
    before = [n for n in trace if n.startswith(BEFORE) and n.replace(BEFORE, "") == name]
    if not before:
        return of(trace[name])
    first = jnp.stack([of(trace[each]) for each in sorted(before, key=len, reverse=True)])
    if name not in trace:
        return first
    # NumPyro writes the first steps of such a scan one by one, all of them where it is short. Later
    # steps have dimensions of discrete sites besides, of size one.
    return jnp.concatenate([first, of(trace[name]).reshape(-1, *first.shape[1:])])


def is_latent(site: Site) -> bool:
    """Whether a trace entry is a latent sample site that has a position."""
    return _is_unobserved(site) and not is_enumerated(site)


def is_enumerated(site: Site) -> bool:
    """Whether a trace entry is a latent site with finitely many values, which are summed over."""
    if not _is_unobserved(site) or site["fn"].support is None:
        return False
    return bool(site["fn"].support.is_discrete and site["fn"].has_enumerate_support)


def _is_unobserved(site: Site) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def is_factor(site: Site) -> bool:
    """Whether a trace entry comes from ``numpyro.factor`` (or is a log determinant)."""
    if site["type"] != "sample" or not site["is_observed"]:
        return False
    if LOG_DETERMINANT in site["infer"]:
        return True
    return is_made_of(site["fn"], Unit)


def is_array(site: Site) -> bool:
    """Whether a trace entry is a deterministic site whose value is an array or a number."""
    is_value = isinstance(site["value"], bool | int | float) or hasattr(site["value"], "shape")
    return site["type"] == "deterministic" and is_value


def is_observation(site: Site) -> bool:
    """Whether a trace entry is an observed sample site other than a factor."""
    return site["type"] == "sample" and site["is_observed"] and not is_factor(site)


def transform_of(site: Site) -> Any:
    """The bijection from unconstrained space to the site's present support."""
    with helpful_support_errors(site):
        return biject_to(site["fn"].support)


def is_real(support: Any) -> bool:
    """Whether a support is all real numbers, so that values are their own positions."""
    if isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


def unconstraining(
    values: Mapping[str, Array],
    indices: Indices,
    seen: set[str],
    observed: Collection[str] = (),
) -> Callable[[Site], Array | None]:
    """A ``substitute_fn`` that maps unconstrained values into each latent site's support.

    Parameters
    ----------
    values : mapping of str to array
        Unconstrained values at full length, without batch dimensions.
    indices : dict of str to array
        Rows of the subsampled plates; sites inside them take only these rows.
    seen : set of str
        Collects the latent sites met, so that a changed structure is noticed.
    observed : collection of str
        Sites that must be observed.
    """

    def substitute(site: Site) -> Array | None:
        name = site["name"]
        if name in observed and _is_unobserved(site):
            raise missing_observations(name)
        if not is_latent(site) or name.startswith(BEFORE):
            return None
        if name not in values:
            raise ModelCheckError(
                f"Latent sample site '{name}' was not there when the model was first run: its "
                "structure changes between runs. Give the model the same latent sites on every "
                "run; use jnp.where or numpyro.handlers.mask in place of Python control flow."
            )
        seen.add(name)
        support, position = site["fn"].support, values[name]
        transform = transform_of(site)
        if (step := site["infer"].get("_scan_current_index")) is not None:
            # Inside scan a site sees one time step; its unconstrained values carry them all.
            shift = transform.codomain.event_dim - transform.domain.event_dim
            own = len(site["fn"].shape()) - shift
            if jnp.ndim(position) < own:
                raise ModelCheckError(
                    f"Latent site '{name}' inside scan has a distribution that depends on a "
                    "discrete latent site, which NumPyro does not support in scan. Expected one "
                    "that does not: sample a standard variable, such as Normal(0, 1), and shift "
                    "and scale it by the discrete site's values."
                )
            # Sites that are the same in all steps have one position for all of them.
            if jnp.ndim(position) > own:
                position = position[step]
        for frame in site["cond_indep_stack"]:
            if frame.name in indices:
                # Dimensions of plates are counted from the right of the batch, behind which the
                # event is.
                axis = frame.dim - transform.domain.event_dim
                position = jnp.take(position, indices[frame.name], axis=axis, mode="clip")
        if is_real(support):
            return position
        value = transform(position)
        shift = transform.codomain.event_dim - transform.domain.event_dim
        # More dimensions than the position has are those of a discrete site's values.
        if jnp.ndim(value) - shift > jnp.ndim(position):
            raise support_error(name)
        log_determinant = transform.log_abs_det_jacobian(position, value)
        extra = jnp.ndim(log_determinant) - jnp.ndim(value) + len(site["fn"].event_shape)
        log_determinant = sum_rightmost(log_determinant, extra)
        # Not numpyro.factor, whose value has no entries: scan beside discrete sites takes the axis
        # of these for one of its own.
        zero = jnp.zeros_like(log_determinant)
        numpyro.sample(
            f"_{name}_log_det",
            Delta(zero, log_determinant),
            obs=zero,
            infer={"is_auxiliary": True, LOG_DETERMINANT: name},
        )
        return value

    return substitute


def site_log_prob(site: Site) -> Float[Array, ""]:
    """Scaled and masked log probability of one trace entry, summed over its batch."""
    fn, scale = site["fn"], site["scale"]
    if LOG_DETERMINANT in site["infer"]:
        fn, scale = _unmasked(fn), _of_plates(site)
    log_prob = fn.log_prob(site["value"])
    if scale is not None and not is_identically_one(scale):
        log_prob = scale * log_prob
    return jnp.sum(log_prob)


# Rows of a plate stand for others. Scales and masks of handlers do not change how values are
# parameterised: with them, as in the host's potentials, the posterior depends on the transform.
def _of_plates(site: Site) -> Any:
    """The scale of a log determinant, without those of handlers."""
    scale, of_handlers = site["scale"], site.get("plate_to_scale", {}).get(None)
    if scale is None or of_handlers is None:
        return scale
    # ``where`` inside as well: the gradient of a quotient by zero would be NaN, whichever is taken.
    return jnp.where(of_handlers == 0, 0.0, scale / jnp.where(of_handlers == 0, 1.0, of_handlers))


def _unmasked(fn: Any) -> Any:
    """The distribution of a log determinant, without the masks of handlers."""
    if isinstance(fn, MaskedDistribution):
        return _unmasked(fn.base_dist)
    if isinstance(fn, ExpandedDistribution):
        return ExpandedDistribution(_unmasked(fn.base_dist), fn.batch_shape)
    if isinstance(fn, Independent):
        return _unmasked(fn.base_dist).to_event(fn.reinterpreted_batch_ndims)
    return fn


def is_changed_by_handlers(site: Site) -> bool:
    """Whether a trace entry is a log determinant that handlers scale or mask."""
    if site["type"] != "sample" or LOG_DETERMINANT not in site["infer"]:
        return False
    is_masked = is_made_of(site["fn"], MaskedDistribution)
    return None in site.get("plate_to_scale", {}) or is_masked


class _OwnDeterminants(Messenger):
    """Takes off what handlers inside do to the log determinants of the host's potentials."""

    def process_message(self, msg: Site) -> None:
        """Restore the factor that NumPyro writes beside a latent site."""
        name = msg["name"] if msg["type"] == "sample" else ""
        if name.startswith("_") and name.endswith("_log_det") and is_made_of(msg["fn"], Unit):
            msg["fn"], msg["scale"] = _unmasked(msg["fn"]), _of_plates(msg)


def with_own_determinants(model: Callable[..., Any]) -> Callable[..., Any]:
    """``model`` for the host to run, with log determinants that handlers do not change."""
    return functools.wraps(model)(_OwnDeterminants(model))


def belongs_to_prior(site: Site) -> bool:
    """Whether a sample site counts as prior rather than likelihood.

    Prior: latent sites, their log determinants, and factors outside every plate.
    Likelihood: observed sites, and factors inside a plate.
    """
    if is_latent(site) or LOG_DETERMINANT in site["infer"]:
        return True
    return is_factor(site) and not site["cond_indep_stack"]


def alone(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function that runs under handlers or sums by funsor, beside which no other thread does.

    A model that the host runs has the density of :class:`MissingRows` so. funsor keeps how it
    computes, at once or later, in one list for the whole process.
    """

    @functools.wraps(function)
    def made(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with handling():
            return function(*args, **kwargs)

    return made


@alone
def run_trace(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Trace:
    """Run ``model`` and return its trace."""
    return handlers.trace(model).get_trace(*args, **kwargs)


class _WithoutMask(Messenger):
    """Takes off one mask that the handlers inside have put on a site.

    Parameters
    ----------
    name : str
        The site. What the host's reparameterisations make of it has a name that begins so.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(None)

    def process_message(self, msg: Site) -> None:
        """Take the outermost mask off."""
        if msg["type"] == "sample" and msg["name"].startswith(self.name):
            msg["fn"] = msg["fn"].base_dist


_missing_rows = MissingRows(numpyro.primitives, _WithoutMask, jnp.asarray)


@process.swapping
@contextmanager
def handling() -> Iterator[None]:
    """Context in which no other thread's model is run under handlers, and none is left behind."""
    with process.handling(_PYRO_STACK), _missing_rows():
        yield

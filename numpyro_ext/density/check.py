"""The model check: everything that would make an engine fail or answer wrongly is found before
the first step, with what was expected, what was found and what to do.

Where NumPyro has words for a fault, its own leading words are kept, so that a search for the
message finds NumPyro's documentation as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Bool
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.infer.util import helpful_support_errors

from numpyro_ext.density.bound_model import BoundModel
from numpyro_ext.density.enumeration import (
    at_one_value_each,
    check_funsor,
    one_value_each,
    values_of,
)
from numpyro_ext.density.first_run import (
    FirstRun,
    InitStrategy,
    Structure,
    as_init_strategy,
    first_run,
    structure_of,
)
from numpyro_ext.density.handlers import (
    FixedKey,
    OneRow,
    PlateControl,
    Trace,
    is_enumerated,
    is_latent,
    run_trace,
    site_log_prob,
    transform_of,
    unconstraining,
)
from numpyro_ext.density.index_use import index_use
from numpyro_ext.density.layout import Data, Indices
from numpyro_ext.programs import Program
from ppl_ext.arguments import nonfinite_arguments
from ppl_ext.errors import ArgumentError, EvaluationWarning, ModelCheckError
from ppl_ext.process import swapped
from ppl_ext.target import discrete
from ppl_ext.target.families import innermost, is_made_of
from ppl_ext.target.scores import check_not_empty

_RANDOM_MODULES = "random_flax_module, random_nnx_module or random_eqx_module"


def check_model(
    model: Callable[..., Any],
    rng_key: Array,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    init_strategy: InitStrategy | None = None,
    allow_local_latents: bool = True,
    engine: str = "This engine",
) -> Structure:
    """Check that an engine can fit ``model`` with these arguments.

    Parameters
    ----------
    model : callable
        The NumPyro program.
    rng_key : array
        Key for the first run.
    args, kwargs
        Arguments of the model.
    init_strategy : callable, optional
        NumPyro init strategy; default ``init_to_uniform``.
    allow_local_latents : bool
        Whether the engine can carry latent sites inside a subsampled plate.
    engine : str
        Name of the engine, for messages.

    Returns
    -------
    Structure
        Latent sites, plates and held values.

    Raises
    ------
    ModelCheckError
        When the engine cannot fit the model; the message says what to change.
    """
    data = Data(args, kwargs)
    structure = structure_of_model(model, rng_key, data, init_strategy, engine)
    return resolve_plates(
        model, structure, data, allow_local_latents=allow_local_latents, engine=engine
    )


def structure_of_model(
    model: Callable[..., Any],
    rng_key: Array,
    data: Data,
    init_strategy: InitStrategy | None = None,
    engine: str = "This engine",
    *,
    checked: bool = True,
) -> Structure:
    """The structure of a model, by a first run that is traced, and so compiles next to nothing.

    Only where that fails is the model run operation by operation: every number is concrete then,
    so that errors have their best words, and so are arguments for models that need them.

    Raises
    ------
    ModelCheckError
        See :func:`check_model`.
    """

    def look(run: FirstRun) -> Structure:
        if checked:
            _check_networks(run)
        if run.error is not None:
            raise_first_error(run, model, data, init_strategy)
        if checked:
            _check_supports(run)
            _check_scans(run)
        structure = structure_of(run)
        if checked:
            observed = {name: run.trace[name]["value"] for name in structure.observed_sites}
            check_not_empty({name: jnp.size(value) for name, value in observed.items()})
        if checked and not structure.layout.dim:
            if structure.enumerated:
                raise discrete.only_discrete_error(engine, structure.enumerated)
            raise ModelCheckError(
                f"{engine} found no latent variables; every sample site is observed or has no "
                "entries. Add a latent numpyro.sample site, for example a prior over a parameter "
                "that is now a numpyro.param."
            )
        return structure

    found: tuple[Structure, dict[str, Any]] | None = None
    # A model that looks at values of its arguments cannot be traced by them: they are constants
    # then.
    for form in data.forms():
        try:
            # Warnings of a try that fails are dropped: the next one gives them again.
            with swapped(warnings.catch_warnings(record=True)) as heard:
                found = _traced(look, model, rng_key, form, init_strategy)
        except Exception:  # noqa: BLE001 the run below meets it, and says it better
            continue
        for warning in heard:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        break
    if found is None:
        run = first_run(model, rng_key, data, init_strategy)
        found = look(run), run.changes
    structure, changes = found
    if checked:
        _check_states(changes)
    return structure


def _traced(
    look: Callable[[FirstRun], Structure],
    model: Callable[..., Any],
    rng_key: Array,
    data: Data,
    init_strategy: InitStrategy | None,
) -> tuple[Structure, dict[str, Any]]:
    """What ``look`` finds in a traced first run, and the ``mutable`` sites before and after it.

    Values are computed, by one program, for parameters and states alone, where they are made in
    the run.
    """
    seen: list[Any] = []

    def run(rng_key: Array, data: Data) -> list[Any]:
        first = first_run(model, rng_key, data, init_strategy)
        if first.error is not None:
            raise first.error
        structure = look(first)
        leaves, tree = jax.tree.flatten((structure.held, first.changes))
        # A traced function returns arrays alone.
        seen[:] = structure, leaves, tree
        return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]

    # Traced only; it is compiled where values have to be computed, as those of a module's
    # parameters.
    program = jax.jit(run).trace(rng_key, data)
    structure, leaves, tree = seen
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        values = iter(program.lower().compile()(rng_key, data))
        leaves = [next(values) if isinstance(x, jax.core.Tracer) else x for x in leaves]
    held, changes = jax.tree.unflatten(tree, leaves)
    return replace(structure, held=held), changes


def raise_first_error(
    run: FirstRun, model: Callable[..., Any], data: Data, init_strategy: InitStrategy | None
) -> None:
    """Raise what stopped the first run, explained where the cause is known.

    Raises
    ------
    ModelCheckError
        For causes the check knows.
    ArgumentError
        The arrays' rows do not fit a plate.
    Exception
        The model's own error otherwise.
    """
    error = run.error
    assert error is not None
    text = str(error)
    if isinstance(error, ModelCheckError):
        raise error
    for site in run.trace.values():
        # A discrete or spherical site met on the way explains a later failure.
        if is_latent(site):
            _check_support(site)
    if isinstance(error, AssertionError) and text.startswith("all sites must have unique names"):
        raise ModelCheckError(
            f"{text}. Give every sample and deterministic site its own name, for example with "
            "numpyro.handlers.scope(prefix=...) around the repeated part."
        ) from error
    if isinstance(error, AssertionError) and text.startswith("size of plate"):
        raise ModelCheckError(
            f"{text}, found a plate without rows. Expected at least one row; check whether the "
            "data are empty."
        ) from error
    if isinstance(error, ValueError) and "distribution got invalid" in text:
        raise ModelCheckError(
            f"{text} Expected valid parameters of every distribution at the first values of the "
            "latent sites; check the data for NaN, and the supports."
            + nonfinite_arguments(model, data.args, data.kwargs)
        ) from error
    if isinstance(error, TypeError) and "'plate' object is not iterable" in text:
        raise ModelCheckError(
            "'plate' object is not iterable: NumPyro has no sequential plates. Use "
            "'with numpyro.plate(...) as indices:' and write the body for whole arrays, or "
            "numpyro.contrib.control_flow.scan for steps that depend on each other."
        ) from error
    if isinstance(error, ValueError) and "Continuous inference cannot handle" in text:
        raise ModelCheckError(text) from error
    if run.plates.sizes and isinstance(error, ValueError | TypeError | IndexError):
        raise_row_mismatch(model, data, error, init_strategy)
    if run.plates.requested and isinstance(error, ValueError | TypeError | IndexError):
        plates = ", ".join(
            f"'{name}' (size {size}, subsample_size {rows})"
            for name, (size, rows) in run.plates.requested.items()
        )
        lengths = [tuple(jnp.shape(array)) for array in data.arrays]
        raise ModelCheckError(
            f"The model failed inside or after its subsampled plates {plates} with array "
            f"arguments of shapes {lengths}: {type(error).__name__}: {text} Either pass the full "
            "data and look rows up by the plate's indices ('with plate(...) as i: ... y[i]'), or "
            "pass a batch whose number of rows is the plate's subsample_size."
        ) from error
    raise error


def raise_row_mismatch(
    model: Callable[..., Any], data: Data, error: Exception, init_strategy: InitStrategy | None
) -> None:
    """Raise ArgumentError where ``error`` comes from arrays whose rows do not fit a plate.

    The model is run again with one row in each plate, which fits arrays of any length, so that
    the sites show their own lengths. Nothing is raised when they explain nothing.

    Raises
    ------
    ArgumentError
        A site and a plate disagree; the message names both.
    """
    probe = OneRow(FixedKey(model))
    seeded = handlers.substitute(
        handlers.seed(probe, jax.random.key(0)), substitute_fn=as_init_strategy(init_strategy)
    )
    try:
        with swapped(warnings.catch_warnings()):
            warnings.simplefilter("ignore")
            trace = run_trace(seeded, data.args, data.kwargs)
    except (TypeError, ValueError, IndexError, AssertionError):
        return
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        batch = tuple(site["fn"].batch_shape)
        found = [(f"a distribution of batch shape {batch}", batch)]
        if site["is_observed"]:
            shape = tuple(jnp.shape(site["value"]))
            batch = shape[: len(shape) - site["fn"].event_dim]
            found.insert(0, (f"observations of shape {shape}", batch))
        for frame in site["cond_indep_stack"]:
            if frame.name not in probe.requested:
                continue
            size, rows = probe.requested[frame.name]
            for what, batch in found:
                # An axis of length one broadcasts to all rows.
                if len(batch) < -frame.dim or batch[frame.dim] in (1, rows):
                    continue
                asked = f", subsample_size {rows}" if rows != size else ""
                raise ArgumentError(
                    f"Site '{name}' does not fit plate '{frame.name}' (size {size}{asked}): "
                    f"expected {rows} rows, found {what}. When batches are passed as "
                    "arguments, give all arrays the same rows and write "
                    f"numpyro.plate('{frame.name}', {size}, subsample_size=x.shape[0]), x being "
                    "one of them. When the engine is to choose the rows, pass the full data and "
                    "look rows up by the plate's indices ('with plate(...) as i: ... y[i]'). "
                    f"{type(error).__name__}: {str(error).strip()}"
                ) from error


def parameters_are_valid(trace: Trace) -> Bool[Array, ""]:
    """Whether the parameters of all distributions in a trace lie in their domains."""
    valid = jnp.ones((), bool)
    for site in trace.values():
        fn = site["fn"] if site["type"] == "sample" else None
        while isinstance(fn, dist.Distribution):
            if fn._validate_args:
                for name, value in fn.get_args().items():
                    constraint = fn.arg_constraints[name]
                    # The host's own validation leaves these out as well.
                    if not dist.constraints.is_dependent(constraint):
                        valid &= jnp.all(constraint(value))
            fn = getattr(fn, "base_dist", None)
    return valid


def raise_invalid_parameters(
    model: Callable[..., Any], rng_key: Array, data: Data, init_strategy: InitStrategy | None
) -> None:
    """Raise what NumPyro says of parameters that are not valid, if it says so of the first run's.

    They may have been invalid because a latent site had a bad value.

    Raises
    ------
    Exception
        See :func:`raise_first_error`.
    """
    run = first_run(model, rng_key, data, init_strategy)
    if run.error is not None:
        raise_first_error(run, model, data, init_strategy)


def _check_networks(run: FirstRun) -> None:
    networks = [
        name.removesuffix("$params")
        for name, site in run.trace.items()
        if site["type"] == "param" and name.endswith("$params")
    ]
    observed_in = {
        frame.name
        for site in run.trace.values()
        if site["type"] == "sample" and site["is_observed"]
        for frame in site["cond_indep_stack"]
    }
    for name, site in run.trace.items():
        if not is_latent(site) or not site["cond_indep_stack"]:
            continue
        for network in networks:
            if not (name.startswith(network) and name != network):
                continue
            plates = [frame.name for frame in site["cond_indep_stack"]]
            if run.error is None and not observed_in.intersection(plates):
                continue
            raise ModelCheckError(
                f"Network '{network}' is made inside data plate '{plates[0]}', which gives weight "
                f"'{name}' one copy per row (shape {tuple(jnp.shape(site['value']))}). Call "
                f"{_RANDOM_MODULES} before the plate and only apply the network inside it."
            ) from run.error


def _check_support(site: dict[str, Any]) -> None:
    name, fn = site["name"], site["fn"]
    base = innermost(fn, dist.Delta)
    if isinstance(base, dist.Delta):
        raise ModelCheckError(
            f"Sample site '{name}' has a delta distribution; use `numpyro.deterministic` to add "
            "this value to the trace instead."
        )
    if fn.support is not None and fn.support.is_discrete:
        raise discrete.infinite_support_error(name, type(base).__name__)
    try:
        transform_of(site)
    except ValueError as error:
        raise ModelCheckError(str(error)) from error
    except NotImplementedError as error:
        raise ModelCheckError(
            f"Sample site '{name}' has support {fn.support!r}, for which NumPyro has no map from "
            "unconstrained space. Register one with numpyro.distributions.biject_to, or write the "
            "site through a transformed distribution."
        ) from error
    # For the host's warning about circular supports.
    with helpful_support_errors(site, raise_warnings=True):
        pass


def _check_values(site: dict[str, Any]) -> None:
    try:
        values_of(site["fn"])
    except NotImplementedError as error:
        if is_made_of(site["fn"], dist.Independent):
            raise discrete.joint_values_error(site["name"]) from error
        raise discrete.values_error([site["name"]], str(error)) from error


def _check_supports(run: FirstRun) -> None:
    for site in run.trace.values():
        if is_latent(site):
            _check_support(site)
        elif is_enumerated(site):
            check_funsor(site["name"])
            _check_values(site)
            if not site.get("_control_flow_done", False):
                discrete.check_plated(
                    site["name"], site["fn"].batch_shape, site["cond_indep_stack"]
                )


def _check_scans(run: FirstRun) -> None:
    for name, site in run.trace.items():
        if site["type"] != "sample" or not site.get("_control_flow_done", False):
            continue
        if site["scale"] is None or not site["cond_indep_stack"]:
            continue
        # NumPyro hides plates inside scan; what the scale handlers do not explain is theirs.
        # The host keeps the product of the scale handlers under the name None.
        by_handlers = site.get("plate_to_scale", {}).get(None, 1.0)
        if np.allclose(site["scale"], by_handlers, rtol=1e-5):
            continue
        plates = ", ".join(f"'{frame.name}'" for frame in site["cond_indep_stack"])
        raise ModelCheckError(
            f"Sample site '{name}' lies in a plate with subsample_size (one of {plates}) inside "
            "numpyro.contrib.control_flow.scan, where no engine can choose the rows: NumPyro would "
            "use the same random rows at every evaluation. Open the plate without subsample_size."
        )


def _changed(before: Any, after: Any) -> list[tuple[str, Any]]:
    old, _ = jax.tree.flatten_with_path(before)
    new = jax.tree.leaves(after)
    if len(old) != len(new):
        return []
    changed = []
    for (path, left), right in zip(old, new, strict=True):
        if jnp.issubdtype(jnp.result_type(left), jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        left, right = np.asarray(left), np.asarray(right)
        floating = jnp.issubdtype(left.dtype, jnp.floating)
        if left.shape != right.shape or not np.array_equal(left, right, equal_nan=bool(floating)):
            changed.append((jax.tree_util.keystr(path, simple=True, separator="."), left))
    return changed


def _check_states(changes: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (before, after) in changes.items():
        changed = _changed(before, after)
        # Running means and variances are in floating point; counters and keys of dropout are not.
        statistics = [p for p, leaf in changed if jnp.issubdtype(leaf.dtype, jnp.floating)]
        if statistics:
            raise ModelCheckError(
                f"Mutable site '{name}' changes while the model runs ({', '.join(statistics)}): a "
                "batch normalisation layer in train mode. Its output depends on the other rows of "
                "the batch, so the program has no fixed density. Put it in evaluation mode "
                "(module.eval() in flax.nnx, use_running_average=True), or use LayerNorm."
            )
        if changed:
            warnings.warn(
                f"Mutable site '{name}' draws random numbers while the model runs "
                f"({', '.join(path for path, _ in changed)}), as dropout in train mode does. Its "
                "state is held, so every evaluation uses the same draw; put the network in "
                "evaluation mode if that is not meant.",
                EvaluationWarning,
                stacklevel=2,
            )


def resolve_plates(
    model: Callable[..., Any],
    structure: Structure,
    data: Data,
    *,
    allow_local_latents: bool = True,
    engine: str = "This engine",
) -> Structure:
    """Tell plates whose rows the engine chooses from those whose batch came as arguments.

    Raises
    ------
    ModelCheckError
        For local latent sites where they cannot be carried, and for arrays that the plate's
        indices overrun.
    """
    if not structure.plates:
        return structure
    if structure.local_sites and not allow_local_latents:
        names = ", ".join(f"'{name}'" for name in structure.local_sites)
        raise ModelCheckError(
            f"{engine} does not support local latent variables: latent sites {names} lie inside a "
            "subsampled plate. Use an engine that keeps them at full length (SVGD), leave "
            "subsample_size out, sum the local latents out, or use SVI with AutoNormal(model, "
            "create_plates=...) or an encoder of your own."
        )
    sizes = {name: plate.size for name, plate in structure.plates.items()}
    indices = {name: np.arange(plate.subsample_size) for name, plate in structure.plates.items()}
    latents = structure.latent_values

    def log_joint(indices: Indices, latents: dict[str, Array], data: Data) -> Array:
        # At the values of the first run: only which arrays are looked up matters.
        values = {**structure.held, **latents}
        controlled = PlateControl(handlers.substitute(FixedKey(model), data=values), indices, sizes)
        # Discrete sites take any values: which rows are looked up does not depend on them.
        trace = run_trace(handlers.seed(controlled, jax.random.key(0)), data.args, data.kwargs)
        terms = [site_log_prob(site) for site in trace.values() if site["type"] == "sample"]
        return jnp.stack([jnp.asarray(term, float) for term in terms])

    look = partial(index_use, log_joint, indices, sizes, latents)
    try:
        (used, short), _ = data.tried(look, (TypeError, IndexError))
    except jax.errors.TracerArrayConversionError as error:
        raise closure_error(structure.plates) from error
    for name, rows in short.items():
        raise ModelCheckError(
            f"Plate '{name}' has {sizes[name]} rows, but the model looks its indices up in an "
            f"array of only {rows} rows; JAX would read the last row for every index beyond. Pass "
            f"the full arrays of {sizes[name]} rows, or, to pass batches as arguments, use the "
            "batch as it is without indexing it."
        )
    batch = {name: plate for name, plate in structure.plates.items() if name not in used}
    if batch and structure.local_sites:
        names = ", ".join(f"'{name}'" for name in structure.local_sites)
        plates = ", ".join(f"'{name}'" for name in batch)
        raise ModelCheckError(
            f"Latent sites {names} lie inside a subsampled plate, but the batch of plate {plates} "
            "is passed as arguments, so nothing says which rows it holds. Pass the full data and "
            "look rows up by the plate's indices ('with plate(...) as i: ... y[i]')."
        )
    owned = {name: plate for name, plate in structure.plates.items() if name in used}
    return replace(structure, plates=owned, batch_plates=batch)


def closure_error(names: Iterable[str]) -> ModelCheckError:
    """The message for a NumPy array that the model closes over and indexes by a plate."""
    plates = ", ".join(f"'{name}'" for name in names)
    return ModelCheckError(
        f"A NumPy array is indexed by the indices of plate {plates}, which are traced by JAX. Pass "
        "the array as an argument of the model, or make it a JAX array with jnp.asarray."
    )


def check_enumeration(bound: BoundModel, data: Data) -> None:
    """See that the density is the same with all values of discrete sites as with one each.

    Raises
    ------
    ModelCheckError
        It is another.
    """
    if not bound.enumerated or len(bound.enumerated) > discrete.MOST_COMPARED:
        return
    rows = bound.first_rows()

    def compared(position: Array, data: Data, rng_key: Array) -> Any:
        found = at_one_value_each(bound.trace(position, data, rows), rng_key)
        if found is None:
            return None
        values, together = found
        substitution = unconstraining(
            bound.layout.split(position), rows, set(), bound.observed_sites
        )
        model = handlers.substitute(bound.controlled(rows), substitute_fn=substitution)
        model = handlers.substitute(model, substitute_fn=one_value_each(values))
        trace = run_trace(model, data.args, data.kwargs)
        each = {}
        for name in together:
            terms = trace[name]["fn"].log_prob(trace[name]["value"])
            # The second sum says how large rounding may be.
            each[name] = terms.sum(), jnp.abs(terms).sum()
        return together, each

    # Another number for each coordinate, the same in every run.
    position = 0.1 * jnp.cos(jnp.arange(bound.layout.dim)).astype(bound.dtype)
    program, epsilon = Program(compared, rarely=True), float(jnp.finfo(bound.dtype).eps)
    for seed in range(discrete.VALUES_COMPARED):
        found = program(position, data, random.key(seed))
        if found is None:
            return
        together = {name: float(total) for name, total in found[0].items()}
        each = {name: discrete.SiteTerms(*map(float, terms)) for name, terms in found[1].items()}
        discrete.check_one_value_each(bound.enumerated, together, each, epsilon)

"""Modules of flax and equinox taken apart: their parameters, and what cannot be in a program.

Which library a module is of is looked up among those that are imported: nobody has a module of one
that is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters.partial_eval import dce_jaxpr

from ppl_ext.errors import ArgumentError
from ppl_ext.networks.modules import refuse_batch_statistics, refuse_random_layers
from ppl_ext.networks.parameters import Parameter
from ppl_ext.options import described

Apart = tuple[dict[str, Parameter], Callable[[Mapping[str, Any]], Callable[..., Any]]]

_EVALUATE = {
    "nnx": "module.eval()",
    "linen": "the layers with use_running_average=True and deterministic=True",
    "equinox": "equinox.nn.inference_mode(module)",
}


def take_apart(
    module: Any, input_shape: tuple[int, ...] | None, variables: Mapping[str, Any] | None
) -> Apart:
    """The parameters of a module, and a function that makes a callable of values for them.

    Raises
    ------
    ArgumentError
        It is no module that is known, or an argument for linen is missing or superfluous.
    ModelCheckError
        A layer uses the statistics of the batch, or draws at random.
    """
    if _is(module, "flax.linen", "Module"):
        return _linen(module, input_shape, variables)
    if input_shape is not None or variables is not None:
        raise ArgumentError(
            "Expected input_shape and variables with a flax.linen.Module alone, found them with "
            f"{described(module)}."
        )
    if _is(module, "flax.nnx", "Module"):
        return _nnx(module)
    if _is(module, "equinox", "Module"):
        return _equinox(module)
    raise ArgumentError(
        "Expected module to be a flax.nnx.Module, a flax.linen.Module or an equinox.Module, found "
        f"{described(module)}."
    )


def _is(module: Any, library: str, *names: str) -> bool:
    """Whether something is of one of a library's classes; it is not where that is not imported."""
    found = sys.modules.get(library)
    return found is not None and isinstance(module, tuple(getattr(found, name) for name in names))


def _nnx(module: Any) -> Apart:
    from flax import nnx

    layers: dict[Any, Any] = dict(nnx.iter_modules(module))
    _refuse(
        {_dotted(path): layer for path, layer in layers.items()},
        lambda layer: isinstance(layer, nnx.BatchNorm) and not layer.use_running_average,
        lambda layer: isinstance(layer, nnx.Dropout) and layer.rate > 0 and not layer.deterministic,
        _EVALUATE["nnx"],
    )
    split: Any = nnx.split(module, nnx.Param, ...)
    graph, weights, rest = split
    flat: dict[Any, Any] = dict(nnx.to_flat_state(weights))
    scaled = (nnx.BatchNorm, nnx.LayerNorm, nnx.GroupNorm, nnx.RMSNorm)
    found = {}
    for path, variable in flat.items():
        owner, leaf, value = layers.get(path[:-1]), path[-1], variable.get_value()
        inputs, units = _flax_axes(leaf, value, getattr(owner, "out_features", None))
        centre = float(isinstance(owner, scaled) and leaf == "scale")
        name = _dotted(path)
        found[name] = Parameter(name, tuple(value.shape), inputs, units, centre, value)

    def with_values(values: Mapping[str, Any]) -> Callable[..., Any]:
        state = nnx.from_flat_state(
            [
                (path, variable.replace(values.get(_dotted(path), variable.get_value())))
                for path, variable in flat.items()
            ]
        )

        def copied() -> Any:
            # So that nothing that a call writes stays. Random numbers that it takes come again in
            # every call, such as one mask of dropout for good.
            return nnx.merge(graph, state, rest, copy=True)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = copied()
            before = counts(made)
            result = made(*args, **kwargs)
            after = counts(made)
            if any(after[path] is not before.get(path) for path in after):
                refuse_random_layers(streams(copied, args, kwargs), _EVALUATE["nnx"])
            return result

        return call

    def counts(made: Any) -> dict[str, Any]:
        """How often each stream of random numbers was asked, by where the stream is."""
        return {path: node.get_value() for path, node in held(made, nnx.RngCount).items()}

    def held(made: Any, kind: type) -> dict[str, Any]:
        """Counts or keys of streams of random numbers, by where the stream is."""
        nodes: Any = nnx.iter_graph(made)
        return {_dotted(path[:-1]): node for path, node in nodes if isinstance(node, kind)}

    def streams(copied: Callable[[], Any], args: Any, kwargs: Any) -> list[str]:
        """Streams of random numbers on which the results of a call depend.

        That counts are others does not tell: recurrent layers ask for numbers which they do not
        use, and transforms such as ``nnx.remat`` write all counts anew.
        """
        keys = {path: node.get_value() for path, node in held(copied(), nnx.RngKey).items()}

        def results(keys: dict[str, Any]) -> list[Any]:
            made = copied()
            for path, node in held(made, nnx.RngKey).items():
                node.set_value(keys[path])
            found = jax.tree.leaves(made(*args, **kwargs))
            return [leaf for leaf in found if isinstance(leaf, jax.Array)]

        program = jax.make_jaxpr(results)(keys).jaxpr
        _, used = dce_jaxpr(program, [True] * len(program.outvars))
        return [path for path, is_used in zip(sorted(keys), used, strict=True) if is_used]

    return found, with_values


def _linen(
    module: Any, input_shape: tuple[int, ...] | None, variables: Mapping[str, Any] | None
) -> Apart:
    from flax.errors import InvalidRngError, ModifyScopeVariableError
    from flax.traverse_util import flatten_dict, unflatten_dict

    if (input_shape is None) == (not variables):
        raise ArgumentError(
            "Expected one of input_shape, of an input with its rows, and variables, as module.init "
            f"returns them, with a flax.linen.Module, found {'both' if variables else 'neither'}."
        )
    made: Any = variables
    if made is None:
        rngs = {name: jax.random.key(0) for name in ("params", "dropout")}
        # The shapes are all that a prior needs. No weights are drawn.
        made = jax.eval_shape(module.init, rngs, jnp.ones(input_shape))
    # Layers that are made as they are called come in another order from init than from its shapes.
    flat = dict(sorted(flatten_dict(made.get("params", {})).items()))
    state = {name: values for name, values in made.items() if name != "params"}
    found = {}
    for path, value in flat.items():
        inputs, units = _flax_axes(path[-1], value, None)
        centre = float(path[-1] == "scale" and value.ndim == 1)
        name = _dotted(path)
        found[name] = Parameter(name, tuple(value.shape), inputs, units, centre, value)
    if variables is None and state:
        raise ArgumentError(
            f"Expected variables, as module.init returns them, for a module with {sorted(state)}, "
            "found input_shape: what is kept there is no parameter and has to be given."
        )

    def with_values(values: Mapping[str, Any]) -> Callable[..., Any]:
        left = [name for name in found if name not in values]
        if left and variables is None:
            raise ArgumentError(
                f"Expected variables, as module.init returns them, for parameters without prior, "
                f"{left[:10]}, found input_shape, which gives no values."
            )
        params = unflatten_dict(
            {path: values.get(_dotted(path), value) for path, value in flat.items()}
        )

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return module.apply({"params": params, **state}, *args, **kwargs)
            except ModifyScopeVariableError as error:
                refuse_batch_statistics([str(error).split('"')[3]], _EVALUATE["linen"])
                raise
            except InvalidRngError as error:
                refuse_random_layers([str(error).split(" ")[0]], _EVALUATE["linen"])
                raise

        return call

    return found, with_values


def _equinox(module: Any) -> Apart:
    import equinox

    layers: dict[str, Any] = {}

    def collect(path: tuple[Any, ...], value: Any) -> None:
        layers[_keys(path)] = value
        children = jax.tree_util.tree_leaves_with_path(
            value, is_leaf=lambda each: isinstance(each, equinox.Module) and each is not value
        )
        for more, child in children:
            if isinstance(child, equinox.Module):
                collect((*path, *more), child)

    collect((), module)
    _refuse(
        layers,
        lambda layer: isinstance(layer, equinox.nn.BatchNorm) and not layer.inference,
        lambda layer: isinstance(layer, equinox.nn.Dropout) and layer.p > 0 and not layer.inference,
        _EVALUATE["equinox"],
    )
    weights, rest = equinox.partition(module, equinox.is_inexact_array)
    leaves, structure = jax.tree_util.tree_flatten_with_path(weights)
    names = [_keys(path) for path, _ in leaves]
    scaled = tuple(
        getattr(equinox.nn, name) for name in ("BatchNorm", "LayerNorm", "GroupNorm", "RMSNorm")
    )
    found = {}
    for name, (_, value) in zip(names, leaves, strict=True):
        owner, _, leaf = name.rpartition(".")
        layer = layers.get(owner)
        matrix = value.ndim >= 2 and "weight" in leaf
        # Nothing is summed over the axes of a table, nor over those that a scale is spread over.
        known = matrix and not isinstance(layer, (equinox.nn.Embedding, *scaled))
        inputs, units = ((1,), (0,)) if known else ((), ())
        centre = float(isinstance(layer, scaled) and leaf == "weight")
        found[name] = Parameter(name, tuple(value.shape), inputs, units, centre, value)

    def with_values(values: Mapping[str, Any]) -> Callable[..., Any]:
        given = [values.get(name, value) for name, (_, value) in zip(names, leaves, strict=True)]
        return equinox.combine(jax.tree_util.tree_unflatten(structure, given), rest)

    return found, with_values


def _refuse(
    layers: Mapping[str, Any],
    uses_batch: Callable[[Any], bool],
    draws: Callable[[Any], bool],
    evaluate: str,
) -> None:
    refuse_batch_statistics([path for path, layer in layers.items() if uses_batch(layer)], evaluate)
    refuse_random_layers([path for path, layer in layers.items() if draws(layer)], evaluate)


def _flax_axes(leaf: Any, value: Any, units: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes of inputs and of units of flax's kernels, whose units are last."""
    if value.ndim < 2 or leaf != "kernel":
        return (), ()
    # Attention has kernels whose units have several axes.
    number = len(units) if isinstance(units, tuple) else 1
    return (value.ndim - number - 1,), tuple(range(value.ndim - number, value.ndim))


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _keys(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")

"""Runs of a model whose structure is not known yet, which refuse what cannot work at a site."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import torch
from pyro.distributions import Delta
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Transform
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ppl_ext.arguments import named_arrays, nonfinite_arguments
from ppl_ext.errors import ModelCheckError
from ppl_ext.networks.random_module import note
from ppl_ext.target.bound_model import Found
from ppl_ext.target.discrete import check_plated, infinite_support_error, joint_values_error
from ppl_ext.target.families import innermost, innermost_constraint
from ppl_ext.target.scores import check_each_once, check_masks, check_observations, check_weights
from pyro_ext.density.enumeration import is_enumerated
from pyro_ext.density.failed_factors import FailedFactors
from pyro_ext.density.handlers import (
    DiscoveryHandler,
    SubsampleControl,
    global_generator,
    is_angle,
    is_deterministic,
    plate_frames,
    plate_shape_error,
    running,
    without_host_checks,
    without_validation,
)
from pyro_ext.density.layout import with_own_containers


@dataclass(frozen=True, kw_only=True)
class Structure(Found):
    """What the model check found; see :class:`~pyro_ext.density.log_density.LogDensity`."""

    has_likelihood: bool
    sees_data: bool
    parameters: Any
    parameter_names: tuple[str, ...]
    device: torch.device


class Derived(TorchDispatchMode):
    """Knows the tensors that are computed from some others, while it is active."""

    def __init__(self, tree: Any) -> None:
        super().__init__()
        # The tensors themselves are kept: the number of one that is gone may be given again.
        self._known = {id(each): each for each in _tensors(tree)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(id(each) in self._known for each in _tensors((args, kwargs))):
            self._known |= {id(each): each for each in _tensors(found)}
        return found

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._known

    def add(self, value: Tensor) -> None:
        """Take this tensor for one of the others."""
        self._known[id(value)] = value


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (each for each in pytree.tree_leaves(tree) if isinstance(each, Tensor))


class CheckHandler(DiscoveryHandler):
    """Discovery that also names the site at fault."""

    def __init__(
        self,
        indices: Mapping[str, Tensor],
        plates: Mapping[str, tuple[int, int]],
        modules: list[torch.nn.Module],
    ) -> None:
        super().__init__(indices, plates)
        self.modules = modules
        #: What is computed from values of latent sites, in a run that is validated.
        self.latent = Derived(())
        self.parameter_names: list[str] = []
        #: Layers of torch that draw weights where they are called.
        self.layers: list[torch.nn.Module] = []

    def unconstrained_value(self, msg: Any, transform: Transform) -> Tensor:
        value = super().unconstrained_value(msg, transform)
        self.latent.add(value)
        return value

    def _pyro_param(self, msg: Any) -> None:
        self.parameter_names.append(msg["name"])

    def _pyro_sample(self, msg: Any) -> None:
        if not site_is_subsample(msg) and not msg["is_observed"]:
            self._check_latent(msg)
        super()._pyro_sample(msg)

    def _check_latent(self, msg: Any) -> None:
        name, fn = msg["name"], innermost(msg["fn"], Delta)
        if isinstance(fn, Delta):
            raise ModelCheckError(
                f"Sample site '{name}' has a delta distribution, found as a latent site. Expected "
                "a distribution with a density; use pyro.deterministic for a value that is "
                "computed from other sites."
            )
        if is_angle(fn):
            warnings.warn(
                f"Continuous inference poorly handles circular sample site '{name}': it is cut at "
                "-pi and pi, so that a posterior around there has two modes. Consider measuring "
                "the angle from a direction near the data. Take draws from the engine: a host's "
                "guide knows nothing of the cut.",
                UserWarning,
                stacklevel=2,
            )
        if is_enumerated(msg):
            check_plated(msg["name"], msg["fn"].batch_shape, plate_frames(msg))
        elif _is_discrete(msg["fn"]):
            if fn.has_enumerate_support:
                raise joint_values_error(name)
            raise infinite_support_error(name, type(fn).__name__)
        frames = plate_frames(msg)
        module = self.modules[-1] if self.modules else None
        if module is None or not _is_network_layer(module):
            return
        if not any(module is each for each in self.layers):
            self.layers.append(module)
        # One layer alone is a regression, whose weights have an identity.
        if len(self.layers) > 1:
            note("layers")
        if frames:
            raise ModelCheckError(
                f"A network is called inside plate '{frames[0].name}': its weights '{name}' would "
                f"be drawn once for each of the plate's {frames[0].size} rows. Expected weights "
                "outside the plate; make the plate first, call the network, then enter it: "
                f"`plate = pyro.plate({frames[0].name!r}, ...); out = net(x); with plate: ...`."
            )

    def _is_moved(self, msg: Any) -> bool:
        """Whether values of latent sites move an observation or an end of its support."""
        fn = msg["fn"]
        if msg["value"].isnan().any():
            return False  # inside of no support
        if msg["value"] in self.latent:
            return True
        while fn is not None:
            for part in (innermost_constraint(fn.support), *getattr(fn, "transforms", ())):
                if any(each in self.latent for each in vars(part).values()):
                    return True
            fn = getattr(fn, "base_dist", None)
        return False

    def _add_density(self, msg: Any) -> None:
        try:
            super()._pyro_post_sample(msg)
        except ValueError as error:
            is_outside = msg["is_observed"] and "to be within the support" in str(error)
            if not (is_outside and self._is_moved(msg)):
                raise
            # At other values of latent sites the observations may be inside.
            msg["fn"] = without_validation(msg["fn"])
            super()._pyro_post_sample(msg)

    def _pyro_post_sample(self, msg: Any) -> None:
        try:
            self._add_density(msg)
        except (ValueError, RuntimeError) as error:
            if isinstance(error, ModelCheckError):
                raise
            whole = msg["is_observed"] and not msg["value"].is_floating_point()
            number = "numbers in floating point, as `y.float()`, " if whole else ""
            shape = tuple(msg["fn"].shape())
            raise ModelCheckError(
                f"Error while computing log_prob at site '{msg['name']}': {error}\n"
                f"Expected {number}values inside the distribution's support and of a shape that "
                f"broadcasts with {shape}; check the data and the shapes at this site."
            ) from error
        if not site_is_subsample(msg) and not is_deterministic(msg):
            value, fn = msg["value"], msg["fn"]
            # Shape of the log density, with which a scale or a mask has to broadcast without making
            # it larger.
            own = value.shape[: value.dim() - fn.event_dim]
            log_prob = torch.broadcast_shapes(fn.batch_shape, own)
            for what in ("scale", "mask"):
                if isinstance(msg[what], Tensor):
                    check_weights(msg["name"], what, msg[what].shape, log_prob)
        if msg["is_observed"] and not site_is_subsample(msg):
            check_masks(msg["name"], msg["fn"], msg["value"].shape, plate_frames(msg))
            site = msg["name"], msg["fn"], msg["value"].shape, plate_frames(msg)
            check_observations(*site)
            check_each_once(*site)


def _is_discrete(fn: Any) -> bool:
    try:
        return bool(fn.support.is_discrete)
    except NotImplementedError:
        return False


def _contents(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, int]:
    """By argument a number that changes when it is written to."""
    contents = {}
    for name, each in named_arrays(model, args, kwargs):
        if isinstance(each, Tensor) and not each.is_inference():
            contents[name] = each._version  # torch counts
        elif isinstance(each, np.ndarray) and not each.dtype.hasobject:
            # NumPy counts no writes, so the bytes are summed up; a checksum is enough to notice a
            # change.
            contents[name] = zlib.crc32(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data)
    return contents


def _is_network_layer(module: torch.nn.Module) -> bool:
    return any(
        kind.__module__.startswith("torch.nn.modules") and kind is not torch.nn.Module
        for kind in type(module).__mro__
    )


@contextmanager
def _watch_modules() -> Iterator[list[torch.nn.Module]]:
    """Keep a stack of the modules that are being called, and refuse batch norm in train mode."""
    stack: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, inputs: Any) -> None:
        # Only then does a call write to the module; vmap would refuse that later, without a name.
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats:
            raise ModelCheckError(
                f"Found {type(module).__name__} in train mode. Its running statistics would "
                "change at every evaluation of the log density. Expected a model without side "
                "effects; call .eval() on the module, or use LayerNorm or GroupNorm."
            )
        stack.append(module)

    def leave(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if stack and stack[-1] is module:
            stack.pop()

    hooks = [
        register_module_forward_pre_hook(enter),
        # Also after a call that has failed, whose module would else stay on the stack.
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield stack
    finally:
        for hook in hooks:
            hook.remove()


@dataclass
class ModelRun:
    """What one run of the model showed."""

    handler: CheckHandler
    control: SubsampleControl
    parameters: Any


def run_once(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    indices: Mapping[str, Tensor],
    seed: int,
    radius: float,
    parameters: Any = None,
    validate: bool = True,
    dtype: torch.dtype | None = None,
) -> ModelRun:
    """Run a model at small random positions, with these rows of its plates.

    Raises
    ------
    ModelCheckError
        The model changes an argument in place, mixes types of numbers, or has distributions whose
        parameters are not valid.
    """
    before = _contents(model, args, kwargs) if validate else {}
    with (
        FailedFactors() if validate else without_host_checks(),
        global_generator(seed),
        torch.no_grad(),
        running(parameters, indices) as control,
        _watch_modules() as modules,
    ):
        handler = CheckHandler(indices, control.plates, modules)
        handler.radius, handler.validate, handler.dtype = radius, validate, dtype
        try:
            with handler.latent if validate else nullcontext(), handler:
                own_args, own_kwargs = with_own_containers(args, kwargs)
                model(*own_args, **own_kwargs)
        except ValueError as error:
            named = nonfinite_arguments(model, args, kwargs)
            if isinstance(error, ModelCheckError) and named:
                raise ModelCheckError(f"{error}{named}") from error
            shape_error = None if indices else plate_shape_error(error)
            if shape_error is not None:
                raise shape_error from error
            if "to satisfy the constraint" in str(error):
                raise ModelCheckError(
                    f"The model failed with all latent sites near zero in unconstrained space: "
                    f"{error}\nExpected valid parameters of every distribution there; check the "
                    f"data for NaN, and the supports.{named}"
                ) from error
            raise
        except RuntimeError as error:
            own = torch.get_default_dtype() if dtype is None else dtype
            others = [
                f"'{name}' of {each.dtype}"
                for name, each in named_arrays(model, args, kwargs)
                if isinstance(each, Tensor) and each.dtype != own
            ]
            if others and any(word in str(error) for word in ("dtype", "scalar type")):
                raise ModelCheckError(
                    f"{error}\nLatent sites are of {own}, argument {', '.join(others)}, and the "
                    "model mixes them in an operation that takes one type. Expected data of the "
                    "latent sites' type, as x.float() gives, or an engine with dtype=... that is "
                    "theirs."
                ) from error
            raise
        after = _contents(model, args, kwargs) if validate else {}
        changed = [name for name, content in after.items() if before.get(name) != content]
        if changed:
            raise ModelCheckError(
                f"The model changes its argument {', '.join(map(repr, changed))} in place, so that "
                "every run sees other data (this check was one run). Expected a model that leaves "
                "its arguments as they are; write y = y - 1 for y -= 1 or y.sub_(1)."
            )
        parameters = {key: dict(value) for key, value in pyro.get_param_store().get_state().items()}
    return ModelRun(handler, control, parameters)

"""What the engines that fit a guide share (``GuideEngine``).

The guide is any with a flat log density (:mod:`pyro_ext.guides.flat_density`). The base sets it
up, draws from it, saves it, and knows how far a run has come. The plan holds the guide's live
parameters. A subclass fills in ``_update``, which takes one step by changing them in place (see
``_write`` and :func:`~pyro_ext.descent.descend`). What it decides about the guide it adds to the
:class:`GuidePlan`, in ``_plan``. A subclass with a state of its own extends ``_initialize``,
``_algorithm_state`` and ``_load_algorithm_state``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pyro
import torch
from jaxtyping import Float
from pyro.infer.autoguide import AutoGuide
from torch import Generator, Tensor

from ppl_ext.engines.base import draws_asked
from ppl_ext.engines.guide_engine import GuideShell
from ppl_ext.engines.judgement import Drawn
from ppl_ext.errors import ArgumentError
from ppl_ext.process import hold
from ppl_ext.running import state_files
from ppl_ext.score_matching.options import LEARNING_RATE
from pyro_ext.density import Data, LogDensity
from pyro_ext.descent import check_shapes, checked_optimizer, run_length
from pyro_ext.engine import Engine, Plan, on_host
from pyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    flat_density,
    has_own_start,
)
from pyro_ext.optim import Coordinates, EngineOptimizer, OptimizerLike

#: Which engine, by a token of its own, writes to a guide: the one that was set up last.
_WRITERS: WeakKeyDictionary[AutoGuide, object] = WeakKeyDictionary()

#: Axis of the host guides' parameters along which the coordinates of the flat vector run; rows of
#: a Cholesky factor and of a low-rank factor belong to coordinates. A parameter that is not named
#: here, or has another length there, belongs to no coordinate.
AXES = {"loc": -1, "scale_unconstrained": -1, "scale_tril_unconstrained": -2, "cov_factor": -2}


@dataclass(frozen=True)
class GuidePlan(Plan):
    """What an engine that fits a guide decides when it meets the model's arguments.

    Parameters
    ----------
    token : object
        Says that the guide is this plan's, as long as no other is made for it.
    density : FlatDensity
        The guide as a density over the flat unconstrained vector.
    parameters : dict of str to tensor
        The guide's own, unconstrained: it is always the present fit, without copies.
    num_samples : int
        Draws S per step.
    learning_rate : float
        Of the default optimizer, at the start of a run.
    clip_norm : float, optional
        Limit on the length of the gradient.
    """

    token: object = field(repr=False, compare=False)
    density: FlatDensity = field(repr=False, compare=False)
    parameters: Parameters = field(repr=False, compare=False)
    num_samples: int
    learning_rate: float
    clip_norm: float | None


class GuideState(NamedTuple):
    """What the next step needs besides the guide.

    Parameters
    ----------
    optimizer : EngineOptimizer, optional
    method : any
        What the method remembers: tensors and plain values in containers, or a subclass saves it.
    """

    optimizer: EngineOptimizer | None = None
    method: Any = None


class GuideEngine(GuideShell, Engine):
    _host_guide = AutoGuide
    _host_optimizer = staticmethod(checked_optimizer)
    # Whether the guide had parameters when the engine first met the model's arguments.
    _guide_was_set_up: bool | None = None
    _check_flat_density = staticmethod(check_has_flat_density)

    # -- engine hooks --------------------------------------------------------------------------

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> GuidePlan:
        found = super()._plan(target, generator, data)
        seed = int(torch.randint(2**62, (), generator=generator))
        density = flat_density(
            self.guide,
            data.args,
            data.kwargs,
            layout=target.layout,
            dtype=target.dtype,
            seed=seed,
        )
        # A token and not the plan, which the guide would keep alive.
        token = _WRITERS[self.guide] = object()
        return GuidePlan(
            target,
            found.estimator,
            token,
            density,
            density.live_parameters(),
            self.num_samples or 1,
            LEARNING_RATE,
            self.clip_norm,
        )

    def _has_own_start(self) -> bool:
        return bool(self._guide_was_set_up) or has_own_start(self.guide)

    def _initialize(self, plan: Any, data: Data) -> GuideState:
        if plan.target.start is not None:
            self._write(plan, plan.density.set_start(plan.parameters, plan.target.start.start))
        if self.initial_scale is not None:
            self._write(plan, plan.density.set_scale(plan.parameters, self.initial_scale))
        return GuideState()

    def _algorithm_state(self, state: GuideState) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "buffers": {name: value.clone() for name, value in self.guide.named_buffers()},
            "probe": _probe(self.plan),
            "optimizer": None if state.optimizer is None else state.optimizer.state_dict(),
            "method": state.method,
            "total_steps": run_length(self),
        }

    def _load_algorithm_state(self, plan: Any, state: GuideState, saved: dict[str, Any]) -> Any:
        buffers = dict(self.guide.named_buffers())
        for kind, present in (("parameters", plan.parameters), ("buffers", buffers)):
            check_shapes("guide", kind, saved[kind], present)
        found = saved["parameters"]
        state_files.check_finite({name: torch.isfinite(found[name]).all() for name in found})
        # What is put back when the probe shows another guide.
        before = self._algorithm_state(state)

        def write(values: dict[str, Any]) -> None:
            self._write(plan, values["parameters"])
            for name, value in buffers.items():
                value.copy_(values["buffers"][name])

        write(saved)
        probe = _probe(plan)
        # Loosely: the file may come from another machine, and another guide's density is another
        # altogether.
        if probe is not None and not torch.allclose(probe, saved["probe"], rtol=1e-3, atol=1e-3):
            write(before)
            raise ArgumentError(
                f"The saved state belongs to another {type(self.guide).__name__}: with the same "
                "parameters this one has another density. It holds constants of its own that are "
                "neither parameters nor buffers, such as a random order of the coordinates: make "
                "the guide with those of the saved run."
            )
        if state.optimizer is not None:
            state.optimizer.load_state_dict(saved["optimizer"])
        return state._replace(method=saved["method"])

    def __getstate__(self) -> dict[str, Any]:
        # The host takes the model away from a guide that is pickled, so that is a double.
        double = object.__new__(type(self.guide))
        vars(double).update(vars(self.guide))
        return {**super().__getstate__(), "guide": double, "_model_of_guide": self.guide._model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.guide._model = vars(self).pop("_model_of_guide")

    def _require_bound(self) -> Any:
        known = self._known()
        if known is not None and _WRITERS.get(self.guide) is not known.plan.token:
            raise ArgumentError(
                "Expected a guide that this engine alone writes to, found that another "
                f"engine, set up later, has taken it over: this {type(self).__name__}'s fit is "
                "no longer in it. Go on with the later engine, or make a guide for each."
            )
        return super()._require_bound()

    def _meet(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        look: bool = True,
        start: Any = None,
    ) -> None:
        if self._known() is not None:
            self._require_bound()
        if self._guide_was_set_up is None:
            self._guide_was_set_up = self.guide.prototype_trace is not None
            if not self._guide_was_set_up:
                _take_own_name(self.guide)
        writer = _WRITERS.get(self.guide)
        try:
            super()._meet(args, kwargs, look, start)
        except BaseException:
            # A set-up that failed has taken nothing over.
            _WRITERS[self.guide] = writer
            raise
        present = self.density.live_parameters()
        replaced = [
            name
            for name, value in self.plan.parameters.items()
            if name not in present or present[name].data_ptr() != value.data_ptr()
        ]
        if replaced:
            raise ArgumentError(
                f"Expected the guide's parameters that this engine writes to, found others in "
                f"place of {replaced}: an assignment such as guide.scale = value, or guide.to and "
                "guide.double, replaces them. Assign before the engine's first step, write in "
                "place, or make a new engine for the guide, which goes on from its values."
            )

    def _draw(self, plan: GuidePlan, state: GuideState, num_samples: int | None) -> Tensor:
        number = draws_asked(num_samples)
        return plan.density.sample(plan.parameters, self._draws, number)

    def _to_judge(self, plan: GuidePlan, state: GuideState, number: int) -> Drawn:
        drawn = self._draw(plan, state, number)
        log_q = plan.density.log_prob(plan.parameters, drawn)
        return Drawn(on_host(drawn), on_host(log_q))

    # -- the fit -------------------------------------------------------------------------------

    @torch.no_grad()
    def sample_statistics(self, positions: Float[Tensor, "S D"]) -> dict[str, Tensor]:
        """Log density of the guide at flat positions, for ``to_arviz``."""
        return {"log_q": self.density.log_prob(self.plan.parameters, positions)}

    @property
    def parameters(self) -> Parameters:
        """Copy of the guide's present unconstrained parameters."""
        found = self.plan.parameters
        return {name: value.detach().clone() for name, value in found.items()}

    # -- for the steps of subclasses -----------------------------------------------------------

    def _new_optimizer(self, plan: GuidePlan, given: OptimizerLike | None) -> EngineOptimizer:
        """What takes the steps of a descent: the given optimizer or the default."""
        parameters, layout = plan.parameters, plan.target.layout

        def default(tensors: list[Tensor]) -> torch.optim.Optimizer:
            # Fused: one pass over each tensor.
            fused = tensors[0].device.type in ("cpu", "cuda")
            return torch.optim.Adam(tensors, lr=plan.learning_rate, fused=fused)

        axes = {
            name: AXES[name]
            for name, value in parameters.items()
            if name in AXES and value.shape[AXES[name] :][:1] == (layout.dim,)
        }
        optim = default if given is None else given
        coordinates = Coordinates(layout.slices, axes)
        return EngineOptimizer(optim, parameters, coordinates, default)

    @torch.no_grad()
    def _write(self, plan: GuidePlan, parameters: Parameters) -> None:
        hold()
        for name, value in plan.parameters.items():
            value.copy_(parameters[name])


def _take_own_name(guide: Any) -> None:
    """Give a guide that is not set up yet a name that the parameter store does not know.

    Guides of one class have one name, and the host hands the parameters that it has stored under
    that name to each of them: the fit of one would be that of another.
    """
    taken = {name.partition(".")[0] for name in pyro.get_param_store()}
    numbers = itertools.count(2)
    name = guide._pyro_name
    while guide._pyro_name in taken:
        guide._pyro_name = f"{name}_{next(numbers)}"


@torch.no_grad()
def _probe(plan: GuidePlan) -> Float[Tensor, " 2"] | None:
    """Log density at two fixed points, of guides that may hold constants besides parameters."""
    density = plan.density
    # Which sites are a layer is such a constant; the other Normal guides have none.
    if density.covariance_structure not in (None, "layer_low_rank"):
        return None
    points = torch.arange(2 * density.dim, dtype=torch.float64).cos().reshape(2, -1)
    return density.log_prob(plan.parameters, points.to(next(iter(plan.parameters.values()))))

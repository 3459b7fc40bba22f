"""Host optimizers on tensors that an engine owns, outside Pyro's global parameter store."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from pyro.optim import PyroLRScheduler, PyroOptim
from torch import Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_learning_rate, describe
from ppl_ext.process import hold, swapped
from ppl_ext.score_matching.options import REST, match_sites

# PyroOptim, a callable from tensors to a torch optimizer, or a mapping from site patterns to these
OptimizerLike: TypeAlias = Any
MakeOptimizer: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]
#: What an optimizer does at one step: the options of each of its groups, learning rates included.
Settings: TypeAlias = list[dict[str, Any]]

#: Optimizers that treat each entry alone, so that a process may own some of the particles.
ENTRYWISE = (
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.SGD,
)
#: Options of torch's Adam that make another step of it.
_VARIANTS = ("amsgrad", "maximize", "weight_decay")


class Coordinates(NamedTuple):
    """Which entries of the parameters belong to which coordinates of a flat vector.

    Parameters
    ----------
    sites : mapping of str to slice
        Coordinates of each latent site, in order, without gaps.
    axes : mapping of str to int
        For each parameter that has one, the axis (negative) along which the coordinates run.
        The other parameters belong to no site.
    """

    sites: Mapping[str, slice]
    axes: Mapping[str, int]


@dataclass(frozen=True)
class Part:
    """Parts of the parameters that take their steps together.

    Parameters
    ----------
    where : slice or None
        The coordinates that they belong to; None where they are whole parameters.
    tensors : dict of str to tensor
        Views of the parameters, by the parameters' names.
    indices : dict of str to tuple
        What selects each of them from its parameter.
    owner : int
        Number of the optimizer that updates them.
    """

    where: slice | None
    tensors: dict[str, Tensor]
    indices: dict[str, Any]
    owner: int


@dataclass(frozen=True)
class PlannedSteps:
    """What the optimizers will do at the next steps.

    Parameters
    ----------
    settings : list of list
        For each step, the settings of each optimizer; empty where no schedule changes them.
    schedules : list
        State of each schedule after these steps, None where there is none.
    reach : float
        No entry moves further than this in all of these steps together; infinite if not known.
    """

    settings: list[list[Settings]]
    schedules: list[dict[str, Any] | None]
    reach: float


class AdamStep(NamedTuple):
    """The numbers of one step of torch's Adam.

    Parameters
    ----------
    number : tensor ()
        Number of the step, from 1.
    rate, epsilon : float
    betas : (float, float)
    """

    number: Tensor
    rate: float
    betas: tuple[float, float]
    epsilon: float


class EngineOptimizer:
    """Optimizers over named tensors, updated in place.

    Parameters
    ----------
    optim : PyroOptim, callable or mapping
        A Pyro optimizer (also ``ClippedAdam`` and schedulers such as
        ``pyro.optim.ExponentialLR``), or a callable that takes a list of tensors and returns a
        ``torch.optim.Optimizer``, such as ``functools.partial(torch.optim.Adam, lr=0.01)``.
        Pyro's schedulers advance once a step.

        With ``coordinates`` also a mapping from patterns of site names (as in ``fnmatch``:
        ``"*.bias"``, ``"head.*"``) to such optimizers. A site belongs to the first pattern that
        it matches. ``"*"`` takes the rest, and the parameters that belong to no site. A value of
        None is the default optimizer.
    parameters : mapping of str to tensor
        Tensors to update. They, or views of them, become leaves with ``requires_grad``.
    coordinates : Coordinates, optional
        What a mapping needs to know of the parameters.
    default : callable, optional
        From a list of tensors to the default optimizer.

    Raises
    ------
    ArgumentError
        ``optim`` is something else, such as a torch optimizer that is already bound to tensors;
        or a site matches no pattern, or a pattern no site.
    """

    def __init__(
        self,
        optim: OptimizerLike,
        parameters: Mapping[str, Tensor],
        coordinates: Coordinates | None = None,
        default: MakeOptimizer | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        self._patterns: list[str] | None = None
        if isinstance(optim, Mapping):
            if coordinates is None:
                raise ArgumentError(
                    "Expected one optimizer, found a mapping from patterns: this engine updates "
                    "all latent sites together. Pass a single optimizer."
                )
            owners = match_sites(tuple(optim), coordinates.sites)
            patterns = [pattern for pattern in optim if pattern in {*owners.values(), REST}]
            divided = _divide(self.parameters, coordinates, owners, patterns)
            used = sorted({part.owner for part in divided})
            self._patterns = [patterns[number] for number in used]
            makers = [optim[pattern] for pattern in self._patterns]
            divided = [
                Part(part.where, part.tensors, part.indices, used.index(part.owner))
                for part in divided
            ]
        else:
            makers = [optim]
            divided = [_whole(self.parameters, list(self.parameters), 0)]
        self.parts: tuple[Part, ...] = tuple(divided)
        self._optimizers: list[torch.optim.Optimizer] = []
        self._schedulers: list[Any] = []
        self._clips: list[dict[str, float]] = []
        #: Those that the default made.
        self.defaults: list[torch.optim.Optimizer] = []
        for number, maker in enumerate(makers):
            for tensor in self._tensors(number):
                tensor.requires_grad_(True)
            try:
                optimizer, scheduler, clip = _build(maker, self._tensors(number), default)
            except ArgumentError:
                raise
            except (TypeError, ValueError) as error:
                raise ArgumentError(
                    f"Expected an optimizer that can be made, found that torch refuses: {error}"
                ) from error
            for group in optimizer.param_groups:
                # A schedule may begin at zero; where it does, this is what it is a part of.
                rate = group.get("initial_lr", group.get("lr"))
                check_learning_rate(rate, may_hold=len(makers) > 1)
            # Views of a part of the coordinates have gaps.
            if not all(tensor.is_contiguous() for tensor in self._tensors(number)):
                _set_unfused(optimizer)
            self._optimizers.append(optimizer)
            if default is not None and maker in (None, default):
                self.defaults.append(optimizer)
            self._schedulers.append(scheduler)
            self._clips.append(clip)
        self._owned = [self._tensors(number) for number in range(len(makers))]
        self._has_schedules = any(each is not None for each in self._schedulers)
        # Whether what a step changes is where torch's own optimizers have it.
        self._usual = all(
            type(each).state_dict is torch.optim.Optimizer.state_dict
            and type(each).load_state_dict is torch.optim.Optimizer.load_state_dict
            for each in self._optimizers
        )
        #: As they were given, before any step.
        self._given = [_settings(optimizer) for optimizer in self._optimizers]

    @property
    def settings(self) -> str:
        """The optimizers' numbers as they were given, described."""
        return describe(self._given)

    @property
    def description(self) -> str:
        """Names of the optimizers and of their schedules."""
        names = [
            ", ".join(type(each).__name__ for each in pair if each is not None)
            for pair in zip(self._optimizers, self._schedulers, strict=True)
        ]
        if self._patterns is None:
            return names[0]
        return "; ".join(
            f"{pattern}: {name}" for pattern, name in zip(self._patterns, names, strict=True)
        )

    @property
    def entrywise(self) -> bool:
        """Whether every optimizer is one of ``ENTRYWISE`` and clips nothing."""
        return all(type(optimizer) in ENTRYWISE for optimizer in self._optimizers) and not any(
            self._clips
        )

    @property
    def is_plain_adam(self) -> bool:
        """Whether every optimizer is torch's Adam without its variants, and clips nothing."""
        return not any(self._clips) and all(
            type(optimizer) is torch.optim.Adam
            and not any(group[name] for group in optimizer.param_groups for name in _VARIANTS)
            for optimizer in self._optimizers
        )

    def _tensors(self, owner: int) -> list[Tensor]:
        parts = (part for part in self.parts if part.owner == owner)
        return [tensor for part in parts for tensor in part.tensors.values()]

    # -- steps ---------------------------------------------------------------------------------

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Descend along ``gradients``, one tensor for each parameter."""
        hold()
        for part in self.parts:
            for name, tensor in part.tensors.items():
                gradient = gradients[name].detach()[part.indices[name]]
                tensor.grad = gradient.to(tensor.dtype).contiguous()
        for number, optimizer in enumerate(self._optimizers):
            tensors, clip = self._owned[number], self._clips[number]
            if "clip_norm" in clip:
                torch.nn.utils.clip_grad_norm_(tensors, clip["clip_norm"])
            if "clip_value" in clip:
                torch.nn.utils.clip_grad_value_(tensors, clip["clip_value"])
            optimizer.step()
            for tensor in tensors:
                tensor.grad = None
        if self._has_schedules:
            self._advance()

    def plan(self, num_steps: int) -> PlannedSteps:
        """What the next steps will be; nothing is changed."""
        now = [_settings(optimizer) for optimizer in self._optimizers]
        if all(scheduler is None for scheduler in self._schedulers):
            reach = max(
                num_steps * _reach(optimizer, settings)
                for optimizer, settings in zip(self._optimizers, now, strict=True)
            )
            return PlannedSteps([], [], reach)
        # Schedules of torch tell their next values only by stepping. They are put back afterwards.
        before = self._schedules()
        steps = []
        for _ in range(num_steps):
            steps.append([_settings(optimizer) for optimizer in self._optimizers])
            self._advance()
        after = self._schedules()
        after_settings = [_settings(optimizer) for optimizer in self._optimizers]
        self._set_schedules(before, now)
        reach = max(
            sum(_reach(optimizer, step[number]) for step in steps)
            for number, optimizer in enumerate(self._optimizers)
        )
        return PlannedSteps([*steps, after_settings], after, reach)

    def adam_moments(self, part: Part) -> dict[str, tuple[Tensor, Tensor]]:
        """First and second moments of a part's tensors, of plain Adam; zeros before any step."""
        hold()
        optimizer = self._optimizers[part.owner]
        state, found = optimizer.state, {}
        fused = any(group.get("fused") for group in optimizer.param_groups)
        for name, tensor in part.tensors.items():
            entries = state[tensor]
            if not entries:
                # Where torch's own step looks for it.
                device = tensor.device if fused else None
                entries["step"] = torch.zeros((), dtype=torch.float32, device=device)
                entries["exp_avg"] = torch.zeros_like(tensor.detach())
                entries["exp_avg_sq"] = torch.zeros_like(tensor.detach())
            found[name] = entries["exp_avg"], entries["exp_avg_sq"]
        return found

    def adam_step(self, part: Part, plan: PlannedSteps, number: int) -> AdamStep:
        """Step ``number`` (from 0) of a plan, of plain Adam.

        For callers that take it for pieces of a part, one after another, and end all by
        :meth:`finish`.
        """
        optimizer = self._optimizers[part.owner]
        settings = plan.settings[number][part.owner] if plan.settings else _settings(optimizer)
        tensor = next(iter(part.tensors.values()))
        return AdamStep(
            optimizer.state[tensor]["step"].to(tensor.device) + (number + 1),
            float(settings[0]["lr"]),
            (float(settings[0]["betas"][0]), float(settings[0]["betas"][1])),
            float(settings[0]["eps"]),
        )

    def finish(self, plan: PlannedSteps, num_steps: int) -> None:
        """End the steps of a plan that were taken by piece: counters and schedules go on."""
        for part in self.parts:
            for tensor in part.tensors.values():
                self._optimizers[part.owner].state[tensor]["step"] += num_steps
        if plan.settings:
            self._set_schedules(plan.schedules, plan.settings[-1])

    def _advance(self) -> None:
        for scheduler in self._schedulers:
            if scheduler is not None:
                with swapped(warnings.catch_warnings()):
                    # A plan looks at the schedule before it steps.
                    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler")
                    scheduler.step()

    # -- saving --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizers and their schedules, for saving."""
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "schedulers": self._schedules(),
            "given": self._given,
        }

    def snapshot(self) -> Any:
        """A copy of the state, which later steps leave as it is, for :meth:`put_back`."""
        if not self._usual:
            return copy.deepcopy(self.state_dict())
        # Torch's own state_dict takes as long as ten operations on small tensors.
        optimizers = []
        for optimizer in self._optimizers:
            state = {}
            for tensor, entries in optimizer.state.items():
                state[tensor] = entries = dict(entries)
                for name, value in entries.items():
                    if isinstance(value, Tensor):
                        entries[name] = value.clone()
            optimizers.append((state, list(map(dict, optimizer.param_groups))))
        return optimizers, self._schedules() if self._has_schedules else self._schedulers

    def put_back(self, snapshot: Any) -> None:
        """Take over a state from :meth:`snapshot`, which is of no use afterwards."""
        if not self._usual:
            self.load_state_dict(snapshot)
            return
        optimizers, schedules = snapshot
        for optimizer, (state, groups) in zip(self._optimizers, optimizers, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, before in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(before)
        for scheduler, entries in zip(self._schedulers, schedules, strict=True):
            if scheduler is not None:
                scheduler.load_state_dict(entries)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`.

        Where settings were given otherwise than to the optimizers that saved it, those given to
        these hold: a learning rate that follows a schedule is as many times the first as it was.
        """
        for optimizer, entries in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(dict(entries))
        for scheduler, entries in zip(self._schedulers, state["schedulers"], strict=True):
            if scheduler is not None:
                scheduler.load_state_dict(dict(entries))
        given = zip(self._given, state["given"], strict=True)
        for number, (own, saved) in enumerate(given):
            # A schedule moves the present numbers. Whether the user has changed them is told by
            # those that were given.
            if own != saved:
                self._go_on_with(number, own, saved)

    def _go_on_with(self, number: int, own: Settings, saved: Settings) -> None:
        """Put the settings given to an optimizer in place of those that were saved."""
        optimizer, scheduler = self._optimizers[number], self._schedulers[number]
        for group, new, old in zip(optimizer.param_groups, own, saved, strict=True):
            changed = {name: value for name, value in new.items() if old.get(name) != value}
            if "initial_lr" in changed:
                changed["lr"] = group["lr"] * (new["initial_lr"] / old["initial_lr"])
            group.update(changed)
        if scheduler is not None:
            scheduler.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
            scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]

    def _schedules(self) -> list[dict[str, Any] | None]:
        return [None if each is None else dict(each.state_dict()) for each in self._schedulers]

    def _set_schedules(
        self, schedules: Sequence[dict[str, Any] | None], settings: Sequence[Settings]
    ) -> None:
        for scheduler, entries in zip(self._schedulers, schedules, strict=True):
            if scheduler is not None and entries is not None:
                scheduler.load_state_dict(entries)
        for optimizer, groups in zip(self._optimizers, settings, strict=True):
            _set(optimizer, groups)


class Undo:
    """What a step is about to write to, as it is before: put back if the step fails.

    A context that puts it back where an exception leaves it; or call it.

    Parameters
    ----------
    tensors : iterable of tensor
    optimizer : EngineOptimizer
    """

    def __init__(self, tensors: Iterable[Tensor], optimizer: EngineOptimizer) -> None:
        self._tensors: list[tuple[Tensor, Tensor]] = []
        for tensor in tensors:
            self._tensors.append((tensor, tensor.detach().clone()))
        self._optimizer, self._state = optimizer, optimizer.snapshot()

    def __call__(self) -> None:
        """Put it back."""
        with torch.no_grad():
            for tensor, before in self._tensors:
                tensor.copy_(before)
        self._optimizer.put_back(self._state)

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            hold()
            self()


def _divide(
    parameters: Mapping[str, Tensor],
    coordinates: Coordinates,
    owners: Mapping[str, str],
    patterns: Sequence[str],
) -> list[Part]:
    """Parts of the parameters: ranges of coordinates with one owner, and whole parameters."""
    parts: list[Part] = []
    ranges: list[tuple[int, int, str]] = []
    for name, where in coordinates.sites.items():
        if ranges and ranges[-1][2] == owners[name]:
            ranges[-1] = (ranges[-1][0], where.stop, owners[name])
        else:
            ranges.append((where.start, where.stop, owners[name]))
    for first, last, pattern in ranges:
        where = slice(first, last)
        indices: dict[str, Any] = {
            name: (..., where, *(slice(None),) * (-axis - 1))
            for name, axis in coordinates.axes.items()
        }
        tensors = {name: parameters[name].detach()[index] for name, index in indices.items()}
        parts.append(Part(where, tensors, indices, patterns.index(pattern)))
    if rest := [name for name in parameters if name not in coordinates.axes]:
        if REST not in patterns:
            raise ArgumentError(
                f"Expected an optimizer for the guide's parameters {rest}, which belong to no "
                f"single site, found the patterns {list(patterns)} alone. Add '*'."
            )
        parts.append(_whole(parameters, rest, patterns.index(REST)))
    return parts


def _whole(parameters: Mapping[str, Tensor], names: Sequence[str], owner: int) -> Part:
    tensors = {name: parameters[name] for name in names}
    return Part(None, tensors, dict.fromkeys(names, ...), owner)


def check_optimizer(optim: OptimizerLike) -> None:
    """See that an optimizer, or each of a mapping's, can be made, before any work.

    Raises
    ------
    ArgumentError
        It cannot.
    """
    if not isinstance(optim, Mapping):
        EngineOptimizer(optim, {"parameters": torch.zeros(1, 1)})
        return
    for each in optim.values():
        if each is not None:
            _build(each, [torch.zeros(1, 1, requires_grad=True)], None)


def _build(
    optim: OptimizerLike, tensors: list[Tensor], default: MakeOptimizer | None
) -> tuple[torch.optim.Optimizer, Any, dict[str, float]]:
    """Optimizer of these tensors, its schedule or None, and the clipping that Pyro does for it."""
    if optim is None and default is not None:
        optim = default
    if isinstance(optim, PyroOptim):
        options = _fixed_options(optim.pt_optim_args, "optim_args")
        optimizer = optim.pt_optim_constructor(tensors, **options)
        _check_steps_alone(optimizer)
        scheduler = None
        if isinstance(optim, PyroLRScheduler):
            scheduler = optim.pt_scheduler_constructor(optimizer, **optim.kwargs)
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise ArgumentError(
                    "Expected a schedule that depends on the number of the step, found "
                    "ReduceLROnPlateau, which follows a loss that is too noisy here. Use "
                    "pyro.optim.CosineAnnealingLR or pyro.optim.ExponentialLR."
                )
        return optimizer, scheduler, dict(_fixed_options(optim.pt_clip_args or {}, "clip_args"))
    if isinstance(optim, torch.optim.Optimizer) or not callable(optim):
        raise ArgumentError(
            "Expected a Pyro optimizer such as pyro.optim.Adam({'lr': 0.01}) or a callable "
            "from tensors to a torch optimizer such as "
            f"functools.partial(torch.optim.Adam, lr=0.01), found {type(optim).__name__}."
        )
    built = optim(tensors)
    if not isinstance(built, torch.optim.Optimizer):
        raise ArgumentError(
            "Expected optim(tensors) to return a torch.optim.Optimizer, found "
            f"{type(built).__name__}."
        )
    _check_steps_alone(built)
    return built, None, {}


def _check_steps_alone(optimizer: torch.optim.Optimizer) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError(
            "Expected an optimizer that takes one gradient a step, found LBFGS, which evaluates "
            "its objective several times. Use another, such as pyro.optim.Adam({'lr': 0.01})."
        )


def _set_unfused(optimizer: torch.optim.Optimizer) -> None:
    # torch's fused steps take the entries of a tensor, of its gradient and of its moments in the
    # order of memory, and mix them up without a word where these orders differ.
    for group in optimizer.param_groups:
        if group.get("fused"):
            group["fused"] = False


def _fixed_options(options: Any, name: str) -> dict[str, Any]:
    """Options of a Pyro optimizer; options that depend on the parameter's name are refused."""
    if callable(options):
        raise ArgumentError(
            f"Expected {name} of the Pyro optimizer to be a dictionary, found a function of the "
            "parameter's name: the engine updates particles or guide parameters as whole tensors, "
            "which have no names in the parameter store."
        )
    return dict(options)


def _settings(optimizer: torch.optim.Optimizer) -> Settings:
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _set(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        group.update(values)


def _reach(optimizer: torch.optim.Optimizer, settings: Settings) -> float:
    """How far one step can move an entry, whatever the gradients were; infinite if not known."""
    if type(optimizer) is not torch.optim.Adam:
        return math.inf
    reach = 0.0
    for group in settings:
        # The bound holds for moments that were gathered with these constants alone, and where
        # squares of gradients vanish in rounding it is epsilon that bounds the step.
        same = group["betas"] == optimizer.defaults["betas"]
        if not same or group["weight_decay"] != 0 or group["eps"] < 1e-12:
            return math.inf
        reach = max(reach, float(group["lr"]) * _largest_adam_step(*map(float, group["betas"])))
    return reach


@functools.lru_cache(maxsize=64)
def _largest_adam_step(beta1: float, beta2: float) -> float:
    """Bound on Adam's step for a learning rate of one, over all gradients and step numbers.

    By the Cauchy-Schwarz inequality, with weights beta1^2 / beta2 between the two moments.
    """
    ratio = beta1 * beta1 / beta2 if beta2 > 0 else math.inf
    if not ratio < 1 or not beta2 < 1:
        return math.inf
    unbiased = max(
        math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step) for step in (*range(1, 1000), 10**9)
    )
    return (1.0 - beta1) * unbiased / math.sqrt((1.0 - beta2) * (1.0 - ratio))

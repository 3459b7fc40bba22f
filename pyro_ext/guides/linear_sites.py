"""Linear operations of a Pyro program on weights that a mean-field guide has drawn.

How they are found, for the noise of :mod:`ppl_ext.guides.row_noise`. The guide runs under a handler
that records its Normal draws, the model under one that records its latent sites, and under a torch
function mode that sees every torch function which the model calls. A weight is known by its
storage: the values of an autoguide's unconstrained sites are views of a Normal draw, and so are
transposes and other views of them, whose mean and standard deviations are read at the same places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pyro.infer import ELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ppl_ext.guides import row_noise


class RowNoiseELBO(row_noise.RowNoiseShell, ELBO):
    objectives = (Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO)

    def __init__(
        self,
        elbo: ELBO,
        noise: Callable[[], row_noise.RowNoise],
        sites: Collection[str] | None = None,
    ) -> None:
        vectorized = elbo.vectorize_particles and elbo.num_particles > 1
        several = " with vectorize_particles=True" if vectorized else ""
        ELBO.__init__(self, num_particles=elbo.num_particles)
        self._wrap(elbo, noise, sites, several)

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        return self.elbo.loss(*self._handled(model, guide), *args, **kwargs)

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        return self.elbo.loss_and_grads(*self._handled(model, guide), *args, **kwargs)

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        return self.elbo.differentiable_loss(*self._handled(model, guide), *args, **kwargs)

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        return self.elbo._get_trace(*self._handled(model, guide), args, kwargs)

    def _handled(self, model: Any, guide: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        drawn = _Recorder()

        def recorded_guide(*args: Any, **kwargs: Any) -> Any:
            # An objective with several particles runs the guide once for each. The model that
            # follows has this run's draws.
            drawn.sites.clear()
            with drawn:
                return guide(*args, **kwargs)

        def noisy_model(*args: Any, **kwargs: Any) -> Any:
            noise = self._noise()
            weights = _Weights(drawn.sites, self.sites, noise.name)
            uses = _LinearOperations(weights, noise)
            with weights, uses:
                result = model(*args, **kwargs)
            uses.check(self.sites)
            return result

        return noisy_model, recorded_guide


# -- draws and sites -------------------------------------------------------------------------------


class _Recorder(Messenger):
    """Keeps the latent sites of the guide."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, dict[str, Any]] = {}

    def _pyro_post_sample(self, msg: Any) -> None:
        if not msg["is_observed"] and isinstance(msg["value"], Tensor):
            self.sites[msg["name"]] = msg


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage().data_ptr())


@dataclass(frozen=True)
class _Weight:
    """A latent site of the model: its value, and the guide's draw of which that is a view."""

    site: str
    value: Tensor
    drawn: Tensor
    fn: Any

    @property
    def kind(self) -> str:
        return row_noise.kind_of(self.fn)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is a view of this site's value."""
        offset = tensor.storage_offset() - self.value.storage_offset()
        return _storage(tensor) == _storage(self.value) and 0 <= offset < self.value.numel()

    def draw(self, view: Tensor) -> row_noise.NormalDraw | None:
        """Mean and scale of a view of the draw; None if the draw is not a factorised Normal."""
        # Mean and scale are read at the strides of the view, which is right only where the draw
        # lies in memory without gaps.
        base = row_noise.base_distribution(self.fn)
        if not isinstance(base, torch.distributions.Normal) or not self.drawn.is_contiguous():
            return None
        offset = view.storage_offset() - self.drawn.storage_offset()
        # Seen as the draw is seen where it is used, whichever views lead there.
        mean, scale = (
            values.expand(self.drawn.shape)
            .contiguous()
            .as_strided(view.size(), view.stride(), offset)
            for values in (base.loc, base.scale)
        )
        return row_noise.NormalDraw(view, mean, scale)


class _Weights(Messenger):
    """Keeps the model's latent sites that the guide has drawn, and the observed ones' axes."""

    def __init__(
        self, drawn: Mapping[str, dict[str, Any]], sites: frozenset[str] | None, noise: str
    ) -> None:
        super().__init__()
        self._drawn, self._noise = drawn, noise
        self._wanted = sites
        self.sites: dict[str, _Weight] = {}
        self.latent: list[str] = []
        self.row_shapes: list[tuple[int, ...]] = []

    def _pyro_post_sample(self, msg: Any) -> None:
        name, value = msg["name"], msg["value"]
        if msg["is_observed"]:
            self.row_shapes.append(row_noise.row_shape(msg["fn"]))
            return
        self.latent.append(name)
        if name not in self._drawn or (self._wanted is not None and name not in self._wanted):
            return
        row_noise.check_drawn(self._noise, name, self._drawn[name]["value"], value)
        if not value.numel():
            return
        # An autoguide draws an auxiliary site, and its sites are views of the draw.
        sources = [
            site for site in self._drawn.values() if _storage(site["value"]) == _storage(value)
        ]
        random = [site for site in sources if row_noise.kind_of(site["fn"]) != "Delta"]
        source = (random or sources)[0]
        self.sites[name] = _Weight(name, value, source["value"], source["fn"])

    def find(self, tensor: Any) -> _Weight | None:
        """The site of which a tensor is a view."""
        if not isinstance(tensor, Tensor) or not self.sites:
            return None
        return next((site for site in self.sites.values() if site.holds(tensor)), None)


# -- linear operations -----------------------------------------------------------------------------


class _Call(NamedTuple):
    """A linear operation without its bias: operands and axes."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    apply: Callable[[Tensor, Tensor], Tensor]
    in_axes: tuple[tuple[int, int], ...]
    out_axes: tuple[tuple[int, int], ...]
    channel: int
    places: Callable[[Tensor], int]


class _LinearOperations(TorchFunctionMode, row_noise.WeightUses):
    """Sees the torch functions that are called, and replaces linear ones on weights."""

    def __init__(self, weights: _Weights, noise: row_noise.RowNoise) -> None:
        TorchFunctionMode.__init__(self)
        row_noise.WeightUses.__init__(self, noise)
        self._weights = weights

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = {
            id(site): site
            for value in _tensors((*args, *kwargs.values()))
            if (site := self._weights.find(value)) is not None
        }
        if not found:
            return func(*args, **kwargs)
        call = _OPERATIONS[func](func, *args, **kwargs) if func in _OPERATIONS else None
        weight = None if call is None else self._weights.find(call.weight)
        # A product of two weights is not linear in one of them, and counts as another use of both.
        if call is not None and weight is not None and self._weights.find(call.x) is None:
            result = self._linear(weight, call)
            # A bias that is a weight as well is added with its one draw for all rows.
            self._note(_tensors((call.bias,)), func)
            return result
        result = func(*args, **kwargs)
        # Views of a weight are still known by their storage.
        computed = [value for value in _tensors((result,)) if self._weights.find(value) is None]
        if computed:
            self._note(_tensors((*args, *kwargs.values())), func)
        return result

    def _note(self, values: Iterable[Tensor], func: Any) -> None:
        for value in values:
            if (site := self._weights.find(value)) is not None:
                self._note_plain(site.site, getattr(func, "__name__", str(func)))

    def _linear(self, weight: _Weight, call: _Call) -> Tensor:
        draw = weight.draw(call.weight)
        if draw is None:
            raise self._no_normal(weight.site, weight.kind)

        def labelled(axes: tuple[tuple[int, int], ...], role: str) -> tuple[tuple[Any, int], ...]:
            # A stride names an axis of the site, whichever view is taken; of an axis of length
            # one it means nothing.
            return tuple(
                (
                    (call.weight.storage_offset(), call.weight.stride(axis))
                    if call.weight.shape[axis] > 1
                    else role,
                    other,
                )
                for axis, other in axes
            )

        use = row_noise.LinearUse(
            weight.site,
            call.x,
            draw,
            call.apply,
            rows=len(call.x),
            row_axes=(0, 0),
            in_axes=labelled(call.in_axes, "in"),
            out_axes=labelled(call.out_axes, "out"),
            positions=call.places(call.x),
        )
        result: Tensor = self._replace(use)
        if call.bias is None:
            return result
        after = result.dim() - call.channel - 1
        return result + call.bias.reshape(-1, *[1] * after)

    def check(self, sites: Collection[str] | None) -> None:
        """See that what was asked for has happened, and that it was sound."""
        row_noise.check_latent(self._noise.name, sites, self._weights.latent)
        self._check(self._weights.sites, sites, self._weights.row_shapes)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _linear(func: Any, input: Tensor, weight: Tensor, bias: Any = None) -> _Call | None:
    return _of_rows(input, weight, bias, func, weight.dim() - 1, 0)


def _product(func: Any, input: Tensor, other: Tensor, **options: Any) -> _Call | None:
    return _of_rows(input, other, None, torch.matmul, 0, 1) if other.dim() <= 2 else None


def _of_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    apply: Callable[[Tensor, Tensor], Tensor],
    into: int,
    out: int,
) -> _Call | None:
    """A product with a vector, or with a matrix whose axes are ``into`` and ``out``."""
    # A single vector has no axis of rows.
    if x.dim() < 2:
        return None
    last = x.dim() - 1
    return _Call(
        x,
        weight,
        bias,
        apply,
        in_axes=((into, last),),
        out_axes=((out, last),) if weight.dim() == 2 else (),
        channel=last,
        places=lambda x: math.prod(x.shape[1:-1]),
    )


def _convolution(
    func: Any, input: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any
) -> _Call | None:
    # Without a batch axis the first axis holds channels, not rows.
    if input.dim() < weight.dim():
        return None
    into, out = (0, 1) if func in _TRANSPOSED else (1, 0)

    def apply(x: Tensor, w: Tensor) -> Tensor:
        # The bias is added once, after the noise. This function is applied twice, to the mean and
        # to what deviates from it.
        return func(x, w, None, *args, **kwargs)

    def places(x: Tensor) -> int:
        # Only the shape is asked for. Nothing is computed on the meta device.
        with torch.device("meta"):
            shape = apply(x.to("meta"), weight.to("meta")).shape
        return math.prod(shape[2:])

    return _Call(
        input,
        weight,
        bias,
        apply,
        in_axes=((into, 1),),
        out_axes=((out, 1),),
        channel=1,
        places=places,
    )


_TRANSPOSED = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)
_OPERATIONS: dict[Any, Callable[..., _Call | None]] = {
    functional.linear: _linear,
    **dict.fromkeys((functional.conv1d, functional.conv2d, functional.conv3d), _convolution),
    **dict.fromkeys(_TRANSPOSED, _convolution),
    **dict.fromkeys(
        (torch.matmul, torch.mm, torch.mv, Tensor.matmul, Tensor.mm, Tensor.mv, Tensor.__matmul__),
        _product,
    ),
}

"""Effect handlers between a Pyro model and the flat vector; nothing else touches a trace.

``SubsampleControl`` lets the caller own the row indices of every subsampled plate,
``SiteHandler`` and its kinds set the latent sites from unconstrained values, choosing each
transform at run time from the site's own support, and collect the parts of the log density.
"""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from jaxtyping import Float
from pyro.distributions import Delta, MaskedDistribution, Unit
from pyro.distributions.transforms import CholeskyTransform
from pyro.distributions.util import scale_and_mask, sum_rightmost
from pyro.infer.autoguide.utils import helpful_support_errors
from pyro.ops.special import _SafeLog
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _DIM_ALLOCATOR, _PYRO_STACK
from pyro.poutine.subsample_messenger import SubsampleMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Normal,
    TransformedDistribution,
    biject_to,
    constraints,
    transform_to,
)
from torch.distributions.constraints import MixtureSameFamilyConstraint
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    IndependentTransform,
    Transform,
)
from torch.distributions.utils import tril_matrix_to_vec, vec_to_tril_matrix

from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.process import KEEPERS, handling, swapping
from ppl_ext.target.discrete import STANDS_IN, check_places, support_error
from ppl_ext.target.families import innermost, is_made_of
from ppl_ext.target.missing_rows import MissingRows
from ppl_ext.target.scores import check_subsample_size
from pyro_ext.density.enumeration import Factor, factor_of, is_enumerated, log_marginal, values_of
from pyro_ext.density.failed_factors import FailedFactors
from pyro_ext.density.layout import Indices

#: Entries of a latent site from which on its prior's gradient is worth adding in place.
LARGE_SITE = 2**16


class SubsampleControl:
    """Context that gives every subsampled plate the row indices named for it.

    Pyro lets a handler replace a plate's indices only by others of the same number, because
    the plate compares lengths after the handlers have run. A full-data sweep and its ragged
    last chunk need other lengths, so this context replaces the plate's index function for the
    calling thread while it is active; other threads keep the original. Enter it by
    :func:`running`.

    Parameters
    ----------
    indices : mapping of str to int64 tensor
        Row indices for each plate name. A subsampled plate that is not named takes its first
        ``subsample_size`` rows.

    Attributes
    ----------
    plates : dict of str to (int, int)
        Size and declared subsample size of each subsampled plate that was met.
    given : set of str
        Plates whose indices the model gave itself (``subsample=``).
    met : Counter of str
        How many plates of each name were made.
    """

    def __init__(self, indices: Indices | None = None) -> None:
        self.indices = dict(indices or {})
        self.plates: dict[str, tuple[int, int]] = {}
        self.given: set[str] = set()
        self.met: Counter[str] = Counter()

    def __enter__(self) -> SubsampleControl:
        self._thread = threading.get_ident()
        # From the class's dictionary: as an attribute the static method comes without its wrapper,
        # and put back so it would be handed the plate as its first argument.
        self._original = SubsampleMessenger.__dict__["_subsample"]
        SubsampleMessenger._subsample = staticmethod(self._subsample)
        return self

    def __exit__(self, *exception: object) -> None:
        SubsampleMessenger._subsample = self._original

    def _subsample(
        self,
        name: str,
        size: int | None = None,
        subsample_size: int | None = None,
        subsample: Any = None,
        use_cuda: bool | None = None,
        device: Any = None,
    ) -> tuple[int, int, Any]:
        original = self._original.__func__
        # A plate without a size has no rows that could be numbered.
        if threading.get_ident() != self._thread or size is None:
            return original(name, size, subsample_size, subsample, use_cuda, device)
        self.met[name] += 1
        if subsample is not None:
            count = len(subsample)
            if count < size:
                self.given.add(name)
                self.plates[name] = (int(size), count)
            return size, count, subsample
        declared = int(size if subsample_size is None else subsample_size)
        check_subsample_size(name, int(size), declared)
        if declared < size:
            self.plates[name] = (int(size), declared)
        rows = self.indices.get(name)
        if rows is None:
            rows = torch.arange(declared, device=device)
        return size, len(rows), rows


def without_validation(fn: Any) -> Any:
    """A copy of distribution ``fn`` that does not validate its values.

    Validation reads values back to Python, which neither ``vmap`` nor tracing can do; it has
    been done once, eagerly, by the model check. Distributions built before (the priors of a
    ``PyroModule``) keep a flag of their own, so switching off the global default is not enough.
    """
    if not isinstance(fn, Distribution) and not hasattr(fn, "base_dist"):
        return fn
    # A copy: the distribution may be the model's own, which goes on validating elsewhere.
    fn = copy.copy(fn)
    if hasattr(fn, "_validate_args"):
        fn._validate_args = False
    if (base := fn.__dict__.get("base_dist")) is not None:
        fn.base_dist = without_validation(base)
    return fn


class _OneTurn(Transform):
    """Leaves angles in (-pi, pi) as they are; takes others there on the way back."""

    domain = codomain = constraints.real
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.remainder(y + math.pi, 2.0 * math.pi) - math.pi

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(x)


#: Distributions of angles, whose support Pyro writes as the real line.
ANGLES = ("VonMises", "SineBivariateVonMises")


def is_angle(fn: Any) -> bool:
    """Whether a distribution is one of angles: its density repeats itself after each turn."""
    return type(innermost(fn)).__name__ in ANGLES


@biject_to.register(MixtureSameFamilyConstraint)
@transform_to.register(MixtureSameFamilyConstraint)
def _of_components(constraint: MixtureSameFamilyConstraint) -> Transform:
    """The bijection of all components of a mixture.

    Raises
    ------
    NotImplementedError
        Components have supports of their own, such as intervals.
    """
    base = constraint.base_constraint
    # Bounds that differ by component: no single map leads into all components.
    if any(isinstance(each, Tensor) and each.dim() for each in vars(base).values()):
        raise NotImplementedError
    return biject_to(base)


class _LowerCholesky(Transform):
    """From vectors to lower triangles with positive diagonals, as NumPyro has it.

    Below the diagonal are the first numbers, row by row, on it exponentials of the others.
    """

    domain, codomain = constraints.real_vector, constraints.lower_cholesky
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LowerCholesky)

    def _call(self, x: Tensor) -> Tensor:
        size = _size_of_triangle(x.shape[-1])
        below = vec_to_tril_matrix(x[..., :-size], -1) if size > 1 else 0.0
        return below + torch.diag_embed(x[..., -size:].exp())

    def _inverse(self, y: Tensor) -> Tensor:
        diagonal = y.diagonal(dim1=-2, dim2=-1).log()
        return torch.cat([tril_matrix_to_vec(y, -1), diagonal], -1) if y.shape[-1] > 1 else diagonal

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # Of the exponentials on the diagonal; all other entries stay as they are.
        return x[..., -y.shape[-1] :].sum(-1)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        size = _size_of_triangle(shape[-1])
        return torch.Size((*shape[:-1], size, size))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        return torch.Size((*shape[:-2], shape[-1] * (shape[-1] + 1) // 2))


def _size_of_triangle(number: int) -> int:
    """Rows of a lower triangle of so many numbers."""
    # The root n of n (n + 1) / 2 = number; rounded, as the square root is not exact.
    return round((math.sqrt(1 + 8 * number) - 1) / 2)


@biject_to.register(constraints.lower_cholesky)
def _to_lower_cholesky(constraint: Any) -> Transform:
    """The hosts have no bijection there, but a map that leaves a triangle unused."""
    return _LowerCholesky()


@biject_to.register(constraints.positive_definite)
def _to_positive_definite(constraint: Any) -> Transform:
    """A lower triangle times its transpose."""
    return ComposeTransform([_LowerCholesky(), CholeskyTransform().inv])


def narrowed(fn: Any) -> Transform | None:
    """The bijection to the support of a transformed distribution that is narrower than it says.

    The host takes the last transform's codomain for the support, which is the line for an affine
    map, whatever is mapped. None where that is right, or where a transform has no inverse.
    """
    while isinstance(fn, (Independent, MaskedDistribution)):
        fn = fn.base_dist
    # Families of the hosts that are written as transformed ones know their support.
    if getattr(type(fn), "support", None) is not TransformedDistribution.support:
        return None
    if not all(each.bijective for each in fn.transforms):
        return None
    try:
        inner = narrowed(fn.base_dist)
        before = biject_to(fn.base_dist.support) if inner is None else inner
    except NotImplementedError:
        return None
    parts, is_narrower = [before], inner is not None
    for each in fn.transforms:
        try:
            wanted = biject_to(each.domain)
        except NotImplementedError:
            return None
        # What comes in does not fill the transform's domain, so what comes out does not fill its
        # codomain.
        is_narrower |= _kinds(before) != _kinds(wanted)
        parts.append(each)
        before = biject_to(each.codomain)
    return ComposeTransform(parts) if is_narrower else None


def _kinds(transform: Transform) -> tuple[object, ...]:
    """The kinds of a bijection's parts. One with numbers is like no other: they may be latent."""
    while isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    if isinstance(transform, ComposeTransform):
        return tuple(kind for part in transform.parts for kind in _kinds(part))
    return (object(),) if isinstance(transform, AffineTransform) else (type(transform),)


def transform_to_support(site: Mapping[str, Any]) -> Transform:
    """The bijection from unconstrained space to the support that ``site`` has now.

    An angle is in (-pi, pi), as in NumPyro: on the line its density has no integral. Transformed
    distributions have that of what is transformed, mapped on.

    Raises
    ------
    ModelCheckError
        The support has no such bijection: discrete sites and spheres.
    """
    try:
        with helpful_support_errors(site):
            transform = narrowed(site["fn"]) or biject_to(site["fn"].support)
        if not is_angle(site["fn"]):
            return transform
        turn = ComposeTransform([biject_to(constraints.interval(-math.pi, math.pi)), _OneTurn()])
        return IndependentTransform(turn, transform.domain.event_dim)
    except ValueError as error:
        # The host's words name the site and say what to do, such as to enumerate it.
        raise ModelCheckError(str(error)) from None
    except NotImplementedError as error:
        raise ModelCheckError(
            f"Continuous inference cannot handle sample site '{site['name']}': expected a "
            "support with a bijection from unconstrained space, found "
            f"{site['fn'].support}. Reparameterize the site with poutine.reparam."
        ) from error


def _is_identity(transform: Transform) -> bool:
    """Whether the support is all of unconstrained space, so that there is no Jacobian to add."""
    if isinstance(transform, IndependentTransform):
        return _is_identity(transform.base_transform)
    return isinstance(transform, ComposeTransform) and not transform.parts


def is_factor(site: Mapping[str, Any]) -> bool:
    """Whether the site is a ``pyro.factor`` statement."""
    return is_made_of(site["fn"], Unit)


def is_deterministic(site: Mapping[str, Any]) -> bool:
    """Whether the site only records a value (``pyro.deterministic`` or a reparameterized site)."""
    if site["infer"] and site["infer"].get("_deterministic"):
        return True
    # The host's reparameterisations record a site as an observed Delta, without that mark.
    return site["is_observed"] and is_made_of(site["fn"], Delta)


def has_density(site: Mapping[str, Any]) -> bool:
    """Whether a site that records a value adds to the density all the same.

    So do some of the host's reparameterisations (``SplitReparam``, ``NeuTraReparam``,
    ``ConjugateReparam``), which record a site with what its density is beside its parts'.
    """
    fn = site["fn"]
    if site["mask"] is False or (site["infer"] or {}).get("_deterministic"):
        return False
    while hasattr(fn, "base_dist"):
        if isinstance(fn, MaskedDistribution) and fn._mask is False:
            return False
        fn = fn.base_dist
    return True


def plate_frames(site: Mapping[str, Any]) -> list[Any]:
    """The vectorized plates around a site."""
    return [frame for frame in site["cond_indep_stack"] if frame.vectorized]


def fixed_normal(fn: Any, shape: torch.Size) -> tuple[Tensor, Float[Tensor, ""]] | None:
    """Location and scale of a Normal whose entries share the scale; None for other ``fn``.

    The location is a scalar where all entries share it, and else has the ``shape`` of the site.
    None as well where either is differentiated, and so depends on another latent site.
    """
    while isinstance(fn, Independent):
        fn = fn.base_dist
    # By the method and not by the class: a subclass may have another density.
    if type(fn).log_prob is not Normal.log_prob:
        return None
    loc, scale = fn.loc, fn.scale
    if loc.requires_grad or scale.requires_grad or not _is_repeated(scale):
        return None
    if _is_repeated(loc):
        loc = loc[(0,) * loc.dim()]
    elif loc.shape != shape:
        return None
    return loc, scale[(0,) * scale.dim()]


def _is_repeated(value: Tensor) -> bool:
    """Whether one number in memory is all entries of a tensor."""
    return all(n == 1 or stride == 0 for n, stride in zip(value.shape, value.stride(), strict=True))


def plate_shape_error(error: ValueError) -> ArgumentError | None:
    """Pyro's complaint about rows that do not fit a plate, with the fix; None for other errors."""
    if "Shape mismatch inside plate" not in str(error):
        return None
    return ArgumentError(
        f"{error}\nThe rows passed as arguments do not fit the plate. When minibatches are passed "
        "as arguments, write pyro.plate(name, size, subsample_size=len(x))."
    )


class SiteHandler(Messenger):
    """Sets every latent site from an unconstrained value and adds up the log density.

    Parameters
    ----------
    unconstrained : mapping of str to tensor
        Unconstrained value of each latent site, at full length for sites inside a subsampled
        plate.
    indices : mapping of str to tensor
        Row indices of the subsampled plates in this run.
    leave_normals : bool
        Leave large sites whose prior is a Normal of :func:`fixed_normal` out of ``log_prior``, for
        the caller to add: automatic differentiation makes ten tensors of a site's size for them.

    Attributes
    ----------
    normals : dict of str to (scalar tensor or tensor of the site's shape, scalar tensor)
        Location and scale of each site that was left out.
    log_prior : scalar tensor
        Latent sites with log|det J| of their transforms, and factors outside every plate.
    log_likelihood : scalar tensor
        Observed sites, and factors inside a plate.
    values : dict of str to tensor
        Constrained value of each latent site.
    recorded : dict of str to tensor
        Value of each deterministic site.
    summed : list of Factor
        Sites with dimensions of discrete latent sites, which :meth:`sum_out` sums.
    """

    def __init__(
        self,
        unconstrained: Mapping[str, Tensor],
        indices: Indices,
        leave_normals: bool = False,
    ) -> None:
        super().__init__()
        self.unconstrained = unconstrained
        self.indices = indices
        self.leave_normals = leave_normals
        self.normals: dict[str, tuple[Tensor, Tensor]] = {}
        self.log_prior: Any = 0.0
        self.log_likelihood: Any = 0.0
        self.values: dict[str, Tensor] = {}
        self.recorded: dict[str, Tensor] = {}
        self.summed: list[Factor] = []
        self.has_stand_in = False
        self.validate = False

    def unconstrained_value(self, msg: Any, transform: Transform) -> Tensor:
        """Unconstrained value of the site for the rows that this run draws."""
        try:
            value = self.unconstrained[msg["name"]]
        except KeyError:
            raise ModelCheckError(
                f"The model's structure changes: latent site '{msg['name']}' was not drawn in "
                "the first run of the model. Expected the same latent sites in every run; write "
                "the choice with torch.where or as a mixture instead of a Python branch."
            ) from None
        domain_dim = transform.domain.event_dim
        for frame in plate_frames(msg):
            if (rows := self.indices.get(frame.name)) is not None:
                value = value.index_select(frame.dim - domain_dim + value.dim(), rows)
        return value

    def _pyro_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        if not self.validate:
            msg["fn"] = without_validation(msg["fn"])
        if msg["is_observed"] or msg["value"] is not None or is_enumerated(msg):
            return
        self._give_value(msg)

    def _give_value(self, msg: Any) -> None:
        """Give a latent site that has no value yet its own."""
        transform = transform_to_support(msg)
        unconstrained = self.unconstrained_value(msg, transform)
        if _is_identity(transform):
            msg["value"] = unconstrained
            return
        value = transform(unconstrained)
        # More dimensions than the position has are those of a discrete site's values.
        if value.dim() - transform.codomain.event_dim > unconstrained.dim() - (
            transform.domain.event_dim
        ):
            raise support_error(msg["name"])
        log_det = transform.log_abs_det_jacobian(unconstrained, value)
        # Elementwise transforms give one term for each entry; the rest of the event is summed.
        surplus = log_det.dim() - (value.dim() - msg["fn"].event_dim)
        msg["value"] = value
        # Carried to the end of the message, when the frames of all plates around the site are
        # known.
        msg["infer"] = {**(msg["infer"] or {}), "_log_det": sum_rightmost(log_det, surplus)}

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        if is_deterministic(msg):
            self.recorded[msg["name"]] = msg["value"]
            if not has_density(msg):
                return
        if self.leave_normals and self._leave_normal(msg):
            return
        self.has_stand_in |= STANDS_IN in msg["infer"]
        log_prob = msg["fn"].log_prob(msg["value"])
        factor = factor_of(msg, log_prob)
        if factor is not None:
            self.summed.append(factor)
            log_det = msg["infer"].get("_log_det")
            if log_det is not None:
                if factor_of(msg, log_det) is not None:
                    raise support_error(msg["name"])
                self._add_jacobian(msg, log_det)
            if not msg["is_observed"] and factor.own is None:
                self.values[msg["name"]] = msg["value"]
            return
        log_prob = scale_and_mask(log_prob, msg["scale"], msg["mask"]).sum()
        if msg["is_observed"]:
            # What a reparameterisation records with a density is a part of its site's prior.
            if is_deterministic(msg) or (is_factor(msg) and not plate_frames(msg)):
                self.log_prior = self.log_prior + log_prob
            else:
                self.log_likelihood = self.log_likelihood + log_prob
            return
        self.log_prior = self.log_prior + log_prob
        if (log_det := msg["infer"].get("_log_det")) is not None:
            self._add_jacobian(msg, log_det)
        self.values[msg["name"]] = msg["value"]

    def _add_jacobian(self, msg: Any, log_det: Tensor) -> None:
        # Rows of a plate stand for others. Scales and masks of handlers do not change how values
        # are parameterised: with them the posterior would depend on the transform.
        scale = math.prod(
            (frame.full_size or frame.size) / frame.size for frame in msg["cond_indep_stack"]
        )
        if scale != 1.0:
            log_det = scale * log_det
        self.log_prior = self.log_prior + log_det.sum()

    def sum_out(self) -> None:
        """Add what factors with discrete sites sum to, after the model's run."""
        if self.summed:
            self.log_likelihood = self.log_likelihood + log_marginal(self.summed)

    def _leave_normal(self, msg: Any) -> bool:
        name, value = msg["name"], msg["value"]
        # The very tensor: not observed, not transformed, and not some rows of it.
        if name not in self.unconstrained or value is not self.unconstrained[name]:
            return False
        plain = isinstance(msg["scale"], (int, float)) and msg["scale"] == 1
        whole = msg["mask"] is None or msg["mask"] is True
        if not (plain and whole) or value.numel() < LARGE_SITE:
            return False
        normal = fixed_normal(msg["fn"], value.shape)
        if normal is None:
            return False
        self.normals[name] = normal
        self.values[name] = value
        return True


class ValuesHandler(SiteHandler):
    """Sets every latent site and keeps the values, without densities."""

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        if is_deterministic(msg):
            self.recorded[msg["name"]] = msg["value"]
        elif not msg["is_observed"] and not is_enumerated(msg):
            self.values[msg["name"]] = msg["value"]


class UnconstrainHandler(SiteHandler):
    """Sets every latent site to a given constrained value and records the unconstrained one."""

    def __init__(self, constrained: Mapping[str, Tensor]) -> None:
        super().__init__({}, {})
        self.constrained = constrained
        self.positions: dict[str, Tensor] = {}

    def _give_value(self, msg: Any) -> None:
        value = self.constrained[msg["name"]]
        self.positions[msg["name"]] = transform_to_support(msg).inv(value)
        msg["value"] = value

    def _pyro_post_sample(self, msg: Any) -> None:
        return


class InitializationHandler(SiteHandler):
    """Sets every latent site by a strategy of ``pyro.infer.autoguide.initialization``."""

    def __init__(self, strategy: Any, indices: Indices) -> None:
        super().__init__({}, indices)
        self.strategy = strategy
        self.positions: dict[str, Tensor] = {}
        self.validate = True

    def _give_value(self, msg: Any) -> None:
        with helpful_support_errors(msg):
            value = self.strategy(msg)
        transform = transform_to_support(msg)
        position = transform.inv(value)
        if narrowed(msg["fn"]) is not None and not bool(torch.isfinite(position).all()):
            # The host's strategies believe the support that the distribution says it has.
            value = msg["fn"].sample()
            position = transform.inv(value)
        self.positions[msg["name"]] = position
        msg["value"] = value

    def _pyro_post_sample(self, msg: Any) -> None:
        return


class SiteTermsHandler(SiteHandler):
    """Keeps the log density of each site apart, to name the one at fault."""

    def __init__(self, unconstrained: Mapping[str, Tensor], indices: Indices) -> None:
        super().__init__(unconstrained, indices)
        self.terms: dict[str, Tensor] = {}

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg) or (is_deterministic(msg) and not has_density(msg)):
            return
        before = self.log_prior + self.log_likelihood
        super()._pyro_post_sample(msg)
        self.terms[msg["name"]] = self.log_prior + self.log_likelihood - before


class OneValueHandler(SiteTermsHandler):
    """Sets discrete latent sites as well.

    Parameters
    ----------
    unconstrained, indices
        See :class:`SiteHandler`.
    numbers : mapping of str to tensor
        Numbers of the discrete sites' values.
    """

    def __init__(
        self, unconstrained: Mapping[str, Tensor], indices: Indices, numbers: Mapping[str, Tensor]
    ) -> None:
        super().__init__(unconstrained, indices)
        self.numbers = numbers

    def _pyro_sample(self, msg: Any) -> None:
        if is_enumerated(msg) and msg["name"] in self.numbers:
            fn, number = msg["fn"], self.numbers[msg["name"]]
            check_places(self.numbers, msg["name"], number.shape, fn.batch_shape)
            # Axes of length one to the left stand for dimensions that the site does not have.
            number = number.reshape(number.shape[number.dim() - len(fn.batch_shape) :])
            msg["value"] = values_of(fn)[number].expand(fn.shape())
        super()._pyro_sample(msg)


class DiscoveryHandler(SiteHandler):
    """Runs a model whose sites are not known yet, at small random unconstrained values.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        Full-length unconstrained shape of each latent site, in trace order.
    sites : dict of str to dict
        Every sample message that was met.
    """

    def __init__(self, indices: Indices, plates: Mapping[str, tuple[int, int]]) -> None:
        super().__init__({}, indices)
        self.plates = plates
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sites: dict[str, dict[str, Any]] = {}
        self.radius = 0.1
        self.dtype: torch.dtype | None = None
        self.validate = True

    def unconstrained_value(self, msg: Any, transform: Transform) -> Tensor:
        name = msg["name"]
        try:
            shape = torch.Size(transform.inverse_shape(msg["fn"].shape()))
        except NotImplementedError:
            shape = transform.inv(msg["fn"].sample()).shape
        full = list(shape)
        for frame in plate_frames(msg):
            if frame.name in self.plates:
                full[frame.dim - transform.domain.event_dim] = self.plates[frame.name][0]
        self.shapes[name] = tuple(full)
        return (2.0 * torch.rand(shape, dtype=self.dtype) - 1.0) * self.radius

    def _pyro_sample(self, msg: Any) -> None:
        super()._pyro_sample(msg)
        if not site_is_subsample(msg):
            if msg["name"] in self.sites:
                raise ModelCheckError(
                    f"Multiple sample sites named '{msg['name']}'. Expected every sample site to "
                    "have a name of its own; rename one of them."
                )
            self.sites[msg["name"]] = msg


@swapping
@contextmanager
def isolated_parameters(state: Any = None) -> Iterator[Any]:
    """Run with a parameter store of its own, so that the global one stays as it is.

    Yields the store's state, which holds the model's parameters after the run.
    """
    store = pyro.get_param_store()
    state = store.get_state() if state is None else state
    with store.scope({key: dict(value) for key, value in state.items()}) as scoped:
        yield scoped


def _safe_log(x: Tensor) -> Tensor:
    """Logarithm with a gradient of zero at zero."""
    zero = x == 0
    # Filled before and after: the gradient of log is infinite at zero, and infinity times the zero
    # that comes from outside is NaN.
    return x.masked_fill(zero, 1.0).log().masked_fill(zero, -torch.inf)


@contextmanager
def _plain_safe_log() -> Iterator[None]:
    """Context in which Pyro's ``safe_log`` consists of torch's own operations.

    Pyro's is an operation with a gradient that ``torch.func`` cannot take, and that is wrong below
    the precision of the numbers. ``DiscreteHMM`` and ``CoalescentTimes`` use it.
    """
    _SafeLog.apply = staticmethod(_safe_log)
    try:
        yield
    finally:
        # The inherited method comes up again.
        del _SafeLog.apply


class _WithoutMask(Messenger):
    """Takes off one mask that the handlers inside have put on a site.

    Parameters
    ----------
    name : str
        The site. What the host's reparameterisations make of it has a name that begins so.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"].startswith(self.name):
            msg["mask"] = None


def _filled(fn: Any, obs: Any, mask: Any) -> Any:
    """Observations with a value of the support at rows that are not seen.

    A mask multiplies a score by zero, which NaN outlives; NumPyro's masked distributions do so too.
    """
    shape = mask.shape + (1,) * fn.event_dim
    like = torch.as_tensor(obs)
    inside = _inside(fn.support, like)
    # ``where`` and no product: the values that are hidden may be NaN.
    return obs if inside is None else torch.where(mask.reshape(shape), like, inside)


def _inside(support: Any, like: Tensor) -> Tensor | None:
    """A value of a support, of the type and with the event of ``like``; None if none is known."""
    if support.is_discrete:
        lowest = getattr(support, "lower_bound", getattr(support, "base_constraint", 0))
        if support.event_dim or not isinstance(lowest, (int, float, Tensor)):
            return None
        return torch.as_tensor(lowest, dtype=like.dtype)
    try:
        transform = biject_to(support)
    except NotImplementedError:  # the host has no map of the real line to it
        return None
    return transform(like.new_zeros(transform.inverse_shape(like.shape)))


_missing_rows = MissingRows(pyro.primitives, _WithoutMask, torch.as_tensor, _filled)


@swapping
@contextmanager
def running(state: Any, indices: Indices | None) -> Iterator[SubsampleControl]:
    """Context for one run of a model: its own parameter store, and these rows of its plates."""
    with (
        handling(_PYRO_STACK),
        isolated_parameters(state),
        _plain_safe_log(),
        _missing_rows(),
        SubsampleControl(indices) as control,
    ):
        yield control


@swapping
@contextmanager
def without_host_checks() -> Iterator[None]:
    """Switch off the hosts' checks that read values back to Python, of linear algebra too."""
    with (
        pyro.settings.context(
            validate_poutine=False,
            validate_infer=False,
            validate_distributions_pyro=False,
            validate_distributions_torch=False,
        ),
        FailedFactors(),
    ):
        yield


@swapping
@contextmanager
def evaluating() -> Iterator[None]:
    """What a lifted function is run in: no checks, no notes of functorch on what it loops over."""
    with without_host_checks(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


@swapping
@contextmanager
def global_generator(seed: int | None = None) -> Iterator[None]:
    """Context in which torch's global generator starts at ``seed``, and is put back after.

    Distributions and the host's own code draw from the global generator only. Without a seed it
    goes on from where it is.
    """
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        yield


def _modes_of_torch() -> Callable[[], None]:
    """Note torch's stacks of modes, which an exception may leave too high; see ``process``."""
    level = torch._C._functorch.get_dynamic_layer_stack_depth()
    modes = torch._C._len_torch_dispatch_stack()
    functions = torch._C._len_torch_function_stack()
    differentiates = torch.is_grad_enabled()

    def put_back() -> None:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(level)
        while torch._C._len_torch_dispatch_stack() > modes:
            torch._C._pop_torch_dispatch_stack(None)
        while torch._C._len_torch_function_stack() > functions:
            torch._C._pop_torch_function_stack()
        torch.set_grad_enabled(differentiates)

    return put_back


def _plates_of_pyro() -> Callable[[], None]:
    """Note which plates have a dimension: one whose start is broken off keeps its own."""
    plates = list(_DIM_ALLOCATOR._stack)

    def put_back() -> None:
        _DIM_ALLOCATOR._stack[:] = plates

    return put_back


KEEPERS += [_modes_of_torch, _plates_of_pyro]

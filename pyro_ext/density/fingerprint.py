"""What a model computes, read from one run of it: its operations and the tensors it closes over.

Graphs hold such tensors as constants, and numbers of data frames and of objects' attributes as
well. A model whose fingerprint is another than it was has to be traced again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ppl_ext.target.families import innermost
from ppl_ext.target.fingerprint import Digest, Fingerprint, check_repeats, digest_of
from pyro_ext.density.bound_model import BoundModel
from pyro_ext.density.handlers import SiteHandler, global_generator, without_host_checks
from pyro_ext.density.layout import Data


def as_numpy(tensor: Any) -> np.ndarray:
    """Numbers of a tensor, or of another array."""
    if not isinstance(tensor, Tensor):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu().resolve_neg().resolve_conj()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    # NumPy has no bfloat16; its bits tell values apart as well.
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


class _Operations(TorchDispatchMode):
    """Reads every operation, and every tensor that comes from outside."""

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()
        self.operations, self.constants = Digest(), Digest()
        self.random: list[str] = []
        # The tensors themselves are kept: the number of one that is gone may be given again.
        self._known = {id(each): (str(number), each) for number, each in enumerate(inputs)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.operations.add(func)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random.append(str(func.name()).removeprefix("aten::"))
        for leaf in pytree.tree_leaves((args, kwargs or {})):
            # Tensors by the order in which they came up, so that the values of latent sites and of
            # arguments do not count.
            self.operations.add(self._name(leaf) if isinstance(leaf, Tensor) else leaf)
        found = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(found):
            if isinstance(leaf, Tensor):
                self._known[id(leaf)] = (str(len(self._known)), leaf)
        return found

    def _name(self, tensor: Tensor) -> str:
        if id(tensor) not in self._known:
            self.constants.add_array(as_numpy(tensor))
            self._known[id(tensor)] = (str(len(self._known)), tensor)
        return self._known[id(tensor)][0]


class _Recorder(SiteHandler):
    """Keeps what is to be compared of each sample site."""

    def __init__(self, unconstrained: Mapping[str, Tensor], indices: Mapping[str, Tensor]) -> None:
        super().__init__(unconstrained, indices)
        self.sites: dict[str, dict[str, np.ndarray]] = {}

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        fn = msg["fn"]
        base = innermost(fn)
        # Those that were given: others are computed when they are asked for.
        found = {name: vars(base).get(name) for name in getattr(base, "arg_constraints", {})}
        if msg["is_observed"]:
            found["observed value"] = msg["value"]
        found["log density"] = fn.log_prob(msg["value"])
        found |= {
            name: torch.as_tensor(msg[name]) for name in ("scale", "mask") if msg[name] is not None
        }
        self.sites[msg["name"]] = {
            name: as_numpy(value) for name, value in found.items() if isinstance(value, Tensor)
        }


@contextmanager
def _watch_dropout() -> Iterator[list[str]]:
    """Modules that leave units out at random, as they are called."""
    found: list[str] = []

    def enter(module: torch.nn.Module, inputs: Any) -> None:
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            found.append(f"{type(module).__name__} in train mode")

    hook = register_module_forward_pre_hook(enter)
    try:
        yield found
    finally:
        hook.remove()


def _read(bound: BoundModel, data: Data, seed: int) -> tuple[_Operations, _Recorder, list[str]]:
    number = torch.arange(bound.layout.dim, dtype=bound.dtype, device=bound.device)
    sites, rows = bound.layout.split(0.1 * torch.cos(number)), bound.first_rows()
    recorder = _Recorder(sites, rows)
    given = pytree.tree_leaves((data.args, data.kwargs, sites, rows))
    with (
        torch.no_grad(),
        global_generator(seed),
        without_host_checks(),
        _watch_dropout() as modules,
    ):
        with _Operations(each for each in given if isinstance(each, Tensor)) as operations:
            bound.run(recorder, (data.args, data.kwargs, rows))
    return operations, recorder, modules


def fingerprint(bound: BoundModel, data: Data) -> Fingerprint:
    """What the model computes now, of arguments of this form."""
    operations = _read(bound, data, 0)[0]
    return Fingerprint(str(operations.operations), str(operations.constants))


def repeatable_fingerprint(bound: BoundModel, data: Data) -> Fingerprint | None:
    """The same, of a model that does the same when it is run again.

    None where runs differ in something that no site shows, such as a counter.

    Raises
    ------
    ModelCheckError
        It does not: it draws random numbers, or what it changes comes into its next run.
    """
    # By two seeds, so that what is drawn in the model shows.
    (first, sites, modules), (again, others, _) = (_read(bound, data, seed) for seed in (0, 1))
    causes = dict.fromkeys(modules or first.random)
    check_repeats(sites.sites, others.sites, tuple(causes))
    one, two = (Fingerprint(str(o.operations), str(o.constants)) for o in (first, again))
    return one if one == two else None


def digest_of_arguments(tree: Any) -> str:
    """Digest of the numbers in arguments."""
    return digest_of(pytree.tree_leaves(tree), as_numpy)

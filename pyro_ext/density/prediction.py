"""What the distribution of an observed site says of values that are yet to be seen.

Predictions on test rows need no random numbers: at a draw of the latent sites the observed site
has a distribution, whose class probabilities, or mean, variance and distribution function, are
known. :class:`ObserveMissing` lets a model without observations of a site be run so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from ppl_ext.discrete import STANDS_IN, changing_sites
from ppl_ext.outputs import prediction_terms
from pyro_ext.density.enumeration import is_enumerated
from pyro_ext.density.handlers import global_generator
from pyro_ext.density.outputs import joint_mask, unwrap


class ObserveMissing(Messenger):
    """Makes observed sites of those that are neither observed nor among the given names.

    They get a value from their distribution, the same in every run, which is only there for the
    model to run on; torch's global generator is left as it was.

    Attributes
    ----------
    missing : list of str
        Those sites, in the order in which they were met.
    finite : list of str
        Those of them with finitely many values, which may be discrete latent sites.
    """

    def __init__(self, given: Collection[str], seed: int = 0) -> None:
        super().__init__()
        self.given, self._seed = frozenset(given), seed
        self.missing: list[str] = []
        self.finite: list[str] = []

    def over(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """The model, run under this handler; its signature stays."""

        # A module is called through its forward, which has the signature.
        named = model.forward if isinstance(model, torch.nn.Module) else model

        @functools.wraps(named)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return model(*args, **kwargs)

        return run

    def _pyro_sample(self, msg: Any) -> None:
        if site_is_subsample(msg) or msg["is_observed"] or msg["value"] is not None:
            return
        name = msg["name"]
        if name in self.given:
            return
        if name not in self.missing:
            self.missing.append(name)
            if is_enumerated(msg):
                self.finite.append(name)
        with global_generator(self._seed), torch.no_grad():
            msg["value"] = msg["fn"].sample()
        msg["is_observed"] = True
        msg["infer"] = {**(msg["infer"] or {}), STANDS_IN: True}


def dependent_on_missing(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: Mapping[str, Any],
    given: Collection[str],
    names: Sequence[str],
) -> list[str]:
    """Which of the named sites have a distribution that depends on what is not observed.

    Parameters
    ----------
    model, args, kwargs
        The program.
    values : mapping of str to tensor
        One draw of the latent sites.
    given : collection of str
        Latent sites, discrete ones among them, which are drawn.
    names : sequence of str
        Observed sites.
    """

    def densities(latents: int, missing: int) -> list[np.ndarray]:
        run = poutine.condition(ObserveMissing(given, missing).over(model), data=dict(values))
        with global_generator(latents), torch.no_grad():
            sites = poutine.trace(run).get_trace(*args, **kwargs).nodes
            found = [sites[name]["fn"].log_prob(sites[name]["value"]) for name in names]
        return [each.cpu().numpy() for each in found]

    return changing_sites(names, densities)


def prediction_of(site: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the observed site's distribution says; see :func:`ppl_ext.outputs.prediction_terms`."""
    outer, value = site["fn"], site["value"]
    fn, masks, declared = unwrap(outer)
    classes = None
    if isinstance(fn, Bernoulli):
        classes = torch.stack([1.0 - fn.probs, fn.probs], -1)
    elif isinstance(fn, Categorical):
        classes = fn.probs
    batch = tuple(outer.batch_shape) + tuple(outer.event_shape[:declared])
    mask = joint_mask([(site["mask"], 0), *masks], declared, batch)
    shape = tuple(torch.broadcast_shapes(value.shape, outer.shape()))
    return prediction_terms(outer, fn, value, shape, classes, mask, torch.broadcast_to)

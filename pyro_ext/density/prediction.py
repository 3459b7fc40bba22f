"""What the distribution of an observed site says of values that are yet to be seen.

Predictions on test rows need no random numbers: at a draw of the latent sites the observed site
has a distribution, whose class probabilities, or mean, variance and distribution function, are
known. :class:`ObserveMissing` lets a model without observations of a site be run so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ppl_ext.target.discrete import STANDS_IN, Missing, Run
from pyro_ext.density.enumeration import is_enumerated
from pyro_ext.density.handlers import global_generator, isolated_parameters, without_host_checks
from pyro_ext.density.outputs import HOST
from pyro_ext.density.sampling import sampled


class ObserveMissing(Missing, Messenger):
    """Makes observed sites of those that are neither observed nor among the given names.

    They get a value from their distribution, the same in every run, which is only there for the
    model to run on; torch's global generator is left as it was.
    :class:`~ppl_ext.target.discrete.Missing` has their names.
    """

    def __init__(self, given: Collection[str], seed: int = 0) -> None:
        Messenger.__init__(self)
        Missing.__init__(self, given)
        self._seed = seed

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
        if not self.meets(msg, is_enumerated):
            return
        # From the same seed in every run: the check of a model refuses observations that change.
        with global_generator(self._seed), torch.no_grad():
            msg["value"] = sampled(msg["fn"])
        msg["is_observed"] = True
        msg["infer"] = {**(msg["infer"] or {}), STANDS_IN: True}


def run_at(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Mapping[str, Any], int], Run]:
    """Runs of a program at values of its sites, as :func:`ppl_ext.target.discrete.dependents` takes
    them.

    Sites that have neither values nor observations are drawn, by the seed of the run.
    """

    def run(values: Mapping[str, Any], seed: int) -> Run:
        tensors = {name: torch.as_tensor(value) for name, value in values.items()}
        observing = ObserveMissing(values, seed).over(model)
        # The model's parameters stay out of the host's store, as in all other runs.
        with isolated_parameters(), global_generator(0), torch.no_grad(), without_host_checks():
            trace = poutine.trace(poutine.condition(observing, data=tensors))
            found = trace.get_trace(*args, **kwargs).nodes.items()
            sites = {
                name: (site["value"], site["fn"].log_prob(site["value"]))
                for name, site in found
                if site["type"] == "sample" and not site_is_subsample(site)
            }
        return {name: (a.cpu().numpy(), b.cpu().numpy()) for name, (a, b) in sites.items()}

    return run


def prediction_of(site: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the observed site's distribution says.

    See :func:`ppl_ext.target.outputs.prediction_terms`."""
    return HOST.prediction(site["fn"], site["value"], [(site["mask"], 0)])

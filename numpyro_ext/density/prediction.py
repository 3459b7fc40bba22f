"""What the distribution of an observed site says of values that are yet to be seen.

Predictions on test rows need no random numbers: at a draw of the latent sites the observed site
has a distribution, whose class probabilities, or mean, variance and distribution function, are
known. :class:`ObserveMissing` lets a model without observations of a site be run so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro import handlers
from numpyro.primitives import Messenger

from numpyro_ext.density.handlers import Site, is_array, is_enumerated, is_latent, run_trace
from numpyro_ext.density.outputs import HOST
from numpyro_ext.programs import Program
from ppl_ext.target.discrete import STANDS_IN, Missing, Run


class GoesOnError(Exception):
    """A ``scan`` has more steps than the values that one of its sites is observed at.

    The site is observed in the first steps and drawn in the others, which no density has.
    """


class ObserveMissing(Missing, Messenger):
    """Makes observed sites of those that are neither observed nor among the given names.

    They get a value from their distribution, which is only there for the model to run on.
    :class:`~ppl_ext.target.discrete.Missing` has their names.
    """

    def __init__(self, fn: Callable[..., Any], given: Collection[str], seed: int = 0) -> None:
        Missing.__init__(self, given)
        self._seed = seed
        Messenger.__init__(self, fn)

    def process_message(self, msg: Site) -> None:
        """Observe a site for which nobody has a value, of the body of a ``scan`` as well.

        Raises
        ------
        GoesOnError
            A ``scan`` goes on beyond its data.
        """
        if msg["type"] == "control_flow":
            stack = msg["kwargs"]["substitute_stack"]
            if given := [values for _, values in stack if isinstance(values, Mapping)]:
                stack.insert(0, ("condition", partial(_goes_on, given, _steps(*msg["args"]))))
            stack.append(("condition", self._stand_in))
            return
        if (value := self._stand_in(msg)) is not None:
            msg["value"], msg["is_observed"] = value, True

    def _stand_in(self, msg: Site) -> Array | None:
        """A value for a site that has none, which is noted; None of all others."""
        latent = is_latent(msg) or is_enumerated(msg)
        if not latent or msg["value"] is not None or not self.meets(msg, is_enumerated):
            return None
        msg["infer"] = {**msg["infer"], STANDS_IN: True}
        return msg["fn"].sample(random.key(self._seed), msg["kwargs"].get("sample_shape", ()))


def _steps(f: Any, init: Any, xs: Any, length: int | None, *_: Any) -> int:
    """Steps of a ``scan`` with these arguments."""
    return len(jax.tree.leaves(xs)[0]) if length is None else length


def _goes_on(given: Sequence[Mapping[str, Any]], steps: int, site: Site) -> None:
    """Raise ``GoesOnError`` where the values of a site in a ``scan`` end before its steps do."""
    for values in given:
        value = values.get(site["name"])
        if value is None:
            continue
        if jnp.ndim(value) > len(site["fn"].shape()) and len(value) < steps:
            raise GoesOnError


def _log_prob(site: Site) -> Array:
    return site["fn"].log_prob(site["value"])


def run_at(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Mapping[str, Any], int], Run]:
    """Runs of a program at values of its sites, as :func:`ppl_ext.target.discrete.dependents` takes
    them.

    Sites that have neither values nor observations are drawn, by the seed of the run.
    """

    def run(values: Mapping[str, Any], seed: Any) -> dict[str, tuple[Array, Array]]:
        observing = ObserveMissing(model, values, seed)
        seeded = handlers.seed(handlers.substitute(observing, data=dict(values)), 0)
        return {
            name: (site["value"], jnp.zeros(()) if is_value else _log_prob(site))
            for name, site in run_trace(seeded, args, kwargs).items()
            if (is_value := is_array(site)) or site["type"] == "sample"
        }

    compiled = Program(run, rarely=True)

    def arrays(values: Mapping[str, Any], seed: int) -> Run:
        return {
            name: (np.asarray(value), np.asarray(density))
            for name, (value, density) in compiled(dict(values), seed).items()
        }

    return arrays


def prediction_of(site: Site) -> dict[str, Array]:
    """What the observed site's distribution says.

    See :func:`ppl_ext.target.outputs.prediction_terms`."""
    return HOST.prediction(site["fn"], jnp.asarray(site["value"]))

"""``calibrate``: whether a way to fit a Pyro program is right on data of the program's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_ext.arguments import entry
from ppl_ext.calibrate import calibrate as shared
from ppl_ext.calibrate.calibration import Calibration
from ppl_ext.diagnostics.replay import Replay
from ppl_ext.fit.many import fit_one
from ppl_ext.fit.problem.programs import Programs
from pyro_ext.check import of_host
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.batches import array_or_none
from pyro_ext.density.replay import replay
from pyro_ext.density.simulate import one_run, prior_draws
from pyro_ext.fit import ways_of


@entry
def calibrate(
    model: Callable[..., Any],
    *args: Any,
    fit_function: Callable[..., Any] | None = None,
    num_data_sets: int = shared.DATA_SETS,
    num_draws: int = shared.DRAWS,
    observed: Mapping[str, str] | None = None,
    seed: int = 0,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Calibration:
    """Simulation-based calibration of a way to fit a model.

    Parameters are drawn from the prior, and data from the model with these parameters. Each data
    set is fitted. If the draws of a fit are the posterior's, the rank of the parameter among them
    is uniform over data sets; so a fit that is wrong on average is found, without knowing any
    posterior. Beside the parameters the log likelihood is ranked, which finds draws that do not
    depend on the data.

    Parameters
    ----------
    seed : int
        Seed of all random numbers.
    model : callable
        Pyro program.
    *args, **kwargs
        Its arguments, with all rows. Observations may be there, which say what data look like and
        are replaced; or they may be None, where the model runs without them.
    fit_function : callable, optional
        What fits a data set: a function of the model's arguments, with new observations in their
        places, that gives back what :func:`check` takes: a fit, an engine, ``svi`` or its guide,
        ``mcmc``, or a mapping from latent sites to draws, first axis = draws. Sites without draws
        are not ranked. Default: :func:`fit`.
    num_data_sets : int
        Data sets N. More find smaller faults.
    num_draws : int
        Draws that parameters are ranked among, at most; evenly spaced ones of those of a fit. They
        are fewer where the draws of fits are worth fewer independent ones.
    observed : mapping of str to str, optional
        The argument that holds the observations of a site, by site. Default: the argument of the
        same name, or else the one with the same numbers.
    progress_bar : bool
        Count the data sets.

    Returns
    -------
    Calibration
        Ranks by site, whether they are uniform (``is_uniform``, ``p_value``, ``print``), data for
        ArviZ (``to_arviz``) and a picture (``plot``).

    Raises
    ------
    ModelCheckError
        The model cannot be fitted.
    ArgumentError
        The model cannot be simulated: it has factors, or latent sites in plates that draw
        minibatches; or it is not known which argument holds the observations; or a fit gives no
        draws of its sites, or too few, or some that are not finite.

    Warns
    -----
    ConvergenceWarning
        Draws of many fits are worth fewer than ten independent ones.

    Notes
    -----
    Calibration is about fits on average over the prior, not about the data at hand; :func:`check`
    is about these. Draws of chains depend on each other, which would make ranks too extreme: no
    more draws are used than nineteen in twenty fits are worth. Equal values, as of constants, get
    random ranks. Discrete latent sites, which fits sum out, are not ranked.

    References
    ----------
    S. Talts, M. Betancourt, D. Simpson, A. Vehtari and A. Gelman, "Validating Bayesian inference
    algorithms with simulation-based calibration" (2018). The test: T. Säilynoja, P.-C. Bürkner and
    A. Vehtari, "Graphical test for discrete uniformity" (2022). The log likelihood: M. Modrák and
    others, "Simulation-based calibration checking for Bayesian computation" (2023).

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> def conjugate(y, scale=1.0):
    ...     deviation = scale * (len(y) + 0.01) ** -0.5
    ...     return {"mean": y.sum() / (len(y) + 0.01) + deviation * torch.randn(200)}
    >>> right = px.calibrate(model, y, num_data_sets=40, fit_function=conjugate)
    >>> print(right.is_uniform)
    True
    >>> narrow = px.calibrate(model, y, num_data_sets=40, fit_function=lambda y: conjugate(y, 0.5))
    >>> print(narrow.is_uniform)
    False
    """
    shared.check_options(fit_function, num_data_sets, num_draws, observed, progress_bar)
    generator = np.random.default_rng(seed)
    # Seeds apart for each use: truths, data and fits must be independent of each other.
    run, prior, new, *fits = map(int, generator.integers(2**31, size=3 + num_data_sets))

    def simulated(target: LogDensity, args: Any, kwargs: Any) -> tuple[Any, Replay]:
        data = target.bind(*args, **kwargs)
        truths = prior_draws(model, prior, target.layout.names, num_data_sets, args, kwargs)
        return truths, replay(target, truths, data, groups=["predictive", "observed"], seed=new)

    def fit(number: int, call: Any, programs: Programs) -> Any:
        if fit_function is None:
            return fit_one(partial(ways_of, model), call, fits[number], programs)
        return fit_function(*call[0], **call[1])

    host = shared.Host(
        run=partial(one_run, model, run),
        target=partial(LogDensity, model),
        simulated=simulated,
        fit=fit,
        source=lambda found, number, args, kwargs: of_host(
            found, model, args, kwargs, fits[number]
        ),
        likelihood=_likelihood,
        as_array=array_or_none,
        like=_like,
    )
    found = shared.simulated_by(host, model, args, kwargs, observed)
    return shared.calibrate(found, generator, num_draws, progress_bar)


def _likelihood(target: LogDensity, data: Data, draws: dict[str, np.ndarray]) -> np.ndarray:
    values = {name: torch.as_tensor(each, dtype=target.dtype) for name, each in draws.items()}
    with torch.no_grad():
        positions = target.unconstrain(values, data)
        return target.full_log_prior_and_likelihood(positions, data)[1].cpu().numpy()


def _like(value: np.ndarray, given: Any) -> Any:
    """New observations in the form of the old ones."""
    shaped = value.reshape(np.shape(given))
    if isinstance(given, Tensor):
        # The fit is to see the new data in the precision and on the device of the old ones.
        return torch.as_tensor(shaped).to(given)
    return shaped.astype(given.dtype)

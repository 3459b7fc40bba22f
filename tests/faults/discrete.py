"""Programs with discrete latent sites that cannot be summed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.faults.figures import REFUSED_AT_ONCE
from tests.faults.table import RUNS, Trial, fault
from tests.stein_support import optimizer

Y = np.linspace(-1.0, 2.0, 6)


def shifted(backend: Any, prior: Any, shift: Callable[[Any], Any], size: int | None = None) -> Any:
    """A mean that a discrete site shifts; a batch has ``size`` rows."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        z = host.sample("z", prior)
        with host.plate("rows", len(y), subsample_size=size) as rows:
            host.sample("y", dist.Normal(mean + shift(z), 1.0), obs=y if size is None else y[rows])

    return model


def refused(trial: Trial, model: Any, words: str) -> None:
    """See that an engine refuses it."""
    y = trial.backend.array(Y)
    with trial.refused(words, "ModelCheckError"):
        trial.run(trial.svgd(model), 2, y)


GROUP = "Discrete latent sites"


@fault(GROUP, "a latent with infinitely many values: `Poisson`, `Geometric`")
def no_finite_support(trial: Trial) -> None:
    dist = trial.backend.dist
    for prior in (dist.Poisson(3.0), dist.Geometric(trial.backend.array(0.5))):
        model = shifted(trial.backend, prior, lambda z: 1.0 * z)
        refused(trial, model, "site 'z'. Its distribution (Poisson|Geometric).*truncate it")


@fault(GROUP, "a discrete latent that steers Python: `if z:`, `means[int(z)]`, `z.item()`")
def steers_python(trial: Trial) -> None:
    where = "torch.where" if trial.is_pyro else "jnp.where"
    prior = trial.backend.dist.Bernoulli(trial.backend.array(0.5))
    shifts = (lambda z: 1.0 if z else 0.0, lambda z: [0.0, 1.0][int(z)], lambda z: z.item())
    for shift in shifts:
        refused(trial, shifted(trial.backend, prior, shift), f"'z'.* steers Python.*{where}")


@fault(GROUP, "a discrete latent that all rows of a subsampled plate share")
def shared_by_a_batch(trial: Trial) -> None:
    prior = trial.backend.dist.Bernoulli(trial.backend.array(0.5))
    model = shifted(trial.backend, prior, lambda z: 1.0 * z, size=2)
    refused(trial, model, "site 'z' is shared by all rows of subsampled plate 'rows'")


@fault(GROUP, "a vector of discrete latents without a plate")
def without_a_plate(trial: Trial) -> None:
    prior = trial.backend.dist.Bernoulli(trial.backend.array(np.full(6, 0.5)))
    model = shifted(trial.backend, prior, lambda z: 1.0 * z)
    refused(trial, model, r"site 'z' has batch shape \(6,\) and no plate.*plate\(name, size\)")


@fault(GROUP, "a vector of discrete latents as one event (`to_event`)")
def one_event(trial: Trial) -> None:
    prior = trial.backend.dist.Bernoulli(trial.backend.array(np.full(6, 0.5))).to_event(1)
    model = shifted(trial.backend, prior, lambda z: z.sum(-1))
    refused(trial, model, r"site 'z' is one event.*leave to_event out.*with plate\(")


@fault(GROUP, "a continuous latent whose support depends on a discrete one")
def support_depends(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    half = trial.backend.array(0.5)

    def model(y: Any) -> None:
        z = host.sample("z", dist.Bernoulli(half))
        mean = host.sample("mean", dist.Uniform(0.0, 1.0 + z))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mean, 1.0), obs=y)

    refused(trial, model, "support of latent site 'mean' depends on a discrete")


@fault(GROUP, "a discrete latent's values summed over the places of a plate")
def mixes_places(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    half = trial.backend.array(0.5)

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(y)):
            z = host.sample("z", dist.Bernoulli(half))
            host.sample("y", dist.Normal(mean + 1.0 * z.sum(-1), 1.0), obs=y)

    refused(trial, model, "'z' have all their values at once.*in its own place")


@fault(GROUP, "an operation that does not broadcast over a discrete latent's values")
def does_not_broadcast(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    ones, table = trial.backend.array(np.ones(3)), trial.backend.array(np.ones((6, 3)))
    rows = trial.backend.array(np.arange(6))

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(y)):
            z = host.sample("z", dist.Categorical(ones / 3.0))
            row = table[rows, z.reshape(len(y))]
            host.sample("y", dist.Normal(mean + row, 1.0), obs=y)

    refused(trial, model, "all their values at once.*Vindex")


@fault(GROUP, "a program of which all latent sites are discrete")
def only_discrete(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    half = trial.backend.array(0.5)

    def model(y: Any) -> None:
        with host.plate("rows", len(y)):
            z = host.sample("z", dist.Bernoulli(half))
            host.sample("y", dist.Normal(1.0 * z, 1.0), obs=y)

    refused(trial, model, r"beside the discrete ones \('z'\).*infer_discrete")


@fault(GROUP, 'a discrete latent with `infer={"enumerate": "sequential"}`', RUNS)
def sequential(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    half, y = trial.backend.array(0.5), trial.backend.array(Y)

    def model(y: Any, how: str) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(y)):
            z = host.sample("z", dist.Bernoulli(half), infer={"enumerate": how})
            host.sample("y", dist.Normal(mean + z, 1.0), obs=y)

    values = []
    for how in ("sequential", "parallel"):
        target, data = trial.backend.target(model, (y, how))
        values.append(trial.backend.numpy(target.log_density(trial.backend.array([[0.3]]), data)))
    np.testing.assert_array_equal(*values)


@fault(GROUP, "an engine that takes the curvature of what is observed: `SVN`, `LaplaceGGN`")
def takes_curvature(trial: Trial) -> None:
    prior = trial.backend.dist.Bernoulli(trial.backend.array(0.5))
    model, y = shifted(trial.backend, prior, lambda z: 1.0 * z), trial.backend.array(Y)
    engines = (
        trial.engine("SVN", model, num_particles=3),
        trial.engine("LaplaceGGN", model, optimizer(trial.backend, "adam", 0.05)),
    )
    for engine in engines:
        with trial.refused("'z' are summed out.*MixtureSameFamily", "ModelCheckError"):
            trial.run(engine, 2, y)


@fault(
    GROUP, "predictions with a discrete latent that bears a name of their dataset", REFUSED_AT_ONCE
)
def bears_a_name(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        share = host.sample("share", dist.Beta(1.0, 1.0))
        with host.plate("rows", len(y)):
            z = host.sample("class", dist.Bernoulli(share))
            host.sample("y", dist.Normal(1.0 * z, 1.0), obs=y)

    draws, y = {"share": trial.backend.array(np.full(2, 0.3))}, trial.backend.array(Y)
    with trial.refused("names of their own, found 'class'"):
        trial.public.predictive_distribution(model, draws, y, discrete="sample")


@fault(GROUP, "predictions given discrete latents in a way that there is not", REFUSED_AT_ONCE)
def no_such_values(trial: Trial) -> None:
    y, draws = trial.backend.array(Y), {"mean": trial.backend.array(np.zeros(2))}
    prior = trial.backend.dist.Bernoulli(trial.backend.array(0.5))
    model = shifted(trial.backend, prior, lambda z: 1.0 * z)
    with trial.refused("discrete to be"):
        trial.public.predictive_distribution(model, draws, y, discrete="all")

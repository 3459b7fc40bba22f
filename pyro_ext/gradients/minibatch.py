"""Minibatch scores, by row indices that the engine owns or of batches that are arguments."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ppl_ext.gradients import minibatch
from ppl_ext.gradients.full_data import check_rows
from ppl_ext.target.scores import tempered
from pyro_ext.density import Data, LogDensity, Score
from pyro_ext.gradients.estimator import EstimatorState, Full, GradientEstimator
from pyro_ext.gradients.full_data import num_rows


class Minibatch(minibatch.Minibatch, GradientEstimator):
    position_axes = ()

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        self._check_plates(target)
        if self.sampling == "replacement":
            return {}
        if self.sampling == "cyclic":
            return {name: {"position": 0} for name in target.plates}
        # A position past the end makes the first step shuffle.
        return {
            name: {"order": None, "position": plate.size} for name, plate in target.plates.items()
        }

    def draw(
        self,
        target: LogDensity,
        state: EstimatorState,
        generator: torch.Generator,
        num_positions: int = 1,
    ) -> tuple[dict[str, Int[Tensor, "*P B"]], EstimatorState]:
        lead = (num_positions,) if self.own_rows else ()
        indices, following = {}, {}
        for name, plate in target.plates.items():
            size, count = plate.size, plate.subsample_size
            if self.sampling == "replacement":
                rows = torch.randint(size, (*lead, count), generator=generator)
            elif self.sampling == "cyclic":
                position = state[name]["position"]
                rows = (position + torch.arange(count)) % size
                following[name] = {"position": (position + count) % size}
            else:
                order, position = state[name]["order"], state[name]["position"]
                # What is left of a round and fills no batch is left out.
                if position + count > size:
                    order, position = shuffled(size, lead, generator), 0
                rows = order[..., position : position + count]
                following[name] = {"order": order, "position": position + count}
            indices[name] = rows.to(target.device)
        return indices, following


def shuffled(
    size: int, lead: tuple[int, ...], generator: torch.Generator
) -> Int[Tensor, "*P size"]:
    """A permutation of so many numbers, or ``lead`` of them."""
    if not lead:
        return torch.randperm(size, generator=generator)
    # One after another: ``randperm`` makes one permutation at a time.
    return torch.stack([torch.randperm(size, generator=generator) for _ in range(lead[0])])


class BatchArguments(minibatch.BatchArguments, GradientEstimator):
    """Score of one of the given batches, in an order that is drawn anew for every round.

    Engines that are stepped are called with a new batch each time. A host's ``MCMC`` is called
    once, and the batches have to come from somewhere else.

    Parameters
    ----------
    batches : iterable of tuples
        The model's positional arguments of each batch, such as ``(x, y)``, or a ``DataLoader`` of
        these; together they hold each row once. The model's plate scales a batch up to all rows
        by its size, as in ``plate("data", N, subsample_size=len(x))``. Keyword arguments are those
        of the call.
    own_rows : bool
        Draw a batch for each position apart, as independent chains need them. In Pyro positions
        are then evaluated one after another.

    Raises
    ------
    ArgumentError
        There are no batches; or, in NumPyro, they differ in shape, as one compiled program serves
        all. From ``init``: the model looks up its rows itself, or the batches do not hold each row
        once.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", 4, subsample_size=len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> batches = [(torch.tensor([1.0, 2.0]),), (torch.tensor([2.0, 3.0]),)]
    >>> _ = torch.manual_seed(0)
    >>> kernel = px.SGLD(model, 0.02, estimator=px.BatchArguments(batches))
    >>> mcmc = px.MCMC(kernel, num_samples=1000, warmup_steps=100)
    >>> mcmc.run(*batches[0])
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

    position_axes = ()

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        batches = tuple(self.batches)
        check_rows(target, data, batches, num_rows)
        # A position past the end makes the first draw start with a fresh order.
        return {"order": None, "position": len(batches)}

    def draw(
        self, state: EstimatorState, generator: torch.Generator, num_positions: int = 1
    ) -> tuple[Int[Tensor, "*P"], EstimatorState]:
        order, position, number = state["order"], state["position"], len(tuple(self.batches))
        if position >= number:
            lead = (num_positions,) if self.own_rows else ()
            order, position = shuffled(number, lead, generator), 0
        return order[..., position], {"order": order, "position": position + 1}

    def score(
        self, target: LogDensity, chosen: Int[Tensor, "*P"], z: Float[Tensor, "P D"], data: Data
    ) -> Score:
        batches = list(self.batches)

        def of_batch(z: Tensor, number: Tensor) -> Score:
            batch = batches[int(number)]
            bound = target.bind(*batch, **data.kwargs)
            # Each batch comes up once a round, and the plate scales a small one, such as the last,
            # up as it does the others: its rows would count for more.
            share = len(batches) * num_rows(batch) / self._all_rows
            if share == 1.0:
                return target.score(z, bound)
            prior, likelihood, log_prior, log_likelihood = target.score_parts(z, bound)
            score = tempered(prior, share * likelihood, target.likelihood_temperature)
            return Score(score, log_prior, share * log_likelihood)

        if chosen.dim() == 0:
            return of_batch(z, chosen)
        # Batches may have other lengths than each other, which no operation takes together.
        found = [of_batch(row[None], number) for row, number in zip(z, chosen, strict=True)]
        return Score(*map(torch.cat, zip(*found, strict=True)))


def default_estimator(target: LogDensity) -> GradientEstimator:
    """Minibatches when the model subsamples a plate itself, else the full data as given."""
    return Minibatch() if target.plates else Full()

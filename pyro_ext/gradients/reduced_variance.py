"""Minibatch scores with reduced variance; see :mod:`ppl_ext.gradients.reduced_variance`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.gradients import reduced_variance
from ppl_ext.gradients.reduced_variance import changes_of_table, table_shape
from ppl_ext.target.scores import tempered
from pyro_ext.density import Data, LogDensity, ScoreParts
from pyro_ext.gradients.estimator import (
    EstimatorState,
    GradientEstimator,
    ScoreEstimate,
)
from pyro_ext.gradients.minibatch import BatchArguments, Minibatch


class SVRG(reduced_variance.SVRG, GradientEstimator):
    position_axes = (("anchor", 0), ("exact", 0))
    _minibatches = Minibatch

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        self._check(target, data)
        rows = {} if self._batches() else self._minibatch().init(target, data, generator)
        # The first step sets an anchor.
        return {"minibatch": rows, "anchor": None, "exact": None, "anchor_age": self.anchor_every}

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        anchor, exact, age = state["anchor"], state["exact"], state["anchor_age"]
        if age >= self.anchor_every:
            # Copies: memory of positions and scores may be used again by the caller.
            anchor, age = z.detach().clone(), 0
            exact = tuple(each.clone() for each in self._score_of_all_rows(target, z, data))
        score, rows = self._by_differences(
            target, state["minibatch"], z, anchor, exact, data, generator
        )
        following = {"minibatch": rows, "anchor": anchor, "exact": exact, "anchor_age": age + 1}
        return score, following


class SAGA(reduced_variance.SAGA, GradientEstimator):
    position_axes = (("table", 1), ("sum", 0), ("gradient", 1))
    _minibatches = Minibatch

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        minibatch = self._rows_at_first(target, data, generator)
        return {"minibatch": minibatch, "table": None, "sum": None, "rows": None, "gradient": None}

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        (name,) = target.plates
        number = target.plates[name].size

        def row(index: Tensor) -> ScoreParts:
            # A single row is scaled as all rows.
            parts = target.score_parts(z, data, {name: index.reshape(1)})
            return parts._replace(likelihood=parts.likelihood / number)

        table, total = state["table"], state["sum"]
        if table is None:
            shape = table_shape(target, len(z), z.element_size(), self.max_bytes)
            table = z.new_empty(shape)
            # Row by row: a set of rows has one gradient, that of its sum.
            for index in torch.arange(number, device=target.device):
                table[index] = row(index).likelihood
            total = table.sum(0)
        else:
            # What the last step found. Done only now, and twice is as good as once, so that a step
            # can be undone without a copy of the table.
            table[state["rows"]] = state["gradient"]
        indices, minibatch = self._minibatch().draw(target, state["minibatch"], generator)
        rows = indices[name]
        found = [row(index) for index in rows]
        gradient = torch.stack([parts.likelihood for parts in found])
        likelihood, gradient, change = changes_of_table(torch, gradient, table[rows], total, number)
        # A row that was drawn twice changes the table once.
        again = torch.ones(len(rows), len(rows), dtype=torch.bool, device=rows.device).tril(-1)
        first = ~(again & (rows[:, None] == rows)).any(1)
        following = {
            "minibatch": minibatch,
            "table": table,
            "sum": total + change[first].sum(0),
            "rows": rows,
            "gradient": gradient,
        }
        # The prior is the same whichever row it is found with.
        score = tempered(found[0].prior, likelihood, target.likelihood_temperature)
        log_likelihood = torch.stack([parts.log_likelihood for parts in found]).mean(0)
        return ScoreEstimate(score, found[0].log_prior, log_likelihood, indices), following


class ControlVariate(reduced_variance.ControlVariate, GradientEstimator):
    """Differences to the scores at a fixed position, found before: a mode, or a guide's centre.

    With s_B the score of a minibatch B and a the anchor, the estimate at position z is

        s_B(z) - s_B(a) + s(a),

    which is unbiased for any anchor, and the less noisy the nearer z is to it: near a mode the
    noise is that of the curvature times the distance. The exact score s(a) takes one sweep over
    all rows, when the estimator is set up; ``SVRG`` instead moves its anchors along.

    Parameters
    ----------
    anchor : mapping of str to array
        Latent sites in their supports, without a leading axis of draws: ``guide.median()`` of an
        autoguide (``guide.median(params)`` or ``AutoDelta.median`` in NumPyro), or the mean of an
        engine's draws.
    sampling : {"reshuffle", "replacement", "cyclic"}
        See ``Minibatch``.
    batches : iterable of tuples, optional
        For models whose batches are their arguments; see ``BatchArguments``.
    own_rows : bool
        See ``Minibatch``.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the anchor lacks a site or has another shape or
        no finite score; the model has latents inside a subsampled plate, or leaves no rows to
        draw.

    References
    ----------
    J. Baker, P. Fearnhead, E. B. Fox and C. Nemeth, "Control variates for stochastic gradient
    MCMC", Statistics and Computing 2019, https://arxiv.org/abs/1706.05439.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> estimator = px.ControlVariate({"mean": torch.tensor(2.0)})  # such as a mode
    >>> kernel = px.SGLD(model, 0.02, estimator=estimator)
    >>> mcmc = px.MCMC(kernel, num_samples=500, warmup_steps=100, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

    position_axes = ()
    _minibatches, _batch_arguments = Minibatch, BatchArguments

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        self._check(target, data)
        minibatch = self._rows().init(target, data, generator)
        values = {
            name: torch.as_tensor(value).detach()[None] for name, value in self.anchor.items()
        }
        anchor = target.unconstrain(values, data)
        exact = self._score_of_all_rows(target, anchor, data)
        self._check_finite(bool(torch.isfinite(exact.score).all()))
        return {"minibatch": minibatch, "anchor": anchor, "exact": tuple(exact)}

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        # One anchor for all, unless every position has rows of its own to compare at.
        anchor = state["anchor"].expand_as(z) if self.own_rows else state["anchor"]
        return self._estimated(target, state, z, anchor, data, generator)

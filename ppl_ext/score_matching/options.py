"""Options of the engines that fit a guide by its scores, with their checks and defaults."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice, check_count, check_number, described, is_number

#: Learning rate of the default optimizer (Adam) at the start of a run.
LEARNING_RATE = 1e-2
#: Exponent of the running averages' weights (t + 1)^-decay.
DECAY = 0.9
#: Limit c on how far one update changes the precision, as a factor in every direction.
TRUST = 1.25
#: The pattern of every site, which also serves parameters that belong to no site.
REST = "*"

ProximalWeight = str | float | Callable[[Any, Any], Any]


@dataclass(frozen=True)
class GradientSteps:
    """Optimizer steps down the proximal objective, for every guide with a flat log density.

    The solver of M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian
    Deep Neural Networks", https://arxiv.org/abs/2602.05873, Algorithm 1. Defaults of None depend on
    the guide, see :data:`STEPS`.

    Parameters
    ----------
    optim : optimizer or mapping, optional
        The host's optimizer of the inner steps, whose state goes on over the iterations; a
        schedule, if it has one, counts inner steps. Default: Adam with a learning rate that falls
        from 0.01 to 0 along a cosine over the run; from 0.005 or 0.002 where ``num_samples`` is 8
        or 16 by default. A rate that falls matters: scores are noisy.

        A mapping from patterns of site names to optimizers, such as
        ``{"*.bias": Adam(...), "*": Adam(...)}``, gives sites rates of their own. A site belongs
        to the first pattern that it matches, ``"*"`` takes the rest, and None in place of an
        optimizer is the default. Entries of ``loc`` and ``scale``, also a mixture's, and rows of a
        Cholesky factor or of ``cov_factor`` belong to the sites of their coordinates; other
        parameters, such as a flow's, belong to ``"*"``.
    num_samples : int, optional
        Draws S per iteration. Default: 1 with a diagonal Normal, 2 with mixtures with "full" or
        "diag" covariances, 8 with other Normals, planar flows and mixtures with "low_rank"
        covariances, 16 with the host's flows and guides of other kinds.
    num_inner_steps : int, optional
        Optimizer steps per iteration. Default: 20 for mixtures with "full" or "diag" covariances,
        1 for the host's flows and guides of other kinds, 2 for the rest.
    proximal : "linear", float or callable
        Weight alpha_t of the proximal term: t/T (the paper's), a constant, or a function of
        (t, T), which JAX (in NumPyro) has to be able to trace.
    sample_reuse : int
        The inner steps use the draws and scores of so many iterations, the present one and those
        just before it; 1 is the paper's. More average the noise of scores over iterations without
        another evaluation of the model, and cost two vectors of length S D each. The match is
        then taken under the mixture of the guides that drew, with no importance weights: for a
        guide that can match the target everywhere its minimum is the same, for any other it
        lags, towards where earlier guides had their mass. In the first iterations the present
        draws stand in for those that are missing.
    clip_norm : float, optional
        The gradient of an inner step, in all of the guide's parameters as one vector, is
        shortened to this length where it is longer. Default: not; with the default optimizer 1
        where ``num_samples`` is 8 or more by default.

    Raises
    ------
    ArgumentError
        An option is out of range.

    Examples
    --------
    >>> GradientSteps(num_samples=4, clip_norm=1.0).proximal
    'linear'
    """

    optim: Any = None
    num_samples: int | None = None
    num_inner_steps: int | None = None
    proximal: ProximalWeight = "linear"
    sample_reuse: int = 1
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check_count("num_samples", self.num_samples, optional=True)
        check_count("num_inner_steps", self.num_inner_steps, optional=True)
        value: Any = self.proximal
        number = is_number(value) and float(value) >= 0
        if not (number or callable(value) or (isinstance(value, str) and value == "linear")):
            raise ArgumentError(
                "Expected proximal to be 'linear', a number >= 0 or a function of (t, T), found "
                f"{described(value)}."
            )
        check_count("sample_reuse", self.sample_reuse)
        check_number("clip_norm", self.clip_norm, optional=True)

    def resolved(self, defaults: StepDefaults) -> GradientSteps:
        """These options, with the defaults of a kind of guide where they are None."""
        clip_norm = self.clip_norm
        if clip_norm is None and self.optim is None:
            clip_norm = defaults.clip_norm
        return dataclasses.replace(
            self,
            num_samples=self.num_samples or defaults.num_samples,
            num_inner_steps=self.num_inner_steps or defaults.num_inner_steps,
            clip_norm=clip_norm,
        )

    def weight(self, step: Any, total: Any, progress: Any) -> Any:
        """The proximal weight alpha_t of step t of T; ``progress`` is t/T.

        Raises
        ------
        ArgumentError
            The function that was given does not return one number.
        """
        if not callable(self.proximal):
            return progress if isinstance(self.proximal, str) else self.proximal
        value = self.proximal(step, total)
        if not is_number(value):
            raise ArgumentError(
                f"Expected proximal(t, T) to return one number, found {described(value)}."
            )
        return value


@dataclass(frozen=True)
class Regression:
    """The proximal step in closed form, without an optimizer, for Normals and mixtures of them.

    For ``AutoDiagonalNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``,
    ``AutoLayerLowRankNormal``, ``AutoMatrixNormal`` and ``AutoGaussianMixture`` with full
    covariances; it has its own proximal term. See the package's ``score.regression``.

    Parameters
    ----------
    num_samples : int, optional
        Draws S per iteration, which come in mirrored pairs: a multiple of 2, and for a mixture of
        2 K, with pairs from each of its K components. Default: the least such number.
    decay : float
        Exponent p of the running averages' weights (t + 1)^-p. A mixture has none.
    trust : float
        Limit c > 1 on how far one update changes the precision, as a factor in every direction.

    Raises
    ------
    ArgumentError
        An option is out of range.

    Examples
    --------
    >>> Regression(num_samples=4)
    Regression(num_samples=4, decay=0.9, trust=1.25)
    """

    num_samples: int | None = None
    decay: float = DECAY
    trust: float = TRUST

    def __post_init__(self) -> None:
        check_count("num_samples", self.num_samples, optional=True)
        check_number("decay", self.decay, most=1.0)
        check_number("trust", self.trust, above=1.0)

    def resolved(self, group: int) -> Regression:
        """These options, for a guide whose draws come in groups of so many.

        Raises
        ------
        ArgumentError
            ``num_samples`` is no multiple of that.
        """
        number = self.num_samples or group
        if number % group:
            expected = (
                "an even num_samples" if group == 2 else f"a num_samples that {group} divides"
            )
            raise ArgumentError(
                f"Expected {expected} in Regression, whose draws come in mirrored pairs from each "
                f"component of the guide, found {number}. Use {group}, or solver='gradient'."
            )
        return dataclasses.replace(self, num_samples=number)


SolverName = Literal["gradient", "regression"]
ProximalSolver = GradientSteps | Regression
SOLVERS: dict[str, type[GradientSteps] | type[Regression]] = {
    "gradient": GradientSteps,
    "regression": Regression,
}


def as_solver(
    solver: SolverName | ProximalSolver | None, guide: str, has_closed_form: bool
) -> ProximalSolver:
    """The options of a solver that is given by them or by name; by the guide where it is None.

    Parameters
    ----------
    solver : str, GradientSteps, Regression or None
    guide : str
        Name of the guide's class.
    has_closed_form : bool
        Whether the guide has a closed form, which is the default then: it needs fewer scores and
        no learning rate.

    Raises
    ------
    ArgumentError
        It is none of these, or the guide has no closed form.
    """
    if solver is None:
        return Regression() if has_closed_form else GradientSteps()
    found = solver
    if not isinstance(found, GradientSteps | Regression):
        check_choice("solver", found, tuple(SOLVERS), "GradientSteps(...), Regression(...)")
        found = SOLVERS[found]()
    if isinstance(found, Regression) and not has_closed_form:
        raise ArgumentError(
            "Expected AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, "
            "AutoLayerLowRankNormal, AutoMatrixNormal or AutoGaussianMixture with full "
            "covariances for "
            f"solver='regression', found {guide}. Use solver='gradient', which takes every guide "
            "with a flat log density."
        )
    return found


class StepDefaults(NamedTuple):
    """How :class:`GradientSteps` work on a kind of guide, unless told otherwise.

    Parameters
    ----------
    num_samples, num_inner_steps : int
        Draws and optimizer steps per iteration.
    learning_rate : float
        Of the default optimizer, at the start of a run.
    clip_norm : float, optional
        Limit on the default optimizer's gradient.
    """

    num_samples: int
    num_inner_steps: int
    learning_rate: float = LEARNING_RATE
    clip_norm: float | None = None


GuideKind = Literal["diagonal", "mixture", "flexible", "other"]
STEPS: dict[GuideKind, StepDefaults] = {
    # Diagonal Normals: the paper's.
    "diagonal": StepDefaults(1, 2),
    # Mixtures with "full" and "diag" covariances, whose components have a way to go from where they
    # start.
    "mixture": StepDefaults(2, 20),
    # Other Normals, planar flows and mixtures with low-rank covariances, which can bend to fit a
    # few draws in a few large steps, and have draws far out, whose scores would rule the
    # optimizer's averages for long. A full Normal on a regression of eight weights with 2,000 rows
    # ends at a KL divergence of 0.1 from the posterior after 20,000 scores by minibatches of 64.
    # Two draws with twenty steps at 0.01 end at 5e4, and at 1e4 with all rows.
    "flexible": StepDefaults(8, 2, 5e-3, clip_norm=1.0),
    # All others, such as the host's flows, which break down with those.
    "other": StepDefaults(16, 1, 2e-3, clip_norm=1.0),
}


def kind_of(structure: str | None, mixture: str | None, planar_flow: bool) -> GuideKind:
    """The kind of a guide in :data:`STEPS`.

    Parameters
    ----------
    structure : str or None
        Covariance structure of a Normal.
    mixture : str or None
        Covariances of a mixture.
    planar_flow : bool
    """
    if structure == "diagonal":
        return "diagonal"
    if mixture is not None:
        return "flexible" if mixture == "low_rank" else "mixture"
    return "flexible" if planar_flow or structure is not None else "other"


def match_sites(patterns: Sequence[str], sites: Mapping[str, Any]) -> dict[str, str]:
    """The pattern of each site: the first that its name matches, but ``"*"`` last.

    Raises
    ------
    ArgumentError
        A site matches no pattern, or a pattern other than ``"*"`` no site, or all of its sites
        belong to earlier ones.
    """
    names = list(sites)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(
            f"Expected patterns of site names for the optimizers, found {list(patterns)}."
        )
    if not patterns:
        raise ArgumentError(f"Expected an optimizer for the sites {names}, found an empty mapping.")
    # Sorting is stable: all others keep the order in which they were given.
    ordered = sorted(patterns, key=lambda pattern: pattern == REST)
    owners: dict[str, str] = {}
    for name in names:
        for pattern in ordered:
            if fnmatch.fnmatchcase(name, pattern):
                owners[name] = pattern
                break
    if lacking := [name for name in names if name not in owners]:
        raise ArgumentError(
            f"Expected a pattern for every latent site, found none of {list(patterns)} for "
            f"{lacking}. Add '*', which takes the rest."
        )
    idle = [pattern for pattern in ordered if pattern not in owners.values() and pattern != REST]
    if idle:
        raise ArgumentError(
            f"Expected patterns that match latent sites, found {idle}, which match none of {names} "
            "that is not another pattern's. Correct the pattern, or leave it out."
        )
    return owners

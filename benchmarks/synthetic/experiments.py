"""What the synthetic experiments run: methods, cases (target, guide, start, budget), experiments.

A *case* is what its methods share: the targets' shape, the guide, the start, the noise and the
number of score evaluations. An *experiment* is a list of cases that are shown together. Facts of
the paper are from M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian
Deep Neural Networks", sections 5.1 and 5.6, equation 19, appendices C and D.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.synthetic.targets import Array, Mixture, random_mixture
from ppl_ext.score_matching.options import GradientSteps

#: Learning rates that a method is tuned over; the paper's range.
RATES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
NOISE_LEVELS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
SAMPLE_SIZES = (1, 5, 10, 20)

FORWARD, ELBO_GAP = "forward KL", "negative ELBO gap"


@dataclasses.dataclass(frozen=True)
class Method:
    """One way of fitting.

    Parameters
    ----------
    name : str
        As in tables and plots.
    kind : {"proximal", "advi", "gsm", "bam", "fisher"}
    options : tuple of (str, value)
        Options of the engine other than its defaults.
    rates : tuple of float
        Learning rates to choose from; none for a method that runs with its defaults.
    normal_only : bool
        Whether the method fits a Normal whatever the case's guide.
    constant_rate : float or None
        Rate of an Adam whose rate does not fall, in place of the engine's own optimizer.
    """

    name: str
    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    rates: tuple[float, ...] = ()
    normal_only: bool = False
    constant_rate: float | None = None


def ours(name: str = "Ours", constant_rate: float | None = None, **options: Any) -> Method:
    """The gradient solver with its defaults, but for ``options``."""
    given = (("solver", "gradient"), *options.items())
    return Method(name, "proximal", given, constant_rate=constant_rate)


def engine_options(method: Method, optim: Any) -> dict[str, Any]:
    """Options of a method's engine, with an optimizer if there is one."""
    options = dict(method.options) | ({} if optim is None else {"optim": optim})
    if options.get("solver") != "gradient":
        return options
    del options["solver"]
    return {"solver": GradientSteps(**options)}


def fisher(rates: tuple[float, ...] = ()) -> tuple[Method, Method]:
    """Fisher and Score, one draw a step."""
    single = ("num_samples", 1)
    return (
        Method("Fisher", "fisher", (("norm", "euclidean"), single), rates),
        Method("Score", "fisher", (("norm", "covariance"), single), rates),
    )


OURS = ours()
REGRESSION = Method("Ours, regression", "proximal", (("solver", "regression"),))
# Two draws a step are the paper's for both.
GSM = Method("GSM", "gsm", (("num_samples", 2),), normal_only=True)
BAM = Method("BaM", "bam", (("num_samples", 2),), normal_only=True)


def target_of(dim: int, order: int, seed: int) -> Mixture:
    """The target of this dimension and order that belongs to a seed."""
    return random_mixture(order, dim, np.random.default_rng([0, dim, order, seed]))


@dataclasses.dataclass(frozen=True)
class Case:
    """What the methods of a comparison share.

    Parameters
    ----------
    name, title : str
        Name in records, unique in an experiment, and title in tables and plots.
    dim, target_order : int
        Length of the vector and number of the target's components.
    guide_order : int
        Number of the guide's components; 1 is ``AutoMultivariateNormal``.
    methods : tuple of Method
    budget : int
        Score evaluations of every method.
    start_scale : float
        Standard deviation of the guide's start in every direction.
    noise : float or None
        Level beta of the noise in scores; None for a program without it.
    points : int
        About how often the fit is looked at, evenly on a logarithmic scale.
    measure : {"forward KL", "negative ELBO gap"}
        The figure by which methods are compared and learning rates chosen.
    paper : tuple of (str, str)
        The paper's final forward KL by method, as printed.
    """

    name: str
    title: str
    dim: int
    target_order: int
    guide_order: int
    methods: tuple[Method, ...]
    budget: int
    start_scale: float = 1.0
    noise: float | None = None
    points: int = 40
    measure: str = FORWARD
    paper: tuple[tuple[str, str], ...] = ()

    def target(self, seed: int) -> Mixture:
        """Target of a seed: the same in all cases of this dimension and order."""
        return target_of(self.dim, self.target_order, seed)

    def start(self, seed: int) -> Array:
        """Standard normal location (D,) at which the guides of all methods start."""
        return np.random.default_rng([1, self.dim, seed]).normal(size=self.dim)

    def shape(self) -> Case:
        """A case with all that a compiled fit depends on, and nothing else."""
        noise = None if self.noise is None else 0.0
        return dataclasses.replace(
            self, name="", title="", methods=(), noise=noise, points=0, measure="", paper=()
        )

    def settings(self) -> dict[str, Any]:
        """The settings that decide results, for records."""
        names = ("dim", "target_order", "guide_order", "budget", "start_scale", "noise")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Cases that are shown together.

    Parameters
    ----------
    name, title : str
    cases : tuple of Case
    """

    name: str
    title: str
    cases: tuple[Case, ...]


def iterations_to_look_at(budget: int, samples: int, points: int) -> list[int]:
    """Iterations of ``samples`` score evaluations after which to look; the last is included."""
    even = np.geomspace(1, max(1, budget // samples), max(2, points))
    return sorted({round(float(iteration)) for iteration in even})


def all_experiments(quick: bool = False) -> dict[str, Experiment]:
    """The experiments by name; ``quick`` ones have a fifth of the budget, and fewer cases."""
    share = 5 if quick else 1
    levels = (0.0, 1.0, 10.0) if quick else NOISE_LEVELS
    rates = RATES[1:4] if quick else RATES
    advi = Method("ADVI", "advi", rates=rates)
    normal = (OURS, REGRESSION, advi, GSM, BAM)
    mixture = (OURS, REGRESSION, advi, GSM, BAM)
    found = [
        Experiment(
            "fig1",
            "Normal target in three dimensions (paper Fig. 1)",
            (
                Case(
                    "normal-start",
                    "start: covariance I",
                    *(3, 1, 1),
                    (*normal, *fisher(rates)),
                    4_000 // share,
                ),
                Case(
                    "tiny-start",
                    "start: covariance 1e-6 I",
                    *(3, 1, 1),
                    (*normal, *fisher(rates)),
                    20_000 // share,
                    start_scale=1e-3,
                ),
            ),
        ),
        Experiment(
            "fig2",
            "Mixture targets (paper Fig. 2)",
            (
                Case("order-2", "order 2, q of order 2", 3, 2, 2, mixture, 10_000 // share),
                Case("order-2-by-3", "order 2, q of order 3", 3, 2, 3, mixture, 10_000 // share),
                Case(
                    "order-5",
                    "order 5, q of order 5",
                    *(3, 5, 5),
                    mixture,
                    10_000 // share,
                    paper=(("Ours", "0.0153"),),
                ),
                Case(
                    "dim-30",
                    "30 dimensions, order 2, q of order 2",
                    *(30, 2, 2),
                    mixture,
                    40_000 // share,
                ),
            ),
        ),
        Experiment(
            "table7",
            "Mixture target of order 2, q Normal (paper Table 7)",
            (
                Case(
                    "mismatch",
                    "order 2, q Normal",
                    *(3, 2, 1),
                    normal,
                    10_000 // share,
                    paper=(
                        ("Ours", "0.8339"),
                        ("ADVI", "0.9461"),
                        ("GSM", "0.9965"),
                        ("BaM", "1.1914"),
                    ),
                ),
            ),
        ),
        Experiment(
            "table8",
            "Normal target in three dimensions: Fisher and Score (paper Table 8)",
            (
                Case(
                    "normal-target",
                    "q Normal",
                    *(3, 1, 1),
                    (OURS, REGRESSION, *fisher(rates)),
                    4_000 // share,
                    points=1000,
                    paper=(("Ours", "< 1e-5"), ("Fisher", "5.6e-4"), ("Score", "< 1e-5")),
                ),
            ),
        ),
        Experiment(
            "alpha",
            "The proximal term, order-5 mixture (paper section 5.6)",
            (
                Case(
                    "proximal-weight",
                    "order 5, q of order 5",
                    *(3, 5, 5),
                    (
                        ours("t/T"),
                        ours("0", proximal=0.0),
                        ours("t/T, constant rate", 1e-2, num_samples=1),
                        ours("0, constant rate", 1e-2, num_samples=1, proximal=0.0),
                    ),
                    10_000 // share,
                    paper=(("t/T, constant rate", "0.0153"), ("0, constant rate", "0.4509")),
                ),
            ),
        ),
        Experiment(
            "samples",
            "Draws per iteration, order-5 mixture (paper section 5.6)",
            (
                Case(
                    "number-of-samples",
                    "order 5, q of order 5",
                    *(3, 5, 5),
                    tuple(ours(f"S = {size}", num_samples=size) for size in SAMPLE_SIZES),
                    20_000 // share,
                    points=200,
                ),
            ),
        ),
        Experiment(
            "noise",
            "Noisy scores (paper equation 19 and Fig. 6)",
            tuple(
                Case(
                    f"{name}-{level:g}",
                    f"{title}, level {level:g}",
                    *(dim, order, 1),
                    (*normal, *fisher()),
                    20_000 // share,
                    noise=level,
                    points=10,
                    measure=ELBO_GAP,
                )
                for name, title, dim, order in (
                    ("normal-3", "Normal, 3 dimensions", 3, 1),
                    ("normal-10", "Normal, 10 dimensions", 10, 1),
                    ("order-2", "mixture of order 2, 3 dimensions", 3, 2),
                )
                for level in levels
            ),
        ),
    ]
    return {experiment.name: experiment for experiment in found}

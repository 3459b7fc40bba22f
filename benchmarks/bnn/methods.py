"""Methods of the comparison, the network's shape, and what a run offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from benchmarks.datasets import Task
from ppl_ext.curvature.program_curvature import GaussNewton
from ppl_ext.stein.newton import LevenbergMarquardt

Floats = NDArray[np.float64]
#: Weights w1 (S, features, units), w2, ... and biases b1 (S, units), b2, ... of S networks, layer
#: by layer; for regression also noise (S,), the standard deviation of the standardised response.
#: With "mode w1" (1, features, units) and so on, predictions are of the network made linear there.
Draws = Mapping[str, Floats]
Family = Literal[
    "gradient", "Newton", "last layer", "variational", "Laplace", "Langevin", "dropout"
]

#: Mean and standard deviation of the prior of the noise's logarithm.
NOISE_PRIOR = (-1.0, 1.0)
#: Standard deviation at which the noise starts: that of the standardised response.
NOISE_START = 1.0
#: Draws of methods that fit a guide or a Gaussian.
GUIDE_DRAWS = 50
#: Newton moves go through gradient descent with this step size, which falls to 0, and momentum:
#: what the Gauss-Newton matrix of a minibatch says is mostly noise, and momentum averages it.
NEWTON_STEP, NEWTON_MOMENTUM = 0.6, 0.9


@dataclass(frozen=True)
class Method:
    """One way of fitting.

    Attributes
    ----------
    engine : str
        Name of the class in both packages; "MFVI" and "MAP" are the hosts' own inference.
    family : str
        Candidates that validation chooses from are dampings for Newton steps, step sizes of the
        chains for Langevin dynamics, and step sizes of Adam for all others.
    epochs : float
        Share of the epochs of SVGD.
    options : dict
        Options of the engine.
    kernel : str
        One of ``KERNELS``.
    linearised : bool
        Predictions are of the network made linear at the mode of its weights.
    """

    engine: str
    family: Family = "gradient"
    epochs: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    kernel: str = "default"
    linearised: bool = False

    @property
    def has_particles(self) -> bool:
        """Whether the number of particles changes anything."""
        return self.family not in ("variational", "Laplace", "dropout")


#: "default" is the engine's own.
KERNELS = ("default", "RBF", "RBF, curvature", "IMQ, curvature", "Linear, curvature")
#: Epochs of SVN for one of SVGD, the claim that is tested.
NEWTON_SHARE = 1 / 20

METHODS = {
    "Ensemble": Method("DeepEnsemble"),
    "WGD": Method("WGD"),
    # With the kernel of the paper. The engine's own matches means and variances along as many
    # directions as there are particles less one, and five particles cannot afford that.
    "SVGD": Method("SVGD", kernel="RBF"),
    "SVGD-VR": Method("SVGDVR", kernel="RBF"),
    "SVN": Method("SVN", "Newton", NEWTON_SHARE),
    "SVN diag": Method("SVN", "Newton", NEWTON_SHARE, {"curvature": "diag"}),
    "SVN KFAC": Method("SVN", "Newton", NEWTON_SHARE, {"curvature": "kfac"}),
    "SVN, 5 times": Method("SVN", "Newton", 5 * NEWTON_SHARE),
    "LL-SVN": Method("SVN", "last layer", 5 * NEWTON_SHARE),
    "LaplaceGGN": Method("LaplaceGGN", "Laplace", options={"curvature": "kfac"}),
    "LL-LaplaceGGN": Method("LaplaceGGN", "Laplace", options={"curvature": "last layer"}),
    "Linearised Laplace": Method(
        "LaplaceGGN", "Laplace", options={"curvature": "kfac"}, linearised=True
    ),
    "MFVI": Method("MFVI", "variational"),
    "SGLD": Method("SGLD", "Langevin"),
    "MC dropout": Method("MAP", "dropout"),
}


@dataclass(frozen=True)
class Setting:
    """What a run has besides its method and its rows.

    Attributes
    ----------
    task : {"regression", "classification"}
    features, rows, batch : int
        Of the network, the training rows, and the rows of a step.
    hidden : tuple of int
        Units of the hidden layers.
    particles : int
        Also the number of chains.
    steps : int
        Of the whole run; over these the step sizes fall to 0 along a cosine, but for those of
        chains.
    """

    task: Task
    features: int
    rows: int
    batch: int
    hidden: tuple[int, ...] = (50, 50)
    particles: int = 5
    steps: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in a sweep over the rows."""
        return max(1, self.rows // self.batch)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of every layer, inputs and the output included."""
        return (self.features, *self.hidden, 1)

    @property
    def last_layer(self) -> tuple[str, str]:
        """Sites of the last layer."""
        number = len(self.hidden) + 1
        return f"w{number}", f"b{number}"

    @property
    def with_noise(self) -> tuple[str, ...]:
        """The noise's site, if there is one."""
        return ("noise",) if self.task == "regression" else ()


def engine_options(method: Method, setting: Setting) -> dict[str, Any]:
    """Options of the engine, but for those that are objects of a package."""
    options = dict(method.options)
    if method.engine == "SVGDVR":
        options["anchor_every"] = setting.steps_per_epoch
    if method.family == "Newton":
        # A minibatch's change of the density is nearly as its curvature foretold however wrong
        # that is for the other rows, so that damping that adapts to it falls to nothing.
        options |= {
            "damping": LevenbergMarquardt(adapt=False),
            "num_particles": setting.particles,
        }
    elif method.family == "last layer":
        sites = (*setting.last_layer, *setting.with_noise)
        options |= {"curvature": GaussNewton(sites=sites)}
        options |= {"num_particles": setting.particles}
    elif method.family == "Laplace":
        options["hyperparameters"] = setting.with_noise or None
        if options.get("curvature") == "last layer":
            options["curvature"] = GaussNewton(sites=setting.last_layer)
    else:
        options["num_particles"] = setting.particles
    return options


class Trainer(Protocol):
    """Runs of one method with rows of one number.

    ``start`` begins a run; ``advance`` goes on with it.
    """

    def start(self, x: Floats, y: NDArray[Any], seed: int, candidate: float) -> None:
        """Begin a run on standardised rows with a step size of Adam, or a damping."""

    def advance(self, steps: int) -> None:
        """Take so many steps; it returns when they have been taken."""

    def draws(self) -> dict[str, Floats]:
        """Networks of the present state."""

    def said(self) -> dict[str, float]:
        """What the engine says about itself, such as how many steps were not finite."""


@runtime_checkable
class NewtonTrainer(Trainer, Protocol):
    """Runs of Newton steps, which have a curvature."""

    def curvature(self) -> tuple[dict[str, slice], Floats]:
        """Where each site is, and the curvature of all rows at every particle, (P, D, D)."""

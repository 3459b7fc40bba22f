"""Inference engines for Pyro programs: keep the model, swap the engine.

>>> import pyro_ext as px
>>> engine = px.SVGD(model, pyro.optim.Adam({"lr": 0.05}), num_particles=100)  # doctest: +SKIP
>>> engine.run(2000, x, y)  # doctest: +SKIP
>>> draws = engine.get_samples()  # doctest: +SKIP
"""

from ppl_ext import public
from ppl_ext.public import *
from ppl_ext.public import predictions
from ppl_ext.public.predictions import *
from pyro_ext import stan
from pyro_ext.calibrate import calibrate
from pyro_ext.check import check
from pyro_ext.density import LogDensity
from pyro_ext.diagnostics import elbo, ksd, predictive_distribution, psis_khat, to_arviz
from pyro_ext.engine import RunResult
from pyro_ext.fit import fit, fit_many, load_fit
from pyro_ext.gradients import (
    SAGA,
    SVRG,
    BatchArguments,
    ControlVariate,
    Full,
    GradientEstimator,
    Minibatch,
    Noisy,
)
from pyro_ext.guides import (
    AutoGaussianMixture,
    AutoLayerLowRankNormal,
    AutoMatrixNormal,
    AutoPlanarFlow,
    FlatDensity,
    flat_density,
    flipout,
    local_reparameterization,
    register_flat_density,
)
from pyro_ext.implicit import SteinDiscrepancyVI
from pyro_ext.kernels import (
    IMQ,
    RBF,
    Additive,
    Dilation,
    Graphical,
    Kernel,
    Linear,
    Preconditioned,
    RandomFeature,
    SemiExact,
)
from pyro_ext.laplace import LaplaceGGN
from pyro_ext.networks import random_module
from pyro_ext.score import GSM, BaM, FisherVI, ProximalScoreVI
from pyro_ext.sgmcmc import (
    MCLMC,
    MCMC,
    PSGLD,
    SGHMC,
    SGLD,
    CyclicalSGHMC,
    CyclicalSGLD,
    ReplicaExchangeSGLD,
)
from pyro_ext.sharding import Sharding
from pyro_ext.start import find_start
from pyro_ext.stein import SVGD, SVGDVR, SVN, WGD, DeepEnsemble
from pyro_ext.warm_chains import warm_chains

__all__ = [
    # engines
    "SVGD",
    "SVGDVR",
    "SVN",
    "WGD",
    "DeepEnsemble",
    "ProximalScoreVI",
    "GSM",
    "BaM",
    "FisherVI",
    "LaplaceGGN",
    "SteinDiscrepancyVI",
    # the right answer, or a clear no
    "calibrate",
    "check",
    "fit",
    "fit_many",
    "load_fit",
    "warm_chains",
    # where runs start
    "find_start",
    # what a run gives, and when it stops
    "RunResult",
    # many processes
    "Sharding",
    # stochastic gradient MCMC
    "MCLMC",
    "MCMC",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "CyclicalSGHMC",
    "CyclicalSGLD",
    "ReplicaExchangeSGLD",
    # kernels
    "IMQ",
    "RBF",
    "Additive",
    "Dilation",
    "Graphical",
    "Kernel",
    "Linear",
    "Preconditioned",
    "RandomFeature",
    "SemiExact",
    # score estimators
    "BatchArguments",
    "ControlVariate",
    "Full",
    "GradientEstimator",
    "Minibatch",
    "Noisy",
    "SAGA",
    "SVRG",
    # guides
    "AutoGaussianMixture",
    "AutoLayerLowRankNormal",
    "AutoMatrixNormal",
    "AutoPlanarFlow",
    "FlatDensity",
    "flat_density",
    "flipout",
    "local_reparameterization",
    "register_flat_density",
    # target
    "LogDensity",
    # diagnostics
    "elbo",
    "ksd",
    "psis_khat",
    "to_arviz",
    # predictions
    "predictive_distribution",
    # networks as programs
    "random_module",
    # Stan programs
    "stan",
]
__all__ += public.__all__
__all__ += predictions.__all__

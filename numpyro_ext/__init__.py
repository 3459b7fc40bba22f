"""Inference engines for NumPyro programs: keep the model, swap the engine.

>>> import numpyro_ext as nx
>>> engine = nx.SVGD(model, numpyro.optim.Adam(0.05), num_particles=100)  # doctest: +SKIP
>>> result = engine.run(jax.random.key(0), 2000, x, y)  # doctest: +SKIP
>>> draws = engine.get_samples(result.state)  # doctest: +SKIP
"""

from numpyro_ext import stan
from numpyro_ext._clash import warn_on_clash
from numpyro_ext.calibrate import calibrate
from numpyro_ext.check import check
from numpyro_ext.density import LogDensity
from numpyro_ext.diagnostics import elbo, ksd, predictive_distribution, psis_khat, to_arviz
from numpyro_ext.engine import RunResult
from numpyro_ext.fit import fit, fit_many, load_fit
from numpyro_ext.gradients import (
    SAGA,
    SVRG,
    BatchArguments,
    ControlVariate,
    Full,
    GradientEstimator,
    Minibatch,
    Noisy,
)
from numpyro_ext.guides import (
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
from numpyro_ext.implicit import SteinDiscrepancyVI
from numpyro_ext.kernels import (
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
from numpyro_ext.laplace import LaplaceGGN
from numpyro_ext.networks import random_module
from numpyro_ext.score import GSM, BaM, FisherVI, ProximalScoreVI
from numpyro_ext.sgmcmc import (
    MCLMC,
    PSGLD,
    SGHMC,
    SGLD,
    CyclicalSGHMC,
    CyclicalSGLD,
    ReplicaExchangeSGLD,
)
from numpyro_ext.sharding import Sharding
from numpyro_ext.start import find_start
from numpyro_ext.stein import SVGD, SVGDVR, SVN, WGD, DeepEnsemble
from numpyro_ext.warm_chains import warm_chains
from ppl_ext import public
from ppl_ext.public import *
from ppl_ext.public import predictions
from ppl_ext.public.predictions import *

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
    # many devices
    "Sharding",
    # stochastic gradient MCMC
    "MCLMC",
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

warn_on_clash()

"""Inference engines for Pyro programs: keep the model, swap the engine.

>>> import pyro_ext as px
>>> engine = px.SVGD(model, pyro.optim.Adam({"lr": 0.05}), num_particles=100)  # doctest: +SKIP
>>> engine.run(2000, x, y)  # doctest: +SKIP
>>> draws = engine.get_samples()  # doctest: +SKIP
"""

from ppl_ext.calibrate.calibration import Calibration
from ppl_ext.check.checked import Checked
from ppl_ext.curvature.program_curvature import GaussNewton
from ppl_ext.engines.judgement import Judgement
from ppl_ext.errors import (
    ArgumentError,
    BatchWarning,
    ConvergenceWarning,
    DataWarning,
    DivergenceWarning,
    DoubtfulFitWarning,
    EvaluationWarning,
    HeldParameterWarning,
    LostFitWarning,
    ModelCheckError,
    NoisyScoreWarning,
    NonFiniteError,
    RankLostError,
    ResumeWarning,
    StartWarning,
    UnsettledWarning,
)
from ppl_ext.fit.after.evidence import LogEvidence
from ppl_ext.fit.compare import compare
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.many import Fits
from ppl_ext.fit.verdict.verdict import Verdict
from ppl_ext.networks import priors
from ppl_ext.running.settling import Settled, Settling
from ppl_ext.score_matching.options import GradientSteps, Regression
from ppl_ext.start.start import Start
from ppl_ext.stein.newton import LevenbergMarquardt, NewtonSystem
from pyro_ext import stan
from pyro_ext.calibrate import calibrate
from pyro_ext.check import check
from pyro_ext.density import LogDensity
from pyro_ext.diagnostics import (
    calibration_curve,
    calibration_error,
    elbo,
    ksd,
    out_of_distribution_score,
    plot_reliability,
    plot_selective_prediction,
    plot_uncertainty,
    predictive_distribution,
    predictive_metrics,
    psis_khat,
    representative_draws,
    selective_prediction_curve,
    to_arviz,
    to_original_units,
    uncertainty_score,
    uncertainty_split,
)
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
from pyro_ext.implicit import PushForward, SemiImplicit, SteinDiscrepancyVI, UnrolledSGLD
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
    cosine_cycles,
    polynomial_decay,
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
    # samplers that it fits
    "PushForward",
    "SemiImplicit",
    "UnrolledSGLD",
    # the right answer, or a clear no
    "Calibration",
    "Fit",
    "Fits",
    "LogEvidence",
    "Verdict",
    "Checked",
    "calibrate",
    "check",
    "compare",
    "fit",
    "fit_many",
    "load_fit",
    "warm_chains",
    # where runs start
    "Start",
    "StartWarning",
    "find_start",
    # what a run gives, and when it stops
    "Judgement",
    "RunResult",
    "Settled",
    "Settling",
    # many processes
    "Sharding",
    # parts of Newton's method
    "GaussNewton",
    "LevenbergMarquardt",
    "NewtonSystem",
    # stochastic gradient MCMC
    "MCLMC",
    "MCMC",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "CyclicalSGHMC",
    "CyclicalSGLD",
    "ReplicaExchangeSGLD",
    "cosine_cycles",
    "polynomial_decay",
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
    "Regression",
    # score estimators
    "BatchArguments",
    "ControlVariate",
    "Full",
    "GradientEstimator",
    "GradientSteps",
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
    "representative_draws",
    "to_arviz",
    # predictions
    "predictive_distribution",
    "predictive_metrics",
    "to_original_units",
    "calibration_curve",
    "calibration_error",
    "uncertainty_split",
    "uncertainty_score",
    "selective_prediction_curve",
    "out_of_distribution_score",
    "plot_reliability",
    "plot_selective_prediction",
    "plot_uncertainty",
    # networks as programs
    "priors",
    "random_module",
    # Stan programs
    "stan",
    # errors and warnings
    "ArgumentError",
    "BatchWarning",
    "ConvergenceWarning",
    "DataWarning",
    "DivergenceWarning",
    "DoubtfulFitWarning",
    "EvaluationWarning",
    "HeldParameterWarning",
    "ModelCheckError",
    "NoisyScoreWarning",
    "NonFiniteError",
    "LostFitWarning",
    "RankLostError",
    "ResumeWarning",
    "UnsettledWarning",
]

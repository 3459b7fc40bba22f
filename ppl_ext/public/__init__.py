"""Names without a framework that users import from either package, which names them again."""

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
from ppl_ext.implicit.samplers import PushForward, SemiImplicit, UnrolledSGLD
from ppl_ext.networks import priors
from ppl_ext.running.settling import Settled, Settling
from ppl_ext.score_matching.options import GradientSteps, Regression
from ppl_ext.sgmcmc.schedules import cosine_cycles, polynomial_decay
from ppl_ext.start.start import Start
from ppl_ext.stein.newton import LevenbergMarquardt, NewtonSystem

__all__ = [
    # the right answer, or a clear no
    "Calibration",
    "Fit",
    "Fits",
    "LogEvidence",
    "Verdict",
    "Checked",
    "compare",
    # where runs start
    "Start",
    "StartWarning",
    # what a run gives, and when it stops
    "Judgement",
    "Settled",
    "Settling",
    # parts of engines
    "GaussNewton",
    "GradientSteps",
    "LevenbergMarquardt",
    "NewtonSystem",
    "Regression",
    # samplers that SteinDiscrepancyVI fits
    "PushForward",
    "SemiImplicit",
    "UnrolledSGLD",
    # step sizes of stochastic gradient MCMC
    "cosine_cycles",
    "polynomial_decay",
    # networks as programs
    "priors",
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

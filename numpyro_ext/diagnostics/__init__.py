"""Looking at a fit: conversion to ArviZ, how far the fit is from its target, what it predicts."""

from numpyro_ext.diagnostics.arviz import to_arviz
from numpyro_ext.diagnostics.importance import elbo, psis_khat
from numpyro_ext.diagnostics.predictive import predictions, predictive_distribution
from numpyro_ext.diagnostics.stein_discrepancy import ksd
from numpyro_ext.engine import RunResult
from ppl_ext.public import predictions as of_predictions
from ppl_ext.public.predictions import *

RunResult.looked_at_by(to_arviz, predictions)

__all__ = [
    "elbo",
    "ksd",
    "predictive_distribution",
    "psis_khat",
    "to_arviz",
]
__all__ += of_predictions.__all__

"""Looking at a fit: conversion to ArviZ, and how far the fit is from its target."""

from pyro_ext.diagnostics.arviz import to_arviz
from pyro_ext.diagnostics.importance import elbo, psis_khat
from pyro_ext.diagnostics.stein_discrepancy import ksd

__all__ = ["elbo", "ksd", "psis_khat", "to_arviz"]

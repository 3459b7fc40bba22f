"""Looking at a fit: conversion to ArviZ."""

from numpyro_ext.diagnostics.arviz import to_arviz

__all__ = ["to_arviz"]

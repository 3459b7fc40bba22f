"""Looking at a fit: conversion to ArviZ."""

from pyro_ext.diagnostics.arviz import to_arviz

__all__ = ["to_arviz"]

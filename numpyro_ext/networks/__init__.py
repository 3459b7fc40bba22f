"""Networks as programs: a module of flax or equinox with priors over its parameters."""

from numpyro_ext.networks.random_module import random_module

__all__ = ["random_module"]

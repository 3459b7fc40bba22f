"""Networks as programs: a torch module with priors over its parameters."""

from pyro_ext.networks.random_module import random_module

__all__ = ["random_module"]

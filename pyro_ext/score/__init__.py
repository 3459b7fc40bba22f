"""Score-based variational inference."""

from pyro_ext.score.proximal import ProximalScoreVI

__all__ = ["ProximalScoreVI"]

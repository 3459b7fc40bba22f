"""Score-based variational inference."""

from numpyro_ext.score.proximal import ProximalScoreVI

__all__ = ["ProximalScoreVI"]

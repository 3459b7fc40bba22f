"""Score-based variational inference."""

from numpyro_ext.score.fisher import FisherVI
from numpyro_ext.score.matching import GSM, BaM
from numpyro_ext.score.proximal import ProximalScoreVI

__all__ = ["GSM", "BaM", "FisherVI", "ProximalScoreVI"]

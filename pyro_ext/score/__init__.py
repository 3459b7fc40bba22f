"""Score-based variational inference."""

from pyro_ext.score.fisher import FisherVI
from pyro_ext.score.matching import GSM, BaM
from pyro_ext.score.proximal import ProximalScoreVI

__all__ = ["GSM", "BaM", "FisherVI", "ProximalScoreVI"]

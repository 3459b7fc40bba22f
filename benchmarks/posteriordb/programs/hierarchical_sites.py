"""Site maps of the hierarchical programs that sample standardised vectors."""

from __future__ import annotations

from benchmarks.posteriordb.programs.sites import SiteMap, non_centred

SITES: dict[str, SiteMap] = {
    "eight_schools_noncentered": non_centred(theta_raw=("theta", "mu", "tau")),
    "radon_hierarchical_intercept_noncentered": non_centred(
        alpha_raw=("alpha", "mu_alpha", "sigma_alpha")
    ),
    "radon_variable_intercept_slope_noncentered": non_centred(
        alpha_raw=("alpha", "mu_alpha", "sigma_alpha"), beta_raw=("beta", "mu_beta", "sigma_beta")
    ),
}

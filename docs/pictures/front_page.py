"""The picture of the front page: eight schools by `fit` and by a mean-field guide, over long NUTS.

    python -m docs.pictures.front_page

Writes `docs/images/front-page-light.png` and `front-page-dark.png`, for both looks of the pages,
and `front-page.txt`, what `fit` said. The levels in the titles are of the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.reparam import LocScaleReparam

import numpyro_ext as nx

IMAGES = Path(__file__).resolve().parent.parent / "images"
Y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(error: Any, y: Any = None) -> None:
    """Rubin's eight schools, written centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, error), obs=y)


def figures() -> dict[str, tuple[str, dict[str, Any]]]:
    """What is drawn: title, level and draws, by name."""
    keys = jax.random.split(jax.random.key(0), 6)
    apart = numpyro.handlers.reparam(schools, config={"theta": LocScaleReparam(0.0)})
    chains = MCMC(
        NUTS(apart, target_accept_prob=0.95),
        num_warmup=1000,
        num_samples=2500,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    chains.run(keys[0], ERROR, Y)

    fit = nx.fit(keys[1], schools, ERROR, Y)

    guide = AutoNormal(schools)
    svi = SVI(schools, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    result = svi.run(keys[2], 10_000, ERROR, Y, progress_bar=False)
    mean_field = guide.sample_posterior(keys[3], result.params, sample_shape=(2000,))
    verdict = nx.check(keys[4], (svi, result), schools, ERROR, Y)
    reasons = str(fit.verdict).partition("\n\n")[0]
    (IMAGES / "front-page.txt").write_text(reasons + "\n", encoding="utf-8")
    return {
        "reference": ("", chains.get_samples()),
        "fit": (f"fit: {fit.verdict.level}", fit.draws),
        "guide": (f"SVI with a mean-field guide: {verdict.level}", mean_field),
    }


def picture(found: dict[str, tuple[str, dict[str, Any]]], style: str) -> Any:
    """The two panels in one of matplotlib's styles."""

    def points(draws: dict[str, Any], number: int) -> tuple[np.ndarray, np.ndarray]:
        take = np.random.default_rng(0).permutation(len(draws["tau"]))[:number]
        return np.asarray(draws["theta"])[take, 0], np.asarray(draws["tau"])[take]

    with plt.style.context(style):
        figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.1), sharex=True, sharey=True)
        for axis, name, colour in zip(axes, ("fit", "guide"), ("tab:blue", "tab:red"), strict=True):
            title, draws = found[name]
            axis.scatter(*points(found["reference"][1], 3000), s=3, color="grey", alpha=0.5, lw=0)
            axis.scatter(*points(draws, 1000), s=4, color=colour, alpha=0.6, lw=0)
            axis.set_title(title, fontsize=11)
            axis.set_xlabel("effect of the first school")
        axes[0].set_ylabel("spread between schools, tau")
        axes[0].set(yscale="log", ylim=(0.05, 60), xlim=(-20, 45))
        figure.text(0.995, 0.01, "grey: long chains of NUTS", ha="right", fontsize=8, alpha=0.8)
        figure.tight_layout()
    return figure


def main() -> None:
    """Fit once and draw twice."""
    found = figures()
    for style, name in (("default", "light"), ("dark_background", "dark")):
        picture(found, style).savefig(
            IMAGES / f"front-page-{name}.png",
            dpi=160,
            transparent=True,
            metadata={"Software": None},
        )


if __name__ == "__main__":
    main()

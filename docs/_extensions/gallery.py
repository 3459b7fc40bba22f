"""The gallery: every picture of the documentation, what it shows, what draws it, what explains it.

The directive `gallery` puts a card for each entry of `PICTURES` into a page. A test holds the list
against the folder of pictures, so that a new picture cannot be forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Picture(NamedTuple):
    """An entry of the gallery.

    Attributes
    ----------
    name : str
        File in `docs/images`, without `.png`.
    shows : str
        One line.
    script : str
        File of the repository that draws it.
    command : str
        What runs the script, after `python -m`.
    page : str
        Page that explains it, below `docs`, without `.md`.
    """

    name: str
    shows: str
    script: str
    command: str
    page: str


VAE = "docs/examples/vae_figures.py"
MODELS = "docs.examples.numpyro_examples"
PICTURES = (
    Picture(
        "front-page-light",
        "Eight schools by `fit` and by a mean-field guide, over a long run of NUTS.",
        "docs/pictures/front_page.py",
        "docs.pictures.front_page",
        "index",
    ),
    Picture(
        "front-page-dark",
        "The same for dark pages.",
        "docs/pictures/front_page.py",
        "docs.pictures.front_page",
        "index",
    ),
    Picture(
        "fit-trust",
        "How many problems with known answers each method gets right, over evaluations.",
        "benchmarks/trust/report.py",
        "benchmarks trust",
        "fit",
    ),
    Picture(
        "posteriordb-convergence",
        "Worst error of a mean over score evaluations, on each posterior of posteriordb.",
        "benchmarks/posteriordb/report.py",
        "benchmarks posteriordb",
        "posteriordb",
    ),
    Picture(
        "posteriordb-noise",
        "How far off bounds end when scores are noisy.",
        "benchmarks/posteriordb/report.py",
        "benchmarks posteriordb --appendix-b",
        "posteriordb",
    ),
    Picture(
        "batches",
        "Memory of a fit from a file of 8 GB, and the rate of its steps over that in memory.",
        "benchmarks/batches/comparison.py",
        "benchmarks batches",
        "batches",
    ),
    Picture(
        "scaling",
        "Measured: what a device sends each step. Predicted: efficiency of accelerators.",
        "benchmarks/scaling/report.py",
        "benchmarks scaling",
        "devices",
    ),
    Picture(
        "stein-kernels",
        "Errors of covariance and mean by kernel, on targets with known moments.",
        "benchmarks/kernels/comparison.py",
        "benchmarks kernels",
        "stein",
    ),
    Picture(
        "noisy-scores",
        "Closed form for a full Normal and seven rivals with an oracle's rate, over noisy scores.",
        "benchmarks/noisy_scores/report.py",
        "benchmarks noisy-scores",
        "noisy-scores",
    ),
    Picture(
        "stein-semi-exact",
        "Errors of SVGD with and without semi-exact kernels, over dimensions per particle.",
        "benchmarks/semi_exact/report.py",
        "benchmarks semi-exact",
        "stein",
    ),
    Picture(
        "stein-logistic",
        "Variance reduction on logistic regressions: test log likelihood over sweeps.",
        "benchmarks/logistic/report.py",
        "benchmarks logistic",
        "stein",
    ),
    Picture(
        "stein-regression",
        "Variance reduction on regression networks: test RMSE over sweeps.",
        "benchmarks/regression/report.py",
        "benchmarks regression",
        "stein",
    ),
    Picture(
        "newton-networks",
        "Stein Newton, Stein gradients and ensembles of networks: test NLL by epoch.",
        "benchmarks/bnn/report.py",
        "benchmarks bnn",
        "newton",
    ),
    Picture(
        "newton-curvature",
        "Curvature of five networks for images during training.",
        "benchmarks/images/plots.py",
        "benchmarks images --experiment lenet",
        "newton",
    ),
    Picture(
        "score-vi-uci",
        "Networks on eight UCI sets: RMSE and NLL relative to tuned ADVI.",
        "benchmarks/score_vi/minibatch.py",
        "benchmarks score-vi --experiment uci",
        "score-vi",
    ),
    Picture(
        "score-vi-mixtures",
        "Mixtures as targets: forward KL over score evaluations.",
        "benchmarks/synthetic/plots.py",
        "benchmarks synthetic --experiment fig2",
        "score-vi",
    ),
    Picture(
        "score-vi-noise",
        "What noise in the scores costs each method.",
        "benchmarks/synthetic/plots.py",
        "benchmarks synthetic --experiment noise",
        "score-vi",
    ),
    Picture(
        "score-vi-forecasting",
        "Forecasts of three series: errors and NLL by method.",
        "benchmarks/forecasting/plots.py",
        "benchmarks forecasting",
        "score-vi",
    ),
    Picture(
        "sgmcmc-bias",
        "Standard deviations of stochastic gradient chains by step size.",
        "benchmarks/sgmcmc/report.py",
        "benchmarks sgmcmc",
        "sgmcmc",
    ),
    Picture(
        "sgmcmc-modes",
        "Which modes one chain of each kernel visits.",
        "benchmarks/sgmcmc/report.py",
        "benchmarks sgmcmc",
        "sgmcmc",
    ),
    Picture(
        "vision-steps",
        "Time and memory of a step on a vision transformer, of plain training's.",
        "benchmarks/vision/study.py",
        "benchmarks vision",
        "vision",
    ),
    Picture(
        "vision-fits",
        "Error, likelihood and calibration of fits of a ResNet-18.",
        "benchmarks/vision/study.py",
        "benchmarks vision",
        "vision",
    ),
    Picture(
        "implicit",
        "Draws of guides without a density on two modes, a ring and a banana.",
        "benchmarks/implicit/comparison.py",
        "benchmarks implicit",
        "implicit",
    ),
    Picture(
        "horseshoe",
        "A horseshoe finds the ten inputs of a hundred that matter.",
        "benchmarks/networks/horseshoe.py",
        "benchmarks horseshoe",
        "networks",
    ),
    Picture(
        "linearized",
        "Linearised Laplace against the mode and against draws of all weights.",
        "benchmarks/networks/linearized.py",
        "benchmarks linearized",
        "networks",
    ),
    Picture(
        "uncertainty",
        "A curve with a gap, and digits: calibration, selective prediction, entropy.",
        "benchmarks/uncertainty/figure.py",
        "benchmarks uncertainty",
        "uncertainty",
    ),
    Picture(
        "errors-kills",
        "Runs that were killed at random moments, and what was lost.",
        "benchmarks/process/kills.py",
        "benchmarks kills",
        "errors",
    ),
    Picture(
        "errors-soak",
        "Memory over many steps and over many engines in one process.",
        "benchmarks/process/soak.py",
        "benchmarks soak",
        "errors",
    ),
    Picture(
        "example-vae",
        "An autoencoder with a posterior over its weights: bounds and images.",
        VAE,
        f"{MODELS}.vae",
        "examples",
    ),
    Picture(
        "example-hierarchical-vae",
        "An autoencoder with two levels of latents: images from either.",
        VAE,
        f"{MODELS}.hierarchical_vae",
        "examples",
    ),
    Picture(
        "example-improved-vae",
        "Chains that improve an autoencoder's posterior over latents.",
        VAE,
        f"{MODELS}.improved_vae",
        "examples",
    ),
    Picture(
        "example-distilled-vae",
        "Autoencoders whose decoders are trained with improved draws: bounds over seconds.",
        "docs/examples/vae_distilled.py",
        f"{MODELS}.distilled_vae",
        "examples",
    ),
    Picture(
        "example-energy-based-model",
        "Two moons, the energy learnt from them, and samples of it.",
        "docs/examples/energy_based_report.py",
        f"{MODELS}.energy_based_model",
        "examples-uncertainty",
    ),
    Picture(
        "example-score-matching-moons",
        "Two moons, and samples by Langevin steps along learnt scores.",
        "docs/examples/score_matching_report.py",
        f"{MODELS}.score_matching",
        "examples-uncertainty",
    ),
    Picture(
        "example-score-matching-digits",
        "Small digits, and samples by Langevin steps along learnt scores.",
        "docs/examples/score_matching_report.py",
        f"{MODELS}.score_matching",
        "examples-uncertainty",
    ),
    Picture(
        "example-out-of-distribution",
        "Digits and clothes: how unsure each method is of what it was not trained on.",
        "docs/examples/out_of_distribution_report.py",
        f"{MODELS}.out_of_distribution",
        "examples-uncertainty",
    ),
)

CARD = """\
:::{{grid-item-card}}
:class-item: gallery-item

```{{image}} {up}images/{name}.png
:alt: {plain}
:class: {look}
:target: {up}{page}.html
:loading: lazy
```

{shows}

{{doc}}`/{page}` · drawn by [`{command}`]({source}/{script})
:::
"""


def cards(pictures: tuple[Picture, ...], source: str, up: str = "") -> str:
    """MyST text of a grid of cards; `source` is the address of the repository's files."""
    found = [
        CARD.format(
            name=picture.name,
            look="for-dark-pages" if picture.name.endswith("-dark") else "for-light-pages",
            plain=picture.shows.replace("`", ""),
            shows=picture.shows,
            page=picture.page,
            command=picture.command,
            script=picture.script,
            source=source,
            up=up,
        )
        for picture in pictures
    ]
    return "::::{grid} 1 2 3 3\n:gutter: 3\n\n" + "\n".join(found) + "::::\n"


class Gallery(SphinxDirective):
    """Put the cards of all pictures here."""

    def run(self) -> list[nodes.Node]:
        """The cards as nodes."""
        source = self.config.html_theme_options["source_repository"].rstrip("/") + "/blob/main"
        return self.parse_text_to_nodes(cards(PICTURES, source))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("gallery", Gallery)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The gallery: every picture of the documentation, what it shows, what draws it, what explains it.

The directive `gallery` puts a card for each entry of `PICTURES` into a page. A test holds the list
against the folder of pictures, so that a new picture cannot be forgotten. `benchmarks/pages.py` has
those that are drawn of records.
"""

from __future__ import annotations

from typing import NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from benchmarks import pages


class Picture(NamedTuple):
    """An entry of the gallery.

    Attributes
    ----------
    name : str
        File in `docs/images`, without `.png`.
    shows : str
        One line.
    command : str
        What makes it, after `python -m`.
    page : str
        Page that explains it, below `docs`, without `.md`.
    drawn : str
        File of the repository that draws it, of pictures that are not drawn of records: for those
        `benchmarks/pages.py` says it.
    panels : int
        Panels side by side; the thumbnail shows the first column alone, which can be read.
    """

    name: str
    shows: str
    command: str
    page: str
    drawn: str = ""
    panels: int = 1

    @property
    def script(self) -> str:
        """File of the repository that draws it."""
        if self.drawn:
            return self.drawn
        module = pages.PICTURES[f"{self.name}.png"][1].partition(":")[0]
        return module.replace(".", "/") + ".py"


VAE = "docs/examples/vae_figures.py"
MODELS = "docs.examples.numpyro_examples"
PICTURES = (
    Picture(
        "front-page-light",
        "Eight schools by `fit` and by a mean-field guide, over a long run of NUTS.",
        "docs.pictures.front_page",
        "index",
        "docs/pictures/front_page.py",
        panels=2,
    ),
    Picture(
        "front-page-dark",
        "The same for dark pages.",
        "docs.pictures.front_page",
        "index",
        "docs/pictures/front_page.py",
        panels=2,
    ),
    Picture(
        "fit-trust",
        "How many problems with known answers each method gets right, over evaluations.",
        "benchmarks trust",
        "fit",
        panels=2,
    ),
    Picture(
        "posteriordb-convergence",
        "Worst error of a mean over score evaluations, on each posterior of posteriordb.",
        "benchmarks posteriordb",
        "posteriordb",
        panels=4,
    ),
    Picture(
        "batches",
        "Memory of a fit from a file of 8 GB, and the rate of its steps over that in memory.",
        "benchmarks batches",
        "batches",
        panels=2,
    ),
    Picture(
        "scaling",
        "Measured: what a device sends each step. Predicted: efficiency of accelerators.",
        "benchmarks scaling",
        "devices",
        panels=2,
    ),
    Picture(
        "stein-kernels",
        "Errors of covariance and mean by kernel, on targets with known moments.",
        "benchmarks kernels",
        "stein",
        panels=2,
    ),
    Picture(
        "noisy-scores",
        "Closed form for a full Normal and seven rivals with an oracle's rate, over noisy scores.",
        "benchmarks noisy-scores",
        "noisy-scores",
        panels=3,
    ),
    Picture(
        "stein-semi-exact",
        "Errors of SVGD with and without semi-exact kernels, over dimensions per particle.",
        "benchmarks semi-exact",
        "stein",
        panels=3,
    ),
    Picture(
        "stein-regression",
        "Variance reduction on regression networks: test RMSE over sweeps.",
        "benchmarks regression",
        "stein",
        panels=2,
    ),
    Picture(
        "newton-networks",
        "Stein Newton, Stein gradients and ensembles of networks: test NLL by epoch.",
        "benchmarks bnn",
        "newton",
    ),
    Picture(
        "newton-curvature",
        "Curvature of five networks during training.",
        "benchmarks bnn --study matrices --sets yacht",
        "newton",
        "benchmarks/bnn/studies.py",
        panels=6,
    ),
    Picture(
        "score-vi-mixtures",
        "Mixtures as targets: forward KL over score evaluations.",
        "benchmarks synthetic --experiment fig2",
        "score-vi",
        panels=4,
    ),
    Picture(
        "sgmcmc-bias",
        "Standard deviations of stochastic gradient chains by step size.",
        "benchmarks sgmcmc",
        "sgmcmc",
    ),
    Picture(
        "sgmcmc-modes",
        "Which modes one chain of each kernel visits.",
        "benchmarks sgmcmc",
        "sgmcmc",
    ),
    Picture(
        "vision-steps",
        "Time and memory of a step on a vision transformer, of plain training's.",
        "benchmarks vision",
        "vision",
        panels=2,
    ),
    Picture(
        "vision-fits",
        "Error, likelihood and calibration of fits of a ResNet-18.",
        "benchmarks vision",
        "vision",
        panels=3,
    ),
    Picture(
        "implicit",
        "Draws of guides without a density on two modes, a ring and a banana.",
        "benchmarks implicit",
        "implicit",
        panels=4,
    ),
    Picture(
        "horseshoe",
        "A horseshoe finds the ten inputs of a hundred that matter.",
        "benchmarks horseshoe",
        "networks",
        panels=2,
    ),
    Picture(
        "linearized",
        "Linearised Laplace against the mode and against draws of all weights.",
        "benchmarks linearized",
        "networks",
        panels=2,
    ),
    Picture(
        "uncertainty",
        "A curve with a gap, and digits: calibration, selective prediction, entropy.",
        "benchmarks uncertainty",
        "uncertainty",
        "benchmarks/uncertainty/figure.py",
        panels=2,
    ),
    Picture(
        "errors-kills",
        "Runs that were killed at random moments, and what was lost.",
        "benchmarks kills",
        "errors",
        panels=2,
    ),
    Picture(
        "errors-soak",
        "Memory over many steps and over many engines in one process.",
        "benchmarks soak",
        "errors",
        panels=2,
    ),
    Picture(
        "example-vae",
        "An autoencoder with a posterior over its weights: bounds and images.",
        f"{MODELS}.vae",
        "examples",
        VAE,
        panels=2,
    ),
    Picture(
        "example-hierarchical-vae",
        "An autoencoder with two levels of latents: images from either.",
        f"{MODELS}.hierarchical_vae",
        "examples",
        VAE,
        panels=2,
    ),
    Picture(
        "example-improved-vae",
        "Chains that improve an autoencoder's posterior over latents.",
        f"{MODELS}.improved_vae",
        "examples",
        VAE,
        panels=3,
    ),
    Picture(
        "example-distilled-vae",
        "Autoencoders whose decoders are trained with improved draws: bounds over seconds.",
        f"{MODELS}.distilled_vae",
        "examples",
        panels=2,
    ),
    Picture(
        "example-energy-based-model",
        "Two moons, the energy learnt from them, and samples of it.",
        f"{MODELS}.energy_based_model",
        "examples-uncertainty",
        "docs/examples/energy_based_report.py",
        panels=3,
    ),
    Picture(
        "example-score-matching-moons",
        "Two moons, and samples by Langevin steps along learnt scores.",
        f"{MODELS}.score_matching",
        "examples-uncertainty",
        "docs/examples/score_matching_report.py",
        panels=2,
    ),
    Picture(
        "example-score-matching-digits",
        "Small digits, and samples by Langevin steps along learnt scores.",
        f"{MODELS}.score_matching",
        "examples-uncertainty",
        "docs/examples/score_matching_report.py",
        panels=2,
    ),
    Picture(
        "example-out-of-distribution",
        "Digits and clothes: how unsure each method is of what it was not trained on.",
        f"{MODELS}.out_of_distribution",
        "examples-uncertainty",
        "docs/examples/out_of_distribution_report.py",
        panels=7,
    ),
)

CARD = """\
:::{{grid-item-card}}
:class-item: gallery-item

```{{image}} {up}images/{name}.png
:alt: {plain}
:class: {look} panels-{panels}
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
            panels=picture.panels,
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

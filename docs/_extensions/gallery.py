"""The gallery: every picture of the documentation, what it shows, what draws it, what explains it.

The directive `gallery` puts a card for each entry of `PICTURES` into a page. A test holds the list
against the folder of pictures, so that a new picture cannot be forgotten. `benchmarks/pages.py` has
those that are drawn of records.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from PIL import Image
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
    panel : tuple of float
        What the thumbnail shows, one panel that can be read: left, top, right and bottom, as shares
        of the picture.
    """

    name: str
    shows: str
    command: str
    page: str
    drawn: str = ""
    panel: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)

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
        panel=(0.0, 0.0, 0.54, 0.97),
    ),
    Picture(
        "front-page-dark",
        "The same for dark pages.",
        "docs.pictures.front_page",
        "index",
        "docs/pictures/front_page.py",
        panel=(0.0, 0.0, 0.54, 0.97),
    ),
    Picture(
        "fit-trust",
        "How many problems with known answers each method gets right, over evaluations.",
        "benchmarks trust",
        "fit",
        panel=(0.0, 0.0, 0.5, 0.5),
    ),
    Picture(
        "posteriordb-convergence",
        "Worst error of a mean over score evaluations, on each posterior of posteriordb.",
        "benchmarks posteriordb",
        "posteriordb",
        panel=(0.0, 0.08, 0.267, 0.345),
    ),
    Picture(
        "batches",
        "Memory of a fit from a file of 8 GB, and the rate of its steps over that in memory.",
        "benchmarks batches",
        "batches",
        panel=(0.0, 0.0, 0.5, 1.0),
    ),
    Picture(
        "scaling",
        "Measured: what a device sends each step. Predicted: efficiency of accelerators.",
        "benchmarks scaling",
        "devices",
        panel=(0.0, 0.0, 0.6, 1.0),
    ),
    Picture(
        "stein-kernels",
        "Errors of covariance and mean by kernel, on targets with known moments.",
        "benchmarks kernels",
        "stein",
        panel=(0.0, 0.0, 0.55, 0.88),
    ),
    Picture(
        "noisy-scores",
        "Closed form for a full Normal and seven rivals with an oracle's rate, over noisy scores.",
        "benchmarks noisy-scores",
        "noisy-scores",
        panel=(0.0, 0.0, 0.355, 0.46),
    ),
    Picture(
        "stein-semi-exact",
        "Errors of SVGD with and without semi-exact kernels, over dimensions per particle.",
        "benchmarks semi-exact",
        "stein",
        panel=(0.0, 0.0, 0.385, 0.24),
    ),
    Picture(
        "stein-regression",
        "Variance reduction on regression networks: test RMSE over sweeps.",
        "benchmarks regression",
        "stein",
        panel=(0.0, 0.0, 0.5, 1.0),
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
        panel=(0.0, 0.0, 0.18, 0.18),
    ),
    Picture(
        "score-vi-mixtures",
        "Mixtures as targets: forward KL over score evaluations.",
        "benchmarks synthetic --experiment fig2",
        "score-vi",
        panel=(0.0, 0.05, 0.26, 1.0),
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
        panel=(0.0, 0.0, 0.705, 0.5),
    ),
    Picture(
        "vision-steps",
        "Time and memory of a step on a vision transformer, of plain training's.",
        "benchmarks vision",
        "vision",
        panel=(0.0, 0.0, 0.51, 1.0),
    ),
    Picture(
        "vision-fits",
        "Error, likelihood and calibration of fits of a ResNet-18.",
        "benchmarks vision",
        "vision",
        panel=(0.0, 0.0, 0.385, 1.0),
    ),
    Picture(
        "implicit",
        "Draws of guides without a density on two modes, a ring and a banana.",
        "benchmarks implicit",
        "implicit",
        panel=(0.0, 0.0, 0.25, 0.335),
    ),
    Picture(
        "horseshoe",
        "A horseshoe finds the ten inputs of a hundred that matter.",
        "benchmarks horseshoe",
        "networks",
        panel=(0.0, 0.0, 0.532, 1.0),
    ),
    Picture(
        "network-sets",
        "Predictions of networks on UCI sets over processor time.",
        "benchmarks network-sets",
        "networks",
        panel=(0.0, 0.0, 0.28, 1.0),
    ),
    Picture(
        "linearized",
        "Linearised Laplace against the mode and against draws of all weights.",
        "benchmarks linearized",
        "networks",
        panel=(0.0, 0.0, 0.54, 1.0),
    ),
    Picture(
        "uncertainty",
        "A curve with a gap, and digits: calibration, selective prediction, entropy.",
        "benchmarks uncertainty",
        "uncertainty",
        "benchmarks/uncertainty/figure.py",
        panel=(0.0, 0.0, 0.5, 0.5),
    ),
    Picture(
        "errors-kills",
        "Runs that were killed at random moments, and what was lost.",
        "benchmarks kills",
        "errors",
        panel=(0.0, 0.0, 0.625, 1.0),
    ),
    Picture(
        "errors-soak",
        "Memory over many steps and over many engines in one process.",
        "benchmarks soak",
        "errors",
        panel=(0.0, 0.0, 0.5, 1.0),
    ),
    Picture(
        "example-vae",
        "An autoencoder with a posterior over its weights: bounds and images.",
        f"{MODELS}.vae",
        "examples",
        VAE,
        panel=(0.0, 0.0, 0.36, 1.0),
    ),
    Picture(
        "example-hierarchical-vae",
        "An autoencoder with two levels of latents: images from either.",
        f"{MODELS}.hierarchical_vae",
        "examples",
        VAE,
        panel=(0.0, 0.0, 0.405, 1.0),
    ),
    Picture(
        "example-improved-vae",
        "Chains that improve an autoencoder's posterior over latents.",
        f"{MODELS}.improved_vae",
        "examples",
        VAE,
        panel=(0.0, 0.0, 0.285, 1.0),
    ),
    Picture(
        "example-distilled-vae",
        "Autoencoders whose decoders are trained with improved draws: bounds over seconds.",
        f"{MODELS}.distilled_vae",
        "examples",
        panel=(0.0, 0.0, 0.505, 1.0),
    ),
    Picture(
        "example-energy-based-model",
        "Two moons, the energy learnt from them, and samples of it.",
        f"{MODELS}.energy_based_model",
        "examples-uncertainty",
        "docs/examples/energy_based_report.py",
        panel=(0.34, 0.0, 0.605, 1.0),
    ),
    Picture(
        "example-score-matching-moons",
        "Two moons, and samples by Langevin steps along learnt scores.",
        f"{MODELS}.score_matching",
        "examples-uncertainty",
        "docs/examples/score_matching_report.py",
        panel=(0.0, 0.0, 0.495, 1.0),
    ),
    Picture(
        "example-score-matching-digits",
        "Small digits, and samples by Langevin steps along learnt scores.",
        f"{MODELS}.score_matching",
        "examples-uncertainty",
        "docs/examples/score_matching_report.py",
        panel=(0.0, 0.0, 0.5, 1.0),
    ),
    Picture(
        "example-out-of-distribution",
        "Digits and clothes: how unsure each method is of what it was not trained on.",
        f"{MODELS}.out_of_distribution",
        "examples-uncertainty",
        "docs/examples/out_of_distribution_report.py",
        panel=(0.0, 0.0, 0.155, 0.54),
    ),
)

IMAGE = """\
```{{image}} /{folder}/{name}.png
:alt: {alt}
:class: {look}
:target: {page}.html
:loading: lazy
```
"""

CARD = """\
:::{{grid-item-card}}
:class-item: gallery-item

{images}
{shows}

{{doc}}`/{page}` · drawn by [`{command}`]({source}/{script})
:::
"""

#: Where thumbnails are written, below `docs`.
FOLDER = "_build/thumbnails"


def cards(pictures: tuple[Picture, ...], source: str) -> str:
    """MyST text of a grid of cards; `source` is the address of the repository's files.

    A picture of a name that ends in `-dark` has no card of its own: dark pages show it in the place
    of the one that ends in `-light`.
    """
    names = {picture.name for picture in pictures}
    found = []
    for picture in pictures:
        stem, _, ground = picture.name.rpartition("-")
        if ground == "dark":
            continue
        looks = {picture.name: "one-ground"}
        if f"{stem}-dark" in names:
            looks = {picture.name: "only-light", f"{stem}-dark": "only-dark"}
        alt = picture.shows.replace("`", "")
        images = "\n".join(
            IMAGE.format(folder=FOLDER, name=name, alt=alt, look=look, page=picture.page)
            for name, look in looks.items()
        )
        fields = {**picture._asdict(), "script": picture.script}
        found.append(CARD.format(images=images, source=source, **fields))
    return "::::{grid} 1 2 3 3\n:gutter: 3\n\n" + "\n".join(found) + "::::\n"


def write_thumbnails(app: Sphinx) -> None:
    """Cut the panel out of each picture."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        with Image.open(Path(app.srcdir) / "images" / f"{picture.name}.png") as whole:
            left, top, right, bottom = picture.panel
            width, height = whole.size
            box = (left * width, top * height, right * width, bottom * height)
            whole.crop(tuple(map(round, box))).save(folder / f"{picture.name}.png")


class Gallery(SphinxDirective):
    """Put the cards of all pictures here."""

    def run(self) -> list[nodes.Node]:
        """The cards as nodes."""
        source = self.config.html_theme_options["source_repository"].rstrip("/") + "/blob/main"
        return self.parse_text_to_nodes(cards(PICTURES, source))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("gallery", Gallery)
    app.connect("builder-inited", write_thumbnails)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

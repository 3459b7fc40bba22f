"""What simulation-based calibration found: ranks, whether they are uniform, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ppl_ext.calibrate import uniformity
from ppl_ext.diagnostics.inference_data import Variable, inference_data
from ppl_ext.diagnostics.tables import Table, block, listed, paragraph
from ppl_ext.errors import ArgumentError

#: The log likelihood among the figures that are ranked.
LIKELIHOOD = "log likelihood"
#: Ranks less likely than this, all figures together, are not uniform.
LEVEL = 0.05


@dataclass(frozen=True)
class Calibration:
    """Ranks of parameters among posterior draws, over data sets of the model's own.

    Attributes
    ----------
    ranks : dict of str to int array (N, *site shape)
        For each of N data sets how many of the draws are below the parameter that the data were
        made of, by latent site; and, under "log likelihood", the same of the log likelihood.
    num_draws : int
        Draws that were ranked among, so that ranks are 0, 1, ..., ``num_draws``.
    truths : dict of str to array (N, *site shape)
        The parameters, drawn from the prior.
    effective : array (N,)
        What all draws of each fit are worth, in independent ones, in the worst coordinate.
    levels : tuple of str
        Words of the fits' verdicts, in order, where fits have some.
    plates : dict of str to tuple
        Plate of each axis of a site, or None.
    plate_sizes : dict of str to int

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_ext.calibrate.calibration import Calibration
    >>> ranks = {"mu": np.arange(100)}
    >>> print(Calibration(ranks, 99, {}, np.full(100, 400.0)))
    uniform: p = 1 over 1 figure of 100 data sets, ranked among 99 draws
    <BLANKLINE>
    site  p  ranks say
    mu    1  –
    """

    ranks: Mapping[str, Int[np.ndarray, "N ..."]]
    num_draws: int
    truths: Mapping[str, Float[np.ndarray, "N ..."]]
    effective: Float[np.ndarray, " N"]
    levels: tuple[str, ...] = ()
    plates: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    plate_sizes: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Calibration({str(self).partition(chr(10))[0]})"

    @property
    def num_data_sets(self) -> int:
        """N, the number of data sets."""
        return len(self.effective)

    @property
    def num_figures(self) -> int:
        """Numbers that were ranked in each data set."""
        return sum(each.size for each in self.ranks.values()) // self.num_data_sets

    @property
    def p_values(self) -> dict[str, Float[np.ndarray, " ..."]]:
        """Of each number by site (*site shape): how likely ranks this uneven are, if uniform."""
        return {
            name: np.array(
                [uniformity.p_value(each, self.num_draws) for each in _columns(ranks).T]
            ).reshape(ranks.shape[1:])
            for name, ranks in self.ranks.items()
        }

    @property
    def p_value(self) -> float:
        """The smallest of them, corrected for their number (Bonferroni)."""
        least = min(float(each.min()) for each in self.p_values.values() if each.size)
        return min(1.0, self.num_figures * least)

    @property
    def is_uniform(self) -> bool:
        """Whether nothing speaks against uniform ranks, at the level of 5 %."""
        return self.p_value >= LEVEL

    def to_arviz(self) -> Any:
        """Parameters and ranks for ArviZ.

        The group ``prior`` has the parameters, ``prior_sbc`` the middles of their ranks as shares
        between 0 and 1, which ArviZ's plots of PIT values take. Data sets are draws of one chain.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            The former with ArviZ 0.23, the latter with ArviZ 1 and later.
        """
        shares = {name: (each + 0.5) / (self.num_draws + 1) for name, each in self.ranks.items()}
        groups = {
            group: {name: Variable(each, self.plates.get(name, ())) for name, each in given.items()}
            for group, given in (("prior", self.truths), ("prior_sbc", shares))
        }
        attributes = {"num_draws": self.num_draws, "p_value": self.p_value}
        return inference_data(groups, self.plate_sizes, attributes=attributes)

    def plot(self, sites: Sequence[str] | None = None, *, axes: Any = None) -> Any:
        """Distribution of ranks less that of uniform ones, with a band for all figures together.

        One panel for each site, with one line for each of its numbers. If all ranks are uniform,
        all lines of all panels stay inside of the band with a probability of 95 %; that is the
        same test as ``is_uniform``. A line above the band at the left and below it at the right
        belongs to draws that are too narrow; the other way round, too wide. A line that is above
        or below throughout belongs to draws that lie too high or too low.

        Parameters
        ----------
        sites : sequence of str, optional
            Default: all, the log likelihood among them.
        axes : Axes or array of Axes, optional
            One for each site. Default: those of a new figure.

        Returns
        -------
        array of Axes

        Raises
        ------
        ArgumentError
            A site has no ranks, or there are not as many axes as sites.
        ImportError
            matplotlib is not installed.
        """
        names = list(self.ranks if sites is None else sites)
        if unknown := [name for name in names if name not in self.ranks]:
            raise ArgumentError(f"Expected some of the sites {list(self.ranks)}, found {unknown}.")
        panels = np.atleast_1d(_panels(len(names)) if axes is None else axes).ravel()
        if len(panels) < len(names):
            raise ArgumentError(f"Expected {len(names)} axes, found {len(panels)}.")
        number, length = self.num_data_sets, self.num_draws
        low, high = uniformity.band(number, length, 1.0 - LEVEL / self.num_figures)
        uniform = np.arange(1, length + 1) / (length + 1)
        for axis, name in zip(panels, names, strict=False):
            axis.fill_between(
                uniform, low / number - uniform, high / number - uniform, color="0.85", step="mid"
            )
            axis.axhline(0.0, color="0.5", linewidth=0.8)
            columns = _columns(self.ranks[name])
            for column in columns.T:
                below = np.cumsum(np.bincount(column, minlength=length + 1))[:-1]
                axis.step(
                    uniform,
                    below / number - uniform,
                    where="mid",
                    linewidth=1.2,
                    alpha=1.0 if columns.shape[1] < 5 else 0.6,
                )
            axis.set(title=name, xlabel="rank, as a share", xlim=(0, 1))
        if len(names):
            panels[0].set_ylabel("share of ranks below it,\nless the uniform one")
        for axis in panels[len(names) :]:
            axis.set_axis_off()
        return panels[: len(names)]

    @property
    def headline(self) -> str:
        """Whether ranks are uniform, in one line."""
        figures = self.num_figures
        word = "uniform" if self.is_uniform else "not uniform"
        return (
            f"{word}: p = {self.p_value:.2g} over {figures} figure{'s' * (figures > 1)} of "
            f"{self.num_data_sets} data sets, ranked among {self.num_draws} draws"
        )

    @property
    def told(self) -> tuple[str, ...]:
        """How many fits ended at each level, where fits have some."""
        if not self.levels:
            return ()
        counted = {level: self.levels.count(level) for level in dict.fromkeys(self.levels)}
        counts = ", ".join(f"{level} {count}" for level, count in counted.items())
        return (f"Verdicts of the fits: {counts}.",)

    def table(self) -> Table:
        """The least p-value of each site, and what its ranks say of the draws."""
        rows = []
        for name, each in self.p_values.items():
            if not each.size:
                continue
            worst = int(each.argmin())
            least = float(each.ravel()[worst])
            wrong = self.num_figures * least < LEVEL
            column = _columns(self.ranks[name])[:, worst]
            says = _shape(column, self.num_draws, name == LIKELIHOOD) if wrong else "–"
            rows.append((name, f"{least:.2g}", says))
        return Table(("site", "p", "ranks say"), rows, left=(0, 2))

    def __str__(self) -> str:
        told = [f"  - {each}" for each in self.told]
        return "\n".join([self.headline, *told, "", str(self.table())])

    def _repr_html_(self) -> str:
        return block(paragraph(self.headline, bold=True), listed(self.told), self.table().as_html())


def _columns(values: np.ndarray) -> np.ndarray:
    """One column for each number of a site."""
    return values.reshape(len(values), -1)


def _shape(ranks: Int[np.ndarray, " N"], num_draws: int, of_likelihood: bool) -> str:
    """What is wrong with draws that have these ranks, in words."""
    shares = (ranks + 0.5) / (num_draws + 1) - 0.5
    # Both in standard errors of uniform shares, whose variance is 1/12 and that of whose squares is
    # 1/180.
    shift = shares.mean() * np.sqrt(12.0 * len(ranks))
    spread = (np.square(shares).mean() - 1.0 / 12.0) * np.sqrt(180.0 * len(ranks))
    is_shift, is_more = (
        abs(shift) >= abs(spread),
        (shift if abs(shift) >= abs(spread) else spread) > 0,
    )
    if of_likelihood and is_shift:
        return f"draws fit the data too {'badly' if is_more else 'well'}"
    if of_likelihood:
        return f"draws fit the data too {'evenly' if is_more else 'unevenly'}"
    if is_shift:
        return f"draws are too {'low' if is_more else 'high'}"
    return f"draws are too {'narrow' if is_more else 'wide'}"


def _panels(number: int) -> Any:
    """Axes of a new figure, four in a row."""
    from ppl_ext.diagnostics.plots import plt_or_error

    columns = min(4, max(1, number))
    rows = -(-number // columns)
    return plt_or_error().subplots(
        rows,
        columns,
        sharey=True,
        squeeze=False,
        figsize=(2.6 * columns + 0.6, 2.4 * rows),
        layout="constrained",
    )[1]

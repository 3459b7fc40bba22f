"""What both halves measure: engines on a linear regression, and their layouts over devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Rows, particles or draws of a step, and steps of a run.
ROWS, PARTICLES, STEPS = 256, 16, 5
#: Columns, which are the D weights: few for engines that solve systems of D or P D equations.
MANY, FEW = 1000, 20
#: Columns of each engine.
ENGINES = {
    "SVGD": MANY,
    "WGD": MANY,
    "DeepEnsemble": MANY,
    "SVN": FEW,
    "ProximalScoreVI": MANY,
    "FisherVI": MANY,
    "GSM": FEW,
    "BaM": FEW,
    "LaplaceGGN": FEW,
}
#: Engines whose particles see each other, which have two ways of exchange.
EXCHANGING = ("SVGD", "WGD")


def make(
    name: str,
    package: Any,
    model: Callable[..., None],
    optim: Any,
    guide: Callable[[str], Any],
    of_fisher: tuple[Any, ...] = (),
    **options: Any,
) -> Any:
    """An engine of a package.

    Parameters
    ----------
    name : str
    package : module
    model : callable
    optim : optimizer
        Of those that take one.
    guide : callable
        A guide of the model, or its class, by the name of that.
    of_fisher : tuple
        An optimizer for ``FisherVI``, if any.
    options
        Of the engine.
    """
    kind = getattr(package, name)
    if name in (*EXCHANGING, "DeepEnsemble"):
        return kind(model, optim, num_particles=PARTICLES, **options)
    if name == "SVN":
        return kind(model, num_particles=PARTICLES, **options)
    if name == "ProximalScoreVI":
        solver = package.Regression(num_samples=PARTICLES)
        return kind(model, guide("AutoDiagonalNormal"), solver=solver, **options)
    if name == "FisherVI":
        diagonal = guide("AutoDiagonalNormal")
        return kind(model, diagonal, *of_fisher, num_samples=PARTICLES, **options)
    if name in ("GSM", "BaM"):
        return kind(model, guide("AutoMultivariateNormal"), num_samples=PARTICLES, **options)
    return kind(model, optim, **options)


def layouts(name: str, devices: int) -> list[tuple[str, dict[str, Any]]]:
    """Layouts of an engine over so many devices: names, and options of the Sharding."""
    if devices == 1:
        return [("one device", {})]
    found: list[tuple[str, dict[str, Any]]] = [("rows", {"rows": "d"})]
    if name != "LaplaceGGN":
        found.append(("particles", {"particles": "p"}))
    if name in EXCHANGING:
        found.append(("particles, all to all", {"particles": "p", "exchange": "all-to-all"}))
    if devices == 4:
        found.append(("particles and rows", {"particles": "p", "rows": "d"}))
    return found


def mesh_of(devices: int, options: dict[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Shape and names of the axes of a layout's mesh."""
    names = tuple(options[each] for each in ("particles", "rows") if each in options)
    return ((devices,) if len(names) == 1 else (devices // 2, 2)), names


def settings_of(name: str, layout: str, devices: int, size: int, exchange: str) -> dict[str, Any]:
    """Settings of a record, with the bytes of a number."""
    return {
        "engine": name,
        "layout": layout,
        "devices": devices,
        "rows": ROWS,
        "particles": PARTICLES,
        "dim": ENGINES[name],
        "bytes of a number": size,
        "exchange": exchange,
    }

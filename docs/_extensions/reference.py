"""The pages of the reference: one for each room and one for each public class and function.

They are written to `docs/api` when a build begins, from what the packages export and from the
files that there are, and are not kept in the repository. What the two packages name alike stands
on one page, in tabs.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HOSTS = {"pyro_ext": ("Pyro", "pyro"), "numpyro_ext": ("NumPyro", "numpyro")}
PACKAGES = (*HOSTS, "ppl_ext")
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Room:
    """A page of the reference.

    Parameters
    ----------
    name : str
        Of the page, and of the room's folder or file in both packages.
    title : str
    text : str
        What stands above the names, in reStructuredText.
    parts : tuple of str
        Further modules and folders that it shows, by their path in whichever package has them.
    """

    name: str
    title: str
    text: str
    parts: tuple[str, ...] = field(default=())

    def holds(self, module: str) -> int:
        """How long the path is by which this page has a module; 0 where it has not."""
        inside = module.partition(".")[2]
        paths = [path for path in (self.name, *self.parts) if f"{inside}.".startswith(f"{path}.")]
        return max(map(len, paths), default=0)


#: Headings of the first page, with the rooms below them. What a user calls first comes first.
GROUPS = {
    "From a program to an answer": [
        Room(
            "fit",
            "fit: draws with a verdict",
            "A program goes in, draws come out, and a verdict on them; see :doc:`/fit`.",
            ("chains",),
        ),
        Room(
            "check",
            "check: draws of any method, judged",
            "What stands behind a verdict on draws from anywhere; see :doc:`/fit`.",
            ("witnesses",),
        ),
        Room(
            "calibrate",
            "calibrate: a way to fit, judged",
            "Simulation-based calibration, on data of the model's own; see :doc:`/fit`.",
        ),
        Room(
            "warm_chains",
            "Warm-start NUTS",
            "The host's sampler in the coordinates of what is known; see :doc:`/warm-chains`.",
            ("fit.warm",),
        ),
    ],
    "Engines": [
        Room(
            "stein",
            "Stein engines",
            "Sets of particles; see :doc:`/stein` and :doc:`/newton`.",
        ),
        Room(
            "score",
            "Score-based engines",
            "Engines that fit a guide to scores; see :doc:`/score-vi`.",
            ("score_matching", "engines.guide_engine"),
        ),
        Room(
            "implicit",
            "Guides without a density",
            "Samplers that are fitted by their draws; see :doc:`/implicit`.",
        ),
        Room(
            "laplace",
            "Laplace approximation",
            "A Gaussian at the mode; see :doc:`/networks`.",
        ),
        Room(
            "sgmcmc",
            "Stochastic gradient MCMC",
            "Kernels of the hosts' ``MCMC``; see :doc:`/sgmcmc`.",
            ("microcanonical",),
        ),
        Room(
            "engine",
            "What all engines share",
            "Setting up, running, stopping, saving; see :doc:`/getting-started` and, for an engine "
            "of your own, :doc:`/own-engine`.",
            (
                *("engines", "running", "process", "descent", "optim", "draws"),
                *("programs", "pieces", "graphs"),
            ),
        ),
    ],
    "What engines are given": [
        Room("start", "Where runs start", "Normals near the modes; see :doc:`/starts`."),
        Room(
            "kernels",
            "Kernels",
            "How particles see each other; see :doc:`/stein`.",
        ),
        Room(
            "guides",
            "Guides",
            "Guides of this project, and the flat densities of the hosts'; see :doc:`/guides`.",
        ),
        Room(
            "gradients",
            "Gradient estimators",
            "Where scores come from: all rows, or some of them.",
        ),
        Room(
            "curvature",
            "Curvature",
            "Gauss-Newton matrices of programs without discrete latents; see :doc:`/newton`.",
        ),
        Room(
            "batches",
            "Batches of loaders",
            "Rows that come from a loader; see :doc:`/batches`.",
        ),
        Room(
            "sharding",
            "Many devices",
            "How a run is split; see :doc:`/devices`.",
            ("running.sharding",),
        ),
    ],
    "Programs": [
        Room(
            "density",
            "The target",
            "The flat unconstrained log density of a program; see :doc:`/architecture`.",
            ("target", "arguments"),
        ),
        Room(
            "networks",
            "Networks as programs",
            "A module whose parameters are latent sites; see :doc:`/networks`. Ready priors stand "
            "in :mod:`ppl_ext.networks.priors`, which is ``px.priors`` and ``nx.priors``.",
        ),
        Room(
            "stan",
            "Stan programs",
            "``px.stan`` and ``nx.stan``: a Stan program as one of the host's; see :doc:`/stan`.",
        ),
    ],
    "After a run": [
        Room(
            "diagnostics",
            "Diagnostics and predictions",
            "Draws for ArviZ, figures of a fit, predictions and how sure they are; see "
            ":doc:`/uncertainty`.",
            ("statistics", "public.predictions"),
        ),
        Room(
            "errors",
            "Errors, warnings and checks of options",
            "What messages say, and what to do; see :doc:`/errors`.",
            ("options", "documented", "scalars", "public"),
        ),
    ],
}
ROOMS = [room for rooms in GROUPS.values() for room in rooms]


def room_of(module: str) -> Room:
    """The page that a module stands on.

    Raises
    ------
    LookupError
        There is none.
    """
    found = max(ROOMS, key=lambda room: room.holds(module))
    if found.holds(module):
        return found
    raise LookupError(f"{module} stands on no page of the reference: name it in {__file__}.")


#: Classes whose methods come from a base that both packages share, and stand on their own pages in
#: full: they are all that a user calls. With the bases whose members are left out.
SHOWN_IN_FULL = {"RunResult": "tuple, _RunResult"}


def modules() -> list[str]:
    """All public modules of the packages, by name."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.name.startswith("_"):
                found.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return found


@dataclass
class Name:
    """A public class or function, with its object in each package that has it."""

    name: str
    items: dict[str, Any]

    @property
    def item(self) -> Any:
        """The object of one package."""
        return next(iter(self.items.values()))

    @property
    def kind(self) -> str:
        """Class or function, also its folder: `fit` and `Fit` would be one file on some disks."""
        return "class" if inspect.isclass(self.item) else "function"

    @property
    def page(self) -> str:
        """The page's path in the folder of the reference."""
        return f"{self.kind}/{self.name}"

    @property
    def room(self) -> Room:
        """The room that it stands in."""
        return room_of(self.item.__module__)

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        text = (inspect.getdoc(self.item) or "").split("\n\n")[0]
        parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
        parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
        return "".join(parts)

    @property
    def places(self) -> list[str]:
        """Where its objects are defined, each once."""
        found = [f"{item.__module__}.{item.__qualname__}" for item in self.items.values()]
        return list(dict.fromkeys(found))


def names() -> list[Name]:
    """All public classes and functions, in the order of the packages' lists."""
    found: dict[str, Name] = {}
    for package in HOSTS:
        module = importlib.import_module(package)
        for name in module.__all__:
            item = getattr(module, name)
            if inspect.isclass(item) or inspect.isroutine(item):
                found.setdefault(name, Name(name, {})).items[package] = item
    return list(found.values())


def inherited(item: type) -> list[str]:
    """Where a class has public methods and properties from, of those that are its bases' own."""
    found = []
    for name in dir(item):
        owner = next((base for base in item.__mro__ if name in vars(base)), item)
        ours = owner.__module__.partition(".")[0] in PACKAGES and owner is not item
        kind = inspect.getattr_static(item, name)
        method = inspect.isroutine(kind) or isinstance(kind, property | classmethod | staticmethod)
        if ours and method and not name.startswith("_") and getattr(kind, "__doc__", None):
            found.append(f"{owner.__module__}.{owner.__qualname__}.{name}")
    return found


def titled(title: str, line: str = "=") -> list[str]:
    """A heading."""
    return [title, line * len(title), ""]


def indented(lines: list[str]) -> list[str]:
    """Lines that belong to a directive."""
    return [f"   {line}" if line else "" for line in lines]


def in_tabs(contents: dict[str, list[str]]) -> Iterator[str]:
    """Lines for each package, in tabs that switch with all others of the pages."""
    yield from (".. tab-set::", "   :sync-group: host", "")
    for package, lines in contents.items():
        label, sync = HOSTS[package]
        tab = [f".. tab-item:: {label}", f"   :sync: {sync}", "", *indented(lines), ""]
        yield from indented(tab)


def table(rows: list[Name]) -> list[str]:
    """Names with their summaries."""
    lines = [".. list-table::", "   :widths: 34 66", "   :class: reference-names", ""]
    for row in rows:
        lines += [f"   * - :doc:`{row.name} </api/{row.page}>`", f"     - {row.summary}"]
    return [*lines, ""]


def toctree(pages: list[str]) -> list[str]:
    """The pages below this one, for the menu at the side."""
    return [".. toctree::", "   :hidden:", "", *indented(pages), ""]


def page_of(name: Name) -> list[str]:
    """The page of a class or function."""

    def described(package: str, place: str) -> list[str]:
        kind = "autoclass" if name.kind == "class" else "autofunction"
        lines = [".. code-block:: python", "", f"   from {package} import {name.name}", ""]
        # Types in a signature are looked up from there.
        lines += [f".. py:currentmodule:: {name.items[package].__module__}", ""]
        lines += [f".. {kind}:: {place}"]
        if name.name in SHOWN_IN_FULL:
            return [*lines, f"   :inherited-members: {SHOWN_IN_FULL[name.name]}", ""]
        lines += [""]
        further = inherited(name.items[package]) if name.kind == "class" else []
        if further:
            lines += [f"Inherited: {', '.join(f':py:obj:`~{each}`' for each in further)}.", ""]
        return lines

    lines = titled(name.name)
    lines += [f"Part of :doc:`/api/{name.room.name}`.", ""]
    if len(name.items) == len(HOSTS) and len(name.places) == 1:
        lines += ["The same in ``pyro_ext`` and ``numpyro_ext``.", ""]
        return lines + described(next(iter(HOSTS)), name.places[0])
    if len(name.items) < len(HOSTS):
        (package,) = name.items
        lines += [f"In {HOSTS[package][0]} alone.", ""]
        return lines + described(package, name.places[0])
    tabs = dict(zip(name.items, name.places, strict=True))
    return lines + list(in_tabs({host: described(host, place) for host, place in tabs.items()}))


def page_of_room(room: Room, own: list[Name], inside: list[str]) -> list[str]:
    """The page of a room: its public names, and all else that its modules hold."""
    lines = [*titled(room.title), room.text, ""]
    if own:
        lines += [*table(own), *toctree([name.page for name in own])]
    elsewhere = {place: name for name in own for place in name.places}

    def described(module: str) -> list[str]:
        held = [place.rpartition(".") for place in elsewhere]
        apart = [last for place, _, last in held if place == module]
        options = [f"   :exclude-members: {', '.join(apart)}"] if apart else []
        return [f".. rubric:: {module}", "", f".. automodule:: {module}", *options, ""]

    hosts = {
        host: [
            line for module in inside if module.startswith(f"{host}.") for line in described(module)
        ]
        for host in HOSTS
    }
    shared = [module for module in inside if module.startswith("ppl_ext.")]
    note = "What engines and extensions are made of. Users need the names above alone."
    if any(hosts.values()):
        lines += [*titled("Modules", "-"), *([note, ""] if own else []), *in_tabs(hosts), ""]
    if shared:
        lines += titled("What both packages share", "-")
        lines += [line for module in shared for line in described(module)]
    return lines


def part_of(heading: str) -> str:
    """The page of the rooms below a heading."""
    return f"part/{heading.lower().replace(' ', '-')}"


def tables_of(rooms: list[Room], own: dict[str, list[Name]]) -> list[str]:
    """Rooms, with their names."""
    lines: list[str] = []
    for room in rooms:
        lines += [f":doc:`/api/{room.name}`", ""]
        lines += table(own[room.name]) if own[room.name] else indented([room.text, ""])
    return lines


def page_of_part(heading: str, own: dict[str, list[Name]]) -> list[str]:
    """The page of the rooms below a heading, for the menu at the side."""
    rooms = GROUPS[heading]
    places = [f"/api/{room.name}" for room in rooms]
    return [*titled(heading), *tables_of(rooms, own), *toctree(places)]


def first_page(own: dict[str, list[Name]]) -> list[str]:
    """The page that the reference opens with."""
    lines = titled("Reference")
    lines += [
        "``import pyro_ext as px`` serves Pyro, ``import numpyro_ext as nx`` serves NumPyro. Both "
        "have the names below, but for what a page says; what they share stands in ``ppl_ext``. "
        "Each name has a page with an example that runs. Examples that import no package know "
        "these names as after ``from pyro_ext import *`` or ``from numpyro_ext import *``.",
        "",
    ]
    for heading, rooms in GROUPS.items():
        lines += titled(heading, "-") + tables_of(rooms, own)
    return lines + toctree([*map(part_of, GROUPS), "/glossary"])


def write(path: Path, lines: list[str]) -> None:
    """Write a page where it differs from what is there, so that others are not built again."""
    text = "\n".join(lines) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_pages(app: Sphinx) -> None:
    """Write all pages, and remove those of names that there are no more."""
    folder = Path(app.srcdir) / "api"
    own: dict[str, list[Name]] = {room.name: [] for room in ROOMS}
    pages: dict[str, list[str]] = {}
    # What a room is named after comes first.
    for name in sorted(names(), key=lambda name: name.name != name.room.name):
        own[name.room.name].append(name)
        pages[name.page] = page_of(name)
    inside: dict[str, list[str]] = {room.name: [] for room in ROOMS}
    for module in modules():
        inside[room_of(module).name].append(module)
    for room in ROOMS:
        pages[room.name] = page_of_room(room, own[room.name], inside[room.name])
    for heading in GROUPS:
        pages[part_of(heading)] = page_of_part(heading, own)
    pages["index"] = first_page(own)
    for page, lines in pages.items():
        write(folder / f"{page}.rst", lines)
    for path in folder.rglob("*.rst"):
        if path.relative_to(folder).with_suffix("").as_posix() not in pages:
            path.unlink()


def without_source(app: Sphinx, pagename: str, template: str, context: Any, doctree: Any) -> None:
    """No page of the reference has a source in the repository to link to."""
    if pagename.startswith("api/"):
        context["page_source_suffix"] = ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for them."""
    app.connect("builder-inited", write_pages)
    app.connect("html-page-context", without_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

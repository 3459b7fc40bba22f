"""Native programs of posteriordb's models, the same ones in NumPyro and in Pyro.

`numpyro_program("arK")` and `pyro_program("arK")` give a model `def arK(data)` of that host; the
other host is not imported. `SITES` says how its latent sites correspond to the parameters of the
reference posterior, `site_map("arK")` with the identity where nothing is said.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.hosts import host_of
from benchmarks.posteriordb.programs import gaussian_processes_sites, hierarchical_sites
from benchmarks.posteriordb.programs.sites import SiteMap

#: Modules of programs, which take a :class:`~benchmarks.hosts.Host` first. What differs more than
#: the hosts' words is in modules of the same names in `programs/numpyro` and `programs/pyro`.
FAMILIES = (
    *("regressions", "hierarchical", "mixtures"),
    *("time_series", "gaussian_processes", "differential_equations"),
)

Program = Callable[..., Any]


class UnknownProgramError(LookupError):
    """There is no native program of that name for that host."""


#: Site maps by model name, of those programs whose sites are not the parameters themselves.
SITES: dict[str, SiteMap] = {**gaussian_processes_sites.SITES, **hierarchical_sites.SITES}


#: Programs of a folder of one's own, by host and model (:mod:`benchmarks.posteriordb.own`).
OWN: dict[str, dict[str, Program]] = {"numpyro": {}, "pyro": {}}


def site_map(model_name: str) -> SiteMap:
    """How the latent sites of a model's program give the parameters of the reference."""
    return SITES.get(model_name, SiteMap())


def programs(backend: str) -> dict[str, Program]:
    """Every program of a host, "numpyro" or "pyro", by posteriordb's model name."""
    if backend not in ("numpyro", "pyro"):
        raise ValueError(f"backend must be 'numpyro' or 'pyro'; found {backend!r}.")
    found: dict[str, Program] = {}
    for family in FAMILIES:
        written = importlib.import_module(f"{__name__}.{family}").PROGRAMS
        found |= {name: partial(program, host_of(backend)) for name, program in written.items()}
    return found | OWN[backend]


def _program(backend: str, model_name: str) -> Program:
    known = programs(backend)
    if model_name in known:
        return known[model_name]
    near = difflib.get_close_matches(model_name, known, n=3) or sorted(known)
    raise UnknownProgramError(
        f"There is no {backend} program of the model {model_name!r}; there are "
        f"{', '.join(near)}{'' if len(near) == len(known) else ' and others'}."
    )


def numpyro_program(model_name: str) -> Program:
    """The NumPyro program of a posteriordb model; it takes the data as a dict.

    Raises
    ------
    UnknownProgramError
        There is none; the message names the nearest ones.
    """
    return _program("numpyro", model_name)


def pyro_program(model_name: str) -> Program:
    """The Pyro program of a posteriordb model; it takes the data as a dict.

    Raises
    ------
    UnknownProgramError
        There is none; the message names the nearest ones.
    """
    return _program("pyro", model_name)

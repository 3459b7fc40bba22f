"""A compiled Stan program with data: densities, gradients and parameters as NumPy arrays.

Everything is in float64 and on Stan's unconstrained space, of D numbers, in the order of Stan's
own names for them. Arrays may have any leading axes; their rows are evaluated in threads where
that is worth it.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from ppl_ext.stan.compilation import import_bridgestan

Floats = NDArray[np.float64]

#: Seconds of one evaluation from which on threads gain more than they cost. A shorter one is
#: mostly Python's own work, which threads cannot share.
WORTH_A_THREAD = 1e-4

#: Random positions of which one must have a finite density, or a warning says why none has. Stan
#: itself tries as many, between the same bounds, before it gives up a chain.
TRIES = 100

# Stan gives each entry of an array a name, with the indices from one behind dots.
_INDEX = re.compile(r"\.(\d+)")
# C++ says which function failed, and which file it was compiled from.
_SOURCE = re.compile(r"\(in '[^']*',")
_PREFIX = re.compile(r"^\w+\(\) failed: (Exception: )?")


class StanDensity:
    """Log density of a Stan program with data.

    The density is Stan's, with the Jacobians of its transforms and without the constants that
    it drops: D parameters, prior and likelihood in one.

    Parameters
    ----------
    library : Path
        The compiled program, from :func:`~ppl_ext.stan.compilation.compiled`.
    data : str
        The data as JSON, empty for none.
    name : str
        What messages call the program.
    seed : int
        Seed of Stan's random numbers: those of transformed data, and those of generated
        quantities, which are a function of it and of the parameters.
    generated_quantities : bool
        Whether :meth:`constrain` returns them as well.
    threads : int, optional
        At most this many positions are evaluated at once. Default: the number of processors.

    Attributes
    ----------
    dim : int
        Length D of the unconstrained vector.
    shapes : dict of str to tuple of int
        Parameters, transformed parameters and, if asked for, generated quantities, as the
        program names them. Arrays without entries are left out, because Stan does not list them.
    rejection : str or None
        What Stan said when it last could not evaluate the density.

    Raises
    ------
    ArgumentError
        The data do not fit the program, it has no parameters, or the seed is out of range.
    """

    def __init__(
        self,
        library: Path,
        data: str,
        *,
        name: str,
        seed: int = 0,
        generated_quantities: bool = False,
        threads: int | None = None,
    ) -> None:
        check_count("threads", threads, optional=True)
        if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**32):
            raise ArgumentError(f"Expected a seed from 0 to 2**32 - 1, found {seed!r}.")
        self.name, self.seed, self.generated_quantities = name, seed, generated_quantities
        self.threads = threads or _processors()
        self.rejection: str | None = None
        # The most positions of one call, so far, whose generated quantities were rejected.
        self._told = 0
        try:
            self._model = import_bridgestan().StanModel(library, data, seed=seed, warn=False)
        except RuntimeError as error:
            raise ArgumentError(
                f"The data do not fit the Stan program '{name}': {_said(error, name)}"
            ) from error
        self.dim: int = self._model.param_unc_num()
        if not self.dim:
            raise ArgumentError(
                f"Expected a Stan program with parameters, found none in '{name}'. Its block "
                "'parameters' is missing or empty."
            )
        #: What it was made from; a copy in another process is made from the same.
        self.settings: dict[str, Any] = {
            "library": library,
            "data": data,
            "name": name,
            "seed": seed,
            "generated_quantities": generated_quantities,
            "threads": threads,
        }
        self._include = {"include_tp": True, "include_gq": generated_quantities}
        self._places = _places(self._model.param_names(**self._include))
        self.shapes = {name: shape for name, (shape, _) in self._places.items()}
        self._pool: ThreadPoolExecutor | None = None
        self._pool_owner = 0
        self._starting = threading.Lock()
        self._probe()

    def _probe(self) -> None:
        """Warn with Stan's reason where it rejects whatever an engine may start from."""
        generator = np.random.default_rng(0)
        for _ in range(TRIES):
            if np.isfinite(self.value(generator.uniform(-2.0, 2.0, self.dim))):
                return
        warnings.warn(
            f"The Stan program '{self.name}' has no finite density at {TRIES} random positions, so "
            f"that engines will not find a start: {self.rejection or 'it is infinite or zero'}",
            UserWarning,
            stacklevel=4,
        )

    def value_and_gradient(self, z: ArrayLike) -> tuple[Floats, Floats]:
        """Log density (...) and its gradient (..., D) at positions (..., D).

        Where Stan rejects a position the density is -inf and the gradient zero.
        """
        rows, lead = self._rows(z)
        values, gradients = np.empty(len(rows)), np.zeros_like(rows)

        def work(row: int) -> None:
            try:
                value, _ = self._model.log_density_gradient(rows[row], out=gradients[row])
            except RuntimeError as error:
                self.rejection, value = _said(error, self.name), -np.inf
            values[row] = -np.inf if np.isnan(value) else value
            if values[row] == -np.inf:
                gradients[row] = 0.0

        self._for_each(len(rows), work)
        return values.reshape(lead), gradients.reshape((*lead, self.dim))

    def value(self, z: ArrayLike) -> Floats:
        """Log density (...) at positions (..., D); -inf where Stan rejects one."""
        rows, lead = self._rows(z)
        values = np.empty(len(rows))

        def work(row: int) -> None:
            try:
                value = self._model.log_density(rows[row])
            except RuntimeError as error:
                self.rejection, value = _said(error, self.name), -np.inf
            values[row] = -np.inf if np.isnan(value) else value

        self._for_each(len(rows), work)
        return values.reshape(lead)

    def hessian_product(self, z: ArrayLike, vectors: ArrayLike) -> Floats:
        """Second derivatives at positions (..., D) times vectors (..., D).

        Zero where the density is, or is not a number.
        """
        rows, lead = self._rows(z)
        directions, _ = self._rows(vectors)
        products = np.zeros_like(rows)

        def work(row: int) -> None:
            if not directions[row].any():
                return
            try:
                value, _ = self._model.log_density_hessian_vector_product(
                    rows[row], directions[row], out=products[row]
                )
            except RuntimeError as error:
                self.rejection, value = _said(error, self.name), -np.inf
            # As the gradient is there.
            if not value > -np.inf:
                products[row] = 0.0

        self._for_each(len(rows), work)
        return products.reshape((*lead, self.dim))

    @property
    def num_constrained(self) -> int:
        """Length K of what :meth:`constrain` returns."""
        return sum(len(places) for _, places in self._places.values())

    def constrain(self, z: ArrayLike) -> Floats:
        """Parameters (..., K) at positions (..., D), for :meth:`split`.

        Where Stan rejects a position they are NaN; where it rejects the generated quantities
        alone these are, and a warning counts the positions and gives Stan's reason.
        """
        rows, lead = self._rows(z)
        found = np.full((len(rows), self.num_constrained), np.nan)
        rejected = np.zeros(len(rows), bool)

        def work(row: int) -> None:
            generator = None
            if self.generated_quantities:
                # A function of the position, so that evaluating it again changes nothing.
                seed = zlib.crc32(rows[row].tobytes(), self.seed)
                generator = self._model.new_rng(seed)
            try:
                found[row] = self._model.param_constrain(rows[row], rng=generator, **self._include)
            except RuntimeError as error:
                self.rejection = _said(error, self.name)
                rejected[row] = self.generated_quantities and self._without_quantities(
                    rows[row], found[row]
                )

        self._for_each(len(rows), work)
        self._tell_of_rejected(int(rejected.sum()), len(rows))
        order = np.concatenate([places for _, places in self._places.values()])
        # Not as indexing leaves them, column after column.
        return np.ascontiguousarray(found[:, order]).reshape((*lead, len(order)))

    def _without_quantities(self, row: Floats, found: Floats) -> bool:
        """Fill in the parameters of a position alone; whether Stan has them."""
        found[:] = np.nan
        try:
            values = self._model.param_constrain(row, include_tp=True, include_gq=False)
        except RuntimeError as error:
            self.rejection = _said(error, self.name)
            return False
        # Stan lists generated quantities last.
        found[: len(values)] = values
        return True

    def _tell_of_rejected(self, count: int, positions: int) -> None:
        """Warn of generated quantities that Stan rejects, where they are more than ever before."""
        if count <= self._told:
            return
        self._told = count
        warnings.warn(
            f"Stan rejects the generated quantities of '{self.name}' at {count:,} of "
            f"{positions:,} positions, where they are NaN; the parameters are kept. Stan's reason: "
            f"{self.rejection}",
            UserWarning,
            stacklevel=3,
        )

    def slices(self) -> dict[str, slice]:
        """Where each parameter is in what :meth:`constrain` returns, its entries in C order."""
        slices, start = {}, 0
        for name, (_, places) in self._places.items():
            slices[name] = slice(start, start + len(places))
            start += len(places)
        return slices

    def unconstrain(self, values: Mapping[str, Any]) -> Floats:
        """Position (D,) of values of the program's parameters, each of its shape.

        Raises
        ------
        ArgumentError
            A parameter is missing, or of another shape, or outside its support.
        """
        try:
            text = json.dumps({name: np.asarray(value).tolist() for name, value in values.items()})
            found: Floats = self._model.param_unconstrain_json(text)
        except RuntimeError as error:
            raise ArgumentError(
                f"The values do not fit the parameters of '{self.name}': {_said(error, self.name)}"
            ) from error
        return found

    # -- rows --------------------------------------------------------------------------------

    def _rows(self, z: ArrayLike) -> tuple[Floats, tuple[int, ...]]:
        array = np.asarray(z, dtype=np.float64)
        if array.shape[-1:] != (self.dim,):
            raise ArgumentError(
                f"Expected positions of {self.dim} numbers, found an array of shape {array.shape}."
            )
        return np.ascontiguousarray(array.reshape(-1, self.dim)), array.shape[:-1]

    def _for_each(self, count: int, work: Callable[[int], None]) -> None:
        """Do the work for every row, in threads if the first one takes long enough."""
        if not count:
            return
        began = time.perf_counter()
        work(0)
        seconds = time.perf_counter() - began
        # The first row is done already.
        threads = min(self.threads, count - 1)
        if threads < 2 or seconds < WORTH_A_THREAD:
            for row in range(1, count):
                work(row)
            return

        def share(first: int) -> None:
            for row in range(first, count, threads):
                work(row)

        list(self._workers().map(share, range(1, 1 + threads)))

    def _workers(self) -> ThreadPoolExecutor:
        with self._starting:
            # A forked process has the pool, but not its threads.
            if self._pool is None or self._pool_owner != os.getpid():
                self._pool, self._pool_owner = ThreadPoolExecutor(self.threads), os.getpid()
            return self._pool


def _places(names: list[str]) -> dict[str, tuple[tuple[int, ...], NDArray[np.intp]]]:
    """Shape of each array, and where its entries, in C order, are among Stan's names."""
    indices: dict[str, list[tuple[int, ...]]] = {}
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        base = _INDEX.sub("", name)
        index = tuple(int(number) - 1 for number in _INDEX.findall(name))
        indices.setdefault(base, []).append(index)
        positions.setdefault(base, []).append(position)
    places = {}
    for base, entries in indices.items():
        shape = tuple(max(axis) + 1 for axis in zip(*entries, strict=True))
        # Stan lists the entries of matrices column after column.
        order = sorted(range(len(entries)), key=entries.__getitem__)
        places[base] = shape, np.asarray(positions[base])[order]
    return places


def _said(error: BaseException, name: str) -> str:
    """Stan's message in one line, of the program by its name and not of a file that is gone."""
    message = _SOURCE.sub(lambda _: f"(in '{name}',", _PREFIX.sub("", str(error).strip()))
    return " ".join(message.split())


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

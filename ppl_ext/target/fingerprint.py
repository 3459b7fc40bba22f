"""What a program computes and which data it sees, in a few bytes that any process agrees on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_ext.errors import ModelCheckError

#: Memory addresses in the names of functions and objects, which mean nothing.
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
#: Relative difference of two runs of one program that is put down to rounding.
ROUNDING = 1e-4


class Digest:
    """A digest of words and arrays, in the order in which they come; about 1 GB a second."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, *words: Any) -> None:
        """Add words, without memory addresses, or digests."""
        for word in words:
            # The zero ends a word, so that "ab", "c" is not "a", "bc".
            self._hash.update(_ADDRESS.sub("", str(word)).encode() + b"\0")

    def add_array(self, array: np.ndarray) -> None:
        """Add an array: its type, shape and numbers."""
        self.add(array.dtype, array.shape)
        if array.dtype.hasobject:
            self.add(array.tolist())
        else:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def __str__(self) -> str:
        return self._hash.hexdigest()


@dataclass(frozen=True)
class Fingerprint:
    """What a model computes apart from what its arrays of arguments hold.

    Parameters
    ----------
    operations : str
        Digest of the operations and of the numbers that are written into them.
    constants : str
        Digest of the arrays that the model closes over, or takes out of other objects.
    """

    operations: str
    constants: str


def digest_of(leaves: Iterable[Any], to_array: Callable[[Any], np.ndarray]) -> str:
    """Digest of arguments: arrays by their numbers, plain values as they are, others by their kind.

    What a model takes out of other objects are constants of its :class:`Fingerprint`.
    """
    digest = Digest()
    for leaf in leaves:
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            digest.add_array(to_array(leaf))
        elif leaf is None or isinstance(leaf, (bool, int, float, complex, str, bytes)):
            digest.add(repr(leaf))
        else:
            digest.add(type(leaf).__qualname__)
    return str(digest)


def numbers_of(digest: str) -> np.ndarray:
    """A digest as two numbers: uint32 (2,)."""
    return np.frombuffer(bytes.fromhex(digest), np.uint32)


def check_repeats(
    first: Mapping[str, Mapping[str, Any]],
    again: Mapping[str, Mapping[str, Any]],
    causes: Sequence[str] = (),
) -> None:
    """See that two runs of a model with the same latent sites and rows agree.

    Parameters
    ----------
    first, again : mapping of str to mapping of str to array
        For each sample site what was found of it, by name: observed values, parameters, log
        density.
    causes : sequence of str
        What draws random numbers in the model, as far as it is known.

    Raises
    ------
    ModelCheckError
        They differ; the message names sites and what of them.
    """
    different = {}
    for site in {**first, **again}:
        one, two = first.get(site, {}), again.get(site, {})
        names = [name for name in {**one, **two} if not _same(one.get(name), two.get(name))]
        if names:
            different[site] = names
    if not different:
        return
    shown = "; ".join(f"site '{site}': {', '.join(names)}" for site, names in different.items())
    cause = f" Random numbers come from {', '.join(causes)}." if causes else ""
    raise ModelCheckError(
        "The model gives other results when it is run again with the same latent sites and the "
        f"same rows: {shown}.{cause} Expected a model whose log density depends on its latent "
        "sites and its arguments alone. Draw random numbers before, and pass them as arguments, "
        "or make them latent sites; put networks with dropout into evaluation mode (.eval()); and "
        "let nothing that the model changes come into its next run."
    )


def _same(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    one, two = np.asarray(one), np.asarray(two)
    if one.shape != two.shape:
        return False
    if one.dtype.kind not in "fc" or two.dtype.kind not in "fc":
        return bool(np.array_equal(one, two))
    finite = np.abs(one[np.isfinite(one)])
    # Relative to the largest entry: small ones may be differences of large ones.
    tolerance = ROUNDING * float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(one, two, rtol=0.0, atol=tolerance, equal_nan=True))

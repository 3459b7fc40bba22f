"""A batch of a loader as the model's arguments, and its form, which must not change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ppl_ext.arguments import check_same
from ppl_ext.errors import ArgumentError

#: Bytes of each array that a digest looks at.
_LOOKED_AT = 2**16
#: An odd number whose bits are as good as random (that of splitmix64), which mixes words.
_MIXED = np.uint64(0xBF58476D1CE4E5B9)


class Batch(NamedTuple):
    """The model's arguments with the rows of one batch: positional ones, and those by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def rows(self) -> int:
        """Rows of the batch, the leading axis of its arrays."""
        for _, leaf in self.leaves():
            if len(leaf.shape):
                return int(leaf.shape[0])
        raise AssertionError("a batch has rows")

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(int(leaf.nbytes) for _, leaf in self.leaves())

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Its arrays by name; what is None has none."""
        for number, each in enumerate(self.args):
            yield from _leaves(f"number {number}", each)
        for name, each in self.kwargs.items():
            yield from _leaves(f"'{name}'", each)

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """The same batch with a function of each array in its place."""
        args, kwargs = _mapped(function, self.args), _mapped(function, self.kwargs)
        return Batch(tuple(args), dict(kwargs))

    def digest(self) -> str:
        """By which a batch is known again: its shapes, and the first numbers of its arrays."""
        digest = hashlib.blake2b(digest_size=16)
        for name, leaf in self.leaves():
            digest.update(f"{name} {tuple(leaf.shape)} {_kind(leaf)}".encode())
            each = leaf.detach().cpu() if hasattr(leaf, "detach") else leaf
            # The first rows alone, since every file of a run has a digest. No number of a loader
            # takes more than 8 bytes.
            width = max(1, int(np.prod(each.shape[1:]))) if len(each.shape) else 1
            part = each[: max(1, _LOOKED_AT // (8 * width))] if len(each.shape) else each
            try:
                digest.update(np.ascontiguousarray(part).tobytes())
            except TypeError:  # of a kind that NumPy does not have
                digest.update(str(part).encode())
        return digest.hexdigest()

    def mark(self) -> int:
        """A number by which rows are known again in any order: that of several is their sum.

        Each row is hashed by itself, by a sum of its words times random numbers, which is mixed.
        Arrays of objects are not looked at.
        """
        generator = np.random.default_rng(0)
        total: Any = np.zeros(self.rows, np.uint64)
        for _, leaf in self.leaves():
            if not len(leaf.shape):
                continue
            # Names of arrays are not hashed, their order is: each array multiplies what was before
            # it.
            words = _words(leaf)
            factors = generator.integers(2**63, size=words.shape[1], dtype=np.uint64)
            # Odd, so that no bit is lost.
            total = total * _MIXED + words @ (factors * np.uint64(2) + np.uint64(1))
        # Rows are added up below. A hash that is linear in the words would have the same sum after
        # numbers of two rows were exchanged; this mixing is not linear.
        total ^= total >> np.uint64(31)
        total *= _MIXED
        return int((total ^ (total >> np.uint64(29))).sum())

    def form(self) -> dict[str, str]:
        """Kind and shape of each array without its rows, in words."""
        return {
            name: f"{_kind(leaf)} {('rows', *map(int, leaf.shape[1:]))}"
            if len(leaf.shape)
            else f"{_kind(leaf)} without axes"
            for name, leaf in self.leaves()
        }

    def part(self, start: int, stop: int) -> Batch:
        """Some rows of it."""
        return self.map(lambda leaf: leaf[start:stop] if len(leaf.shape) else leaf)

    def of_rows(self, rows: np.ndarray) -> Batch:
        """A batch of these rows of it, by their numbers."""
        return self.map(lambda leaf: leaf[rows] if len(leaf.shape) else leaf)

    def of_size(self, rows: int) -> Batch:
        """A batch of so many rows of this one, some of them again where they are too few."""
        own = self.rows
        if own == rows:
            return self
        return self.of_rows(np.arange(rows) % own)


def as_batch(given: Any) -> Batch:
    """What a loader gives, as the model's arguments.

    Raises
    ------
    ArgumentError
        It is no tuple, list or mapping of arrays with one row for each row of the data.
    """
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        batch = Batch((), dict(given))
    elif isinstance(given, tuple | list):
        batch = Batch(tuple(given), {})
    else:
        raise ArgumentError(
            "Expected each batch to be a tuple of the model's arguments, such as (x, y), or a "
            f"mapping from their names, found {type(given).__name__}. Write (x,) for a single one."
        )
    axes = set()
    for name, leaf in batch.leaves():
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ArgumentError(
                f"Expected arrays or tensors in a batch, found {type(leaf).__name__} in argument "
                f"{name}. Convert it in the loader (with_format('torch') or with_format('numpy') "
                "of Hugging Face datasets), and give what holds no rows by keyword."
            )
        if len(leaf.shape):
            axes.add(int(leaf.shape[0]))
    if len(axes) != 1 or axes == {0}:
        raise ArgumentError(
            "Expected batches of arrays with one row for each row of the data, found leading axes "
            f"{sorted(axes)} in one. Give arguments that hold no rows by keyword."
        )
    return batch


def check_placed(given: Batch, placed: Batch) -> None:
    """See that the arrays of a loader's first batch are the same as a package's.

    Raises
    ------
    ArgumentError
        One was masked, or was rounded by more than an answer may depend on unseen.
    """
    for (name, before), (_, after) in zip(given.leaves(), placed.leaves(), strict=True):
        check_same(name.strip("'"), before, after)


def check_form(batch: Batch, form: Mapping[str, str], number: int, epoch: int) -> None:
    """See that a batch has the form of those before it.

    Raises
    ------
    ArgumentError
        It has not.
    """
    found = batch.form()
    if found == form:
        return
    changed = [name for name in {**form, **found} if form.get(name) != found.get(name)]
    was, now = ({name: each.get(name) for name in changed} for each in (form, found))
    raise ArgumentError(
        f"Expected batches of one form, found that batch {number} of epoch {epoch} has {now} where "
        f"those before it had {was}. Make the loader give arrays of the same names, types and "
        "axes; the number of rows alone may differ, in the last one."
    )


def _words(leaf: Any) -> np.ndarray:
    """Rows of an array as whole numbers of 64 bits (rows, K)."""
    if hasattr(leaf, "detach"):
        own = leaf.detach().cpu()
        # NumPy has no bfloat16, which float32 holds.
        array = (own.float() if _kind(leaf) == "bfloat16" else own).numpy()
    else:
        array = np.asarray(leaf)
    if array.dtype == object:
        return np.zeros((len(array), 1), np.uint64)
    flat = np.ascontiguousarray(array.reshape(len(array), -1))
    # The widest words that divide a row: fewer products, and no padding that would be a copy.
    size = next(each for each in (8, 4, 2, 1) if flat.shape[1] * flat.itemsize % each == 0)
    return flat.view(np.uint8).view(f"u{size}").astype(np.uint64, copy=False)


def _kind(leaf: Any) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}[{key!r}]", each)
    elif isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from _leaves(f"{name}[{number}]", each)
    elif value is not None:
        yield name, value


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _mapped(function, each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_mapped(function, each) for each in value)
    return None if value is None else function(value)

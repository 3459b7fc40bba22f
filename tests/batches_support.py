"""Loaders of many kinds, and a small regression whose rows come from them or by index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

ROWS, BATCH = 48, 8
X = np.random.default_rng(5).normal(size=(ROWS, 2))
# Sorted, so that a batch is far from the average of all.
Y = np.sort(X @ np.array([1.0, -2.0]) + np.random.default_rng(6).normal(size=ROWS))


class Again:
    """Batches in the order of the rows, again and again.

    Parameters
    ----------
    rows, size : int
    named : bool
        Give mappings in place of tuples.
    x, y : array
    """

    def __init__(
        self, rows: int = ROWS, size: int = BATCH, named: bool = False, x: Any = X, y: Any = Y
    ) -> None:
        self.rows, self.size, self.named, self.x, self.y = rows, size, named, x, y

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.rows, self.size):
            rows = slice(start, min(start + self.size, self.rows))
            x, y = self.x[rows], self.y[rows]
            yield {"y": y, "x": x} if self.named else (x, y)


class ByEpoch(Again):
    """An order of its own for every epoch, by its number, as DistributedSampler has."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(self.epoch).permutation(self.rows)
        for start in range(0, self.rows, self.size):
            rows = order[start : start + self.size]
            yield self.x[rows], self.y[rows]


class WithState(Again):
    """A random order with a state of its own, by the protocol of torchdata and ``datasets``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.generator, self.given = np.random.default_rng(3), 0
        self._before: Any = None
        self._skip = 0

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._before, "given": self.given, b"kind": (1, 2.5, None)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        self._skip = state["given"]

    def __iter__(self) -> Iterator[Any]:
        self._before = self.generator.bit_generator.state
        order = self.generator.permutation(self.rows)
        self.given, self._skip = self._skip, 0
        for start in range(self.given * self.size, self.rows, self.size):
            self.given += 1
            rows = order[start : start + self.size]
            yield self.x[rows], self.y[rows]


class WithStateByEpoch(ByEpoch):
    """A state that says the place alone: the order is that of the number of the epoch."""

    _skip = given = 0

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._skip = state["given"]

    def __iter__(self) -> Iterator[Any]:
        self.given, self._skip = self._skip, 0
        for batch in list(super().__iter__())[self.given :]:
            self.given += 1
            yield batch


class Iterated(Again):
    """Iterators with a state, by the protocol of grain."""

    def __iter__(self) -> Any:
        return _Iterator(self)


class _Iterator:
    def __init__(self, loader: Iterated) -> None:
        self.loader, self.number = loader, 0

    def get_state(self) -> bytes:
        return b"\x00" + bytes([self.number])

    def set_state(self, state: bytes) -> None:
        self.number = state[1]

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        loader, start = self.loader, self.number * self.loader.size
        if start >= loader.rows:
            raise StopIteration
        self.number += 1
        rows = slice(start, min(start + loader.size, loader.rows))
        return loader.x[rows], loader.y[rows]


def of_torch(seed: int | None = 1, size: int = BATCH, **options: Any) -> Any:
    """torch's DataLoader, which shuffles by a generator unless ``seed`` is None."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    generator = None if seed is None else torch.Generator().manual_seed(seed)
    dtype = torch.get_default_dtype()
    data = TensorDataset(torch.as_tensor(X, dtype=dtype), torch.as_tensor(Y, dtype=dtype))
    return DataLoader(data, size, **{"shuffle": True, "generator": generator, **options})


def of_torchdata(seed: int | None = 1) -> Any:
    """torchdata's StatefulDataLoader, shuffled."""
    import torch
    from torch.utils.data import TensorDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    generator = None if seed is None else torch.Generator().manual_seed(seed)
    dtype = torch.get_default_dtype()
    data = TensorDataset(torch.as_tensor(X, dtype=dtype), torch.as_tensor(Y, dtype=dtype))
    return StatefulDataLoader(data, 10, shuffle=True, generator=generator)


def of_grain() -> Any:
    """grain's dataset, shuffled and batched."""
    import grain

    rows = grain.MapDataset.source([(x, y) for x, y in zip(X, Y, strict=True)])
    return rows.seed(4).shuffle().batch(10).to_iter_dataset()


#: Loaders of which a run can go on anywhere, with and without a ragged last batch.
RESUMED: dict[str, Any] = {
    "in the order of the rows": Again,
    "with a ragged last batch": lambda: Again(size=10),
    "a list": lambda: list(Again()),
    "by the epoch": lambda: ByEpoch(size=10),
    "with a state": lambda: WithState(size=10),
    "with a state, by the epoch": lambda: WithStateByEpoch(size=10),
    "iterators with a state": lambda: Iterated(size=10),
    "DataLoader": lambda: of_torch(size=10),
    "StatefulDataLoader": of_torchdata,
    "grain": of_grain,
}


def by_argument(backend: Any, rows: int = ROWS) -> Any:
    """A linear regression whose batches are its arguments."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", rows, subsample_size=len(x)):
            mean = host.deterministic("mean", x @ w)
            host.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


def by_index(backend: Any) -> Any:
    """The same, which looks its rows up."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", len(y), subsample_size=BATCH) as rows:
            host.sample("y", dist.Normal(x[rows] @ w, 1.0), obs=y[rows])

    return model

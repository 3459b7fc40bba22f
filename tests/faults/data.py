"""Data that are others than in the last run, by their rows, by their numbers or in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.engine_support import Verbs
from tests.faults.programs import mean
from tests.faults.table import Trial, fault
from tests.stein_support import optimizer

GROUP = "Data that change between runs"
FOLLOWS = "goes on from the particles, on the new data"
ZEROS, FIVES = np.zeros(40), np.full(40, 5.0)
#: Mean of the posterior of 40 zeros and 400 fives.
TOGETHER = 5.0 * 400 / (440 + 0.01)


def _quick(trial: Trial, model: Callable[..., Any], **options: Any) -> Any:
    """SVGD that is at the mode in a hundred steps."""
    return trial.svgd(model, optim=optimizer(trial.backend, "adam", 0.3), **options)


def _mean(trial: Trial, engine: Any, state: Any) -> float:
    return float(Verbs(trial.backend, ()).samples(engine, state)["mu"].mean())


def _then(
    trial: Trial, engine: Any, first: Any, second: Any, right: float, within: float = 0.3
) -> tuple[Any, Any]:
    """Run on one set of data, then go on with another, and see where that leads."""
    state, _ = trial.run(engine, 5, *first)
    state, _ = trial.run(engine, 150, *second, state=state)
    assert abs(_mean(trial, engine, state) - right) < within
    return engine, state


@fault(GROUP, "more rows in a plate", FOLLOWS)
def _more_rows(trial: Trial) -> None:
    array = trial.backend.array
    both = array(np.concatenate([ZEROS, np.full(400, 5.0)]))
    engine, _ = _then(trial, _quick(trial, mean(trial.backend)), [array(ZEROS)], [both], TOGETHER)
    assert len(engine.data.args[0]) == 440


@fault(GROUP, "more rows, then fewer, in a plate with minibatches", FOLLOWS)
def _other_minibatches(trial: Trial) -> None:
    array = trial.backend.array
    both = array(np.concatenate([ZEROS, np.full(400, 5.0)]))
    engine = _quick(trial, mean(trial.backend, 10))
    _, state = _then(trial, engine, [array(ZEROS)], [both], TOGETHER, 2.0)
    assert engine.target.plates["rows"].size == 440
    state, _ = trial.run(engine, 150, array(FIVES[:20] - 10.0), state=state)
    assert engine.target.plates["rows"].size == 20
    # Adam remembers how long gradients were: it is on its way to -5.
    assert _mean(trial, engine, state) < 2.0
    # One step on others, without a run.
    verbs = Verbs(trial.backend, (array(np.zeros(30)),))
    verbs.step(engine, state)
    assert engine.target.plates["rows"].size == 30


@fault(GROUP, "a guide on more rows", "goes on from the guide, on the new data")
def _guide(trial: Trial) -> None:
    array = trial.backend.array
    model = mean(trial.backend, 10)
    guide = trial.backend.autoguide.AutoDiagonalNormal(model)
    engine = trial.engine("ProximalScoreVI", model, guide)
    state, _ = trial.run(engine, 20, array(FIVES))
    before = _mean(trial, engine, state)
    state, _ = trial.run(engine, 2, array(np.full(60, 5.0)), state=state)
    assert engine.target.plates["rows"].size == 60
    assert abs(_mean(trial, engine, state) - before) < 1.5


@fault(
    GROUP,
    "rows under which a mixture in closed form is a hundred widths away",
    "goes on from the guide, on the new data",
)
def _mixture(trial: Trial) -> None:
    array = trial.backend.array
    model = mean(trial.backend)
    guide = trial.public.AutoGaussianMixture(model, 2)
    engine = trial.engine("ProximalScoreVI", model, guide)
    state, _ = trial.run(engine, 100, array(ZEROS))
    both = array(np.concatenate([ZEROS, np.full(400, 5.0)]))
    state, _ = trial.run(engine, 900, both, state=state)
    # The posterior's standard deviation is 0.048.
    assert abs(_mean(trial, engine, state) - TOGETHER) < 0.03


@fault(GROUP, "other numbers under the anchors of `SVGDVR`", "as before; the anchors are made anew")
def _anchors(trial: Trial) -> None:
    array = trial.backend.array
    optim = optimizer(trial.backend, "adam", 0.3)
    engine = trial.engine(
        "SVGDVR", mean(trial.backend, 10), optim, num_particles=3, anchor_every=500
    )
    _, state = _then(trial, engine, [array(ZEROS)], [array(FIVES)], 5.0)
    verbs = Verbs(trial.backend, (array(-FIVES),))
    for _ in range(150):
        state, _ = verbs.step(engine, state)
    assert abs(_mean(trial, engine, state) + 5.0) < 0.3


@fault(GROUP, "other numbers, then other rows, under the table of `SAGA`", "as before, for tables")
def _table(trial: Trial) -> None:
    array = trial.backend.array
    engine = _quick(trial, mean(trial.backend, 10), estimator=trial.public.SAGA())
    _, state = _then(trial, engine, [array(ZEROS)], [array(FIVES)], 5.0)
    state, _ = trial.run(engine, 150, array(np.full(60, -5.0)), state=state)
    assert abs(_mean(trial, engine, state) + 5.0) < 0.3


@fault(GROUP, "a saved state with anchors, loaded with other data")
def _saved_anchors(trial: Trial) -> None:
    backend, path = trial.backend, trial.folder / "state"
    estimator = trial.public.SVRG(anchor_every=50)
    before, after = (Verbs(backend, (backend.array(each),)) for each in (ZEROS, FIVES))

    def made() -> Any:
        return _quick(trial, mean(backend, 10), estimator=estimator)

    engine = made()
    state, _ = before.run(engine, 3)
    before.save(engine, state, path)
    other = made()
    for _ in range(2):
        with trial.refused("belongs to other data: SVRG keeps scores.*Load it with the arguments"):
            after.load(other, path)
    # As it says.
    state = before.load(other, path)
    state, _ = after.run(other, 150, state)
    assert abs(_mean(trial, other, state) - 5.0) < 0.3


@fault(GROUP, "a saved state with anchors, of a model that closes over other data now")
def _saved_anchors_of_constants(trial: Trial) -> None:
    backend, path = trial.backend, trial.folder / "state"
    held, program = {"y": backend.array(ZEROS)}, mean(backend, 10)

    def made() -> Any:
        return _quick(
            trial, lambda: program(held["y"]), estimator=trial.public.SVRG(anchor_every=50)
        )

    verbs, engine = Verbs(backend, ()), made()
    state, _ = verbs.run(engine, 3)
    verbs.save(engine, state, path)
    held["y"] = backend.array(FIVES)
    other = made()
    for _ in range(2):
        with trial.refused("belongs to other data: SVRG keeps scores"):
            verbs.load(other, path)
    held["y"] = backend.array(ZEROS)
    other = made()
    assert verbs.taken(other, verbs.load(other, path)) == 3


@fault(GROUP, "other data after steps inside `jax.jit`, with anchors", FOLLOWS, pyro=None)
def _after_jit(trial: Trial) -> None:
    import jax

    array = trial.backend.array
    engine = _quick(trial, mean(trial.backend, 10), estimator=trial.public.SVRG(anchor_every=10**6))
    key = jax.random.key(0)
    engine.init(key, array(ZEROS))
    state = jax.jit(engine.init)(key, array(ZEROS))
    state, _ = jax.jit(engine.update)(state, array(ZEROS))
    state, _ = trial.run(engine, 150, array(FIVES), state=state)
    assert abs(_mean(trial, engine, state) - 5.0) < 0.3


@fault(GROUP, "a saved order of minibatches, loaded with more rows", FOLLOWS)
def _saved_order(trial: Trial) -> None:
    backend, path = trial.backend, trial.folder / "state"
    before, after = (Verbs(backend, (backend.array(each),)) for each in (ZEROS, np.full(440, 5.0)))
    engine = _quick(trial, mean(backend, 10))
    state, _ = before.run(engine, 3)
    before.save(engine, state, path)
    other = _quick(trial, mean(backend, 10))
    state = after.load(other, path)
    assert after.taken(other, state) == 3
    state, _ = after.run(other, 150, state)
    assert abs(_mean(trial, other, state) - 5.0) < 0.3


@fault(GROUP, "latent sites of rows, and other rows")
def _local_latents(trial: Trial) -> None:
    host, dist, array = trial.backend.host, trial.backend.dist, trial.backend.array

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            each = host.sample("each", dist.Normal(mu, 1.0))
            host.sample("y", dist.Normal(each, 1.0), obs=y)

    engine = _quick(trial, model)
    state, _ = trial.run(engine, 2, array(ZEROS))
    verbs = Verbs(trial.backend, (array(ZEROS),))
    before = verbs.bits(engine, state)
    for _ in range(2):
        with trial.refused(r"\['each'\] are others.*make a new engine"):
            trial.run(engine, 2, array(np.zeros(50)), state=state)
    assert verbs.bits(engine, state) == before
    state, _ = trial.run(engine, 2, array(FIVES), state=state)
    assert verbs.taken(engine, state) == 4


class _Box:
    """An object that nobody but the model can look into."""

    def __init__(self, y: np.ndarray) -> None:
        self.y = y


def _in_place(make: Callable[[np.ndarray], Any], read: Callable[[Any], Any], trial: Trial) -> None:
    """Change the numbers in an object that is the model's argument."""
    model = mean(trial.backend)
    # JAX does not see what is written into arrays of other types than its own.
    y = np.zeros(40, np.float32)
    held = make(y)

    def of_object(held: Any) -> None:
        model(trial.backend.array(read(held)))

    engine = _quick(trial, of_object)
    state, _ = trial.run(engine, 5, held)
    held, y = _changed(held, y)
    state, _ = trial.run(engine, 150, held, state=state)
    assert abs(_mean(trial, engine, state) - 5.0) < 0.3


def _changed(held: Any, y: np.ndarray) -> tuple[Any, np.ndarray]:
    if isinstance(held, list):
        held[0] = FIVES.copy()
    elif hasattr(held, "columns"):
        held.loc[:, "y"] = 5.0
    else:
        y[:] = FIVES
    return held, y


@fault(GROUP, "an object of the user's own, changed in place", FOLLOWS)
def _object(trial: Trial) -> None:
    _in_place(_Box, lambda held: held.y, trial)


@fault(GROUP, "a NumPy array, changed in place", FOLLOWS)
def _numpy(trial: Trial) -> None:
    _in_place(lambda y: y, lambda held: held, trial)


@fault(GROUP, "a list of arrays, changed in place", FOLLOWS)
def _list(trial: Trial) -> None:
    _in_place(lambda y: [y], lambda held: held[0], trial)


@fault(GROUP, "a `DataFrame`, changed in place", FOLLOWS)
def _data_frame(trial: Trial) -> None:
    import pandas

    _in_place(lambda y: pandas.DataFrame({"y": y}), lambda held: held["y"].to_numpy().copy(), trial)


@fault(GROUP, "an object changed in place between steps", FOLLOWS)
def _between_steps(trial: Trial) -> None:
    model, box = mean(trial.backend), _Box(ZEROS.copy())

    def of_object(held: Any) -> None:
        model(trial.backend.array(held.y))

    engine = _quick(trial, of_object)
    verbs = Verbs(trial.backend, (box,))
    state = verbs.start(engine)
    losses = []
    for value in (0.0, 0.0, 100.0):
        box.y = np.full(40, value)
        state, loss = verbs.step(engine, state)
        losses.append(float(loss))
    assert losses[2] > 100.0 * losses[1]


@fault(GROUP, "an array that the model closes over, rebound before a run", FOLLOWS)
def _closed_over(trial: Trial) -> None:
    model, array = mean(trial.backend), trial.backend.array
    held = array(ZEROS)

    def closed() -> None:
        model(held)

    engine = _quick(trial, closed)
    state, _ = trial.run(engine, 5)
    held = array(FIVES)
    state, _ = trial.run(engine, 150, state=state)
    assert abs(_mean(trial, engine, state) - 5.0) < 0.3
    held = array(-FIVES)
    # A fresh run in NumPyro; Pyro's engines have no other than to go on.
    state, _ = trial.run(engine, 200)
    assert abs(_mean(trial, engine, state) + 5.0) < 0.3


@fault(GROUP, "a number that the model closes over, rebound before a run", FOLLOWS)
def _number(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    location = 0.0

    def model() -> None:
        host.sample("mu", dist.Normal(location, 0.1))

    engine = _quick(trial, model)
    state, _ = trial.run(engine, 5)
    location = 5.0
    state, _ = trial.run(engine, 150, state=state)
    assert abs(_mean(trial, engine, state) - 5.0) < 0.3

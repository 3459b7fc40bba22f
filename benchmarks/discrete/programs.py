"""Programs with discrete latent sites: the hosts' example programs, small, written once for both.

Data come from fixed NumPy seeds. A sequence of steps is a loop under ``pyro.markov`` in Pyro, with
the step's number in the sites' names, and ``numpyro.contrib.control_flow.scan`` in NumPyro.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

RNG = np.random.default_rng(0)
#: Values of a discrete site in most programs.
K = 3
SERIES = np.concatenate([RNG.normal(-3.0, 1.0, 5), RNG.normal(2.0, 1.0, 4)])
TWO_SERIES = RNG.normal(0.0, 2.0, (6, 2))
VOTES = RNG.integers(0, K, (6, 4))
COUNTS = RNG.poisson(2.0, 8)
#: The same with zeros, some of which stand for nothing being counted.
MANY_ZEROS = np.where(np.arange(8) % 3 == 0, 0, COUNTS)
ANSWERS = RNG.integers(0, 2, (7, 4))
COVARIATE = RNG.normal(0.0, 1.0, 9)
WORDS = RNG.integers(0, 5, (4, 6))
CAPTURES = np.array([[1, 0, 1, 0], [0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]])
#: Whether an animal has been seen before, occasions by animals.
SEEN = np.concatenate([np.zeros((len(CAPTURES), 1), bool), np.cumsum(CAPTURES, 1)[:, :-1] > 0], 1).T


#: Site to draws, first axis = draws.
Draws = dict[str, np.ndarray]


def in_order(by: str, halves: tuple[str, ...] = (), **axes: tuple[int, ...]) -> Any:
    """Puts labels in order by a site, draw by draw.

    ``axes`` tells which axes of a site's values, counted without that of draws, the labels number;
    ``halves`` are probabilities p of the second of two labels.
    """

    def ordered(draws: Draws) -> Draws:
        key = np.moveaxis(draws[by], axes[by][0] + 1, 1)
        if key.ndim > 2:
            key = np.square(key).mean(tuple(range(2, key.ndim)))
        order = key.argsort(1)
        found = dict(draws)
        for site in axes:
            for axis in axes[site]:
                shape = [1] * found[site].ndim
                shape[0], shape[axis + 1] = order.shape
                found[site] = np.take_along_axis(found[site], order.reshape(shape), axis + 1)
        for site in halves:
            found[site] = np.where(order[:, 0] == 0, found[site], 1.0 - found[site])
        return found

    return ordered


@dataclass(frozen=True)
class Program:
    """A program and its data.

    Parameters
    ----------
    build : callable
        Makes the model of a backend.
    arrays : tuple of array
        Its arguments.
    options : dict
        Keyword arguments with which it subsamples.
    plates : dict of str to int
        Subsampled plates and their sizes.
    label_free : callable, optional
        Draws to what of them does not depend on labels; None where labels have a meaning.
    assigned : str
        The discrete site, without the numbers of steps.
    seen : array of bool, optional
        Where that site is not masked; everywhere by default.
    steps : callable, optional
        Of a chain: from draws to the log potentials (S, R, T, K, K) of R series, by the state
        before and the present one, the state before the first step, and by state the value of
        the discrete site.
    """

    build: Callable[[Any], Callable[..., None]]
    arrays: tuple[np.ndarray, ...]
    options: dict[str, Any] = field(default_factory=dict)
    plates: dict[str, int] = field(default_factory=dict)
    label_free: Callable[[Draws], Draws] | None = None
    assigned: str = "z"
    seen: np.ndarray | None = None
    steps: Callable[[Draws], tuple[np.ndarray, int, np.ndarray]] | None = None


class Written:
    """A host's words for programs that are written once."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.is_pyro = backend.is_pyro
        self.sample, self.plate, self.dist = backend.host.sample, backend.host.plate, backend.dist
        self.handlers, self.xp = backend.handlers, backend.xp

    def full(self, shape: Any, value: float = 1.0) -> Any:
        """An array of one value."""
        return self.backend.array(np.full(shape, value))

    def look_up(self, array: Any) -> Any:
        """An array whose axes are indexed by discrete sites and plates together."""
        if self.is_pyro:
            from pyro.ops.indexing import Vindex
        else:
            from numpyro.ops.indexing import Vindex
        return Vindex(array)

    def arange(self, size: int) -> Any:
        """Row numbers."""
        return self.backend.array(np.arange(size))

    def plate_of_steps(self, name: str, size: int) -> Callable[[], Any]:
        """Opens a plate in every step; Pyro's is made once."""
        if self.is_pyro:
            plate = self.plate(name, size, dim=-1)
            return lambda: plate
        return lambda: self.plate(name, size, dim=-1)

    def number(self, value: Any) -> Any:
        """A discrete value as a real number."""
        return 1.0 * value

    def chain(
        self, step: Callable[[Callable[[str], str], Any, Any], Any], state: Any, xs: Any
    ) -> None:
        """Steps that depend on the one before, each with its row of ``xs``."""
        if self.is_pyro:
            for t in self.backend.host.markov(range(len(xs))):
                state = step(partial(_numbered, t), state, xs[t])
            return
        from numpyro.contrib.control_flow import scan

        scan(lambda state, x: (step(lambda site: site, state, x), None), state, xs)


def _numbered(t: int, site: str) -> str:
    return f"{site}_{t}"


def program(
    *arrays: np.ndarray, options: Any = None, plates: Any = None, **more: Any
) -> Callable[[Callable[..., None]], Program]:
    """A program of a function of the host's words and the arguments."""

    def make(body: Callable[..., None]) -> Program:
        def build(backend: Any) -> Callable[..., None]:
            written = Written(backend)

            def model(*args: Any, **kwargs: Any) -> None:
                body(written, *args, **kwargs)

            return model

        return Program(build, arrays, options or {}, plates or {}, **more)

    return make


#: Labels of components, and of the states of a chain.
COMPONENTS = in_order("location", location=(0,), scale=(0,), weights=(0,))
STATES = in_order("location", location=(0,), transitions=(0, 1))


def _emissions(draws: Draws) -> Draws:
    """What the network gives for each state: its hidden units have labels and signs as well."""
    location = np.tanh(draws["first"]) @ draws["second"]
    named = {"location": location, "transitions": draws["transitions"]}
    return in_order("location", location=(0,), transitions=(0, 1))(named)


def _layers(draws: Draws) -> Draws:
    slow = in_order("location", location=(0,), slow=(0, 1))(draws)
    return in_order("location", location=(1,), fast=(0, 1))(slow)


def _of_chain(moves: np.ndarray, location: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Log potentials of a series of Normals, from moves (S, K, K) and locations (S, K, E)."""
    residual = np.reshape(y, (len(y), 1, -1)) - location[:, None]
    emitted = -0.5 * np.square(residual).sum(-1)
    return (np.log(moves)[:, None] + emitted[:, :, None])[:, None]


def _hidden_markov_steps(draws: Draws) -> Any:
    potentials = _of_chain(draws["transitions"], draws["location"][..., None], SERIES)
    return potentials, 0, np.arange(K)


def _two_layers_steps(draws: Draws) -> Any:
    moves = np.einsum("sab,scd->sacbd", draws["slow"], draws["fast"]).reshape(-1, 4, 4)
    potentials = _of_chain(moves, draws["location"].reshape(-1, 4, 1), SERIES)
    return potentials, 0, np.array([0, 0, 1, 1])


def _neural_emission_steps(draws: Draws) -> Any:
    location = np.tanh(draws["first"]) @ draws["second"]
    return _of_chain(draws["transitions"], location, TWO_SERIES), 0, np.arange(K)


def _capture_recapture_steps(draws: Draws) -> Any:
    survival, capture = (draws[name][:, None, None] for name in ("survival", "capture"))
    potentials = np.zeros((len(survival), *SEEN.T.shape, 2, 2))
    found = CAPTURES.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        alive = np.log(np.where(found == 1.0, capture, 1.0 - capture))
        dead = np.where(found == 1.0, -np.inf, 0.0)
        potentials[..., 0, 0] = dead
        potentials[..., 0, 1] = -np.inf
        potentials[..., 1, 0] = np.log1p(-survival) + dead
        potentials[..., 1, 1] = np.log(survival) + alive
    # What is masked does not count.
    return np.where(SEEN.T[..., None, None], potentials, 0.0), 1, np.arange(2)


def _components(h: Written, number: int = K) -> tuple[Any, Any]:
    with h.plate("components", number):
        location = h.sample("location", h.dist.Normal(0.0, 5.0))
        scale = h.sample("scale", h.dist.LogNormal(0.0, 1.0))
    return location, scale


@program(SERIES, options={"subsample_size": 4}, plates={"rows": 9}, label_free=COMPONENTS)
def mixture(h: Written, y: Any, subsample_size: int | None = None, components: int = K) -> None:
    """A mixture of Normals, by minibatches where told so."""
    weights = h.sample("weights", h.dist.Dirichlet(h.full(components)))
    location, scale = _components(h, components)
    with h.plate("rows", len(y), subsample_size=subsample_size) as rows:
        z = h.sample("z", h.dist.Categorical(weights))
        h.sample("y", h.dist.Normal(location[z], scale[z]), obs=y[rows])


def large_mixture(rows: int, components: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Rows of a mixture, others that are held out, and the log density of these at the truth."""
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.full(components, 5.0))
    location, scale = 2.0 * np.arange(components) - components, rng.uniform(0.3, 0.8, components)
    z = rng.choice(components, rows + 10_000, p=weights)
    y = rng.normal(location[z], scale[z])
    held_out = y[rows:, None]
    residual = (held_out - location) / scale
    terms = np.log(weights / scale) - 0.5 * residual**2 - 0.5 * np.log(2.0 * np.pi)
    return y[:rows], y[rows:], float(np.logaddexp.reduce(terms, -1).mean())


@program(SERIES, label_free=COMPONENTS)
def scaled_mixture(h: Written, y: Any) -> None:
    """The same with every row's density to the power of a half."""
    weights = h.sample("weights", h.dist.Dirichlet(h.full(K)))
    location, scale = _components(h)
    with h.plate("rows", len(y)), h.handlers.scale(scale=0.5):
        z = h.sample("z", h.dist.Categorical(weights))
        h.sample("y", h.dist.Normal(location[z], scale[z]), obs=y)


@program(SERIES, label_free=COMPONENTS, seen=SERIES > -3.0)
def masked_mixture(h: Written, y: Any) -> None:
    """The same with some rows hidden."""
    weights = h.sample("weights", h.dist.Dirichlet(h.full(K)))
    location, scale = _components(h)
    with h.plate("rows", len(y)), h.handlers.mask(mask=y > -3.0):
        z = h.sample("z", h.dist.Categorical(weights))
        h.sample("y", h.dist.Normal(location[z], scale[z]), obs=y)


def _transitions(h: Written, site: str = "transitions", size: int = K) -> Any:
    return h.sample(site, h.dist.Dirichlet(h.full((size, size))).to_event(1))


@program(SERIES, label_free=STATES, steps=_hidden_markov_steps)
def hidden_markov(h: Written, y: Any) -> None:
    """A hidden Markov chain."""
    transitions = _transitions(h)
    with h.plate("states", K):
        location = h.sample("location", h.dist.Normal(0.0, 5.0))

    def step(name: Any, z: Any, y: Any) -> Any:
        z = h.sample(name("z"), h.dist.Categorical(transitions[z]))
        h.sample(name("y"), h.dist.Normal(location[z], 1.0), obs=y)
        return z

    h.chain(step, 0, y)


@program(SERIES, label_free=_layers, assigned="w", steps=_two_layers_steps)
def two_layers(h: Written, y: Any) -> None:
    """A factorial one: two chains, one series."""
    slow, fast = _transitions(h, "slow", 2), _transitions(h, "fast", 2)
    location = h.sample("location", h.dist.Normal(h.full((2, 2), 0.0), 5.0).to_event(2))

    def step(name: Any, state: Any, y: Any) -> Any:
        w = h.sample(name("w"), h.dist.Categorical(slow[state[0]]))
        x = h.sample(name("x"), h.dist.Categorical(fast[state[1]]))
        h.sample(name("y"), h.dist.Normal(h.look_up(location)[w, x], 1.0), obs=y)
        return w, x

    h.chain(step, (0, 0), y)


def series(steps: int) -> np.ndarray:
    """Data of a chain that stays where it is for a while."""
    rng = np.random.default_rng(3)
    return rng.normal(np.repeat(rng.normal(0.0, 3.0, steps // 5 + 1), 5)[:steps], 1.0)


def chain(backend: Any) -> Any:
    """A hidden Markov chain as a loop, or a scan, whose parameters are unconstrained."""
    h = Written(backend)

    def model(y: Any) -> None:
        logits = h.sample("logits", h.dist.Normal(h.full((K, K), 0.0), 1.0).to_event(2))
        location = h.sample("location", h.dist.Normal(h.full(K, 0.0), 5.0).to_event(1))

        def step(name: Any, z: Any, y: Any) -> Any:
            z = h.sample(name("z"), h.dist.Categorical(logits=logits[z]))
            h.sample(name("y"), h.dist.Normal(location[z], 1.0), obs=y)
            return z

        h.chain(step, 0, y)

    return model


@program(TWO_SERIES, label_free=_emissions, steps=_neural_emission_steps)
def neural_emission(h: Written, y: Any) -> None:
    """A hidden Markov chain whose emissions come from a small network."""
    transitions = _transitions(h)
    first = h.sample("first", h.dist.Normal(h.full((K, 3), 0.0), 1.0).to_event(2))
    second = h.sample("second", h.dist.Normal(h.full((3, 2), 0.0), 1.0).to_event(2))
    location = h.xp.tanh(first) @ second

    def step(name: Any, z: Any, y: Any) -> Any:
        z = h.sample(name("z"), h.dist.Categorical(transitions[z]))
        h.sample(name("y"), h.dist.Normal(location[z], 1.0).to_event(1), obs=y)
        return z

    h.chain(step, 0, y)


@program(VOTES, label_free=in_order("share", share=(0,), beta=(1,)))
def dawid_skene(h: Written, votes: Any) -> None:
    """Votes of annotators, each with a confusion matrix (Dawid and Skene 1979)."""
    items, annotators = votes.shape
    with h.plate("annotators", annotators, dim=-2), h.plate("classes", K, dim=-1):
        beta = h.sample("beta", h.dist.Dirichlet(h.full(K)))
    share = h.sample("share", h.dist.Dirichlet(h.full(K)))
    with h.plate("items", items, dim=-2):
        z = h.sample("z", h.dist.Categorical(share))
        with h.plate("positions", annotators, dim=-1):
            probs = h.look_up(beta)[h.arange(annotators), z, :]
            h.sample("y", h.dist.Categorical(probs), obs=votes)


@program(
    VOTES,
    options={"subsample_size": 2},
    plates={"items": 6},
    label_free=in_order("share", share=(0,), eta=(0,), chi=(0,)),
)
def item_difficulty(h: Written, votes: Any, subsample_size: int | None = None) -> None:
    """Votes on items that differ in difficulty."""
    items, annotators = votes.shape
    with h.plate("classes", K, dim=-1):
        eta = h.sample("eta", h.dist.Normal(h.full(K, 0.0), 1.0).to_event(1))
        chi = h.sample("chi", h.dist.LogNormal(h.full(K, 0.0), 1.0).to_event(1))
    share = h.sample("share", h.dist.Dirichlet(h.full(K)))
    with h.plate("items", items, subsample_size=subsample_size, dim=-2) as rows:
        z = h.sample("z", h.dist.Categorical(share))
        normal = h.dist.Normal(h.look_up(eta)[z, :], h.look_up(chi)[z, :]).to_event(1)
        theta = h.sample("theta", normal)
        with h.plate("positions", annotators, dim=-1):
            h.sample("y", h.dist.Categorical(logits=theta), obs=votes[rows])


@program(CAPTURES, seen=SEEN, steps=_capture_recapture_steps)
def capture_recapture(h: Written, history: Any) -> None:
    """Animals that die between occasions (Cormack, Jolly and Seber)."""
    survival = h.sample("survival", h.dist.Uniform(0.0, 1.0))
    capture = h.sample("capture", h.dist.Uniform(0.0, 1.0))
    animals = history.shape[0]
    first, plate = h.backend.array(SEEN), h.plate_of_steps("animals", animals)
    xs = list(zip(first, history.T, strict=True)) if h.is_pyro else (first, history.T)

    def step(name: Any, z: Any, x: Any) -> Any:
        was_seen, now = x
        with plate(), h.handlers.mask(mask=was_seen):
            alive = h.xp.where(was_seen, survival * z, h.full(()))
            z = h.sample(name("z"), h.dist.Bernoulli(alive))
            h.sample(name("y"), h.dist.Bernoulli(capture * z), obs=h.number(now))
        return h.number(z) if h.is_pyro else z

    h.chain(step, h.full(animals) if h.is_pyro else h.arange(animals) * 0 + 1, xs)


@program(MANY_ZEROS)
def zero_inflated(h: Written, counts: Any) -> None:
    """Counts of which some are zero for another reason."""
    gate = h.sample("gate", h.dist.Beta(1.0, 1.0))
    rate = h.sample("rate", h.dist.Gamma(2.0, 1.0))
    with h.plate("rows", len(counts)):
        z = h.sample("z", h.dist.Bernoulli(gate))
        h.sample("y", h.dist.Poisson(h.xp.where(z == 1, h.full((), 1e-3), rate)), obs=counts)


@program(COUNTS, assigned="when")
def change_point(h: Written, counts: Any) -> None:
    """Counts whose rate changes once."""
    size = len(counts)
    before = h.sample("before", h.dist.Gamma(2.0, 1.0))
    after = h.sample("after", h.dist.Gamma(2.0, 1.0))
    when = h.sample("when", h.dist.Categorical(h.full(size, 1.0 / size)))
    with h.plate("rows", size):
        rate = h.xp.where(h.arange(size) < when, before, after)
        h.sample("y", h.dist.Poisson(rate), obs=counts)


@program(ANSWERS, label_free=in_order("share", share=(0,), probs=(0,)))
def latent_class(h: Written, answers: Any) -> None:
    """Answers of people of two kinds."""
    people, questions = answers.shape
    share = h.sample("share", h.dist.Dirichlet(h.full(2)))
    with h.plate("classes", 2, dim=-1):
        probs = h.sample("probs", h.dist.Beta(h.full(questions), 2.0).to_event(1))
    with h.plate("people", people, dim=-1):
        z = h.sample("z", h.dist.Categorical(share))
        each = h.dist.Bernoulli(h.look_up(probs)[z, :]).to_event(1)
        h.sample("y", each, obs=h.number(answers))


@program(
    WORDS,
    options={"subsample_size": 2},
    plates={"documents": 4},
    label_free=in_order("topic", topic=(0,), share=(1,)),
)
def topics(h: Written, words: Any, subsample_size: int | None = None) -> None:
    """Words of documents that mix topics (latent Dirichlet allocation)."""
    documents, length = words.shape
    with h.plate("topics", 2, dim=-1):
        topic = h.sample("topic", h.dist.Dirichlet(h.full(5)))
    with h.plate("documents", documents, subsample_size=subsample_size, dim=-1) as rows:
        share = h.sample("share", h.dist.Dirichlet(h.full(2)))
        with h.plate("words", length, dim=-2):
            z = h.sample("z", h.dist.Categorical(share))
            h.sample("y", h.dist.Categorical(topic[z]), obs=words[rows].T)


@program(
    COVARIATE,
    SERIES,
    options={"subsample_size": 3},
    plates={"rows": 9},
    label_free=in_order("slope", ("share",), slope=(0,), intercept=(0,)),
)
def regressions(h: Written, x: Any, y: Any, subsample_size: int | None = None) -> None:
    """Rows that follow one of two lines."""
    share = h.sample("share", h.dist.Beta(1.0, 1.0))
    with h.plate("lines", 2):
        intercept = h.sample("intercept", h.dist.Normal(0.0, 5.0))
        slope = h.sample("slope", h.dist.Normal(0.0, 5.0))
    noise = h.sample("noise", h.dist.LogNormal(0.0, 1.0))
    with h.plate("rows", len(y), subsample_size=subsample_size) as rows:
        z = h.sample("z", h.dist.Bernoulli(share))
        line = z.astype("int32") if not h.is_pyro else z.long()
        mean = intercept[line] + slope[line] * x[rows]
        h.sample("y", h.dist.Normal(mean, noise), obs=y[rows])


@program(COUNTS, assigned="present")
def hidden_number(h: Written, counts: Any) -> None:
    """How many are there where few are seen: a binomial latent."""
    detection = h.sample("detection", h.dist.Beta(2.0, 2.0))
    with h.plate("places", len(counts)):
        present = h.sample("present", h.dist.Binomial(9, h.full((), 0.6)))
        rate = detection * h.number(present) + 0.1
        h.sample("y", h.dist.Poisson(rate), obs=counts)


PROGRAMS = {name: each for name, each in globals().items() if isinstance(each, Program)}

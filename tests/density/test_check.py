"""The model check of both packages: each fault is found before a step, in the host's own leading
words where it has any, with what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests.density_support import host_words, our_words, rows

Build = Callable[[Any], Callable[..., None]]


def count(backend: Any) -> Callable[..., None]:
    return lambda: backend.host.sample("z", backend.dist.Poisson(3.0))


def sphere(backend: Any) -> Callable[..., None]:
    ones = backend.array(np.ones(3, np.float32))
    return lambda: backend.host.sample("z", backend.dist.ProjectedNormal(ones))


def duplicated(backend: Any) -> Callable[..., None]:
    def model() -> None:
        backend.host.sample("a", backend.dist.Normal(0.0, 1.0))
        backend.host.sample("a", backend.dist.Normal(0.0, 1.0))

    return model


def delta(backend: Any) -> Callable[..., None]:
    def model() -> None:
        backend.host.sample("z", backend.dist.Normal(0.0, 1.0))
        backend.host.sample("d", backend.dist.Delta(backend.array(1.0)))

    return model


def nothing_latent(backend: Any) -> Callable[..., None]:
    def model() -> None:
        backend.host.sample("y", backend.dist.Normal(0.0, 1.0), obs=backend.array(1.0))

    return model


DISCRETE = "Continuous inference cannot handle discrete sample site 'z'."
#: Model, leading words in either package, and what each adds.
FAULTS: dict[str, tuple[Build, str, str, str]] = {
    "count": (count, DISCRETE, "enumerat", "MixtureSameFamily"),
    "sphere": (
        sphere,
        "Continuous inference cannot handle spherical sample site 'z'.",
        "reparam",
        "ProjectedNormalReparam",
    ),
    "delta": (delta, "Sample site 'd' has a delta distribution", *2 * ("deterministic",)),
    "duplicated": (duplicated, "", "name of its own", "handlers.scope"),
    "nothing latent": (nothing_latent, "found no latent variables", "'model'", "LogDensity"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_in_the_hosts_words_with_the_fix(backend: Any, fault: str) -> None:
    build, words, of_pyro, of_numpyro = FAULTS[fault]
    model = build(backend)
    ours = our_words(backend, model)
    assert words in ours and (of_pyro if backend.name == "pyro" else of_numpyro) in ours
    if fault == "delta" and backend.name == "pyro":
        return  # Pyro's guide takes it for a site
    theirs = host_words(backend, model)
    if fault == "nothing latent":
        assert words in theirs
    elif (fault, backend.name) == ("count", "numpyro"):
        assert "Poisson" in theirs
    else:
        assert ours.startswith(theirs.split(" Consider")[0].split(". Use")[0])


def test_circular_latents_warn(backend: Any) -> None:
    def model() -> None:
        backend.host.sample("z", backend.dist.VonMises(0.0, 1.0))

    with pytest.warns(UserWarning, match="poorly handles circular sample site 'z'.*Consider"):
        backend.target(model)


def test_a_structure_that_depends_on_a_latent(backend: Any) -> None:
    def model() -> None:
        if backend.host.sample("a", backend.dist.Normal(0.0, 1.0)) > 0:
            backend.host.sample("b", backend.dist.Normal(0.0, 1.0))

    ours = our_words(backend, model)
    assert "structure changes" in ours
    if backend.name == "pyro":
        assert "torch.where" in ours
    else:
        assert "jnp.where" in ours and "Attempted boolean conversion of traced array" in ours


def local(backend: Any, *, by_index: bool) -> Callable[..., None]:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        with host.plate("N", 12, subsample_size=3 if by_index else len(y)) as i:
            z = host.sample("z", dist.Normal(0.0, 1.0))
            host.sample("y", dist.Normal(z, 1.0), obs=y[i] if by_index else y)

    return model


def test_latents_in_a_subsampled_plate(backend: Any) -> None:
    y = backend.array(np.ones(12, np.float32))
    model = local(backend, by_index=True)
    ours = our_words(backend, model, y, allow_local_latents=False)
    assert "'z'" in ours and "SVGD" in ours and "inside a subsampled plate" in ours
    if backend.name == "pyro":
        guide = backend.host.infer.autoguide.AutoDiagonalNormal(model)
        guide(y)
        assert guide.loc.shape == (3,)  # Pyro's guide takes the minibatch for the plate
    else:
        words = "does not support local latent variables"
        assert words in host_words(backend, model, y)
        named = our_words(backend, model, y, allow_local_latents=False, engine="GSM")
        assert named.startswith(f"GSM {words}")
    assert backend.target(model, (y,))[0].dim == 12
    ours = our_words(backend, local(backend, by_index=False), y[:4])
    assert "passed as arguments" in ours and "'z'" in ours


@pytest.mark.parametrize("size", [1, 4])
def test_rows_as_arguments_are_told_from_rows_by_index(backend: Any, size: int) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any, kind: str) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        with host.plate("N", 12, subsample_size=len(y) if kind == "argument" else size) as i:
            if kind == "subsample":
                y = host.subsample(y, event_dim=0)
            host.sample("y", dist.Normal(a, 1.0), obs=y[i] if kind == "index" else y)

    y = backend.array(np.arange(12.0, dtype=np.float32))
    target, _ = backend.target(model, (y[:size], "argument"))
    assert target.batch_arguments and not target.plates
    zero = backend.array(np.zeros((1, 1), np.float32))
    for kind in ("index", "subsample"):
        target, data = backend.target(model, (y, kind))
        assert not target.batch_arguments and target.plates["N"].subsample_size == size
        score = target.full_score(zero, data).score
        np.testing.assert_allclose(backend.numpy(score), [[66.0]], rtol=1e-5)
        found = target.score(zero, data, rows(backend, N=[5])).score
        np.testing.assert_allclose(backend.numpy(found), [[60.0]], rtol=1e-5)


def test_data_shorter_than_the_plate_that_indexes_them(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any, size: int) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        with host.plate("N", size, subsample_size=10) as i:
            host.sample("y", dist.Normal(a, 1.0), obs=y[i])

    y = backend.array(np.zeros(40, np.float32))
    for size in (41, 80):
        ours = our_words(backend, model, y, size)
        assert "'N'" in ours and f"{size} rows" in ours
        assert "fewer rows" in ours or "only 40 rows" in ours
    backend.target(model, (y, 40))


def test_rows_that_do_not_fit_the_plate(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        with host.plate("N", 12):
            host.sample("y", dist.Normal(a, 1.0).expand([len(y)]), obs=y)

    y = backend.array(np.ones(4, np.float32))
    with pytest.raises(ArgumentError, match=r"subsample_size=(len\(x\)|x.shape\[0\])") as raised:
        backend.target(model, (y,))
    assert host_words(backend, model, y) in str(raised.value)


def test_data_that_are_not_finite_name_the_site(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        host.sample("fine", dist.Normal(a, 1.0), obs=backend.array(0.3))
        with host.plate("N", len(y)):
            host.sample("broken", dist.Normal(a, 1.0), obs=y)

    y = backend.array(np.array([0.0, np.nan], np.float32))
    ours = our_words(backend, model, y)
    assert "'broken'" in ours and "'fine'" not in ours
    if backend.name == "numpyro":
        assert ours.startswith(host_words(backend, model, y))
        return
    from pyro.infer import SVGD, RBFSteinKernel

    words = "Error while computing log_prob at site 'broken'"
    assert ours.startswith(words)
    with pytest.raises(ValueError, match=words):
        SVGD(model, RBFSteinKernel(), backend.adam(0.1), 2, 1).step(y)


@pytest.mark.parametrize("backend", ["pyro"], indirect=True)
@pytest.mark.parametrize("least", [0.5, np.nan])
def test_data_outside_of_a_support_name_the_site(backend: Any, least: float) -> None:
    """Where no latent site moves its ends, or the data are no numbers."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        end = backend.array(1.0) if least > 0.0 else host.sample("end", dist.LogNormal(0.0, 1.0))
        host.sample("a", dist.Normal(0.0, 1.0))
        with host.plate("N", len(y)):
            host.sample("broken", dist.Uniform(0.0, end), obs=y)

    ours = our_words(backend, model, backend.array(np.array([least, 2.0], np.float32)))
    assert "'broken'" in ours and "inside the distribution's support" in ours


def test_batch_dimensions_without_a_plate_are_accepted(backend: Any) -> None:
    location = backend.array(np.arange(3.0, dtype=np.float32))

    def model() -> None:
        backend.host.sample("a", backend.dist.Normal(location, 1.0))

    target, data = backend.target(model)
    score = target.score(backend.array(np.zeros((1, 3), np.float32)), data).score
    np.testing.assert_array_equal(backend.numpy(score), [[0.0, 1.0, 2.0]])


def test_errors_of_the_model_itself_come_through(backend: Any) -> None:
    def model() -> None:
        backend.host.sample("z", backend.dist.Normal(0.0, 1.0))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        backend.target(model)


def test_modules_that_a_model_holds_are_not_looked_into(backend: Any) -> None:
    """torch.classes has every attribute that is asked for, and fails at most of them."""
    import torch

    host, dist = backend.host, backend.dist

    def model(y: Any, library: Any = torch) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("rows", 3):
            host.sample("y", dist.Normal(mean, 1.0), obs=y)

    class Program:
        """A model with attributes."""

        def __init__(self) -> None:
            self.classes, self.library = torch.classes, torch

        def __call__(self, y: Any) -> None:
            model(y)

    for each in (model, partial(model, library=torch.classes), Program()):
        target, _ = backend.target(each, (backend.array(np.ones(3, np.float32)),))
        assert target.dim == 1


def test_iterators_are_refused_wherever_they_are(backend: Any) -> None:
    def model(data: Any = None, *more: Any, **named: Any) -> None:
        raise AssertionError("the model runs")

    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (r"'data\['rows'\]'", ({"rows": iter([1.0])},), {}),
        (r"'data\[0\]\[1\]'", ([(1.0, map(float, [1.0]))],), {}),
        (r"'more\[0\]'", (None, iter([1.0])), {}),
        (r"'named\['rows'\]'", (), {"rows": iter([1.0])}),
    ]
    for name, args, kwargs in cases:
        with pytest.raises(backend.public.ArgumentError, match=f"found .* in argument {name}"):
            backend.target(model, args, kwargs)


def test_partials_that_do_not_fit_are_told(backend: Any) -> None:
    def model(link: Any = None) -> None:
        raise AssertionError("the model runs")

    wrong = partial(model, unknown=1.0)
    for what, program, args in (
        ("the model", wrong, ()),
        ("argument 'link'", model, (wrong,)),
    ):
        words = f"Expected {what} to bind what its function takes, found .* 'unknown'"
        with pytest.raises(backend.public.ArgumentError, match=words):
            backend.target(program, args)

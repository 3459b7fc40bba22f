"""Stein variational Newton in both packages: its system, curvature, damping, and the engine."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppl_ext.curvature.curvature import CurvatureSizes
from ppl_ext.curvature.program_curvature import GaussNewton
from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.stein import damping
from ppl_ext.stein.newton import (
    LevenbergMarquardt,
    NewtonSystem,
    Proposal,
    as_damping,
    as_system,
    choose_solver,
    solver_costs,
)
from tests import newton_support as support
from tests.backends import backend_of, use_float64
from tests.stein_support import Run, optimizer

use_float64()

#: Newton's own steps.
FIXED = LevenbergMarquardt(adapt=False, trust_radius=None)


@pytest.fixture
def rooms(backend: Any) -> SimpleNamespace:
    """The rooms of one package that these tests look into."""
    names = ("curvature", "kernels", "stein", "stein.newton_system")
    return SimpleNamespace(**{name.split(".")[-1]: backend.room(name) for name in names})


# -- the linear system ------------------------------------------------------------------------


def curvature_of(backend: Any, rooms: Any, values: dict[str, Any], kind: str) -> Any:
    """A curvature of rows, of rows with one diagonal for all, or of every part."""
    Curvature, Block = rooms.curvature.Curvature, rooms.curvature.KroneckerBlock
    part = {name: backend.array(value) for name, value in values.items()}
    if kind != "everything":
        diagonal = part["diagonal" if kind == "rows" else "shared"]
        return Curvature(diagonal, rows=part["rows"])
    block = Block(part["left"], part["right"][:, :2, :2], 1)
    return Curvature(part["diagonal"], part["matrix"], part["rows"], (block,))


@pytest.mark.parametrize(("kernel", "kind", "number", "dim"), support.CASES)
def test_every_solver_solves_the_system(
    backend: Any, rooms: Any, kernel: str, kind: str, number: int, dim: int
) -> None:
    values = support.parts(3, number, dim, 3)
    damping = np.linspace(0.5, 1.5, dim)
    own = support.own_kernels(rooms.kernels)[kernel] or rooms.stein.curvature_kernel()
    systems = [each for each in support.SYSTEMS if kind != "everything" or each[2] != "dual"]

    def every(z: Any, scores: Any) -> Any:
        curvature = curvature_of(backend, rooms, values, kind)
        metric = rooms.kernels.ProductMetric(curvature.mean_products)
        interactions = own.with_curvature(metric).interactions(z)
        solutions = []
        for coupling, repulsion, solver in systems:
            options = NewtonSystem(coupling, repulsion, None, 1e-13, 5000)
            damped = backend.array(damping)
            system = rooms.newton_system.LinearSystem(
                interactions, curvature, scores, damped, options
            )
            solutions.append(system.solve(solver)[:2])
        return curvature.dense(), curvature.diagonals(), curvature.product(z), solutions

    z, scores = values["z"], values["scores"]
    found = backend.compiled(every)(backend.array(z), backend.array(scores))
    dense, diagonals, product = map(backend.numpy, found[:3])
    sizes = curvature_of(backend, rooms, values, kind).sizes
    blocks = ((2, 2),) if kind == "everything" else ()
    assert sizes == CurvatureSizes(3, kind == "everything", blocks, kind == "shared")
    np.testing.assert_allclose(np.diagonal(dense, axis1=1, axis2=2), diagonals, rtol=1e-12)
    np.testing.assert_allclose(np.einsum("pab,pb->pa", dense, z), product)
    function = support.KERNELS[kernel](z, dense.mean(0))
    for (coupling, repulsion, _), (moves, solved) in zip(systems, found[3], strict=True):
        moves = backend.numpy(moves)
        if bool(solved):
            expected = support.newton_moves(
                z, scores, dense + np.diag(damping), function, coupling, repulsion
            )
            np.testing.assert_allclose(moves, expected, rtol=1e-6, atol=1e-7)
        else:
            # The variant that need not be definite says so, and moves nothing.
            assert repulsion == "all"
            assert not moves.any()


def test_a_system_that_is_not_definite_is_reported(backend: Any, rooms: Any) -> None:
    points = backend.array(support.parts(0, 4, 3, 1)["z"])
    nothing = rooms.curvature.Curvature(backend.array(np.zeros((1, 3))))
    options = NewtonSystem("full", "all", None, 1e-10, 200)

    def both(z: Any) -> Any:
        interactions = rooms.kernels.RBF(1.0).interactions(z)
        zeros = backend.array(np.zeros(3))
        system = rooms.newton_system.LinearSystem(interactions, nothing, z, zeros, options)
        return [system.solve(solver)[:2] for solver in ("dense", "cg")]

    for moves, solved in backend.compiled(both)(points):
        assert not bool(solved)
        assert not backend.numpy(moves).any()


def test_conjugate_gradients_take_few_products_where_particles_are_close(
    backend: Any, rooms: Any
) -> None:
    """The kernel matrix is nearly singular there, as the system's diagonal does not tell."""
    draws = np.random.default_rng(0)
    number, dim = 8, 40
    points, scores = draws.normal(size=(2, number, dim))
    diagonal = np.logspace(-1, 3, dim) * draws.uniform(1.0, 2.0, (number, dim))
    options = NewtonSystem("full", "diagonal", None, 1e-8, 500)

    def both(z: Any, scores: Any) -> Any:
        interactions = rooms.kernels.RBF(3.0).interactions(0.1 * z)
        curvature = rooms.curvature.Curvature(backend.array(diagonal))
        ones = backend.array(np.ones(dim))
        system = rooms.newton_system.LinearSystem(interactions, curvature, scores, ones, options)
        return system.solve("cg"), system.solve("dense").moves

    found, exact = backend.compiled(both)(backend.array(points), backend.array(scores))
    exact = backend.numpy(exact)
    assert bool(found.solved) and float(found.residual) <= 1e-8
    assert int(found.iterations) <= 40
    np.testing.assert_allclose(backend.numpy(found.moves), exact, atol=1e-4 * np.abs(exact).max())


def test_conjugate_gradients_stop_at_the_tolerance_and_say_so(backend: Any, rooms: Any) -> None:
    root = np.random.default_rng(0).normal(size=(30, 30))
    matrix, right = root @ root.T + np.eye(30), root[0]

    def solved(sign: float, *options: Any) -> Any:
        def solve(matrix: Any, right: Any) -> Any:
            return rooms.curvature.conjugate_gradients(
                lambda v: sign * matrix @ v, right, lambda v: v, *options
            )

        return backend.compiled(solve)(backend.array(matrix), backend.array(right))

    for tolerance in (1e-2, 1e-8):
        found = solved(1.0, tolerance, 500)
        error = np.linalg.norm(right - matrix @ backend.numpy(found.solution))
        assert error / np.linalg.norm(right) <= tolerance
        np.testing.assert_allclose(found.residual, error / np.linalg.norm(right), rtol=1e-4)
    short = solved(1.0, 1e-8, 5)
    assert int(short.iterations) == 5
    assert float(short.residual) > 1e-8
    assert not bool(solved(-1.0).definite)
    unknown = backend.compiled(
        lambda right: rooms.curvature.conjugate_gradients(lambda v: v, right, lambda v: v)
    )(backend.array(np.full(3, np.nan)))
    assert not bool(unknown.definite) and np.isnan(float(unknown.residual))


def test_the_solver_is_chosen_by_cost() -> None:
    def best(coupling: Any, number: int, dim: int, rows: int, asked: Any = None) -> str:
        sizes = CurvatureSizes(rows, has_matrix=False, blocks=(), one_diagonal=True)
        costs = solver_costs(NewtonSystem(coupling), sizes, number, dim, number)
        return choose_solver(asked, costs)

    assert best("full", 100, 5, 40) == "dense"
    assert best("full", 5, 3000, 32) == "dual"
    assert best("full", 200, 1000, 50) == "cg"
    assert best("block_diagonal", 5, 3000, 32) == "dual"
    assert best("block_diagonal", 50, 8, 100) == "dense"
    assert best("full", 100, 5, 40, "cg") == "cg"
    with pytest.raises(ArgumentError, match="solver among"):
        best("full", 2, 10_000, 1, "dense")
    sizes = CurvatureSizes(0, has_matrix=True, blocks=(), one_diagonal=False)
    with pytest.raises(ArgumentError, match="solver among"):
        choose_solver("dual", solver_costs(NewtonSystem(), sizes, 3, 5, 3))


# -- the curvature of a program ---------------------------------------------------------------

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(12, 2)), GENERATOR.normal(size=12)
Z = np.random.default_rng(5).normal(size=(3, 10))
PRIOR = np.diag([1.0] * 6 + [0.25] * 3 + [1.0])


@functools.cache
def network_of(name: str) -> Any:
    """A network of one layer with a learnt noise scale."""
    backend = backend_of(name)
    host, dist, xp = backend.host, backend.dist, backend.xp

    def network(x: Any, y: Any, batch: int | None = None) -> None:
        w = host.sample("w", dist.Normal(xp.zeros((2, 3)), 1.0).to_event(2))
        v = host.sample("v", dist.Normal(xp.zeros(3), 2.0).to_event(1))
        noise = host.sample("noise", dist.LogNormal(0.0, 1.0))
        with host.plate("N", 12, subsample_size=batch) as i:
            host.sample("y", dist.Normal(xp.tanh(x[i] @ w) @ v, noise), obs=y[i])

    return network


def arguments(backend: Any, batch: int | None = None) -> tuple[Any, ...]:
    return (backend.array(X), backend.array(Y), *(() if batch is None else (batch,)))


def svn(backend: Any, batch: int | None = None, **options: Any) -> Run:
    """SVN of three particles on the network."""
    model, args = network_of(backend.name), arguments(backend, batch)
    return Run(backend, "SVN", model, args=args, num_particles=3, **options)


@functools.cache
def target_of(name: str, batch: int | None) -> tuple[Any, Any]:
    backend = backend_of(name)
    chunk = batch and 5
    return backend.target(network_of(name), arguments(backend, batch), data_chunk=chunk)


def rows_of(backend: Any, first: int) -> dict[str, Any]:
    return {"N": backend.array(np.arange(first, first + 4))}


def dense(
    backend: Any, rooms: Any, batch: int | None, z: Any, rows: Any, *options: GaussNewton
) -> list[np.ndarray]:
    """Curvatures of the network as matrices, by all of these options, in one program."""
    target, data = target_of(backend.name, batch)
    every = [rooms.curvature.ProgramCurvature(target, data, each) for each in options]
    key = () if backend.name == "pyro" else (backend.key(),)

    def found(z: Any, rows: Any) -> Any:
        return [each.at(target, z, data, rows, *key).dense() for each in every]

    return [backend.numpy(each) for each in backend.compiled(found)(backend.array(z), rows)]


def naive_curvature(z: np.ndarray) -> np.ndarray:
    """J' F J over all rows and the exact curvature of the prior, by hand."""

    def outputs(z: np.ndarray) -> np.ndarray:
        mean = np.tanh(X @ z[:6].reshape(2, 3)) @ z[6:9]
        return np.stack([mean, np.broadcast_to(np.exp(z[9]), mean.shape)], 1)

    # By complex steps.
    jacobian = np.stack([outputs(z + 1e-30j * e).imag / 1e-30 for e in np.eye(10)], axis=-1)
    fisher = np.diag([1.0, 2.0]) * np.exp(-2.0 * z[9])
    return np.einsum("nai,ab,nbj->ij", jacobian, fisher, jacobian) + PRIOR


def test_curvature_over_all_rows_is_summed_over_chunks(backend: Any, rooms: Any) -> None:
    expected = np.stack([naive_curvature(z) for z in Z])
    whole, few = (GaussNewton("low_rank", rank=rank) for rank in (10, 2))
    options = GaussNewton(), GaussNewton("kfac"), whole, few
    full, factored, low, lower = dense(backend, rooms, 4, Z, None, *options)
    np.testing.assert_allclose(full, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(low, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(lower * np.eye(10), expected * np.eye(10), rtol=1e-9, atol=1e-9)
    (together,) = dense(backend, rooms, None, Z, None, GaussNewton("kfac"))
    np.testing.assert_allclose(factored, together, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_structures_of_minibatches(backend: Any, rooms: Any) -> None:
    last = ("v", "noise")
    whole, diag, low, lower, part, factored, last_factored = dense(
        backend,
        rooms,
        4,
        Z,
        rows_of(backend, 0),
        GaussNewton(),
        GaussNewton("diag"),
        GaussNewton("low_rank", rank=8),
        GaussNewton("low_rank", rank=2),
        GaussNewton(sites=last),
        GaussNewton("kfac"),
        GaussNewton("kfac", last),
    )
    others = [dense(backend, rooms, 4, Z, rows_of(backend, i), GaussNewton())[0] for i in (4, 8)]
    expected = np.stack([naive_curvature(z) for z in Z])
    np.testing.assert_allclose(np.mean([whole, *others], 0), expected, rtol=1e-9, atol=1e-9)

    np.testing.assert_allclose(diag, whole * np.eye(10), atol=1e-12)
    np.testing.assert_allclose(low, whole, atol=1e-9)
    np.testing.assert_allclose(lower * np.eye(10), diag, atol=1e-9)
    assert np.linalg.matrix_rank(lower[0] - np.diag(np.diag(lower[0]))) > 0
    target, data = target_of(backend.name, 4)
    sites = rooms.curvature.ProgramCurvature(target, data, GaussNewton(sites=last))
    np.testing.assert_array_equal(sites.coordinates, [6, 7, 8, 9])
    np.testing.assert_allclose(part, whole[:, 6:, 6:], atol=1e-12)

    factored, whole = factored - PRIOR, whole - PRIOR
    np.testing.assert_allclose(last_factored - PRIOR[6:, 6:], factored[:, 6:, 6:], atol=1e-12)
    # Vectors keep their whole blocks, and nothing is between sites.
    np.testing.assert_allclose(factored[:, 6:9, 6:9], whole[:, 6:9, 6:9], atol=1e-12)
    assert not factored[:, :6, 6:].any()
    for one, other in zip(factored[:, :6, :6], whole[:, :6, :6], strict=True):
        # The nearest Kronecker product is the first singular pair of the rearranged matrix.
        blocks = other.reshape(2, 3, 2, 3).transpose(0, 2, 1, 3).reshape(4, 9)
        left, values, right = np.linalg.svd(blocks)
        best = values[0] * np.kron(left[:, 0].reshape(2, 2), right[0].reshape(3, 3))
        distance, least = np.linalg.norm(one - other), np.linalg.norm(best - other)
        assert distance <= 1.001 * least
        assert np.linalg.eigvalsh(one).min() > -1e-10


def test_a_narrow_prior_hides_no_couplings(backend: Any, rooms: Any) -> None:
    host, dist = backend.host, backend.dist

    def model() -> None:
        host.sample("c", dist.Normal(1.0, 1e-8))
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        with host.plate("J", 3):
            host.sample("theta", dist.Normal(mu, 1.0))

    found = rooms.curvature.ProgramCurvature(*backend.target(model), GaussNewton())
    assert found.prior.form == "hessian"


def test_what_has_no_curvature_is_refused(backend: Any, rooms: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp
    # Pyro wants to know of a factor whether it is reparameterised.
    plain = {"has_rsample": False} if backend.name == "pyro" else {}

    def mixed() -> None:
        z = host.sample("z", dist.Normal(0.0, 1.0))
        with host.plate("N", 3):
            host.sample("y", dist.Normal(z, 1.0), obs=xp.zeros(3))
            host.factor("f", -((z - 1.0) ** 2) * xp.ones(3), **plain)

    def local() -> None:
        with host.plate("N", 6, subsample_size=2):
            a = host.sample("a", dist.Normal(0.0, 1.0))
            host.sample("y", dist.Normal(a, 1.0), obs=xp.zeros(2))

    with pytest.raises(ArgumentError, match="found the factors"):
        rooms.curvature.ProgramCurvature(*backend.target(mixed), GaussNewton())
    with pytest.raises(ArgumentError, match="latent sites"):
        rooms.curvature.ProgramCurvature(*target_of(backend.name, 4), GaussNewton(sites=("u",)))
    with pytest.raises(ModelCheckError, match="[Ll]atent"):
        Run(backend, "SVN", local)
    sgd = optimizer(backend, "sgd", 0.1)
    everything = GaussNewton(sites=["w", "v", "noise"])
    with pytest.raises(ArgumentError, match="found all of them"):
        svn(backend, optim=sgd, curvature=everything)


# -- damping ----------------------------------------------------------------------------------


def judged(
    backend: Any,
    rooms: Any,
    after: Any,
    solved: bool = True,
    shortened: Any = None,
    lengths: tuple[float, float] = (1.0, 1.0),
) -> Any:
    """The judgement of two moves that promise a gain of 2 - 1, at damping and radius 1."""
    flags = np.zeros(2, bool) if shortened is None else np.asarray(shortened)
    moves, lengths = backend.array([[1.0, 1.0], [1.0, 1.0]]), backend.array(lengths)
    proposal = Proposal(moves, lengths, backend.array(flags))
    given = (1.0, backend.array([1.0, 1.0]), solved)
    if backend.name == "numpyro":
        given = tuple(backend.array(each) for each in given)
    gain, before = backend.array([2.0, 2.0]), backend.array([0.0, 0.0])
    found = damping.judge(backend.xp, gain, proposal, before, backend.array(after), *given)
    accepted, radius = backend.numpy(found.accepted), backend.numpy(found.radius)
    return found._replace(accepted=accepted, radius=radius)


def test_damping_follows_the_model(backend: Any, rooms: Any) -> None:
    exact = judged(backend, rooms, [1.0, 1.0])
    assert exact.accepted.all()
    assert float(exact.damping) < 1.0
    poor = judged(backend, rooms, [0.0, 0.0])
    assert poor.accepted.all()
    assert float(poor.damping) > 1.0
    np.testing.assert_array_equal(judged(backend, rooms, [1.0, -4.0]).accepted, [True, False])
    np.testing.assert_array_equal(judged(backend, rooms, [1.0, np.nan]).accepted, [True, False])
    unsolved = judged(backend, rooms, [1.0, 1.0], solved=False)
    assert not unsolved.accepted.any()
    assert float(unsolved.damping) > float(poor.damping)
    # Moves that the radius shortened are not damping's.
    far = judged(backend, rooms, [1.0, 0.0], shortened=[False, True])
    assert float(far.damping) == float(exact.damping)
    assert float(judged(backend, rooms, [0.0, 0.0], shortened=[True, True]).damping) == 1.0


def test_the_radius_follows_the_model(backend: Any, rooms: Any) -> None:
    def radius(after: list[float], shortened: list[bool], solved: bool = True) -> Any:
        return judged(backend, rooms, after, solved, shortened).radius

    # It widens where the model holds and the radius was reached, and nowhere else.
    np.testing.assert_array_equal(radius([1.0, 1.0], [True, False]), [2.0, 1.0])
    # The sizes of the terms are 2 + 1: a shortfall of 1 is a third, and one of 3 is everything.
    np.testing.assert_array_equal(radius([0.0, 0.0], [True, False]), [1.0, 1.0])
    np.testing.assert_array_equal(radius([-2.0, np.nan], [True, False]), [0.25, 0.25])
    # More than was foretold is no reason to go back, nor to go further.
    np.testing.assert_array_equal(radius([9.0, 9.0], [True, False]), [1.0, 1.0])
    np.testing.assert_array_equal(radius([1.0, -4.0], [True, True], solved=False), [1.0, 1.0])
    # Along no curvature a move has no length: a radius of 0 would never widen again.
    flat = judged(backend, rooms, [-4.0, np.nan], lengths=(0.0, 0.0))
    assert not flat.accepted.any()
    np.testing.assert_array_equal(flat.radius, [1.0, 1.0])


def test_a_density_that_rose_is_no_reason_to_take_a_move(backend: Any, rooms: Any) -> None:
    """A long step down an exponential slope: nearly nothing of what was foretold, and yet more."""
    moves, lengths = backend.array([[0.2]]), backend.array([0.2])
    proposal = Proposal(moves, lengths, backend.array(np.array([False])))
    given = (1.0, backend.array([1.0]), True)
    if backend.name == "numpyro":
        given = tuple(backend.array(each) for each in given)
    gain, before, after = (backend.array([each]) for each in (1000.0, 0.0, 30.0))
    found = damping.judge(backend.xp, gain, proposal, before, after, *given)
    assert not backend.numpy(found.accepted)
    # The next is shorter than this one, of which the radius was no bound.
    np.testing.assert_allclose(backend.numpy(found.radius), [0.25 * 0.2], rtol=1e-6)


def test_moves_stay_within_the_radius(backend: Any, rooms: Any) -> None:
    moves, scale = np.array([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0]]), np.array([1.0, 4.0])
    lengths = np.sqrt((moves**2 * scale).mean(1))
    given = backend.array(moves), backend.array(2.0 * lengths**2)
    found = damping.within_radius(backend.xp, *given, backend.array([0.5, 1.0, 1.0]))
    shorter = backend.numpy(found.moves)
    np.testing.assert_allclose(shorter[1:], moves[1:])
    np.testing.assert_allclose(shorter[0], moves[0] * 0.5 / lengths[0])
    np.testing.assert_allclose(backend.numpy(found.lengths), [0.5, *lengths[1:]])
    np.testing.assert_array_equal(found.shortened, [True, False, False])
    np.testing.assert_array_equal(damping.within_radius(backend.xp, *given, None).moves, moves)


# -- the engine -------------------------------------------------------------------------------

ROOT = np.random.default_rng(1).normal(size=(5, 5))
COVARIANCE = ROOT @ ROOT.T / 5 + 0.1 * np.eye(5)
MEAN = np.array([5.0, -3.0, 2.0, 0.0, 8.0])


def normal(backend: Any, *parameters: Any, events: int = 1) -> Any:
    """A model of one Normal site."""
    given = [backend.array(each) for each in parameters]

    def model() -> None:
        backend.host.sample("z", backend.dist.Normal(*given).to_event(events))

    return model


def damped(whole: np.ndarray, damping: float = 1.0) -> np.ndarray:
    """Curvatures with the diagonal that a damping adds."""
    scale = np.diagonal(whole, axis1=1, axis2=2).mean(0)
    return whole + np.diag(damping * np.maximum(scale, 1e-3 * scale.mean()))


def correlated(backend: Any) -> Any:
    """A Normal of five dimensions."""
    mean, covariance = backend.array(MEAN), backend.array(COVARIANCE)

    def model() -> None:
        backend.host.sample("z", backend.dist.MultivariateNormal(mean, covariance))

    return model


def test_a_normal_is_exact_in_twenty_steps(backend: Any) -> None:
    z = Run(backend, "SVN", correlated(backend), num_particles=100).run(20).samples()["z"]
    assert np.abs((z.mean(0) - MEAN) / np.sqrt(np.diag(COVARIANCE))).max() < 0.01
    error = np.linalg.norm(np.cov(z.T) - COVARIANCE) / np.linalg.norm(COVARIANCE)
    assert error < 0.02


def test_particles_repel_without_a_score(backend: Any, rooms: Any) -> None:
    start = np.array([[0.0, 0.0], [0.5, 0.2]])
    flat, kernel = normal(backend, np.zeros(2), 1e4), rooms.kernels.RBF(1.0)
    run = Run(backend, "SVN", flat, None, kernel, num_particles=2, damping=FIXED, start=start)
    run.step()
    moved = run.particles
    assert np.linalg.norm(moved[0] - moved[1]) > np.linalg.norm(start[0] - start[1])


def test_a_step_is_the_reference_on_a_network(backend: Any) -> None:
    damping = LevenbergMarquardt(0.5, adapt=False, trust_radius=None)
    run = svn(backend, step_size=1.0, damping=damping, start=Z)
    assert run.engine.plan.solver in ("dense", "dual")
    scores = run.score(Z)
    run.step()
    whole = np.stack([naive_curvature(z) for z in Z])
    kernel = support.default(Z, whole.mean(0))
    expected = support.newton_moves(Z, scores, damped(whole, 0.5), kernel, "full")
    np.testing.assert_allclose(run.particles - Z, expected, rtol=1e-6)


def test_sites_take_newton_steps_and_others_follow_the_optimizer(backend: Any, rooms: Any) -> None:
    some, sgd = GaussNewton(sites=["v", "noise"]), optimizer(backend, "sgd", 1e-2)
    run = svn(backend, optim=sgd, curvature=some, step_size=1.0, damping=FIXED, start=Z)
    scores = run.score(Z)
    run.step()
    found = run.particles - Z
    whole = np.stack([naive_curvature(z) for z in Z])[:, 6:, 6:]
    kernel = support.default(Z[:, 6:], whole.mean(0))
    expected = support.newton_moves(Z[:, 6:], scores[:, 6:], damped(whole), kernel, "full")
    np.testing.assert_allclose(found[:, 6:], expected, rtol=1e-6)
    ours = rooms.kernels.default_kernel()
    others = backend.array(Z[:, :6])
    phi, _ = ours.direction(ours.init(others), others, backend.array(scores[:, :6]))
    np.testing.assert_allclose(found[:, :6], 1e-2 * backend.numpy(phi), rtol=1e-8)


def test_minibatches_have_their_own_curvature(backend: Any, rooms: Any) -> None:
    run = svn(
        backend,
        4,
        estimator=backend.public.Minibatch("cyclic"),
        step_size=lambda step: 1.0 - 0.5 * (step > 0),
        damping=FIXED,
        start=Z,
    )
    start = Z
    for first, share in ((0, 1.0), (4, 0.5)):
        rows = rows_of(backend, first)
        scores = run.score(start, rows)
        (whole,) = dense(backend, rooms, 4, start, rows, GaussNewton())
        run.step()
        kernel = support.default(start, whole.mean(0))
        expected = support.newton_moves(start, scores, damped(whole), kernel, "full")
        np.testing.assert_allclose(run.particles - start, share * expected, rtol=1e-6)
        start = run.particles


@functools.cache
def narrow_of(name: str) -> Any:
    backend = backend_of(name)

    def narrow() -> None:
        x = backend.host.sample("x", backend.dist.Normal(0.0, 10.0))
        mean = backend.xp.exp(3.0 * x)
        backend.host.sample("y", backend.dist.Normal(mean, 1.0), obs=backend.array(1.0))

    return narrow


@pytest.mark.parametrize("kind", ["step size", "optimizer"])
def test_a_move_that_would_lower_the_density_is_taken_back(backend: Any, kind: str) -> None:
    start = np.array([[-2.0], [-1.5]])
    options: dict[str, Any] = {"step_size": 1.0}
    if kind == "optimizer":
        options = {"optim": optimizer(backend, "sgd", 1.0)}
    model = narrow_of(backend.name)
    run = Run(backend, "SVN", model, num_particles=2, damping=1e-6, start=start, **options)
    run.run(1)
    assert run.info("accepted")[0] == 0.0
    np.testing.assert_array_equal(run.particles, start)
    run.run(39)
    assert run.info("damping").max() > 1e-6
    assert np.isfinite(run.losses).all()
    # An undamped step from -1.5 ends at 2.8, where exp(3 x) is 4,000; and the optimizer has not
    # gone on without the particles.
    assert np.abs(run.particles).max() < 5.0
    assert (run.particles != start).any()


def test_an_optimizer_takes_the_newton_direction(backend: Any) -> None:
    model, start = correlated(backend), np.random.default_rng(5).normal(size=(3, 5))
    plain, other = (
        Run(backend, "SVN", model, num_particles=3, start=start, **options).run(4)
        for options in ({"step_size": 0.5}, {"optim": optimizer(backend, "sgd", 0.5)})
    )
    assert np.abs(plain.particles - start).max() > 0.1
    np.testing.assert_allclose(plain.particles, other.particles, rtol=1e-9)


@pytest.mark.parametrize("reduced", [True, False])
def test_damping_falls_with_reduced_variance_too(backend: Any, reduced: bool) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    def regression(x: Any, y: Any, batch: int | None = None) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", 12, subsample_size=batch) as i:
            host.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])

    estimator = backend.public.SVRG(3) if reduced else backend.public.Minibatch()
    given = arguments(backend, 4)
    run = Run(backend, "SVN", regression, args=given, num_particles=10, estimator=estimator)
    assert run.run(30).info("damping")[-1] < 0.1


@functools.cache
def scale_of(name: str) -> Any:
    """A standard deviation of 50 rows."""
    backend = backend_of(name)

    def scale(y: Any) -> None:
        s = backend.host.sample("s", backend.dist.LogNormal(0.0, 2.0))
        with backend.host.plate("N", 50):
            backend.host.sample("y", backend.dist.Normal(0.0, s), obs=y)

    return scale


@pytest.mark.parametrize("times", [0.05, 20.0])
def test_a_scale_that_starts_far_off_comes_back(backend: Any, times: float) -> None:
    y = np.random.default_rng(7).normal(size=50)
    grid = np.linspace(-2.0, 2.0, 4001)
    log = -50.0 * grid - 0.5 * (y**2).sum() * np.exp(-2.0 * grid) - grid**2 / 8.0
    weights = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    mean = weights @ grid
    spread = np.sqrt(weights @ (grid - mean) ** 2)
    start = np.log(times) + np.linspace(-0.5, 0.5, 10)[:, None]
    model, given = scale_of(backend.name), (backend.array(y),)
    run = Run(backend, "SVN", model, args=given, num_particles=10, start=start)
    for _ in range(40):
        run.step()
        # No step goes beyond the other end of what the model was begun at.
        assert np.abs(run.particles).max() <= np.abs(start).max() + 3.0 * spread
    found = run.particles[:, 0]
    assert abs(found.mean() - mean) < 0.5 * spread
    assert 0.5 * spread < found.std() < 1.5 * spread


def test_the_forecast_knows_the_temperature(backend: Any) -> None:
    """The quadratic model is exact for a linear one, at any temperature of the likelihood."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def regression(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", 12):
            host.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    given = arguments(backend)
    run = Run(backend, "SVN", regression, args=given, num_particles=4, likelihood_temperature=0.1)
    assert run.run(5).info("disagreement").max() < 1e-6


def test_a_start_that_is_far_off(backend: Any) -> None:
    far = normal(backend, np.zeros(3), 1e-3)
    z = Run(backend, "SVN", far, num_particles=10).run(30).samples()["z"]
    assert np.abs(z.mean(0)).max() < 1e-4


def test_diagonal_blocks_converge_in_tens_of_steps(backend: Any) -> None:
    """A conjugate regression with inputs of unequal scale, in units of its posterior's spread."""
    host, dist, xp = backend.host, backend.dist, backend.xp
    draws = np.random.default_rng(0)
    x = draws.normal(size=(40, 3)) * np.logspace(0, 1, 3)
    y = x @ draws.normal(size=3) + draws.normal(size=40)
    covariance = np.linalg.inv(np.eye(3) / 100.0 + x.T @ x)

    def regression(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(3), 10.0).to_event(1))
        with host.plate("N", 40):
            host.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    run = Run(backend, "SVN", regression, args=backend.arrays((x, y)), system="block_diagonal")
    apart = run.run(20).samples()["w"] - covariance @ x.T @ y
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), apart.T)
    assert np.abs(whitened.mean(1)).max() < 0.05
    # Thirty-two particles with a radial kernel are a little narrow.
    np.testing.assert_allclose(np.linalg.eigvalsh(np.cov(whitened)), 1.0, atol=0.3)


@pytest.mark.parametrize(
    "kind",
    [
        "a curvature for several steps",
        pytest.param("sites", marks=pytest.mark.in_one_package),
    ],
)
def test_runs_go_on_exactly(backend: Any, kind: str, tmp_path: Any) -> None:
    options: dict[str, Any] = {
        "estimator": backend.public.Minibatch(),
        "curvature": GaussNewton("kfac", every=3),
        "system": "block_diagonal",
    }
    if kind == "sites":
        options = {
            "estimator": backend.public.SVRG(4),
            "curvature": GaussNewton("diag", ["v"]),
            "optim": optimizer(backend, "adam", 0.01),
        }
    # Five steps: a curvature of three is two steps old.
    run = svn(backend, 4, **options).run(5)
    again = run.saved_and_loaded(tmp_path / "state.npz")
    whole, rest = run.run(3), again.run(3)
    assert np.isfinite(whole.losses).all()
    np.testing.assert_array_equal(rest.particles, whole.particles)
    if kind == "sites":
        with pytest.raises(ArgumentError, match="optimizer|settings"):
            other = optimizer(backend, "sgd", 0.1, momentum=0.9)
            run.saved_and_loaded(tmp_path / "state.npz", optim=other)


def test_bad_options_are_refused(backend: Any, rooms: Any) -> None:
    gaussian = normal(backend, np.zeros(2), 1.0)
    with pytest.raises(ArgumentError, match="optimizer with sites"):
        backend.public.SVN(gaussian, curvature=GaussNewton(sites=["z"]))
    with pytest.raises(ArgumentError, match="gradient at each pair"):
        Run(backend, "SVN", gaussian, kernel=rooms.kernels.RandomFeature(3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussNewton("hessian"), "structure to be one of"),  # type: ignore[arg-type]
        (lambda: GaussNewton(sites=[]), "sites to be a sequence of names"),
        (lambda: GaussNewton(rank=0), "rank"),
        (lambda: GaussNewton(every=0.5), "every"),  # type: ignore[arg-type]
        (lambda: GaussNewton(prior="full"), "prior to be one of"),  # type: ignore[arg-type]
        (lambda: NewtonSystem("half"), "coupling to be one of"),  # type: ignore[arg-type]
        (lambda: NewtonSystem(repulsion="none"), "repulsion to be"),  # type: ignore[arg-type]
        (lambda: NewtonSystem(solver="qr"), "solver to be one of"),  # type: ignore[arg-type]
        (lambda: NewtonSystem(tolerance=0.0), "tolerance"),
        (lambda: NewtonSystem(max_iterations=0), "max_iterations"),
        (lambda: LevenbergMarquardt(0.0), "damping"),
        (lambda: LevenbergMarquardt(adapt="no"), "adapt to be one of"),  # type: ignore[arg-type]
        (lambda: LevenbergMarquardt(trust_radius=-1.0), "trust_radius"),
        (lambda: as_system("half"), r"system to be one of .* or NewtonSystem\("),  # type: ignore[arg-type]
        (lambda: as_damping("much"), r"> 0 or LevenbergMarquardt\("),  # type: ignore[arg-type]
    ],
)
def test_bad_parts_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()

"""Stein variational Newton: its system, structures of curvature, damping, and the engine."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import numpyro_ext.kernels as kernels
from numpyro_ext import SVN, SVRG, Minibatch
from numpyro_ext.curvature import (
    Curvature,
    GaussNewton,
    KroneckerBlock,
    ProgramCurvature,
    conjugate_gradients,
)
from numpyro_ext.density import LogDensity
from numpyro_ext.stein import curvature_kernel
from numpyro_ext.stein.damping import judge, within_radius
from numpyro_ext.stein.newton_system import LinearSystem
from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.newton import LevenbergMarquardt, NewtonSystem, choose_solver, solver_costs
from tests import newton_support as support

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)


def curvature_of(values: dict[str, Any], kind: str) -> Curvature:
    if kind == "rows":
        return Curvature(jnp.asarray(values["diagonal"]), rows=jnp.asarray(values["rows"]))
    if kind == "shared":
        return Curvature(jnp.asarray(values["shared"]), rows=jnp.asarray(values["rows"]))
    block = KroneckerBlock(jnp.asarray(values["left"]), jnp.asarray(values["right"]), 0)
    block = KroneckerBlock(block.left, block.right[:, :2, :2], 1)
    return Curvature(
        jnp.asarray(values["diagonal"]),
        jnp.asarray(values["matrix"]),
        jnp.asarray(values["rows"]),
        (block,),
    )


@pytest.mark.parametrize(("kernel", "kind", "number", "dim"), support.CASES)
def test_every_solver_solves_the_system(kernel: str, kind: str, number: int, dim: int) -> None:
    values = support.parts(3, number, dim, 3)
    curvature = curvature_of(values, kind)
    damping = np.linspace(0.5, 1.5, dim)
    dense = np.asarray(curvature.dense())
    np.testing.assert_allclose(
        np.diagonal(dense, axis1=1, axis2=2), curvature.diagonals(), rtol=1e-12
    )
    np.testing.assert_allclose(
        np.einsum("pab,pb->pa", dense, values["z"]), curvature.product(jnp.asarray(values["z"]))
    )
    own = support.own_kernels(kernels)[kernel] or curvature_kernel()
    own = own.with_curvature(kernels.ProductMetric(curvature.mean_products))
    points, scores = jnp.asarray(values["z"]), jnp.asarray(values["scores"])
    interactions = own.interactions(points)
    function = support.KERNELS[kernel](values["z"], dense.mean(0))
    for system, repulsion, solver in support.SYSTEMS:
        if kind == "everything" and solver == "dual":
            continue
        newton = LinearSystem(
            interactions,
            curvature,
            scores,
            jnp.asarray(damping),
            NewtonSystem(system, repulsion, None, 1e-13, 5000),
        )
        expected = support.newton_moves(
            values["z"], values["scores"], dense + np.diag(damping), function, system, repulsion
        )
        found = newton.solve(solver)
        if bool(found.solved):
            np.testing.assert_allclose(found.moves, expected, rtol=1e-6, atol=1e-7)
        else:
            # The variant that need not be definite says so, and moves nothing.
            assert repulsion == "all"
            assert not found.moves.any()


def test_a_system_that_is_not_definite_is_reported() -> None:
    values = support.parts(0, 4, 3, 1)
    nothing = Curvature(jnp.zeros((1, 3)))
    kernel = kernels.RBF(1.0)
    points = jnp.asarray(values["z"])
    interactions = kernel.interactions(points)
    for solver in ("dense", "cg"):
        system = LinearSystem(
            interactions,
            nothing,
            points,
            jnp.zeros(3),
            NewtonSystem("full", "all", None, 1e-10, 200),
        )
        found = system.solve(solver)
        assert not bool(found.solved)
        assert not found.moves.any()


def test_conjugate_gradients_stop_at_the_tolerance_and_say_so() -> None:
    root = np.random.default_rng(0).normal(size=(30, 30))
    matrix, right = jnp.asarray(root @ root.T + np.eye(30)), jnp.asarray(root[0])
    ones = jnp.ones(30)
    for tolerance in (1e-2, 1e-8):
        found = conjugate_gradients(lambda v: matrix @ v, right, ones, tolerance, 500)
        left = np.linalg.norm(right - matrix @ found.solution) / np.linalg.norm(right)
        assert left <= tolerance
        np.testing.assert_allclose(found.residual, left, rtol=1e-4)
    short = conjugate_gradients(lambda v: matrix @ v, right, ones, 1e-8, 5)
    assert int(short.iterations) == 5
    assert float(short.residual) > 1e-8
    assert not bool(conjugate_gradients(lambda v: -matrix @ v, right, ones).definite)


def test_the_solver_is_chosen_by_cost() -> None:
    def best(system: Any, number: int, dim: int, rows: int) -> str:
        curvature = Curvature(jnp.ones((1, dim)), rows=jnp.ones((number, rows, dim)))
        costs = solver_costs(NewtonSystem(system), curvature.sizes, number, dim, number)
        return choose_solver(None, costs)

    assert best("full", 100, 5, 40) == "dense"
    assert best("full", 5, 3000, 32) == "dual"
    assert best("full", 200, 1000, 50) == "cg"
    assert best("block_diagonal", 5, 3000, 32) == "dual"
    assert best("block_diagonal", 50, 8, 100) == "dense"


# -- the curvature of a program ---------------------------------------------------------------

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(12, 2)), GENERATOR.normal(size=12)


def network(x: Any, y: Any, batch: int | None = None) -> None:
    """A network of one layer with a learnt noise scale."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(2))
    v = numpyro.sample("v", dist.Normal(jnp.zeros(3), 2.0).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("N", 12, subsample_size=batch) as i:
        numpyro.sample("y", dist.Normal(jnp.tanh(x[i] @ w) @ v, noise), obs=y[i])


@functools.cache
def target_of(batch: int | None) -> tuple[LogDensity, Any]:
    target = LogDensity(network, KEY, (X, Y, batch), data_chunk=batch and 5)
    return target, target.bind(X, Y, batch)


def program(batch: int | None, **options: Any) -> ProgramCurvature:
    return ProgramCurvature(*target_of(batch), GaussNewton(**options))


def dense(
    batch: int | None, z: Any, rows: dict[str, Any] | None = None, **options: Any
) -> np.ndarray:
    (target, data), found = target_of(batch), program(batch, **options)
    compiled = jax.jit(lambda z: found.at(target, z, data, rows, KEY).dense())
    return np.asarray(compiled(jnp.asarray(z)))


def naive_curvature(z: np.ndarray) -> np.ndarray:
    """J' F J over all rows and the exact curvature of the prior, by hand."""

    def outputs(z: Any) -> Any:
        w, v, log_noise = z[:6].reshape(2, 3), z[6:9], z[9]
        mean = jnp.tanh(X @ w) @ v
        return jnp.stack([mean, jnp.broadcast_to(jnp.exp(log_noise), mean.shape)], 1)

    jacobian = np.asarray(jax.jacfwd(outputs)(jnp.asarray(z)))
    fisher = np.diag([1.0, 2.0]) * np.exp(-2.0 * z[9])
    likelihood = np.einsum("nai,ab,nbj->ij", jacobian, fisher, jacobian)
    return likelihood + np.diag([1.0] * 6 + [0.25] * 3 + [1.0])


Z = np.random.default_rng(5).normal(size=(3, 10))


PRIOR = np.diag([1.0] * 6 + [0.25] * 3 + [1.0])
ROWS = {"N": jnp.arange(4)}


def test_curvature_over_all_rows_is_summed_over_chunks() -> None:
    expected = np.stack([naive_curvature(z) for z in Z])
    for batch in (None, 4):
        np.testing.assert_allclose(dense(batch, Z), expected, rtol=1e-9, atol=1e-9)
    factors = [dense(batch, Z, structure="kfac") for batch in (None, 4)]
    np.testing.assert_allclose(*factors, rtol=1e-9, atol=1e-9)


def test_structures_of_minibatches() -> None:
    batches = [{"N": jnp.arange(i, i + 4)} for i in (0, 4, 8)]
    found = [dense(4, Z, rows) for rows in batches]
    expected = np.stack([naive_curvature(z) for z in Z])
    np.testing.assert_allclose(np.mean(found, 0), expected, rtol=1e-9, atol=1e-9)

    whole = found[0]
    diag = dense(4, Z, ROWS, structure="diag")
    np.testing.assert_allclose(diag, whole * np.eye(10), atol=1e-12)
    low = dense(4, Z, ROWS, structure="low_rank", rank=8)
    np.testing.assert_allclose(low, whole, atol=1e-9)
    low = dense(4, Z, ROWS, structure="low_rank", rank=2)
    np.testing.assert_allclose(low * np.eye(10), diag, atol=1e-9)
    assert np.linalg.matrix_rank(low[0] - np.diag(np.diag(low[0]))) > 0
    sites = program(4, sites=("v", "noise"))
    np.testing.assert_array_equal(sites.coordinates, [6, 7, 8, 9])
    part = dense(4, Z, ROWS, sites=("v", "noise"))
    np.testing.assert_allclose(part, whole[:, 6:, 6:], atol=1e-12)

    factored, whole = dense(4, Z, ROWS, structure="kfac") - PRIOR, whole - PRIOR
    last = dense(4, Z, ROWS, structure="kfac", sites=("v", "noise"))
    np.testing.assert_allclose(last - PRIOR[6:, 6:], factored[:, 6:, 6:], atol=1e-12)
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


def test_bad_curvature_is_refused() -> None:
    with pytest.raises(ArgumentError, match="structure to be one of"):
        GaussNewton("hessian")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="latent sites"):
        program(4, sites=("u",))

    def factor() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 3):
            numpyro.factor("f", -((z - 1.0) ** 2) * jnp.ones(3))

    with pytest.raises(ArgumentError, match="found the factors"):
        SVN(factor).init(KEY)


# -- damping ----------------------------------------------------------------------------------


def test_damping_follows_the_model() -> None:
    gain, loss = jnp.asarray([2.0, 2.0]), jnp.asarray([1.0, 1.0])
    before = jnp.asarray([0.0, 0.0])

    def judged(*after: float, solved: bool = True) -> Any:
        return judge(gain, loss, before, jnp.asarray(after), jnp.asarray(1.0), jnp.asarray(solved))

    exact = judged(1.0, 1.0)
    assert bool(exact.accepted.all())
    assert float(exact.damping) < 1.0
    poor = judged(0.0, 0.0)
    assert bool(poor.accepted.all())
    assert float(poor.damping) > 1.0
    np.testing.assert_array_equal(judged(1.0, -4.0).accepted, [True, False])
    np.testing.assert_array_equal(judged(1.0, np.nan).accepted, [True, False])
    unsolved = judged(1.0, 1.0, solved=False)
    assert not bool(unsolved.accepted.any())
    assert float(unsolved.damping) > float(poor.damping)


def test_moves_stay_within_the_radius() -> None:
    moves = jnp.asarray([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0]])
    scale = jnp.asarray([1.0, 4.0])
    found = within_radius(moves, scale, 1.0)
    np.testing.assert_allclose(found[1:], moves[1:])
    np.testing.assert_allclose((found[0] ** 2 * scale).mean(), 1.0)
    np.testing.assert_array_equal(within_radius(moves, scale, None), moves)


# -- the engine -------------------------------------------------------------------------------

ROOT = np.random.default_rng(1).normal(size=(5, 5))
COVARIANCE = ROOT @ ROOT.T / 5 + 0.1 * np.eye(5)
MEAN = np.array([5.0, -3.0, 2.0, 0.0, 8.0])


def gaussian() -> None:
    numpyro.sample("z", dist.MultivariateNormal(MEAN, COVARIANCE))


def test_a_normal_is_exact_in_twenty_steps() -> None:
    engine = SVN(gaussian, num_particles=100)
    result = engine.run(KEY, 20, progress_bar=False)
    z = np.asarray(engine.get_samples(result.state)["z"])
    assert np.abs((z.mean(0) - MEAN) / np.sqrt(np.diag(COVARIANCE))).max() < 0.01
    error = np.linalg.norm(np.cov(z.T) - COVARIANCE) / np.linalg.norm(COVARIANCE)
    assert error < 0.02


def test_particles_repel_without_a_score() -> None:
    def flat() -> None:
        numpyro.sample("z", dist.Normal(jnp.zeros(2), 1e4).to_event(1))

    engine = SVN(
        flat, kernel=kernels.RBF(1.0), num_particles=2, damping=LevenbergMarquardt(adapt=False)
    )
    state = engine.init(KEY)
    start = jnp.asarray([[0.0, 0.0], [0.5, 0.2]])
    state = state._replace(algorithm=state.algorithm._replace(particles=start))
    moved = engine.particles(engine.update(state)[0])
    assert np.linalg.norm(moved[0] - moved[1]) > np.linalg.norm(start[0] - start[1])


def test_a_step_is_the_reference_on_a_network() -> None:
    engine = SVN(
        network, num_particles=3, step_size=1.0, damping=LevenbergMarquardt(0.5, adapt=False)
    )
    state = engine.init(KEY, X, Y)
    state = state._replace(algorithm=state.algorithm._replace(particles=jnp.asarray(Z)))
    found = engine.particles(engine.update(state, X, Y)[0]) - Z
    dense = np.stack([naive_curvature(z) for z in Z])
    scale = np.diagonal(dense, axis1=1, axis2=2).mean(0)
    scores = engine.target.score(jnp.asarray(Z), engine.data).score
    expected = support.newton_moves(
        Z,
        np.asarray(scores),
        dense + np.diag(0.5 * np.maximum(scale, 1e-3 * scale.mean())),
        support.default(Z, dense.mean(0)),
        "full",
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sites_take_newton_steps_and_others_follow_the_optimizer() -> None:
    engine = SVN(
        network,
        optax.sgd(1e-2),
        num_particles=3,
        curvature=GaussNewton(sites=["v", "noise"]),
        step_size=1.0,
        damping=LevenbergMarquardt(adapt=False),
    )
    state = engine.init(KEY, X, Y)
    optimizer = engine.optim.init(jnp.asarray(Z[:, :6]))
    state = state._replace(
        algorithm=state.algorithm._replace(particles=jnp.asarray(Z), optimizer=optimizer)
    )
    found = np.asarray(engine.particles(engine.update(state, X, Y)[0]) - Z)
    dense = np.stack([naive_curvature(z) for z in Z])[:, 6:, 6:]
    scores = np.asarray(engine.target.score(jnp.asarray(Z), engine.data).score)
    scale = np.diagonal(dense, axis1=1, axis2=2).mean(0)
    expected = support.newton_moves(
        Z[:, 6:],
        scores[:, 6:],
        dense + np.diag(np.maximum(scale, 1e-3 * scale.mean())),
        support.default(Z[:, 6:], dense.mean(0)),
        "full",
    )
    np.testing.assert_allclose(found[:, 6:], expected, rtol=1e-6)
    kernel = kernels.default_kernel()
    others = jnp.asarray(Z[:, :6])
    phi, _ = kernel.direction(kernel.init(others), others, jnp.asarray(scores[:, :6]))
    np.testing.assert_allclose(found[:, :6], 1e-2 * phi, rtol=1e-8)


def narrow() -> None:
    x = numpyro.sample("x", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Normal(jnp.exp(3.0 * x), 1.0), obs=1.0)


def regression(x: Any, y: Any, batch: int | None = None) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("N", 12, subsample_size=batch) as i:
        numpyro.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])


def test_steps_that_would_lower_the_density_are_taken_back() -> None:
    engine = SVN(narrow, num_particles=2, damping=1e-6, step_size=1.0)
    state = engine.init(KEY)
    start = jnp.asarray([[-2.0], [-1.5]])
    state = state._replace(algorithm=state.algorithm._replace(particles=start))
    result = engine.run(KEY, 40, init_state=state, progress_bar=False)
    assert result.info["accepted"].min() < 1.0
    assert result.info["damping"].max() > 1e-6
    assert np.isfinite(result.losses).all()
    # An undamped step from -1.5 ends at 2.8, where exp(3 x) is 4,000.
    assert np.abs(engine.particles(result.state)).max() < 5.0


@pytest.mark.parametrize(
    "options",
    [
        {"curvature": GaussNewton("kfac", every=3), "system": "block_diagonal"},
        {"curvature": GaussNewton("diag", ["v"]), "optim": optax.adam(0.01), "estimator": SVRG(4)},
    ],
    ids=["kfac", "diag"],
)
def test_runs_go_on_exactly(options: dict[str, Any], tmp_path: Any) -> None:
    options = {"estimator": Minibatch(), **options}
    engine = SVN(network, num_particles=3, **options)
    whole = engine.run(KEY, 7, X, Y, 4, progress_bar=False)
    assert np.isfinite(whole.losses).all()
    first = engine.run(KEY, 4, X, Y, 4, progress_bar=False)
    engine.save(tmp_path / "state.npz", first.state)
    again = SVN(network, num_particles=3, **options)
    state = again.load(tmp_path / "state.npz", X, Y, 4)
    rest = again.run(KEY, 3, X, Y, 4, init_state=state, progress_bar=False)
    np.testing.assert_array_equal(again.particles(rest.state), engine.particles(whole.state))
    other = SVN(network, num_particles=3, **{**options, "optim": optax.sgd(0.1, momentum=0.9)})
    with pytest.raises(ArgumentError, match="optimizer"):
        other.load(tmp_path / "state.npz", X, Y, 4)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ArgumentError, match="system to be one of"):
        SVN(gaussian, system="half")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="optimizer with sites"):
        SVN(gaussian, curvature=GaussNewton(sites=["z"]))
    with pytest.raises(ArgumentError, match="gradient at each pair"):
        SVN(gaussian, kernel=kernels.RandomFeature(3)).run(KEY, 1, progress_bar=False)
    with pytest.raises(ArgumentError, match="solver among"):
        SVN(gaussian, system=NewtonSystem(solver="dual"), num_particles=3).run(
            KEY, 1, progress_bar=False
        )
    with pytest.raises(ArgumentError, match="computes curvature"):
        kernel = kernels.RBF(metric="curvature")
        kernel.direction({}, jnp.ones((3, 2)), jnp.ones((3, 2)))


def test_minibatches_have_their_own_curvature() -> None:
    engine = SVN(
        network,
        num_particles=3,
        estimator=Minibatch("cyclic"),
        step_size=lambda step: 1.0 - 0.5 * (step > 0),
        damping=LevenbergMarquardt(adapt=False),
    )
    state = engine.init(KEY, X, Y, 4)
    state = state._replace(algorithm=state.algorithm._replace(particles=jnp.asarray(Z)))
    found = []
    for _ in range(2):
        state, _ = engine.update(state, X, Y, 4)
        found.append(np.asarray(engine.particles(state)))
    start = Z
    for index, (after, share) in enumerate(zip(found, (1.0, 0.5), strict=True)):
        rows = {"N": jnp.arange(4 * index, 4 * index + 4)}
        whole = dense(4, start, rows)
        scale = np.diagonal(whole, axis1=1, axis2=2).mean(0)
        scores = np.asarray(engine.target.score(jnp.asarray(start), engine.data, rows).score)
        expected = support.newton_moves(
            start,
            scores,
            whole + np.diag(np.maximum(scale, 1e-3 * scale.mean())),
            support.default(start, whole.mean(0)),
            "full",
        )
        np.testing.assert_allclose(after - start, share * expected, rtol=1e-6)
        start = after


def test_a_move_that_is_taken_back_leaves_the_particle() -> None:
    for options in ({"step_size": 1.0}, {"optim": optax.sgd(1.0)}):
        engine = SVN(narrow, num_particles=2, damping=1e-6, **options)
        start = np.array([[-2.0], [-1.5]])
        state = engine.init(KEY)
        algorithm = state.algorithm._replace(particles=jnp.asarray(start))
        if engine.optim is not None:
            algorithm = algorithm._replace(optimizer=engine.optim.init(jnp.asarray(start)))
        result = engine.run(
            KEY, 1, init_state=state._replace(algorithm=algorithm), progress_bar=False
        )
        moved = np.asarray(engine.particles(result.state))
        assert result.info["accepted"][0] == 0.0
        np.testing.assert_array_equal(moved, start)
        result = engine.run(KEY, 30, init_state=result.state, progress_bar=False)
        moved = np.asarray(engine.particles(result.state))
        # The optimizer has not gone on without the particles.
        assert np.abs(moved).max() < 5.0
        assert (moved != start).any()


def test_an_optimizer_takes_the_newton_direction() -> None:
    plain = SVN(network, num_particles=3, step_size=0.5)
    given = SVN(network, optax.sgd(0.5), num_particles=3)
    first = plain.run(KEY, 4, X, Y, progress_bar=False)
    second = given.run(KEY, 4, X, Y, progress_bar=False)
    np.testing.assert_allclose(
        plain.particles(first.state), given.particles(second.state), rtol=1e-9
    )


def test_damping_falls_with_reduced_variance_too() -> None:
    for estimator in (SVRG(3), Minibatch()):
        engine = SVN(regression, num_particles=10, estimator=estimator)
        result = engine.run(KEY, 30, X, Y, 4, progress_bar=False)
        damping = result.info["damping"][-1]
        assert damping < 0.1


def test_a_start_that_is_far_off() -> None:
    def far() -> None:
        numpyro.sample("z", dist.Normal(jnp.zeros(3), 1e-3).to_event(1))

    engine = SVN(far, num_particles=10)
    result = engine.run(KEY, 30, progress_bar=False)
    z = np.asarray(engine.get_samples(result.state)["z"])
    assert np.abs(z.mean(0)).max() < 1e-4


def test_a_narrow_prior_hides_no_couplings() -> None:
    def model() -> None:
        numpyro.sample("c", dist.Normal(1.0, 1e-8))
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("J", 3):
            numpyro.sample("theta", dist.Normal(mu, 1.0))

    target = LogDensity(model, KEY, ())
    data = target.bind()
    found = ProgramCurvature(target, data, GaussNewton())
    assert found.prior.form == "hessian"


def test_what_has_no_curvature_is_refused() -> None:
    def mixed() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 3):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=jnp.zeros(3))
            numpyro.factor("f", -((z - 1.0) ** 2) * jnp.ones(3))

    def local() -> None:
        with numpyro.plate("N", 6, subsample_size=2):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=jnp.zeros(2))

    with pytest.raises(ArgumentError, match="found the factors"):
        SVN(mixed).init(KEY)
    with pytest.raises(ModelCheckError, match="[Ll]atent"):
        SVN(local).init(KEY)
    with pytest.raises(ArgumentError, match="found all of them"):
        SVN(network, optax.sgd(0.1), curvature=GaussNewton(sites=["w", "v", "noise"])).init(
            KEY, X, Y
        )

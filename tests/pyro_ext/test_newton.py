"""Stein variational Newton: its system, structures of curvature, damping, and the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_ext.kernels as kernels
from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.newton import LevenbergMarquardt, NewtonSystem, choose_solver, solver_costs
from pyro_ext import SVN, SVRG, Minibatch
from pyro_ext.curvature import (
    Curvature,
    GaussNewton,
    KroneckerBlock,
    ProgramCurvature,
    conjugate_gradients,
    gauss_newton,
)
from pyro_ext.curvature.fisher import drawn_values
from pyro_ext.curvature.kronecker import KRONECKER_STEPS
from pyro_ext.density import LogDensity
from pyro_ext.stein import curvature_kernel
from pyro_ext.stein.damping import judge, within_radius
from pyro_ext.stein.newton_system import LinearSystem
from tests import newton_support as support


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def curvature_of(values: dict[str, Any], kind: str) -> Curvature:
    if kind == "rows":
        return Curvature(torch.as_tensor(values["diagonal"]), rows=torch.as_tensor(values["rows"]))
    if kind == "shared":
        return Curvature(torch.as_tensor(values["shared"]), rows=torch.as_tensor(values["rows"]))
    block = KroneckerBlock(torch.as_tensor(values["left"]), torch.as_tensor(values["right"]), 0)
    block = KroneckerBlock(block.left, block.right[:, :2, :2], 1)
    return Curvature(
        torch.as_tensor(values["diagonal"]),
        torch.as_tensor(values["matrix"]),
        torch.as_tensor(values["rows"]),
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
        np.einsum("pab,pb->pa", dense, values["z"]), curvature.product(torch.as_tensor(values["z"]))
    )
    own = support.own_kernels(kernels)[kernel] or curvature_kernel()
    own = own.with_curvature(kernels.ProductMetric(curvature.mean_products))
    points, scores = torch.as_tensor(values["z"]), torch.as_tensor(values["scores"])
    interactions = own.interactions(points)
    function = support.KERNELS[kernel](values["z"], dense.mean(0))
    for system, repulsion, solver in support.SYSTEMS:
        if kind == "everything" and solver == "dual":
            continue
        newton = LinearSystem(
            interactions,
            curvature,
            scores,
            torch.as_tensor(damping),
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
    nothing = Curvature(torch.zeros((1, 3)))
    kernel = kernels.RBF(1.0)
    points = torch.as_tensor(values["z"])
    interactions = kernel.interactions(points)
    for solver in ("dense", "cg"):
        system = LinearSystem(
            interactions,
            nothing,
            points,
            torch.zeros(3),
            NewtonSystem("full", "all", None, 1e-10, 200),
        )
        found = system.solve(solver)
        assert not bool(found.solved)
        assert not found.moves.any()


def test_conjugate_gradients_stop_at_the_tolerance_and_say_so() -> None:
    root = np.random.default_rng(0).normal(size=(30, 30))
    matrix, right = torch.as_tensor(root @ root.T + np.eye(30)), torch.as_tensor(root[0])
    ones = torch.ones(30)
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
        curvature = Curvature(torch.ones((1, dim)), rows=torch.ones((number, rows, dim)))
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
    w = pyro.sample("w", dist.Normal(torch.zeros((2, 3)), 1.0).to_event(2))
    v = pyro.sample("v", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with pyro.plate("N", 12, subsample_size=batch) as i:
        pyro.sample("y", dist.Normal(torch.tanh(x[i] @ w) @ v, noise), obs=y[i])


ARGUMENTS = torch.from_numpy(X), torch.from_numpy(Y), 4


def target_of(batch: int | None) -> tuple[LogDensity, Any]:
    target = LogDensity(network, ARGUMENTS[:2], {"batch": batch}, data_chunk=batch and 5)
    return target, target.bind(*ARGUMENTS[:2], batch=batch)


def program(batch: int | None, **options: Any) -> ProgramCurvature:
    return ProgramCurvature(*target_of(batch), GaussNewton(**options))


def dense(
    batch: int | None, z: Any, rows: dict[str, Any] | None = None, **options: Any
) -> np.ndarray:
    (target, data), found = target_of(batch), program(batch, **options)
    return found.at(target, torch.as_tensor(z), data, rows).dense().numpy()


def naive_curvature(z: np.ndarray) -> np.ndarray:
    """J' F J over all rows and the exact curvature of the prior, by hand."""

    def outputs(z: Any) -> Any:
        w, v, log_noise = z[:6].reshape(2, 3), z[6:9], z[9]
        mean = torch.tanh(torch.from_numpy(X) @ w) @ v
        return torch.stack([mean, torch.exp(log_noise).expand(mean.shape)], 1)

    jacobian = torch.func.jacrev(outputs)(torch.as_tensor(z)).numpy()
    fisher = np.diag([1.0, 2.0]) * np.exp(-2.0 * z[9])
    likelihood = np.einsum("nai,ab,nbj->ij", jacobian, fisher, jacobian)
    return likelihood + np.diag([1.0] * 6 + [0.25] * 3 + [1.0])


Z = np.random.default_rng(5).normal(size=(3, 10))


PRIOR = np.diag([1.0] * 6 + [0.25] * 3 + [1.0])
ROWS = {"N": torch.arange(4)}


def test_curvature_over_all_rows_is_summed_over_chunks() -> None:
    expected = np.stack([naive_curvature(z) for z in Z])
    for batch in (None, 4):
        np.testing.assert_allclose(dense(batch, Z), expected, rtol=1e-9, atol=1e-9)
    factors = [dense(batch, Z, structure="kfac") for batch in (None, 4)]
    np.testing.assert_allclose(*factors, rtol=1e-9, atol=1e-9)


def test_sweeps_of_one_curvature_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: Any) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros((2, 3)), 1.0).to_event(2))
        with pyro.plate("N", 12, subsample_size=4) as i:
            rate = torch.exp(torch.tanh(x[i] @ w).sum(-1))
            # Its Fisher information is not known.
            pyro.sample("y", dist.Pareto(1.0, rate), obs=2.0 + 0.0 * x[i, 0])

    drawn = []

    def spy(output: Any, *rest: Any) -> Any:
        values = drawn_values(output, *rest)
        drawn.append(torch.stack(list(values)).numpy().copy())
        return values

    target = LogDensity(model, (ARGUMENTS[0],), data_chunk=6)
    data = target.bind(ARGUMENTS[0])
    found = ProgramCurvature(target, data, GaussNewton("kfac"))
    monkeypatch.setattr(gauss_newton, "drawn_values", spy)
    found.at(target, torch.from_numpy(Z[:1, :6]), data, None)
    first, second = drawn[:2]
    assert (first != second).any()
    for sweep in range(2, len(drawn), 2):
        np.testing.assert_array_equal(drawn[sweep : sweep + 2], [first, second])
    assert len(drawn) == 2 * 2 * KRONECKER_STEPS


def test_structures_of_minibatches() -> None:
    batches = [{"N": torch.arange(i, i + 4)} for i in (0, 4, 8)]
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
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 3):
            pyro.factor("f", -((z - 1.0) ** 2) * torch.ones(3), has_rsample=False)

    with pytest.raises(ArgumentError, match="found the factors"):
        SVN(factor).setup()


# -- damping ----------------------------------------------------------------------------------


def test_damping_follows_the_model() -> None:
    gain, loss = torch.as_tensor([2.0, 2.0]), torch.as_tensor([1.0, 1.0])
    before = torch.as_tensor([0.0, 0.0])

    def judged(*after: float, solved: bool = True) -> Any:
        return judge(gain, loss, before, torch.as_tensor(after), 1.0, solved)

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
    moves = torch.as_tensor([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0]])
    scale = torch.as_tensor([1.0, 4.0])
    found = within_radius(moves, scale, 1.0)
    np.testing.assert_allclose(found[1:], moves[1:])
    np.testing.assert_allclose((found[0] ** 2 * scale).mean(), 1.0)
    np.testing.assert_array_equal(within_radius(moves, scale, None), moves)


# -- the engine -------------------------------------------------------------------------------

ROOT = np.random.default_rng(1).normal(size=(5, 5))
COVARIANCE = ROOT @ ROOT.T / 5 + 0.1 * np.eye(5)
MEAN = np.array([5.0, -3.0, 2.0, 0.0, 8.0])


def gaussian() -> None:
    pyro.sample("z", dist.MultivariateNormal(torch.from_numpy(MEAN), torch.from_numpy(COVARIANCE)))


def test_a_normal_is_exact_in_twenty_steps() -> None:
    engine = SVN(gaussian, num_particles=100, seed=0)
    engine.run(20, progress_bar=False)
    z = engine.get_samples()["z"].numpy()
    assert np.abs((z.mean(0) - MEAN) / np.sqrt(np.diag(COVARIANCE))).max() < 0.01
    error = np.linalg.norm(np.cov(z.T) - COVARIANCE) / np.linalg.norm(COVARIANCE)
    assert error < 0.02


def one_step(engine: SVN, start: Any, *arguments: Any) -> np.ndarray:
    """Particles after one step from ``start``."""
    engine.setup(*arguments)
    assert engine._particles is not None
    engine._particles.copy_(torch.as_tensor(start))
    if engine._moved is not None:
        with torch.no_grad():
            engine._moved.copy_(engine._particles[:, engine.plan.others])
    engine.step(*arguments)
    return engine.particles.numpy()


def test_particles_repel_without_a_score() -> None:
    def flat() -> None:
        pyro.sample("z", dist.Normal(torch.zeros(2), 1e4).to_event(1))

    engine = SVN(
        flat, kernel=kernels.RBF(1.0), num_particles=2, damping=LevenbergMarquardt(adapt=False)
    )
    start = torch.as_tensor([[0.0, 0.0], [0.5, 0.2]])
    moved = one_step(engine, start)
    assert np.linalg.norm(moved[0] - moved[1]) > np.linalg.norm(start[0] - start[1])


def test_a_step_is_the_reference_on_a_network() -> None:
    engine = SVN(
        network, num_particles=3, step_size=1.0, damping=LevenbergMarquardt(0.5, adapt=False)
    )
    found = one_step(engine, Z, *ARGUMENTS[:2]) - Z
    dense = np.stack([naive_curvature(z) for z in Z])
    scale = np.diagonal(dense, axis1=1, axis2=2).mean(0)
    scores = engine.target.score(torch.as_tensor(Z), engine.data).score
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
        pyro.optim.SGD({"lr": 1e-2}),
        num_particles=3,
        curvature=GaussNewton(sites=["v", "noise"]),
        step_size=1.0,
        damping=LevenbergMarquardt(adapt=False),
    )
    found = one_step(engine, Z, *ARGUMENTS[:2]) - Z
    dense = np.stack([naive_curvature(z) for z in Z])[:, 6:, 6:]
    scores = np.asarray(engine.target.score(torch.as_tensor(Z), engine.data).score)
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
    others = torch.as_tensor(Z[:, :6])
    phi, _ = kernel.direction(kernel.init(others), others, torch.as_tensor(scores[:, :6]))
    np.testing.assert_allclose(found[:, :6], 1e-2 * phi, rtol=1e-8)


def narrow() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 10.0))
    pyro.sample("y", dist.Normal(torch.exp(3.0 * x), 1.0), obs=torch.tensor(1.0))


def regression(x: Any, y: Any, batch: int | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("N", 12, subsample_size=batch) as i:
        pyro.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])


def test_steps_that_would_lower_the_density_are_taken_back() -> None:
    engine = SVN(narrow, num_particles=2, damping=1e-6, step_size=1.0)
    one_step(engine, [[-2.0], [-1.5]])
    engine.run(39, progress_bar=False)
    assert min(engine.history["accepted"]) < 1.0
    assert max(engine.history["damping"]) > 1e-6
    assert np.isfinite(engine.losses).all()
    # An undamped step from -1.5 ends at 2.8, where exp(3 x) is 4,000.
    assert engine.particles.abs().max() < 5.0


ADAM = pyro.optim.Adam({"lr": 0.01})


@pytest.mark.parametrize(
    "options",
    [
        {"curvature": GaussNewton("kfac", every=3), "system": "block_diagonal"},
        {
            "curvature": GaussNewton("diag", ["v"]),
            "optim": pyro.optim.Adam({"lr": 0.01}),
            "estimator": SVRG(4),
        },
    ],
    ids=["kfac", "diag"],
)
def test_runs_go_on_exactly(options: dict[str, Any], tmp_path: Any) -> None:
    options = {"estimator": Minibatch(), **options}
    whole = SVN(network, num_particles=3, seed=0, **options)
    whole.run(7, *ARGUMENTS, progress_bar=False)
    assert np.isfinite(whole.losses).all()
    first = SVN(network, num_particles=3, seed=0, **options)
    first.run(4, *ARGUMENTS, progress_bar=False)
    first.save(tmp_path / "state.pt")
    again = SVN(network, num_particles=3, seed=1, **options)
    again.load(tmp_path / "state.pt")
    again.run(3, *ARGUMENTS, progress_bar=False)
    torch.testing.assert_close(again.particles, whole.particles, rtol=0.0, atol=0.0)
    other = SVN(network, num_particles=3, **{**options, "optim": pyro.optim.SGD({"lr": 0.1})})
    other.load(tmp_path / "state.pt")
    with pytest.raises(ArgumentError, match="another optimizer: expected SGD"):
        other.setup(*ARGUMENTS)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ArgumentError, match="system to be one of"):
        SVN(gaussian, system="half")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="optimizer with sites"):
        SVN(gaussian, curvature=GaussNewton(sites=["z"]))
    with pytest.raises(ArgumentError, match="gradient at each pair"):
        SVN(gaussian, kernel=kernels.RandomFeature(3)).run(1, progress_bar=False)
    with pytest.raises(ArgumentError, match="solver among"):
        SVN(gaussian, system=NewtonSystem(solver="dual"), num_particles=3).run(
            1, progress_bar=False
        )
    with pytest.raises(ArgumentError, match="computes curvature"):
        kernel = kernels.RBF(metric="curvature")
        kernel.direction({}, torch.ones((3, 2)), torch.ones((3, 2)))


def test_minibatches_have_their_own_curvature() -> None:
    engine = SVN(
        network,
        num_particles=3,
        estimator=Minibatch("cyclic"),
        step_size=lambda step: 1.0 - 0.5 * (step > 0),
        damping=LevenbergMarquardt(adapt=False),
    )
    arguments = ARGUMENTS
    found = [one_step(engine, Z, *arguments)]
    engine.step(*arguments)
    found.append(engine.particles.numpy())
    start = Z
    for index, (after, share) in enumerate(zip(found, (1.0, 0.5), strict=True)):
        rows = {"N": torch.arange(4 * index, 4 * index + 4)}
        whole = dense(4, start, rows)
        scale = np.diagonal(whole, axis1=1, axis2=2).mean(0)
        scores = np.asarray(engine.target.score(torch.as_tensor(start), engine.data, rows).score)
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
    for options in ({"step_size": 1.0}, {"optim": pyro.optim.SGD({"lr": 1.0})}):
        engine = SVN(narrow, num_particles=2, damping=1e-6, **options)
        start = np.array([[-2.0], [-1.5]])
        moved = one_step(engine, start)
        assert engine.history["accepted"][0] == 0.0
        np.testing.assert_array_equal(moved, start)
        engine.run(30, progress_bar=False)
        moved = engine.particles.numpy()
        # The optimizer has not gone on without the particles.
        assert np.abs(moved).max() < 5.0
        assert (moved != start).any()


def test_an_optimizer_takes_the_newton_direction() -> None:
    plain = SVN(network, num_particles=3, step_size=0.5)
    given = SVN(network, pyro.optim.SGD({"lr": 0.5}), num_particles=3)
    one_step(plain, Z, *ARGUMENTS[:2])
    one_step(given, Z, *ARGUMENTS[:2])
    for engine in (plain, given):
        engine.run(3, *ARGUMENTS[:2], progress_bar=False)
    np.testing.assert_allclose(plain.particles, given.particles, rtol=1e-9)


def test_damping_falls_with_reduced_variance_too() -> None:
    for estimator in (SVRG(3), Minibatch()):
        engine = SVN(regression, num_particles=10, estimator=estimator)
        engine.run(30, *ARGUMENTS, progress_bar=False)
        damping = engine.history["damping"][-1]
        assert damping < 0.1


def test_a_start_that_is_far_off() -> None:
    def far() -> None:
        pyro.sample("z", dist.Normal(torch.zeros(3), 1e-3).to_event(1))

    engine = SVN(far, num_particles=10)
    engine.run(30, progress_bar=False)
    z = engine.get_samples()["z"].numpy()
    assert np.abs(z.mean(0)).max() < 1e-4


def test_a_narrow_prior_hides_no_couplings() -> None:
    def model() -> None:
        pyro.sample("c", dist.Normal(1.0, 1e-8))
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("J", 3):
            pyro.sample("theta", dist.Normal(mu, 1.0))

    target = LogDensity(model, (), {})
    data = target.bind()
    found = ProgramCurvature(target, data, GaussNewton())
    assert found.prior.form == "hessian"


def test_what_has_no_curvature_is_refused() -> None:
    def mixed() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 3):
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))
            pyro.factor("f", -((z - 1.0) ** 2) * torch.ones(3), has_rsample=False)

    def local() -> None:
        with pyro.plate("N", 6, subsample_size=2):
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(a, 1.0), obs=torch.zeros(2))

    with pytest.raises(ArgumentError, match="found the factors"):
        SVN(mixed).setup()
    with pytest.raises(ModelCheckError, match="[Ll]atent"):
        SVN(local).setup()
    with pytest.raises(ArgumentError, match="found all of them"):
        SVN(
            network, pyro.optim.SGD({"lr": 0.1}), curvature=GaussNewton(sites=["w", "v", "noise"])
        ).setup(*ARGUMENTS[:2])

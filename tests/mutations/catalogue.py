"""Planted faults: one line of the library each, changed as a slip of the pen would change it.

``old`` is a piece of a line that occurs exactly once in its file, so that a line which has moved
or changed is noticed as such and is not taken for a fault that no test sees. ``tests`` are words in
the names of the test files that are tried first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PACKAGES = {"numpyro_ext": "NumPyro", "pyro_ext": "Pyro"}


@dataclass(frozen=True)
class Mutation:
    """One fault: in ``file`` the text ``old``, found once, becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        """The folder or module of the package that it is in."""
        return self.file.split("/")[1].removesuffix(".py")


def both(
    name: str,
    file: str,
    old: str,
    new: str,
    tests: str,
    *,
    pyro: tuple[str, str] | None = None,
) -> Iterator[Mutation]:
    """The same fault in both packages; ``pyro`` gives its two texts where they differ there."""
    for package, host in PACKAGES.items():
        was, becomes = pyro if pyro is not None and package == "pyro_ext" else (old, new)
        yield Mutation(f"{name} ({host})", f"{package}/{file}", was, becomes, tuple(tests.split()))


def numpyro(name: str, file: str, old: str, new: str, tests: str) -> Iterator[Mutation]:
    """A fault in the NumPyro package alone."""
    path = f"numpyro_ext/{file}"
    yield Mutation(f"{name} (NumPyro)", path, old, new, tuple(tests.split()))


def pyro(name: str, file: str, old: str, new: str, tests: str) -> Iterator[Mutation]:
    """A fault in the Pyro package alone."""
    yield Mutation(f"{name} (Pyro)", f"pyro_ext/{file}", old, new, tuple(tests.split()))


def neutral(name: str, file: str, old: str, new: str, tests: str) -> Iterator[Mutation]:
    """A fault in the package that knows no host."""
    yield Mutation(name, f"ppl_ext/{file}", old, new, tuple(tests.split()))


def _what_is_held() -> Iterator[Mutation]:
    """The door for arguments, where they lie within something, and what models hold themselves."""
    for name, file, old, new in (
        (
            "what a model closes over is not looked at",
            "arguments.py",
            "    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), "
            "strict=True):",
            "    for name, cell in zip((), (), strict=True):",
        ),
        (
            "globals of a model are not looked at",
            "arguments.py",
            "    names = _globals_of(function.__code__)",
            "    names = ()",
        ),
        (
            "containers behind the thousandth are not looked at",
            "arguments.py",
            "_CONTAINERS, _OBJECTS = 100_000, 1_000",
            "_CONTAINERS, _OBJECTS = 1_000, 1_000",
        ),
        (
            "columns of a data frame rounded without a word",
            "arguments.py",
            "return array if place is None else placed_array(name, array, place)",
            "return array if place is None else place(array)",
        ),
        (
            "new rows for a prediction rounded without a word",
            "fit/habits.py",
            "return placed_array(name, new, place)",
            "return place(new)",
        ),
        (
            "numbers beyond single precision become infinite",
            "arguments.py",
            "if largest > float(np.finfo(own).max):",
            "if largest > np.inf:",
        ),
        (
            "batches that swap halves without swapping",
            "target/log_density.py",
            "swaps = (one, two, np.where(half, one, two), np.where(half, two, one))",
            "swaps = (one, two, one, two)",
        ),
        (
            "draws beyond the edge of a support taken for its edge",
            "check/check.py",
            "            far[moved_rows] = True",
            "            far[moved_rows] = False",
        ),
        (
            "entries that a support fixes taken for a point",
            "check/check.py",
            "    if program.fixed is None:",
            "    if True:",
        ),
    ):
        yield from neutral(name, file, old, new, "faults")


def _density() -> Iterator[Mutation]:
    tests = "target density log_density check"
    yield from both(
        "log determinants of transforms left out",
        "density/handlers.py",
        "Delta(zero, log_determinant),",
        "Delta(zero, 0.0 * log_determinant),",
        tests,
        pyro=(
            "self.log_prior = self.log_prior + log_det.sum()",
            "self.log_prior = self.log_prior + 0.0 * log_det.sum()",
        ),
    )
    yield from both(
        "log determinants with the wrong sign",
        "density/handlers.py",
        "Delta(zero, log_determinant),",
        "Delta(zero, -log_determinant),",
        tests,
        pyro=(
            "self.log_prior = self.log_prior + log_det.sum()",
            "self.log_prior = self.log_prior - log_det.sum()",
        ),
    )
    yield from numpyro(
        "scales of plates left out",
        "density/handlers.py",
        "log_prob = scale * log_prob",
        "log_prob = 1.0 * log_prob",
        tests,
    )
    yield from pyro(
        "scales of plates left out",
        "density/handlers.py",
        'log_prob = scale_and_mask(log_prob, msg["scale"], msg["mask"]).sum()',
        'log_prob = scale_and_mask(log_prob, 1.0, msg["mask"]).sum()',
        tests,
    )
    yield from pyro(
        "points that stand for a site have no density",
        "density/handlers.py",
        "if not has_density(msg):",
        "if True:",
        "test_target",
    )
    yield from neutral(
        "data that count several times in a plate are accepted",
        "target/scores.py",
        "times < 2 or",
        "times < 99 or",
        "faults",
    )
    yield from numpyro(
        "sums over discrete sites without the scale of a batch",
        "density/enumeration.py",
        "total = total + scale * _contracted(sites).data",
        "total = total + _contracted(sites).data",
        "discrete",
    )
    yield from pyro(
        "sums over discrete sites without the scale of a batch",
        "density/enumeration.py",
        "total = total + math.prod(scales[name] for name in plates) * term.sum()",
        "total = total + term.sum()",
        "discrete",
    )
    yield from numpyro(
        "values of discrete sites taken for those of all rows",
        "density/replay.py",
        "if frame.name in indices and not is_enumerated(site):",
        "if frame.name in indices:",
        "diagnostics/test_discrete",
    )
    yield from both(
        "discrete sites told by what has no value",
        "density/replay.py",
        "for name, site in every.items() if name not in missing",
        "for name, site in every.items()",
        "diagnostics/test_discrete",
        pyro=(
            "for factor in every.scaled if factor.site not in recorder.missing",
            "for factor in every.scaled",
        ),
    )
    yield from both(
        "predictions given discrete sites of the prior",
        "density/replay.py",
        "(given if at_values else trace)[name]",
        "trace[name]",
        "diagnostics/test_discrete",
        pyro=('given[name] if "discrete" in groups else sites[name]', "sites[name]"),
    )
    yield from numpyro(
        "steps of a chain drawn apart",
        "density/enumeration.py",
        "return {**evidence, name: _added(summed, name, evidence[name], against)}, number",
        "return evidence, number",
        "discrete",
    )
    yield from pyro(
        "the largest term in place of one drawn",
        "density/log_einsum.py",
        "if not context.largest:",
        "if False:",
        "discrete",
    )
    yield from numpyro(
        "prior counted twice",
        "density/bound_model.py",
        "prior = prior + site_log_prob(site)",
        "prior = prior + 2.0 * site_log_prob(site)",
        tests,
    )
    yield from neutral(
        "temperature divides the prior too",
        "target/scores.py",
        "prior + (likelihood if temperature == 1.0 else likelihood / temperature)",
        "(prior + likelihood) / temperature",
        tests,
    )
    yield from neutral(
        "temperature multiplies",
        "target/scores.py",
        "else likelihood / temperature)",
        "else likelihood * temperature)",
        tests,
    )
    yield from both(
        "factors inside a plate counted as prior",
        "density/handlers.py",
        'return is_factor(site) and not site["cond_indep_stack"]',
        "return is_factor(site)",
        tests,
        pyro=("(is_factor(msg) and not plate_frames(msg))", "is_factor(msg)"),
    )
    yield from numpyro(
        "weights of a sweep's chunks left out",
        "density/sweep.py",
        "part = jax.tree.map(lambda leaf, weight=weight: leaf * weight, part)",
        "part = jax.tree.map(lambda leaf, weight=weight: leaf * 1.0, part)",
        tests,
    )
    yield from pyro(
        "weights of a sweep's chunks left out",
        "density/sweep.py",
        "so_far.add(part, alpha=weight)",
        "so_far.add(part)",
        tests,
    )
    yield from numpyro(
        "one key for all initial positions",
        "density/start.py",
        "_bits(random.split(rng_key, num))",
        "_bits(random.split(rng_key, num)[jnp.zeros(num, int)])",
        tests + " engine svgd",
    )
    yield from pyro(
        "graphs: values are read after they have been changed in place",
        "graphs/simplify.py",
        "(node, *node.all_input_nodes)",
        "(node,)",
        "test_simplify",
    )
    yield from pyro(
        "graphs: numbers are carried past changes in place",
        "graphs/simplify.py",
        """    if _touches(node, changed):
        return None
    if node.target not in (*_MULTIPLY""",
        """    if node.target not in (*_MULTIPLY""",
        "test_simplify",
    )
    yield from pyro(
        "a matrix without a factor has a finite score",
        "density/failed_factors.py",
        "added = entries * torch.zeros_like(entries).masked_fill(failed, torch.nan)",
        "added = torch.zeros_like(entries).masked_fill(failed, torch.nan)",
        "failed_factors",
    )
    yield from pyro(
        "a matrix without a factor has one",
        "density/failed_factors.py",
        "results = [_spoiled(each, failed != 0, A) for each in found]",
        "results = [_spoiled(each, failed < 0, A) for each in found]",
        "failed_factors",
    )
    yield from both(
        "rows that obs_mask leaves out are flat where they are seen",
        "density/handlers.py",
        'if msg["type"] == "sample" and msg["name"].startswith(self.name):',
        "if False:",
        "missing_rows",
        pyro=('msg["mask"] = None', 'msg["mask"] = msg["mask"]'),
    )
    yield from both(
        "Jacobians to the power of their sites' densities",
        "density/handlers.py",
        "fn, scale = _unmasked(fn), _of_plates(site)",
        "fn = _unmasked(fn)",
        "log_density",
        pyro=("scale = math.prod(", 'scale = msg["scale"] + 0.0 * math.prod('),
    )
    yield from numpyro(
        "Jacobians are masked as their sites are",
        "density/handlers.py",
        "fn, scale = _unmasked(fn), _of_plates(site)",
        "scale = _of_plates(site)",
        "log_density",
    )
    yield from numpyro(
        "Jacobians of the host's chains are masked as their sites are",
        "density/handlers.py",
        'msg["fn"], msg["scale"] = _unmasked(msg["fn"]), _of_plates(msg)',
        'msg["scale"] = _of_plates(msg)',
        "warm_chains",
    )
    yield from pyro(
        "Jacobians of a batch of rows count as those of all",
        "density/handlers.py",
        "log_det = scale * log_det",
        "log_det = 1.0 * log_det",
        "log_density",
    )
    yield from pyro(
        "angles of other turns are left there",
        "density/handlers.py",
        "return torch.remainder(y + math.pi, 2.0 * math.pi) - math.pi",
        "return y",
        "programs",
    )
    yield from pyro(
        "angles end before half a turn",
        "density/handlers.py",
        "constraints.interval(-math.pi, math.pi)",
        "constraints.interval(-math.pi, 0.5 * math.pi)",
        "programs",
    )
    yield from numpyro(
        "bounds of a scan's first steps are of the rest",
        "density/handlers.py",
        'lambda site: transform_of(site).inv(site["value"])',
        'lambda site: transform_of(trace[name]).inv(site["value"])',
        "test_target",
    )
    yield from neutral(
        "Stan's parameters go with rejected generated quantities",
        "stan/density.py",
        "found[: len(values)] = values",
        "found[: len(values)] = np.nan",
        "test_stan",
    )
    yield from pyro(
        "graphs: a number minus a tensor the other way round",
        "graphs/simplify.py",
        "return torch.sub, (held, value), {}",
        "return torch.sub, (value, held), {}",
        "test_simplify",
    )
    yield from pyro(
        "graphs: numbers of half precision are rounded",
        "graphs/simplify.py",
        "value.dtype in (torch.float32, torch.float64)",
        "value.dtype.is_floating_point",
        "test_simplify",
    )
    yield from pyro(
        "graphs: cross entropy of the other label",
        "graphs/short_functions.py",
        "(1.0 - target) * input",
        "target * input",
        "test_simplify test_log_density",
    )
    yield from pyro(
        "graphs: results written over values that are read later",
        "graphs/reuse.py",
        "return not shared and last[root] == order[node] and _has_own_memory(root)",
        "return not shared and _has_own_memory(root)",
        "test_reuse",
    )
    yield from pyro(
        "graphs: results written over inputs",
        "graphs/reuse.py",
        "last[root] == order[node] and _has_own_memory(root)",
        "last[root] == order[node]",
        "test_reuse",
    )
    yield from pyro(
        "graphs: results written over values of another layout",
        "graphs/reuse.py",
        "if not alike or not (old.is_contiguous() and new.is_contiguous()):",
        "if not alike:",
        "test_reuse",
    )
    yield from pyro(
        "graphs: a copy taken for a view",
        "graphs/simplify.py",
        "and _is_inside(left, node) else None",
        "else None",
        "test_simplify",
    )
    yield from pyro(
        "priors added in place: locations of other entries",
        "density/evaluation.py",
        "torch.sub(loc[:, piece], z[:, part], out=residual)",
        "torch.sub(loc[:, :1], z[:, part], out=residual)",
        "test_pyro_only",
    )
    yield from pyro(
        "graphs: arithmetic of integers by NumPy's rules",
        "graphs/numpy_graph.py",
        "if given != {dtype}:",
        "if not given:",
        "test_simplify",
    )
    yield from numpyro(
        "steps of a run by another program when it is cut",
        "programs/program.py",
        "min(count, switch - first)",
        "count",
        "test_programs",
    )
    yield from numpyro(
        "programs found that delete other arguments",
        "programs/program.py",
        "(digest, self._donated, signature)",
        "(digest, signature)",
        "test_operations",
    )
    for what, old, new in (
        ("constants", "hashed.update(self._array(constant))", "self._array(constant)"),
        ("options", "(name, self._option(value))", "name"),
        ("places of arguments", 'yield f"v{places[atom]}"', 'yield "v"'),
        ("signs of zeros", "(type(value), repr(value))", "(type(value), value)"),
    ):
        yield from numpyro(
            f"programs found without what they differ in: {what}",
            "programs/operations.py",
            old,
            new,
            "test_operations",
        )


def _gradients() -> Iterator[Mutation]:
    tests = "gradients variance_reduction"
    yield from neutral(
        "variance reduction with the wrong sign",
        "gradients/estimator.py",
        "here.score - there.score + exact.score",
        "here.score + there.score - exact.score",
        tests,
    )
    yield from neutral(
        "score at the anchor not taken off",
        "gradients/estimator.py",
        "here.score - there.score + exact.score",
        "here.score + exact.score",
        tests,
    )
    yield from both(
        "stale anchor beside a new exact score",
        "gradients/reduced_variance.py",
        '"anchor": anchor, "exact": exact, "anchor_age"',
        '"anchor": state["anchor"], "exact": exact, "anchor_age"',
        tests,
    )
    yield from neutral(
        "N/B left out of the table's correction",
        "gradients/reduced_variance.py",
        "likelihood = number * change.mean(0) + total",
        "likelihood = change.mean(0) + total",
        tests,
    )
    yield from neutral(
        "rows of the table that are drawn in rounds",
        "gradients/reduced_variance.py",
        'sampling: Sampling = "replacement"',
        'sampling: Sampling = "reshuffle"',
        tests,
    )
    yield from both(
        "sum of the table with the wrong sign",
        "gradients/reduced_variance.py",
        '"sum": total + jnp.where(first',
        '"sum": total - jnp.where(first',
        tests,
        pyro=('"sum": total + change[first].sum(0)', '"sum": total - change[first].sum(0)'),
    )
    yield from numpyro(
        "swapped rows of the table",
        "gradients/reduced_variance.py",
        '"table": table.at[rows].set(gradient)',
        '"table": table.at[rows[::-1]].set(gradient)',
        tests,
    )
    yield from neutral(
        "a step that is not finite stays in the table's sum",
        "gradients/reduced_variance.py",
        "xp.where(sound, change, 0.0)",
        "change",
        tests,
    )
    yield from numpyro(
        "one key for all minibatches",
        "gradients/minibatch.py",
        'state = {**state, "rng_key": rng_key}',
        "state = {**state}",
        tests,
    )
    yield from pyro(
        "draws where the density is not finite are as good as others",
        "sgmcmc/kernel.py",
        "diverging = diverging | broken | ~torch.isfinite(energies)",
        "diverging = diverging | broken",
        "test_sgmcmc",
    )
    yield from pyro(
        "a batch with fewer rows counts as much as the others",
        "gradients/minibatch.py",
        "share = len(batches) * num_rows(batch) / self._all_rows",
        "share = 1.0",
        "gradients test_full_data",
    )
    yield from pyro(
        "minibatches overlap",
        "gradients/minibatch.py",
        'following[name] = {"order": order, "position": position + count}',
        'following[name] = {"order": order, "position": position + 1}',
        tests,
    )
    yield from numpyro(
        "one key for all noise",
        "gradients/noisy.py",
        'found._replace(score=score), {"rng_key": rng_key,',
        'found._replace(score=score), {"rng_key": state["rng_key"],',
        "noisy gradients",
    )
    yield from numpyro(
        "last rows of an order never drawn",
        "gradients/permutation.py",
        "ended = position + count > size",
        "ended = position + count >= size",
        "permutation gradients",
    )
    yield from both(
        "batches of unequal size weighted alike",
        "gradients/full_data.py",
        "weight = num_rows(group[0]) / total",
        "weight = 1.0 / len(batches)",
        "full_data gradients",
        pyro=("weight = num_rows(batch) / total", "weight = 1.0 / len(batches)"),
    )


def _kernels() -> Iterator[Mutation]:
    tests = "kernels metrics"
    for kernel in ("rbf", "imq"):
        yield from neutral(
            f"{kernel.upper()}: repulsion with the wrong sign",
            f"kernels/{kernel}.py",
            "frame.gradients(2.0 / ",
            "frame.gradients(-2.0 / ",
            tests,
        )
    yield from neutral(
        "RBF: repulsion dropped",
        "kernels/rbf.py",
        "frame.gradients(2.0 / ",
        "frame.gradients(0.0 / ",
        tests,
    )
    yield from neutral(
        "IMQ: slope of the wrong power",
        "kernels/imq.py",
        "slopes = values / base * (-self.exponent)",
        "slopes = values * (-self.exponent)",
        tests,
    )
    yield from neutral(
        "linear kernel: repulsion dropped",
        "kernels/linear.py",
        "drift / (num * dim) + weighted, state",
        "drift / (num * dim), state",
        tests,
    )
    yield from neutral(
        "median bandwidth by the wrong logarithm",
        "kernels/bandwidth.py",
        "0.5 * (lower + upper) / math.log(num + 1)",
        "0.5 * (lower + upper) / math.log(num)",
        tests,
    )
    yield from neutral(
        "distances without centring",
        "kernels/arrays.py",
        "return shifted - shifted.mean(axis=0)",
        "return particles",
        tests,
    )
    yield from both(
        "squared distances with products counted once",
        "kernels/arrays.py",
        "squared = totals - 2.0 * products",
        "squared = totals - products",
        tests,
        pyro=("products, alpha=-2.0)", "products, alpha=-1.0)"),
    )
    yield from both(
        "upper one of the two middle values left out",
        "kernels/arrays.py",
        "return lower, jnp.where(ties, lower,",
        "return lower, jnp.where(True, lower,",
        tests,
        pyro=("values.new_tensor(ordered[upper_rank:].min())", "lower"),
    )
    yield from neutral(
        "sum of kernels without the direction of a user's own term",
        "kernels/base.py",
        "if type(term).direction is direction_at_points:",
        'if hasattr(term, "direction_at"):',
        tests,
    )
    yield from neutral(
        "sum of kernels keeps the last only",
        "kernels/base.py",
        "total = total + phi",
        "total = phi",
        tests,
    )
    for fault, old, new in (
        (
            "slopes of the affine part left out",
            "removed(scores) - affine.slopes",
            "removed(scores)",
        ),
        ("slopes with the wrong sign", "removed(scores) - affine", "removed(scores) + affine"),
        ("direction not projected", "* affine.removed(phi), state", "* phi, state"),
        ("mean left in", "centred = values - values.mean(axis=0)", "centred = values"),
        ("shared gradients with the wrong sign", "(-once[None] / num", "(once[None] / num"),
    ):
        yield from neutral(
            f"semi-exact kernel: {fault}", "kernels/semi_exact.py", old, new, "semi_exact"
        )
    yield from neutral(
        "additive kernel: repulsion with the wrong sign",
        "kernels/additive.py",
        "-apart / width * values",
        "apart / width * values",
        "semi_exact",
    )
    yield from neutral(
        "kernels of one coordinate: the terms of a sum with one bandwidth",
        "kernels/additive.py",
        '("bumps", float(self.bandwidth))',
        '("bumps",)',
        "semi_exact",
    )
    yield from neutral(
        "default kernel: a quarter as many particles as pairs is enough",
        "kernels/rules.py",
        "4 * number > dim**2",
        "4 * number >= dim**2",
        "kernels",
    )
    yield from neutral(
        "default kernel: one coordinate taken for a pair",
        "kernels/rules.py",
        "return dim > 1 and ",
        "return ",
        "kernels",
    )
    yield from neutral(
        "preconditioned kernel: scores not pushed forward",
        "kernels/preconditioned.py",
        "frame.pushed_forward(scores)",
        "scores",
        tests,
    )
    yield from neutral(
        "metric of variances squared",
        "kernels/coordinates.py",
        "root = arrays.inverse_root(functions.where(usable, variance, 1.0))",
        "root = arrays.inverse_root(functions.where(usable, variance, 1.0)) ** 2",
        tests,
    )
    yield from neutral(
        "graphical kernel: neighbours left out",
        "kernels/groups.py",
        "dict.fromkeys((*own, *neighbours.get(name, ())))",
        "dict.fromkeys((*own,))",
        tests,
    )


def _stein() -> Iterator[Mutation]:
    yield from both(
        "particles move against their direction",
        "stein/particles.py",
        "self.optim.update(-phi,",
        "self.optim.update(phi,",
        "svgd engine",
        pyro=("optimizer.step({_NAME: -phi})", "optimizer.step({_NAME: phi})"),
    )
    yield from neutral(
        "WGD: repulsion with the wrong sign",
        "stein/particles.py",
        "return scores + len(particles) * away / density",
        "return scores - len(particles) * away / density",
        "wgd svgd rivals kernels",
    )
    yield from neutral(
        "WGD: repulsion divided by the number of particles",
        "stein/particles.py",
        "return scores + len(particles) * away / density",
        "return scores + away / density",
        "wgd svgd rivals kernels",
    )
    yield from both(
        "annealing left out",
        "stein/particles.py",
        "annealed(scores, self.annealing,",
        "annealed(scores, None,",
        "svgd",
    )
    yield from neutral(
        "damping falls where it should grow",
        "stein/newton.py",
        "FALL, GROWTH = 1.0 / 3.0, 2.0",
        "FALL, GROWTH = 2.0, 1.0 / 3.0",
        "newton damping",
    )
    yield from neutral(
        "forecast of a step with the wrong sign",
        "stein/damping.py",
        "predicted_gain - predicted_loss, after - before",
        "predicted_gain + predicted_loss, after - before",
        "newton damping",
    )
    yield from neutral(
        "a density that rose is enough to take a Newton step",
        "stein/damping.py",
        "believed = shortfall <= newton.REFUSED",
        "believed = actual >= 0.0",
        "newton damping",
    )
    yield from neutral(
        "trust radius of a move that was taken back",
        "stein/damping.py",
        "NARROWING * proposal.lengths",
        "radius",
        "newton damping",
    )
    yield from neutral(
        "trust radius of a move without a length",
        "stein/damping.py",
        "xp.where(proposal.lengths > 0.0, newton.NARROWING",
        "xp.where(proposal.lengths >= 0.0, newton.NARROWING",
        "newton damping",
    )
    yield from neutral(
        "old density of a Newton step without its temperature",
        "stein/damping.py",
        "old = own.log_density(target.likelihood_temperature)",
        "old = own.log_density(1.0)",
        "newton",
    )
    yield from both(
        "diagonal blocks with the kernel of the full system",
        "stein/svn.py",
        'if coupling == "block_diagonal":',
        "if False:",
        "newton",
    )
    yield from neutral(
        "damping left out of the Newton system",
        "stein/newton_system.py",
        "diagonal=found.diagonal + self.damping",
        "diagonal=found.diagonal + 0.0 * self.damping",
        "newton",
    )
    yield from neutral(
        "Newton: repulsion with the wrong sign",
        "stein/newton_system.py",
        "right = self.scores + inverse @ repulsion",
        "right = self.scores - inverse @ repulsion",
        "newton",
    )
    yield from neutral(
        "block system: kernel not squared",
        "stein/newton_system.py",
        "weights = gram**2 / number",
        "weights = gram / number",
        "newton",
    )


def _curvature() -> Iterator[Mutation]:
    yield from neutral(
        "temperature left out of the curvature",
        "curvature/fisher_information.py",
        "factor = self.functions.sqrt(point.weight / temperature)",
        "factor = self.functions.sqrt(point.weight / 1.0)",
        "curvature newton",
    )
    yield from both(
        "rows one by one: N/B counted twice",
        "curvature/gauss_newton.py",
        "share = 1.0 / math.sqrt(count) if structure.scaled_up else 1.0",
        "share = 1.0",
        "curvature newton",
    )
    yield from both(
        "rows of the arguments scaled down",
        "curvature/gauss_newton.py",
        "if structure.scaled_up else 1.0",
        "",
        "curvature",
    )
    yield from neutral(
        "Fisher information of a Normal's scale halved",
        "curvature/fisher_information.py",
        '"Normal LogNormal", self._location_scale(1.0, 2.0)',
        '"Normal LogNormal", self._location_scale(1.0, 1.0)',
        "curvature",
    )
    yield from neutral(
        "Fisher information of a Poisson squared",
        "curvature/fisher_information.py",
        'return (t["rate"] / self.functions.sqrt(p["rate"]))[..., None]',
        'return (t["rate"] / (p["rate"] + 0.0))[..., None]',
        "curvature",
    )
    yield from numpyro(
        "prior's curvature with the wrong sign",
        "curvature/prior.py",
        "return -jax.jvp(",
        "return jax.jvp(",
        "curvature newton",
    )
    yield from pyro(
        "prior's curvature with the wrong sign",
        "curvature/prior.py",
        "return -result",
        "return result",
        "curvature newton",
    )
    yield from neutral(
        "couplings within the prior are not looked for",
        "curvature/prior.py",
        "product(vector * mask)",
        "ones * vector",
        "curvature newton",
    )
    yield from neutral(
        "Woodbury's identity with the wrong sign",
        "curvature/woodbury.py",
        "gram[:, count:, count:] - across.mT @ inner",
        "gram[:, count:, count:] + across.mT @ inner",
        "curvature newton",
    )
    yield from neutral(
        "Newton: repulsion met by the kernel's inverse from one side",
        "stein/newton_system.py",
        "return damped.product(moves) + (inverse @ back) @ basis",
        "return damped.product(moves) + back @ basis",
        "newton",
    )
    yield from neutral(
        "outer products: rows of any rank count as rank one",
        "curvature/outer_products.py",
        "return (left, right), self.functions.ones_like(largest) * beyond",
        "return (left, right), 0.0 * self.functions.ones_like(largest) * beyond",
        "curvature",
    )
    yield from neutral(
        "outer products: always along the first direction",
        "curvature/outer_products.py",
        "first = sizes[0] >= sizes[1]",
        "first = sizes[0] >= 0.0",
        "curvature",
    )
    yield from neutral(
        "sums over chunks of rows: the first chunk's alone",
        "curvature/curvature.py",
        "return {name: carry[name] + part[name] for name in part}",
        "return {name: carry[name] + 0.0 * part[name] for name in part}",
        "curvature laplace newton",
    )
    yield from neutral(
        "leading terms of rows in chunks: their diagonal that of the last chunk",
        "curvature/curvature.py",
        '"total": carry["total"] + (r**2).sum(axis=1)',
        '"total": 0.0 * carry["total"] + (r**2).sum(axis=1)',
        "laplace newton",
    )
    yield from neutral(
        "coordinates side by side: those of other sites count too",
        "curvature/program_curvature.py",
        "if found and (found[-1].part is None) == (part is None):",
        "if found:",
        "curvature",
    )
    yield from pyro(
        "rows of a single output at another scale",
        "curvature/gauss_newton.py",
        "one: Tensor = backward(torch.ones_like(value))[0]",
        "one: Tensor = backward(2.0 * torch.ones_like(value))[0]",
        "curvature",
    )
    yield from neutral(
        "rows left out of the curvature's quadratic form",
        "curvature/curvature.py",
        "(self.rows @ vectors[..., None])",
        "(0.0 * self.rows @ vectors[..., None])",
        "curvature newton",
    )
    yield from neutral(
        "outer products: weights of the rows by products that are not squared",
        "curvature/outer_products.py",
        "((each @ each.mT) ** 2 for each in vectors)",
        "((each @ each.mT) for each in vectors)",
        "curvature",
    )
    yield from pyro(
        "curvature of a constant prior kept where arguments are written into",
        "curvature/program_curvature.py",
        "or versions != kept.versions",
        "or len(versions) != len(kept.versions)",
        "curvature",
    )
    yield from pyro(
        "Fisher information: one draw for all particles",
        "curvature/fisher.py",
        "return values.movedim(1, 0)",
        "return values.movedim(1, 0)[:1].expand_as(values.movedim(1, 0))",
        "pyro_ext/test_newton",
    )
    yield from neutral(
        "rows left out of the dense curvature",
        "curvature/curvature.py",
        "total = total + self.rows.mT @ self.rows",
        "total = total + 0.0 * self.rows.mT @ self.rows",
        "curvature newton",
    )


def _laplace() -> Iterator[Mutation]:
    yield from neutral(
        "draws scaled by the root of the precision",
        "laplace/gaussian.py",
        "self.solve_transposed(self.factor, noise.T).T / self.scale",
        "self.solve_transposed(self.factor, noise.T).T * self.scale",
        "laplace",
    )
    yield from neutral(
        "rows summed up to a matrix before they are factorised",
        "laplace/gaussian.py",
        "return self.dense.of_rows(diagonal, rows)",
        "return self.dense.of(curvature.dense()[0], (diagonal > 0.0).all())",
        "laplace",
    )
    yield from neutral(
        "half of the change of squared singular values",
        "laplace/gaussian.py",
        "values**2 + 2.0 * values * moved",
        "values**2 + values * moved",
        "laplace",
    )
    yield from neutral(
        "log determinant of rows with the wrong sign",
        "laplace/gaussian.py",
        "+ self.xp.log1p(self.values).sum()",
        "- self.xp.log1p(self.values).sum()",
        "laplace",
    )
    yield from neutral(
        "marginal likelihood: volume with the wrong sign",
        "laplace/laplace_ggn.py",
        "- 0.5 * precision.log_determinant()",
        "+ 0.5 * precision.log_determinant()",
        "laplace",
    )
    yield from neutral(
        "prior left out of the precision",
        "curvature/curvature.py",
        "self.diagonal + other.diagonal",
        "0.0 * self.diagonal + other.diagonal",
        "laplace",
    )
    yield from neutral(
        "rows of a minibatch counted for all, where the default structure is chosen",
        "laplace/laplace_ggn.py",
        "each.size / each.subsample_size",
        "1.0",
        "laplace",
    )
    yield from both(
        "hyperparameters move against the evidence",
        "laplace/laplace_ggn.py",
        "-0.5 * posterior.slope_of_log_determinant(",
        "0.5 * posterior.slope_of_log_determinant(",
        "laplace",
        pyro=("= -0.5 * slope, 0", "= 0.5 * slope, 0"),
    )
    yield from neutral(
        "quadratic form of Kronecker factors without their eigenvalues",
        "laplace/gaussian.py",
        "return (self.values * turned**2)",
        "return (turned**2)",
        "laplace",
    )
    yield from neutral(
        "draws outside of their supports pass",
        "diagnostics/replay.py",
        "if flags.any():",
        "if flags.all() and False:",
        "faults",
    )
    yield from neutral(
        "a callback of any form passes",
        "running/run.py",
        "inspect.signature(callback).bind(0, None, {})",
        "inspect.signature(callback)",
        "faults",
    )


def _guides() -> Iterator[Mutation]:
    yield from neutral(
        "Normal guide: log determinant with the wrong sign",
        "guides/normal.py",
        "LOG_TWO_PI) - self.arrays.xp.log(scale).sum()",
        "LOG_TWO_PI) + self.arrays.xp.log(scale).sum()",
        "flat_density",
    )
    yield from neutral(
        "low-rank guide: factor left out of the score",
        "guides/normal.py",
        "return standard - inner @ factor.T, inner",
        "return standard - 0.0 * inner @ factor.T, inner",
        "flat_density",
    )
    yield from neutral(
        "low-rank guide: a column of zeros over its length",
        "guides/normal.py",
        "np.where(lengths > 0.0, lengths, 1.0)",
        "lengths",
        "start/test_guides",
    )
    yield from neutral(
        "low-rank guide: what W explains left out of the square",
        "guides/normal.py",
        "square = (left**2).sum(-1) + (inner**2).sum(-1)",
        "square = (left**2).sum(-1)",
        "flat_density",
    )
    yield from neutral(
        "guide of low-rank layers: the difference of squares",
        "guides/layer_low_rank.py",
        "square = (left**2).sum(-1) + (inner**2).sum((-2, -1))",
        "square = (left * (value - self.loc) / self.scale).sum(-1)",
        "layer_low_rank",
    )
    yield from neutral(
        "matrix Normal: log determinant with rows and columns swapped",
        "guides/matrix_normal.py",
        "total + columns * log(row.diagonal()).sum()",
        "total + rows * log(row.diagonal()).sum()",
        "matrix_normal",
    )
    yield from neutral(
        "mixture: log determinant with the wrong sign",
        "guides/mixture.py",
        "log_weights - log_determinant - 0.5 *",
        "log_weights + log_determinant - 0.5 *",
        "mixture",
    )
    yield from neutral(
        "mixture: weights left out",
        "guides/mixture.py",
        "log_weights - log_determinant - 0.5 *",
        "0.0 * log_weights - log_determinant - 0.5 *",
        "mixture",
    )
    yield from neutral(
        "planar flow: log determinant with the wrong sign",
        "guides/planar_flow.py",
        "((z**2).sum(-1) + self.dim * LOG_TWO_PI) - log_determinant",
        "((z**2).sum(-1) + self.dim * LOG_TWO_PI) + log_determinant",
        "planar_flow",
    )
    yield from both(
        "local reparameterisation: variance for standard deviation",
        "guides/local_reparameterization.py",
        "return mean + square_root(jnp, variance) *",
        "return mean + variance *",
        "row_noise",
        pyro=("return mean + square_root(torch, variance) *", "return mean + variance *"),
    )
    yield from neutral(
        "flipout: one sign for all rows",
        "guides/flipout.py",
        "flipped = use.x * self._factor(use, use.in_axes, use.row_axes[0], use.x)",
        "flipped = use.x",
        "row_noise",
    )


def _long_vectors() -> Iterator[Mutation]:
    for name, file, old, new, tests in [
        ("pieces share their noise", "guides/normal.py", "seed + number", "seed", "pieces"),
        (
            "results in another order",
            "pieces.py",
            "found[number] =",
            "found[-1 - number] =",
            "pieces",
        ),
        (
            "long vectors: gradient of the scale with the wrong sign",
            "score/long_vectors.py",
            "slope.mul_(-2.0)",
            "slope.mul_(2.0)",
            "gradient_steps",
        ),
        (
            "long vectors: weights of the target swapped",
            "score/long_vectors.py",
            "present, weight / (1.0 + weight), out",
            "present, 1.0 / (1.0 + weight), out",
            "gradient_steps",
        ),
        (
            "long vectors: proximal weight left out of later steps",
            "score/long_vectors.py",
            "2.0 * (1.0 + weight) / count",
            "2.0 / count",
            "gradient_steps",
        ),
        ("Adam counts from 0", "optim.py", "+ (number + 1)", "+ number", "gradient_steps"),
        ("Adam forgets steps", "optim.py", '["step"] += num_steps', '["step"] += 1', "gradient"),
    ]:
        yield from pyro(name, file, old, new, tests)
    yield from numpyro(
        "long vectors: sites written over each other",
        "density/layout.py",
        "start += piece.shape[-1]",
        "start += 0",
        "target",
    )
    yield from numpyro(
        "long vectors: draws share their noise",
        "guides/normal.py",
        "row * np.uint32(self.dim) + column",
        "column",
        "flat_density",
    )
    yield from numpyro(
        "derivative of softplus at the other sign",
        "guides/softplus.py",
        "jnp.where(x < 0.0, small, 1.0) * (2.0",
        "jnp.where(x < 0.0, 1.0, small) * (2.0",
        "flat_density",
    )


def _score() -> Iterator[Mutation]:
    yield from neutral(
        "proximal term dropped",
        "score_matching/proximal.py",
        "return (score + weight * present_score) / (1.0 + weight)",
        "return score",
        "proximal",
    )
    yield from neutral(
        "proximal term without its weight in the mean",
        "score_matching/proximal.py",
        "return (score + weight * present_score) / (1.0 + weight)",
        "return score + weight * present_score",
        "proximal",
    )
    yield from neutral(
        "regression: mean moves against its score",
        "score_matching/regression/full.py",
        "move = offset + step.covariance @",
        "move = offset - step.covariance @",
        "regression_full regression",
    )
    yield from neutral(
        "regression: slope with the wrong sign",
        "score_matching/regression/diagonal.py",
        "-halves(score) / moments.scale",
        "halves(score) / moments.scale",
        "regression_diagonal regression",
    )
    yield from neutral(
        "mixture regression: weights of draws left out",
        "score_matching/regression/mixture.py",
        "weights = self.arrays.softmax(self.density.components(parameters).logits)",
        "weights = self.arrays.softmax(0.0 * self.density.components(parameters).logits)",
        "regression_mixture",
    )
    yield from neutral(
        "mixture regression: step of the weights falls with the square of the values",
        "score_matching/regression/mixture.py",
        "step = WEIGHT_STEP / cls.arrays.xp.sqrt(1.0 + state.value_square)",
        "step = WEIGHT_STEP / (1.0 + state.value_square)",
        "regression_mixture",
    )
    yield from both(
        "learning rate does not fall",
        "descent.py",
        "plan.learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * progress(engine, state)))",
        "plan.learning_rate",
        "learning_rate proximal proximal_options",
        pyro=(
            "plan.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress(engine)))",
            "plan.learning_rate",
        ),
    )
    yield from neutral(
        "BaM: shares of old and new mean swapped",
        "score_matching/matching.py",
        "new_mean = (1.0 - share) * mean + share *",
        "new_mean = share * mean + (1.0 - share) *",
        "rivals bam",
    )
    yield from neutral(
        "GSM: covariance with the wrong sign",
        "score_matching/matching.py",
        "(offset.T @ offset - moved.T @ moved)",
        "(moved.T @ moved - offset.T @ offset)",
        "rivals gsm",
    )
    yield from both(
        "GSM: what rounding needs added in the units of one coordinate",
        "score/matching.py",
        "jnp.finfo(mean.dtype).eps * jnp.eye(len(mean), dtype=mean.dtype)",
        "jnp.finfo(mean.dtype).eps * jnp.diag(1.0 / jnp.diagonal(covariance))",
        "matching gsm",
        pyro=(
            "torch.finfo(mean.dtype).eps * torch.eye(len(mean)).to(mean)",
            "torch.finfo(mean.dtype).eps * torch.diag(1.0 / covariance.diagonal()).to(mean)",
        ),
    )
    yield from numpyro(
        "results looked at with the arguments that an engine saw last",
        "engine.py",
        "vars(view).update(vars(self), _bound=ran.bound)",
        "vars(view).update(vars(self))",
        "engine laplace",
    )
    yield from both(
        "Fisher divergence: covariance left out of its norm",
        "score/fisher.py",
        "residual * scale if",
        "residual if",
        "rivals fisher",
    )


def _sgmcmc() -> Iterator[Mutation]:
    yield from numpyro(
        "blocks of the metric in the order of the alphabet",
        "warm_chains.py",
        "names = target.layout.names",
        "names = tuple(sorted(target.layout.names))",
        "test_warm_chains",
    )
    yield from pyro(
        "a flow's log determinant left out",
        "warm_chains.py",
        "found.log_density(target.likelihood_temperature) + log_det",
        "found.log_density(target.likelihood_temperature) + 0.0 * log_det",
        "test_warm_transport",
    )
    yield from both(
        "Langevin noise without its factor two",
        "sgmcmc/dynamics.py",
        "jnp.sqrt(2.0 * size)",
        "jnp.sqrt(size)",
        "sgmcmc",
        pyro=("math.sqrt(2.0 * step_size)", "math.sqrt(step_size)"),
    )
    yield from both(
        "friction left out",
        "sgmcmc/dynamics.py",
        "momentum = decay * momentum +",
        "momentum = momentum +",
        "sgmcmc",
    )
    yield from both(
        "noise of the momentum too large",
        "sgmcmc/dynamics.py",
        "(1.0 - decay**2)",
        "(1.0 - decay)",
        "sgmcmc",
    )
    yield from neutral(
        "cycles begin with their smallest step",
        "sgmcmc/schedules.py",
        "(functions.cos(angle) + 1.0)",
        "(1.0 - functions.cos(angle))",
        "sgmcmc dynamics",
    )
    yield from neutral(
        "necks are looked for within a tenth of a standard deviation",
        "fit/ladder/centring.py",
        "ends = mode.mean + FAR * np.stack",
        "ends = mode.mean + 0.1 * np.stack",
        "test_centring",
    )
    yield from neutral(
        "half the heat of Langevin steps",
        "sgmcmc/kernels.py",
        "return 0.5 * step_size\n",
        "return 0.25 * step_size\n",
        "test_sgmcmc",
    )
    yield from neutral(
        "heat without the mean of the scores",
        "sgmcmc/heat.py",
        "(squares - total**2 / number)",
        "squares",
        "test_sgmcmc",
    )
    yield from neutral(
        "energies of the warm-up count",
        "sgmcmc/energies.py",
        "1.0 * (self.seen >= num_warmup) * counts",
        "1.0 * counts",
        "test_sgmcmc",
    )
    yield from numpyro(
        "an energy that overflows in the warm-up counts",
        "sgmcmc/kernel.py",
        "jnp.where(counts, state.potential_energy, before.last)",
        "state.potential_energy",
        "test_sgmcmc",
    )
    yield from both(
        "draws where the density overflows are as others",
        "sgmcmc/kernel.py",
        "state.diverging | broken | nowhere",
        "state.diverging | broken",
        "test_sgmcmc",
        pyro=("broken | ~torch.isfinite(energies)", "broken"),
    )
    yield from neutral(
        "chains that lie apart agree",
        "sgmcmc/kernels.py",
        "split_r_hat(z.transpose(1, 0, 2))",
        "split_r_hat(z.reshape(-1, 1, z.shape[2]))",
        "test_sgmcmc",
    )
    yield from neutral(
        "chains are not looked at for bounds",
        "sgmcmc/kernels.py",
        "doubts = told_of_bounds(look, ",
        "doubts = told_of_bounds(None, ",
        "test_sgmcmc",
    )
    yield from pyro(
        "Pyro's chains are not compared",
        "sgmcmc/mcmc.py",
        "kernel.look_at(positions)",
        "pass",
        "test_sgmcmc",
    )
    yield from numpyro(
        "draws of chains are put in the wrong order",
        "sgmcmc/kernel.py",
        "self._doubts(z.reshape(num_chains, len(rows), -1), look)",
        "self._doubts(z.reshape(len(rows), num_chains, -1).transpose(1, 0, 2), look)",
        "test_sgmcmc",
    )
    yield from neutral(
        "the noise of minibatches counts as spread",
        "sgmcmc/energies.py",
        "(self.squares - 0.5 * (1.0 + ERRORS / steps**0.5) * self.changes)",
        "self.squares",
        "test_sgmcmc",
    )
    yield from neutral(
        "PSGLD: no word of chains on their way",
        "sgmcmc/kernels.py",
        "if not (worst > ON_THE_WAY).any():",
        "if True:",
        "sgmcmc",
    )
    yield from neutral(
        "exchanges of replicas without the correction for noise",
        "sgmcmc/kernels.py",
        " - 0.5 * gaps**2 * noise",
        "",
        "sgmcmc dynamics",
    )
    yield from neutral(
        "energies of replicas the other way round",
        "sgmcmc/kernels.py",
        "(energy[:, :-1] - energy[:, 1:])",
        "(energy[:, 1:] - energy[:, :-1])",
        "sgmcmc dynamics",
    )
    yield from neutral(
        "PSGLD: preconditioner of squares",
        "sgmcmc/kernels.py",
        "(self.squares / self.weight) ** 0.5)",
        "(self.squares / self.weight))",
        "sgmcmc",
    )


def _microcanonical() -> Iterator[Mutation]:
    for what, file, before, after in (
        (
            "a turn by the whole dimension",
            "dynamics.py",
            "decay = xp.exp(-time * norm / (dim - 1))",
            "decay = xp.exp(-time * norm / dim)",
        ),
        (
            "kinetic energy of the other sign",
            "dynamics.py",
            "error = first + second - (log_density - point.log_density)",
            "error = first + second + (log_density - point.log_density)",
        ),
        (
            "a position without its scale",
            "functions.py",
            "position + length * scale * direction",
            "position + length * direction",
        ),
        (
            "a direction forgotten in half its length",
            "dynamics.py",
            "xp.sqrt(xp.expm1(2.0 * time / length) / dim)",
            "xp.sqrt(xp.expm1(4.0 * time / length) / dim)",
        ),
        (
            "moves accepted by their error turned round",
            "dynamics.py",
            "(log_uniform < -error)",
            "(log_uniform < error)",
        ),
        (
            "a refused move that goes on as it went",
            "dynamics.py",
            "before._replace(direction=-before.direction)",
            "before",
        ),
        (
            "the energy's variance of all dimensions together",
            "tuning.py",
            "(dim * variance + rounding)",
            "(variance + rounding)",
        ),
        (
            "the energy's variance without its spare coordinate",
            "kernel.py",
            "squares / moves / max(2, self.target.dim)",
            "squares / moves / self.target.dim",
        ),
        (
            "autocorrelations without their other side",
            "tuning.py",
            "2.0 * (positive * sums).sum() - sums[0]",
            "(positive * sums).sum()",
        ),
        (
            "a length that a short window makes shorter",
            "tuning.py",
            "return xp.where(shown > least, shown, least)",
            "return shown",
        ),
        (
            "means of pieces that do not count",
            "tuning.py",
            "+ moved**2 * (self.number * count / number)",
            "",
        ),
        (
            "a score in coordinates that are no more",
            "chains.py",
            "dynamics.score * (scale / old)",
            "dynamics.score",
        ),
        (
            "a spare coordinate without a density",
            "dynamics.py",
            "log_density - 0.5 * (spare * spare).sum(-1)",
            "log_density",
        ),
        (
            "noise of one difference for that of one score",
            "tuning.py",
            "0.5 * self.products /",
            "self.products /",
        ),
        (
            "noise that is alike in all directions taken for heat",
            "tuning.py",
            "- 0.5 * square / dim",
            "",
        ),
        (
            "differences with rows in common multiplied",
            "tuning.py",
            "pair = (phase == 2) &",
            "pair = (phase == 1) &",
        ),
        (
            "a scale that noise does not make smaller",
            "chains.py",
            "scale = dynamics.noise.quieted(scale, old, xp)",
            "pass",
        ),
        (
            "steps that noise does not bound",
            "chains.py",
            "step = step.at_most(",
            "_ = step.at_most(",
        ),
        (
            "an energy's error between other rows",
            "chains.py",
            "before._replace(log_density=log_density, score=score), dynamics",
            "before, dynamics",
        ),
        (
            "steps that are too long are not told",
            "kernel.py",
            "if variance.max() > max(tuning.DOUBTFUL_VARIANCE, 4.0 * self.energy_variance):",
            "if False:",
        ),
    ):
        yield from neutral(what, f"microcanonical/{file}", before, after, "microcanonical")
    yield from both(
        "one number for the acceptance of all chains",
        "sgmcmc/mclmc.py",
        "jnp.log(shares[:, 0])",
        "0.0 * jnp.log(shares[:, 0])",
        "microcanonical",
        pyro=("uniform[1:].log()", "0.0 * uniform[1:].log()"),
    )


def _engine() -> Iterator[Mutation]:
    yield from pyro(
        "arguments of another form taken for those of the last step",
        "graphs/arguments.py",
        "if isinstance(leaf, Tensor) and (leaf.shape, leaf.dtype, leaf.device) != form:",
        "if isinstance(leaf, Tensor) and leaf.dtype != form[1]:",
        "svgd",
    )
    yield from pyro(
        "an undone step leaves the optimizer's moments as they became",
        "optim.py",
        "optimizer.state.update(state)",
        "optimizer.state.update({})",
        "optim",
    )
    yield from neutral(
        "multiples of kernels in a sum count once",
        "kernels/base.py",
        "phi = kernel.factor * phi if scaled else phi",
        "phi = phi",
        "kernels",
    )
    yield from numpyro(
        "a search for a start with its rows split over devices",
        "start.py",
        "target, data = target.on_one_device(data)",
        "pass",
        "sharding",
    )
    yield from numpyro(
        "a step that is not finite is taken",
        "engine.py",
        "algorithm = _choose(finite, proposed.algorithm, state.algorithm)",
        "algorithm = _choose(True, proposed.algorithm, state.algorithm)",
        "engine",
    )


def _diagnostics() -> Iterator[Mutation]:
    yield from neutral(
        "importance ratios: not tempered",
        "diagnostics/importance.py",
        "tempered(prior, likelihood, temperature)",
        "tempered(prior, likelihood, 1.0)",
        "importance",
    )
    yield from both(
        "draws' log density in ArviZ: the prior's alone",
        "diagnostics/arviz.py",
        '"log_p": prior + likelihood',
        '"log_p": prior',
        "arviz",
        pyro=(
            "torch.stack(target.full_log_prior_and_likelihood(part, data)).sum(0)",
            "target.full_log_prior_and_likelihood(part, data)[0]",
        ),
    )
    yield from neutral(
        "importance ratios turned over",
        "statistics/khat.py",
        "ratios = log_p - log_q",
        "ratios = log_q - log_p",
        "khat importance",
    )
    yield from neutral(
        "k-hat of the left tail",
        "statistics/khat.py",
        "values, rounding = ratios",
        "values, rounding = -ratios.values, ratios.rounding",
        "khat importance",
    )
    yield from neutral(
        "Stein kernel: trace left out",
        "diagnostics/stein_discrepancy.py",
        "slope * (differences + x.shape[1])",
        "slope * (differences + 0 * x.shape[1])",
        "stein_discrepancy",
    )
    yield from neutral(
        "U-statistic divided by the number of all pairs",
        "diagnostics/stein_discrepancy.py",
        '(num - 1 if statistic == "U" else num)',
        '(num if statistic == "U" else num)',
        "stein_discrepancy",
    )
    yield from neutral(
        "scores divided by the metric's scales",
        "diagnostics/stein_discrepancy.py",
        "positions / scales, scores * scales",
        "positions / scales, scores / scales",
        "stein_discrepancy",
    )
    tests = "calibrate"
    yield from neutral(
        "equal values have the rank above and a random one",
        "calibrate/calibrate.py",
        "np.stack([each < truth[name], each == truth[name]])",
        "np.stack([each <= truth[name], each == truth[name]])",
        tests,
    )
    yield from neutral(
        "ranks among draws that depend on each other",
        "calibrate/calibrate.py",
        "return int(min(most, max(LEAST_DRAWS, fits)))",
        "return most",
        tests,
    )
    yield from neutral(
        "chance of a rank as of the first value throughout",
        "calibrate/uniformity.py",
        "chance = 1.0 / (num_draws + 1 - place)",
        "chance = 1.0 / (num_draws + 1)",
        tests,
    )
    yield from neutral(
        "data of other parameters than those that are ranked",
        "target/observations.py",
        "like(drawn[site][number],",
        "like(drawn[site][number - 1],",
        tests,
    )
    tests = "predictions predictive calibration"
    yield from neutral(
        "mixture's log likelihood is the mean of the draws'",
        "diagnostics/predictive_data.py",
        "np.logaddexp.reduce(log_likelihood, axis=0) - np.log(len(log_likelihood))",
        "np.mean(log_likelihood, axis=0)",
        tests,
    )
    yield from neutral(
        "hidden sites with finitely many values are taken for latent ones",
        "diagnostics/predictive_data.py",
        "used = [name for name in missing if dependents(name) != set()]",
        "used = [name for name in missing if dependents(name) != set() or name in finite]",
        "diagnostics/test_predictions",
    )
    yield from neutral(
        "a prior that is written as an observation is predicted",
        "diagnostics/predictive_data.py",
        "seen = [name for name in seen if name not in priors]",
        "seen = [name for name in seen if name in seen]",
        "diagnostics/test_predictions",
    )
    yield from neutral(
        "a prior that is written as an observation counts as data",
        "diagnostics/replay.py",
        "return 0 < self.entries == self.of",
        "return False",
        "diagnostics/test_arviz",
    )
    yield from neutral(
        "names of axes without their offset",
        "diagnostics/replay.py",
        "return (*self.plates[:first], *names, *self.plates[first + len(names) :])",
        "return (*names, *self.plates[len(names) :])",
        "diagnostics/test_arviz",
    )
    yield from neutral(
        "fewer draws of a fit: all of the first chains",
        "diagnostics/fit.py",
        "return (2 * np.arange(num_samples) + 1) * num_draws // (2 * num_samples)",
        "return np.arange(num_samples)",
        "fit/test_fit",
    )
    yield from neutral(
        "calibration error: bins weighted alike",
        "diagnostics/calibration.py",
        'np.abs(curve["frequency"] - curve["confidence"]) * curve["rows"]',
        'np.abs(curve["frequency"] - curve["confidence"]) * curve["rows"].mean()',
        tests,
    )
    yield from neutral(
        "central intervals of one side",
        "diagnostics/calibration.py",
        "needed = np.abs(2.0 * transform.ravel() - 1.0)",
        "needed = np.abs(transform.ravel())",
        tests,
    )
    yield from neutral(
        "mutual information with the wrong sign",
        "diagnostics/uncertainty.py",
        "epistemic += rel_entr(own, mixture).sum(-1)",
        "epistemic -= rel_entr(own, mixture).sum(-1)",
        tests,
    )
    yield from neutral(
        "an unknown variance that counts as none",
        "diagnostics/uncertainty.py",
        'values.sum("output", skipna=False)',
        'values.sum("output")',
        tests,
    )
    yield from neutral(
        "total variance without that of the means",
        "diagnostics/uncertainty.py",
        "total += (variance + apart) / len(means)",
        "total += variance / len(means)",
        tests,
    )
    yield from neutral(
        "area under the ROC curve turned over",
        "diagnostics/predictive_metrics.py",
        "return float(roc_auc_score(positive, score))",
        "return float(roc_auc_score(positive, -score))",
        tests,
    )
    yield from neutral(
        "a log sd that is a log variance",
        "diagnostics/predictive_data.py",
        'flat(0.5 * np.log(draws_first(predictive, "variance").astype(np.float64)))',
        'flat(np.log(draws_first(predictive, "variance").astype(np.float64)))',
        "diagnostics/test_representative",
    )
    for name, old, new in (
        (
            "few draws by their means alone",
            "np.concatenate([scaled, scaled**2 - 1.0], 1)",
            "scaled",
        ),
        (
            "few draws that lie together",
            "squares = own + 2.0 * features @ total",
            "squares = own - 2.0 * features @ total",
        ),
        (
            "few draws whose sum counts half",
            "squares = own + 2.0 * features @ total",
            "squares = own + features @ total",
        ),
        (
            "few draws that are not exchanged",
            "better = found < square - least",
            "better = found < 0.0",
        ),
    ):
        yield from neutral(
            name, "diagnostics/representative.py", old, new, "diagnostics/test_representative"
        )
    yield from neutral(
        "RMSE without its root",
        "diagnostics/predictive_metrics.py",
        'figures["rmse"] = float(np.sqrt(np.square(error).mean()))',
        'figures["rmse"] = float(np.square(error).mean())',
        tests,
    )


def _fit() -> Iterator[Mutation]:
    tests = "fit chains start check"
    yield from neutral(
        "draws withheld for the standard deviation of heavy tails",
        "fit/verdict/comparison.py",
        "    deviation_bound = math.inf\n",
        "    deviation_bound = math.expm1(off + quantile * error)\n",
        tests,
    )
    yield from neutral(
        "tails that may be heavy by chance end what is asked of a standard deviation",
        "fit/ladder/chain_figures.py",
        "        deviations = replace(found, is_heavy=found.is_surely_heavy)\n",
        "        pass\n",
        tests,
    )
    yield from neutral(
        "kinetic energy left out of acceptance",
        "chains/hamiltonian.py",
        "gain = values - 0.5 * np.square(momenta).sum(-1) - before",
        "gain = values - before",
        tests,
    )
    yield from neutral(
        "scores whitened by the transposed factor",
        "chains/hamiltonian.py",
        "return scores * factor if factor.ndim == 1 else scores @ factor",
        "return scores * factor if factor.ndim == 1 else scores @ factor.T",
        tests,
    )
    yield from neutral(
        "jumps that forget where the chain is",
        "chains/sampler.py",
        "gain = log_ratios - (here.values - proposed)",
        "gain = log_ratios - here.values",
        tests,
    )
    yield from neutral(
        "importance ratios without the proposal's density",
        "chains/proposal.py",
        "found = values - self.log_density(positions)",
        "found = values",
        tests,
    )
    for name, file, old, new, own in (
        (
            "evidence of labels in one order taken for that of all",
            "fit/after/evidence.py",
            "value += _log_orders(symmetry)",
            "value += 0.0 * _log_orders(symmetry)",
            "evidence",
        ),
        (
            "draws of a bridge that all count as independent",
            "fit/after/evidence.py",
            "worth = float(effective_number(terms[:, :, None])[0])",
            "worth = float(terms.size)",
            "evidence",
        ),
        (
            "a bridge that forgets how many draws there are of each",
            "fit/after/evidence.py",
            "return float(one - other - odds)",
            "return float(one - other)",
            "evidence",
        ),
        (
            "evidence under a prior without a normaliser",
            "fit/after/evidence.py",
            "improper := target.layout.improper",
            "improper := ()",
            "evidence",
        ),
        (
            "draws reweighted by the new density alone",
            "fit/after/refit.py",
            "ratios = np.where(np.isfinite(new), new - old, -np.inf)",
            "ratios = np.where(np.isfinite(new), new, -np.inf)",
            "refit",
        ),
        (
            "draws of an approximation weighted without its density",
            "fit/after/refit.py",
            "ratios = proposal.log_ratios(positions, values)",
            "ratios = values",
            "refit",
        ),
        (
            "a refit that looks for no other modes",
            "fit/after/refit.py",
            "return any(mode.log_mass > mass + math.log(LEAST_MASS) for mode in found)",
            "return False",
            "refit",
        ),
        (
            "a refit of draws that are not trusted",
            "fit/fit.py",
            'return "its draws are not trusted"',
            'return ""',
            "refit",
        ),
    ):
        yield from neutral(name, file, old, new, own)
    yield from neutral(
        "a batch of rows taken for all of them",
        "fit/problem/problem.py",
        "evaluate=self.of_all_rows,",
        "evaluate=self.evaluate,",
        tests,
    )
    yield from neutral(
        "another way to write a program compared without the Jacobian",
        "target/noncentred.py",
        "one, other = moved(points), written(found) + log_det",
        "one, other = moved(points), written(found)",
        "reparameterise " + tests,
    )
    yield from neutral(
        "an argument of the model's that is taken for that of entries",
        "target/noncentred.py",
        "kwargs.pop(ENTRY_DATA) if self.takes_data else None",
        "kwargs.pop(ENTRY_DATA, None)",
        "reparameterise " + tests,
    )
    yield from pyro(
        "guides of one class that share their parameters",
        "score/guide_engine.py",
        "                _take_own_name(self.guide)\n",
        "                pass\n",
        "pyro_only",
    )
    for name, file, old, new in (
        (
            "what data tell of entries in units of their scale",
            "fit/ladder/centring.py",
            "entries[site] = np.stack([np.square(roots), pulls])",
            "entries[site] = np.stack([roots, pulls])",
        ),
        (
            "the pull of data without that of where the entry is",
            "fit/ladder/centring.py",
            "pulls = (pulls + roots.swapaxes(1, 2) @ (roots @ here)).swapaxes(1, 2)",
            "pulls = pulls.swapaxes(1, 2)",
        ),
        (
            "the pull of data without the prior's slope taken off",
            "fit/ladder/centring.py",
            "slopes = evaluate(mode.mean[None])[1][0] + mode.mean",
            "slopes = evaluate(mode.mean[None])[1][0]",
        ),
        (
            "what data tell of vectors in coordinates that are turned",
            "fit/ladder/centring.py",
            "roots = roots * told[site].eigenvectors.swapaxes(1, 2) @ inverses",
            "roots = roots * told[site].eigenvectors @ inverses",
        ),
        (
            "what data tell of each number of a vector by itself",
            "fit/ladder/centring.py",
            "told.append(np.linalg.inv(covariance[at[:, :, None], at[:, None]]) - np.eye(length))",
            "told.append(np.eye(length) / covariance[at[:, :, None], at[:, None]] - 1.0)",
        ),
        (
            "vectors standardised with the lower factor in place of the upper",
            "target/noncentred.py",
            "upper = host.flip(vectors.cholesky(host.flip(square, (-1, -2))), (-1, -2))",
            "upper = vectors.cholesky(square)",
        ),
        (
            "entries standardised with the prior's deviation",
            "target/noncentred.py",
            "return moved, root, (loc + scale**2 * pull) / square, scale / root",
            "return moved, root, (loc + scale**2 * pull) / square, scale",
        ),
        (
            "standardised entries whose prior pulls the wrong way",
            "target/noncentred.py",
            "moved = scale * (precision * loc - pull) / root",
            "moved = scale * (pull - precision * loc) / root",
        ),
        (
            "what data tell of an entry without the entries around it",
            "fit/ladder/centring.py",
            "later = np.concatenate([here, later])",
            "later = here",
        ),
        (
            "chains whose widths follow a scale believed as others",
            "fit/verdict/agreement.py",
            "return is_heavy or policy.is_strained(strain)",
            "return is_heavy",
        ),
        (
            "a saved fit that forgets what data tell of its entries",
            "fit/after/bound.py",
            "problem = problem.between(entry_data)",
            "pass",
        ),
        (
            "a refit that forgets what data told of its entries",
            "fit/after/refit.py",
            "return problem.name == before.name or bool(before.entry_data and problem.partly)",
            "return problem.name == before.name",
        ),
        (
            "entries that forget the other parameters of their distribution",
            "target/noncentred.py",
            "self.standardise(data[site], config[name].shape_params)",
            "self.standardise(data[site])",
        ),
    ):
        yield from neutral(name, file, old, new, "centring policy as_wide_whatever")
    for name, file, old, new in (
        (
            "first places at which the others stand still",
            "fit/ladder/given_hyperparameters.py",
            "white = np.linalg.solve(roots, scores[..., None])",
            "white = 0.0 * np.linalg.solve(roots, scores[..., None])",
        ),
        (
            "densities of scales without the widths of others",
            "fit/ladder/given_hyperparameters.py",
            "logs[left] = after - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)",
            "logs[left] = after",
        ),
        (
            "densities that were looked at once without the widths of others",
            "fit/ladder/given_hyperparameters.py",
            "looked = seen.values + gains - logs -",
            "looked = seen.values + gains -",
        ),
        (
            "looks at a density without what a step to the others adds",
            "fit/ladder/given_hyperparameters.py",
            "looked = seen.values + gains - logs",
            "looked = seen.values - logs",
        ),
        (
            "hyperparameters by single widths alone",
            "fit/ladder/hyperparameters.py",
            "+ 0.5 * np.square(0.5 * traces)",
            "+ 0.0 * np.square(0.5 * traces)",
        ),
        (
            "draws of hyperparameters where their density was never looked at",
            "fit/ladder/given_hyperparameters.py",
            "logs = np.where(distances < 1.0, logs, -np.inf)",
            "logs = np.where(distances < 0.3, logs, -np.inf)",
        ),
        (
            "a density of hyperparameters that does not fall taken for one",
            "fit/ladder/given_hyperparameters.py",
            "return _proposal(given, drawn, generator) if is_ended else None",
            "return _proposal(given, drawn, generator)",
        ),
        (
            "rounds of places whatever Normals lose",
            "fit/ladder/given_hyperparameters.py",
            "if lost < ENOUGH or",
            "if len(given.places) > 3 or",
        ),
        (
            "what Normals lose without their means",
            "fit/ladder/given_hyperparameters.py",
            "squares = np.square(off).sum(1) +",
            "squares = 0.0 * np.square(off).sum(1) +",
        ),
        (
            "hyperparameters beside the scales that are not looked for",
            "fit/ladder/hyperparameters.py",
            "if not is_open.any()",
            "if scales or not is_open.any()",
        ),
        (
            "hyperparameters of more skew coordinates than have room",
            "fit/ladder/hyperparameters.py",
            "if scales or costs.sum() < MOST_LEFT",
            "if scales or costs.sum() < np.inf",
        ),
        (
            "curvatures that change along coordinates while those chosen move",
            "fit/ladder/hyperparameters.py",
            "precision[np.ix_(rest, rest)]",
            "precision[np.ix_(rest, rest)] + 0.5 * np.eye(len(rest))",
        ),
        (
            "a map given hyperparameters without its determinant",
            "chains/given.py",
            "return found, log_determinants + np.log(np.diag(self.factor)).sum()",
            "return found, 0.0 * log_determinants",
        ),
        (
            "others widened by the wrong factor given hyperparameters",
            "chains/given.py",
            "np.linalg.solve(factors.swapaxes(1, 2), z)",
            "np.linalg.solve(factors, z)",
        ),
    ):
        yield from neutral(name, file, old, new, "given_hyperparameters")
    yield from neutral(
        "draws given hyperparameters that are far kept for the better",
        "fit/ladder/corrected.py",
        "is_far = best is not None and policy.is_far(best.correction)",
        "is_far = False",
        "normals_at_the_mode_are_drawn",
    )
    yield from neutral(
        "draws where the density is no number counted far out alone",
        "fit/verdict/levels.py",
        "undefined = _of_undefined(correction) if lacks else []",
        "undefined = []",
        "no_number_where_the_mass_is",
    )
    yield from neutral(
        "modes of some mass taken for ends of the first",
        "fit/ladder/corrected.py",
        "return bool((log_masses < mass + np.log(LEAST_MASS)).all())",
        "return True",
        "mode_without_mass",
    )
    yield from neutral(
        "every coordinate taken for a scale",
        "fit/ladder/centring.py",
        "is_scale[where] = np.any([_changes(of(each)) for each in rows], axis=0)",
        "is_scale[where] = True",
        "centring",
    )
    yield from neutral(
        "draws in a neck believed",
        "fit/ladder/ladder.py",
        "if other is not None and policy.is_strained(climbed.evidence.neck):",
        "if False and other is not None:",
        "test_search",
    )
    yield from neutral(
        "another program taken for another way to write it",
        "fit/ladder/written.py",
        "if reason := _difference(written, other, first, meter):",
        "if reason := '':",
        "reparameterise " + tests,
    )
    yield from neutral(
        "sites moved whose distribution the handlers do not take",
        "target/noncentred.py",
        "while isinstance(distribution, self.wrappers):",
        'while hasattr(distribution, "base_dist"):',
        "reparameterise",
    )
    yield from neutral(
        "missing orders of labels without the density",
        "fit/verdict/labels.py",
        "ratios = np.exp(np.minimum(gain, LARGEST)) * np.asarray(new)",
        "ratios = 1.0 * np.asarray(new)",
        "labels " + tests,
    )
    yield from neutral(
        "missing orders of labels without the share of the usual one",
        "fit/verdict/labels.py",
        "odds = len(usual) / len(own) * possible * float(ratios.mean())",
        "odds = possible * float(ratios.mean())",
        "labels " + tests,
    )
    yield from neutral(
        "chains judged by their coordinates in place of the sites",
        "fit/ladder/chain_figures.py",
        "found = deviations = convergence(columns)",
        "found = deviations = coordinates",
        tests,
    )
    yield from neutral(
        "R-hat of groups of chains divided by the square of their number",
        "statistics/convergence.py",
        "between * GROUPS / draws.shape[1])",
        "between * (GROUPS / draws.shape[1]) ** 2)",
        tests,
    )
    yield from neutral(
        "autocorrelations counted once",
        "statistics/convergence.py",
        "times = 1.0 + 2.0 * np.cumsum",
        "times = 1.0 + np.cumsum",
        tests,
    )
    yield from neutral(
        "warm chains that begin anywhere",
        "fit/warm.py",
        "[0, *farthest(white, white[:1], number - 1)]",
        "range(number)",
        "test_warm_chains",
    )
    yield from neutral(
        "rank correlations that are not compared by their chance",
        "fit/verdict/comparison.py",
        "np.hypot(CORRELATION, quantile * error)",
        "np.hypot(CORRELATION, quantile)",
        "test_check",
    )
    yield from neutral(
        "draws that have the dependence of others are wrong",
        "fit/verdict/comparison.py",
        "found is None or found.share <= 1.0",
        "found is None or found.share > 0.0",
        "test_check",
    )
    yield from neutral(
        "metrics that scores have no part in",
        "chains/sampler.py",
        "between = _between(shrunk(scatter), of_slopes)",
        "between = _between(np.eye(dim), of_slopes)",
        tests,
    )
    yield from neutral(
        "scores that have no bulk tell of widths",
        "chains/sampler.py",
        "own = own if has_bulk else weights",
        "own = own",
        tests,
    )
    yield from neutral(
        "the covariance of scores in place of its inverse",
        "chains/sampler.py",
        "return (half * np.sqrt(values)) @ half.T",
        "return np.linalg.inv((half * np.sqrt(values)) @ half.T)",
        tests,
    )
    yield from neutral(
        "tuning that goes on where steps cannot be longer",
        "chains/sampler.py",
        "or (of_step > 0.0 and kernel.step_size >= LENGTH)",
        "",
        tests,
    )
    yield from numpyro(
        "steps of an engine that count as all rows",
        "fit.py",
        "num_positions(plan) * each)",
        "num_positions(plan))",
        "test_fit",
    )
    yield from numpyro(
        "a key of the init strategy that is used twice",
        "fit.py",
        "own = random.fold_in(strategy_key, next(calls))",
        "own = strategy_key",
        "test_fit",
    )
    yield from pyro(
        "processes whose fits are judged in other ways",
        "fit.py",
        "target_sd_error, judge, guide,",
        "target_sd_error, guide,",
        "sharding",
    )
    yield from neutral(
        "an engine that is named on a program that is not its own",
        "fit/doors.py",
        "found if named.engine is None or asked.exact else islice(found, 1)",
        "found",
        "test_fit",
    )
    yield from neutral(
        "warm chains that begin with labels in any order",
        "fit/warm.py",
        "flat = climbed.symmetry.ordered(flat)",
        "pass",
        "warm_chains",
    )
    yield from neutral(
        "transitions that are left out taken for single draws",
        "chains/sampler.py",
        "transitions * draws_of_each)",
        "transitions)",
        "chains",
    )
    yield from neutral(
        "draws that are kept counted as discarded",
        "chains/sampler.py",
        "discarded -= sum(each.transitions for each in kept)",
        "pass",
        "chains",
    )
    yield from neutral(
        "the scale of far draws' weights left as it is",
        "chains/sampler.py",
        "return before @ white / before.sum(), before * scale / number",
        "return before @ white / before.sum(), before / number",
        tests,
    )
    yield from neutral(
        "transitions left out of chains of jumps, however late pairs meet",
        "chains/jumps.py",
        "int(np.clip(slowest, 1, MOST_DISCARDED))",
        "1",
        tests,
    )
    yield from neutral(
        "jumps to known draws that forget where the chain is",
        "chains/jumps.py",
        "np.minimum(0.0, log_ratios[proposed] - log_ratios[here])",
        "np.minimum(0.0, log_ratios[proposed])",
        tests,
    )
    yield from neutral(
        "all draws weighted by the last proposal alone",
        "chains/adaptive.py",
        "densities = np.stack([one.proposal.log_density(every) for one in known])",
        "densities = np.stack([one.proposal.log_density(every) for one in known[-1:]])",
        "adaptive",
    )
    yield from neutral(
        "a mixture of draws that count alike",
        "chains/mixture.py",
        "shares *= counts / shares.sum(0)",
        "shares /= shares.sum(0)",
        "adaptive",
    )
    yield from neutral(
        "as many components as there may be",
        "chains/mixture.py",
        "return numbers[int(np.argmax(told))]",
        "return numbers[-1]",
        "adaptive",
    )
    yield from neutral(
        "components chosen by the draws that they are fitted to",
        "chains/mixture.py",
        "            others = ~fitted_to\n",
        "            others = fitted_to\n",
        "adaptive",
    )
    yield from neutral(
        "a mixture in place of what the first proposal reaches",
        "chains/adaptive.py",
        "FIRST, WIDE, WIDER = 0.1,",
        "FIRST, WIDE, WIDER = 0.0,",
        "adaptive",
    )
    for name, file, old, new, own in (
        (
            "scores of straight coordinates without the determinant's",
            "chains/bends.py",
            "self.scale * (chains.scores - self._determinant_scores(u))",
            "self.scale * chains.scores",
            "bends",
        ),
        (
            "densities of straight coordinates without the determinant",
            "chains/bends.py",
            "return Chains(straight, chains.values - log_determinant, scores)",
            "return Chains(straight, chains.values, scores)",
            "bends",
        ),
        (
            "chains that come back with the scores of straight coordinates",
            "chains/bends.py",
            "scores = scores / self.scale + self._determinant_scores(u)",
            "scores = scores / self.scale",
            "bends",
        ),
        (
            "a bent proposal's density without the determinant",
            "chains/proposal.py",
            "found[: self._bent] += log_determinants",
            "found[: self._bent] += 0.0 * log_determinants",
            "bends",
        ),
        (
            "Normals of positions drawn as of straight ones",
            "chains/proposal.py",
            "rows = which < self._bent",
            "rows = which < len(self.modes)",
            "bends",
        ),
        (
            "terms kept whatever they gain",
            "chains/bends.py",
            "least = np.sqrt(max(CERTAIN**2, 2.0 * GAIN * number))",
            "least = 0.0",
            "bends",
        ),
        (
            "bends where chains must find a neck",
            "fit/verdict/policy.py",
            "return not has_labels and not is_strained(program.strain)",
            "return not has_labels",
            "policy",
        ),
        (
            "jumps alone to a mixture, however far Normals are",
            "fit/verdict/policy.py",
            "return is_known(first) and not is_strained(program.strain)",
            "return not is_strained(program.strain)",
            "policy",
        ),
        (
            "jumps alone where widths depend on scales",
            "fit/verdict/policy.py",
            "return is_known(first) and not is_strained(program.strain)",
            "return is_known(first)",
            "policy",
        ),
        (
            "a search begun that the budget does not buy",
            "fit/verdict/policy.py",
            "+ LEAST_SEARCH * (evidence.modes is None)",
            "",
            "policy test_search",
        ),
        (
            "a mode that is found before the mixtures of the last turn, forgotten",
            "fit/ladder/ladder.py",
            "found_more |= finds",
            "found_more = finds",
            "test_search",
        ),
        (
            "no further search where a mixture is no better",
            "fit/ladder/ladder.py",
            "if is_late and begun.correction.khat > DOUBTFUL:",
            "if is_late and begun.correction.khat > 10.0:",
            "test_search",
        ),
        (
            "a further search that waits for a mixture of unreliable weights",
            "fit/ladder/ladder.py",
            "may_adapt and correction.khat < policy.FAR_KHAT and len(start.modes) == 1",
            "may_adapt and len(start.modes) == 1",
            "test_search",
        ),
        (
            "jumps looked at after half more",
            "fit/ladder/by_chains.py",
            "generator, meter, len(own.draws) // 8)",
            "generator, meter)",
            "test_search",
        ),
        (
            "jumps that never go on to a mixture",
            "fit/ladder/by_chains.py",
            "if not policy.may_aim(",
            "if policy.may_aim(",
            "test_search",
        ),
        (
            "a mixture that is fitted and not proposed from",
            "fit/ladder/by_chains.py",
            "kernel.propose_from(*found)",
            "kernel.propose_from(kernel.proposal, found[1])",
            "test_search",
        ),
        (
            "one transition left out of jumps whose pairs take more to meet",
            "fit/ladder/by_chains.py",
            "CHAINS, coupled.transitions)",
            "CHAINS, 1)",
            "test_search",
        ),
        (
            "jumps alone also where the Normals lack parts",
            "fit/ladder/by_chains.py",
            " and policy.covers(program, begun.first):",
            ":",
            "test_search",
        ),
        (
            "transitions that were left out made again",
            "fit/ladder/by_chains.py",
            "least=LEAST_TRANSITIONS - coupled.transitions",
            "least=LEAST_TRANSITIONS",
            "test_search",
        ),
        (
            "late pairs of chains given up after a quarter of the transitions",
            "fit/ladder/by_chains.py",
            "FORGOTTEN = 0.5",
            "FORGOTTEN = 0.25",
            "test_search",
        ),
    ):
        yield from neutral(name, file, old, new, own)
    yield from neutral(
        "pairs that meet where one of them jumps",
        "chains/coupling.py",
        "both &= taken",
        "both |= taken",
        tests,
    )
    yield from neutral(
        "outputs of what only fills a piece up",
        "fit/networks/outputs.py",
        "append(_some(values)[: len(own)])",
        "append(_some(values))",
        "test_networks",
    )
    yield from neutral(
        "rounds of pairs for which nothing is left",
        "fit/ladder/by_chains.py",
        "before = meter.evaluations - before\n        if len(sampled.draws) == number:",
        "before = meter.evaluations - before\n        if False:",
        "test_search",
    )
    yield from neutral(
        "pairs that do not go on while chains do",
        "fit/ladder/by_chains.py",
        "or pairs is None or _are(is_done, sampled)",
        "or True or _are(is_done, sampled)",
        "test_search",
    )
    yield from neutral(
        "a lag that the bound does not count",
        "chains/coupling.py",
        "np.ceil((times - lag - transitions) / lag)",
        "np.ceil((times - transitions) / lag)",
        tests,
    )
    yield from neutral(
        "a bound on draws that are kept from before it holds",
        "fit/ladder/by_chains.py",
        "sampled = sampled.after(coupled.transitions)",
        "sampled = sampled.after(0)",
        tests,
    )
    yield from neutral(
        "a bound without the number of pairs",
        "chains/coupling.py",
        "share = float(betaincinv(late + 1.0, number - late, CONFIDENCE))",
        "share = late / number",
        tests,
    )
    yield from neutral(
        "the mass of a mode without its volume",
        "start/find.py",
        "constant = mode.log_scale + 0.5",
        "constant = 0.5",
        "find " + tests,
    )
    yield from neutral(
        "the density of a component without its volume",
        "chains/mixture.py",
        "constants = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)",
        "constants = np.zeros(len(roots))",
        tests,
    )
    yield from neutral(
        "the cutoff of smoothed weights inside the tail",
        "statistics/khat.py",
        "cutoff = weights[order[-tail - 1]]",
        "cutoff = weights[order[-tail]]",
        "statistics/test_khat",
    )
    yield from neutral(
        "labels exchanged where the density changes",
        "chains/symmetry.py",
        "same = abs(densities - before) <= np.minimum(rounding, MOST_ROUNDING)",
        "same = is_back",
        "symmetry " + tests,
    )
    yield from neutral(
        "probabilities of two labels that keep their places",
        "chains/symmetry.py",
        "found[name] = np.where(where, 1.0 - array, array)",
        "found[name] = array",
        "symmetry " + tests,
    )
    yield from neutral(
        "orders of labels put back the wrong way round",
        "chains/symmetry.py",
        "orders = [np.argsort(each, axis=1) for each in self._orders(like)]",
        "orders = self._orders(like)",
        "symmetry " + tests,
    )
    yield from neutral(
        "labels of draws left in order",
        "chains/symmetry.py",
        "return self._moved(flat, orders).reshape(draws.shape)",
        "return draws",
        "symmetry " + tests,
    )
    yield from neutral(
        "a mode whose labels are put in order without its spread",
        "chains/symmetry.py",
        "factor = lower_factor(slopes.T @ mode.root)",
        "factor = mode.root",
        "symmetry " + tests,
    )
    yield from neutral(
        "labels in order in the draws and not in the reference",
        "check/check.py",
        "draws, reference_draws = (_ordered(labels, each) for each in (draws, reference_draws))",
        "draws = _ordered(labels, draws)",
        "test_check",
    )
    yield from neutral(
        "a draw without a density ends the comparison of densities",
        "check/check.py",
        "np.where(np.isfinite(values), values, least)",
        "values",
        "test_check",
    )
    yield from neutral(
        "chains in several orders of labels disagree",
        "check/check.py",
        "if in_parts or (own is not None and own.disagree):",
        "if in_parts:",
        "test_check",
    )
    yield from neutral(
        "draws in several orders of labels are too few",
        "check/check.py",
        "if in_parts or (own is not None and own.disagree):",
        "if own is not None and own.disagree:",
        "test_check",
    )
    yield from numpyro(
        "values of discrete sites drawn each by itself",
        "density/enumeration.py",
        "return {**evidence, name: _added(summed, name, evidence[name], against)}, number",
        "return evidence, number",
        "diagnostics/test_discrete",
    )
    yield from both(
        "density of locals left in the log likelihood of rows",
        "density/enumeration.py",
        "total = total - _contracted(others, kept=rows, scaled=False)",
        "total = total - 0.0 * _contracted(others, kept=rows, scaled=False)",
        "diagnostics/test_discrete",
        pyro=(
            "values = _of_rows(together, kept) - _of_rows(others, kept)",
            "values = _of_rows(together, kept)",
        ),
    )
    yield from neutral(
        "programs that mix the places of a plate pass",
        "target/discrete.py",
        "close = abs(found - total) <= math.sqrt(epsilon) * (1.0 + size)",
        "close = True",
        "density/test_discrete",
    )
    yield from neutral(
        "observations of what stands in for a value",
        "diagnostics/predictive_data.py",
        "for name in missing} if later else {}",
        "for name in missing} if not later else {}",
        "diagnostics/test_discrete",
    )
    yield from neutral(
        "modes with exchanged labels compared entry by entry",
        "fit/verdict/labels.py",
        'np.argsort(each[0], kind="stable")',
        "np.arange(each.shape[1])",
        tests,
    )
    yield from neutral(
        "chains that the time ended asked for less than others",
        "fit/verdict/levels.py",
        "is_alone=not bounded,",
        "is_alone=not (bounded or evidence.coupled is None),",
        tests,
    )
    yield from neutral(
        "an engine that has not settled is approximate",
        "fit/verdict/levels.py",
        'return "approximate" if is_near else "not trusted"',
        'return "approximate" if True else "not trusted"',
        tests,
    )
    yield from neutral(
        "scores of the other sign in Stein's second identity",
        "witnesses/stein.py",
        "(positions - positions.mean(0)) * scores + 1.0",
        "(positions - positions.mean(0)) * -scores + 1.0",
        tests,
    )
    yield from neutral(
        "drift that is not paired with where chains started",
        "witnesses/drift.py",
        "each[1:].mean(0) - each[0] for each in figures",
        "each[1:].mean(0) - each[1] for each in figures",
        tests,
    )
    for name, file, old, new, own in (
        (
            "differences that are not halved are held against slopes",
            "witnesses/slopes.py",
            "found = 0.5 * (ends[:number] - ends[number:])",
            "found = 1.0 * (ends[:number] + ends[number:])",
            "test_slopes",
        ),
        (
            "slopes that a long step misses are none",
            "witnesses/slopes.py",
            "STEPS = (0.1, 0.01)",
            "STEPS = (0.1, 0.1)",
            "test_slopes",
        ),
        (
            "a change point is taken for a slope",
            "witnesses/slopes.py",
            "if (off <= steady * np.abs(quotient))[told].all():",
            "if True:",
            "test_slopes",
        ),
        (
            "a quarter of a slope that is missed lets pass",
            "witnesses/slopes.py",
            "NEAR_STEPS, NEAR_SHARE = (1e-2, 5e-3, 1e-3, 5e-4, 1e-4), 0.05",
            "NEAR_STEPS, NEAR_SHARE = (1e-2, 5e-3, 1e-3, 5e-4, 1e-4), 0.5",
            "test_slopes",
        ),
        (
            "chains that stand still are judged by their energies",
            "microcanonical/kernel.py",
            "if self.given is None and not pace > STILL:",
            "if False:",
            "microcanonical/test_kernel",
        ),
        (
            "a step that is cut keeps the sum of its former length",
            "microcanonical/tuning.py",
            "self.rate * (value / self.value) ** 6",
            "self.rate",
            "microcanonical/test_dynamics",
        ),
        (
            "rounding is taken for a slope",
            "witnesses/slopes.py",
            "ROUNDINGS = 16.0",
            "ROUNDINGS = 0.0",
            "test_slopes",
        ),
        (
            "pieces of one call count as one",
            "start/search.py",
            "self.calls += len(some) // width",
            "self.calls += 1",
            "test_find_start",
        ),
        (
            "a text is the names of several axes",
            "diagnostics/replay.py",
            "return (names,) if isinstance(names, str) else tuple(names)",
            "return tuple(names)",
            "test_faults",
        ),
        (
            "a pipe is read as a saved state",
            "running/state_files.py",
            "if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):",
            "if stat.S_ISBLK(kind):",
            "test_faults",
        ),
        (
            "masks among Stan's data are not seen in lists",
            "stan/inputs.py",
            "return any(map(_has_mask, value))",
            "return False",
            "test_faults",
        ),
    ):
        yield from neutral(name, file, old, new, own)
    yield from numpyro(
        "of several pieces the last is left out",
        "start.py",
        "return fori_loop(0, count, following, empty)",
        "return fori_loop(0, count - 1, following, empty)",
        "test_find_start",
    )
    yield from pyro(
        "hidden rows are evaluated as they stand",
        "density/handlers.py",
        "return obs if inside is None else torch.where(mask.reshape(shape), like, inside)",
        "return obs",
        "missing_rows",
    )
    yield from neutral(
        "a judgement that takes scores of the other sign",
        "engines/judgement.py",
        "each = -((z - z.mean(0)) * scores).mean(1)",
        "each = ((z - z.mean(0)) * scores).mean(1)",
        "test_judgement",
    )
    for name, file, old, new in (
        (
            "identities along flows that add what the fields explain",
            "witnesses/stein.py",
            "slopes[own] - white[own] @ coefficients",
            "slopes[own] + white[own] @ coefficients",
        ),
        (
            "ratios of another shape are let pass",
            "engines/judgement.py",
            "0.5 * (high - low), math.sqrt(OF_SHAPES",
            "0.5 * (high + low), math.sqrt(OF_SHAPES",
        ),
    ):
        yield from neutral(name, file, old, new, "test_judgement")
    yield from neutral(
        "draws of which nothing could be told pass in silence",
        "engines/judgement.py",
        "if found.variance_error > TOLD:",
        "if found.variance_error < TOLD:",
        "test_judgement",
    )
    yield from neutral(
        "a standard deviation that rests on the nearest draw, not the farthest",
        "engines/judgement.py",
        "enumerate(shares.argmax(0))",
        "enumerate(shares.argmin(0))",
        "test_judgement",
    )
    yield from neutral(
        "short chains as wide as all modes together",
        "engines/judgement.py",
        "like=_within_modes(run.modes, z)",
        "like=z",
        "test_judgement",
    )
    yield from neutral(
        "a judgement of tails that leaves out the factor three",
        "engines/judgement.py",
        "squares = 3.0 * np.square(moves).mean(0)",
        "squares = np.square(moves).mean(0)",
        "test_judgement",
    )
    yield from neutral(
        "a mode without draws is not told",
        "engines/judgement.py",
        "np.flatnonzero(held < FEW * shares)",
        "np.flatnonzero(held > FEW * shares)",
        "test_judgement",
    )
    yield from neutral(
        "failures in spite of probabilities near 1 are not told",
        "target/bounds.py",
        "return few | many",
        "return few",
        "bounds",
    )
    yield from neutral(
        "draws where numbers end pass",
        "fit/ladder/chain_figures.py",
        "(near.mean(1) > SATURATED).any()",
        "(near.mean(1) > 1.0).any()",
        "test_sites",
    )
    yield from neutral(
        "evenly spaced modes are one",
        "start/find.py",
        "values.min() > min(height, top) - DIP:\n",
        "False:\n",
        "test_search",
    )
    yield from neutral(
        "rare modes do not keep a search going",
        "fit/ladder/modes.py",
        "if is_done and is_sure:",
        "if is_done:",
        "test_search",
    )
    yield from neutral(
        "modes that paths from the prior end in are forgotten",
        "engines/judgement.py",
        "sorted((*run.modes, *new), key",
        "sorted((*run.modes,), key",
        "test_judgement",
    )
    yield from neutral(
        "masses of modes are shares of all, wherever the draws are",
        "engines/judgement.py",
        "axis=0).mean() < MOSTLY",
        "axis=0).mean() < 0.0",
        "test_judgement",
    )
    yield from neutral(
        "a draw outside of its support passes",
        "check/check.py",
        "if outside := _outside(program, source, positions):",
        "if False:",
        "test_check",
    )
    yield from neutral(
        "moments that importance weights correct the other way",
        "witnesses/ratios.py",
        "(mean - raw_mean) / deviation",
        "(raw_mean - mean) / deviation",
        tests,
    )
    for name, old, new in (
        ("skewness of the other sign", "return 6.0 * slope", "return -6.0 * slope"),
        ("skewness beside a line that is not taken out", "(values * line).mean(0) * line", "0.0"),
        ("distances in no order", "excess[np.argsort(positions, axis=0)]", "excess[:, None]"),
    ):
        yield from neutral(name, "witnesses/ratios.py", old, new, tests)
    for name, old, new in (
        ("a density that falls is called flat far out", "near - far >= math", "near - far <= math"),
        ("levels of rounding called flat far out", "np.median(here) - volume", "-np.inf"),
        ("levels far out with their Jacobian", "level = 2.0 * one - two", "level = far"),
    ):
        yield from neutral(name, "fit/ladder/chain_figures.py", old, new, "fit")
    yield from neutral(
        "chains that leave nothing for the look far out",
        "fit/ladder/ladder.py",
        "leaves=evidence.program.far_out",
        "leaves=0",
        "fit",
    )
    least = "own = np.minimum(own, effective_number(draws))"
    means = "np.minimum(_effective_number(bulk), of_means)"
    for name, old, new in (
        ("long stays in a tail are not seen", least, "own = own * 1.0"),
        ("means of skewed draws by their ranks", means, "_effective_number(bulk)"),
        (
            "the spread of chains alone tells of deviations",
            "_deviation_errors(draws), by_draws)",
            "_deviation_errors(draws), 0.0)",
        ),
        ("what lies beyond all draws is not missing", "+ missing**2)", ")"),
    ):
        yield from neutral(name, "statistics/convergence.py", old, new, "chains")
    for name, old, new in (
        (
            "correlations that rise again count",
            "falling = np.minimum.accumulate(np.where(positive, pairs, np.inf), axis=0)",
            "falling = pairs",
        ),
        ("chains that move off are not split", "[draws[:half], draws[-half:]]", "[draws]"),
        ("the sum over lags is cut a term early", " + rest - 1.0", " - 1.0"),
        (
            "chains that lie apart are not seen",
            "total += draws.mean(0).var",
            "total -= 0.0 * draws.mean(0).var",
        ),
    ):
        yield from neutral(name, "statistics/effective.py", old, new, "statistics")
    yield from neutral(
        "neighbouring numbers in double precision taken for those in single",
        "statistics/effective.py",
        "np.float32 if is_single else np.float64",
        "np.float32",
        "statistics",
    )
    yield from neutral(
        "draws that depend on each other count as independent",
        "statistics/effective.py",
        "found = size / np.maximum(times,",
        "found = size / np.maximum(1.0,",
        tests,
    )
    yield from neutral(
        "curvature of half the size",
        "start/local_normal.py",
        "curvature = (scores[dim:] - scores[:dim]) @ factor / (2.0 * step)",
        "curvature = (scores[dim:] - scores[:dim]) @ factor / (4.0 * step)",
        tests,
    )
    yield from neutral(
        "modes that explain densities whose slope is another",
        "start/find.py",
        "return bool(agrees and float(left @ left) < NEAR + len(point))",
        "return bool(agrees)",
        "search " + tests,
    )
    yield from neutral(
        "Newton steps that go down",
        "start/find.py",
        "point = point + factor @ move",
        "point = point - factor @ move",
        "find " + tests,
    )
    yield from neutral(
        "Normals at necks believed where Newton steps end",
        "start/find.py",
        "if not np.square(left).mean(0).max() < LEFT:",
        "if not np.isfinite(left).all():",
        "find " + tests,
    )
    yield from neutral(
        "tails of single coordinates left out of a proposal's density",
        "chains/proposal.py",
        "log_tails = np.logaddexp(log_student, log_each) + math.log(0.5 * TAILS)",
        "log_tails = log_student + math.log(TAILS)",
        "chains " + tests,
    )
    yield from neutral(
        "the approximation chosen that leaves most draws, whatever its tails",
        "fit/verdict/policy.py",
        "is_close(one), is_good(one), one.khat < FAR_KHAT, one.share",
        "is_close(one), is_good(one), one.share",
        "policy " + tests,
    )
    yield from neutral(
        "as many jumps whatever a trajectory costs",
        "chains/sampler.py",
        "several = int(np.clip(JUMPS_SHARE * LENGTH / kernel.step_size, *JUMPS))",
        "several = JUMPS[0]",
        "chains " + tests,
    )
    yield from neutral(
        "needles taken for the mode that they are in",
        "start/find.py",
        "return square < NEAR + len(white) and path.values[-1] < most",
        "return square < NEAR + len(white)",
        "search " + tests,
    )
    yield from neutral(
        "searches that do not start from the prior",
        "fit/ladder/modes.py",
        "return np.concatenate([prior, near, first.mean + moves]), len(prior)",
        "return np.concatenate([prior[:0], near, first.mean + moves]), len(prior)",
        "search " + tests,
    )
    yield from neutral(
        "masses of modes without the weights",
        "fit/ladder/modes.py",
        "weights = np.exp(log_ratios - np.max(log_ratios))",
        "weights = np.ones(len(log_ratios))",
        "search " + tests,
    )
    yield from neutral(
        "metrics chosen by place without the ratio of their probabilities",
        "chains/hamiltonian.py",
        "gain = gain + log_chance(positions) - log_chance(chains.positions)",
        "gain = gain + 0.0",
        "chains " + tests,
    )
    yield from numpyro(
        "a position that is drawn again has numbers of the one before",
        "density/start.py",
        "own, following = random.split(rng_key)",
        "own = following = random.split(rng_key)[0]",
        "density",
    )
    yield from numpyro(
        "equally probable values of different assignments",
        "density/enumeration.py",
        "lax.fori_loop(0, 2, look,",
        "lax.fori_loop(0, 1, look,",
        "diagnostics test_discrete",
    )
    yield from numpyro(
        "draws of the prior that are all the same",
        "density/start.py",
        "return lax.map(one, bits)",
        "return lax.map(one, bits[:1].repeat(len(bits), 0))",
        "density",
    )
    yield from neutral(
        "natural gradients that go down",
        "start/find.py",
        "return Mode(mode.mean + mode.factor @ move, factor",
        "return Mode(mode.mean - mode.factor @ move, factor",
        tests,
    )
    yield from neutral(
        "ends of paths by rounding believed",
        "start/find.py",
        "(first.spread > FALSE_END or len(path.values) > LONG)",
        "first.spread > FALSE_END",
        tests,
    )
    yield from neutral(
        "draws given as a start taken in another order",
        "start/given.py",
        "return self.points[np.sort(chosen)]",
        "return self.points[np.sort(chosen)[::-1]]",
        tests,
    )
    yield from numpyro(
        "guides that are not put to the start",
        "score/guide_engine.py",
        "parameters = density.set_start(parameters, target.start.start)",
        "parameters = dict(parameters)",
        tests,
    )
    yield from pyro(
        "guides that are not put to the start",
        "score/guide_engine.py",
        "plan.density.set_start(plan.parameters, plan.target.start.start)",
        "dict(plan.parameters)",
        tests,
    )


def _neutral() -> Iterator[Mutation]:
    yield from neutral(
        "bounds of options included that are excluded",
        "options.py",
        "not above < float(value) <= most",
        "not above <= float(value) <= most",
        "options",
    )
    yield from neutral(
        "Stan: gradient of a rejected position kept",
        "stan/density.py",
        "gradients[row] = 0.0",
        "gradients[row] += 1.0",
        "stan",
    )
    yield from neutral(
        "Stan: signs of make left in arguments",
        "stan/compilation.py",
        'shlex.quote(argument).replace("$", "$$")',
        "shlex.quote(argument)",
        "stan",
    )
    yield from neutral(
        "Stan: compiled where make cannot read",
        "stan/compilation.py",
        "next(filter(_readable, places), None)",
        "next(iter(places), None)",
        "stan",
    )
    for name, file, old, new, tests in [
        (
            "rounding is that of the entry that it moves least",
            "arguments.py",
            "rounding = _at(changed, (3 * (counts - 1)) // 4)",
            "rounding = _at(changed, 0 * counts)",
            "faults",
        ),
        (
            "numbers that differ by rounding alone have a spread",
            "arguments.py",
            "differs = spread > _ONE_NUMBER *",
            "differs = spread > 0.0 *",
            "faults",
        ),
        (
            "rows of a batch count as often as the batch is part of all",
            "fit/problem/observed.py",
            "{each.size / each.subsample_size:.3g} times",
            "{each.subsample_size / each.size:.3g} times",
            "faults",
        ),
        (
            "likelihoods that rounding makes the same have no latent site in them",
            "target/log_density.py",
            "return bool((scores != 0.0).any())",
            "return False",
            "faults",
        ),
        (
            "two batches swap halves that are the same",
            "target/log_density.py",
            "pairs = (one, one), (two, two), (one, two), (two, one)",
            "pairs = (one, one), (two, two), (one, one), (two, two)",
            "faults",
        ),
        (
            "rows that depend on each other are held against themselves",
            "target/log_density.py",
            "apart = share * one + (1.0 - share) * two",
            "apart = both",
            "faults",
        ),
        (
            "the second look at a loader's rows is the first again",
            "batches/passes.py",
            "self._look(sum(batch.mark() for batch in self._again(number)))",
            "self._look(mark)",
            "faults",
        ),
        (
            "a loader's rows are known in one order alone",
            "batches/batch.py",
            "return int((total ^ (total >> np.uint64(29))).sum())",
            "return int((total * np.arange(len(total), dtype=np.uint64)).sum())",
            "faults",
        ),
        (
            "more draws do not look at the data",
            "fit/fit.py",
            "if self.climbed.problem.digest() != self._arguments:",
            "if not self.climbed.problem.digest():",
            "faults",
        ),
        (
            "a fit does not look at what its program reads beside its arguments",
            "fit/fit.py",
            "return bool(problem.own.follows(problem.data))",
            "return True",
            "faults",
        ),
        (
            "more draws that failed have used up random numbers",
            "fit/fit.py",
            "generator.bit_generator.state = before[0]",
            "pass",
            "test_fit",
        ),
    ]:
        yield from neutral(name, file, old, new, tests)
    yield from neutral(
        "a saved fit goes on with other random numbers",
        "fit/load.py",
        'bit_generator.state = rest["generator"]',
        "bit_generator.advance(1)",
        "test_fit",
    )
    yield from neutral(
        "a saved state that was rewritten is believed",
        "running/state_files.py",
        "if own is None or not np.array_equal(own, _digest(arrays)):",
        "if own is None:",
        "test_fit",
    )
    yield from neutral(
        "files of other writers are taken for those of killed ones",
        "running/whole_files.py",
        "fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH if wait else fcntl.LOCK_SH | fcntl.LOCK_NB",
        "test_whole_files",
    )
    yield from neutral(
        "a fit spends a batch more than its budget",
        "fit/problem/problem.py",
        "if self.left - number < leaves:",
        "if self.left < leaves:",
        "test_fit",
    )
    yield from neutral(
        "an engine's judgement does not look at bounds",
        "engines/judgement.py",
        "reasons = (*told_of_bounds(run.out_of_bounds, z), *reasons)",
        "reasons = (*told_of_bounds(None, z), *reasons)",
        "test_bounds",
    )
    yield from neutral(
        "parameters of rows that a mask hides count as out of bounds",
        "target/bounds.py",
        "beyond = beyond & mask.reshape(",
        "beyond = beyond | 0 * mask.reshape(",
        "test_bounds",
    )
    yield from neutral(
        "observations are compared with the bounds before they are moved",
        "target/bounds.py",
        "value = transform.inv(value)",
        "value = value + 0.0",
        "test_bounds",
    )
    yield from neutral(
        "a fit beyond the bounds of a distribution is trusted",
        "fit/ladder/climbed.py",
        'level, reasons = "not trusted", (*self.beyond, *reasons)',
        "reasons = (*self.beyond, *reasons)",
        "test_bounds",
    )
    yield from neutral(
        "labels that observations share are drawn from the prior where rows are predicted",
        "diagnostics/replay.py",
        "names = shared_discrete(sites, target.plates)",
        "names = shared_discrete(sites, target.plates, ())",
        "diagnostics/test_discrete",
    )
    yield from neutral(
        "labels of a row are taken for shared ones",
        "diagnostics/replay.py",
        "math.prod(each.batch_shape) > size",
        "math.prod(each.batch_shape) >= size",
        "diagnostics/test_discrete",
    )
    yield from neutral(
        "a site that rounding has made one number is left out of a judgement",
        "fit/ladder/chain_figures.py",
        "moving = np.arange(flat.shape[2])",
        "moving = moving[:0]",
        "test_sites",
    )
    yield from neutral(
        "draws that are one number are worth all of them",
        "statistics/convergence.py",
        "np.where(is_fixed, 1.0, np.minimum(*tails)),",
        "np.minimum(*tails),",
        "test_sites",
    )
    yield from neutral(
        "Ctrl-C is raised while a global is changed",
        "process.py",
        "if exception[0] is None and not _interrupt.locks:",
        "if exception[0] is None:",
        "test_process",
    )
    yield from neutral(
        "a saved fit's program is not compared with its density",
        "fit/after/bound.py",
        "if not np.abs(own - saved).max() <= allowed:",
        "if not np.abs(own - saved).max() <= np.inf:",
        "test_fit",
    )
    yield from neutral(
        "the metric of several Normals regardless of their weights",
        "fit/warm.py",
        "np.tensordot(start.weights, np.stack(parts), 1)",
        "np.mean(np.stack(parts), 0)",
        "test_warm_chains",
    )
    yield from neutral(
        "checkpoints ten times as often",
        "running/run.py",
        "checkpoint_every or max(1, math.ceil(num_steps / 10))",
        "checkpoint_every or max(1, math.ceil(num_steps / 100))",
        "test_engine",
    )
    yield from neutral(
        "anchors of other data are taken for one's own",
        "gradients/reduced_variance.py",
        "return (batches or data.args), data.kwargs",
        "return None",
        "faults",
    )
    yield from pyro(
        "discrete sites that arguments bring are drawn",
        "density/bound_model.py",
        "if self.enumerated else NoneNew()",
        "if self.enumerated else nullcontext()",
        "density/test_discrete",
    )
    yield from numpyro(
        "discrete sites that arguments bring are drawn",
        "density/bound_model.py",
        "run_trace(NoneNew(model), data",
        "run_trace(model, data",
        "density/test_discrete",
    )
    yield from neutral(
        "arguments with other discrete sites are followed",
        "target/bound_model.py",
        "set(found.enumerated) <= set(self.enumerated)",
        "True",
        "density/test_discrete",
    )
    yield from neutral(
        "plates that meet the values of discrete sites",
        "target/bound_model.py",
        "(found.nesting <= self.nesting or not self.enumerated)",
        "True",
        "density/test_discrete",
    )
    yield from neutral(
        "plates of another size are taken for the same",
        "target/bound_model.py",
        "and found.plates == self.plates",
        "and found.plates.keys() == self.plates.keys()",
        "faults",
    )
    yield from neutral(
        "what a model closes over is not read",
        "target/fingerprint.py",
        "self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)",
        "self.add(array.size)",
        "faults",
    )
    yield from neutral(
        "overflows of the diagonal form are never let in",
        "score_matching/regression/diagonal.py",
        "response=LENIENCE * before.response",
        "response=before.response",
        "closed_forms",
    )


def _networks() -> Iterator[Mutation]:
    for name, file, old, new in (
        (
            "further draws of a network alone are judged",
            "networks.py",
            "kept=list(before.kept),",
            "kept=[],",
        ),
        (
            "chains of a refit that begin at an ensemble",
            "networks.py",
            "members = None if known is None or why else known.run.z",
            "members = None",
        ),
        (
            "a verdict of outputs without what is said of the data",
            "judged.py",
            "return outputs.problem.observed.judged(verdict)",
            "return verdict",
        ),
        (
            "a budget without draws that is spent on an ensemble",
            "networks.py",
            "if meter.left < sum(",
            "if False and sum(",
        ),
        (
            "calibration that draws the chains' numbers",
            "networks.py",
            "np.random.default_rng(SEED))",
            "run.generator)",
        ),
        (
            "scores of minibatches that are not those of their densities",
            "rows_seen.py",
            "values + more + ((z - known.z) * slope).sum(1), scores",
            "values + more, scores",
        ),
        (
            "minibatches whose variance is not reduced",
            "rows_seen.py",
            "scores + slope",
            "scores",
        ),
        (
            "an anchor that never moves",
            "rows_seen.py",
            "anchor is None or number % self.moves == 0",
            "anchor is None",
        ),
        (
            "minibatches that count as all rows",
            "rows_seen.py",
            "evaluate, share=minibatches.share)",
            "evaluate)",
        ),
        (
            "draws before a second warm-up that are lost",
            "networks.py",
            "before = run, figures",
            "pass",
        ),
    ):
        yield from neutral(name, f"fit/networks/{file}", old, new, "fit/test_networks")
    yield from neutral(
        "minibatches that are never drawn anew",
        "start/rows.py",
        "self._piece = self._pieces(rows)",
        "pass",
        "fit/test_networks",
    )
    yield from both(
        "one layer taken for a network",
        "density/first_run.py",
        "len(layers) > 1",
        "len(layers) > 0",
        "fit/test_networks",
        pyro=("len(self.layers) > 1", "len(self.layers) > 0"),
    )
    for name, old, new in [
        (
            "scales times the root of the fan-in",
            "return scale / math.sqrt(p",
            "return scale * math.sqrt(p",
        ),
        ("horseshoe without its slab", "return scale / (1.0 +", "return scale / (1.0 + 0.0 *"),
        ("the slab's scale is not squared", "self.slab_scale**2", "self.slab_scale"),
        ("scales of the wrong axis", '"input": parameter.inputs', '"input": parameter.units'),
        ("global scale of all groups", "(groups - relevant) *", "groups *"),
        (
            "pre-trained weights left out",
            "distribution = host.dist.Normal(location, scale, validate_args=False)",
            "distribution = host.dist.Normal(0.0 * location, scale, validate_args=False)",
        ),
    ]:
        yield from neutral(name, "networks/priors.py", old, new, "random_module")
    yield from neutral(
        "the last pattern that fits",
        "networks/parameters.py",
        "given[fits[0]]",
        "given[fits[-1]]",
        "random_module",
    )
    yield from both(
        "units taken for inputs",
        "networks/modules.py",
        "return (value.ndim - number - 1,), tuple(range(value.ndim - number, value.ndim))",
        "return (value.ndim - 1,), tuple(range(value.ndim - number))",
        "random_module",
        pyro=("else ((1,), (0,))", "else ((0,), (1,))"),
    )
    yield from both(
        "scales of normalisation are divided as weights are",
        "networks/modules.py",
        "(equinox.nn.Embedding, *scaled)",
        "equinox.nn.Embedding",
        "random_module",
        pyro=("_EMBEDDINGS + _NORMALISATION", "_EMBEDDINGS"),
    )
    yield from neutral(
        "linear outputs move the wrong way",
        "target/linearized.py",
        "values[name][key] + moves[name][key]",
        "values[name][key] - moves[name][key]",
        "linearized",
    )
    yield from both(
        "probabilities are moved as they are",
        "density/linearized.py",
        "return jnp.log(",
        "return jnp.asarray(",
        "linearized",
        pyro=(".tiny).log()", ".tiny)"),
    )
    yield from neutral(
        "masks left out of linear outputs",
        "target/linearized.py",
        "if self.output.mask is not None",
        "if False",
        "linearized",
    )


def _settling() -> Iterator[Mutation]:
    for name, file, old, new in [
        (
            "noise taken off a drift",
            "running/noisy_sequences.py",
            "left) + MARGIN * error",
            "left) - MARGIN * error",
        ),
        ("error of a single part", "running/noisy_sequences.py", ".mean(0) / PARTS", ".mean(0)"),
        (
            "windows swapped",
            "running/noisy_sequences.py",
            "size, before, earlier =",
            "before, size, earlier =",
        ),
        (
            "last window left out",
            "running/noisy_sequences.py",
            "means[:-1] - means[1:]",
            "means[1:-1] - means[2:]",
        ),
        (
            "drifts that never slow down settle",
            "running/noisy_sequences.py",
            ">= ENDLESS",
            ">= 2.0 * ENDLESS",
        ),
        ("tests passed before a kill", "running/settling.py", '"skipped", "passed")', '"skipped")'),
        (
            "skipped steps are rest",
            "running/settling.py",
            "2 * missed > taken",
            "missed > 2 * taken",
        ),
        (
            "every other look from the first",
            "running/settling.py",
            "self._looks[::-2][::-1]",
            "self._looks[::2]",
        ),
        ("means in wrong units", "running/settling.py", "= np.exp(looks[", "= np.exp(-looks["),
        (
            "settled at the first pass",
            "running/settling.py",
            "GROWTH, IN_A_ROW = 1.1, 3",
            "GROWTH, IN_A_ROW = 1.1, 0",
        ),
    ]:
        yield from neutral(name, file, old, new, "settling")


def _sharding() -> Iterator[Mutation]:
    for name, file, old, new in [
        (
            "the first process's particles in all",
            "sharding.py",
            "first = self._number(",
            "first = 0 * self._number(",
        ),
        (
            "rows of a batch count as all",
            "sharding.py",
            "[((last - first) / lengths[name], own)], True",
            "[(1.0, own)], True",
        ),
        (
            "rows of a sweep from the first on",
            "sharding.py",
            "range(rows.start + first, rows.stop + first)",
            "range(rows.start, rows.stop)",
        ),
        (
            "the same noise for each share",
            "density/log_density.py",
            "noise = self.share[0].own(noise)",
            "noise = noise[: len(positions)]",
        ),
        (
            "the optimizer of one process in a file",
            "stein/particles.py",
            'own = ("particles", "optimizer")',
            'own = ("particles",)',
        ),
        (
            "the loss of one process",
            "stein/particles.py",
            "[every[:, :2].mean(dim=0), every[:, 2:].amax(dim=0)]",
            "[figures[:2], every[:, 2:].amax(dim=0)]",
        ),
        (
            "arguments are not compared",
            "engine.py",
            '"arguments": self._digest((args, kwargs)),',
            '"arguments": self._digest(()),',
        ),
        (
            "every process counts a short batch",
            "sharding.py",
            'return float(self._number("rows") == 0), batch',
            "return 1.0, batch",
        ),
        (
            "every process takes the whole of a batch",
            "sharding.py",
            "return (last - first) / number, batch.part(first, last)",
            "return (last - first) / number, batch",
        ),
    ]:
        yield from pyro(name, file, old, new, "sharding")
    for name, file, old, new in [
        (
            "particles are whole on every device",
            "sharding.py",
            "named = NamedSharding(self._auto, PartitionSpec(self.particles))",
            "named = NamedSharding(self._auto, PartitionSpec())",
        ),
        (
            "all particles in place of some coordinates",
            "sharding.py",
            'if self.exchange == "all-gather" or self.particles is None:',
            "if True:",
        ),
        (
            "axes of the mesh stay explicit",
            "sharding.py",
            "kinds = (AxisType.Auto,) * len(mesh.axis_names)",
            "kinds = mesh.axis_types",
        ),
        (
            "rows of arguments are whole on every device",
            "sharding.py",
            "else _laid(array, named) if is_even",
            "else self._whole(array) if is_even",
        ),
        (
            "a pickled sharding forgets its exchange",
            "sharding.py",
            "return Sharding(mesh, particles, rows, exchange=exchange, timeout=timeout)",
            "return Sharding(mesh, particles, rows, timeout=timeout)",
        ),
    ]:
        yield from numpyro(name, file, old, new, "numpyro_ext/test_sharding")


def _batches() -> Iterator[Mutation]:
    for name, file, old, new in [
        (
            "the batch that was read last comes first",
            "stream.py",
            "item = self._waiting[len(found)]",
            "item = self._waiting[-1]",
        ),
        (
            "the place after the last batch that was read",
            "stream.py",
            "self._latest = self._waiting.popleft()",
            "self._latest = self._waiting.pop()",
        ),
        (
            "batches of two sizes together",
            "stream.py",
            "if item.batch.rows != found[0].rows:",
            "if False:",
        ),
        (
            "batches wait for others without end",
            "stream.py",
            "while len(found) < most and time.monotonic() < until:",
            "while len(found) < most:",
        ),
        (
            "a resumed epoch begins at its first batch",
            "order.py",
            "return iterator, batches",
            "return iterator, 0",
        ),
        (
            "generators go on from where they are",
            "order.py",
            "self._before = [each.get_state() for each in self._generators]",
            "self._before = []",
        ),
        (
            "a sampler of the first epoch in a resumed one",
            "order.py",
            "self._set_epoch(epoch)\n            self.loader",
            "self.loader",
        ),
        (
            "a loader's processes forked by a thread",
            "order.py",
            'return bool(getattr(self.loader, "num_workers", 0))',
            "return False",
        ),
        (
            "batches are known by their shapes alone",
            "batch.py",
            "digest.update(np.ascontiguousarray(part).tobytes())",
            "digest.update(bytes(len(part)))",
        ),
        (
            "rows that are left over are the first again",
            "passes.py",
            "kept = [whole.part(rows, rows + number)]",
            "kept = [whole.part(0, number)]",
        ),
    ]:
        yield from neutral(name, f"batches/{file}", old, new, "batches/test_streams")
    for name, file, old, new in [
        (
            "a sample's error is that of one part",
            "witnesses/sample.py",
            "np.std(of_parts, axis=0, ddof=1) / np.sqrt(len(parts))",
            "np.std(of_parts, axis=0, ddof=1)",
        ),
        (
            "a sample's error is that of the draws alone",
            "witnesses/sample.py",
            "return np.hypot(of_draws, np.std(",
            "return of_draws + 0 * (np.std(",
        ),
        (
            "the parts of a sample are its first rows again",
            "batches/passes.py",
            "self.batch.part(k * size, (k + 1) * size)",
            "self.batch.part(0, size)",
        ),
        (
            "a sample is all rows of a loader",
            "start/rows.py",
            "every = InPieces(pieces(None), widths=WIDTHS)",
            "every = None",
        ),
    ]:
        yield from neutral(name, file, old, new, "batches/test_fits")
    for name, file, old, new in [
        (
            "groups with fewer draws have the fewest that there may be",
            "diagnostics/thinning.py",
            "max(LEAST_DRAWS, MOST_NUMBERS // most)",
            "min(LEAST_DRAWS, MOST_NUMBERS // most)",
        ),
        (
            "a group is much by its draws alone",
            "diagnostics/thinning.py",
            "return num_draws * numbers > MOST_NUMBERS",
            "return num_draws > MOST_NUMBERS",
        ),
        (
            "draws of a chain that a group has are numbered over all chains",
            "diagnostics/thinning.py",
            "kept[: len(kept) // num_chains]",
            "kept",
        ),
        (
            "draws outside of supports are numbered among the few",
            "diagnostics/thinning.py",
            "bool))[kept] |= flags",
            "bool))[: len(kept)] |= flags",
        ),
        (
            "predictions of fewer draws are lost",
            "diagnostics/thinning.py",
            "predictive=few.predictive",
            "predictive=found.predictive",
        ),
        (
            "labels along the axes begin with those of the draws",
            "fit/problem/naming.py",
            "arrays[safe.given[name]][0][2:]",
            "arrays[safe.given[name]][0][1:]",
        ),
        (
            "every number of a site bears the first label",
            "fit/problem/naming.py",
            "str(axis[int(each)])",
            "str(axis[0])",
        ),
        (
            "names that do not fit the program are left to whoever uses them",
            "fit/problem/naming.py",
            "        if refuses:",
            "        if False:",
        ),
    ]:
        yield from neutral(name, file, old, new, "fit/test_looks")
    yield from numpyro(
        "a scan over all of its data is taken for a forecast",
        "density/prediction.py",
        "len(value) < steps",
        "len(value) <= steps",
        "numpyro_ext/test_fit diagnostics/test_arviz",
    )
    yield from numpyro(
        "a scan that goes on beyond its data is not told",
        "density/prediction.py",
        "            raise GoesOnError",
        "            return",
        "numpyro_ext/test_fit",
    )
    yield from neutral(
        "a skipped batch is told by the next one's number",
        "batches/stream.py",
        "self._skipped.append((self._latest.epoch, self._latest.number - 1))",
        "self._skipped.append((self._latest.epoch, self._latest.number))",
        "batches/test_runs",
    )
    yield from both(
        "batches of a pass count as all rows",
        "density/batches.py",
        "step(carry, rows / size, bound, number)",
        "step(carry, 1.0, bound, number)",
        "batches/test_runs",
        pyro=("weight = batch.rows / (size or first.rows)", "weight = 1.0"),
    )
    for name, file, old, new in [
        (
            "each piece begins with the first batch of a block",
            "density/batches.py",
            "self.first + step, keepdims",
            "step, keepdims",
        ),
        (
            "batches of a block in the opposite order",
            "density/batches.py",
            "stack[i] = array",
            "stack[len(arrays) - 1 - i] = array",
        ),
        (
            "arguments of all steps are stacked",
            "density/batches.py",
            "_stacked([each[i] for each in parts], size) if own[i] else array",
            "_stacked([each[i] for each in parts], size)",
        ),
        (
            "a block is never used up",
            "engine.py",
            "block.take(done - broken)",
            "block.take(0)",
        ),
        (
            "the batch of a broken step counts as taken",
            "engine.py",
            "for loss in losses[: done - broken]:",
            "for loss in losses[:done]:",
        ),
        (
            "arguments of a block's first step are kept",
            "engine.py",
            "data=block.data(done - 1))",
            "data=block.data(0))",
        ),
    ]:
        yield from numpyro(name, file, old, new, "numpyro_ext/test_batches batches/test_runs")


def _looks() -> Iterator[Mutation]:
    """Of tables of a fit, predictions at new rows, and replays at many draws at once."""
    for name, file, old, new, tests in [
        (
            "the error of a mean in standard deviations",
            "fit/verdict/figures.py",
            "float(deviations[k] * mean_errors[k])",
            "float(mean_errors[k])",
            "fit/test_looks",
        ),
        (
            "the error of a standard deviation without the fourth moment",
            "fit/verdict/figures.py",
            "0.5 * np.sqrt(np.maximum(fourth - 1.0, 0.0) / ess)",
            "0.5 * np.sqrt(fourth / ess)",
            "fit/test_looks",
        ),
        (
            "of many numbers the best known is shown",
            "fit/verdict/figures.py",
            "int(np.argmin(np.where(moves, ess, math.inf)))",
            "int(np.argmax(np.where(moves, ess, -math.inf)))",
            "fit/test_looks",
        ),
        (
            "an interval of the other probability",
            "diagnostics/posterior.py",
            "ends = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)",
            "ends = 0.5 * probability, 1.0 - 0.5 * probability",
            "fit/test_looks",
        ),
        (
            "a result of an engine that has gone on since",
            "engines/result.py",
            "if now != self._ran.number:",
            "if now < self._ran.number:",
            "fit/test_runs",
        ),
        (
            "lists to predict that stay as they are given",
            "fit/habits.py",
            "if rank and isinstance(new, list):",
            "if rank and isinstance(new, tuple):",
            "fit/test_habits",
        ),
        (
            "errors of draws that are not trusted",
            "fit/verdict/verdict.py",
            "if not self.trusted or math.isnan(figure):",
            "if math.isnan(figure):",
            "fit/test_looks",
        ),
        (
            "room for half of what is computed",
            "diagnostics/replay.py",
            "numbers[group] = times * sum(math.prod(shape) for shape in shapes)",
            "numbers[group] = times * max((math.prod(shape) for shape in shapes), default=0) // 2",
            "fit/test_looks",
        ),
    ]:
        yield from neutral(name, file, old, new, tests)
    yield from pyro(
        "draws side by side with one noise",
        "density/replay.py",
        '_quiet(torch.func.vmap(at_one, randomness="different"))',
        '_quiet(torch.func.vmap(at_one, randomness="same"))',
        "fit/test_looks",
    )
    yield from pyro(
        "chunks of draws with one noise",
        "density/replay.py",
        "_seed([seeds[0][0], begin, chunk, draws.stop - begin])",
        "_seed([seeds[0][0], chunk, draws.stop - begin])",
        "fit/test_looks",
    )


MUTATIONS: tuple[Mutation, ...] = (
    *_density(),
    *_gradients(),
    *_kernels(),
    *_stein(),
    *_curvature(),
    *_laplace(),
    *_guides(),
    *_score(),
    *_long_vectors(),
    *_sgmcmc(),
    *_microcanonical(),
    *_engine(),
    *_diagnostics(),
    *_fit(),
    *_neutral(),
    *_networks(),
    *_settling(),
    *_sharding(),
    *_batches(),
    *_looks(),
    *_what_is_held(),
)

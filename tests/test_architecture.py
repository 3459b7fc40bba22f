"""The import rules of docs/architecture.md, read from the source by `ast` without running it.

Rules: `ppl_ext` knows no framework; neither package imports the other or the other's framework;
every room imports only the rooms it may; only `density/` and `guides/` know the hosts' effect
handlers; both packages have the same files; no hook of an engine writes to the engine.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: The mirrors, and with the neutral package all.
PACKAGES = ("pyro_ext", "numpyro_ext")
ALL = (*PACKAGES, "ppl_ext")

# Top-level modules that a package must never import: the other package and its framework.
OF_PYRO = {"pyro_ext", "torch", "pyro"}
OF_NUMPYRO = {"numpyro_ext", "jax", "jaxlib", "numpyro", "optax", "flax", "equinox"}
FOREIGN = {"pyro_ext": OF_NUMPYRO, "numpyro_ext": OF_PYRO, "ppl_ext": OF_PYRO | OF_NUMPYRO}
NEVER = {"tests", "benchmarks", "docs"}

# Room -> the rooms of its package that it may import besides itself; all may import `ppl_ext`
# and, of NumPyro, `draws`.
MAY_IMPORT = {
    "graphs": set(),
    "density": {"graphs"},
    "kernels": set(),
    "guides": {"density"},
    "gradients": {"density"},
    "curvature": {"density", "graphs"},
    "optim": set(),
    "engine": {"density", "gradients", "optim", "start"},
    "stein": {"engine", "density", "gradients", "kernels", "curvature", "optim"},
    "laplace": {"engine", "stein", "density", "curvature", "optim"},
    "descent": {"engine", "optim"},
    "score": {"descent", "engine", "density", "gradients", "guides", "optim"},
    "implicit": {"descent", "engine", "density", "gradients", "guides", "networks", "optim"},
    "sgmcmc": {"density", "gradients", "start"},
    "diagnostics": {"density", "engine", "guides"},
    "stan": set(),
    "networks": set(),
    "start": {"density", "guides"},
    "warm_chains": {"density", "fit", "guides", "sgmcmc", "start"},
    "fit": {"density", "diagnostics", "engine", "gradients", "score", "start"},
    "check": {"density", "diagnostics", "engine", "fit"},
    "calibrate": {"check", "density", "fit"},
    "programs": set(),
    "pieces": set(),
    "sharding": set(),
    "_clash": set(),
    "draws": set(),
}

#: Rooms of `ppl_ext/fit`, from below: each may import those before it, and the files beside them,
#: which users' calls come to, may import all.
FIT_ROOMS = ("verdict", "problem", "ladder", "networks", "after")

#: Rooms that every room may import.
EVERYWHERE = {"draws", "pieces", "programs", "sharding"}

# Where the hosts' program effects (handlers, traces, plates) are handled; nowhere else.
EFFECT_ROOMS = {"density", "guides"}
EFFECT_MODULES = {
    "pyro.poutine",
    "pyro.primitives",
    "pyro.infer.util",
    "numpyro.handlers",
    "numpyro.primitives",
    "numpyro.infer.util",
}

# Files and rooms that one package has and the other need not, with the reason.
ONE_SIDED = {
    "pyro_ext/graphs/": "JAX traces and XLA simplifies by itself",
    "numpyro_ext/programs/": "Pyro compiles nothing; its graphs are in graphs/",
    "pyro_ext/density/differentiable.py": "JAX differentiates its scores as they are",
    "pyro_ext/density/log_einsum.py": "funsor has sums of logarithms with gradients that JAX takes",
    "pyro_ext/density/elimination.py": "NumPyro's scan sums a chain in logarithmic depth",
    "pyro_ext/density/failed_factors.py": "JAX gives NaN for a matrix that has no factor",
    "pyro_ext/density/sampling.py": "JAX fills nothing in place",
    "pyro_ext/score/regression/small.py": "XLA makes one program of a step, however small",
    "pyro_ext/sgmcmc/mcmc.py": "NumPyro's MCMC has chain_method='vectorized'; Pyro's has no such",
    "numpyro_ext/draws.py": "torch compiles no programs of its generator",
    "numpyro_ext/density/index_use.py": "JAX clamps a row that is out of range without a word",
    "numpyro_ext/gradients/permutation.py": "torch.randperm takes no longer than a step or two",
    "numpyro_ext/guides/set_up.py": "Pyro's guides run the model once, and nothing is compiled",
    "numpyro_ext/guides/softplus.py": "torch has a fast one",
    "numpyro_ext/guides/threefry.py": "torch draws long vectors fast enough by itself",
    "pyro_ext/pieces.py": "XLA divides loops among threads by itself",
    "numpyro_ext/_clash.py": "only the name numpyro_ext is used by another distribution",
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def room_of(module: str) -> str:
    """The room of a module inside a package: `pyro_ext.stein.svgd` -> `stein`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, *, is_package: bool) -> set[str]:
    """Absolute names of everything that a source imports, wherever the import stands.

    `from a import b` yields both `a` and `a.b`: b may be a module.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = len(parents) - node.level + (1 if is_package else 0)
                base = ".".join([*parents[:kept], *filter(None, [base])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def attribute_chains(tree: ast.AST) -> set[str]:
    """Dotted names that a source uses, such as `pyro.poutine.trace`."""
    found = set()
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name):
            found.add(".".join([node.id, *reversed(parts)]))
    return found


def read(path: Path) -> tuple[str, ast.AST, set[str]]:
    module = module_name(path)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return module, tree, imports_of(tree, module, is_package=path.name == "__init__.py")


def under(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("package", ALL)
def test_no_package_imports_the_other_framework(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name in sorted(read(path)[2])
        if name.partition(".")[0] in FOREIGN[package] | NEVER
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_import_only_what_they_may(package: str) -> None:
    wrong = []
    for path in sources(package):
        module, _, imported = read(path)
        room = room_of(module)
        if not room:
            continue
        assert room in MAY_IMPORT, f"{path.relative_to(ROOT)}: room {room!r} is in no rule"
        allowed = {room} | MAY_IMPORT[room] | EVERYWHERE
        for name in sorted(imported):
            inside = name.startswith(package + ".") and not name.startswith(package + ".__")
            if inside and room_of(name) not in allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
            if name == package:
                wrong.append(f"{path.relative_to(ROOT)} imports the package itself")
    assert not wrong, wrong


def test_rooms_of_a_fit_import_only_those_below() -> None:
    folder = ROOT / "ppl_ext" / "fit"
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == set(FIT_ROOMS)
    wrong = []
    for number, room in enumerate(FIT_ROOMS):
        allowed = {f"ppl_ext.fit.{each}" for each in FIT_ROOMS[: number + 1]}
        for path in sorted((folder / room).glob("*.py")):
            wrong += [
                f"{path.relative_to(ROOT)} imports {name}"
                for name in sorted(read(path)[2])
                if name.startswith("ppl_ext.fit") and not under(name, allowed)
            ]
    assert not wrong, wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_engines_and_kernels_do_not_touch_host_effects(package: str) -> None:
    wrong = []
    for path in sources(package):
        module, tree, imported = read(path)
        if room_of(module) in EFFECT_ROOMS:
            continue
        used = {name for name in imported | attribute_chains(tree) if under(name, EFFECT_MODULES)}
        wrong += [f"{path.relative_to(ROOT)} uses {name}" for name in sorted(used)]
    assert not wrong, wrong


def test_the_packages_mirror_each_other() -> None:
    files = {
        package: {str(path.relative_to(ROOT / package)) for path in sources(package)}
        for package in PACKAGES
    }
    known = {
        package: {
            name
            for path in ONE_SIDED
            for name in files[package]
            if f"{package}/{name}" == path
            or (path[-1] == "/" and f"{package}/{name}".startswith(path))
        }
        for package in PACKAGES
    }
    first, second = PACKAGES
    assert files[first] - known[first] == files[second] - known[second]
    gone = [path for path in ONE_SIDED if not (ROOT / path).exists()]
    assert not gone, "a listed exception is gone: remove its line"


@pytest.mark.parametrize("package", ALL)
def test_packages_are_marked_as_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("ppl_ext", OF_PYRO | OF_NUMPYRO),
        ("pyro_ext", OF_NUMPYRO),
        ("numpyro_ext", OF_PYRO),
    ],
)
def test_importing_a_package_loads_no_other_framework(package: str, never: set[str]) -> None:
    modules = [package]
    if package == "ppl_ext":
        modules = sorted(module_name(path) for path in sources(package))
    script = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert not {name.partition(".")[0] for name in run.stdout.split()} & never


def written_on_self(method: ast.FunctionDef) -> list[str]:
    """What a method assigns to attributes of `self`, or of what they hold, and deletes there."""
    found = []
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            base: ast.expr = node
            while isinstance(base, ast.Attribute | ast.Subscript):
                base = base.value
            if isinstance(base, ast.Name) and base.id == "self":
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and "setattr" in ast.unparse(node.func).lower():
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_hook_writes_to_the_engine(package: str) -> None:
    """The hooks are those that the engine's module names, with those of the other bases."""
    told = ast.get_docstring(ast.parse((ROOT / package / "engine.py").read_text(encoding="utf-8")))
    assert told is not None
    hooks = {*re.findall(r"``(_\w+)\(", told), "_init_direction", "_direction", "_matched"}
    assert len(hooks) >= 9
    methods = [
        (path, node)
        for path in [*sources(package), *sources("ppl_ext")]
        for cls in ast.walk(read(path)[1])
        if isinstance(cls, ast.ClassDef)
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name in hooks
    ]
    assert {node.name for _, node in methods} == hooks
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} writes to {target}"
        for path, node in methods
        for target in written_on_self(node)
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("package", ALL)
def test_shapes_in_signatures_are_strings(package: str) -> None:
    """`Float[Array, ...]` fails where a hint is evaluated; any shape at all is written " ..."."""
    kinds = {"Bool", "Float", "Int", "Int32", "Shaped", "UInt32"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path in sources(package)
        for node in ast.walk(read(path)[1])
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in kinds
        and not (
            isinstance(node.slice, ast.Tuple)
            and isinstance(node.slice.elts[1], ast.Constant)
            and isinstance(node.slice.elts[1].value, str)
        )
    ]
    assert not wrong, wrong


def test_the_rules_see_what_they_look_for() -> None:
    """The reader of imports finds each way of writing one, and that of hooks each assignment."""
    method = ast.parse(
        "def hook(self):\n"
        "    self.a, (b, *self.c) = 1, (2, 3)\n"
        "    self.d.e[0] += self.read\n"
        "    del self.f\n"
        "    def inner():\n        self.g: int = 0\n"
        "    object.__setattr__(self, 'h', 0)\n"
        "    b.i = self.read[0]\n"
    ).body[0]
    assert isinstance(method, ast.FunctionDef)
    assert sorted(written_on_self(method)) == [
        "object.__setattr__(self, 'h', 0)",
        *["self.a", "self.c", "self.d.e[0]", "self.f", "self.g"],
    ]
    tree = ast.parse(
        "import a.b\n"
        "from c import d\n"
        "from . import e\n"
        "from ..f import g\n"
        "def late():\n    import h\n    return pyro.poutine.trace\n"
    )
    assert imports_of(tree, "top.room.file", is_package=False) == {
        "a.b",
        "c",
        "c.d",
        "top.room",
        "top.room.e",
        "top.f",
        "top.f.g",
        "h",
    }
    assert "top.room.inner" in imports_of(
        ast.parse("from .inner import x"), "top.room", is_package=True
    )
    assert "pyro.poutine.trace" in attribute_chains(tree)


@pytest.mark.parametrize("package", ALL)
def test_every_public_class_is_documented(package: str) -> None:
    """By a docstring of its own, or one that `documents_subclasses` gives: `help` has no other."""
    missing = []
    for name in map(module_name, sources(package)):
        module = importlib.import_module(name)
        for found in vars(module).values():
            if isinstance(found, type) and found.__module__ == name and found.__name__[0] != "_":
                # `dataclass` and `NamedTuple` write a signature where no docstring is.
                if not found.__doc__ or found.__doc__.startswith(f"{found.__name__}("):
                    missing.append(f"{name}.{found.__name__}")
    assert not missing, missing


def test_every_public_module_stands_on_a_page_of_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    reference = importlib.import_module("reference")
    files = {path for package in ALL for path in sources(package) if path.name[0] != "_"}
    assert set(reference.modules()) == set(map(module_name, files))
    pages = {reference.room_of(module).name for module in reference.modules()}
    assert pages == {room.name for room in reference.ROOMS}
    with pytest.raises(LookupError, match=r"ppl_ext\.elsewhere stands on no page"):
        reference.room_of("ppl_ext.elsewhere")


def test_every_public_name_has_a_page_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    reference = importlib.import_module("reference")
    found = {name.name: name for name in reference.names()}
    page = "\n".join(reference.page_of(found["SVGD"]))
    for package in PACKAGES:
        assert f".. autoclass:: {package}.stein.svgd.SVGD" in page
    assert found["fit"].page != found["Fit"].page
    assert len({name.page.lower() for name in found.values()}) == len(found)
    first = "\n".join(
        reference.first_page({r.name: [] for r in reference.ROOMS} | {"fit": [found["fit"]]})
    )
    assert first.index("function/fit") < first.index("/api/errors")

"""What a release says of itself agrees: one address, one version, the same bounds everywhere."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
#: conda's names of what a package index names otherwise.
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def script(name: str) -> ModuleType:
    """A file of `.ci`, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bounds(requirements: list[str]) -> dict[str, str]:
    found = (re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", text) for text in requirements)
    return {match[1]: match[2] for match in found if match}


def test_every_dependency_has_a_lower_bound_and_no_other() -> None:
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    lists += PYPROJECT["dependency-groups"].values()
    for requirements in lists:
        names = [text for text in requirements if isinstance(text, str) and "ppl-ext" not in text]
        assert len(bounds(names)) == len(names), names


def test_what_users_install_brings_no_tool_of_developers() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"pyro", "numpyro", "stan", "plots", "all"}
    assert extras["all"] == ["ppl-ext[pyro,numpyro,stan,plots]"]
    users = {name for extra in extras.values() for name in bounds(extra)}
    groups = PYPROJECT["dependency-groups"]
    developers = {
        name
        for group in groups.values()
        for name in bounds([text for text in group if isinstance(text, str)])
    }
    assert {"pytest", "mypy", "ruff", "sphinx"} <= developers
    assert not users & developers
    included = {part["include-group"] for part in groups["dev"] if not isinstance(part, str)}
    # Ray is large, and one slow test's.
    assert included == set(groups) - {"dev", "ray"}


def test_the_recipe_has_the_bounds_of_the_project() -> None:
    recipe = text_of("conda/meta.yaml")
    wanted = bounds(PROJECT["dependencies"])
    for extra in ("pyro", "numpyro", "plots"):
        wanted |= bounds(PROJECT["optional-dependencies"][extra])
    for name, bound in wanted.items():
        assert f"- {CONDA.get(name, name)} >={bound}\n" in recipe, name
    constrained = recipe.partition("run_constrained:")[2]
    assert "- numpyro-ext <0.0.0a0" in constrained
    assert f'version = "{PROJECT["version"]}"' in recipe


def test_there_is_one_address() -> None:
    address = PROJECT["urls"]["Homepage"]
    owner = address.removeprefix("https://github.com/")
    named = ["CITATION.cff", "conda/meta.yaml", ".github/ISSUE_TEMPLATE/config.yml"]
    assert all(address in text_of(name) for name in named)
    substitutions = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]
    assert all(f"/{owner}/" in rule["replacement"] for rule in substitutions)
    others = [text_of(name) for name in (*named, "README.md", "CONTRIBUTING.md", "pyproject.toml")]
    for text in others:
        for found in re.findall(r"github\.com/([\w.-]+/ppl-ext)\b", text):
            assert found == owner


def test_links_of_the_readme_become_absolute_and_lead_somewhere() -> None:
    rules: list[dict[str, Any]] = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"][
        "fancy-pypi-readme"
    ]["substitutions"]
    readme = text_of("README.md")
    relative = re.findall(r"\]\((?!https?:|#)([^)#]+)", readme)
    assert relative and all((ROOT / link).exists() for link in relative), relative
    for rule in rules:
        readme = re.sub(rule["pattern"], rule["replacement"], readme)
    assert not re.findall(r"\]\((?!https?:|#)", readme)


def test_lowest_versions_are_the_bounds() -> None:
    lowest = script("from_archive").lowest("numpyro")
    assert f"jax=={bounds(PROJECT['optional-dependencies']['numpyro'])['jax']}" in lowest
    assert any(text.startswith("arviz==") for text in lowest)
    assert not any(text.startswith(("torch==", "pytest==")) for text in lowest)


CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- B.\n\n## 0.1.0 (2026-01-31)\n\n- A.\n"


def pyproject(version: str) -> str:
    return f'[project]\nversion = "{version}"\n'


def test_notes_of_a_release_are_its_section() -> None:
    notes = script("release_notes").notes
    assert notes("0.1.0", CHANGELOG, pyproject("0.1.0"), "version: 0.1.0\n") == "- A."


@pytest.mark.parametrize(
    ("version", "project", "citation", "message"),
    [
        ("0.2.0", "0.2.0", "0.2.0", "expected a date"),
        ("0.3.0", "0.3.0", "0.3.0", "expected a section"),
        ("0.1.0", "0.2.0", "0.1.0", "in pyproject.toml, found 0.2.0"),
        ("0.1.0", "0.1.0", "0.2.0", "in CITATION.cff, found 0.2.0"),
    ],
)
def test_a_release_that_is_not_ready_is_refused(
    version: str, project: str, citation: str, message: str
) -> None:
    notes = script("release_notes").notes
    with pytest.raises(ValueError, match=message):
        notes(version, CHANGELOG, pyproject(project), f"version: {citation}\n")


@pytest.mark.parametrize("name", ["quick_start", "from_archive", "release_notes"])
def test_scripts_need_python_alone(name: str) -> None:
    source = text_of(f".ci/{name}.py")
    modules = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)) - {"__future__"}
    assert modules <= sys.stdlib_module_names

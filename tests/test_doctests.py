"""Every public class and function has a short example in its docstring, and the examples run.

An example knows the public names of its package, as after `from pyro_ext import *`, so that the
docstrings of what both packages share serve both.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

PACKAGES = ("pyro_ext", "numpyro_ext")
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def public(package: str) -> Iterator[tuple[str, Any]]:
    """Classes and functions that a package exports."""
    module = importlib.import_module(package)
    for name in module.__all__:
        item = getattr(module, name)
        if inspect.isclass(item) or inspect.isroutine(item):
            yield name, item


def examples(name: str, item: Any, package: str = "") -> doctest.DocTest | None:
    """The examples in an item's docstring; None where there are none that run."""
    parser = doctest.DocTestParser()
    names = dict(public(package)) if package else {}
    # An inherited docstring is shown as the item's own, and its examples are.
    found = parser.get_doctest(inspect.getdoc(item) or "", names, name, None, None)
    runs = [each for each in found.examples if not each.options.get(doctest.SKIP)]
    return found if runs else None


@pytest.mark.parametrize("package", PACKAGES)
def test_public_items_have_an_example(package: str) -> None:
    pytest.importorskip(package)
    lacking = [name for name, item in public(package) if examples(name, item) is None]
    assert not lacking, f"public items of {package} without an example that runs: {lacking}"


@pytest.mark.docs
@pytest.mark.library_start
@pytest.mark.parametrize("package", PACKAGES)
def test_examples_run(package: str) -> None:
    pytest.importorskip(package)
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    failed: list[str] = []
    count = 0
    for name, item in public(package):
        test = examples(name, item, package)
        if test is not None:
            count += 1
            said: list[str] = []
            runner.run(test, out=said.append)
            failed += said
    assert count > 50
    assert not failed, "".join(failed)


def test_an_example_that_is_wrong_or_missing_is_seen() -> None:
    def wrong() -> None:
        """Add.

        >>> 1 + 1
        3
        """

    def missing() -> None:
        """Add.

        >>> 1 + 1  # doctest: +SKIP
        3
        """

    assert examples("missing", missing) is None
    test = examples("wrong", wrong)
    assert test is not None
    assert doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None).failed == 1

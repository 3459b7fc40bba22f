"""Both packages document what they export, with the same words but for the hosts' own."""

from pathlib import Path

import pytest

from tests import docstrings


def test_texts_of_the_packages_differ_as_recorded() -> None:
    assert docstrings.differences() == docstrings.APART.read_text(), (
        "Docstrings of the two packages no longer differ as tests/docstrings_apart.txt has it. "
        "Mend the other package's text too, or, where the difference is meant, run "
        "`python -m tests.docstrings` and look at what it writes."
    )


def test_a_word_that_one_package_alone_changes_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, word in [("pyro_ext", "Draws"), ("numpyro_ext", "Samples")]:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("__all__ = ['f']")
        (tmp_path / package / "room.py").write_text(
            f'def f():\n    """{word} of it.\n\n    Examples\n    --------\n    {word}\n    """\n'
            f'def g():\n    """{word}."""\n'
        )
    monkeypatch.setattr(docstrings, "ROOT", tmp_path)
    assert docstrings.differences() == "room f\n  Draws | Samples\n"

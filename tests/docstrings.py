"""Docstrings of the names that both packages export, compared word by word.

Each package documents such a name whole, where it stands. What their texts say differently is
kept in ``docstrings_apart.txt``, so that a change of one text alone is noticed.
``python -m tests.docstrings`` writes that file anew.
"""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

ROOT = Path(__file__).parent.parent
APART = Path(__file__).parent / "docstrings_apart.txt"


def exported(package: str) -> set[str]:
    """Names that ``from package import *`` gives."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return set(names)


def texts_of(package: str) -> dict[str, list[str]]:
    """Words of the docstring, without its examples, of each exported function and class."""
    texts = {}
    names = exported(package)
    for path in sorted((ROOT / package).rglob("*.py")):
        place = path.relative_to(ROOT / package).with_suffix("").as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
                text = ast.get_docstring(node)
                if text:
                    before, _, _ = text.partition("\nExamples\n---")
                    texts[f"{place} {node.name}"] = before.split()
    return texts


def differences() -> str:
    """What the two packages' texts of one name say differently, as the file has it."""
    pyro, numpyro = texts_of("pyro_ext"), texts_of("numpyro_ext")
    lines = []
    for name in sorted(pyro.keys() & numpyro.keys()):
        one, other = pyro[name], numpyro[name]
        parts = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
        apart = [
            f"  {' '.join(one[a:b]) or '-'} | {' '.join(other[c:d]) or '-'}"
            for kind, a, b, c, d in parts
            if kind != "equal"
        ]
        lines += [name, *apart] if apart else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    APART.write_text(differences())

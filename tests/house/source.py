"""Figures that are read from the source without running it."""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

from tests.test_architecture import ALL, PACKAGES, ROOT, imports_of, module_name, sources

_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
#: Words that both packages' sources say in their own way.
_FOLDED = {
    r"\b(torch|jnp|jax\.numpy)\b": "xp",
    r"\b(Tensor|Array)\b": "Array",
    r"\b(pyro_ext|numpyro_ext)\b": "package",
    r"\b(pyro|numpyro)\b": "host",
}


def docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines that docstrings take."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def lines_of(path: Path) -> tuple[set[int], int]:
    """Numbers of a file's lines of code, docstrings apart, and its number of comments."""
    text = path.read_text(encoding="utf-8")
    code: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return code - docstring_lines(ast.parse(text)), comments


def size() -> dict[str, dict[str, int]]:
    """Lines of code and comments of each package."""
    found = {}
    for package in ALL:
        counted = [lines_of(path) for path in sources(package)]
        found[package] = {
            "code": sum(len(code) for code, _ in counted),
            "comments": sum(comments for _, comments in counted),
        }
    return found


def loose_files() -> int:
    """Files of the neutral package that stand in no room."""
    return len([path for path in (ROOT / "ppl_ext").glob("*.py") if path.name != "__init__.py"])


def identical_lines() -> dict[str, tuple[int, int]]:
    """Of each name, lines of code that both packages' files have in common, in order.

    All of them, and those of bodies: what both packages offer has its signature, its fields and its
    name in a list of names in each of them.
    """
    first, second = (
        {str(path.relative_to(ROOT / package)): path for path in sources(package)}
        for package in PACKAGES
    )
    found = {}
    for name in sorted(first.keys() & second.keys()):
        (lines, of_faces), (others, _) = _folded(first[name]), _folded(second[name])
        matcher = difflib.SequenceMatcher(None, lines, others, autojunk=False)
        same = [
            place
            for block in matcher.get_matching_blocks()
            for place in range(block.a, block.a + block.size)
        ]
        found[name] = len(same), sum(not of_faces[place] for place in same)
    return found


def _folded(path: Path) -> tuple[list[str], list[bool]]:
    """A file's lines of code without imports and docstrings, frameworks' names folded.

    Of each also whether it is part of what the file offers, and not of a body.
    """
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imported: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept, faces = lines_of(path)[0] - imported, _faces(tree)
    lines: list[tuple[str, bool]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if number in kept:
            for pattern, word in _FOLDED.items():
                line = re.sub(pattern, word, line)
            lines.append((line.split("#")[0].strip(), number in faces))
    long = [each for each in lines if len(each[0]) > 1]
    return [line for line, _ in long], [is_face for _, is_face in long]


def _faces(tree: ast.AST) -> set[int]:
    """Numbers of the lines of signatures, of classes' fields, and of lists of names."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found.update(range(first, node.body[0].lineno))
        named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for each in node.body if isinstance(node, ast.ClassDef) else [node] if named else []:
            if isinstance(each, ast.Assign | ast.AnnAssign):
                found.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    return found


def _arrows(package: str) -> dict[str, set[str]]:
    """Of each file the files of its package that it imports, wherever the import stands."""
    names = {module_name(path): path for path in sources(package)}
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = imports_of(tree, name, is_package=path.name == "__init__.py")
        found[name] = {other for other in used if other in names and other != name}
    return found


def circles() -> list[str]:
    """Groups of files of a package that import each other."""
    found = []
    for package in ALL:
        arrows = {k: v for k, v in _arrows(package).items() if k != package}
        found += [" - ".join(sorted(group)) for group in _components(arrows) if len(group) > 1]
    return found


def room_circles() -> list[str]:
    """Groups of rooms of the neutral package that import each other: an arrow up in each.

    A room within a room is one of its own, and so are the files that lie beside it.
    """
    folders = {
        module_name(path): module_name(path.parent / "__init__.py") for path in sources("ppl_ext")
    }
    arrows: dict[str, set[str]] = defaultdict(set)
    for name, others in _arrows("ppl_ext").items():
        for other in others:
            a, b = folders[name], folders[other]
            if "ppl_ext" not in (a, b) and a != b:
                arrows[a].add(b)
    return [" - ".join(sorted(group)) for group in _components(arrows) if len(group) > 1]


def _components(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected groups, by what is reached from each and reaches it."""

    def reached(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for other in arrows.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    all_reached = {name: reached(name) for name in arrows}
    groups: list[set[str]] = []
    for name, others in all_reached.items():
        group = {name} | {other for other in others if name in all_reached.get(other, ())}
        if group not in groups:
            groups.append(group)
    return groups

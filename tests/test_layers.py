"""Imports point inward: a module of onepass imports only from the rings above it (design, section 2)."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "onepass"
FILES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}

# Innermost first. A module or package imports itself and what stands before it, also inside functions and for types.
RINGS = """
    errors files images losses teachers
    seeds augment stream arrivals data held_out boundaries memory nets
    step method methods distill graph learner
    contract probes metrics config recipes record loop
    engine pool needs store place worker cluster space search
    figures predict terminal doctor report paper compare
    given checkup export online adapters commands cli
""".split()
ONLY = {"data": {"data", "errors", "files", "images", "seeds", "augment", "stream"}}  # narrower than its place
FREE = {"__init__", "__about__"}  # the package's own: they import anything, and anything imports them


def ring(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import in a file, relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.parent.relative_to(ROOT).parts[1:]  # without src
            base = [*(package[: len(package) - node.level + 1] if node.level else ()), *filter(None, [node.module])]
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def test_imports_point_inward() -> None:
    wrong: list[str] = []
    for path, tree in FILES.items():
        own = ring(path)
        if own in FREE:
            continue
        if own not in RINGS:
            wrong.append(f"{path.relative_to(ROOT)}: `{own}` has no ring; place it in RINGS in tests/test_layers.py")
            continue
        outer = set(RINGS) - ONLY.get(own, set(RINGS[: RINGS.index(own) + 1]))
        for line, name in imports(path, tree):
            top, target, *_ = [*name.split("."), "__init__"]
            if top == "onepass" and target in outer:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: `{own}` imports `{target}`; RINGS or ONLY forbids it")
    assert not wrong, "\n".join(wrong)


def test_inner_ring_needs_torch_alone() -> None:
    """`losses` and `teachers` can be copied into anybody's loop."""
    known = {"torch", *sys.stdlib_module_names}
    for path, tree in FILES.items():
        for line, name in imports(path, tree) if ring(path) in ("losses", "teachers") else ():
            assert name.split(".")[0] in known, f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_torchvision_is_imported_nowhere() -> None:
    """Its wheel and torch's must match to the build, and it fails to import beside a CPU torch."""
    for path in (p for folder in ("src", "tests", "examples", "bench") for p in (ROOT / folder).rglob("*.py")):
        for line, name in imports(path, ast.parse(path.read_text("utf-8"))):
            assert name.split(".")[0] != "torchvision", f"{path.relative_to(ROOT)}:{line} imports torchvision"


def test_modules_begin_with_one_sentence() -> None:
    firsts = {path: (ast.get_docstring(tree) or "").partition("\n")[0] for path, tree in FILES.items()}
    wrong = [f"{path.relative_to(ROOT)}: {first!r}" for path, first in firsts.items() if not first.endswith(".")]
    assert not wrong, "The first docstring line is to be one sentence with a full stop:\n" + "\n".join(wrong)


def test_the_tree_in_the_readme_is_made_of_the_docstrings() -> None:
    """Each file in the order of the rings, with the one line that it begins with."""
    lines = ["src/onepass/"]
    for name in RINGS:
        package, module = PACKAGE / name / "__init__.py", PACKAGE / f"{name}.py"
        files = [(f"  {name}.py", module)] if module in FILES else [(f"  {name}/", package)] if package in FILES else []
        files += [(f"    {path.name}", path) for path in FILES if path.parent == package.parent and path != package]
        for label, path in files:
            first = (ast.get_docstring(FILES[path]) or "").split("\n\n")[0].replace("\n", " ")
            lines.append(f"{label:<19} {first}")
    assert "\n".join(lines) in (ROOT / "README.md").read_text("utf-8")

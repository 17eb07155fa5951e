"""The house rules that a program can check: sizes, names, docstrings, and what is promised."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "anabranch"
MODULES = sorted(SOURCE.rglob("*.py"))
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "shared", "lib"}


def _module_id(path: Path) -> str:
    return str(path.relative_to(SOURCE).with_suffix(""))


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its signature and docstring."""
    has_docstring = ast.get_docstring(function) is not None
    body = function.body[1:] if has_docstring else function.body
    if not body:
        return 0
    end = function.end_lineno or 0
    return end - body[0].lineno + 1


@pytest.mark.parametrize("path", MODULES, ids=_module_id)
def test_module(path: Path) -> None:
    """A module says what it is for, and stays small enough to be read in one sitting."""
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{path} has no docstring"
    lines = text.count("\n")
    assert lines <= MODULE_LINES_MAX, f"{path} has {lines} lines; split it"
    for function in _functions(tree):
        length = _body_lines(function)
        assert length <= FUNCTION_LINES_MAX, (
            f"{path}:{function.lineno}: {function.name} has {length} lines; split it"
        )


def test_names_say_something() -> None:
    """No module or package is a drawer for everything."""
    names = {path.stem for path in MODULES} | {path.parent.name for path in MODULES}
    assert not names & VAGUE_NAMES


def test_no_asserts_on_what_clients_send() -> None:
    """Checks of requests and batches do not vanish under `python -O`."""
    for folder in ("wire", "handlers"):
        for path in (SOURCE / folder).rglob("*.py"):
            asserts = [
                n.lineno for n in ast.walk(ast.parse(path.read_text())) if type(n) is ast.Assert
            ]
            assert asserts == [], f"{path}:{asserts}: raise an error instead"


# What the documents promise


def _targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_make_targets_exist(document: str) -> None:
    """Every `make` command that a document names is there."""
    text = (ROOT / document).read_text()
    named = set(re.findall(r"^\s*make ([a-z-]+)", text, re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z-]+)`", text))
    assert named <= _targets()
    if document == "README.md":
        assert {"run", "test"} <= named


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_links_and_paths_exist(document: str) -> None:
    """Links to files of the repository, and source files named in words, are there."""
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if not (ROOT / link).exists()]
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text)
    for name in named:
        is_module = any(str(path).endswith(f"/{name}") for path in MODULES)
        if not is_module and not (ROOT / name).exists():
            missing.append(name)
    assert missing == []


def test_names_of_test_files_are_unique() -> None:
    """Two of one name cannot be collected in one run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []

"""Rules for the repository as a whole: sizes, names, wording, links, and reasons for every exception."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from req_report import known_ids

import hocket

ROOT = Path(__file__).parents[1]
MAX_FILE_LINES = 900
MAX_FUNCTION_LINES = 100
MAX_AGENTS_LINES = 80
MAX_README_WORDS = 900
MAX_MODULES = 26


def tracked_files() -> list[Path]:
    """Return the files that git tracks or would add; outside a checkout, those of an unpacked source archive."""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
        return sorted(path for name in names if name and (path := ROOT / name).is_file())
    folders = ("src", "tests", "docs", "scripts", "bench", ".ci")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix != ".pyc"]
    return sorted(path for path in [*ROOT.glob("*"), *found] if path.is_file())


FILES = tracked_files()
PYTHON = [path for path in FILES if path.suffix == ".py"]
SOURCE = [path for path in PYTHON if path.is_relative_to(ROOT / "src")]
MARKDOWN = [path for path in FILES if path.suffix == ".md"]


@cache
def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # images and other binary data


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_file_lists_include_known_files() -> None:
    assert ROOT / "src/hocket/errors.py" in SOURCE
    assert ROOT / "README.md" in MARKDOWN


def test_python_files_stay_short() -> None:
    lengths = {name_of(path): len(text_of(path).splitlines()) for path in PYTHON}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def word_count(text: str) -> int:
    """Count words as `wc -w` does."""
    return len(text.split())


def test_readme_is_short() -> None:
    assert word_count(text_of(ROOT / "README.md")) <= MAX_README_WORDS


def test_words_are_counted_between_spaces() -> None:
    assert word_count("| `a b` |\n") == 4


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the length in lines of each function."""
    for node in ast.walk(parsed(text_of(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name_of(path)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_stay_short() -> None:
    lengths = dict(pair for path in PYTHON for pair in functions(path))
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_every_module_has_a_docstring() -> None:
    assert [name_of(path) for path in SOURCE if not ast.get_docstring(parsed(text_of(path)))] == []


def test_agents_file_is_short_and_single() -> None:
    assert len(text_of(ROOT / "AGENTS.md").splitlines()) <= MAX_AGENTS_LINES
    assert text_of(ROOT / "CLAUDE.md") == "@AGENTS.md\n"


# --- changelog ----------------------------------------------------------------------------------------------

UNRELEASED = "Unreleased"
CHANGE_KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def changelog_errors(text: str, version: str) -> list[str]:
    """Return what is wrong with the headings of a changelog for this version.

    The newest release is this version. While it has never been released, its entries are under Unreleased.
    """
    headings = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    errors = [f"not a version heading: {line}" for line in re.findall(r"^## (?!\[).*$", text, re.MULTILINE)]
    errors += [f"no date: {name}" for name, date in headings if name != UNRELEASED and not date]
    errors += [f"{UNRELEASED} is not the first heading" for name, _ in headings[1:] if name == UNRELEASED]
    released = [name for name, _ in headings if name != UNRELEASED]
    if not headings:
        errors.append("no version heading")
    if released and released[0] != version:
        errors.append(f"newest release is {released[0]}, this version is {version}")
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    return errors + [f"unknown kind of change: {kind}" for kind in kinds if kind not in CHANGE_KINDS]


def test_changelog_headings_match_the_version() -> None:
    assert changelog_errors(text_of(ROOT / "CHANGELOG.md"), hocket.__version__) == []


@pytest.mark.parametrize(
    "text",
    [
        "# Changelog",
        "## 1.0",
        "## [1.0]",
        "## [0.9] - 2026-01-01",
        "## [1.0] - 2026-01-01\n## [Unreleased]",
        "## [Unreleased]\n### News",
    ],
)
def test_wrong_changelog_heading_is_reported(text: str) -> None:
    assert changelog_errors(text, "1.0")
    assert changelog_errors("## [Unreleased]\n### Fixed\n## [1.0] - 2026-01-01", "1.0") == []


# --- structure ----------------------------------------------------------------------------------------------


def oversized_packages(modules: list[Path], limit: int) -> dict[str, int]:
    """Return the packages that hold more modules than the limit, not counting `__init__.py`."""
    counts = Counter(path.parent for path in modules if path.name != "__init__.py")
    return {package.name: count for package, count in counts.items() if count > limit}


def test_packages_hold_few_modules() -> None:
    assert oversized_packages(SOURCE, MAX_MODULES) == {}


def test_oversized_package_is_reported() -> None:
    modules = [Path(f"pkg/{name}.py") for name in ("__init__", "a", "b", "c")]
    assert oversized_packages(modules, 2) == {"pkg": 3}
    assert oversized_packages(modules, 3) == {}


ENTRY = r"[a-z_]+(?:/|\.py)"


def package_entries() -> set[str]:
    """Return the packages (`name/`) and the modules (`name.py`) at the top of src/hocket."""
    inside = {path.relative_to(ROOT / "src/hocket") for path in FILES if path.is_relative_to(ROOT / "src/hocket")}
    names = {f"{path.parts[0]}/" if len(path.parts) > 1 else path.name for path in inside}
    return {name for name in names if re.fullmatch(ENTRY, name) and not name.startswith("__")}


def readme_entries(text: str) -> list[str]:
    """Return the names that the layout of the README lists below src/hocket/."""
    block = text.partition("\nsrc/hocket/\n")[2].partition("\n```")[0]
    lines = re.findall(rf"^  ((?:{ENTRY} ?)+)(?: |$)", block, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def agents_entries(text: str) -> list[str]:
    """Return the names in the first column of the layout table of AGENTS.md."""
    rows = text.partition("| in `src/hocket/` |")[2].partition("\n\n")[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(rf"`({ENTRY})`", row.split("|")[1])]


def test_readme_lists_every_package() -> None:
    assert sorted(readme_entries(text_of(ROOT / "README.md"))) == sorted(package_entries())


def test_agents_file_lists_every_package() -> None:
    assert sorted(agents_entries(text_of(ROOT / "AGENTS.md"))) == sorted(package_entries())


def test_listed_packages_are_read() -> None:
    assert readme_entries("```\nsrc/hocket/\n  cli/ api/   ways in/\n  a_b.py\ntests/\n```\n  no/\n") == [
        "cli/",
        "api/",
        "a_b.py",
    ]
    table = "| in `src/hocket/` | what |\n|---|---|\n| `cli/`, `b.py` | prints `x/` |\n\n| `no/` | |\n"
    assert agents_entries(table) == ["cli/", "b.py"]
    assert {"cli/", "errors.py"} <= package_entries()
    assert not {"__init__.py", "py.typed"} & package_entries()


def glossary_entries(text: str) -> dict[str, list[str]]:
    """Return the words of the glossary with the packages in their last column."""
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|.*\|([^|]*)\|$", text, re.MULTILINE)
    return {word: re.findall(r"`([a-z_]+)`", packages) for word, packages in rows}


def test_glossary_names_existing_packages() -> None:
    entries = glossary_entries(text_of(ROOT / "docs/glossary.md"))
    assert {"agent", "run", "task", "keeper"} <= entries.keys()
    assert list(entries) == sorted(entries, key=str.lower)
    packages = {name.removesuffix("/") for name in package_entries()}
    assert {word: named for word, named in entries.items() if not packages.issuperset(named)} == {}


def test_glossary_rows_are_read() -> None:
    assert glossary_entries("| **a b** | What `x` is. | `p`, `q` |\n") == {"a b": ["p", "q"]}


def public_classes(source: str) -> list[str]:
    return [
        node.name for node in parsed(source).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def repeated(names: list[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


REPEATED_CLASSES = {"Inotify", "Process"}
"""Class names of `keeper/linux.py` and `keeper/darwin.py`, which offer the same names on purpose."""


def test_public_class_names_are_unique() -> None:
    names = [name for path in SOURCE for name in public_classes(text_of(path))]
    assert repeated(names) - REPEATED_CLASSES == set()


def test_repeated_class_name_is_reported() -> None:
    names = public_classes("class Run: ...\nclass _Run: ...") + public_classes("class Run: ...\nclass Task: ...")
    assert repeated(names) == {"Run"}


class FunctionImports(ast.NodeVisitor):
    """Counts import statements inside functions."""

    def __init__(self) -> None:
        self.count = 0
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.count += self._depth > 0

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.visit_Import(node)


def function_imports(source: str) -> int:
    counter = FunctionImports()
    counter.visit(parsed(source))
    return counter.count


MAX_FUNCTION_IMPORTS = 150


def test_imports_inside_functions_are_few() -> None:
    assert sum(function_imports(text_of(path)) for path in SOURCE) <= MAX_FUNCTION_IMPORTS


def test_import_inside_a_function_is_counted() -> None:
    assert function_imports("import os\nasync def f():\n    import re\n    def g():\n        from os import path") == 2


KNOWS_CLAUDE = ("providers", "rehearsal", "cli", "config", "teams")
MAX_CLAUDE_MODULES = 10


def modules_naming_claude(modules: dict[str, str]) -> list[str]:
    """Return the modules, by path below the package, that name Claude outside the packages that may."""
    named = [name for name, text in modules.items() if "claude" in text.lower()]
    return [name for name in named if name.partition("/")[0] not in KNOWS_CLAUDE]


def test_few_modules_name_claude() -> None:
    package = ROOT / "src/hocket"
    modules = {path.relative_to(package).as_posix(): text_of(path) for path in SOURCE}
    assert len(modules_naming_claude(modules)) <= MAX_CLAUDE_MODULES


def test_module_naming_claude_is_reported() -> None:
    modules = {"store/a.py": "# Claude", "store/b.py": "# a CLI", "cli/c.py": "claude", "claude.py": "claude"}
    assert modules_naming_claude(modules) == ["store/a.py", "claude.py"]


# --- wording ------------------------------------------------------------------------------------------------

VAGUE = re.compile(r"\b(?:some" + r"body|no" + r"body|who" + r"ever|what" + r"ever|dear" + r"er)\b", re.IGNORECASE)
MAX_VAGUE_WORDS = 20


def speaks_to_users(path: Path) -> bool:
    """True for the source and the documentation, except the records of decisions, which are history."""
    inside = path.relative_to(ROOT)
    return inside.parts[0] in ("README.md", "src") or (inside.parts[0] == "docs" and "decisions" not in inside.parts)


def test_vague_words_are_rare() -> None:
    found = sum(len(VAGUE.findall(text_of(path))) for path in FILES if speaks_to_users(path))
    assert found <= MAX_VAGUE_WORDS


def test_vague_word_is_counted() -> None:
    assert len(VAGUE.findall("No" + "body reads what" + "ever is told; anybody may.")) == 2
    assert speaks_to_users(ROOT / "docs/guides/chains.md")
    assert not speaks_to_users(ROOT / "docs/decisions/0003-marker-and-gate.md")


# --- reasons ------------------------------------------------------------------------------------------------

MIN_WORDS = 3
RULE_NAME = re.compile(r'"[A-Z]+[0-9]*"')


def ignores_without_reason(pyproject: str) -> list[str]:
    """Return the lines of the ignore list and the ignore table that name a rule without a reason."""
    bare, in_table, in_list = [], False, False
    for line in pyproject.splitlines():
        if line.startswith("["):
            in_table = line == "[tool.ruff.lint.per-file-ignores]"
        in_list = in_list or line.startswith("ignore = [")
        code, _, reason = line.partition("#")
        if (in_table or in_list) and RULE_NAME.search(code) and len(reason.split()) < MIN_WORDS:
            bare.append(line)
        in_list = in_list and not code.rstrip().endswith("]")
    return bare


def test_every_ignored_rule_has_a_reason() -> None:
    assert ignores_without_reason(text_of(ROOT / "pyproject.toml")) == []


@pytest.mark.parametrize(
    "text",
    [
        'ignore = [\n    "S603",\n]',
        'ignore = ["S603"]',
        '[tool.ruff.lint.per-file-ignores]\n"a/**" = ["T201"]',
        '[tool.ruff.lint.per-file-ignores]\n"a/**" = [\n    "T201",  # because\n]',
    ],
)
def test_ignored_rule_without_reason_is_reported(text: str) -> None:
    assert ignores_without_reason(text)


NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?(?P<reason>.*)$")


def bare_noqa(line: str) -> bool:
    """True if a line silences the linter without naming the rule and a reason."""
    found = NOQA.search(line)
    return found is not None and not (found["codes"] and len(found["reason"].split()) >= 2)


def test_every_noqa_has_a_rule_and_reason() -> None:
    lines = [(name_of(path), line) for path in PYTHON if path != Path(__file__) for line in text_of(path).splitlines()]
    assert [(name, line) for name, line in lines if bare_noqa(line)] == []


@pytest.mark.parametrize("line", ["x = 1  # noqa", "x = 1  # noqa: S603", "x = 1  # noqa: S603, S607"])
def test_noqa_without_reason_is_reported(line: str) -> None:
    assert bare_noqa(line)
    assert not bare_noqa("x = 1  # noqa: S603  # the user's own program")


# --- links and names ----------------------------------------------------------------------------------------

LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")


def broken_links(path: Path, text: str) -> list[str]:
    """Return the relative links to files or headings that do not exist."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [link for link in LINK.findall(prose) if not _resolves(path, link)]


def _resolves(path: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True  # other sites are not checked
    name, _, anchor = link.partition("#")
    target = (path.parent / name).resolve() if name else path
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_in_documents_resolve() -> None:
    assert {name_of(path): bad for path in MARKDOWN if (bad := broken_links(path, text_of(path)))} == {}


@pytest.mark.parametrize("link", ["[a](missing.md)", "[a](../README.md#no-such-heading)", "![a](img/none.svg)"])
def test_broken_link_is_reported(link: str) -> None:
    assert broken_links(ROOT / "docs/README.md", f"text {link} text")


def test_every_page_is_reachable_from_the_index() -> None:
    reached, queue = set[Path](), [ROOT / "docs/README.md"]
    while queue:
        page = queue.pop()
        reached.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(text_of(page)) if "://" not in link)
        targets = {(page.parent / link).resolve() for link in links if link.endswith(".md")}
        queue += targets - reached
    pages = {path for path in MARKDOWN if path.is_relative_to(ROOT / "docs")}
    assert {name_of(path) for path in pages - reached} == set()


# Assembled at run time, so that this file does not match itself.
FOREIGN = re.compile(
    "|".join(
        [
            r"\b(?:test\.)?pypi" + r"\.org",
            "files" + r"\.pythonhosted\.org",
            "index" + "[-_]url",
            r"(?<![\w.~$}])/" + r"(?:work|root|Users)/\w",
            "/tmp" + r"/w\b",
        ]
    ),
    re.IGNORECASE,
)


def test_no_file_names_a_registry_or_machine_path() -> None:
    found = {name_of(path): hit[0] for path in FILES if (hit := FOREIGN.search(text_of(path)))}
    assert found == {}


def test_machine_path_is_reported() -> None:
    assert FOREIGN.search("see /" + "root/notes")
    assert not FOREIGN.search("the framework/home/notes")


# --- requirement ids ----------------------------------------------------------------------------------------


def required_ids(path: Path) -> Iterator[str]:
    """Yield the requirement ids of all tests in a file, selected in this session or not."""
    for node in ast.walk(parsed(text_of(path))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "req":
            yield from (str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))


def test_requirement_ids_are_known() -> None:
    known = known_ids()
    tests = [path for path in PYTHON if path.is_relative_to(ROOT / "tests")]
    unknown = {name_of(path): bad for path in tests if (bad := set(required_ids(path)) - known.keys())}
    assert unknown == {}

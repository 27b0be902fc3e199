"""The shape of the house: sizes, reasons, links, and nothing in it that belongs to one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from req_report import known_ids

import hocket

ROOT = Path(__file__).parents[1]
MAX_FILE_LINES = 900
MAX_FUNCTION_LINES = 100
MAX_AGENTS_LINES = 80


def tracked_files() -> list[Path]:
    """What git holds or would take. Outside a checkout: what an unpacked source archive has."""
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


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # pictures and other data


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_lists_of_files_are_not_empty() -> None:
    assert ROOT / "src/hocket/errors.py" in SOURCE
    assert ROOT / "README.md" in MARKDOWN


def test_no_python_file_is_too_long() -> None:
    lengths = {name_of(path): len(text_of(path).splitlines()) for path in PYTHON}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name_of(path)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_function_is_too_long() -> None:
    lengths = dict(pair for path in PYTHON for pair in functions(path))
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_every_module_says_what_belongs_in_it() -> None:
    assert [name_of(path) for path in SOURCE if not ast.get_docstring(ast.parse(text_of(path)))] == []


def test_the_notes_for_agents_are_short_and_told_once() -> None:
    assert len(text_of(ROOT / "AGENTS.md").splitlines()) <= MAX_AGENTS_LINES
    assert text_of(ROOT / "CLAUDE.md") == "@AGENTS.md\n"


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    heading = re.search(r"^## \[?([^\]\s]+)", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert heading is not None
    assert heading[1] == hocket.__version__


# --- reasons ------------------------------------------------------------------------------------------------

MIN_WORDS = 3
RULE_NAME = re.compile(r'"[A-Z]+[0-9]*"')


def ignores_without_reason(pyproject: str) -> list[str]:
    """Lines of the ignore list and of the ignore table that name a rule and do not say why."""
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


def test_every_ignored_rule_has_its_reason() -> None:
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
def test_an_ignored_rule_without_reason_is_found(text: str) -> None:
    assert ignores_without_reason(text)


NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?(?P<reason>.*)$")


def bare_noqa(line: str) -> bool:
    """A silenced line names the rule and says why."""
    found = NOQA.search(line)
    return found is not None and not (found["codes"] and len(found["reason"].split()) >= 2)


def test_every_silenced_line_has_its_rule_and_reason() -> None:
    lines = [(name_of(path), line) for path in PYTHON if path != Path(__file__) for line in text_of(path).splitlines()]
    assert [(name, line) for name, line in lines if bare_noqa(line)] == []


@pytest.mark.parametrize("line", ["x = 1  # noqa", "x = 1  # noqa: S603", "x = 1  # noqa: S603, S607"])
def test_a_silenced_line_without_reason_is_found(line: str) -> None:
    assert bare_noqa(line)
    assert not bare_noqa("x = 1  # noqa: S603  # the user's own program")


# --- links and names ----------------------------------------------------------------------------------------

LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")


def broken_links(path: Path, text: str) -> list[str]:
    """Relative links to files that are not there, or to headings that their page does not have."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [link for link in LINK.findall(prose) if not _resolves(path, link)]


def _resolves(path: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True  # another site's affair
    name, _, anchor = link.partition("#")
    target = (path.parent / name).resolve() if name else path
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_in_the_documents_lead_somewhere() -> None:
    assert {name_of(path): bad for path in MARKDOWN if (bad := broken_links(path, text_of(path)))} == {}


@pytest.mark.parametrize("link", ["[a](missing.md)", "[a](../README.md#no-such-heading)", "![a](img/none.svg)"])
def test_a_broken_link_is_found(link: str) -> None:
    assert broken_links(ROOT / "docs/README.md", f"text {link} text")


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, queue = set[Path](), [ROOT / "docs/README.md"]
    while queue:
        page = queue.pop()
        reached.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(text_of(page)) if "://" not in link)
        targets = {(page.parent / link).resolve() for link in links if link.endswith(".md")}
        queue += targets - reached
    pages = {path for path in MARKDOWN if path.is_relative_to(ROOT / "docs")}
    assert {name_of(path) for path in pages - reached} == set()


# Put together at run time, so that this file does not hold what it looks for.
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


def test_nothing_names_a_package_index_or_a_folder_of_one_machine() -> None:
    found = {name_of(path): hit[0] for path in FILES if (hit := FOREIGN.search(text_of(path)))}
    assert found == {}


def test_a_machine_path_is_found() -> None:
    assert FOREIGN.search("see /" + "root/notes")
    assert not FOREIGN.search("the framework/home/notes")


# --- requirement ids ----------------------------------------------------------------------------------------


def required_ids(path: Path) -> Iterator[str]:
    """The ids that the tests of a file carry, also those that are not selected in this session."""
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.req":
            yield from (str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))


def test_tests_carry_only_known_requirement_ids() -> None:
    known = known_ids()
    tests = [path for path in PYTHON if path.is_relative_to(ROOT / "tests")]
    unknown = {name_of(path): bad for path in tests if (bad := set(required_ids(path)) - known.keys())}
    assert unknown == {}

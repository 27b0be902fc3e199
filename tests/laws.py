"""The rules of the source as functions over syntax trees: ``law(module) -> what breaks it``.

``test_layers.py`` applies them to the source and to snippets that must not pass. Nothing here imports Hocket.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

RANKS = {
    "errors": 0, "input_limits": 0, "secret_files": 0,
    "model": 1,
    "chain": 2, "config": 2, "client": 2, "redaction": 2,
    "views": 3, "keeper": 3, "store": 3, "mcp": 3, "providers": 3,
    "catalog": 4, "rehearsal": 4, "registry": 4,
    "trust": 5,
    "sessions": 6,
    "workflows": 7,
    "tasks": 8, "teams": 8,
    "engine": 9,
    "api": 10,
    "cli": 11,
    "__main__": 12,
}  # fmt: skip
"""A module imports only from packages of a lower rank. The package itself is its version, free to all."""


@dataclass(frozen=True)
class Module:
    """One parsed file, and the names that its imports gave to things."""

    name: str
    tree: ast.Module
    is_package: bool = False

    @property
    def package(self) -> str:
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""

    @cached_property
    def aliases(self) -> dict[str, str]:
        return dict(_aliases(self))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def dotted(self, node: ast.AST) -> str | None:
        """``o.kill`` after ``import os as o`` is ``os.kill``; None where no import is at the root."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute) and (base := self.dotted(node.value)):
            return f"{base}.{node.attr}"
        return None

    def references(self) -> Iterator[tuple[ast.AST, str]]:
        """Every use of an imported name, by its dotted name, and every name that is imported directly."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and (dotted := self.dotted(node)):
                yield node, dotted
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield node, f"{_base(self, node)}.{alias.name}"


Law = Callable[[Module], list[str]]


def parse(name: str, source: str, *, is_package: bool = False) -> Module:
    return Module(name, ast.parse(source), is_package)


def source_modules() -> list[Module]:
    return [_read(path) for path in sorted((SOURCE / "hocket").rglob("*.py"))]


def _read(path: Path) -> Module:
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return parse(name, path.read_text(encoding="utf-8"), is_package=is_package)


def _base(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name behind ``from ... import``, also a relative one."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    above = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*above, *([node.module] if node.module else [])])


def _aliases(module: Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{_base(module, node)}.{alias.name}"


def imports(module: Module) -> set[str]:
    """Full names of what is imported anywhere in the file: on top, in a function, for types, or by string."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{_base(module, node)}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and (name := _import_by_string(module, node)):
            found.add(name)
    return found


def _import_by_string(module: Module, call: ast.Call) -> str | None:
    by_name = isinstance(call.func, ast.Name) and call.func.id == "__import__"
    if not (by_name or module.dotted(call.func) == "importlib.import_module") or not call.args:
        return None
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _is_within(name: str, packages: set[str] | frozenset[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _unique(lines: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(lines))


# --- who may import whom ------------------------------------------------------------------------------------


def layers(module: Module) -> list[str]:
    """A package without a rank is refused, so a new package states its place first."""
    if not module.package:
        return [f"the package imports {name}" for name in imports(module) if name != "__future__.annotations"]
    if module.package not in RANKS:
        return [f"{module.name}: the package {module.package} has no rank"]
    return _unique(
        f"{module.name} (rank {RANKS[module.package]}) imports {target}"
        for target in sorted(imports(module))
        if (package := _package_of(target))
        and package != module.package
        and RANKS.get(package, 99) >= RANKS[module.package]
    )


def _package_of(target: str) -> str | None:
    parts = target.split(".")
    if parts[0] != "hocket" or len(parts) == 1 or parts[1] == "__version__":
        return None
    return parts[1]


def graph(modules: list[Module]) -> dict[str, set[str]]:
    """Which module imports which, as written; a name taken from a package is the package's own."""
    names = {module.name for module in modules}
    return {
        module.name: {
            target if target in names else target.rpartition(".")[0]
            for target in imports(module)
            if target in names or target.rpartition(".")[0] in names
        }
        - {module.name}
        for module in modules
    }


KEEPER_MAY = frozenset({"hocket.errors", "hocket.keeper"})


def keeper_is_alone(module: Module) -> list[str]:
    """The standard library, the errors and itself. psutil only where macOS has nothing better."""
    if module.package != "keeper":
        return []
    allowed = KEEPER_MAY | sys.stdlib_module_names
    if module.name == "hocket.keeper.darwin":
        allowed |= {"psutil"}
    return [f"{module.name} imports {name}" for name in sorted(imports(module)) if not _is_within(name, allowed)]


VIEWS_MAY = frozenset(
    {"__future__", "collections", "dataclasses", "functools", "itertools", "json", "re", "time", "typing"}
    | {"hocket.chain", "hocket.errors", "hocket.model", "hocket.views"}
)
CLOCKS = frozenset({"time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.sleep"})


def views_are_pure(module: Module) -> list[str]:
    """views/ computes from its arguments alone: no I/O, no clock. Formatting a given time is fine."""
    if module.package != "views":
        return []
    imported = (f"{module.name} imports {n}" for n in sorted(imports(module)) if not _is_within(n, VIEWS_MAY))
    clocks = (f"{module.name}:{_line(node)} uses {name}" for node, name in module.references() if name in CLOCKS)
    opened = (
        f"{module.name}:{node.lineno} opens a file"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name) and node.id == "open"
    )
    return [*imported, *_unique(clocks), *opened]


# --- who may do what ----------------------------------------------------------------------------------------

PROCESS_MODULES = frozenset({"subprocess", "multiprocessing", "pty", "ctypes", "psutil", "concurrent.futures.process"})
PROCESS_CALLS = re.compile(
    r"(?:os|posix)\.(?:fork|forkpty|exec\w+|spawn\w+|posix_spawn\w*|kill|killpg|popen|system)"
    r"|signal\.(?:pidfd_send_signal|pthread_kill)"
    r"|asyncio\.(?:subprocess\.)?create_subprocess_\w+"
    r"|concurrent\.futures\.ProcessPoolExecutor"
)
LOOP_METHODS = frozenset({"subprocess_exec", "subprocess_shell"})


def processes(module: Module) -> list[str]:
    """Only keeper/ forks, executes or signals. ctypes counts: it reaches every system call."""
    if module.package == "keeper":
        return []
    return _unique(_process_uses(module))


def _process_uses(module: Module) -> Iterator[str]:
    for name in sorted(imports(module)):
        if _is_within(name, PROCESS_MODULES):
            yield f"{module.name} imports {name}"
    for node, dotted in module.references():
        if PROCESS_CALLS.fullmatch(dotted):
            yield f"{module.name}:{_line(node)} uses {dotted}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in LOOP_METHODS:
            yield f"{module.name}:{node.lineno} uses {node.attr}"


DATABASES = frozenset({"sqlite3", "apsw", "aiosqlite", "sqlalchemy", "psycopg"})
SQL = re.compile(
    r"\s*(?:SELECT\s.+\sFROM|INSERT\s+(?:OR\s+\w+\s+)?INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM"
    r"|(?:CREATE|DROP|ALTER)\s+(?:TABLE|INDEX|UNIQUE|TRIGGER|VIEW)|PRAGMA\s+\w|BEGIN\s+IMMEDIATE)\b.*",
    re.IGNORECASE | re.DOTALL,
)


def databases(module: Module) -> list[str]:
    """Only store/ speaks SQL, and knows which database speaks it back."""
    if module.package == "store":
        return []
    imported = (f"{module.name} imports {n}" for n in sorted(imports(module)) if _is_within(n, DATABASES))
    written = (f"{module.name}:{node.lineno} has SQL" for node in _strings(module) if SQL.fullmatch(str(node.value)))
    return [*imported, *written]


ENVIRONMENT = frozenset({"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"})
HOME_READERS = frozenset({"os.path.expanduser", "os.path.expandvars", "pathlib.Path.home"})
HANDED_ON = frozenset({"copy", "items"})


def environment(module: Module) -> list[str]:
    """Only config.py reads the environment, also where the reading is hidden in a helper.

    keeper/ may hand on the environment that it inherited, as one value, to a server that it starts: there is
    no requester left to give one. It may not ask for a variable by name: what a run sees is decided elsewhere.
    """
    if module.package == "config":
        return []
    return _unique(_environment_uses(module))


def _environment_uses(module: Module) -> Iterator[str]:
    for node, dotted in module.references():
        reads = dotted in ENVIRONMENT and not _hands_on(module, node, dotted)
        if reads or dotted in HOME_READERS or (dotted == "shutil.which" and not _which_has_path(module, node)):
            yield f"{module.name}:{_line(node)} uses {dotted}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "expanduser":
            yield f"{module.name}:{node.lineno} uses {node.attr}"


def _hands_on(module: Module, node: ast.AST, dotted: str) -> bool:
    if module.package != "keeper" or dotted != "os.environ" or isinstance(node, ast.ImportFrom):
        return False
    parent = module.parents.get(node)
    if isinstance(parent, ast.Attribute):
        return parent.attr in HANDED_ON
    return not isinstance(parent, ast.Subscript | ast.Compare)


def _which_has_path(module: Module, node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return True  # the import alone reads nothing; its uses are looked at one by one
    call = module.parents.get(node)
    return isinstance(call, ast.Call) and any(keyword.arg == "path" for keyword in call.keywords)


PRINTERS = re.compile(r"sys\.(?:__)?std(?:out|err)(?:__)?\..*write\w*")
PRINTING_MODULES = frozenset({"rich", "pprint"})


def printing(module: Module) -> list[str]:
    """Only cli/ talks to the person in front of the terminal; the libraries for it belong there too."""
    if module.package == "cli":
        return []
    return _unique(_printing_uses(module))


def _printing_uses(module: Module) -> Iterator[str]:
    for name in sorted(imports(module)):
        if _is_within(name, PRINTING_MODULES):
            yield f"{module.name} imports {name}"
    for node, dotted in module.references():
        if PRINTERS.fullmatch(dotted):
            yield f"{module.name}:{_line(node)} uses {dotted}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id == "print":
            yield f"{module.name}:{node.lineno} prints"


# --- who may know which names -------------------------------------------------------------------------------

CAMEL = re.compile(r"[a-z][a-z0-9]*(?:[A-Z][a-z0-9]+)+")
CHAINS_JSON = frozenset({"defaultPrompt", "defaultPromptFile", "promptFile", "promptVia"})
LOGGING = frozenset(
    {"getLogger", "setLevel", "addHandler", "removeHandler", "addFilter", "isEnabledFor", "basicConfig"}
)


SPEAKING_CAMEL = (
    *("hocket.api.wire", "hocket.api.openapi", "hocket.providers", "hocket.rehearsal", "hocket.mcp"),
    *("hocket.catalog.configs", "hocket.catalog.plugins", "hocket.catalog.servers"),
    *("hocket.trust.approvals", "hocket.trust.check", "hocket.trust.preview"),
)
PERMISSION_MODES = frozenset({"acceptEdits", "bypassPermissions", "dontAsk"})


def camel_case(module: Module) -> list[str]:
    """Only api/wire*.py know the camelCase names of the HTTP documents, and api/openapi.py those of OpenAPI.

    config.py reads ``forge/chains.json``, a format older than us: its four camelCase keys, no others. What an agent's
    CLI calls things is known where its files and its stream are read, and where they are played.
    """
    if module.name.startswith(SPEAKING_CAMEL):
        return []
    allowed = CHAINS_JSON | PERMISSION_MODES if module.package == "config" else frozenset()
    return _unique(
        f"{module.name}:{line} knows {name}"
        for name, line in _names_written(module)
        if CAMEL.fullmatch(name) and name not in allowed
    )


def _names_written(module: Module) -> Iterator[tuple[str, int]]:
    """Literals and identifiers of our own; attributes of imported modules are spelled by others."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno
        elif isinstance(node, ast.Name):
            if node.id not in module.aliases:
                yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            if node.attr not in LOGGING and module.dotted(node) is None:
                yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg, node.lineno


WEB = frozenset({"starlette", "uvicorn", "h11", "anyio"})
TOO_SLOW_TO_IMPORT = frozenset({"fastapi", "pydantic", "pydantic_core"})


def web(module: Module) -> list[str]:
    """Only api/ imports the web framework, and no package a module that takes longer to import than the server."""
    banned = TOO_SLOW_TO_IMPORT if module.package == "api" else WEB | TOO_SLOW_TO_IMPORT
    return [f"{module.name} imports {name}" for name in sorted(imports(module)) if _is_within(name, banned)]


BUILT_BY_CONSTRUCTION = frozenset({"sessions", "workflows", "tasks", "engine"})


def assignments(module: Module) -> list[str]:
    """No attribute of an engine object is assigned from outside: what an object needs is given to its constructor.

    A record that is passed as an argument, or made in the same function, may be changed; what is reached through an
    attribute may not.
    """
    if module.package not in BUILT_BY_CONSTRUCTION:
        return []
    return _unique(
        f"{module.name}:{target.lineno} assigns {ast.unparse(target)}"
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for target in _assigned_attributes(function)
        if isinstance(target.value, ast.Attribute)
        or (isinstance(target.value, ast.Name) and target.value.id in _names_of_attributes(function))
    )


def _assigned_attributes(function: ast.AST) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))


def _names_of_attributes(function: ast.AST) -> set[str]:
    """Local names for what an attribute refers to, as in ``supervisor = self._supervisor``."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _strings(module: Module) -> Iterator[ast.Constant]:
    return (
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and not isinstance(module.parents.get(node), ast.Expr)
    )

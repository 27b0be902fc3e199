"""The packages keep to their ranks and laws, and each law reports source that breaks it."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import laws
import pytest
from laws import SOURCE, Law, Module, parse, source_modules

MODULES = source_modules()
HEAVY = (
    "asyncio", "ssl", "email", "http.client", "rich", "starlette", "uvicorn", "msgspec", "subprocess",
    "tomllib",
)  # fmt: skip
"""What the thin client must not drag in: each costs more than the whole round trip to the server."""


def broken(law: Law) -> list[str]:
    return [line for module in MODULES for line in law(module)]


def test_source_modules_are_found() -> None:
    assert {"hocket", "hocket.errors", "hocket.model"} <= {module.name for module in MODULES}


def test_modules_import_only_lower_ranks() -> None:
    assert broken(laws.layers) == []


def test_no_import_cycles_even_hidden_in_functions() -> None:
    assert cycle(MODULES) == []


def test_keeper_imports_only_standard_library_and_errors() -> None:
    assert broken(laws.keeper_is_alone) == []


def test_views_are_pure() -> None:
    assert broken(laws.views_are_pure) == []


def test_only_keeper_forks_executes_or_signals() -> None:
    assert broken(laws.processes) == []


def test_only_store_uses_sql() -> None:
    assert broken(laws.databases) == []


def test_only_config_reads_the_environment() -> None:
    assert broken(laws.environment) == []


def test_only_cli_prints_to_stdout() -> None:
    assert broken(laws.printing) == []


def test_only_wire_uses_camel_case() -> None:
    assert broken(laws.camel_case) == []


def test_only_api_imports_the_web_framework() -> None:
    assert broken(laws.web) == []


def test_engine_objects_are_not_assigned_from_outside() -> None:
    assert broken(laws.assignments) == []


def test_thin_client_imports_nothing_heavy() -> None:
    """Without site: what an environment's start-up files import is not the client's doing."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import hocket.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=True).stdout.split()
    assert "hocket.client" in loaded
    assert [name for name in HEAVY if name in loaded] == []


ARCHITECTURE = SOURCE.parent / "docs/concepts/architecture.md"
NAME = re.compile(r"`(hocket(?:\.\w+)+)`")
LAST_STEP = 6
"""The number of the last step of the walk from the route to the fork."""


def resolves(name: str) -> bool:
    """True if a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def test_functions_named_by_the_architecture_exist() -> None:
    names = NAME.findall(ARCHITECTURE.read_text(encoding="utf-8"))
    assert len(names) > LAST_STEP
    assert [name for name in names if not resolves(name)] == []
    assert not resolves("hocket.engine.Engine.none")
    assert not resolves("hocket.none.Engine")


def test_each_architecture_step_calls_the_next() -> None:
    """This checks names, not calls: a function of each step must mention the name of the next function."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    walk = re.findall(r"^(\d+)\. `hocket\.([\w.]+)`", text, re.MULTILINE)[: LAST_STEP + 1]
    assert [int(number) for number, _ in walk] == list(range(LAST_STEP + 1))
    assert (walk[0][1], walk[-1][1]) == ("api.app.start_run", "keeper.zygote.Zygote.fork")
    for (_, caller), (_, callee) in pairwise(walk):
        assert callee.rpartition(".")[2] in names_used_in(caller), f"{caller} does not name {callee}"


def names_used_in(function: str) -> set[str]:
    """The attributes and names in the body of a function of the package."""
    around = [module for module in MODULES if f"hocket.{function}".startswith(f"{module.name}.")]
    module = max(around, key=lambda one: len(one.name))
    wanted = function.rpartition(".")[2]
    bodies = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == wanted
    ]
    nodes = [node for body in bodies for node in ast.walk(body)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} | {
        node.id for node in nodes if isinstance(node, ast.Name)
    }


def test_architecture_lists_every_package_with_its_rank() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: int(rank) for rank, names in rows for name in re.findall(r"`(\w+)`", names)} == laws.RANKS


def cycle(modules: list[Module]) -> list[str]:
    try:
        list(TopologicalSorter(laws.graph(modules)).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_import_cycle_within_a_package_is_found() -> None:
    first = parse("hocket.keeper.a", "def f():\n    from hocket.keeper import b")
    second = parse("hocket.keeper.b", "from hocket.keeper.a import f")
    assert set(cycle([first, second])) == {"hocket.keeper.a", "hocket.keeper.b"}


BAD: list[tuple[Law, str, str]] = [
    (laws.assignments, "hocket.engine", "class E:\n    def __init__(self): self._a.b = lambda: None"),
    (laws.assignments, "hocket.sessions.a", "def f(self):\n    a = self._a\n    a.b = 1"),
    (laws.assignments, "hocket.workflows.a", "async def f(engine): engine.sessions.policy, x = 1, 2"),
    (laws.layers, "hocket.model", "import hocket.workflows.start"),
    (laws.layers, "hocket.errors", "from hocket import model"),
    (laws.layers, "hocket.store.runs", "from hocket.keeper import files"),
    (laws.layers, "hocket.store.runs", "def f():\n    from hocket.keeper.files import create"),
    (laws.layers, "hocket.store.runs", "import importlib\nimportlib.import_module('hocket.keeper.files')"),
    (
        laws.layers,
        "hocket.store.runs",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hocket.api",
    ),
    (laws.layers, "hocket.client", "from hocket.config import home"),
    (laws.layers, "hocket.workflows.start", "from ..api import app"),
    (laws.layers, "hocket.pantry", "import os"),
    (laws.layers, "hocket", "import hocket.errors"),
    (laws.keeper_is_alone, "hocket.keeper.process_tree", "import psutil"),
    (laws.keeper_is_alone, "hocket.keeper.files", "from hocket.model import Run"),
    (laws.keeper_is_alone, "hocket.keeper.files", "def f():\n    import msgspec"),
    (laws.processes, "hocket.workflows.start", "import subprocess"),
    (laws.processes, "hocket.workflows.start", "from subprocess import run"),
    (laws.processes, "hocket.workflows.start", "def f():\n    import multiprocessing.pool"),
    (laws.processes, "hocket.workflows.start", "import os\nos.fork()"),
    (laws.processes, "hocket.workflows.start", "import os as o\no.kill(1, 9)"),
    (laws.processes, "hocket.workflows.start", "from os import killpg as k"),
    (laws.processes, "hocket.workflows.start", "import os\nos.execve('a', [], {})"),
    (laws.processes, "hocket.workflows.start", "import os\nf = os.posix_spawnp"),
    (laws.processes, "hocket.workflows.start", "import os\nos.spawnl(0, 'a')"),
    (laws.processes, "hocket.workflows.start", "import os\nos.system('a')"),
    (laws.processes, "hocket.cli.run", "import signal\nsignal.pidfd_send_signal(3, 9)"),
    (laws.processes, "hocket.api.app", "import asyncio\nasyncio.create_subprocess_exec('a')"),
    (laws.processes, "hocket.api.app", "from asyncio import subprocess as s\ns.create_subprocess_shell('a')"),
    (laws.processes, "hocket.api.app", "async def f(loop): await loop.subprocess_exec(None, 'a')"),
    (laws.processes, "hocket.workflows.start", "import ctypes"),
    (laws.databases, "hocket.workflows.start", "import sqlite3"),
    (laws.databases, "hocket.workflows.start", "def f():\n    from sqlite3 import connect"),
    (laws.databases, "hocket.api.app", "q = 'select id from runs'"),
    (laws.databases, "hocket.api.app", "q = '''\n  INSERT INTO runs VALUES (1)'''"),
    (laws.environment, "hocket.workflows.start", "import os\nos.environ['A']"),
    (laws.environment, "hocket.workflows.start", "import os\ndict(os.environ)"),
    (laws.environment, "hocket.cli.run", "from os import getenv"),
    (laws.environment, "hocket.cli.run", "from os import environ as e"),
    (laws.environment, "hocket.catalog.resolve", "import shutil\nshutil.which('a')"),
    (laws.environment, "hocket.catalog.resolve", "from shutil import which\nwhich('a')"),
    (laws.environment, "hocket.catalog.resolve", "from pathlib import Path\nPath.home()"),
    (laws.environment, "hocket.catalog.resolve", "def f(p): return p.expanduser()"),
    (laws.environment, "hocket.keeper.server_start", "import os\nos.environ['A']"),
    (laws.environment, "hocket.keeper.server_start", "import os\nos.environ.get('A')"),
    (laws.environment, "hocket.keeper.server_start", "import os\n'A' in os.environ"),
    (laws.environment, "hocket.keeper.server_start", "import os\nos.getenv('A')"),
    (laws.printing, "hocket.workflows.start", "print('a')"),
    (laws.printing, "hocket.workflows.start", "import sys\nsys.stdout.write('a')"),
    (laws.printing, "hocket.workflows.start", "import sys\nsys.stderr.buffer.write(b'a')"),
    (laws.printing, "hocket.workflows.start", "from rich import print"),
    (laws.printing, "hocket.api.app", "def f():\n    import rich.console"),
    (laws.camel_case, "hocket.api.routes", "x = {'agentName': 1}"),
    (laws.camel_case, "hocket.workflows.start", "def f(x): return x.agentName"),
    (laws.camel_case, "hocket.workflows.start", "sessionId = 1"),
    (laws.camel_case, "hocket.workflows.start", "def f(sessionId): ..."),
    (laws.camel_case, "hocket.workflows.start", "dict(sessionId=1)"),
    (laws.camel_case, "hocket.config", "x = 'agentName'"),
    (laws.web, "hocket.api.wire", "from pydantic import BaseModel"),
    (laws.web, "hocket.api.app", "def f():\n    import fastapi.routing"),
    (laws.web, "hocket.sessions.hub", "from starlette.responses import Response"),
    (laws.web, "hocket.cli.server", "def f():\n    import uvicorn"),
]


@pytest.mark.parametrize(("law", "name", "source"), BAD)
def test_breach_of_a_law_is_found(law: Law, name: str, source: str) -> None:
    assert law(parse(name, source))


GOOD: list[tuple[Law, str, str]] = [
    (
        laws.assignments,
        "hocket.sessions.a",
        "def f(self, leaf):\n    self.a = 1\n    leaf.b = 2\n    c = C()\n    c.d = 3",
    ),
    (laws.assignments, "hocket.cli.run", "def f(self): self.a.b = 1"),
    (
        laws.layers,
        "hocket.workflows.start",
        "from hocket import __version__, errors\nimport hocket.keeper.files",
    ),
    (laws.layers, "hocket.workflows.start", "from hocket.workflows import limits\nimport asyncio"),
    (laws.keeper_is_alone, "hocket.keeper.darwin", "import psutil"),
    (laws.keeper_is_alone, "hocket.keeper.files", "import os.path\nfrom hocket.errors import HocketError"),
    (laws.processes, "hocket.keeper.process_tree", "import os, ctypes\nos.kill(1, 9)"),
    (
        laws.processes,
        "hocket.workflows.start",
        "import signal, os\nos.getpid()\nsignal.signal(2, f)\nself.kill()",
    ),
    (laws.databases, "hocket.store.runs", "import sqlite3\nq = 'SELECT 1 FROM runs'"),
    (laws.databases, "hocket.cli.run", "'''Select one from the list.'''\nx = 'select a run'"),
    (laws.environment, "hocket.config", "import os\nos.environ['A']"),
    (
        laws.environment,
        "hocket.keeper.server_start",
        "import os\ndict(os.environ)\n{**os.environ}\nos.environ.copy()",
    ),
    (laws.environment, "hocket.catalog.resolve", "from shutil import which\nwhich('a', path=p)"),
    (laws.printing, "hocket.cli.run", "import rich\nprint('b')"),
    (laws.printing, "hocket.config", "import sys\nsys.stdout.isatty()"),
    (laws.camel_case, "hocket.api.wire", "x = 'agentName'"),
    (laws.camel_case, "hocket.config", "x = 'promptFile'"),
    (laws.camel_case, "hocket.workflows.start", "import logging\nlog = logging.getLogger('a')\nlog.setLevel(1)"),
    (laws.camel_case, "hocket.cli.run", "x = 'a promptFile in a sentence'\nclass CamelClass: ..."),
    (laws.web, "hocket.api.server", "import uvicorn\nfrom starlette.types import ASGIApp"),
]


@pytest.mark.parametrize(("law", "name", "source"), GOOD)
def test_allowed_source_passes_each_law(law: Law, name: str, source: str) -> None:
    assert law(parse(name, source)) == []

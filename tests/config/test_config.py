"""Where things lie, what the environment says, and what configuration files may say."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket import config
from hocket.config.loading import env_names, load
from hocket.config.reading import PromptLevel, choose_prompt, read_prompt
from hocket.config.settings import Config, Limits
from hocket.errors import ConfigError, HomeError, NotTrusted, PromptError
from hocket.trust.approvals import Approvals
from hocket.trust.check import check_configuration

DEEP = "deep" * 40


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def chains_json(project: Path, content: Any) -> Path:
    return put(project / "forge" / "chains.json", json.dumps(content))


def of_project(project: Path, home: Path) -> Config:
    return load(str(project), str(home))


def refused(project: Path, home: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        of_project(project, home)
    assert caught.value.exit_code == 2
    return caught.value


# --- Places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOCKET_HOME": "/x/h", "HOME": "/u"}, "/x/h"),
        ({"HOCKET_HOME": "/x/../h/", "HOME": "/u"}, "/h"),
        ({"HOCKET_HOME": "", "XDG_STATE_HOME": "/s", "HOME": "/u"}, "/s/hocket"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/u"}, "/u/.local/state/hocket"),
        ({"HOME": "/u"}, "/u/.local/state/hocket"),
    ],
)
def test_home_defaults_to_the_state_directory(environ: dict[str, str], expected: str) -> None:
    assert config.home(environ) == expected


def test_home_uses_the_process_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/of/this/process")
    assert config.home({}) == "/of/this/process/.local/state/hocket"


def test_home_directory_falls_back_to_the_password_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    assert config.home({}) == f"{pwd.getpwuid(os.getuid()).pw_dir}/.local/state/hocket"


def test_short_socket_path_is_in_home() -> None:
    assert config.socket_path("/x/h") == "/x/h/sock"


def test_long_socket_path_uses_the_runtime_directory(world: Path) -> None:
    runtime = world / "user/run"
    found = config.socket_path(f"/{DEEP}", {"XDG_RUNTIME_DIR": str(runtime)})
    assert Path(found).parent == runtime
    assert len(os.fsencode(found)) <= config.SOCKET_PATH_LIMIT
    assert found != config.socket_path(f"/{DEEP}x", {"XDG_RUNTIME_DIR": str(runtime)})


def test_long_socket_path_uses_a_private_folder(world: Path) -> None:
    found = Path(config.socket_path(f"/{DEEP}", {"TMPDIR": str(world)}))
    assert found.parent == world / f"hocket-{os.getuid()}"
    assert found.parent.stat().st_mode & 0o777 == 0o700
    assert str(found) == config.socket_path(f"/{DEEP}", {"TMPDIR": str(world)})


def test_runtime_directory_open_to_others_is_ignored(world: Path) -> None:
    runtime = world / "run"
    runtime.mkdir()
    runtime.chmod(0o755)
    found = config.socket_path(f"/{DEEP}", {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(world)})
    assert Path(found).parent == world / f"hocket-{os.getuid()}"


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_folder_that_is_not_private_is_refused(world: Path, kind: str) -> None:
    folder = world / f"hocket-{os.getuid()}"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "link":
        (world / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(world / "elsewhere")
    else:
        folder.write_text("")
    with pytest.raises(HomeError, match="private"):
        config.socket_path(f"/{DEEP}", {"TMPDIR": str(world)})


# --- Wishes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), ("", None), ("0", 0), (" 7420 ", 7420), ("65535", 65535)]
)
def test_requested_port_is_read(value: str | None, expected: int | None) -> None:
    assert config.requested_port({} if value is None else {"HOCKET_PORT": value}) == expected


@pytest.mark.parametrize("value", ["65536", "-1", "x", "1.5", "9" * 5000], ids=["high", "minus", "x", "dot", "long"])
def test_invalid_port_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="HOCKET_PORT"):
        config.requested_port({"HOCKET_PORT": value})


@pytest.mark.parametrize(
    ("environ", "flag", "tty", "expected"),
    [
        ({}, None, True, True),
        ({}, None, False, False),
        ({"TERM": "dumb"}, None, True, False),
        ({"FORCE_COLOR": "1"}, None, False, True),
        ({"FORCE_COLOR": "0"}, None, True, False),
        ({"FORCE_COLOR": "1"}, False, True, False),
        ({}, True, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, True, False),
        ({"NO_COLOR": ""}, None, True, True),
    ],
)
def test_colour_follows_flag_environment_and_terminal(
    environ: dict[str, str], flag: bool | None, tty: bool, expected: bool
) -> None:
    assert config.colour_wanted(tty, flag, environ) is expected


@pytest.mark.parametrize(
    ("environ", "tty", "plain", "expected"),
    [
        ({}, True, False, True),
        ({"NO_COLOR": "1"}, True, False, True),
        ({}, False, False, False),
        ({"FORCE_COLOR": "1"}, False, False, False),
        ({}, True, True, False),
        ({"TERM": "dumb"}, True, False, False),
        ({"CI": "true"}, True, False, False),
        ({"CI": "false"}, True, False, True),
    ],
)
def test_repainting_needs_a_real_terminal_and_no_ci(
    environ: dict[str, str], tty: bool, plain: bool, expected: bool
) -> None:
    assert config.interactive(tty, plain, environ) is expected


def test_caller_environment_names_the_run() -> None:
    inside = config.caller({"HOCKET_URL": "unix:/s", "HOCKET_TOKEN": "t", "HOCKET_RUN": "r"})
    assert (inside.url, inside.token, inside.run, inside.task) == ("unix:/s", "t", "r", None)
    assert config.caller({}).run is None


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RUN", "here")
    assert config.caller().run == "here"
    assert config.process_environment()["HOCKET_RUN"] == "here"


def test_environment_is_replaced() -> None:
    before = config.process_environment()
    try:
        config.replace_environment({"HOCKET_HOME": "/elsewhere"})
        assert (config.home(), config.process_environment()) == ("/elsewhere", {"HOCKET_HOME": "/elsewhere"})
    finally:
        config.replace_environment(before)


# --- What an agent sees -------------------------------------------------------------------------------------

BASE = {
    "PATH": "/bin",
    "HOME": "/u",
    "LC_ALL": "C",
    "XDG_DATA_HOME": "/d",
    "https_proxy": "p",
    "NO_PROXY": "n",
}
KEYS = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "CURSOR_X": "c", "GEMINI_X": "g", "IS_SANDBOX": "1"}
MARKS = dict.fromkeys(
    [
        *("CLAUDECODE", "AI_AGENT", "CLAUDE_PID", "CLAUDE_EFFORT", "CLAUDE_CODE_SESSION_ID"),
        *("CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_EXECPATH"),
        *("CLAUDE_CODE_MESSAGING_SOCKET", "HOCKET_TOKEN", "CLAUDE_AGENT_ID", "AGENT_PROMPT"),
    ],
    "x",
)
SECRETS = {"AWS_SECRET_ACCESS_KEY": "s", "MY_TOKEN": "m", "PATHS": "x"}


def test_client_sends_only_allowed_variables() -> None:
    everything = {**BASE, **KEYS, **MARKS, **SECRETS}
    assert config.caller_environment(environ=everything) == {**BASE, **KEYS}


def test_plain_program_gets_no_cli_keys() -> None:
    assert config.agent_environment({**BASE, **KEYS}, "executable") == BASE


def test_each_cli_gets_its_own_keys_only() -> None:
    got = config.agent_environment({**BASE, **KEYS, **MARKS}, "claude")
    assert got == {**BASE, "ANTHROPIC_API_KEY": "a", "IS_SANDBOX": "1"}
    assert "OPENAI_API_KEY" in config.agent_environment({**BASE, **KEYS}, "codex")


def test_configured_names_pass_but_never_a_mark() -> None:
    names = ["MY_TOKEN", *MARKS]
    assert config.caller_environment(names, {**SECRETS, **MARKS}) == {"MY_TOKEN": "m"}
    assert config.agent_environment({**SECRETS, **MARKS}, "executable", names) == {"MY_TOKEN": "m"}


def test_cli_paths_reach_the_server_but_no_agent() -> None:
    programs = {"HOCKET_CLAUDE": "/x/claude", "HOCKET_CODEX": "codex", "HOCKET_CURSOR_AGENT": "./c"}
    environ = {**BASE, **programs, "HOCKET_OTHER": "x"}
    assert config.caller_environment(environ=environ) == {**BASE, **programs}
    for provider in ("claude", "codex", "cursor", "executable"):
        assert config.agent_environment(environ, provider, [*programs]) == BASE
    assert config.caller_environment(environ={"HOCKET_CLAUDE": "\udcff"}) == {}


def test_value_that_is_not_utf8_is_omitted() -> None:
    assert config.caller_environment(environ={"LANG": "C", "TERM": "\udcff"}) == {"LANG": "C"}


# --- Files --------------------------------------------------------------------------------------------------


def test_without_files_the_defaults_hold(project: Path, home: Path) -> None:
    found = of_project(project, home)
    assert (found.agents, found.chains, found.files) == ({}, {}, ())
    limits = found.limits
    assert (limits.depth, limits.children, limits.leaves) == (5, 8, 64)
    assert (limits.min_free_mb, limits.max_output_mb) == (200, 2048)
    assert (found.stop_grace, found.marker, found.env_pass) == (5.0, "FORKHESTRA_COMPLETE", ())


@pytest.mark.req("S1-34", "S1-29")
def test_chains_json_is_read_as_it_is(project: Path, home: Path) -> None:
    chains_json(
        project,
        {
            "agents": {
                "external-reviewer": {"path": "/p/reviewer", "defaultPrompt": "Look", "promptVia": "stdin"},
                "local": {"path": "../q/analyzer", "defaultPromptFile": "p.md"},
                "forge-task-manager": {},
            },
            "chains": {
                "flow": {
                    "description": "two",
                    "prompt": "chain",
                    "promptFile": "c.md",
                    "steps": [
                        {"agent": "forge-task-manager", "iterations": 2.0, "args": ["-v"]},
                        {"agent": "local", "prompt": "step", "promptFile": "s.md"},
                    ],
                }
            },
        },
    )
    found = of_project(project, home)
    reviewer, local = found.agents["external-reviewer"], found.agents["local"]
    assert (reviewer.path, reviewer.default_prompt, reviewer.prompt_via) == ("/p/reviewer", "Look", "stdin")
    assert (local.path, local.default_prompt_file, local.prompt_via) == ("../q/analyzer", "p.md", "arg")
    assert found.agents["forge-task-manager"].path is None
    chain = found.chain("flow")
    assert (chain.description, chain.prompt, chain.prompt_file) == ("two", "chain", "c.md")
    first, second = chain.steps
    assert (first.agent, first.iterations, first.args) == ("forge-task-manager", 2, ("-v",))
    assert (second.iterations, second.prompt, second.prompt_file) == (None, "step", "s.md")


def test_hocket_toml_is_read(project: Path, home: Path) -> None:
    put(
        project / "hocket.toml",
        """
        [run]
        stop_grace = 1
        marker = "ALL DONE"
        [env]
        pass = ["NPM_TOKEN"]
        [agents.b]
        path = "./b"
        args = ["-x"]
        default_prompt = "go"
        prompt_via = "stdin"
        [chains.ship]
        steps = [{agent = "b", iterations = 3, prompt_file = "x.md"}]
        until = "make test"
        marker = "SHIPPED"
        timeout = 60
        """,
    )
    found = of_project(project, home)
    assert (found.stop_grace, found.marker, found.env_pass) == (1, "ALL DONE", ("NPM_TOKEN",))
    assert (found.agents["b"].args, found.agents["b"].prompt_via) == (("-x",), "stdin")
    ship = found.chain("ship")
    assert (ship.until, ship.marker, ship.timeout, ship.steps[0].prompt_file) == (
        "make test",
        "SHIPPED",
        60,
        "x.md",
    )
    assert ship.source == str(project / "hocket.toml")


def test_nearest_file_wins(project: Path, home: Path) -> None:
    put(project / "hocket.toml", '[agents.a]\npath = "/project"\n[run]\nmarker = "P"\n[env]\npass = ["ONE"]')
    chains_json(project, {"agents": {"a": {"path": "/json"}, "b": {"path": "/json"}}})
    put(
        home / "config.toml",
        '[agents]\na.path = "/user"\nb.path = "/user"\nc.path = "/user"\n'
        '[run]\nmarker = "U"\nstop_grace = 2.5\n[limits]\ndepth = 2\n[env]\npass = ["TWO", "ONE"]',
    )
    found = of_project(project, home)
    assert {name: alias.path for name, alias in found.agents.items()} == {
        "a": "/project",
        "b": "/json",
        "c": "/user",
    }
    assert (found.marker, found.stop_grace, found.limits.depth, found.limits.leaves) == ("P", 2.5, 2, 64)
    assert found.env_pass == ("ONE", "TWO")
    assert [Path(file).name for file in found.files] == ["hocket.toml", "chains.json", "config.toml"]


def test_user_file_in_home_wins(project: Path, home: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(project / "xdg")}
    put(project / "xdg" / "hocket" / "config.toml", '[run]\nmarker = "X"')
    assert load(str(project), str(home), environ).marker == "X"
    put(home / "config.toml", '[run]\nmarker = "H"')
    assert load(str(project), str(home), environ).marker == "H"


def test_project_file_is_found_up_to_the_repository(world: Path, home: Path) -> None:
    put(world / "hocket.toml", '[run]\nmarker = "outside"')
    put(world / "repo" / "hocket.toml", '[run]\nmarker = "root"')
    (world / "repo" / ".git").mkdir()
    deep = world / "repo" / "a" / "b"
    deep.mkdir(parents=True)
    assert load(str(deep), str(home)).marker == "root"
    put(deep.parent / "hocket.toml", '[run]\nmarker = "near"')
    assert load(str(deep), str(home)).marker == "near"
    alone = world / "alone" / "sub"
    alone.mkdir(parents=True)
    assert load(str(alone), str(home)).marker == "FORKHESTRA_COMPLETE"


@pytest.mark.req("S1-B08")
def test_user_chains_are_a_fallback(project: Path, home: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(project / "xdg")}
    users = {"chains": {"mine": {"steps": [{"agent": "a"}]}}}
    put(project / "xdg" / "hocket" / "chains.json", json.dumps(users))
    assert list(load(str(project), str(home), environ).chains) == ["mine"]
    chains_json(project, {"chains": {"ours": {"steps": [{"agent": "a"}]}}})
    assert list(load(str(project), str(home), environ).chains) == ["ours"]


def test_unreadable_replaced_chains_are_an_error(project: Path, home: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(project / "xdg")}
    chains_json(project, {"chains": {"ours": {"steps": [{"agent": "a"}]}}})
    (project / "xdg" / "hocket" / "chains.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"xdg/hocket/chains.json: it is not a regular file"):
        load(str(project), str(home), environ)


@pytest.mark.req("S1-B08")
def test_unknown_chain_lists_searched_paths(project: Path, home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        of_project(project, home).chain("ship")
    for place in ("hocket.toml", "forge/chains.json", "config.toml", "hocket/chains.json"):
        assert place in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.req("S1-B10")
def test_unknown_chain_lists_available_ones(project: Path, home: Path) -> None:
    steps = {"steps": [{"agent": "a"}]}
    chains_json(project, {"chains": {"ship-auth": steps, "deploy": steps}})
    with pytest.raises(ConfigError, match="deploy, ship-auth") as caught:
        of_project(project, home).chain("ship-aut")
    assert caught.value.hint == 'did you mean "ship-auth"?'


@pytest.mark.req("S1-B09")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], ["must be a table"]),
        ({"chains": []}, ['"chains"', "table"]),
        ({"chains": {"c": []}}, ['chain "c"', "table"]),
        ({"chains": {"c": {}}}, ['chain "c"', "steps"]),
        ({"chains": {"c": {"steps": {}}}}, ['chain "c"', '"steps"', "list"]),
        ({"chains": {"c": {"steps": []}}}, ['chain "c"', '"steps"', "at least one"]),
        ({"chains": {"c": {"steps": ["a"]}}}, ['chain "c", step 1', "table"]),
        ({"chains": {"c": {"steps": [{}]}}}, ['chain "c", step 1', '"agent"']),
        ({"chains": {"c": {"steps": [{"agent": "a"}, {"agent": 3}]}}}, ['chain "c", step 2', '"agent"', "3"]),
        ({"chains": {"c": {"steps": [{"agent": " "}]}}}, ["step 1", '"agent"', "empty"]),
        (
            {"chains": {"c": {"steps": [{"agent": "a", "iterations": "3"}]}}},
            ["step 1", '"iterations"', "'3'"],
        ),
        ({"chains": {"c": {"steps": [{"agent": "a", "iterations": 0}]}}}, ["step 1", '"iterations"']),
        ({"chains": {"c": {"steps": [{"agent": "a", "iterations": 1.5}]}}}, ["step 1", '"iterations"']),
        ({"chains": {"c": {"steps": [{"agent": "a", "iterations": True}]}}}, ["step 1", '"iterations"']),
        ({"chains": {"c": {"steps": [{"agent": "a", "iterations": 10**7}]}}}, ["step 1", '"iterations"']),
        ({"chains": {"c": {"steps": [{"agent": "a", "args": "-v"}]}}}, ["step 1", '"args"', "list"]),
        ({"chains": {"c": {"steps": [{"agent": "a", "args": [1]}]}}}, ["step 1", '"args"', "list"]),
        ({"chains": {"c": {"steps": [{"agent": "a", "prompt": 1}]}}}, ["step 1", '"prompt"', "a string; got 1"]),
        ({"chains": {"c": {"steps": [{"agent": "a", "prompt": None}]}}}, ["step 1", '"prompt"', "null"]),
        ({"chains": {"c": {"steps": [{"agent": "a", "promptFile": ""}]}}}, ["step 1", '"promptFile"']),
        ({"chains": {"c": {"steps": [{"agent": "a"}], "prompt": []}}}, ['chain "c"', '"prompt"']),
        ({"chains": {"c": {"steps": [{"agent": "a"}], "timeout": 0}}}, ['chain "c"', '"timeout"']),
        ({"agents": {"a": {"path": "/x\0y"}}}, ['agent "a", "path"', "NUL", r"'/x\x00y'"]),
        ({"agents": {"a": {"path": "/x\ud800"}}}, ['agent "a", "path"', "not valid UTF-8", r"'/x\ud800'"]),
        ({"agents": {"a": {"model": "\udfff"}}}, ['agent "a", "model"']),
        ({"chains": {"c": {"steps": [{"agent": "a", "args": ["\ud800"]}]}}}, ["step 1", '"args"', "a list of strings"]),
        ({"chains": {"c": {"prompt": "\ud800", "steps": [{"agent": "a"}]}}}, ['"prompt"', "not valid UTF-8"]),
        ({"chains": {"c": {"steps": [{"agent": "a\0"}]}}}, ["step 1", '"agent"']),
        ({"chains": {"c": {"steps": [{"agent": "a", "promptFile": "\0"}]}}}, ["step 1", '"promptFile"']),
        ({"projects": {"p": "/x\0"}}, ['project "p"', "NUL"]),
    ],
    ids=lambda value: json.dumps(value)[:60] if not isinstance(value, list) else "",
)
def test_schema_errors_name_file_chain_step_and_field(
    project: Path, home: Path, content: Any, words: list[str]
) -> None:
    file = chains_json(project, content)
    message = refused(project, home).message
    for word in [str(file), *words]:
        assert word in message


@pytest.mark.req("S1-55")
def test_agent_may_be_named_by_its_project(project: Path, home: Path) -> None:
    agents = {"api-reviewer": {"project": "backend", "agent": "reviewer"}, "near": {"project": "../web", "agent": "qa"}}
    chains_json(project, {"projects": {"backend": "/srv/backend-api/"}, "agents": agents})
    found = of_project(project, home)
    assert found.projects == {"backend": "/srv/backend-api/"}
    assert found.agents["api-reviewer"].path == "/srv/backend-api/.claude/agents/reviewer"
    assert found.agents["near"].path == "../web/.claude/agents/qa"


@pytest.mark.req("S1-55")
def test_project_names_are_shared_between_files(project: Path, home: Path) -> None:
    (home / "config.toml").write_text('[projects]\nbackend = "~/backend"\n')
    (project / "hocket.toml").write_text('[agents.r]\nproject = "backend"\nagent = "reviewer"\n')
    assert of_project(project, home).agents["r"].path == "~/backend/.claude/agents/reviewer"


@pytest.mark.req("S1-55")
@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"project": "bakend", "agent": "x"}, ['unknown project "bakend"', "backend"]),
        ({"project": "backend"}, ['no "agent"']),
        ({"agent": "x"}, ['no "project"']),
        ({"project": "backend", "agent": "../x"}, ['"agent"', "an agent's name"]),
        ({"project": "backend", "agent": "x", "path": "/x"}, ['both "path" and "project"']),
        ({"project": 7, "agent": "x"}, ['"project"']),
    ],
)
def test_invalid_agent_of_a_project_is_refused(
    project: Path, home: Path, agent: dict[str, Any], words: list[str]
) -> None:
    file = chains_json(project, {"projects": {"backend": "/srv"}, "agents": {"r": agent}})
    message = refused(project, home).message
    for word in [str(file), 'agent "r"', *words]:
        assert word in message


def test_project_without_a_path_is_refused(project: Path, home: Path) -> None:
    chains_json(project, {"projects": {"backend": 3}})
    assert 'project "backend"' in refused(project, home).message


@pytest.mark.req("S1-30")
@pytest.mark.parametrize("path", [3, "", [], None, " "])
def test_invalid_path_error_names_file_and_agent(project: Path, home: Path, path: Any) -> None:
    file = chains_json(project, {"agents": {"reviewer": {"path": path}}})
    message = refused(project, home).message
    assert str(file) in message
    assert 'agent "reviewer"' in message
    assert '"path"' in message


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("[limit]\ndepth = 1", ['unknown key "limit"'], "limits"),
        ('[agents.a]\npaht = "/x"', ['agent "a"', '"paht"'], "path"),
        ('[agents.a]\nprompt_via = "file"', ['"prompt_via"', '"arg" or "stdin"'], None),
        ('[agents.a]\ndefaultPrompt = "x"', ['"defaultPrompt"'], "default_prompt"),
        ("[run]\nstop_grace = -1", ["[run]", '"stop_grace"'], None),
        ("[run]\nstop_grace = nan", ["[run]", '"stop_grace"'], None),
        ("[run]\nstop_grace = true", ["[run]", '"stop_grace"'], None),
        ('[run]\nmarker = ""', ["[run]", '"marker"'], None),
        ('[env]\npass = "A"', ["[env]", '"pass"'], None),
        ('[env]\npass = ["A B"]', ["[env]", '"pass"'], None),
        ('[env]\npass = ["HOCKET_TOKEN"]', ["[env]", '"pass"'], None),
        ("run = 3", ['"run"', "table"], None),
    ],
)
def test_unknown_keys_and_wrong_types_are_errors(
    project: Path, home: Path, text: str, words: list[str], hint: str | None
) -> None:
    file = put(project / "hocket.toml", text)
    error = refused(project, home)
    for word in [str(file), *words]:
        assert word in error.message
    assert (hint is None) or (error.hint is not None and hint in error.hint)


def test_claude_agents_and_chains_have_settings(project: Path, home: Path) -> None:
    put(
        project / "hocket.toml",
        """
        [claude]
        permission_mode = "plan"
        on_question = "ask"
        [agents.a]
        model = "opus"
        permission_mode = "dontAsk"
        allowed_tools = ["Read", "Bash(git *)"]
        [agents.b]
        allowed_tools = "Read Grep"
        [chains.c]
        permission_mode = "acceptEdits"
        on_question = "fail"
        steps = [{agent = "a"}]
        """,
    )
    put(home / "config.toml", '[claude]\nmodel = "haiku"\ncontract = false\non_question = "deny"\n[agents.mine]\n')
    found = of_project(project, home)
    claude, a = found.claude, found.agents["a"]
    assert (claude.permission_mode, claude.model, claude.on_question, claude.contract) == (
        "plan",
        "haiku",
        "ask",
        False,
    )
    assert (a.model, a.permission_mode, a.allowed_tools) == ("opus", "dontAsk", "Read Bash(git *)")
    assert (found.agents["b"].allowed_tools, a.project, found.agents["mine"].project) == (
        "Read Grep",
        str(project),
        None,
    )
    assert (found.chain("c").permission_mode, found.chain("c").on_question) == ("acceptEdits", "fail")


def test_claude_has_careful_defaults(project: Path, home: Path) -> None:
    claude = of_project(project, home).claude
    assert (claude.permission_mode, claude.model, claude.on_question, claude.contract) == (
        "acceptEdits",
        None,
        None,
        True,
    )


def test_chains_json_uses_camel_case(project: Path, home: Path) -> None:
    chains_json(
        project,
        {
            "agents": {"a": {"permissionMode": "plan", "allowedTools": ["Read", "Grep"], "model": "opus"}},
            "chains": {"c": {"steps": [{"agent": "a"}], "permissionMode": "plan", "onQuestion": "ask"}},
        },
    )
    found = of_project(project, home)
    a, c = found.agents["a"], found.chain("c")
    assert (a.permission_mode, a.allowed_tools, a.model, a.project) == ("plan", "Read Grep", "opus", str(project))
    assert (c.permission_mode, c.on_question) == ("plan", "ask")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[claude]\npermission_mode = "all"', '"permission_mode": must be "acceptEdits" or'),
        ("[claude]\nmodel = 5", '"model"'),
        ('[claude]\non_question = "maybe"', '"deny" or "ask" or "fail"'),
        ('[claude]\ncontract = "yes"', "true or false"),
        ('[claude]\ndelegate = "cli"', '[claude], "delegate": must be "hocket"; got'),
        ("[agents.a]\ndelegate = true", 'agent "a", "delegate": must be "hocket"'),
        ('[claude]\nmodell = "x"', 'unknown key "modell"'),
        ('[agents.a]\npermission_mode = ["plan"]', 'agent "a", "permission_mode"'),
        ("[agents.a]\nallowed_tools = [1]", 'agent "a", "allowed_tools"'),
        ('[agents.a]\nmodel = ""', 'agent "a", "model"'),
        ('[chains.c]\nsteps = [{agent = "a"}]\non_question = 1', 'chain "c", "on_question"'),
        ('[trust]\nfolders = "/x"', "a list of folders"),
        ('[trust]\nfolders = ["x"]', "a list of folders"),
        ('[trust]\nfolders = ["~other/x"]', "a list of folders"),
    ],
)
def test_invalid_setting_is_refused(project: Path, home: Path, text: str, words: str) -> None:
    put(home / "config.toml", text)
    error = refused(project, home)
    assert words in error.message
    assert str(home / "config.toml") in error.message


def test_folders_are_trusted_by_the_user_alone(project: Path, home: Path, world: Path) -> None:
    put(home / "config.toml", f'[trust]\nfolders = ["~/code", "{project}"]')
    found = of_project(project, home)
    assert found.trusted_folders == (f"{world}/user/code", str(project))
    assert found.lists(str(project / "sub"))
    assert found.lists(f"{world}/user/code")
    assert not found.lists(str(project) + "x")
    assert not found.lists(f"{project}/..")
    put(project / "hocket.toml", f'[trust]\nfolders = ["{project}"]')
    assert "[trust] is not allowed in a project's file" in refused(project, home).message


@pytest.mark.parametrize(
    ("file", "where", "text"),
    [
        ("hocket.toml", "[claude]", '[claude]\npermission_mode = "MODE"'),
        ("hocket.toml", 'chain "c"', '[chains.c]\nsteps = [{agent = "a"}]\npermission_mode = "MODE"'),
        ("forge/chains.json", 'chain "c"', '{"chains": {"c": {"steps": [{"agent": "a"}], "permissionMode": "MODE"}}}'),
    ],
)
@pytest.mark.parametrize("mode", ["bypassPermissions", "auto"])
def test_untrusted_project_cannot_widen_permissions(
    project: Path, home: Path, file: str, where: str, text: str, mode: str
) -> None:
    path = put(project / file, text.replace("MODE", mode))
    with pytest.raises(NotTrusted) as caught:
        check_configuration(Approvals(of_project(project, home)))
    assert f"{path}: {where} asks for permission mode {mode}" in caught.value.message
    assert caught.value.exit_code == 4
    assert (caught.value.hint or "").endswith(f": hocket trust {project}")
    put(home / "config.toml", f'[trust]\nfolders = ["{project}"]')
    check_configuration(Approvals(of_project(project, home)))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("hocket.toml", '[chains.c]\nsteps = [{agent = "a"}]'),
        ("forge/chains.json", '{"chains": {"c": {"steps": [{"agent": "a"}]}}}'),
    ],
)
def test_chain_has_the_project_of_its_file(project: Path, home: Path, file: str, text: str) -> None:
    put(home / "config.toml", '[chains.mine]\nsteps = [{agent = "a"}]')
    put(project / file, text)
    found = of_project(project, home)
    assert (found.chain("c").project, found.chain("mine").project) == (str(project), None)


def test_user_may_bypass_permissions(project: Path, home: Path) -> None:
    put(home / "config.toml", '[claude]\npermission_mode = "bypassPermissions"')
    assert of_project(project, home).claude.permission_mode == "bypassPermissions"


def test_limits_in_a_project_file_are_refused(project: Path, home: Path) -> None:
    put(project / "hocket.toml", "[limits]\ndepth = 50")
    assert "not allowed in a project's file" in refused(project, home).message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hocket.toml", "a = 1\nb = = 2"),
        ("forge/chains.json", '{\n  "chains": ,}'),
    ],
)
def test_syntax_error_has_line_and_column(project: Path, home: Path, name: str, text: str) -> None:
    file = put(project / name, text)
    message = refused(project, home).message
    assert str(file) in message
    assert "line 2, column" in message


@pytest.mark.parametrize("name", ["hocket.toml", "forge/chains.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b" " * (1024 * 1024 + 1),
        b"[" * 200_000,
        b"x = " + b"[" * 50_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=["not-utf8", "large", "brackets", "nested", "digits"],
)
def test_unparsable_file_is_a_clear_error(project: Path, home: Path, name: str, content: bytes) -> None:
    file = put(project / name, "")
    file.write_bytes(content)
    assert str(file) in refused(project, home).message


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_only_regular_files_are_read(project: Path, home: Path, kind: str) -> None:
    path = project / "hocket.toml"
    if kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert "regular file" in refused(project, home).message


@pytest.mark.parametrize("name", ["hocket.toml", "forge/chains.json"])
def test_dangling_link_is_refused(project: Path, home: Path, name: str) -> None:
    (project / "forge").mkdir()
    (project / name).symlink_to("/nowhere/at-all")
    error = refused(project, home)
    assert f"cannot read {project / name}: it links to /nowhere/at-all, which does not exist" in error.message
    assert error.hint == "repair the link, or remove it"


def test_dangling_link_of_the_user_is_refused(project: Path, home: Path) -> None:
    (home / "config.toml").symlink_to("gone.toml")
    assert "it links to gone.toml" in refused(project, home).message


def test_dangling_link_above_is_the_nearest_file(project: Path, home: Path) -> None:
    (project / ".git").mkdir()
    (project / "sub").mkdir()
    (project / "hocket.toml").symlink_to("gone.toml")
    assert str(project / "hocket.toml") in refused(project / "sub", home).message


def test_duplicate_key_is_refused(project: Path, home: Path) -> None:
    put(project / "forge" / "chains.json", '{"agents": {"a": {}, "a": {}}}')
    assert '"a" is defined twice' in refused(project, home).message


def test_byte_order_mark_and_schema_are_ignored(project: Path, home: Path) -> None:
    put(project / "forge" / "chains.json", '\ufeff{"$schema": "x", "agents": {"a": {}}}')
    put(project / "hocket.toml", '\ufeff[run]\nmarker = "M"')
    found = of_project(project, home)
    assert (list(found.agents), found.marker) == (["a"], "M")


def test_configuration_is_immutable_after_loading(project: Path, home: Path) -> None:
    found = of_project(project, home)
    with pytest.raises(AttributeError):
        found.marker = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Limits(width=3)  # type: ignore[call-arg]
    assert Limits(depth=1) == Limits(1) != Limits()


def test_env_names_with_and_without_a_file(project: Path, home: Path) -> None:
    assert env_names(str(project), str(home)) == ()
    put(project / "hocket.toml", '[env]\npass = ["NPM_TOKEN"]')
    assert env_names(str(project), str(home)) == ("NPM_TOKEN",)


def test_module_imports_nothing_heavy() -> None:
    code = "import sys, hocket.config as c; c.caller_environment(); c.socket_path(c.home()); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {
        "dataclasses",
        "tomllib",
        "msgspec",
        "asyncio",
        "pathlib",
        "json",
        "inspect",
        "difflib",
        "hashlib",
    }
    assert heavy & set(loaded) <= heavy & _loaded_by_python_itself()


def _loaded_by_python_itself() -> set[str]:
    code = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


# --- Prompts ------------------------------------------------------------------------------------------------


@pytest.mark.req("S1-B12", "S1-38")
@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([("cli", None), ("step", None)], ("cli", None)),
        ([(None, "cli.md"), ("step", None)], (None, "cli.md")),
        ([(None, None), (None, "step.md"), ("chain", None)], (None, "step.md")),
        ([(None, None), ("step", "step.md")], ("step", None)),
        ([(None, None), (None, None), ("chain", None), ("agent", None)], ("chain", None)),
        ([("", None), (None, None), (None, None), (None, "agent.md")], (None, "agent.md")),
        ([(None, None)], (None, None)),
        ([("", ""), ("", None)], (None, None)),
    ],
)
def test_prompt_follows_level_precedence(
    levels: list[tuple[str | None, str | None]], expected: tuple[str | None, str | None]
) -> None:
    assert choose_prompt(PromptLevel(*level) for level in levels) == PromptLevel(*expected)


@pytest.mark.req("S1-B12")
def test_prompt_file_is_relative_to_the_cwd(project: Path) -> None:
    put(project / "p" / "x.md", "hello\n\n")
    assert read_prompt("p/x.md", str(project)) == "hello\n\n"
    assert read_prompt(str(project / "p" / "x.md"), "/") == "hello\n\n"


@pytest.mark.req("S1-B12")
@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "binary", "large", "nul"])
def test_unusable_prompt_file_is_refused_by_name(project: Path, kind: str) -> None:
    path = project / "p.md"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "binary":
        path.write_bytes(b"ok\xff")
    elif kind == "large":
        path.touch()
        os.truncate(path, config.MAX_PROMPT + 1)
    name = "p.md\0" if kind == "nul" else "p.md"
    with pytest.raises(PromptError) as caught:
        read_prompt(name, str(project))
    assert "p.md" in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "command", ['"notify"', "[]", '[""]', '["bin/notify"]', '["../notify"]', '["a", 1]', '["a\\u0000"]']
)
def test_notify_command_cannot_be_a_relative_path(project: Path, home: Path, command: str) -> None:
    put(home / "config.toml", '[notify]\ncommand = ["~/bin/notify", "", "~/x"]')
    assert of_project(project, home).notify == (f"{os.environ['HOME']}/bin/notify", "", "~/x")
    put(home / "config.toml", f"[notify]\ncommand = {command}")
    assert '[notify], "command": must be a list with a program' in refused(project, home).message


def test_notify_of_a_project_is_ignored(project: Path, home: Path) -> None:
    put(home / "config.toml", '[notify]\ncommand = ["mine"]')
    put(project / "hocket.toml", '[notify]\ncommand = "even this"')
    found = of_project(project, home)
    assert found.notify == ("mine",)
    assert [setting.partition(": ")[0] for setting in found.ignored] == [str(project / "hocket.toml")]


@pytest.mark.req("S5-14")
def test_time_until_idle_is_set_by_the_user_only(project: Path, home: Path) -> None:
    assert of_project(project, home).idle_after == 0
    put(home / "config.toml", "[run]\nidle_after = 2.5")
    assert of_project(project, home).idle_after == 2.5
    put(home / "config.toml", "[run]\nidle_after = -1")
    assert "idle_after" in refused(project, home).message
    (home / "config.toml").unlink()
    put(project / "hocket.toml", "[run]\nidle_after = 1")
    assert "[run] idle_after is not allowed in a project's file" in refused(project, home).message


@pytest.mark.req("S5-01")
def test_aliases_and_steps_may_ask_for_teams(project: Path, home: Path) -> None:
    steps = '[{ agent = "crew", team = false }, { agent = "crew" }]'
    put(project / "hocket.toml", f'[agents.crew]\npath = "claude"\nteam = true\n[chains.c]\nsteps = {steps}')
    loaded = of_project(project, home)
    assert loaded.agents["crew"].team is True
    assert [step.team for step in loaded.chains["c"].steps] == [False, None]
    put(project / "hocket.toml", '[agents.crew]\npath = "claude"\nteam = "yes"')
    assert '"team": must be true or false' in refused(project, home).message


def test_cross_session_is_set_by_the_user_only(project: Path, home: Path) -> None:
    assert of_project(project, home).claude.cross_session == "refuse"
    put(home / "config.toml", '[claude]\ncross_session = "accept"')
    assert of_project(project, home).claude.cross_session == "accept"
    put(home / "config.toml", '[claude]\ncross_session = "maybe"')
    assert 'must be "refuse" or "hold" or "accept"' in refused(project, home).message
    put(home / "config.toml", "")
    put(project / "hocket.toml", '[claude]\ncross_session = "accept"')
    assert "[claude] cross_session is not allowed in a project's file" in refused(project, home).message

"""The command line of the Claude program: what is in it, in which order, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import BadDefinition, PromptError, UsageError
from hocket.model import DEFAULT_MARKER, RUN_DIRECTORY, SESSION, Agent, Definition
from hocket.providers.base import Launch, LaunchRequest, OwnServer
from hocket.providers.claude.frontmatter import texts
from hocket.providers.claude.launch import bound, launch
from hocket.providers.claude.models import ALIASES
from hocket.providers.claude.privileges import allowed_names
from hocket.providers.launching import DEFAULT_PROMPT

FIELDS = {"description": "reviews", "prompt": "You review.", "tools": ["Read"]}
AGENT = Agent(
    "rev", "claude", "/bin/claude", "project", definition=Definition("rev", FIELDS, "/p/.claude/agents/rev.md")
)
BARE = Agent("claude", "claude", "/bin/claude", "PATH", trusted=True)


def defined(**fields: Any) -> Agent:
    return replace(AGENT, definition=Definition("rev", FIELDS | fields, "/p/rev.md"))


def after(made: Launch, flag: str) -> str:
    return made.argv[made.argv.index(flag) + 1]


@pytest.mark.req("S1-04", "S1-36", "S1-45", "S2-57", "S2-61")
def test_complete_command_line_of_definition() -> None:
    made = launch(replace(AGENT, args=("-g",)), LaunchRequest(prompt="do it", args=("-s", "-x", "a b")))
    assert made.argv == (
        "/bin/claude",
        "-p",
        *("--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--include-partial-messages"),
        "--forward-subagent-text",
        *("--session-id", SESSION),
        *("--permission-mode", "acceptEdits"),
        *("--permission-prompts", "none"),
        *("--setting-sources", "user", "--strict-mcp-config"),
        *("--settings", '{"crossSessionInbound": "refuse"}'),
        *("--agents", f"{RUN_DIRECTORY}/agents.json", "--agent", "rev"),
        *("-g", "-s", "-x", "a b"),
    )
    assert (made.stdin, made.prompt, made.env) == ("lines", "do it", {})
    assert json.loads(made.files["agents.json"]) == {"rev": FIELDS}


@pytest.mark.req("S1-36")
def test_user_arguments_follow_agent_name() -> None:
    made = launch(
        replace(AGENT, args=("--model", "global")),
        LaunchRequest(args=("--model", "step", "--model", "mine")),
    )
    assert made.argv[made.argv.index("--agent") + 2 :] == ("--model", "global", "--model", "step", "--model", "mine")


def test_plain_cli_gets_no_definition() -> None:
    made = launch(BARE, LaunchRequest(prompt="hi"))
    assert not {"--agents", "--agent", "--setting-sources", "--strict-mcp-config"} & set(made.argv)
    assert made.files == {}


@pytest.mark.req("S1-38")
@pytest.mark.parametrize("prompt", [None, "", " \n\t"])
def test_missing_prompt_is_replaced_by_the_default(prompt: str | None) -> None:
    assert launch(AGENT, LaunchRequest(prompt=prompt)).prompt == DEFAULT_PROMPT


# --- Prompts and arguments ---


@pytest.mark.req("S1-37", "S2-57", "S2-66")
@pytest.mark.parametrize(
    "prompt", ["a\nb", "-rf", "$(touch x)", "'\"`", " x ", "é😀", "x" * 1_000_000, "a\0b"], ids=len
)
def test_prompt_is_unchanged_and_no_argument(prompt: str) -> None:
    made = launch(AGENT, LaunchRequest(prompt=prompt))
    assert made.prompt == prompt
    assert prompt not in made.argv


@pytest.mark.req("S1-37")
@pytest.mark.parametrize(
    "prompt", ["x" * 10 * 1024 * 1024, "\ud800", "\0" * 2_000_000], ids=["long", "half", "escaped"]
)
def test_undeliverable_prompt_is_refused(prompt: str) -> None:
    with pytest.raises(PromptError):
        launch(AGENT, LaunchRequest(prompt=prompt))


@pytest.mark.parametrize("argument", ["a\0b", f"{RUN_DIRECTORY}/x", SESSION, "\ud800", "x" * 128 * 1024], ids=repr)
def test_undeliverable_argument_is_refused(argument: str) -> None:
    for arguments in ((argument,), (), ()), ((), (argument,), ()), ((), (), (argument,)):
        own, step, extra = arguments
        with pytest.raises(UsageError):
            launch(
                replace(AGENT, args=own),
                LaunchRequest(args=(*step, *extra)),
            )


def test_too_many_arguments_and_variables_together_are_refused() -> None:
    launch(AGENT, LaunchRequest(args=tuple(["x" * 100_000] * 9)))
    with pytest.raises(UsageError, match="together"):
        launch(
            AGENT,
            LaunchRequest(args=tuple(["x" * 100_000] * 6), env={f"V{number}": "y" * 100_000 for number in range(5)}),
        )


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_name_that_is_no_argument_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        launch(replace(AGENT, definition=Definition(name, FIELDS, "/p/rev.md")), LaunchRequest())


# --- Permissions ---


@pytest.mark.req("S1-45", "S2-56", "S2-62")
@pytest.mark.parametrize(
    ("alias", "own", "default", "mode"),
    [
        (None, None, "acceptEdits", "acceptEdits"),
        (None, None, "plan", "plan"),
        (None, "plan", "acceptEdits", "plan"),
        ("bypassPermissions", "plan", "acceptEdits", "bypassPermissions"),
        ("default", None, "plan", "default"),
    ],
)
def test_permission_mode_of_alias_precedes_definition_and_default(
    alias: str | None, own: str | None, default: str, mode: str
) -> None:
    agent = replace(defined(**({"permissionMode": own} if own else {})), permission_mode=alias)
    assert after(launch(agent, LaunchRequest(permission_mode=default)), "--permission-mode") == mode


@pytest.mark.parametrize("mode", ["yolo", "ACCEPTEDITS", ["plan"], 3])
def test_unknown_permission_mode_is_refused(mode: Any) -> None:
    with pytest.raises(UsageError, match="permission mode"):
        launch(defined(permissionMode=mode), LaunchRequest())


@pytest.mark.req("S1-45")
@pytest.mark.parametrize(
    ("on_question", "flags"),
    [
        ("deny", ("--permission-prompts", "none")),
        ("ask", ("--permission-prompts", "host", "--permission-prompt-tool", "stdio")),
        ("fail", ("--permission-prompts", "host", "--permission-prompt-tool", "stdio")),
    ],
)
def test_questions_are_denied_or_sent_to_hocket(on_question: str, flags: tuple[str, ...]) -> None:
    argv = launch(AGENT, LaunchRequest(on_question=on_question)).argv
    at = argv.index("--permission-prompts")
    assert argv[at : at + len(flags)] == flags
    assert ("--permission-prompt-tool" in argv) == (on_question != "deny")


def test_unknown_on_question_is_refused() -> None:
    with pytest.raises(UsageError):
        launch(AGENT, LaunchRequest(on_question="guess"))


def test_untrusted_folder_has_user_settings_only() -> None:
    assert "--strict-mcp-config" in launch(AGENT, LaunchRequest()).argv
    trusted = launch(replace(AGENT, trusted=True), LaunchRequest()).argv
    assert not {"--setting-sources", "--strict-mcp-config"} & set(trusted)


# --- Settings ---


def settings_of(made: Launch) -> Any:
    assert made.argv.count("--settings") == 1
    return json.loads(after(made, "--settings"))


@pytest.mark.parametrize("value", ["refuse", "hold", "accept"])
def test_messages_from_other_sessions_are_treated_as_configured(value: str) -> None:
    made = launch(AGENT, LaunchRequest(cross_session=value))
    assert settings_of(made) == {"crossSessionInbound": value}
    assert ("--replay-user-messages" in made.argv) == (value != "refuse")


def test_messages_are_not_echoed_in_other_format() -> None:
    made = launch(AGENT, LaunchRequest(args=("--output-format", "json"), cross_session="accept"))
    assert "--replay-user-messages" not in made.argv


@pytest.mark.parametrize(
    "words",
    [["--settings", '{"model": "m"}'], ['--settings={"model": "m"}'], ["--settings", "{}", '--settings={"model":"m"}']],
)
def test_user_settings_are_merged_with_own(words: list[str]) -> None:
    made = launch(
        AGENT,
        LaunchRequest(args=("-x", *words, "-y")),
    )
    assert settings_of(made) == {"crossSessionInbound": "refuse", "model": "m"}
    assert made.argv[-2:] == ("-x", "-y")


def test_user_setting_for_other_sessions_wins() -> None:
    made = launch(
        AGENT,
        LaunchRequest(args=("--settings", '{"crossSessionInbound": "accept"}')),
    )
    assert settings_of(made) == {"crossSessionInbound": "accept"}
    assert "--replay-user-messages" in made.argv


def test_untrusted_servers_stay_disabled_beside_user_list() -> None:
    agent = replace(AGENT, trusted=True, untrusted_servers=("a", "b"))
    own = {"disabledMcpjsonServers": ["b", "c"], "enabledMcpjsonServers": ["a"]}
    made = launch(
        agent,
        LaunchRequest(
            args=(
                "--settings",
                json.dumps(own),
            )
        ),
    )
    assert settings_of(made) == {"crossSessionInbound": "refuse", **own, "disabledMcpjsonServers": ["b", "c", "a"]}
    assert settings_of(launch(agent, LaunchRequest()))["disabledMcpjsonServers"] == ["a", "b"]


HOOK = ("/a b/python", "hook")


def test_hook_is_added_to_those_of_the_user() -> None:
    theirs = {"matcher": "Bash", "hooks": [{"type": "command", "command": "true"}]}
    (ours,) = settings_of(launch(AGENT, LaunchRequest(hook=HOOK)))["hooks"]["PreToolUse"]
    assert (ours["matcher"], ours["hooks"][0]["command"]) == ("Task|Agent", "'/a b/python' hook || exit 2")
    given = {"hooks": {"Stop": [theirs], "PreToolUse": [theirs]}}
    made = launch(AGENT, LaunchRequest(hook=HOOK, args=("--settings", json.dumps(given))))
    assert settings_of(made)["hooks"] == {"Stop": [theirs], "PreToolUse": [theirs, ours]}
    assert settings_of(launch(AGENT, LaunchRequest(args=("--settings", json.dumps(given)))))["hooks"] == given["hooks"]


@pytest.mark.parametrize("hooks", [5, [], {"PreToolUse": {}}])
def test_malformed_hooks_of_the_user_are_refused(hooks: object) -> None:
    with pytest.raises(UsageError, match="hooks in --settings must be an object of lists; got"):
        launch(AGENT, LaunchRequest(hook=HOOK, args=("--settings", json.dumps({"hooks": hooks}))))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--settings"], "needs a value"),
        (["--settings", "/home/ada/settings.json"], "must be JSON, not a file"),
        (["--settings", "[1]"], "must be JSON, not a file"),
        (["--settings", "{bad}"], "is not valid JSON"),
        (["--settings", '{"a": NaN}'], "is not valid JSON"),
        (["--settings", '{"crossSessionInbound": "maybe"}'], "invalid crossSessionInbound in --settings: 'maybe'"),
        (["--settings", '{"disabledMcpjsonServers": 5}'], "must be a list; got 5"),
    ],
    ids=repr,
)
def test_invalid_settings_are_refused_with_reason(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        launch(replace(AGENT, trusted=True, untrusted_servers=("a",)), LaunchRequest(args=tuple(words)))


# --- Models ---


HAIKU = ALIASES["haiku"]


@pytest.mark.req("S3-11", "S3-12", "S3-15")
@pytest.mark.parametrize(
    ("alias", "own", "default", "flag", "known"),
    [
        (None, None, None, None, None),
        (None, None, "fable", "fable", "fable"),
        (None, None, "Haiku", HAIKU, HAIKU),
        (None, "sonnet", "haiku", None, "sonnet"),
        ("opus", "sonnet", "haiku", "opus", "opus"),
        ("HAIKU", "sonnet", None, HAIKU, HAIKU),
        (None, "inherit", None, None, None),
        (None, "inherit", "fable", "fable", "fable"),
        ("inherit", "sonnet", None, None, "sonnet"),
        (None, 7, None, None, None),
    ],
)
def test_model_of_alias_precedes_definition_and_default(
    alias: str | None, own: Any, default: str | None, flag: str | None, known: str | None
) -> None:
    made = launch(replace(defined(model=own), model=alias), LaunchRequest(model=default))
    assert (after(made, "--model") if "--model" in made.argv else None) == flag
    assert made.model == known


@pytest.mark.parametrize(
    ("args", "known"),
    [
        (("--model", "opus"), "opus"),
        (("--model=sonnet",), "sonnet"),
        (("--model", "opus", "--model", "sonnet"), "sonnet"),
        (("--max-turns", "5"), "fable"),
        (("--model",), "fable"),
    ],
)
def test_model_in_arguments_of_user_takes_precedence(args: tuple[str, ...], known: str) -> None:
    assert launch(defined(model="fable"), LaunchRequest(args=args)).model == known


def test_model_in_settings_of_user_comes_last() -> None:
    settings = ("--settings", '{"model": "opus", "outputStyle": "Explanatory"}')
    made = launch(AGENT, LaunchRequest(args=settings))
    assert (made.model, dict(made.env)) == ("opus", {"AGENT_OUTPUT_STYLE": "Explanatory"})
    assert launch(defined(model="fable"), LaunchRequest(args=settings)).model == "fable"


@pytest.mark.req("S3-13", "S3-14")
def test_thinking_budget_sets_cli_limit() -> None:
    agent = defined()
    assert agent.definition is not None
    assert dict(launch(agent, LaunchRequest()).env) == {}
    limited = replace(agent, definition=replace(agent.definition, thinking_budget=8000))
    assert dict(launch(limited, LaunchRequest()).env) == {"MAX_THINKING_TOKENS": "8000"}


# --- Tools ---


@pytest.mark.req("S2-63", "S2-64", "S2-65")
@pytest.mark.parametrize(
    ("allowed", "tools"),
    [
        ("Bash(file-tools *) Edit Read(*)", ("Bash", "Edit", "Read")),
        ("Bash(file-tools * scripts/agent/*)", ("Bash",)),
        ("Bash(git *),Bash(ls) Bash", ("Bash",)),
        ("Edit, Bash(a (b, c) d),Read", ("Edit", "Bash", "Read")),
        ("mcp__srv__tool WebFetch(domain:x.y)", ("mcp__srv__tool", "WebFetch")),
        ("Read) Edit", ("Read)", "Edit")),
        ("Bash(never closed, Edit", ("Bash",)),
        ("  ,, ", ()),
        ("", ()),
    ],
)
def test_tools_are_derived_from_permissions(allowed: str, tools: tuple[str, ...]) -> None:
    assert allowed_names(allowed) == tools


@pytest.mark.req("S2-62", "S2-66")
def test_permissions_are_one_argument_before_a_flag() -> None:
    """The CLI splits only at commas outside parentheses: it allowed both commands below."""
    made = launch(replace(BARE, allowed_tools="Bash(touch a,b) Bash(touch c *) Edit"), LaunchRequest(args=("word",)))
    assert after(made, "--tools") == "Bash,Edit"
    assert after(made, "--allowedTools") == "Bash(touch a,b),Bash(touch c *),Edit"
    assert made.argv[made.argv.index("--allowedTools") + 2].startswith("--")


@pytest.mark.parametrize("allowed", [None, "", " , "])
def test_no_permissions_restrict_nothing(allowed: str | None) -> None:
    assert not {"--tools", "--allowedTools"} & set(launch(replace(AGENT, allowed_tools=allowed), LaunchRequest()).argv)


@given(st.text(alphabet="aB(), *\t", max_size=40))
def test_splitting_permissions_loses_only_separators_and_repetitions(allowed: str) -> None:
    entries = texts(allowed, at_spaces=True)
    assert texts(",".join(entries), at_spaces=True) == entries
    assert set("".join(entries)) - set(", \t") == set(allowed) - set(", \t")


# --- The contract of a loop ---


@pytest.mark.req("S1-42", "S1-43")
def test_loop_adds_the_marker_to_the_system_prompt() -> None:
    prompt = after(launch(AGENT, LaunchRequest(loop=True, marker="ALL_DONE")), "--append-system-prompt")
    assert "ALL_DONE" in prompt.split("\n")
    assert DEFAULT_MARKER in after(launch(AGENT, LaunchRequest(loop=True)), "--append-system-prompt").split("\n")


@pytest.mark.req("S1-42")
@pytest.mark.parametrize("options", [LaunchRequest(), LaunchRequest(loop=True, own_branch=True, contract=False)])
def test_no_instructions_outside_loop_or_without_contract(options: LaunchRequest) -> None:
    assert "--append-system-prompt" not in launch(AGENT, options).argv


def test_own_branch_adds_a_request_to_commit() -> None:
    prompt = after(launch(AGENT, LaunchRequest(own_branch=True)), "--append-system-prompt")
    assert "commit" in prompt
    assert DEFAULT_MARKER not in prompt
    both = after(launch(AGENT, LaunchRequest(own_branch=True, loop=True)), "--append-system-prompt")
    assert DEFAULT_MARKER in both.split("\n")
    assert both.endswith(prompt)


# --- Definitions ---


def test_definition_values_without_json_form_become_text() -> None:
    made = launch(defined(since=date(2026, 1, 2), half="\ud800"), LaunchRequest())
    assert json.loads(made.files["agents.json"])["rev"]["since"] == "2026-01-02"
    made.files["agents.json"].encode()


def test_definition_without_json_form_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    for value in (float("nan"), loop):
        with pytest.raises(BadDefinition, match=r"/p/rev\.md"):
            launch(defined(value=value), LaunchRequest())


# --- Servers ---

SERVER = {"command": "python3", "args": ["server.py"], "env": {"TOKEN": "s3cret"}}


@pytest.mark.req("S3-08", "S3-54")
@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("servers", [{"db": SERVER}, {}], ids=["one", "none"])
def test_whitelist_gives_exactly_its_servers(trusted: bool, servers: dict[str, Any]) -> None:
    made = launch(replace(AGENT, trusted=trusted), LaunchRequest(args=("word",), servers=servers))
    assert after(made, "--mcp-config") == f"{RUN_DIRECTORY}/servers.json"
    assert made.argv[made.argv.index("--mcp-config") + 2] == "--strict-mcp-config"
    assert made.argv.count("--strict-mcp-config") == 1
    assert json.loads(made.files["servers.json"]) == {"mcpServers": servers}
    assert set(made.files) == {"agents.json", "servers.json"}


@pytest.mark.req("S3-08")
def test_servers_are_left_to_cli_without_whitelist() -> None:
    made = launch(replace(AGENT, trusted=True), LaunchRequest())
    assert not {"--mcp-config", "--strict-mcp-config"} & set(made.argv)
    assert set(made.files) == {"agents.json"}


def test_server_secrets_are_only_in_file() -> None:
    made = launch(AGENT, LaunchRequest(servers={"db": SERVER}))
    assert not any("s3cret" in text for text in (*made.argv, *made.env.values()))


def test_plain_cli_may_have_whitelist() -> None:
    assert set(launch(BARE, LaunchRequest(servers={})).files) == {"servers.json"}


def test_servers_without_json_form_are_refused() -> None:
    with pytest.raises(BadDefinition, match="servers"):
        launch(AGENT, LaunchRequest(servers={"db": {"timeout": float("nan")}}))


# --- Our own server ---

OWN = OwnServer("hocket", ("mcp__hocket__wait", "mcp__hocket__stop"))
IN_STREAM = {"type": "sdk", "name": "hocket"}
"""How the CLI names an MCP server that the other end of its streams provides."""


def test_own_server_is_added_to_those_of_cli() -> None:
    made = launch(BARE, LaunchRequest(args=("word",), own_server=OWN))
    assert json.loads(after(made, "--mcp-config")) == {"mcpServers": {"hocket": IN_STREAM}}
    assert made.argv[made.argv.index("--mcp-config") + 2].startswith("--")
    assert "--strict-mcp-config" not in made.argv
    assert not made.files


def test_launch_is_served_with_own_server() -> None:
    assert (launch(BARE, LaunchRequest(own_server=OWN)).served, launch(BARE, LaunchRequest()).served) == (True, False)


@pytest.mark.parametrize("flag", ["--output-format", "--output-format=json", "--input-format"])
def test_own_server_is_not_offered_in_other_format(flag: str) -> None:
    made = launch(BARE, LaunchRequest(args=(flag, "text"), own_server=OWN))
    assert (made.served, "--mcp-config" in made.argv, "--allowedTools" in made.argv) == (False, False, False)


def test_own_server_is_offered_in_untrusted_folder() -> None:
    argv = launch(AGENT, LaunchRequest(own_server=OWN)).argv
    assert ("--mcp-config" in argv, argv.count("--strict-mcp-config")) == (True, 1)


def test_own_server_is_added_to_listed_servers() -> None:
    made = launch(AGENT, LaunchRequest(own_server=OWN, servers={"db": SERVER, "hocket": SERVER}))
    at = made.argv.index("--mcp-config")
    listed, ours, following = made.argv[at + 1 : at + 4]
    assert (listed, following) == (f"{RUN_DIRECTORY}/servers.json", "--strict-mcp-config")
    assert json.loads(made.files["servers.json"]) == {"mcpServers": {"db": SERVER, "hocket": SERVER}}
    assert json.loads(ours) == {"mcpServers": {"hocket": IN_STREAM}}
    assert made.argv.count("--strict-mcp-config") == 1


def test_own_tools_are_allowed_without_restricting_others() -> None:
    made = launch(BARE, LaunchRequest(args=("word",), own_server=OWN))
    assert after(made, "--allowedTools") == "mcp__hocket__wait,mcp__hocket__stop"
    assert made.argv[made.argv.index("--allowedTools") + 2].startswith("--")
    assert "--tools" not in made.argv


def test_own_tools_are_allowed_besides_listed_permissions() -> None:
    made = launch(replace(BARE, allowed_tools="Bash(git *) Edit"), LaunchRequest(own_server=OWN))
    assert after(made, "--tools") == "Bash,Edit"
    assert after(made, "--allowedTools") == "Bash(git *),Edit,mcp__hocket__wait,mcp__hocket__stop"


def test_budget_precedes_user_arguments() -> None:
    argv = ("claude", "-p", "--max-budget-usd", "9")
    assert bound(argv, 2.5) == ("claude", "--max-budget-usd", "2.500000", "-p", "--max-budget-usd", "9")


def test_zero_budget_is_smallest_valid_number() -> None:
    assert float(bound(("claude",), 0.0)[2]) > 0


@pytest.mark.parametrize("words", [["--agent", "x"], ["--agent=x"], ["--session-id", "s"]])
def test_agent_and_session_flags_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="cannot be passed on"):
        launch(Agent("claude", "claude", "/bin/claude", "bench"), LaunchRequest(args=tuple(words)))
    launch(
        Agent("claude", "claude", "/bin/claude", "bench"),
        LaunchRequest(args=("--agents-of-mine", "--max-turns=1")),
    )

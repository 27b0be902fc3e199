"""From a request to something that can be started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hocket.cli.access import pick_prompt
from hocket.config.settings import AgentConfig, ChainConfig, ClaudeConfig, Config, Limits, StepConfig
from hocket.errors import (
    BadDirectory,
    ChainSyntaxError,
    ConfigError,
    HocketError,
    NotTrusted,
    ProgramNotFound,
    PromptError,
    UsageError,
)
from hocket.model import BoundChain, Spec
from hocket.workflows.bind import bind, describe
from hocket.workflows.request import StartRequest

NOTHING = Config()


class Place:
    """A directory with programs on its PATH."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "p"
        self.bin = root / "bin"
        for folder in (self.cwd, self.bin):
            folder.mkdir()
        for name in ("planner", "builder", "reviewer"):
            self.program(self.bin / name)

    def program(self, path: Path) -> Path:
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    def request(self, **options: Any) -> StartRequest:
        env = {"PATH": str(self.bin), "HOME": str(self.cwd), "OPENAI_API_KEY": "k", "MINE": "m"}
        return StartRequest(**{"cwd": str(self.cwd), "env": env, "variables": {}, **options})

    def chain(self, config: Config = NOTHING, **options: Any) -> BoundChain:
        bound = bind(self.request(**options), config)
        assert isinstance(bound, BoundChain)
        return bound

    def spec(self, config: Config = NOTHING, **options: Any) -> Spec:
        bound = bind(self.request(**options), config)
        assert isinstance(bound, Spec)
        return bound

    def refused(self, config: Config = NOTHING, **options: Any) -> HocketError:
        with pytest.raises(HocketError) as caught:
            bind(self.request(**options), config)
        assert caught.value.exit_code == 2
        return caught.value


@pytest.mark.parametrize("option", ["prompt", "until", "marker", "dsl"])
def test_invalid_text_is_refused_without_a_server(place: Place, option: str) -> None:
    options: dict[str, Any] = {"dsl": "builder", option: "x\udcff"}
    error = place.refused(**options)
    assert error.message.startswith(f"{option} is not valid UTF-8")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def chain_of(*steps: StepConfig, name: str = "ship", **more: Any) -> Config:
    return Config(chains={name: ChainConfig(name, "f", steps, **more)}, files=("f",))


@pytest.mark.req("S1-49", "S1-02")
def test_chain_text_is_bound_with_its_programs(place: Place) -> None:
    chain = place.chain(dsl="planner -> builder:3", prompt="go", args=("-x",))
    assert chain.name == "planner -> builder:3"
    assert [(step.agent, step.iterations, step.loop) for step in chain.steps] == [
        ("planner", 1, False),
        ("builder", 3, True),
    ]
    first, second = (step.spec for step in chain.steps)
    assert first.argv == (str(place.bin / "planner"), "-x", "go")
    assert (second.cwd, second.loop, second.stdin, second.prompt) == (str(place.cwd), True, "empty", "go")


def test_single_agent_becomes_one_spec(place: Place) -> None:
    spec = place.spec(agent="planner", prompt="go", timeout=9)
    assert (spec.agent, spec.provider, spec.loop, spec.timeout) == ("planner", "executable", False, 9)
    assert spec.argv == (str(place.bin / "planner"), "go")


@pytest.mark.req("S1-B20")
@pytest.mark.parametrize(
    ("dsl", "name"),
    [
        ("planner -> nowhere", "nowhere"),
        ("nowhere:3", "nowhere"),
        ("planner -> ./gone", "./gone"),
        ("planner -> /no/such", "/no/such"),
    ],
)
def test_missing_program_refuses_the_whole_chain(place: Place, dsl: str, name: str) -> None:
    error = place.refused(dsl=dsl)
    assert isinstance(error, ProgramNotFound)
    assert name in error.message


def test_malformed_chain_text_is_refused(place: Place) -> None:
    assert isinstance(place.refused(dsl="a ->"), ChainSyntaxError)
    assert isinstance(place.refused(agent="planner:3"), ChainSyntaxError)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dsl": "planner", "chain": "x"},
        {"agent": "planner", "dsl": "planner"},
        {"agent": "planner", "until": "true"},
        {"dsl": "planner", "until": " "},
        {"dsl": "planner", "until": "a\0"},
        {"dsl": "planner", "marker": "**"},
        {"dsl": "planner", "marker": "a\nb"},
        {"dsl": "planner", "variables": {"lower": "x"}},
    ],
    ids=repr,
)
def test_contradictory_request_is_refused(place: Place, options: dict[str, Any]) -> None:
    assert isinstance(place.refused(**options), UsageError)


@pytest.mark.parametrize("cwd", ["relative", "", "{}/gone", "{}/file", "/a\0b"], ids=ascii)
def test_invalid_directory_is_named(place: Place, cwd: str) -> None:
    (place.cwd / "file").write_text("")
    cwd = cwd.format(place.cwd)
    error = place.refused(dsl="planner", cwd=cwd)
    assert isinstance(error, BadDirectory)
    assert cwd.replace("\0", "\\x00") in error.message


@pytest.mark.req("S1-31", "S1-34", "S1-B19")
def test_configured_chain_is_bound_with_its_settings(place: Place) -> None:
    config = Config(
        agents={"rev": AgentConfig("f", "reviewer", ("-g",), "agent's prompt")},
        chains={
            "ship": ChainConfig(
                "ship",
                "f",
                (StepConfig("planner", 2), StepConfig("rev", 3, ("-s",)), StepConfig("builder")),
                until="make test",
                marker="SHIPPED",
                timeout=60,
            )
        },
        limits=Limits(max_output_mb=1),
        stop_grace=2.0,
        env_pass=("MINE",),
    )
    chain = place.chain(config, chain="ship", args=("-x",))
    assert [(step.agent, step.iterations, step.loop) for step in chain.steps] == [
        ("planner", 2, True),
        ("rev", 3, True),
        ("builder", 1, False),
    ]
    assert (chain.name, chain.until, chain.timeout) == ("ship", "make test", 60)
    spec = chain.steps[1].spec
    assert spec.argv == (str(place.bin / "reviewer"), "-g", "-s", "-x", "agent's prompt")
    assert (spec.marker, spec.stop_grace, spec.max_output) == ("SHIPPED", 2.0, 1024**2)
    assert chain.env == {"PATH": str(place.bin), "HOME": str(place.cwd), "MINE": "m"}
    assert spec.env == {**chain.env, "AGENT_ALLOWED_AGENTS": "null", "AGENT_MCP_SERVERS": "null"}


def test_request_overrides_chain_and_chain_overrides_config(place: Place) -> None:
    config = chain_of(StepConfig("planner", 2), until="a", marker="CHAIN", timeout=5)
    own = place.chain(config, chain="ship", until="b", marker="MINE", timeout=6)
    assert (own.until, own.steps[0].spec.marker, own.timeout) == ("b", "MINE", 6)
    assert place.chain(Config(marker="FILE"), dsl="planner:2").steps[0].spec.marker == "FILE"


@pytest.mark.req("S1-B10", "S1-B08")
def test_unknown_chain_is_refused(place: Place) -> None:
    assert isinstance(place.refused(chain="x"), ConfigError)
    assert "ship" in place.refused(chain_of(StepConfig("planner")), chain="x").message


def test_name_of_a_chain_runs_the_chain(place: Place) -> None:
    config = chain_of(StepConfig("planner"), StepConfig("builder"))
    assert len(place.chain(config, dsl=" ship ").steps) == 2
    assert isinstance(place.refused(config, dsl="ship:2"), ProgramNotFound)


def test_name_of_agent_and_chain_runs_the_agent(place: Place) -> None:
    steps = (StepConfig("builder"), StepConfig("builder"))
    assert len(place.chain(chain_of(*steps, name="planner"), dsl="planner").steps) == 1
    both = Config(agents={"ship": AgentConfig("f", "planner")}, chains={"ship": ChainConfig("ship", "f", steps)})
    assert len(place.chain(both, dsl="ship").steps) == 1


def test_invalid_agent_error_names_the_step(place: Place) -> None:
    error = place.refused(chain_of(StepConfig("planner"), StepConfig("a b")), chain="ship")
    assert "step 2" in error.message


@pytest.mark.req("S1-B12", "S1-33")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["cli", None, "step", "step.md", "chain", "chain.md", "agent", "agent.md"], "cli"),
        ([None, "cli.md", "step", "step.md", "chain", "chain.md", "agent", "agent.md"], "in cli.md"),
        ([None, None, "step", "step.md", "chain", "chain.md", "agent", "agent.md"], "step"),
        ([None, None, None, "step.md", "chain", "chain.md", "agent", "agent.md"], "in step.md"),
        ([None, None, None, None, "chain", "chain.md", "agent", "agent.md"], "chain"),
        ([None, None, None, None, None, "chain.md", "agent", "agent.md"], "in chain.md"),
        ([None, None, None, None, None, None, "agent", "agent.md"], "agent"),
        ([None, None, None, None, None, None, None, "agent.md"], "in agent.md"),
        ([None] * 8, None),
    ],
)
def test_prompt_precedence_is_caller_step_chain_agent(
    place: Place, given: list[str | None], expected: str | None
) -> None:
    for name in ("cli.md", "step.md", "chain.md", "agent.md"):
        (place.cwd / name).write_text(f"in {name}")
    alias = AgentConfig("f", "planner", default_prompt=given[6], default_prompt_file=given[7])
    step = StepConfig("p", prompt=given[2], prompt_file=given[3])
    whole = ChainConfig("ship", "f", (step,), prompt=given[4], prompt_file=given[5])
    config = Config(agents={"p": alias}, chains={"ship": whole})
    prompt = pick_prompt(given[0], given[1], str(place.cwd))
    spec = place.chain(config, chain="ship", prompt=prompt).steps[0].spec
    assert spec.prompt == expected
    assert spec.argv[1:] == ((expected,) if expected else ())


@pytest.mark.req("S1-B12")
def test_missing_prompt_file_refuses_the_chain(place: Place) -> None:
    error = place.refused(chain_of(StepConfig("planner"), StepConfig("builder", prompt_file="gone.md")), chain="ship")
    assert isinstance(error, PromptError)
    assert "gone.md" in error.message


@pytest.mark.req("S1-B11")
def test_variables_are_replaced_in_arguments_prompts_and_files(place: Place) -> None:
    (place.cwd / "auth.md").write_text("file ${NOT_TOUCHED}")
    config = Config(
        agents={"p": AgentConfig("f", "planner", ("--in=${WHAT}",))},
        chains={
            "ship": ChainConfig(
                "ship",
                "f",
                (StepConfig("p", None, ("${WHAT}",), "do ${WHAT}"), StepConfig("p", prompt_file="${WHAT}.md")),
            )
        },
    )
    first, second = place.chain(config, chain="ship", variables={"WHAT": "auth"}, args=("${KEPT}",)).steps
    assert first.spec.argv[1:] == ("--in=auth", "auth", "${KEPT}", "do auth")
    assert second.spec.prompt == "file ${NOT_TOUCHED}"
    error = place.refused(config, chain="ship")
    assert "WHAT" in error.message


def test_unused_variable_is_refused_with_the_used_ones(place: Place) -> None:
    agents = {"p": AgentConfig("f", "planner", ("--in=${WHAT}",))}
    step = StepConfig("p", prompt="do ${TICKET} in ${PLACE}")
    config = Config(agents=agents, chains={"ship": ChainConfig("ship", "f", (step,))})
    given = dict.fromkeys(("WHAT", "TICKET", "PLACE"), "x")
    place.chain(config, chain="ship", variables=given)
    error = place.refused(config, chain="ship", variables={**given, "VERBOSE": "1"})
    assert error.message == "the chain does not use the variable VERBOSE"
    assert error.hint == "it uses TICKET, PLACE, WHAT"
    assert place.refused(config, chain="ship", variables={"TICKT": "x"}).hint == 'did you mean "TICKET"?'
    alone = place.refused(dsl="planner", variables={"VAR": "3"})
    assert alone.hint == "it uses no variables"
    place.chain(dsl="planner", prompt="hi ${VAR}", variables={"VAR": "3"})
    place.chain(dsl="planner", variables={"VAR": "3"}, used_variables=("VAR",))
    assert "VAR" in place.refused(dsl="planner", prompt="${VAR}", prompt_literal=True, variables={"VAR": "3"}).message
    assert "nosuch" in place.refused(dsl="nosuch", variables={"VAR": "3"}).message


@pytest.mark.req("S1-B11")
def test_variables_are_kept_in_literal_prompt(place: Place) -> None:
    typed = place.chain(dsl="planner", prompt="hi ${WHO}", variables={"WHO": "you"})
    assert typed.steps[0].spec.prompt == "hi you"
    assert "WHO" in place.refused(dsl="planner", prompt="hi ${WHO}").message
    piped = place.chain(dsl="planner", prompt="hi ${WHO}", prompt_literal=True)
    assert piped.steps[0].spec.prompt == "hi ${WHO}"
    assert place.spec(agent="planner", prompt="hi ${WHO}").prompt == "hi ${WHO}"


def test_prompt_for_stdin_is_stored(place: Place) -> None:
    config = Config(agents={"p": AgentConfig("f", "planner", prompt_via="stdin")})
    spec = place.chain(config, dsl="p", prompt="x" * 100_000).steps[0].spec
    assert (spec.stdin, spec.prompt, len(spec.argv)) == ("file", "x" * 100_000, 1)
    assert isinstance(place.refused(dsl="planner", prompt="x" * 100_000), PromptError)


# --- Trust --------------------------------------------------------------------------------------------------

WIDE = ("--setting-sources", "user,project")


def said_by(
    project: str | None, agent: str, place: Place, *, alias: Sequence[str] = (), step: Sequence[str] = ()
) -> Any:
    """A configuration whose alias and whose chain one and the same file has, and a claude to run."""
    place.program(place.bin / "claude")
    return Config(
        agents={"a": AgentConfig("/p/hocket.toml", agent, tuple(alias), project=project)},
        chains={
            "ship": ChainConfig("ship", "/p/hocket.toml", (StepConfig("a", None, tuple(step)),), project=project),
        },
    )


def refusal(place: Place, config: Config, **options: Any) -> NotTrusted:
    with pytest.raises(NotTrusted) as caught:
        bind(place.request(**options), config)
    assert caught.value.exit_code == 4
    assert (caught.value.hint or "").endswith(f"hocket trust {place.cwd}")
    return caught.value


@pytest.mark.req("S1-45")
def test_alias_of_untrusted_project_cannot_widen_permissions(place: Place) -> None:
    config = said_by(str(place.cwd), "claude", place, alias=WIDE)
    for options in ({"agent": "a"}, {"dsl": "a:2"}, {"chain": "ship"}):
        error = refusal(place, config, **options)
        assert error.message.startswith('/p/hocket.toml: agent "a" asks for --setting-sources, which ')


@pytest.mark.req("S1-45")
def test_step_of_untrusted_project_cannot_widen_permissions(place: Place) -> None:
    config = said_by(str(place.cwd), "claude", place, step=("--dangerously-skip-permissions",))
    error = refusal(place, config, chain="ship")
    assert error.message.startswith("/p/hocket.toml: chain 'ship': step 1 asks for --dangerously-skip-permissions")
    assert place.chain(config, dsl="a").steps[0].spec.provider == "claude"


@pytest.mark.parametrize("known", ["trusted", "user"])
def test_trusted_arguments_are_passed_unchanged(place: Place, known: str) -> None:
    found = said_by(str(place.cwd) if known == "trusted" else None, "claude", place, alias=WIDE, step=("--continue",))
    trusted = (str(place.cwd),) if known == "trusted" else ()
    config = Config(agents=found.agents, chains=found.chains, trusted_folders=trusted)
    assert place.chain(config, chain="ship").steps[0].spec.argv[-3:] == (*WIDE, "--continue")


def test_typed_arguments_need_no_approval(place: Place) -> None:
    config = said_by(str(place.cwd), "claude", place, alias=("--verbose",), step=("--model", "x"))
    spec = place.chain(config, chain="ship", args=WIDE).steps[0].spec
    assert spec.argv[-5:] == ("--verbose", "--model", "x", *WIDE)


def test_arguments_of_a_program_are_not_checked(place: Place) -> None:
    config = said_by(str(place.cwd), "planner", place, alias=WIDE, step=("--resume",))
    assert place.chain(config, chain="ship").steps[0].spec.argv[1:] == (*WIDE, "--resume")


@pytest.mark.parametrize("field", ["alias", "step"])
def test_arguments_are_checked_after_substitution(place: Place, field: str) -> None:
    config = said_by(str(place.cwd), "claude", place, **{field: ("--set${X}tings={}",)})
    assert "--settings" in refusal(place, config, chain="ship", variables={"X": ""}).message


def test_step_cannot_extend_list_argument_of_user_alias(place: Place) -> None:
    found = said_by(str(place.cwd), "claude", place, step=("Bash",))
    mine = AgentConfig("/u/config.toml", "claude", ("--allowedTools", "Read"))
    assert "Bash" in refusal(place, Config(agents={"a": mine}, chains=found.chains), chain="ship").message


@pytest.mark.req("S1-47", "S1-48")
def test_description_shows_every_step_completely(place: Place) -> None:
    prompt = "first line\nsecond " + "x" * 5000
    config = Config(agents={"p": AgentConfig("f", "planner", prompt_via="stdin")})
    shown = describe(bind(place.request(dsl="builder:3 -> p", prompt=prompt, until="make"), config))
    first, second = shown
    assert (first["step"], first["agent"], first["iterations"], first["loop"]) == (1, "builder", 3, True)
    assert (first["path"], first["cwd"], first["gate"]) == (str(place.bin / "builder"), str(place.cwd), "make")
    assert first["argv"][0] == first["path"]
    assert first["argv"][1] == first["prompt"]
    assert first["prompt"] == prompt
    assert (second["argv"], second["prompt_via"]) == ([str(place.bin / "planner")], "stdin")
    assert second["prompt"] == first["prompt"]


@pytest.mark.req("S1-47")
def test_description_of_single_agent_has_one_step(place: Place) -> None:
    (only,) = describe(place.spec(agent="planner", prompt="short", args=("-v",)))
    assert (only["argv"][1:], only["prompt"], only["prompt_via"], only["gate"]) == (
        ["-v", "short"],
        "short",
        "arg",
        None,
    )
    (bare,) = describe(place.spec(agent="planner", args=("last",)))
    assert (bare["argv"][1:], bare["prompt"], bare["prompt_via"]) == (["last"], None, None)


def test_binding_needs_no_event_loop() -> None:
    code = "import sys, hocket.workflows.bind; print('asyncio' in sys.modules, 'hocket.store' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# --- Servers ------------------------------------------------------------------------------------------------


WITHOUT_OURS = Config(claude=ClaudeConfig(mcp=False))


def servers_of(place: Place, head: str, config: Config = WITHOUT_OURS) -> tuple[Any, Sequence[str]]:
    """What a Claude agent with this in its head is handed as servers, and what is said about the others."""
    place.program(place.bin / "claude")
    (place.cwd / ".claude.json").write_text(
        json.dumps({"mcpServers": {"git": {"command": "g"}, "db": {"command": "d"}}})
    )
    folder, work = place.cwd / ".claude" / "agents", place.cwd / "work"
    for made in (folder, work):
        made.mkdir(parents=True, exist_ok=True)
    (work / ".mcp.json").write_text('{"mcpServers": {"theirs": {"command": "t"}, "db": {"command": "x"}}}')
    (folder / "a.md").write_text(f"---\nname: a\ndescription: d\n{head}\n---\nWork\n")
    spec = place.spec(config, agent="a", cwd=str(work))
    written = spec.files.get("servers.json")
    return (json.loads(written)["mcpServers"] if written else None), spec.notices


@pytest.mark.req("S3-08", "S3-54")
@pytest.mark.parametrize(
    ("head", "chosen"),
    [
        ("", None),
        ("allowedMcpServers: [git]", {"git": {"command": "g"}}),
        ("allowedMcpServers: git, theirs", {"git": {"command": "g"}}),
        ("allowedMcpServers: []", {}),
    ],
)
def test_agent_gets_listed_servers_except_untrusted_ones(place: Place, head: str, chosen: Any) -> None:
    found, _ = servers_of(place, head)
    assert found == chosen


@pytest.mark.req("S3-54", "S3-55")
def test_servers_of_trusted_project_override_the_users(place: Place) -> None:
    trusting = Config(trusted_folders=(str(place.cwd),))
    found, _ = servers_of(place, "allowedMcpServers: [theirs, db]", trusting)
    assert found == {"theirs": {"command": "t"}, "db": {"command": "x"}}


@pytest.mark.req("S3-54")
def test_unknown_server_gives_a_notice(place: Place) -> None:
    found, notices = servers_of(place, "allowedMcpServers: [git, gone]")
    assert list(found) == ["git"]
    assert notices == ("no MCP server 'gone' is known here; a has none",)
    _, (notice,) = servers_of(place, 'allowedMcpServers: ["x\\e[31m"]')
    assert "\x1b" not in notice


def test_user_agent_can_list_servers(place: Place) -> None:
    servers_of(place, "allowedMcpServers: [git]")
    assert json.loads(place.spec(agent="a").files["servers.json"]) == {"mcpServers": {"git": {"command": "g"}}}


def test_project_agent_gets_no_unlisted_user_servers(place: Place) -> None:
    servers_of(place, "")
    theirs = place.cwd / "work" / ".claude" / "agents"
    theirs.mkdir(parents=True)
    (theirs / "b.md").write_text("---\nname: b\ndescription: d\nallowedMcpServers: [git]\n---\nWork\n")
    request = place.request(agent="b", cwd=str(place.cwd / "work"))
    with pytest.raises(NotTrusted, match=r"asks for MCP servers \(git\)"):
        bind(request, NOTHING)


@pytest.mark.req("S4-52")
def test_spec_names_source_and_definition(place: Place) -> None:
    place.program(place.bin / "claude")
    folder = place.cwd / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("---\nname: a\ndescription: d\n---\nWork\n")
    work = place.cwd / "work"
    work.mkdir()
    spec = place.spec(agent="a", cwd=str(work))
    assert (spec.source, spec.definition) == ("global", str(folder / "a.md"))
    (described,) = describe(spec)
    assert (described["source"], described["definition"]) == ("global", str(folder / "a.md"))
    assert place.spec(agent="planner").source == "PATH"

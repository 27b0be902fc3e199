"""Groups, bounds and the blanks of prompts, from a request to a chain that can be started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hocket.chain.variables import PLACEHOLDERS, PREVIOUS
from hocket.config.settings import AgentConfig, ChainConfig, ClaudeConfig, Config, StepConfig
from hocket.errors import ConfigError, HocketError, UsageError
from hocket.model import BoundChain, Bounds, Spec
from hocket.workflows.bind import bind, describe
from hocket.workflows.request import StartRequest


class Place:
    """A directory with three programs on its PATH."""

    def __init__(self, root: Path) -> None:
        self.cwd, self.bin = root / "p", root / "bin"
        for folder in (self.cwd, self.bin):
            folder.mkdir()
        for name in ("planner", "builder", "reviewer"):
            (self.bin / name).write_text("#!/bin/sh\n")
            (self.bin / name).chmod(0o755)

    def bind(self, config: Config, **options: Any) -> BoundChain | Spec:
        env = {"PATH": str(self.bin), "HOME": str(self.cwd)}
        return bind(StartRequest(**{"cwd": str(self.cwd), "env": env, "variables": {}, **options}), config)

    def chain(self, config: Config | None = None, **options: Any) -> BoundChain:
        bound = self.bind(config or Config(), **options)
        assert isinstance(bound, BoundChain)
        return bound

    def refused(self, config: Config | None = None, **options: Any) -> HocketError:
        with pytest.raises(HocketError) as caught:
            self.bind(config or Config(), **options)
        assert caught.value.exit_code == 2
        return caught.value

    def prompts(self, config: Config, **options: Any) -> list[str | None]:
        return [step.spec.prompt for step in self.chain(config, chain="ship", **options).steps]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def ship(*steps: StepConfig, **more: Any) -> Config:
    return Config(chains={"ship": ChainConfig("ship", "f", steps, **more)}, files=("f",))


# --- Groups -------------------------------------------------------------------------------------------------


def test_group_members_share_a_number(place: Place) -> None:
    chain = place.chain(dsl="planner -> (builder:3, reviewer) -> planner -> (builder, reviewer)")
    assert [step.group for step in chain.steps] == [None, 2, 2, None, 4, 4]
    assert [step.loop for step in chain.steps] == [False, True, False, False, False, False]


def test_configured_group_is_bound_like_typed_group(place: Place) -> None:
    config = ship(StepConfig("planner"), StepConfig("builder", 3, group=2), StepConfig("reviewer", group=2))
    configured = place.chain(config, chain="ship").steps
    assert configured == place.chain(dsl="planner -> (builder:3, reviewer)").steps


def test_group_of_one_is_a_step(place: Place) -> None:
    assert [step.group for step in place.chain(dsl="(planner) -> builder").steps] == [None, None]
    assert place.chain(ship(StepConfig("planner", group=1)), chain="ship").steps[0].group is None


def test_consecutive_groups_stay_separate(place: Place) -> None:
    steps = [StepConfig("planner", group=number) for number in (1, 1, 2, 2)]
    assert [step.group for step in place.chain(ship(*steps), chain="ship").steps] == [1, 1, 2, 2]


def test_error_names_the_group_member(place: Place) -> None:
    config = ship(StepConfig("planner"), StepConfig("builder", group=2), StepConfig("a b", group=2))
    assert "step 2, member 2" in place.refused(config, chain="ship").message


@pytest.mark.parametrize("agent", ["unknown", "a b"])
def test_error_names_the_step_of_several(place: Place, agent: str) -> None:
    config = ship(StepConfig("planner"), StepConfig(agent))
    assert "f: chain 'ship': step 2" in place.refused(config, chain="ship").message
    assert "step 2" in place.refused(dsl=f"planner -> {agent}").message
    assert "step 1, member 2" in place.refused(dsl=f"(planner, {agent})").message


def test_error_of_single_step_has_no_number(place: Place) -> None:
    assert "step 1" not in place.refused(dsl="unknown").message


def test_missing_variable_error_names_the_step(place: Place) -> None:
    config = ship(StepConfig("planner"), StepConfig("builder", args=("${X}",)))
    assert "step 2: the variable X has no value" in place.refused(config, chain="ship").message


def test_iterations_in_agent_name_give_a_hint(place: Place) -> None:
    error = place.refused(ship(StepConfig("planner:3")), chain="ship")
    assert 'step 1, "agent"' in error.message
    assert error.hint == 'to repeat it, write "iterations" for the step: planner, 3'


def test_description_numbers_steps_from_one(place: Place) -> None:
    told = describe(place.chain(dsl="planner -> (builder, reviewer) -> planner"))
    assert [(step["step"], step["member"]) for step in told] == [(1, None), (2, 1), (2, 2), (3, None)]


# --- Bounds -------------------------------------------------------------------------------------------------


def test_limit_precedence_is_request_step_chain(place: Place) -> None:
    config = ship(
        StepConfig("planner", 2, idle_timeout=2, failures=2),
        StepConfig("builder"),
        idle_timeout=9,
        failures=9,
        no_progress=9,
    )
    first, second = (step.bounds for step in place.chain(config, chain="ship").steps)
    assert (first.idle_timeout, first.failures, first.no_progress) == (2, 2, 9)
    assert (second.idle_timeout, second.failures, second.no_progress) == (9, 9, 9)
    typed = place.chain(config, chain="ship", idle_timeout=1, failures=1, no_progress=1)
    assert {(one.idle_timeout, one.failures, one.no_progress) for one in (step.bounds for step in typed.steps)} == {
        (1, 1, 1)
    }
    assert {step.spec.idle_timeout for step in typed.steps} == {1}


def test_request_and_step_have_separate_budgets(place: Place) -> None:
    config = ship(StepConfig("planner", budget_usd=1), StepConfig("builder"), budget_usd=5, budget_tokens=50)
    chain = place.chain(config, chain="ship")
    assert (chain.bounds.budget_usd, chain.bounds.budget_tokens) == (5, 50)
    assert [(one.bounds.budget_usd, one.bounds.budget_tokens) for one in chain.steps] == [(1, None), (None, None)]
    assert [one.spec.budget_usd for one in chain.steps] == [None, None]
    typed = place.chain(config, chain="ship", budget_usd=2)
    assert (typed.bounds.budget_usd, typed.bounds.budget_tokens) == (2, 50)
    assert typed.steps[0].bounds.budget_usd == 1


def test_chain_setting_precedence_is_request_then_file(place: Place) -> None:
    config = ship(StepConfig("planner"), gate_timeout=7, on_lost="retry", on_question="ask")
    chain = place.chain(config, chain="ship")
    assert (chain.gate_timeout, chain.on_lost, chain.on_question) == (7, "retry", "ask")
    typed = place.chain(config, chain="ship", gate_timeout=8, on_lost="ask", on_question="fail")
    assert (typed.gate_timeout, typed.on_lost, typed.on_question) == (8, "ask", "fail")
    plain = place.chain(dsl="planner")
    assert (plain.gate_timeout, plain.on_lost, plain.bounds) == (None, "ask", Bounds())


@pytest.mark.parametrize(
    ("agents", "typed", "chains"),
    [
        ("deny", None, "ask"),
        ("ask", None, "ask"),
        ("fail", None, "fail"),
        ("deny", "deny", "deny"),
        ("ask", "deny", "deny"),
    ],
)
def test_chain_asks_unless_configured_otherwise(place: Place, agents: str, typed: str | None, chains: str) -> None:
    config = Config(claude=ClaudeConfig(on_question=agents))
    chain = place.chain(config, dsl="planner", on_question=typed)
    assert (chain.on_question, chain.steps[0].spec.on_question) == (chains, typed or agents)
    named = ship(StepConfig("planner"), on_question="deny")
    assert place.chain(named, chain="ship").on_question == "deny"


def test_step_gate_is_replaced_by_gate_of_request(place: Place) -> None:
    config = ship(StepConfig("planner", until="a", timeout=3), StepConfig("builder"), until="b")
    chain = place.chain(config, chain="ship")
    assert (chain.until, [step.until for step in chain.steps]) == ("b", ["a", None])
    assert [step.spec.timeout for step in chain.steps] == [3, None]
    typed = place.chain(config, chain="ship", until="c")
    assert (typed.until, [step.until for step in typed.steps]) == ("c", [None, None])


def test_single_agent_has_budget_and_idle_timeout(place: Place) -> None:
    spec = place.bind(Config(), agent="planner", budget_usd=1.5, budget_tokens=9, idle_timeout=4)
    assert isinstance(spec, Spec)
    assert (spec.budget_usd, spec.budget_tokens, spec.idle_timeout) == (1.5, 9, 4)
    assert describe(spec)[0]["limits"] == {"budget_usd": 1.5, "budget_tokens": 9, "idle_timeout": 4}


@pytest.mark.parametrize(
    "options",
    [
        {"agent": "planner", "gate_timeout": 3},
        {"agent": "planner", "failures": 3},
        {"agent": "planner", "no_progress": 3},
        {"agent": "planner", "on_lost": "retry"},
    ],
    ids=repr,
)
def test_chain_option_is_refused_for_single_agent(place: Place, options: dict[str, Any]) -> None:
    assert isinstance(place.refused(**options), UsageError)


def test_description_has_gate_and_limits(place: Place) -> None:
    config = ship(
        StepConfig("planner", until="a", timeout=3, budget_usd=1),
        until="b",
        budget_tokens=9,
        timeout=60,
        gate_timeout=5,
    )
    told = describe(place.chain(config, chain="ship"))[0]
    assert (told["gate"], told["gate_timeout"], told["on_lost"]) == ("a", 5, "ask")
    assert told["limits"] == {"budget_usd": 1, "timeout": 3}
    assert told["chain_limits"] == {"budget_tokens": 9, "timeout": 60}


# --- Blanks -------------------------------------------------------------------------------------------------


def test_only_template_prompts_are_kept(place: Place) -> None:
    config = ship(
        StepConfig("planner", prompt="Plan: {{task}}"),
        StepConfig("builder", prompt="Build {{ previous.result }}"),
        StepConfig("reviewer", prompt="Look"),
    )
    assert place.prompts(config, prompt="old sessions") == [
        "Plan: {{task}}",
        "Build {{ previous.result }}",
        "old sessions",
    ]
    assert place.chain(config, chain="ship", prompt="old ${X}", variables={"X": "y"}).task == "old y"


def test_prompt_file_can_be_a_template(place: Place) -> None:
    (place.cwd / "form.md").write_text("Do {{task}} as {{unknown}} said")
    config = ship(StepConfig("planner", prompt_file="form.md"), StepConfig("builder", prompt_file="gone.md"))
    assert place.prompts(config, prompt="it") == ["Do {{task}} as {{unknown}} said", "it"]


def test_default_prompt_of_alias_can_be_a_template(place: Place) -> None:
    config = Config(agents={"r": AgentConfig("f", "reviewer", default_prompt="Review {{task}}")})
    assert place.chain(config, dsl="r -> planner", prompt="x").steps[0].spec.prompt == "Review {{task}}"


def test_chain_prompt_is_the_task_without_caller_prompt(place: Place) -> None:
    config = ship(StepConfig("planner", prompt="Plan: {{task}}"), StepConfig("builder"), prompt="Ship it")
    assert place.prompts(config) == ["Plan: {{task}}", "Ship it"]
    assert place.chain(config, chain="ship").task == "Ship it"


def test_missing_task_of_template_is_refused(place: Place) -> None:
    error = place.refused(ship(StepConfig("planner", prompt="Plan: {{task}}")), chain="ship")
    assert "step 1" in error.message
    assert error.hint == "give a prompt with -p"


@pytest.mark.parametrize("prompt", [None, "a task {{previous.reslt}}"])
@pytest.mark.parametrize("written", ["{{task}} {{previous.reslt}}", "{{previous.reslt}}"])
def test_unknown_placeholder_error_has_a_suggestion(place: Place, written: str, prompt: str | None) -> None:
    config = ship(StepConfig("planner"), StepConfig("builder", prompt=written), prompt="x")
    error = place.refused(config, chain="ship", prompt=prompt)
    assert isinstance(error, ConfigError)
    assert "step 2" in error.message
    assert "{{previous.reslt}}" in error.message
    assert error.hint == 'did you mean "previous.result"?'


def test_typed_braces_are_kept(place: Place) -> None:
    assert place.chain(dsl="planner", prompt="say {{hello}}").steps[0].spec.prompt == "say {{hello}}"


def test_only_previous_result_is_filled_into_typed_prompt(
    place: Place,
) -> None:
    config = ship(StepConfig("planner", prompt="Plan: {{task}}"), StepConfig("builder"))

    def placeholders(**options: Any) -> list[tuple[str, ...]]:
        return [step.spec.blanks for step in place.chain(config, chain="ship", **options).steps]

    assert placeholders(prompt="{{task}} {{previous.result}}") == [PLACEHOLDERS, (PREVIOUS,)]
    assert placeholders(prompt="{{previous.result}}", prompt_literal=True) == [PLACEHOLDERS, ()]
    assert placeholders(prompt="{{previous.result}}", variables=None) == [PLACEHOLDERS, ()]


def test_description_fills_in_only_the_task(place: Place) -> None:
    config = ship(StepConfig("planner", prompt="Plan {{task}}"), StepConfig("builder", prompt="{{previous.result}}"))
    first, second = describe(place.chain(config, chain="ship", prompt="a {{task}}"))
    assert (first["prompt"], first["argv"][-1]) == ("Plan a {{task}}", "Plan a {{task}}")
    assert second["prompt"] == "{{previous.result}}"


def test_template_of_single_agent_is_filled_at_once(place: Place) -> None:
    config = Config(agents={"r": AgentConfig("f", "reviewer", default_prompt="Review {{task}}{{previous.result}}")})
    spec = place.bind(config, agent="r", prompt="this {{task}}")
    assert isinstance(spec, Spec)
    assert (spec.prompt, spec.argv[-1]) == ("Review this {{task}}", "Review this {{task}}")
    assert "{{task}}" in place.refused(config, agent="r").message

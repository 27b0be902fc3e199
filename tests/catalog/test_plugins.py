"""Agents of the CLI's plugins: which plugins count, what their agents are called, and what is wrong with the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from catalog.plugin_user import ALPHA, User, head, put

from hocket.catalog.entries import PLUGIN, SearchedPlace
from hocket.catalog.plugins import definition
from hocket.errors import BadDefinition
from hocket.providers.definition_files import DUPLICATE, HIDDEN, LOADED_DESPITE_ERRORS, ODD, REFUSED, SKIPPED


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


# --- Which plugins count ---


def test_user_without_plugins_has_none(tmp_path: Path) -> None:
    user = User(tmp_path)
    assert user.found() == []
    user.env = {}
    assert user.found() == []


def test_agents_of_enabled_plugin_are_listed(user: User) -> None:
    folder = user.offer("alpha", {"agents/one.md": head("one", "does one", model="haiku", tags="a, b")})
    assert user.names() == []
    user.switch(ALPHA)
    (found,) = user.found()
    assert found.place == SearchedPlace(PLUGIN, str(folder / "agents"), True, 1)
    (entry,) = found.entries
    assert (entry.name, entry.source, entry.path) == ("alpha:one", PLUGIN, str(folder / "agents/one.md"))
    assert (entry.description, entry.tags, entry.project) == ("does one", ("a", "b"), None)
    assert entry.metadata["name"] == "one"
    assert found.problems == ()


@pytest.mark.parametrize("on", [False, [], ["1.0.0"]], ids=repr)
def test_plugin_is_disabled_unless_true(user: User, on: Any) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA, on=on)
    assert (user.names(), user.problems()) == ([], [])


@pytest.mark.parametrize("on", ["yes", 1, None, {}], ids=repr)
def test_invalid_value_voids_the_settings_file(user: User, on: Any) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    path = put(user.home / ".claude/settings.json", {"enabledPlugins": {ALPHA: True, "beta@market": on}})
    assert user.names() == []
    assert [(problem.path, problem.kind) for problem in user.problems()] == [(str(path), SKIPPED)]


def test_broken_settings_do_not_hide_other_settings(user: User) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA)
    path = put(user.project / ".claude/settings.json", "{\n  broken")
    assert user.names() == ["alpha:one"]
    assert [(problem.path, problem.line) for problem in user.problems()] == [(str(path), 2)]


def test_settings_precedence_ends_with_managed_settings(user: User) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    said = []
    for where, on in (("user", True), ("project", False), ("local", True), ("managed", False)):
        user.switch(ALPHA, where=where, on=on)
        said.append(bool(user.names()))
    assert said == [True, False, True, False]


def test_untrusted_project_cannot_enable_plugins(user: User) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.offer("beta", {"agents/two.md": head("two")})
    user.switch(ALPHA)
    put(user.project / ".claude/settings.json", {"enabledPlugins": {"beta@market": True}})
    assert user.names(trusted=False) == ["alpha:one"]
    assert user.names(trusted=True) == ["alpha:one", "beta:two"]


@pytest.mark.parametrize("off", [False, ["1.0.0"]], ids=repr)
@pytest.mark.parametrize("where", ["project", "local"])
def test_untrusted_project_can_disable_plugins(user: User, where: str, off: Any) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA)
    user.switch(ALPHA, where=where, on=off)
    assert (user.names(trusted=False), user.problems(trusted=False)) == ([], [])


def test_local_settings_override_untrusted_project_settings(user: User) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA)
    user.switch(ALPHA, where="project", on=False)
    user.switch(ALPHA, where="local", on=True)
    assert user.names(trusted=False) == ["alpha:one"]
    user.switch(ALPHA, on=False)
    assert user.names(trusted=False) == []


def test_local_settings_of_repository_root_win(user: User) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA)
    (user.project / ".git").mkdir()
    put(user.project / "sub/.claude/settings.local.json", {"enabledPlugins": {ALPHA: True}})
    user.switch(ALPHA, where="local", on=False)
    assert user.names(trusted=False, cwd=user.project / "sub") == []
    user.switch(ALPHA, where="local", on=True)
    put(user.project / "sub/.claude/settings.local.json", {"enabledPlugins": {ALPHA: False}})
    assert user.names(trusted=False, cwd=user.project / "sub") == ["alpha:one"]


def test_worktree_uses_local_settings_of_its_repository(user: User, tmp_path: Path) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA)
    tree, administration = tmp_path / "tree", user.project / ".git/worktrees/tree"
    put(administration / "commondir", "../..\n")
    put(administration / "gitdir", f"{tree / '.git'}\n")
    put(tree / ".git", f"gitdir: {administration}\n")
    (tree / "sub").mkdir()
    put(tree / ".claude/settings.local.json", {"enabledPlugins": {ALPHA: False}})
    assert user.names(trusted=False, cwd=tree / "sub") == ["alpha:one"]
    user.switch(ALPHA, where="local", on=False)
    assert user.names(trusted=False, cwd=tree / "sub") == []


def test_broken_settings_are_reported_once(user: User) -> None:
    (user.project / ".git").mkdir()
    local = put(user.project / ".claude/settings.local.json", "{")
    assert [problem.path for problem in user.problems()] == [str(local)]
    local.unlink()
    own = put(user.home / ".claude/settings.json", "{")
    assert [problem.path for problem in user.problems(cwd=user.home)] == [str(own)]


def test_project_settings_above_are_ignored(user: User) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA, where="project")
    (user.project / ".git").mkdir()
    (user.project / "sub").mkdir()
    assert (user.names(), user.names(cwd=user.project / "sub")) == (["alpha:one"], [])


def test_project_marketplace_does_not_count(user: User) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    (user.kept / "known_marketplaces.json").unlink()
    extra = {"market": {"source": {"source": "directory", "path": str(user.market)}}}
    asked = {"enabledPlugins": {ALPHA: True}, "extraKnownMarketplaces": extra}
    put(user.project / ".claude/settings.json", asked)
    assert user.names() == []
    put(user.home / ".claude/settings.json", asked)
    assert user.names() == ["alpha:one"]


def test_variables_relocate_settings_and_plugins(user: User, tmp_path: Path) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA)
    (user.home / ".claude").rename(tmp_path / "moved")
    assert user.names() == []
    assert user.names(CLAUDE_CONFIG_DIR=str(tmp_path / "moved")) == ["alpha:one"]
    assert user.names(CLAUDE_CONFIG_DIR="../moved") == ["alpha:one"]
    (tmp_path / "moved/plugins").rename(tmp_path / "elsewhere")
    moved = {"CLAUDE_CONFIG_DIR": str(tmp_path / "moved")}
    assert user.names(**moved) == []
    assert user.names(**moved, CLAUDE_CODE_PLUGIN_CACHE_DIR=str(tmp_path / "elsewhere")) == ["alpha:one"]


# --- Where a plugin lies ---


@pytest.fixture
def remote(user: User, tmp_path: Path) -> User:
    """A marketplace from far away, one of whose plugins was installed."""
    user.offer("alpha", {"agents/offered.md": head("offered")})
    user.switch(ALPHA)
    put(user.kept / "known_marketplaces.json", {"market": user.known("github", user.market)})
    for copy in ("a", "b"):
        put(tmp_path / copy / "agents/x.md", head(copy))
    return user


def test_remote_plugin_is_read_where_installed(remote: User, tmp_path: Path) -> None:
    assert remote.names() == []
    assert "not installed" in remote.problems()[0].reason
    remote.installed(**{ALPHA: [remote.record(tmp_path / "a")]})
    assert remote.names() == ["alpha:a"]
    remote.installed(**{ALPHA: remote.record(tmp_path / "a")})
    assert remote.names() == ["alpha:a"]


def test_first_existing_applicable_installation_is_used(remote: User, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    elsewhere = remote.record(a, "project", projectPath=str(tmp_path / "proj"))
    here = remote.record(a, "project", projectPath=str(remote.project))
    gone, users = remote.record(tmp_path / "gone"), remote.record(b)
    for records, names in (
        ([elsewhere], []),
        ([elsewhere, users], ["alpha:b"]),
        ([gone, users], ["alpha:b"]),
        ([here, users], ["alpha:a"]),
        ([users, here], ["alpha:b"]),
    ):
        remote.installed(**{ALPHA: records})
        assert remote.names() == names
    (remote.project / "sub").mkdir()
    remote.installed(**{ALPHA: [here]})
    assert remote.names(cwd=remote.project / "sub") == ["alpha:a"]


@pytest.mark.parametrize(
    ("source", "root", "names"),
    [
        ("./alpha", None, ["alpha:one"]),
        ("alpha", None, []),
        ("alpha", "./", ["alpha:one"]),
        ("./", None, ["alpha:top"]),
        ("./../market/alpha", None, []),
        (7, None, []),
    ],
    ids=repr,
)
def test_plugin_must_be_inside_its_marketplace(user: User, source: Any, root: str | None, names: list[str]) -> None:
    user.offer("alpha", {"agents/one.md": head("one")}, source=source)
    put(user.market / "agents/top.md", head("top"))
    user.publish(**({"metadata": {"pluginRoot": root}} if root else {}))
    user.switch(ALPHA)
    assert user.names() == names


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("known_marketplaces.json", "{broken"),
        ("known_marketplaces.json", {"market": 5}),
        ("../../../market/.claude-plugin/marketplace.json", "{broken"),
        ("../../../market/.claude-plugin/marketplace.json", {"name": "market", "plugins": []}),
        ("../../../market/.claude-plugin/marketplace.json", {"owner": {}, "plugins": [7, {"name": "else"}]}),
        ("../../../market/alpha/.claude-plugin/plugin.json", "{broken"),
        ("../../../market/alpha/.claude-plugin/plugin.json", {}),
        ("../../../market/alpha/.claude-plugin/plugin.json", {"name": "al pha"}),
        ("../../../market/alpha/.claude-plugin/plugin.json", {"name": "alpha", "version": 7}),
        ("../../../market/alpha/.claude-plugin/plugin.json", {"name": "alpha", "agents": 5}),
        ("../../../market/alpha/.claude-plugin/plugin.json", {"name": "alpha", "agents": ["./agents/"]}),
    ],
    ids=lambda value: repr(value)[-40:],
)
def test_unloadable_plugin_is_reported_at_its_settings(user: User, file: str, content: Any) -> None:
    user.offer("alpha", {"agents/one.md": head("one")})
    settings = user.switch(ALPHA)
    put(user.kept / file, content)
    assert user.names() == []
    last = user.problems()[-1]
    assert (last.path, last.kind, last.cli_loads) == (str(settings), SKIPPED, False)
    assert "'alpha@market'" in last.reason


def test_later_plugin_of_a_name_wins(user: User) -> None:
    user.offer("alpha", {"agents/same.md": head("same", "first"), "agents/a.md": head("a")})
    user.offer("beta", {"agents/same.md": head("same", "second")}, {"name": "alpha"})
    user.switch(ALPHA, "beta@market")
    assert user.entries()["alpha:same"].description == "second"
    assert user.names() == ["alpha:a", "alpha:same"]


# --- Which files count, and under which names ---


def test_folders_are_part_of_the_name(user: User) -> None:
    user.offer("alpha", {"agents/a.md": head("x"), "agents/s/b.md": head("x"), "agents/s/d.md/c.md": head("x")})
    user.switch(ALPHA)
    assert user.names() == ["alpha:s:d.md:x", "alpha:s:x", "alpha:x"]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("plain", "plain"), ("a b", "a b"), ("'a:b'", "a:b"), ("-x", "-x"), ("../evil", "../evil"),
        ("123", "123"), ("1.10", "1.1"), ("1.0", "1"), ("0x1F", "31"), ("1e3", "1000"), ("-0", "0"), ("1e21", "1e+21"),
        (".5", "0.5"), ("true", "true"),
        ("[a, b]", "a,b"), ("{a: 1}", "[object Object]"), ("", "file"), ("''", "file"), ("null", "file"),
        ("x" * 256, "x" * 256), ("x" * 257, "file"),
    ],
    ids=lambda value: value[:12],
)  # fmt: skip
def test_agent_name_follows_the_cli(user: User, written: str, name: str) -> None:
    user.offer("alpha", {"agents/file.md": head(written)})
    user.switch(ALPHA)
    assert user.names() == [f"alpha:{name}"]


@pytest.mark.parametrize(
    "content",
    ["just text\n", "", "---\nname: x\ndescription: d\n", "---\nname: x\n  a: [\n b: }\n---\nbody\n", "\n" + head("x")],
    ids=repr,
)
def test_file_without_frontmatter_is_named_by_file(user: User, content: str) -> None:
    folder = user.offer("alpha", {"agents/file.md": content})
    user.switch(ALPHA)
    assert user.names() == ["alpha:file"]
    (problem,) = user.problems()
    assert (problem.path, problem.kind, problem.cli_loads) == (
        str(folder / "agents/file.md"),
        LOADED_DESPITE_ERRORS,
        True,
    )


def test_other_files_among_agents_are_reported(user: User, tmp_path: Path) -> None:
    folder = user.offer(
        "alpha",
        {
            "agents/x.deprecated.md": head("old"),
            "agents/upper.MD": head("upper"),
            "agents/notes.txt": "no agent",
            "agents/.hidden.md": head("hidden"),
            "agents/large.md": head("large") + "x" * 300_000,
            "agents/eager.md": head("eager", permissionMode="bypassPermissions", hooks="{}", mcpServers="[x]"),
        },
    )
    put(tmp_path / "outside.md", head("outside"))
    (folder / "agents/link.md").symlink_to(tmp_path / "outside.md")
    (folder / "agents/folder").symlink_to(tmp_path)
    user.switch(ALPHA)
    assert user.names() == ["alpha:eager", "alpha:hidden", "alpha:upper"]
    told = [(os.path.basename(p.path), p.kind, p.cli_loads, p.line) for p in user.problems()]
    assert told == [
        ("eager.md", ODD, True, 4),
        ("eager.md", ODD, True, 5),
        ("eager.md", ODD, True, 6),
        ("large.md", REFUSED, True, 1),
        ("link.md", SKIPPED, False, None),
        ("x.deprecated.md", HIDDEN, True, 1),
    ]


def test_unencodable_names_are_not_listed(user: User) -> None:
    folder = user.offer("alpha", {"agents/one.md": head("one"), "agents/half.md": head('"\\ud800"')})
    os.mkdir(os.fsencode(folder / "agents") + b"/\xff")
    put(folder / "agents" / os.fsdecode(b"\xff.md"), head("strange"))
    user.offer("beta", {"agents/b.md": head("b")}, {"name": "be\ud800ta"})
    user.switch(ALPHA, "beta@market")
    for text in (*user.names(), *(problem.path + problem.reason for problem in user.problems())):
        text.encode()
    assert "alpha:one" in user.names()
    assert [p.kind for p in user.problems() if "\ufffd" in p.path] == [REFUSED, REFUSED]


@pytest.mark.parametrize(
    ("written", "told"),
    [("5", "5"), ("true", "true"), ("'  b '", "b"), ("''", None), ("[a]", None), ("{a: 1}", None)],
)
def test_agent_description_follows_the_cli(user: User, written: str, told: str | None) -> None:
    user.offer("alpha", {"agents/a.md": head("a", written)})
    user.switch(ALPHA)
    assert user.entries()["alpha:a"].description == (told or "Agent from alpha plugin")


def test_last_file_of_a_name_wins(user: User) -> None:
    user.offer("alpha", {"agents/a.md": head("same", "a"), "agents/b.md": head("same", "b")})
    user.switch(ALPHA)
    assert user.entries()["alpha:same"].description == "b"
    assert [(os.path.basename(p.path), p.kind) for p in user.problems()] == [("a.md", DUPLICATE)]


@pytest.mark.parametrize(
    ("manifest", "entry", "names"),
    [
        (None, {}, ["alpha:n"]),
        (False, {}, ["alpha:n"]),
        ({"name": "other"}, {}, ["other:n"]),
        ({"name": "alpha", "agents": "./x/y.md"}, {}, ["alpha:y"]),
        ({"name": "alpha", "agents": []}, {}, []),
        ({"name": "alpha", "agents": ["./x/y.md", "./x/gone.md"]}, {}, ["alpha:y"]),
        ({"name": "alpha", "agents": ["./../beta/agents/b.md"]}, {}, []),
        (None, {"agents": ["./x/y.md"]}, ["alpha:n", "alpha:y"]),
        ({"name": "alpha", "agents": ["./x/z.md"]}, {"agents": ["./x/y.md"]}, ["alpha:y", "alpha:z"]),
    ],
    ids=repr,
)
def test_manifest_replaces_folder_and_marketplace_adds(
    user: User, manifest: Any, entry: dict[str, Any], names: list[str]
) -> None:
    files = {"agents/n.md": head("n"), "x/y.md": head("y"), "x/z.md": head("z")}
    user.offer("beta", {"agents/b.md": head("b")})
    user.offer("alpha", files, manifest, **entry)
    user.switch(ALPHA)
    assert user.names() == names


def test_number_of_plugin_files_is_bounded(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.catalog.plugins.MAX_FILES", 3)
    user.offer("alpha", {f"agents/a{number}.md": head(f"a{number}") for number in range(5)})
    user.switch(ALPHA)
    assert len(user.names()) == 3
    assert [problem.kind for problem in user.problems()] == [REFUSED]


def test_every_file_read_is_recorded(user: User) -> None:
    from hocket.catalog.file_probe import FileProbe
    from hocket.catalog.plugins import plugins

    folder = user.offer("alpha", {"agents/s/one.md": head("one")})
    settings, look = user.switch(ALPHA), FileProbe()
    plugins(look, str(user.project), user.env, trusted=True, managed=str(user.managed))
    for path in (
        settings,
        user.project / ".claude/settings.json",
        user.managed,
        user.kept / "known_marketplaces.json",
        user.kept / "installed_plugins.json",
        user.market / ".claude-plugin/marketplace.json",
        folder / ".claude-plugin/plugin.json",
        folder / "agents",
        folder / "agents/s",
        folder / "agents/s/one.md",
    ):
        assert str(path) in look.seen


# --- What they are told ---


def defined(user: User, name: str) -> Any:
    return definition(user.entries()[name])


def test_definition_has_cli_fields_and_substituted_paths(user: User) -> None:
    wide = "permissionMode: plan\nhooks: {}\nmcpServers: [x]\n"
    text = f"---\nname: one\ndescription: d\ntools: Read\nmodel: opus\n{wide}---\n"
    folder = user.offer("alpha", {"agents/one.md": text + "In ${CLAUDE_PLUGIN_ROOT}, ${CLAUDE_PLUGIN_DATA}, $HOME.\n"})
    user.switch(ALPHA)
    made = defined(user, "alpha:one")
    assert (made.name, made.path) == ("alpha:one", str(folder / "agents/one.md"))
    prompt = f"In {folder}, {user.kept}/data/alpha-market, $HOME."
    assert made.fields == {"description": "d", "tools": ["Read"], "model": "opus", "prompt": prompt}
    json.dumps(made.fields)


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("just text\n", "just text"),
        ("---\nname: x\n  a: [\n b: }\n---\nbody\n", "body"),
        ("---\nname: x\n", "---\nname: x"),
        ("---\nname: file\n---\nbody\n", "body"),
    ],
    ids=repr,
)
def test_missing_description_gets_the_cli_default(user: User, content: str, prompt: str) -> None:
    user.offer("alpha", {"agents/file.md": content})
    user.switch(ALPHA)
    assert defined(user, "alpha:file").fields == {"description": "Agent from alpha plugin", "prompt": prompt}


def test_name_with_colon_keeps_its_restrictions(user: User) -> None:
    user.offer("alpha", {"agents/file.md": head("'a:b'", tools="Read")})
    user.switch(ALPHA)
    assert defined(user, "alpha:a:b").fields["tools"] == ["Read"]


@pytest.mark.parametrize("spelled", ["{}/a/", "{}//a", "{}/./a//", "{}/b/../a"])
def test_spelling_of_install_path_is_ignored(remote: User, tmp_path: Path, spelled: str) -> None:
    put(tmp_path / "a/.claude-plugin/plugin.json", {"name": "alpha", "agents": ["./agents/x.md"]})
    record = remote.record(tmp_path / "a") | {"installPath": spelled.format(tmp_path)}
    remote.installed(**{ALPHA: [record]})
    assert remote.entries()["alpha:a"].path == str(tmp_path / "a/agents/x.md")
    assert defined(remote, "alpha:a").name == "alpha:a"


def test_agent_whose_file_is_gone_cannot_run(user: User) -> None:
    folder = user.offer("alpha", {"agents/one.md": head("one")})
    user.switch(ALPHA)
    entry = user.entries()["alpha:one"]
    (folder / "agents/one.md").unlink()
    with pytest.raises(BadDefinition, match="does not exist"):
        definition(entry)

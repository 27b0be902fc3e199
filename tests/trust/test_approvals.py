"""Approvals: stored with their content, compared byte for byte, and void when the record is damaged."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from patience import PATIENCE

from hocket.config.loading import load
from hocket.config.settings import Config, is_wider
from hocket.errors import HomeError, NotTrusted
from hocket.trust import approvals
from hocket.trust.approvals import FILE, FOLDER, Approvals, not_trusted
from hocket.trust.check import check_configuration
from hocket.trust.folder_contents import COVERED_FILES, MAX_FILE, MAX_KEPT, Cover, digest, joined


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def trust(home: Path, *folders: Path) -> None:
    cover = Approvals(Config(home=str(home))).cover
    for folder in folders:
        approvals.approve(str(home), FOLDER, str(folder), cover.folder(str(folder)))


def trust_file(home: Path, path: Path) -> None:
    approvals.approve(str(home), FILE, str(path.resolve()), path.read_bytes())


def trusts(home: Path, folder: Path) -> bool:
    return Approvals(load(str(folder), str(home))).trusts(str(folder))


# --- The record ---------------------------------------------------------------------------------------------


def test_approval_and_content_are_stored_privately(home: Path, project: Path) -> None:
    path = put(project / "a.md", "content")
    trust_file(home, path)
    record = json.loads((home / "trust.json").read_text())
    assert (record["version"], list(record["files"]), record["folders"]) == (1, [str(path)], {})
    entry = record["files"][str(path)]
    assert (home / "trust" / entry["sha256"]).read_text() == "content"
    modes = {stat.S_IMODE(one.stat().st_mode) for one in (home / "trust.json", home / "trust" / entry["sha256"])}
    assert (modes, stat.S_IMODE((home / "trust").stat().st_mode)) == ({0o600}, 0o700)


def test_reading_approvals_writes_nothing(home: Path, project: Path) -> None:
    assert not trusts(home, project)
    assert not approvals.withdraw(str(home), FILE, str(project / "a.md"))
    assert list(home.iterdir()) == []


def test_content_is_removed_with_its_approval(home: Path, project: Path) -> None:
    path = put(project / "a.md", "one")
    trust_file(home, path)
    path.write_text("two")
    trust_file(home, path)
    assert [(one.name, one.read_text()) for one in (home / "trust").iterdir()] == [(digest(b"two"), "two")]
    assert approvals.withdraw(str(home), FILE, str(path))
    assert list((home / "trust").iterdir()) == []
    assert not Approvals(load(str(project), str(home))).trusts_file(str(path))


def test_large_content_is_stored_as_hash_only(home: Path, project: Path) -> None:
    pin = approvals.approve(str(home), FOLDER, str(project), b"x" * (MAX_KEPT + 1))
    assert list((home / "trust").iterdir()) == []
    assert approvals.kept(str(home), pin) is None


def test_changed_stored_content_is_not_returned(home: Path, project: Path) -> None:
    pin = approvals.approve(str(home), FILE, str(project / "a.md"), b"as it was")
    assert approvals.kept(str(home), pin) == b"as it was"
    (home / "trust" / pin.sha256).write_bytes(b"as it was not")
    assert approvals.kept(str(home), pin) is None


def test_concurrent_approvals_are_all_recorded(home: Path, project: Path) -> None:
    program = (
        "import sys\nfrom hocket.trust import approvals as pins\nsys.stdin.read(1)\n"
        "pins.approve(sys.argv[1], pins.FILE, sys.argv[2], b'x')"
    )
    paths = [str(project / f"{number}.md") for number in range(6)]
    reading, writing = os.pipe()
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(home), path], stdin=reading, stderr=subprocess.PIPE)
        for path in paths
    ]
    os.close(reading)
    os.close(writing)
    assert [process.communicate(timeout=PATIENCE)[1] for process in started] == [b""] * 6
    assert sorted(approvals.read(str(home)).files) == sorted(paths)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is damaged"),
        ("{", "is damaged"),
        ("[1]", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ('{"files": {}, "folders": {}}', "is damaged"),
        ('{"version": 1}', "is damaged"),
        ('{"version": 1, "files": {"/a": {"sha256": "x", "at": 1}}, "folders": {}}', "is damaged"),
        ('{"version": 1, "files": {"/a": 7}, "folders": {}}', "is damaged"),
        ('{"version": 1, "files": [], "folders": {}}', "is damaged"),
        ('{"version": 2, "files": {}, "folders": {}}', "newer Hocket"),
    ],
)
def test_unreadable_approvals_trust_nothing_and_stay_unchanged(
    home: Path, project: Path, text: str, words: str
) -> None:
    path = put(project / "a.md")
    trust_file(home, path)
    (home / "trust.json").write_text(text)
    config = Approvals(load(str(project), str(home)))
    assert not config.trusts_file(str(path))
    error = not_trusted("it", ["hooks"], str(path), config)
    assert words in (error.hint or "")
    assert (error.hint or "").endswith(f"run: hocket trust {path}")
    with pytest.raises(HomeError, match=words) as caught:
        trust_file(home, path)
    assert "move " in (caught.value.hint or "")
    assert (home / "trust.json").read_text() == text


def test_unwritable_home_is_reported_when_approving(world: Path, project: Path) -> None:
    put(world / "file")
    with pytest.raises(HomeError, match="cannot record approvals"):
        approvals.approve(str(world / "file/h"), FILE, str(project / "a.md"), b"x")


def test_configuration_without_home_has_no_approvals(project: Path) -> None:
    assert not Approvals(Config()).trusts(str(project))
    assert not Approvals(Config()).trusts_file(str(project / "a.md"))


# --- Definitions --------------------------------------------------------------------------------------------


def test_one_changed_byte_voids_file_approval(home: Path, project: Path) -> None:
    path = put(project / "a.md", "content")
    trust_file(home, path)
    assert Approvals(load(str(project), str(home))).trusts_file(str(path))
    path.write_text("contenT")
    assert not Approvals(load(str(project), str(home))).trusts_file(str(path))
    path.write_text("content")
    assert Approvals(load(str(project), str(home))).trusts_file(str(path))


def test_content_as_read_decides_not_the_current_file(home: Path, project: Path) -> None:
    path = put(project / "a.md", "content")
    trust_file(home, path)
    config = Approvals(load(str(project), str(home)))
    assert not config.trusts_file(str(path), b"read before it was changed back")
    path.write_text("changed since")
    assert config.trusts_file(str(path), b"content")


def test_link_is_approved_as_its_target(home: Path, project: Path) -> None:
    first, second = put(project / "first.md", "same"), put(project / "second.md", "same")
    link = project / "link.md"
    link.symlink_to(first)
    trust_file(home, link)
    assert list(approvals.read(str(home)).files) == [str(first)]
    assert Approvals(load(str(project), str(home))).trusts_file(str(link))
    link.unlink()
    link.symlink_to(second)
    assert not Approvals(load(str(project), str(home))).trusts_file(str(link))


def test_missing_or_irregular_file_is_not_approved(home: Path, project: Path) -> None:
    path = put(project / "a.md")
    trust_file(home, path)
    path.unlink()
    assert Approvals(Config(home=str(home))).state(FILE, str(path)) == "gone"
    os.mkfifo(path)
    assert not Approvals(load(str(project), str(home))).trusts_file(str(path))
    assert Approvals(Config(home=str(home))).state(FILE, str(path)) == "changed"


# --- Folders ------------------------------------------------------------------------------------------------

COVERED = (
    *COVERED_FILES,
    ".claude/agents/deep/a.md",
    ".claude/skills/s/SKILL.md",
    ".claude/commands/c.md",
)
PRIVILEGED = "---\nhooks: {}\n---\n"


def valid(name: str) -> str:
    return "{}" if name.endswith(".json") else PRIVILEGED if name.endswith(".md") else ""


@pytest.mark.parametrize("name", COVERED)
def test_folder_approval_covers_files_that_start_programs(home: Path, project: Path, name: str) -> None:
    other = ".mcp.json" if name == "hocket.toml" else "hocket.toml"
    put(project / other, valid(other))
    trust(home, project)
    assert trusts(home, project)
    added = put(project / name, valid(name))
    assert not trusts(home, project), "a new file asks again"
    trust(home, project)
    assert trusts(home, project)
    added.write_text(valid(name) + "\n")
    assert not trusts(home, project), "a changed file asks again"
    trust(home, project)
    added.unlink()
    assert not trusts(home, project), "a missing file asks again"


def test_plain_definition_change_keeps_folder_approval(home: Path, project: Path) -> None:
    put(project / ".mcp.json", "{}")
    trust(home, project)
    put(project / ".claude/agents/a.md", "---\nname: a\ndescription: d\n---\nHello.\n")
    put(project / "src/main.py", "hooks = 1")
    assert trusts(home, project)


def test_escaped_privilege_key_voids_folder_approval(home: Path, project: Path) -> None:
    put(project / ".mcp.json", "{}")
    trust(home, project)
    put(project / ".claude/agents/a.md", '---\n"h\\x6foks": {}\n---\n')
    assert not trusts(home, project)


def test_joined_file_contents_are_unambiguous(home: Path, project: Path) -> None:
    one = joined([("a", b"1\n=== b, 1 bytes\n2")])
    two = joined([("a", b"1"), ("b", b"2")])
    assert one != two


@pytest.mark.parametrize("name", COVERED)
def test_empty_folder_approval_ends_with_first_covered_file(home: Path, project: Path, name: str) -> None:
    put(project / "CLAUDE.md", "hooks")
    assert Approvals(Config(home=str(home))).cover.folder(str(project)) == b""
    assert not trusts(home, project)
    trust(home, project)
    put(project / "CLAUDE.md", "other hooks")
    assert trusts(home, project)
    found = Approvals(Config(home=str(home)))
    assert (found.state(FOLDER, str(project)), found.changed(str(project))) == ("approved", None)
    added = put(project / name, valid(name))
    assert not trusts(home, project), "the folder is no longer empty"
    assert (found.state(FOLDER, str(project)), found.changed(str(project))) == ("changed", str(project))
    added.unlink()
    assert trusts(home, project)


def test_empty_folder_approval_excludes_folders_above(home: Path, project: Path) -> None:
    (project / ".git").mkdir()
    below = project / "below"
    below.mkdir()
    trust(home, below)
    assert (trusts(home, below), trusts(home, project)) == (True, False)
    put(project / ".mcp.json", "{}")
    assert not trusts(home, below)
    below.rmdir()
    assert Approvals(Config(home=str(home))).state(FOLDER, str(below)) == "gone"


def test_removed_settings_void_the_folder_approval(home: Path, project: Path) -> None:
    settings = put(project / ".claude/settings.json", "{}")
    trust(home, project)
    settings.unlink()
    assert (trusts(home, project), Approvals(Config(home=str(home))).state(FOLDER, str(project))) == (False, "gone")


def test_disabled_files_of_untrusted_folder_are_listed(home: Path, project: Path, world: Path) -> None:
    (project / ".git").mkdir()
    below = project / "below"
    own, cover = put(below / ".claude/agents/a.md"), Cover([str(world / "user/.claude")])
    (below / ".claude/skills").mkdir()
    assert cover.disabled(str(below), str(own)) == ()
    assert cover.disabled(str(below)) == (".claude/agents",)
    put(below / ".claude/agents/b.md")
    put(below / "hocket.toml", "")
    put(project / "CLAUDE.md")
    put(project / ".mcp.json")
    assert cover.disabled(str(below), str(own)) == (".claude/agents", "CLAUDE.md", ".mcp.json")
    put(world / "user/.claude/CLAUDE.md")
    assert cover.disabled(str(world / "user")) == ()


def test_trust_requires_all_folders_up_to_repository_root(home: Path, project: Path) -> None:
    (project / ".git").mkdir()
    below = project / "a/b"
    below.mkdir(parents=True)
    put(project / "hocket.toml", "")
    assert not trusts(home, below)
    trust(home, project)
    assert trusts(home, below)
    put(project / "a/.mcp.json", "{}")
    assert not trusts(home, below)
    trust(home, project / "a")
    assert trusts(home, below)
    assert trusts(home, project)


def test_worktree_fingerprint_equals_repository_with_same_files(project: Path, tmp_path: Path) -> None:
    tree, records = tmp_path / "tree", project / ".git/worktrees/tree"
    put(records / "commondir", "../..\n")
    put(tree / ".git", f"gitdir: {records}\n")
    for root in (project, tree):
        put(root / ".mcp.json", "{}")
        put(root / "sub/.claude/settings.json", "{}")
    cover = Cover()

    def same() -> bool:
        return cover.fingerprint(str(project / "sub")) == cover.fingerprint(str(tree / "sub"))

    assert same()
    put(project / ".claude/settings.local.json", "those of the main worktree count in both")
    put(project / "hocket.toml", "is not read by Claude")
    assert same()
    for root, name in ((tree, ".claude/settings.local.json"), (project, "sub/.mcp.json"), (tree, ".mcp.json")):
        file = root / name
        before = file.read_text() if file.exists() else None
        put(file, "another")
        assert not same(), name
        file.unlink() if before is None else file.write_text(before)
        assert same(), name


def test_folder_above_is_ignored_outside_repository(home: Path, project: Path) -> None:
    put(project / ".mcp.json", "{}")
    trust(home, project)
    (project / "a").mkdir()
    assert not trusts(home, project / "a")


def test_link_to_approved_folder_is_trusted(home: Path, project: Path, world: Path) -> None:
    put(project / ".mcp.json", "{}")
    trust(home, project)
    (world / "link").symlink_to(project)
    assert trusts(home, world / "link")


def test_worktree_approval_covers_main_local_settings(home: Path, world: Path) -> None:
    main, tree = world / "main", world / "tree"
    command = (
        "git init -q main && cd main && git -c user.email=a@b -c user.name=n commit -q --allow-empty -m x"
        " && git worktree add -q ../tree"
    )
    subprocess.run(["/bin/sh", "-c", command], cwd=world, check=True, capture_output=True, timeout=PATIENCE)
    put(tree / ".mcp.json", "{}")
    trust(home, tree)
    assert trusts(home, tree)
    put(main / ".claude/settings.local.json", "{}")
    assert not trusts(home, tree)


def test_user_settings_are_not_project_files(home: Path, world: Path) -> None:
    user = world / "user"
    put(user / ".claude/settings.json", "{}")
    put(user / "hocket.toml", "")
    found = Approvals(load(str(user), str(home)))
    assert [name for name, _ in found.cover.parts(str(user))] == ["hocket.toml"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.mkfifo(folder / ".mcp.json"),
        lambda folder: (folder / ".mcp.json").write_bytes(b" " * (MAX_FILE + 1)),
        lambda folder: (folder / ".mcp.json").mkdir(),
    ],
    ids=["FIFO", "large", "directory"],
)
def test_unreadable_folder_is_not_trusted(home: Path, project: Path, damage: Callable[[Path], object]) -> None:
    put(project / "hocket.toml", "")
    trust(home, project)
    damage(project)
    config = Approvals(load(str(project), str(home)))
    assert not config.trusts(str(project))
    with pytest.raises(NotTrusted):
        config.cover.folder(str(project))


def test_circular_links_are_read_once(home: Path, project: Path) -> None:
    put(project / ".claude/agents/a.md", PRIVILEGED)
    (project / ".claude/agents/again").symlink_to(project / ".claude/agents")
    trust(home, project)
    assert trusts(home, project)


def test_watched_paths_include_all_covered_files(home: Path, project: Path) -> None:
    watched = Approvals(Config(home=str(home))).cover.watched(str(project))
    assert {str(project / name) for name in (*COVERED_FILES, ".claude/agents")} <= set(watched)


# --- Servers of folders above -------------------------------------------------------------------------------


def servers(*names: str) -> str:
    return json.dumps({"mcpServers": {name: {"command": "true"} for name in names}})


def test_servers_above_trusted_folder_are_untrusted(home: Path, project: Path) -> None:
    below = project / "a"
    below.mkdir()
    put(project / ".mcp.json", servers("above", "both"))
    put(below / ".mcp.json", servers("here", "both"))
    trust(home, below)
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ("above",)
    trust(home, project)
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ()
    put(project / ".mcp.json", servers("above", "both", "more"))
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ("above", "more")


def test_servers_in_home_and_listed_folder_are_trusted(home: Path, world: Path) -> None:
    below = world / "user/code/shop"
    below.mkdir(parents=True)
    put(world / "user/.mcp.json", servers("mine"))
    put(world / "user/code/.mcp.json", servers("team"))
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ("team",)
    put(home / "config.toml", '[trust]\nfolders = ["~/code"]')
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ()


def test_unreadable_server_file_above_is_refused(home: Path, project: Path) -> None:
    below = project / "a"
    below.mkdir()
    (project / ".mcp.json").write_text("{not json")
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ()
    (project / ".mcp.json").unlink()
    os.mkfifo(project / ".mcp.json")
    with pytest.raises(NotTrusted):
        Approvals(load(str(below), str(home))).untrusted_servers(str(below))


@pytest.mark.parametrize("odd", ["1" * 5_000, "[" * 100_000 + "]" * 100_000], ids=["digits", "brackets"])
def test_oversized_json_in_server_file_above_is_refused(home: Path, project: Path, odd: str) -> None:
    below = project / "a"
    below.mkdir()
    file = put(project / ".mcp.json", servers("above").replace("{", f'{{"n": {odd}, ', 1))
    with pytest.raises(NotTrusted) as caught:
        Approvals(load(str(below), str(home))).untrusted_servers(str(below))
    assert str(file) in caught.value.message


# --- The configuration --------------------------------------------------------------------------------------


def test_listed_folder_is_trusted_with_any_content(home: Path, project: Path) -> None:
    put(home / "config.toml", f'[trust]\nfolders = ["{project}"]')
    put(project / "a/.mcp.json", "{}")
    config = Approvals(load(str(project / "a"), str(home)))
    assert (config.config.lists(str(project / "a")), config.trusts(str(project / "a"))) == (True, True)


def test_approved_folder_may_bypass_permissions_until_changed(home: Path, project: Path) -> None:
    path = put(project / "hocket.toml", '[claude]\npermission_mode = "bypassPermissions"')
    with pytest.raises(NotTrusted) as caught:
        check_configuration(Approvals(load(str(project), str(home))))
    assert (caught.value.hint or "").endswith(f": hocket trust {project}")
    trust(home, project)
    config = load(str(project), str(home))
    check_configuration(Approvals(config))
    assert config.claude.permission_mode == "bypassPermissions"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(NotTrusted, match="has changed since you approved it"):
        check_configuration(Approvals(load(str(project), str(home))))


def test_project_permission_mode_does_not_raise_ceiling(home: Path, project: Path) -> None:
    put(home / "config.toml", '[claude]\npermission_mode = "default"')
    put(project / "hocket.toml", '[claude]\npermission_mode = "plan"')
    config = load(str(project), str(home))
    assert (config.ceiling, config.claude.permission_mode) == ("default", "plan")
    put(project / "hocket.toml", '[claude]\npermission_mode = "acceptEdits"')
    with pytest.raises(NotTrusted, match="permission mode acceptEdits"):
        check_configuration(Approvals(load(str(project), str(home))))


def test_user_aliases_are_kept_when_project_hides_them(home: Path, world: Path, project: Path) -> None:
    put(home / "config.toml", '[agents.a]\npath = "mine"')
    put(world / "user/config/hocket/chains.json", '{"agents": {"b": {"path": "mine"}}}')
    put(project / "hocket.toml", '[agents.a]\npath = "theirs"')
    put(project / "forge/chains.json", '{"agents": {"b": {"path": "theirs"}}}')
    config = load(str(project), str(home))
    assert {name: alias.path for name, alias in config.agents.items()} == {"a": "theirs", "b": "theirs"}
    assert {name: alias.path for name, alias in config.own_agents.items()} == {"a": "mine", "b": "mine"}


def test_permission_modes_are_ordered_by_width() -> None:
    order = ["plan", "dontAsk", "default", "acceptEdits", "auto", "bypassPermissions"]
    assert all(is_wider(later, earlier) for earlier, later in pairwise(order))
    assert not any(is_wider(earlier, later) for earlier, later in pairwise(order))
    assert not is_wider("manual", "default")
    assert is_wider("unknown", "bypassPermissions")


@pytest.mark.parametrize("name", ["with space", "it's", "$HOME", "-p", "ü"])
def test_hinted_trust_command_is_shell_quoted(project: Path, name: str) -> None:
    hint = not_trusted("it", ["hooks"], str(project / name), Approvals(Config())).hint or ""
    line = hint.partition("run: hocket trust ")[2]
    done = subprocess.run(
        ["/bin/sh", "-c", f"printf %s {line}"], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout == str(project / name)

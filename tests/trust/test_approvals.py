"""What the user has approved: written down whole, compared byte for byte, and worth nothing when it is damaged."""

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


def test_an_approval_is_kept_private_with_what_was_approved(home: Path, project: Path) -> None:
    path = put(project / "a.md", "content")
    trust_file(home, path)
    record = json.loads((home / "trust.json").read_text())
    assert (record["version"], list(record["files"]), record["folders"]) == (1, [str(path)], {})
    entry = record["files"][str(path)]
    assert (home / "trust" / entry["sha256"]).read_text() == "content"
    modes = {stat.S_IMODE(one.stat().st_mode) for one in (home / "trust.json", home / "trust" / entry["sha256"])}
    assert (modes, stat.S_IMODE((home / "trust").stat().st_mode)) == ({0o600}, 0o700)


def test_nothing_is_written_where_nothing_is_approved(home: Path, project: Path) -> None:
    assert not trusts(home, project)
    assert not approvals.withdraw(str(home), FILE, str(project / "a.md"))
    assert list(home.iterdir()) == []


def test_what_is_no_longer_approved_is_not_kept(home: Path, project: Path) -> None:
    path = put(project / "a.md", "one")
    trust_file(home, path)
    path.write_text("two")
    trust_file(home, path)
    assert [(one.name, one.read_text()) for one in (home / "trust").iterdir()] == [(digest(b"two"), "two")]
    assert approvals.withdraw(str(home), FILE, str(path))
    assert list((home / "trust").iterdir()) == []
    assert not Approvals(load(str(project), str(home))).trusts_file(str(path))


def test_a_large_content_is_known_by_its_hash_alone(home: Path, project: Path) -> None:
    pin = approvals.approve(str(home), FOLDER, str(project), b"x" * (MAX_KEPT + 1))
    assert list((home / "trust").iterdir()) == []
    assert approvals.kept(str(home), pin) is None


def test_kept_content_that_was_changed_is_not_shown_as_what_was_approved(home: Path, project: Path) -> None:
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
def test_a_record_that_cannot_be_understood_trusts_nothing_and_is_left_as_it_is(
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


def test_a_home_that_cannot_be_written_is_said_to_be_one(world: Path, project: Path) -> None:
    put(world / "file")
    with pytest.raises(HomeError, match="cannot record approvals"):
        approvals.approve(str(world / "file/h"), FILE, str(project / "a.md"), b"x")


def test_a_configuration_made_by_hand_knows_of_no_approvals(project: Path) -> None:
    assert not Approvals(Config()).trusts(str(project))
    assert not Approvals(Config()).trusts_file(str(project / "a.md"))


# --- Definitions --------------------------------------------------------------------------------------------


def test_one_changed_byte_makes_an_approval_void(home: Path, project: Path) -> None:
    path = put(project / "a.md", "content")
    trust_file(home, path)
    assert Approvals(load(str(project), str(home))).trusts_file(str(path))
    path.write_text("contenT")
    assert not Approvals(load(str(project), str(home))).trusts_file(str(path))
    path.write_text("content")
    assert Approvals(load(str(project), str(home))).trusts_file(str(path))


def test_the_content_that_was_read_counts_and_not_what_is_there_by_now(home: Path, project: Path) -> None:
    path = put(project / "a.md", "content")
    trust_file(home, path)
    config = Approvals(load(str(project), str(home)))
    assert not config.trusts_file(str(path), b"read before it was changed back")
    path.write_text("changed since")
    assert config.trusts_file(str(path), b"content")


def test_a_link_is_approved_as_what_it_leads_to(home: Path, project: Path) -> None:
    first, second = put(project / "first.md", "same"), put(project / "second.md", "same")
    link = project / "link.md"
    link.symlink_to(first)
    trust_file(home, link)
    assert list(approvals.read(str(home)).files) == [str(first)]
    assert Approvals(load(str(project), str(home))).trusts_file(str(link))
    link.unlink()
    link.symlink_to(second)
    assert not Approvals(load(str(project), str(home))).trusts_file(str(link))


def test_a_file_that_is_gone_or_no_file_is_not_approved(home: Path, project: Path) -> None:
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
ASKING = "---\nhooks: {}\n---\n"


def valid(name: str) -> str:
    return "{}" if name.endswith(".json") else ASKING if name.endswith(".md") else ""


@pytest.mark.parametrize("name", COVERED)
def test_a_folder_s_approval_covers_what_could_make_claude_or_hocket_do_things(
    home: Path, project: Path, name: str
) -> None:
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


def test_a_plain_definition_may_change_without_anybody_being_asked(home: Path, project: Path) -> None:
    put(project / ".mcp.json", "{}")
    trust(home, project)
    put(project / ".claude/agents/a.md", "---\nname: a\ndescription: d\n---\nHello.\n")
    put(project / "src/main.py", "hooks = 1")
    assert trusts(home, project)


def test_a_key_that_is_written_with_escapes_is_not_overlooked(home: Path, project: Path) -> None:
    put(project / ".mcp.json", "{}")
    trust(home, project)
    put(project / ".claude/agents/a.md", '---\n"h\\x6foks": {}\n---\n')
    assert not trusts(home, project)


def test_no_content_can_pass_for_that_of_two_files(home: Path, project: Path) -> None:
    one = joined([("a", b"1\n=== b, 1 bytes\n2")])
    two = joined([("a", b"1"), ("b", b"2")])
    assert one != two


@pytest.mark.parametrize("name", COVERED)
def test_a_folder_can_be_approved_as_one_that_brings_nothing_along(home: Path, project: Path, name: str) -> None:
    put(project / "CLAUDE.md", "hooks")
    assert Approvals(Config(home=str(home))).cover.folder(str(project)) == b""
    assert not trusts(home, project)
    trust(home, project)
    put(project / "CLAUDE.md", "other hooks")
    assert trusts(home, project)
    found = Approvals(Config(home=str(home)))
    assert (found.state(FOLDER, str(project)), found.changed(str(project))) == ("approved", None)
    added = put(project / name, valid(name))
    assert not trusts(home, project), "it is no longer one that brings nothing along"
    assert (found.state(FOLDER, str(project)), found.changed(str(project))) == ("changed", str(project))
    added.unlink()
    assert trusts(home, project)


def test_approved_nothing_does_not_cover_what_is_above_and_ends_with_the_folder(home: Path, project: Path) -> None:
    (project / ".git").mkdir()
    below = project / "below"
    below.mkdir()
    trust(home, below)
    assert (trusts(home, below), trusts(home, project)) == (True, False)
    put(project / ".mcp.json", "{}")
    assert not trusts(home, below)
    below.rmdir()
    assert Approvals(Config(home=str(home))).state(FOLDER, str(below)) == "gone"


def test_settings_that_were_approved_and_are_gone_are_not_approved_as_nothing(home: Path, project: Path) -> None:
    settings = put(project / ".claude/settings.json", "{}")
    trust(home, project)
    settings.unlink()
    assert (trusts(home, project), Approvals(Config(home=str(home))).state(FOLDER, str(project))) == (False, "gone")


def test_what_an_untrusted_folder_does_without_is_known_by_its_names(home: Path, project: Path, world: Path) -> None:
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


def test_all_folders_up_to_the_repository_s_root_have_to_be_approved(home: Path, project: Path) -> None:
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


def test_a_worktree_has_the_fingerprint_of_its_repository_while_their_files_are_the_same(
    project: Path, tmp_path: Path
) -> None:
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
    put(project / ".claude/settings.local.json", "the first one's count in both")
    put(project / "hocket.toml", "is nothing to Claude")
    assert same()
    for root, name in ((tree, ".claude/settings.local.json"), (project, "sub/.mcp.json"), (tree, ".mcp.json")):
        file = root / name
        before = file.read_text() if file.exists() else None
        put(file, "another")
        assert not same(), name
        file.unlink() if before is None else file.write_text(before)
        assert same(), name


def test_outside_of_a_repository_the_folder_above_does_not_count(home: Path, project: Path) -> None:
    put(project / ".mcp.json", "{}")
    trust(home, project)
    (project / "a").mkdir()
    assert not trusts(home, project / "a")


def test_a_link_to_an_approved_folder_is_that_folder(home: Path, project: Path, world: Path) -> None:
    put(project / ".mcp.json", "{}")
    trust(home, project)
    (world / "link").symlink_to(project)
    assert trusts(home, world / "link")


def test_a_second_working_tree_is_approved_with_the_local_settings_of_the_first(home: Path, world: Path) -> None:
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


def test_the_user_s_own_settings_are_not_those_of_a_project(home: Path, world: Path) -> None:
    user = world / "user"
    put(user / ".claude/settings.json", "{}")
    put(user / "hocket.toml", "")
    found = Approvals(load(str(user), str(home)))
    assert [name for name, _ in found.cover.parts(str(user))] == ["hocket.toml"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: os.mkfifo(folder / ".mcp.json"),
        lambda folder: (folder / ".mcp.json").write_bytes(b" " * (MAX_FILE + 1)),
        lambda folder: (folder / ".mcp.json").mkdir(),
    ],
    ids=["FIFO", "large", "directory"],
)
def test_a_folder_that_cannot_be_read_is_not_trusted(
    home: Path, project: Path, spoil: Callable[[Path], object]
) -> None:
    put(project / "hocket.toml", "")
    trust(home, project)
    spoil(project)
    config = Approvals(load(str(project), str(home)))
    assert not config.trusts(str(project))
    with pytest.raises(NotTrusted):
        config.cover.folder(str(project))


def test_links_in_a_circle_end(home: Path, project: Path) -> None:
    put(project / ".claude/agents/a.md", ASKING)
    (project / ".claude/agents/again").symlink_to(project / ".claude/agents")
    trust(home, project)
    assert trusts(home, project)


def test_whatever_may_change_the_trust_in_a_folder_can_be_watched(home: Path, project: Path) -> None:
    watched = Approvals(Config(home=str(home))).cover.watched(str(project))
    assert {str(project / name) for name in (*COVERED_FILES, ".claude/agents")} <= set(watched)


# --- What is written above ----------------------------------------------------------------------------------


def servers(*names: str) -> str:
    return json.dumps({"mcpServers": {name: {"command": "true"} for name in names}})


def test_servers_that_are_written_above_a_trusted_folder_are_strangers(home: Path, project: Path) -> None:
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


def test_what_is_written_in_the_user_s_home_or_in_a_listed_folder_is_no_stranger_s(home: Path, world: Path) -> None:
    below = world / "user/code/shop"
    below.mkdir(parents=True)
    put(world / "user/.mcp.json", servers("mine"))
    put(world / "user/code/.mcp.json", servers("team"))
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ("team",)
    put(home / "config.toml", '[trust]\nfolders = ["~/code"]')
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ()


def test_a_file_above_that_cannot_be_read_is_no_way_in(home: Path, project: Path) -> None:
    below = project / "a"
    below.mkdir()
    (project / ".mcp.json").write_text("{not json")
    assert Approvals(load(str(below), str(home))).untrusted_servers(str(below)) == ()
    (project / ".mcp.json").unlink()
    os.mkfifo(project / ".mcp.json")
    with pytest.raises(NotTrusted):
        Approvals(load(str(below), str(home))).untrusted_servers(str(below))


@pytest.mark.parametrize("odd", ["1" * 5_000, "[" * 100_000 + "]" * 100_000], ids=["digits", "brackets"])
def test_a_file_above_that_only_claude_can_read_is_refused_by_its_name(home: Path, project: Path, odd: str) -> None:
    below = project / "a"
    below.mkdir()
    file = put(project / ".mcp.json", servers("above").replace("{", f'{{"n": {odd}, ', 1))
    with pytest.raises(NotTrusted) as caught:
        Approvals(load(str(below), str(home))).untrusted_servers(str(below))
    assert str(file) in caught.value.message


# --- What the configuration knows ---------------------------------------------------------------------------


def test_a_listed_folder_is_trusted_whatever_comes_to_be_in_it(home: Path, project: Path) -> None:
    put(home / "config.toml", f'[trust]\nfolders = ["{project}"]')
    put(project / "a/.mcp.json", "{}")
    config = Approvals(load(str(project / "a"), str(home)))
    assert (config.config.lists(str(project / "a")), config.trusts(str(project / "a"))) == (True, True)


def test_an_approved_folder_may_switch_every_question_off_until_it_changes(home: Path, project: Path) -> None:
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


def test_a_project_s_mode_does_not_move_what_the_user_gives(home: Path, project: Path) -> None:
    put(home / "config.toml", '[claude]\npermission_mode = "default"')
    put(project / "hocket.toml", '[claude]\npermission_mode = "plan"')
    config = load(str(project), str(home))
    assert (config.ceiling, config.claude.permission_mode) == ("default", "plan")
    put(project / "hocket.toml", '[claude]\npermission_mode = "acceptEdits"')
    with pytest.raises(NotTrusted, match="permission mode acceptEdits"):
        check_configuration(Approvals(load(str(project), str(home))))


def test_the_user_s_own_names_are_known_though_a_project_s_hide_them(home: Path, world: Path, project: Path) -> None:
    put(home / "config.toml", '[agents.a]\npath = "mine"')
    put(world / "user/config/hocket/chains.json", '{"agents": {"b": {"path": "mine"}}}')
    put(project / "hocket.toml", '[agents.a]\npath = "theirs"')
    put(project / "forge/chains.json", '{"agents": {"b": {"path": "theirs"}}}')
    config = load(str(project), str(home))
    assert {name: alias.path for name, alias in config.agents.items()} == {"a": "theirs", "b": "theirs"}
    assert {name: alias.path for name, alias in config.own_agents.items()} == {"a": "mine", "b": "mine"}


def test_modes_are_ordered_by_what_they_allow() -> None:
    order = ["plan", "dontAsk", "default", "acceptEdits", "auto", "bypassPermissions"]
    assert all(is_wider(later, earlier) for earlier, later in pairwise(order))
    assert not any(is_wider(earlier, later) for earlier, later in pairwise(order))
    assert not is_wider("manual", "default")
    assert is_wider("whatever comes next", "bypassPermissions")


@pytest.mark.parametrize("name", ["with space", "it's", "$HOME", "-p", "ü"])
def test_the_line_to_type_is_one_that_a_shell_takes_as_it_is_meant(project: Path, name: str) -> None:
    hint = not_trusted("it", ["hooks"], str(project / name), Approvals(Config())).hint or ""
    line = hint.partition("run: hocket trust ")[2]
    done = subprocess.run(
        ["/bin/sh", "-c", f"printf %s {line}"], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout == str(project / name)

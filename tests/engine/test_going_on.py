"""Whether something may be gone on with, by what was written down when it was started, and where nothing was."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from world import Bin

from hocket.config.loading import load
from hocket.engine.bind import StartRequest, bind
from hocket.engine.going_on import check_trust
from hocket.errors import NotTrusted
from hocket.model import Spec


class Ground:
    """A project with settings of its own, and the user's home."""

    def __init__(self, home: Path, project: Path, world: Path) -> None:
        self.home = home
        self.project = project
        self._env = {"PATH": f"{world / 'bin'}:/usr/bin:/bin", "HOME": str(world / "user")}

    def spec(self, agent: str) -> Spec:
        request = StartRequest(cwd=str(self.project), env=self._env, agent=agent, prompt="x")
        bound = bind(request, load(request.cwd, str(self.home), self._env))
        assert isinstance(bound, Spec)
        return bound

    def vouch(self) -> None:
        (self.home / "config.toml").write_text(f'[trust]\nfolders = ["{self.project}"]\n')

    def withdraw(self) -> None:
        (self.home / "config.toml").unlink()

    def check(self, spec: Spec) -> None:
        check_trust(spec, str(self.home))


@pytest.fixture
def ground(home: Path, project: Path, world: Path, agent: Bin) -> Ground:
    agent("claude", "")
    agent("tool", "")
    (project / ".claude/agents").mkdir(parents=True)
    (project / ".claude/settings.json").write_text("{}")
    (project / ".claude/agents/eager.md").write_text(
        "---\nname: eager\ndescription: d\npermissionMode: bypassPermissions\n---\nHello.\n"
    )
    return Ground(home, project, world)


def from_before(spec: Spec) -> Spec:
    """As it was stored when nobody wrote down what a start relies on."""
    stored = msgspec.json.decode(msgspec.json.encode(spec))
    del stored["vouched"]
    return msgspec.convert(stored, Spec)


@pytest.mark.parametrize("name", ["claude", "eager"])
def test_where_nothing_was_written_down_it_is_asked_what_a_new_start_would_be(name: str, ground: Ground) -> None:
    ground.vouch()
    old = from_before(ground.spec(name))
    assert old.vouched is None
    ground.check(old)
    ground.withdraw()
    with pytest.raises(NotTrusted) as caught:
        ground.check(old)
    assert (caught.value.status, caught.value.exit_code) == (403, 4)
    assert f"hocket trust {ground.project}" in (caught.value.hint or "")


def test_what_did_without_the_folder_from_the_start_goes_on_without_it(ground: Ground) -> None:
    ground.check(ground.spec("claude"))


def test_a_plain_program_relies_on_nobodys_word(ground: Ground) -> None:
    ground.check(from_before(ground.spec("tool")))

"""What the Claude CLI records of its teams. Everything in it is untrusted, and may be half-written.

In the user's configuration directory: ``teams/TEAM/config.json`` with the members, ``teams/TEAM/inboxes/NAME.json``
with messages that were not delivered yet, and ``tasks/TEAM/ID.json`` for each shared task. Versions up to 2.1.177 have
teams with any name; later ones have one team for each session, named after it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.providers.base import TeamConfig, TeamFolders, TeamMember, TeamMessage, Teams, TeamTask
from hocket.providers.claude.paths import config_directory
from hocket.providers.output_lines import decoded, decoded_list, dict_in, list_in, number_in, text_in

LONGEST_NAME = 200
_MOST = 1000
"""Members, and messages of one inbox, that count. An inbox has its newest messages at the end."""
_MOST_MESSAGES = 20_000
_LEAD = "team-lead"
_REMOVED = ".deleted-"
"""In the name of the folder of a team that is being removed."""
_STATES = frozenset({"pending", "in_progress", "completed", "deleted"})
_REPORTS = frozenset({"idle_notification", "task_assignment"})
"""What looks like a message and is none: the CLI's own reports."""
_KIND = re.compile(r"[a-z][a-z_]{0,39}")
_SEND = "SendMessage"


def folders(env: Mapping[str, str]) -> TeamFolders | None:
    base = config_directory("/", env)
    return None if base is None else TeamFolders(os.path.join(base, "teams"), os.path.join(base, "tasks"))


def is_name(name: str) -> bool:
    """True for a name that stays in its folder, and is not that of something temporary."""
    is_short = 0 < len(name) <= LONGEST_NAME and len(name.encode("utf-8", "replace")) <= LONGEST_NAME
    return is_short and name.isprintable() and "/" not in name and name[0] != "." and _REMOVED not in name


def first_name(session: str) -> str:
    return f"session-{session[:8]}"


def record_of(name: str) -> str | None:
    stem = name.removesuffix(".json")
    return stem if name != stem and is_name(stem) else None


# --- Members ------------------------------------------------------------------------------------------------


def config(team: str, content: bytes) -> TeamConfig | None:
    value = decoded(content)
    if value is None or not isinstance(value.get("members"), list):
        return None
    lead = text_in(value, "leadAgentId") or f"{_LEAD}@{team}"
    found = (_member(team, one) for one in value["members"][:_MOST])
    members = {one.id: one for one in found if one is not None and one.id != lead and one.name != _LEAD}
    process = dict_in(value, "leadProcess")
    pid, started = number_in(process, "pid"), text_in(process, "procStart")
    is_known = isinstance(pid, int) and pid > 1 and started.isascii() and started.isdigit() and len(started) < 19
    return TeamConfig(
        text_in(value, "leadSessionId") or None,
        tuple(members.values()),
        int(pid) if is_known and pid is not None else None,
        int(started) if is_known else None,
    )


def _member(team: str, value: Any) -> TeamMember | None:
    name = text_in(value, "name")
    identity = text_in(value, "agentId") or f"{name}@{team}"
    if not (is_name(name) and identity.isprintable() and len(identity) <= 2 * LONGEST_NAME):
        return None
    active = value.get("isActive")
    return TeamMember(
        identity, name, _short(value, "agentType"), _short(value, "model"), active if isinstance(active, bool) else None
    )


def _short(value: Any, key: str) -> str | None:
    return text_in(value, key)[:LONGEST_NAME] or None


# --- Tasks --------------------------------------------------------------------------------------------------


def task(identity: str, content: bytes) -> TeamTask | None:
    value = decoded(content)
    status = text_in(value, "status")
    if value is None or status not in _STATES:
        return None
    is_internal = bool(dict_in(value, "metadata").get("_internal"))
    return TeamTask(
        identity,
        text_in(value, "subject"),
        text_in(value, "description"),
        "deleted" if is_internal else status,
        _short(value, "owner"),
        _ids(value, "blocks"),
        _ids(value, "blockedBy"),
    )


def _ids(value: Any, key: str) -> tuple[str, ...]:
    return tuple(str(one)[:LONGEST_NAME] for one in list_in(value, key)[:_MOST] if type(one) in (str, int))


# --- Messages -----------------------------------------------------------------------------------------------


def inbox(recipient: str, content: bytes) -> Sequence[TeamMessage] | None:
    values = decoded_list(content)
    if values is None:
        return None
    return [said for one in values[-_MOST_MESSAGES:] if (said := _message(recipient, one)) is not None]


def _message(recipient: str, value: Any) -> TeamMessage | None:
    sender, text = text_in(value, "from"), text_in(value, "text")
    if not sender:
        return None
    kind, said = _kind(text)
    if kind in _REPORTS:
        return None
    identity = _short(value, "msg_id") or _identity(sender, recipient, text, text_in(value, "timestamp"))
    summary = text_in(value, "summary")[:LONGEST_NAME] or None
    return TeamMessage(identity, sender[:LONGEST_NAME], recipient, said, summary, kind)


def is_report(text: str) -> bool:
    """Whether the text of a message is a report of the CLI."""
    return _kind(text)[0] in _REPORTS


def _kind(text: str) -> tuple[str, str]:
    """What kind of message a text is, and its words: the CLI's own messages are JSON."""
    value = decoded(text.encode("utf-8", "replace")) if text.startswith("{") else None
    kind = text_in(value, "type")
    if _KIND.fullmatch(kind) is None:
        return "message", text
    return kind, text_in(value, "reason") or text_in(value, "content") or text


def _identity(*parts: str) -> str:
    """The id of a message that has none, as in early versions."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def sent(data: Mapping[str, Any]) -> TeamMessage | None:
    text = data.get("text")
    if data.get("name") != _SEND or data.get("error") or not isinstance(text, str):
        return None
    value = decoded(text.encode("utf-8", "replace"))
    routing, identity = dict_in(value, "routing"), _short(value, "msg_id")
    sender, target = text_in(routing, "sender"), text_in(routing, "target").removeprefix("@")
    if identity is None or not sender or not target:
        return None
    kind, said = _kind(text_in(routing, "content"))
    if kind in _REPORTS:
        return None
    summary = _short(routing, "summary")
    return TeamMessage(identity, sender[:LONGEST_NAME], target[:LONGEST_NAME], said, summary, kind)


teams = Teams(folders, "config.json", "inboxes", is_name, first_name, record_of, config, task, inbox, sent)

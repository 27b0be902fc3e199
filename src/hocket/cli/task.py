"""``hocket task``: create, show and manage tasks, their queues, their attachments, and their files."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.format import truncate
from hocket.cli.task_render import (
    ASKED,
    asked_by_task,
    board_columns,
    board_lines,
    history_lines,
    queue_lines,
    task_lines,
    task_table,
)
from hocket.cli.usage import COUNT, CWD, FLAG, JSON, Argument, ArgumentError, Group, Option, command
from hocket.client import Client, quote
from hocket.errors import BadDirectory, HocketError, NotFound, UsageError
from hocket.input_limits import MAX_ATTACHMENT
from hocket.views.text import one_line, strip_controls

Task = dict[str, Any]

STATUSES = ("pending", "active", "waiting", "completed", "failed")
NO_TASKS = 'No tasks. Create one: hocket task new "DESCRIPTION"'
TASK = Argument("ref", "TASK")
TASKS = Argument("refs", "TASK...", many=True)
ARCHIVED = Option("--archived", kind=FLAG, help="Only archived tasks.")
DECLINED = 1


def path_of(ref: str, *more: str) -> str:
    """The route of a task, or of a part of it."""
    return "/".join(["/api/tasks", *map(quote, (ref, *more))])


@command(
    Argument("words", "DESCRIPTION...|-", many=True),
    CWD,
    JSON,
    examples=('hocket task new "Sessions expire after a day"', "hocket task new - < wish.txt"),
    prose=True,
)
def new(words: tuple[str, ...], cwd: str | None, as_json: bool) -> None:
    """Create a task and print its number. Nothing is started; "-" reads the description from standard input."""
    description = access.pick_prompt("-", None, "") if words == ("-",) else " ".join(words)
    if not (description or "").strip():
        raise ArgumentError("the description is empty")
    body = {"description": description, "cwd": access.directory(cwd)}
    made = access.connect(talk=not as_json).request("POST", "/api/tasks", body)
    access.write_json(made) if as_json else access.write(f"task {made['number']}\n")


@command(
    Option("--status", kind=STATUSES, help="List only tasks with this status."),
    Option("--limit", kind=COUNT, metavar="N", default=20, help="List at most N tasks (default 20)."),
    Option("--all", name="everything", kind=FLAG, help="List archived tasks too."),
    ARCHIVED,
    JSON,
    examples=("hocket task list", "hocket task list --status waiting --json"),
)
def list_(status: str | None, limit: int, everything: bool, archived: bool, as_json: bool) -> None:
    """List tasks, the newest first."""
    client = access.connect(talk=not as_json)
    found, more = pages(client, status, limit, _archive_filter(everything, archived))
    if as_json:
        access.write_json(found)
    elif found:
        now = time.time()
        asked = asked_by_task(client.request("GET", "/api/inbox"), now)
        access.write_lines(task_table(access.snake_keys(found), now, access.terminal_width(), asked))
        if more:
            print(f"More tasks: hocket task list --limit {limit * 5}", file=sys.stderr)
    else:
        print(NO_TASKS, file=sys.stderr)


PAGE = 1000
"""The largest page of the server."""


def _archive_filter(everything: bool, archived: bool) -> str | None:
    if everything and archived:
        raise ArgumentError("give --all or --archived")
    return "only" if archived else "all" if everything else None


def pages(client: Client, status: str | None, limit: int | None, archived: str | None) -> tuple[list[Task], bool]:
    """The newest tasks, up to ``limit``, and whether there are more."""
    found: list[Task] = []
    before: int | None = None
    while limit is None or len(found) < limit:
        size = PAGE if limit is None else min(PAGE, limit - len(found))
        given = {"status": status, "limit": size, "before": before, "archived": archived}
        query = "&".join(f"{name}={value}" for name, value in given.items() if value is not None)
        answer = client.exchange("GET", f"/api/tasks?{query}")
        found += answer["data"]
        before = answer["meta"]["next"]
        if before is None:
            return found, False
    return found, True


@command(
    Option(
        "--all",
        name="everything",
        kind=FLAG,
        help="Show every task, also archived ones and those finished more than a day ago.",
    ),
    ARCHIVED,
    JSON,
    examples=("hocket task board", "hocket task board --all --json"),
)
def board(everything: bool, archived: bool, as_json: bool) -> None:
    """Show the tasks by state with their agents: side by side, or one below the other on a narrow terminal."""
    chosen = _archive_filter(everything, archived)
    client = access.connect(talk=not as_json)
    now = time.time()
    everything = everything or archived
    tasks = [task for status in STATUSES for task in pages(client, status, None if everything else PAGE, chosen)[0]]
    asked = asked_by_task(client.request("GET", "/api/inbox"), now)
    columns = board_columns(access.snake_keys(tasks), asked, now, everything)
    shown = [task for column in columns.values() for task in column]
    if as_json:
        by_id = {task["id"]: task for task in tasks}
        waiting = {task["id"] for task in columns[ASKED]}
        access.write_json(
            [by_id[task["id"]] | access.camel_keys({"needs_you": task["id"] in waiting}) for task in shown]
        )
        return
    colour = config.colour_wanted(sys.stdout.isatty())
    if shown:
        access.write_lines(board_lines(columns, asked, now, access.terminal_width(), everything, colour))
    if not tasks:
        print(NO_TASKS, file=sys.stderr)
    elif hidden := len(tasks) - len(shown):
        some = "1 task was" if hidden == 1 else f"{hidden} tasks were"
        print(f"{some} finished more than a day ago: hocket task board --all", file=sys.stderr)


@command(
    TASK,
    Option("-v", "--verbose", kind=FLAG, help="Show complete messages and prompts."),
    JSON,
    examples=("hocket task show 7", "hocket task show 7 -v"),
)
def show(ref: str, verbose: bool, as_json: bool) -> None:
    """Show a task: its description, its plan, its hand-offs and their results."""
    client = access.connect(talk=not as_json)
    found = client.request("GET", path_of(ref))
    if as_json:
        access.write_json(found)
        return
    queue = client.request("GET", path_of(found["id"], "queue"))["items"]
    task = access.snake_keys({**found, "queue": queue})
    prompts: dict[str, str] = {}
    for one in task["agent_chain"] if verbose else ():
        # The prompts of imported runs are unknown.
        if prompt := client.request("GET", path_of(task["id"], "handoffs", one["id"])).get("prompt"):
            prompts[one["id"]] = prompt
    now = time.time()
    asked = asked_by_task(client.request("GET", "/api/inbox"), now).get(task["id"])
    access.write_lines(task_lines(task, prompts, now, access.terminal_width(), verbose, asked))


@command(
    TASK,
    Option("--summary", metavar="TEXT", help="Summary, in a sentence or two."),
    Option("--requirement", metavar="TEXT", many=True, help="Requirement; may be repeated."),
    Option("--criterion", metavar="TEXT", many=True, help="Acceptance criterion; may be repeated."),
    Option("--plan", name="steps", metavar="TEXT", help='Plan; "-" reads standard input.'),
    JSON,
    examples=(
        'hocket task plan 7 --summary "Sessions get a date" --criterion "make test passes"',
        "hocket task plan 7 --plan - < plan.md",
    ),
)
def plan(
    ref: str,
    summary: str | None,
    requirement: tuple[str, ...],
    criterion: tuple[str, ...],
    steps: str | None,
    as_json: bool,
) -> None:
    """Set or change the plan of a task. Parts that are not given stay as they are."""
    given = {
        "summary": summary,
        "requirements": list(requirement) or None,
        "acceptance_criteria": list(criterion) or None,
        "plan": access.pick_prompt(steps, None, ""),
    }
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        raise ArgumentError("the plan is empty: give --summary, --requirement, --criterion or --plan")
    planned = access.connect(talk=not as_json).request("PUT", path_of(ref, "planning"), access.camel_keys(said))
    access.write_json(planned) if as_json else print(f"planned task {planned['number']}", file=sys.stderr)


@command(
    TASK,
    Argument("type", "[TYPE]", required=False, kind=STATUSES),
    Option("-m", "--message", metavar="TEXT", help="Message for the history."),
    JSON,
    examples=("hocket task status 7", 'hocket task status 7 completed -m "Released with 1.2"'),
)
def status(ref: str, type: str | None, message: str | None, as_json: bool) -> None:  # noqa: A002 - its name outside
    """Print or set the status of a task: pending, active, waiting, completed or failed."""
    client = access.connect(talk=not as_json)
    if type is None:
        if message is not None:
            raise ArgumentError("-m needs a status")
        found = client.request("GET", path_of(ref))
    else:
        new_status = {"type": type} | ({"message": message} if message is not None else {})
        found = client.request("PUT", path_of(ref, "status"), {"status": new_status})
    access.write_json(found["status"]) if as_json else access.write(f"{found['status']['type']}\n")


@command(TASK, JSON, examples=("hocket task history 7", "hocket task history 7 --json"))
def history(ref: str, as_json: bool) -> None:
    """Print the history of a task, in order."""
    events = access.connect(talk=not as_json).request("GET", path_of(ref, "history"))["events"]
    lines = history_lines(access.snake_keys(events), access.terminal_width())
    access.write_json(events) if as_json else access.write_lines(lines)


@command(
    TASK,
    Argument("words", "[AGENT PROMPT]", many=True, required=False),
    Option("--next", name="first", kind=FLAG, help="Remove the first entry and print its prompt."),
    Option("--remove", metavar="ID", help="Remove this entry."),
    JSON,
    examples=('hocket task queue 7 qa "Try it out"', "hocket task queue 7", "hocket task queue 7 --next"),
    prose=True,
)
def queue(ref: str, words: tuple[str, ...], first: bool, remove: str | None, as_json: bool) -> None:
    """List the queue of a task, or add to it. Entries are handed over one after another, until one fails."""
    if bool(words) + first + (remove is not None) > 1:
        raise ArgumentError("give AGENT PROMPT, --next or --remove")
    if words and len(words) != 2:
        raise ArgumentError("give AGENT PROMPT, with the prompt in quotes")
    client = access.connect(talk=not as_json)
    key = "id"
    if words:
        place = access.directory(None)
        body = access.camel_keys({"agent_name": words[0], "default_cwd": place})
        body |= {"prompt": access.pick_prompt(words[1], None, ""), "env": access.environment(place)}
        found = client.request("POST", path_of(ref, "queue"), body)
    elif first:
        found, key = client.request("POST", path_of(ref, "queue", "next"), {}), "prompt"
    elif remove is not None:
        found = client.request("DELETE", path_of(ref, "queue", remove))
    else:
        found = client.request("GET", path_of(ref, "queue"))["items"]
    if as_json:
        access.write_json(found)
    elif isinstance(found, dict):
        access.print_result(found[key])
    elif found:
        access.write_lines(queue_lines(access.snake_keys(found), access.terminal_width()))
    else:
        print("The queue is empty.", file=sys.stderr)


@command(
    TASK,
    Argument("files", "[FILE]...", many=True, required=False),
    Option("--name", metavar="NAME", help="Name of the attachment (default: the name of the file)."),
    Option("--get", metavar="NAME", help="Write an attachment to a file or to standard output."),
    Option("-o", "--output", metavar="FILE", help='With --get: write to FILE; "-" is standard output.'),
    JSON,
    examples=(
        "hocket task attach 7 design.pdf notes.md",
        "hocket task attach 7 --get notes.md",
        "hocket task attach 7 --get design.pdf -o design.pdf",
    ),
)
def attach(
    ref: str, files: tuple[str, ...], name: str | None, get: str | None, output: str | None, as_json: bool
) -> None:
    """Attach files to a task, list its attachments, or write one out."""
    if get is not None and (files or name is not None):
        raise ArgumentError("--get cannot be combined with files to attach")
    if output is not None and get is None:
        raise ArgumentError("-o needs --get")
    if name is not None and len(files) != 1:
        raise ArgumentError("--name needs exactly one file")
    client = access.connect(talk=not as_json)
    if get is not None:
        _write_attachment(client.download(path_of(ref, ATTACHMENTS, get)), output)
        return
    route = path_of(ref, ATTACHMENTS)
    attachments = [
        _upload(client, route, name or os.path.basename(os.path.abspath(file)), file, through_links=True)
        for file in files
    ]
    if not files:
        attachments = client.request("GET", route)["items"]
    if as_json:
        access.write_json(attachments)
    elif attachments:
        access.write_lines([f"{one['size']:>10}  {one['name']}" for one in attachments])
    else:
        print("No attachments.", file=sys.stderr)


@command(
    Argument("ref", "[TASK]", required=False),
    Option("--all", name="everything", kind=FLAG, help="Export every task."),
    Option("-o", "--output", metavar="DIR", help="Write below this folder (default: one task to standard output)."),
    examples=("hocket task export 7 > task.json", "hocket task export --all -o backup"),
)
def export(ref: str | None, everything: bool, output: str | None) -> None:
    """Export tasks to files: DIR/ID/task.json, with the attachments beside it."""
    if everything == (ref is not None):
        raise ArgumentError("give a TASK, or --all")
    if everything and output is None:
        raise ArgumentError("--all needs -o DIR")
    client = access.connect()
    refs = [one["id"] for one in reversed(pages(client, None, None, "all")[0])] if ref is None else [ref]
    for one in refs:
        found = client.request("GET", path_of(one, "export"))
        if output is None:
            access.write(_task_json(found))
        else:
            access.write(f"{_export_task(client, found, output)}\n")


@command(
    Argument("places", "FILE|DIR...", many=True),
    JSON,
    examples=("hocket task import task.json", "hocket task import backup"),
)
def import_(places: tuple[str, ...], as_json: bool) -> int:
    """Import tasks from files written by export, or by another program in the same format.

    A task keeps its id, hand-offs, queue and history. A hand-off that was running at the time of the export is closed
    as lost, and the queue waits until you hand the task to an agent.
    """
    client = access.connect(talk=not as_json)
    taken: list[dict[str, Any]] = []
    code = 0
    for path in [path for place in places for path in task_files(place)]:
        try:
            task = _import_task(client, path)
        except HocketError as error:
            # One that is refused does not stop the others.
            print(f"hocket: {one_line(path)}: {strip_controls(error.message)}", file=sys.stderr)
            code = 2
            continue
        taken.append(task)
        if not as_json:
            access.write(f"task {task['number']}\n")
            _report_imported(access.snake_keys(task), client)
    if as_json:
        access.write_json(taken)
    return code


@command(
    TASKS,
    Option("--undo", kind=FLAG, help="Bring the tasks back from the archive."),
    JSON,
    examples=("hocket task archive 7 8", "hocket task archive 7 --undo"),
)
def archive(refs: tuple[str, ...], undo: bool, as_json: bool) -> int:
    """Hide tasks from list and board, until they are handed off again or brought back with --undo."""
    client = access.connect(talk=not as_json)

    def change(ref: str) -> Task:
        made: Task = client.request("PUT", path_of(ref, "archive"), {"archived": not undo})
        if not as_json:
            print(f"{'brought back' if undo else 'archived'} task {made['number']}", file=sys.stderr)
        return made

    return _each(refs, change, as_json)


@command(
    TASKS,
    Option("-y", "--yes", kind=FLAG, help="Remove without asking; required without a terminal and with --json."),
    JSON,
    examples=("hocket task rm 7 8", "hocket task rm 7 --yes"),
)
def rm(refs: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove tasks for good, with their hand-off records, history, queue and attachments. Their runs stay."""
    if not yes and not access.can_ask(as_json):
        raise ArgumentError("nothing was removed: removing a task needs a terminal, or --yes")
    client = access.connect(talk=not as_json)

    def remove(ref: str) -> Task | None:
        # By its id, so that a repeated request cannot mean another task by then.
        with suppress(NotFound):
            task = client.request("GET", path_of(ref))
            if not yes and not access.confirm(
                f"Remove task {task['number']}, {truncate(one_line(task['description']), 60)}?"
            ):
                return None
            ref = task["id"]
        removed: Task = client.request("DELETE", path_of(ref))
        if not as_json:
            print(f"removed task {removed['number']}", file=sys.stderr)
        return removed

    return _each(refs, remove, as_json)


def _each(refs: tuple[str, ...], change: Callable[[str], Task | None], as_json: bool) -> int:
    """Change several tasks; one that is refused does not stop the others. None is one that the user declined."""
    changed: list[Task] = []
    code = 0
    for ref in refs:
        try:
            made = change(ref)
        except HocketError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            print(f"hocket: {one_line(ref)}: {strip_controls(error.message + hint)}", file=sys.stderr)
            code = max(code, error.exit_code)
            continue
        if made is None:
            code = max(code, DECLINED)
        else:
            changed.append(made)
    if as_json:
        access.write_json(changed)
    return code


TASK_FILE, ATTACHMENTS = "task.json", "attachments"
MAX_TASK_FILE = 64 * 1024 * 1024


def _upload(client: Client, route: str, name: str, path: str, *, through_links: bool) -> dict[str, Any]:
    """Attach a file to a task; returns the attachment."""
    content = _read(path, MAX_ATTACHMENT, through_links=through_links)
    body = {"filename": name, "content": b64encode(content).decode("ascii")}
    made: dict[str, Any] = client.request("POST", route, body)
    return made


def _write_attachment(content: bytes, output: str | None) -> None:
    """Write an attachment to a file or to standard output."""
    if output not in (None, "-"):
        write_atomically(str(output), content)
        return
    if output is None and sys.stdout.isatty():
        raise ArgumentError("refusing to write a file to a terminal: give -o FILE, or -o - to print it anyway")
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _read(path: str, most: int, *, through_links: bool) -> bytes:
    """Read a regular file; a pipe or a device might never end."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if through_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path!r} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UsageError(f"{path!r} is larger than {most // 2**20} MB")
    return content


def write_atomically(path: str, content: bytes) -> None:
    """Write a file that readers see complete or not at all."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name[:100]}.{os.urandom(6).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BadDirectory(f"{path!r} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise BadDirectory(f"{path!r} cannot be written: {error.strerror}") from error


def _export_task(client: Client, task: dict[str, Any], folder: str) -> str:
    """Write one task below a folder and return the path of its file, which is written last."""
    place = os.path.join(folder, _file_name(task["id"]))
    files = os.path.join(place, ATTACHMENTS)
    try:
        os.makedirs(files if task["attachments"] else place, exist_ok=True)
    except OSError as error:
        raise BadDirectory(f"{place!r} cannot be created: {error.strerror}") from error
    for one in task["attachments"]:
        content = client.download(path_of(task["id"], ATTACHMENTS, one["name"]))
        write_atomically(os.path.join(files, _file_name(one["name"])), content)
    path = os.path.join(place, TASK_FILE)
    write_atomically(path, _task_json(task).encode(errors="backslashreplace"))
    return path


def _task_json(task: dict[str, Any]) -> str:
    return json.dumps(task, ensure_ascii=False, indent=2) + "\n"


def _file_name(name: object) -> str:
    """A name that cannot leave its folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UsageError(f"{str(name)[:80]!r} is not a valid file name")
    return name


def _report_imported(task: dict[str, Any], client: Client) -> None:
    """Report what was not imported, and what waits in the queue."""
    away = sum(one["elsewhere"] and one["run"] is not None for one in task["agent_chain"])
    if away:
        runs = "1 run was" if away == 1 else f"{away} runs were"
        print(f"hocket: {runs} not imported; the hand-off records have their results", file=sys.stderr)
    waiting = len(client.request("GET", f"/api/tasks/{task['id']}/queue")["items"])
    if waiting:
        hint = f'hocket handoff {task["number"]} AGENT "PROMPT"'
        print(f"hocket: {waiting} queued; to start the queue, hand over the task: {hint}", file=sys.stderr)


def task_files(place: str) -> list[str]:
    """The task files at a path: itself, that of one folder, or those of all folders in it."""
    if not os.path.isdir(place):
        return [place]
    own = os.path.join(place, TASK_FILE)
    if os.path.exists(own):
        return [own]
    names = sorted(os.listdir(place))
    below = [path for name in names if os.path.exists(path := os.path.join(place, name, TASK_FILE))]
    found = below or [os.path.join(place, name) for name in names if name.endswith(".json") and name[0] != "."]
    if not found:
        raise UsageError(f"no task file in {place!r}", "expected DIR/ID/task.json or DIR/NAME.json")
    return found


def parse_task(content: bytes) -> dict[str, Any]:
    """The JSON object in a task file."""
    try:
        value = json.loads(content)
    except UnicodeDecodeError as error:
        raise UsageError(f"is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise UsageError("is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"line {error.lineno}: is not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise UsageError("is not a JSON object")
    return value


def _import_task(client: Client, path: str) -> dict[str, Any]:
    """Import one task with the attachments beside its file."""
    content = parse_task(_read(path, MAX_TASK_FILE, through_links=True))
    task: dict[str, Any] = client.request("POST", "/api/tasks/import", {"task": content})
    listed = content.get("attachments")
    names = [_file_name(one.get("name")) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    for name in names:
        file = os.path.join(os.path.dirname(path), ATTACHMENTS, name)
        if os.path.lexists(file):
            _upload(client, path_of(task["id"], ATTACHMENTS), name, file, through_links=False)
        else:
            print(f"hocket: {one_line(file)} is missing; {task['id']} was imported without it", file=sys.stderr)
    return client.request("GET", path_of(task["id"])) if names else task


task = Group(
    "Create, show and manage tasks.",
    {
        "new": new,
        "list": list_,
        "board": board,
        "show": show,
        "plan": plan,
        "status": status,
        "history": history,
        "queue": queue,
        "attach": attach,
        "export": export,
        "import": import_,
        "archive": archive,
        "rm": rm,
    },
    'hocket task new "Sessions expire after a day"',
    'hocket handoff 7 developer "Do it"',
    "hocket task show 7",
)

"""``hocket task …``: what is wanted, and what came of it. How it reads is ``story``'s, files are ``taskfiles``'."""

from __future__ import annotations

import sys
import time
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.usage import COUNT, CWD, FLAG, JSON, Argument, ArgumentError, Group, Option, command
from hocket.client import Client, quote

Task = dict[str, Any]

STATUSES = ("pending", "active", "waiting", "completed", "failed")
LISTED = 20
NO_TASK = 'No task. Make one: hocket task new "What is wanted"'
TASK = Argument("ref", "TASK")


def path_of(ref: str, *more: str) -> str:
    """The route of one task, or of something that is part of it."""
    return "/".join(["/api/tasks", *map(quote, (ref, *more))])


def write_lines(lines: list[str]) -> None:
    access.write("".join(f"{line}\n" for line in lines))


@command(
    Argument("words", "DESCRIPTION...|-", many=True),
    CWD,
    JSON,
    examples=('hocket task new "Sessions expire after a day"', "hocket task new - < wish.txt"),
    prose=True,
)
def new(words: tuple[str, ...], cwd: str | None, as_json: bool) -> None:
    """Say what is wanted, and print the task's number. Nothing is started; "-" reads standard input."""
    description = access.pick_prompt("-", None, "") if words == ("-",) else " ".join(words)
    if not (description or "").strip():
        raise ArgumentError("say what is wanted")
    body = {"description": description, "cwd": access.directory(cwd)}
    made = access.connect(talk=not as_json).request("POST", "/api/tasks", body)
    access.write_json(made) if as_json else access.write(f"task {made['number']}\n")


@command(
    Option("--status", kind=STATUSES, help="Only those that are so far."),
    Option("--limit", kind=COUNT, metavar="N", default=LISTED, show_default=True, help="So many, the newest first."),
    JSON,
    examples=("hocket task list", "hocket task list --status waiting --json"),
)
def list_(status: str | None, limit: int, as_json: bool) -> None:
    """List tasks, the newest first."""
    from hocket.cli.story import task_table

    found, more = pages(access.connect(talk=not as_json), status, limit)
    if as_json:
        access.write_json(found)
    elif found:
        write_lines(task_table(access.snake_keys(found), time.time(), access.terminal_width()))
        if more:
            print(f"There are more: hocket task list --limit {limit * 5}", file=sys.stderr)
    else:
        print(NO_TASK, file=sys.stderr)


PAGE = 1000
"""As many as the server gives at once."""


def pages(client: Client, status: str | None, limit: int | None) -> tuple[list[Task], bool]:
    """The newest tasks, up to ``limit``, and whether there are more."""
    found: list[Task] = []
    before: int | None = None
    while limit is None or len(found) < limit:
        size = PAGE if limit is None else min(PAGE, limit - len(found))
        given = {"status": status, "limit": size, "before": before}
        query = "&".join(f"{name}={value}" for name, value in given.items() if value is not None)
        answer = client.exchange("GET", f"/api/tasks?{query}")
        found += answer["data"]
        before = answer["meta"]["next"]
        if before is None:
            return found, False
    return found, True


@command(
    Option("--all", name="everything", kind=FLAG, help="Also what was finished more than a day ago, and every card."),
    JSON,
    examples=("hocket task board", "hocket task board --all --json"),
)
def board(everything: bool, as_json: bool) -> None:
    """Show who has which task for how long: a column for each state, or one below the other on a narrow terminal."""
    from hocket.cli import board as drawing

    client = access.connect(talk=not as_json)
    now = time.time()
    tasks = [task for status in STATUSES for task in pages(client, status, None if everything else PAGE)[0]]
    asked = {one["task"]: one["asked_at"] for one in reversed(client.request("GET", "/api/inbox")) if one["task"]}
    columns = drawing.on_board(access.snake_keys(tasks), asked, now, everything)
    shown = [task for column in columns.values() for task in column]
    if as_json:
        as_given = {task["id"]: task for task in tasks}
        needy = {task["id"] for task in columns[drawing.ASKED]}
        needs = [access.camel_keys({"needs_you": task["id"] in needy}) for task in shown]
        access.write_json([as_given[task["id"]] | need for task, need in zip(shown, needs, strict=True)])
    elif shown:
        lines = drawing.board(columns, asked, now, access.terminal_width(), everything)
        write_lines(drawing.spelled(lines, config.colour_wanted(sys.stdout.isatty())))
    _tell_board(len(shown), len(tasks), as_json)


def _tell_board(shown: int, found: int, as_json: bool) -> None:
    """Where the board is empty, or not all, the command that helps."""
    if as_json:
        return
    if not found:
        print(NO_TASK, file=sys.stderr)
    elif found > shown:
        some = "1 task was" if found - shown == 1 else f"{found - shown} tasks were"
        print(f"{some} finished more than a day ago: hocket task board --all", file=sys.stderr)


@command(
    TASK,
    Option("-v", "--verbose", kind=FLAG, help="Every message whole, and what each agent was asked."),
    JSON,
    examples=("hocket task show 7", "hocket task show 7 -v"),
)
def show(ref: str, verbose: bool, as_json: bool) -> None:
    """Tell the story of a task: what is wanted, its plan, who had it when, and what came of it."""
    from hocket.cli.story import story

    client = access.connect(talk=not as_json)
    found = client.request("GET", path_of(ref))
    if as_json:
        access.write_json(found)
        return
    queue = client.request("GET", path_of(found["id"], "queue"))["items"]
    prompts = _prompts(client, found) if verbose else {}
    task = access.snake_keys({**found, "queue": queue})
    write_lines(story(task, prompts, time.time(), access.terminal_width(), verbose))


def _prompts(client: Client, found: Task) -> dict[str, str]:
    """What each agent was asked; those whose runs are elsewhere tell nothing."""
    records = access.snake_keys(found)["agent_chain"]
    told = {one["id"]: client.request("GET", path_of(found["id"], "handoffs", one["id"])) for one in records}
    return {name: detail["prompt"] for name, detail in told.items() if detail.get("prompt")}


@command(
    TASK,
    Option("--summary", metavar="TEXT", help="What it is, in a sentence or two."),
    Option("--requirement", metavar="TEXT", many=True, help="What has to hold; may be given several times."),
    Option("--criterion", metavar="TEXT", many=True, help="How to see that it is done; several times too."),
    Option("--plan", name="steps", metavar="TEXT", help='The plan itself; "-" reads standard input.'),
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
    """Make a plan of a description, or change it. What is not given stays as it is."""
    given = {
        "summary": summary,
        "requirements": list(requirement) or None,
        "acceptance_criteria": list(criterion) or None,
        "plan": access.pick_prompt(steps, None, ""),
    }
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        raise ArgumentError("nothing to plan: give --summary, --requirement, --criterion or --plan")
    planned = access.connect(talk=not as_json).request("PUT", path_of(ref, "planning"), access.camel_keys(said))
    access.write_json(planned) if as_json else print(f"task {planned['number']} is planned", file=sys.stderr)


@command(
    TASK,
    Argument("type", "[TYPE]", required=False, kind=STATUSES),
    Option("-m", "--message", metavar="TEXT", help="A word about it."),
    JSON,
    examples=("hocket task status 7", 'hocket task status 7 completed -m "Released with 1.2"'),
)
def status(ref: str, type: str | None, message: str | None, as_json: bool) -> None:  # noqa: A002 - its name outside
    """Print how far a task is, or say so: pending, active, waiting, completed or failed."""
    client = access.connect(talk=not as_json)
    if type is None:
        if message is not None:
            raise ArgumentError("-m goes with a status")
        found = client.request("GET", path_of(ref))
    else:
        wanted = {"type": type} | ({"message": message} if message is not None else {})
        found = client.request("PUT", path_of(ref, "status"), {"status": wanted})
    access.write_json(found["status"]) if as_json else access.write(f"{found['status']['type']}\n")


@command(TASK, JSON, examples=("hocket task history 7", "hocket task history 7 --json"))
def history(ref: str, as_json: bool) -> None:
    """Print all that happened to a task, in order."""
    from hocket.cli.story import history_lines

    events = access.connect(talk=not as_json).request("GET", path_of(ref, "history"))["events"]
    access.write_json(events) if as_json else write_lines(
        history_lines(access.snake_keys(events), access.terminal_width())
    )


@command(
    TASK,
    Argument("words", "[AGENT PROMPT]", many=True, required=False),
    Option("--next", name="first", kind=FLAG, help="Take the first out and print it."),
    Option("--remove", metavar="ID", help="Take this one out."),
    JSON,
    examples=('hocket task queue 7 qa "Try it out"', "hocket task queue 7", "hocket task queue 7 --next"),
    prose=True,
)
def queue(ref: str, words: tuple[str, ...], first: bool, remove: str | None, as_json: bool) -> None:
    """List what waits for a task, or add to it: handed over one after the other, as long as each ends well."""
    if bool(words) + first + (remove is not None) > 1:
        raise ArgumentError("give AGENT PROMPT, --next or --remove")
    if words and len(words) != 2:
        raise ArgumentError("give AGENT PROMPT, with the prompt in quotes")
    client = access.connect(talk=not as_json)
    if words:
        place = access.directory(None)
        body = access.camel_keys({"agent_name": words[0], "default_cwd": place})
        body |= {"prompt": access.pick_prompt(words[1], None, ""), "env": access.environment(place)}
        _tell_item(client.request("POST", path_of(ref, "queue"), body), as_json, "id")
    elif first:
        _tell_item(client.request("POST", path_of(ref, "queue", "next"), {}), as_json, "prompt")
    elif remove is not None:
        _tell_item(client.request("DELETE", path_of(ref, "queue", remove)), as_json, "id")
    else:
        _tell_queue(client.request("GET", path_of(ref, "queue"))["items"], as_json)


def _tell_item(item: dict[str, Any], as_json: bool, key: str) -> None:
    access.write_json(item) if as_json else access.print_result(item[key])


def _tell_queue(items: list[dict[str, Any]], as_json: bool) -> None:
    from hocket.cli.story import queue_lines

    if as_json:
        access.write_json(items)
    elif items:
        write_lines(queue_lines(access.snake_keys(items), access.terminal_width()))
    else:
        print("Nothing waits.", file=sys.stderr)


@command(
    TASK,
    Argument("files", "[FILE]...", many=True, required=False),
    Option("--name", metavar="NAME", help="What it is to be called; without it the file's own name."),
    Option("--get", metavar="NAME", help="Give an attachment back."),
    Option("-o", "--output", metavar="FILE", help='With --get: where to; "-" is standard output.'),
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
    """Keep files with a task, list them, or give one back."""
    from hocket.cli import taskfiles

    if get is not None and (files or name is not None):
        raise ArgumentError("--get gives one back; files to keep are another command")
    if output is not None and get is None:
        raise ArgumentError("-o goes with --get")
    if name is not None and len(files) != 1:
        raise ArgumentError("--name is that of one file")
    client = access.connect(talk=not as_json)
    if get is not None:
        taskfiles.give_back(client.download(path_of(ref, "attachments", get)), output)
        return
    kept = [taskfiles.attach(client, path_of(ref, "attachments"), file, name) for file in files]
    if not files:
        kept = client.request("GET", path_of(ref, "attachments"))["items"]
    if as_json:
        access.write_json(kept)
    elif kept:
        write_lines([f"{one['size']:>10}  {one['name']}" for one in kept])
    else:
        print("It has no attachments.", file=sys.stderr)


@command(
    Argument("ref", "[TASK]", required=False),
    Option("--all", name="everything", kind=FLAG, help="Every task there is."),
    Option("-o", "--output", metavar="DIR", help="Where to; without it one task goes to standard output."),
    examples=("hocket task export 7 > task.json", "hocket task export --all -o backup"),
)
def export(ref: str | None, everything: bool, output: str | None) -> None:
    """Write tasks as files: DIR/ID/task.json, with the attachments beside it."""
    from hocket.cli import taskfiles

    if everything == (ref is not None):
        raise ArgumentError("give a TASK, or --all")
    if everything and output is None:
        raise ArgumentError("--all needs a folder: -o DIR")
    client = access.connect()
    refs = [one["id"] for one in reversed(pages(client, None, None)[0])] if ref is None else [ref]
    for one in refs:
        found = client.request("GET", path_of(one, "export"))
        if output is None:
            access.write(taskfiles.spelled(found))
        else:
            written = taskfiles.export(found, output, lambda *more: client.download(path_of(*more)))
            access.write(f"{written}\n")


@command(
    Argument("places", "FILE|DIR...", many=True),
    JSON,
    examples=("hocket task import task.json", "hocket task import backup"),
)
def import_(places: tuple[str, ...], as_json: bool) -> int:
    """Take over tasks from files that export wrote, or that another program wrote in the same form.

    A task keeps its id, its hand-offs, its queue and its history. What was at work in one when it was written is
    closed as lost, and what is queued waits until you hand the task to an agent here.
    """
    from hocket.cli import taskfiles

    return taskfiles.take_over(access.connect(talk=not as_json), places, as_json)


task = Group(
    "What is wanted, and what came of it.",
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
    },
    'hocket task new "Sessions expire after a day"',
    'hocket handoff 7 developer "Do it"',
    "hocket task show 7",
)

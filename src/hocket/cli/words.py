"""What events say to people: one table from an event's type to its words, and the lines that a question needs.

Here belong words alone. Who speaks is ``progress``'s to know, and how loud it looks is ``terminal``'s.
"""

from __future__ import annotations

from hocket.cli.format import appointment, moment, one_line, spelled, uttered

TYPE_CHECKING = False  # `typing` is not worth its time here; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Data = dict[str, Any]

SAID, ASIDE, NOTICE, ALERT, THOUGHT = "said", "aside", "notice", "alert", "thought"
"""How much an event wants to be seen: an agent's own words, what it does meanwhile, what went other than planned,
what waits for an answer, and what only the curious want to know."""

DEED_LIMIT = 200
GATE_LINES = 8
"""So many of a failed gate's last lines are shown; its event has more."""
ASK_LIMIT = 4000
"""Longer than any deed that is only looked at: what is to be allowed should be seen whole."""
ASK_LINES = 30
BAR = "  | "
"""In front of every line but the first of what is to be allowed: none of them can pass for a line of ours."""
POINT = "  · "
"""In front of an argument's name, so that no line of a command can pass for an argument that runs nothing."""
TAB_COLUMNS = 4
_TELLING = (
    *("command", "file_path", "notebook_path", "path", "pattern", "url", "query", "description", "subject", "prompt"),
)
"""Which of a tool's arguments says best what it is about to do, the most telling first."""
_TALK: dict[str, dict[str, tuple[type, ...]]] = {"Bash": {"description": (str,), "timeout": (int, float)}}
"""By tool the arguments, of these types, that change nothing about what it does; few commands come without them."""


class Way:
    """How one type of event is told."""

    __slots__ = ("tone", "words")

    def __init__(self, tone: str, words: Callable[[Data], str | None]) -> None:
        self.tone = tone
        self.words = words
        """None, or nothing but space, for an event of this type that is not worth a line."""


def deed(tool: str, given: Any) -> str:
    """What a tool is used for, on one line: ``Bash: make test``."""
    return _shortened(one_line(_deed(tool, given)), DEED_LIMIT)


def _deed(tool: str, given: Any) -> str:
    arguments = given if isinstance(given, dict) else {}
    telling = _telling(arguments)
    told = arguments[telling] if telling else _as_text(arguments) if arguments else ""
    return f"{tool}: {told}" if told else tool


def _telling(arguments: Data) -> str | None:
    return next((name for name in _TELLING if isinstance(arguments.get(name), str)), None)


def wish(question: Data, most: int | None = ASK_LINES) -> str:
    """What an agent wants: ``wants to run Bash: touch x``, or ``asks: Which colour? (1 Red, 2 Blue)``.

    A command of several lines has them here, and behind it stands whatever else the tool is given; up to so many lines,
    or all of them with None. Nothing is left out of them: what a terminal would obey is spelled.
    """
    text, given = str(question.get("text") or ""), question.get("input")
    more = "… (cut: hocket logs --raw has all of it)" if question.get("oversize") else ""
    if wants_words(question):
        return f"asks: {_seen_whole(one_line(text))}{more}{_options(question)}"
    if question.get("tool") and isinstance(given, dict):
        tool = str(question["tool"])
        return f"wants to run {_some_of([*_barred(_deed(tool, given)), *_also_given(tool, given)], most)}"
    return f"asks for leave: {_some_of(_barred(text), most)}{more}"


def headline(question: Data) -> str:
    """The first line of a wish, where the others stand below. One that is too long is cut if it stands there, too."""
    first, *others = wish(question, ASK_LINES if isinstance(question.get("input"), dict) else None).split("\n")
    return f"{first} …" if others else first


def _barred(text: str) -> list[str]:
    first, *others = judged_lines(text.rstrip(" \n"))
    return [first, *(f"{BAR}{line}" for line in others)]


def _also_given(tool: str, arguments: Data) -> list[str]:
    """What a tool is given besides what its deed tells, which is all of it where no argument is telling."""
    telling, talk = _telling(arguments), _TALK.get(tool, {})
    if telling is None:
        return []
    return argument_lines(
        {
            name: value
            for name, value in arguments.items()
            if name != telling and not (name in talk and isinstance(value, talk[name]))
        }
    )


def argument_lines(arguments: Data, head: str = POINT) -> list[str]:
    """What a tool is given, by name: all of it, each line of a value but the first with a bar."""
    return [
        f"{head}{spelled(str(name))}: {line}" if place == 0 else f"{BAR}{line}"
        for name, value in arguments.items()
        for place, line in enumerate(judged_lines(_as_text(value).rstrip(" \n")))
    ]


def _as_text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _some_of(lines: list[str], most: int | None) -> str:
    """As many lines and letters as can be looked at, and a word about what is missing."""
    if most is None:
        return "\n".join(lines)
    shown, room = list[str](), ASK_LIMIT
    for line in lines[:most]:
        if room <= 0:
            break
        shown.append(_seen_whole(line, room))
        room -= len(line)
    left = len(lines) - len(shown)
    tail = [f"  … {left} more line{'s' if left > 1 else ''}: hocket inbox"] if left else []
    return "\n".join([*shown, *tail])


def judged_lines(text: str) -> list[str]:
    """By line, with every letter spelled that would not be seen or that a terminal would obey."""
    return [spelled(line).expandtabs(TAB_COLUMNS).rstrip() for line in text.split("\n")]


def _seen_whole(text: str, most: int = ASK_LIMIT) -> str:
    """What is to be judged; or, where that is too long for a terminal, a beginning that does not pass for it."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… (cut: of {len(text)} letters; hocket inbox --json has all of them)"


def wants_words(question: Data) -> bool:
    """Whether any words answer it, and not a yes or a no alone."""
    return question.get("kind") in ("ask", "choice")


def _options(question: Data) -> str:
    """Of a question that an agent put itself; the CLI's own has them in its text."""
    options = () if question.get("tool") else question.get("options") or ()
    numbered = ", ".join(f"{number} {one_line(str(option))}" for number, option in enumerate(options, 1))
    return f" ({_seen_whole(numbered)})" if numbered else ""


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def reply_line(question: Data, run: object, several: bool = False) -> str:
    """The command that answers. Where several questions are open it has to say which.

    The words to choose from are joined so that typing them as they stand allows nothing.
    """
    which = f" --question {one_line(str(question['id']))}" if several else ""
    words = '"YOUR ANSWER"' if wants_words(question) else "allow/deny"
    return f"hocket answer {run}{which} {words}"


def with_reply(what: str, reply: str, gap: str = "    ") -> str:
    """What is asked with the command that answers it: behind it, or below where what is asked has lines of its own."""
    if not reply:
        return what
    return f"{what}{gap}{reply}" if "\n" not in what else f"{what}\n    {reply}"


def reply_lines(questions: list[Data]) -> list[str]:
    """For each open question the command that answers it, by the number of the run that asks."""
    asking = [question["run"] for question in questions]
    return [reply_line(one, one["number"], asking.count(one["run"]) > 1) for one in questions]


def _text(data: Data) -> str:
    return uttered(str(data.get("text", "")))


def _error_output(data: Data) -> str | None:
    """What a program wrote beside its output. Lines that a reader made nothing of are for programs."""
    if data.get("stream") != "stderr":
        return None
    return "\n".join(f"! {line}" for line in _text(data).split("\n"))


def _gate(data: Data) -> str:
    """Its verdict, and below it, where it is a bad one, the end of what it said."""
    said = [] if data.get("passed") else _last_lines(str(data.get("output") or ""))
    return "\n".join([gate_verdict(data), *(f"| {line}" for line in said)])


def gate_verdict(data: Data) -> str:
    """``gate passed: make test``."""
    return f"gate {_verdict(data)}: {one_line(str(data.get('command', '')))}"


def gate_at_work(data: Data) -> str:
    """``gate: make test``."""
    return f"gate: {_shortened(one_line(str(data.get('command', ''))), DEED_LIMIT)}"


def _last_lines(text: str) -> list[str]:
    lines = [_shortened(line.rstrip(), DEED_LIMIT) for line in uttered(text).split("\n") if line.strip()]
    return ["…", *lines[-GATE_LINES:]] if len(lines) > GATE_LINES else lines


def _verdict(data: Data) -> str:
    if data.get("passed"):
        return "passed"
    return "timed out" if data.get("timed_out") else f"not passed (exit {data.get('exit_code')})"


def _ended(data: Data) -> str | None:
    return None if data.get("status") == "done" else one_line(f"{data.get('status')}: {_why(data)}")


def _why(data: Data) -> str:
    code = data.get("exit_code")
    told = f"{data.get('reason')} {code}" if data.get("reason") == "exit" and code is not None else data.get("reason")
    return f"{told} ({data['error']})" if data.get("error") else str(told)


def _tool_started(data: Data) -> str:
    return deed(str(data.get("name")), data.get("input"))


def _tool_finished(data: Data) -> str | None:
    return _with(f"{data.get('name')} failed", data) if data.get("error") else None


def _member(data: Data) -> str | None:
    status = str(data.get("status"))
    return None if status in ("running", "pending") else _with(status, data)


def _notice(data: Data) -> str:
    kind = str(data.get("kind") or "info")
    return one_line(_text(data)) if kind == "info" else _with(kind.replace("_", " "), data)


def _rate_limited(data: Data) -> str | None:
    if data.get("status") == "allowed":
        return None
    at = data.get("resets_at")
    until = f" until {moment(at)}" if isinstance(at, int | float) else ""
    return _with(f"rate limited{until}", data)


def _progress(data: Data) -> str | None:
    """Only what is missing is worth a line."""
    return (
        "nothing has changed since the pass before, and nothing new was said" if data.get("changed") is False else None
    )


def _worktree(data: Data) -> str:
    return one_line(f"works on branch {data.get('branch')} in {data.get('path')}")


def tree_lines(steps: list[Data], run: str) -> list[str]:
    """What the steps of a chain left in worktrees of their own, and what can be typed about it.

    Only what loses nothing, in whichever order: pruning looks once more at what is there.
    """
    left = [step for step in steps if step.get("repository")]
    lines = [line for step in left for line in _tree_lines(step)]
    return [*lines, f"    hocket worktrees prune {run}"] if any(step.get("worktree") for step in left) else lines


def _tree_lines(step: Data) -> list[str]:
    where = f", in {step['worktree']}" if step.get("worktree") else ""
    branch, head = step.get("branch"), step.get("head")
    on = f" on {branch}" if branch else f" on no branch ({head[:12]})" if head and step.get("commits") else ""
    work = _work(step) if on else _work(step).removesuffix(",")
    told = f"{step['agent']}: {work}{on}{where}"
    more = [f"besides: {step['besides']}" if step.get("besides") else "", " · ".join(_typed(step))]
    return [one_line(told), *(f"    {one_line(line)}" for line in more if line)]


def _typed(step: Data) -> Iterator[str]:
    import shlex  # it takes longer to load than most runs have to tell

    git = shlex.join(["git", "-C", str(step["repository"])])
    folder, branch, head = str(step.get("worktree") or ""), step.get("branch"), step.get("head")
    if branch is None and head and step.get("commits") != 0:
        # What is on no branch may go with its folder, so it is given one before anything else.
        branch = f"hocket/{folder.rpartition('/')[2]}"
        yield f"{git} branch {shlex.join([branch, head])}"
    if branch and step.get("commits") != 0:
        yield f"{git} merge {shlex.quote(branch)}"
    if branch and not folder:
        yield f"{git} branch -d {shlex.quote(branch)}"


def _work(step: Data) -> str:
    commits, left = step.get("commits"), step.get("uncommitted")
    done = "perhaps commits" if commits is None else f"{commits} commit{'s' if commits != 1 else ''}"
    if left is None:
        return f"{done}, perhaps more that is not committed,"
    return f"{done}, {left} file{'s' if left != 1 else ''} not committed," if left else done


def parking(data: Data, now: float) -> str:
    """What a chain waits for, and until when."""
    at = data.get("until")
    until = f" until {appointment(at, now)}" if isinstance(at, int | float) else ""
    if data.get("reason") == "rate_limited":
        return f"waits for the usage limit{until}"
    return f"waits{until}: the service is overloaded or cannot be reached"


def _parked(data: Data) -> str:
    import time

    return parking(data, time.time())


def _answer(data: Data) -> str:
    always = f", always: {data['rule']}" if data.get("rule") else ""
    return _with(f"{'allowed' if data.get('allow') else 'denied'} by {data.get('by') or 'somebody'}{always}", data)


def _input(data: Data) -> str | None:
    if data.get("kind") == "interrupt":
        return "interrupted"
    return f"> {_shortened(one_line(_text(data)), DEED_LIMIT)}" if data.get("kind") == "message" else None


def _turn_ended(data: Data) -> str | None:
    """Of a run that ends with its turn, its own end tells the same."""
    if not data.get("is_error") or not data.get("idle"):
        return None
    why = one_line(str(data.get("error") or data.get("subtype") or data.get("result")))
    return f"the turn failed: {_shortened(why, DEED_LIMIT)}"


def _with(head: str, data: Data) -> str:
    """A head with the event's text behind it, where there is one; all on one line."""
    told = _shortened(one_line(_text(data)), DEED_LIMIT) if data.get("text") else ""
    return f"{one_line(head)}: {told}" if told else one_line(head)


WAYS: dict[str, Way] = {
    "text": Way(SAID, _text),
    "raw": Way(SAID, _error_output),
    "gate": Way(SAID, _gate),
    "gate.started": Way(ASIDE, gate_at_work),
    "progress": Way(NOTICE, _progress),
    "worktree": Way(NOTICE, _worktree),
    "parked": Way(NOTICE, _parked),
    "unparked": Way(NOTICE, lambda data: "goes on"),
    "run.ended": Way(SAID, _ended),
    "input": Way(ASIDE, _input),
    "tool.started": Way(ASIDE, _tool_started),
    "tool.finished": Way(ASIDE, _tool_finished),
    "member": Way(ASIDE, _member),
    "thinking": Way(THOUGHT, lambda data: f"~ {one_line(_text(data))}"),
    "notice": Way(NOTICE, _notice),
    "rate_limited": Way(NOTICE, _rate_limited),
    "turn.ended": Way(NOTICE, _turn_ended),
    "answer": Way(NOTICE, _answer),
    "question": Way(ALERT, wish),
}
"""Events of any other type are for programs: ``--json`` has them all."""


def tone_of(event: Data) -> str | None:
    """How much an event wants to be seen; None for one that is for programs."""
    way = WAYS.get(event["type"])
    if way is not None and event["type"] == "gate" and not event["data"].get("passed"):
        return NOTICE  # why the work goes on
    return way.tone if way is not None else None

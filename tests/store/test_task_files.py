"""The files of tasks: what they tell, also when the last thing in them was cut short or never written."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.errors import NotFound
from hocket.model import Event, Reason, Status
from hocket.model.task import Create, Handoff, Order, Plan, Planning, Remove, Restore, SetStatus, Task, TaskStatus
from hocket.sessions.journal import Journal
from hocket.sessions.restore import LOST_OUTPUT, restore
from hocket.store import Committed, Store, open_store
from hocket.store.task_files import (
    CHANGED,
    FOLDER,
    LOG,
    MARK,
    TASK,
    StoredTask,
    TaskFiles,
    follow_handoffs,
    forget_mark,
    read_all,
    remove_files,
)

TASK_RECORD = Task("t1", 1, "Mend the roof 世界", 1.0, 1.0)
HANDED = replace(TASK_RECORD, handoffs=1)
DONE = Handoff("h1", "t1", 1, None, "qa", 0, 2.0, 3.0, Status.DONE, Reason.SINGLE_RUN, "held")
OPEN = Handoff("h2", "t1", 2, "r-unknown", "developer", 0, 4.0)
ENDING = replace(TASK_RECORD, status=TaskStatus.ACTIVE, current_agent="qa", ends_with_handoff=True)


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    with closing(open_store(home / "hocket.db")) as found:
        yield found


def folder(home: Path, name: str = "t1") -> Path:
    return home.joinpath(*FOLDER, name)


def give(home: Path, store: Store, *orders: Order, noting: bool = True) -> None:
    """What a server does: carry orders out, one after the other, and write them down."""

    async def work() -> None:
        journal = Journal(store, asyncio.get_running_loop())
        ledger = TaskFiles(home, store)
        if noting:
            journal.listen(ledger.note)
            await ledger.catch_up()
        for order in orders:
            await journal.write([], orders=[order])
        if noting:
            ledger.close()
        # As if it had been killed otherwise: nothing is marked.

    asyncio.run(work())


def only(home: Path) -> StoredTask:
    (kept,), unreadable = read_all(home)
    assert unreadable == 0
    return kept


def test_task_files_are_read_as_written(home: Path, store: Store) -> None:
    give(home, store, Create(HANDED, (DONE,)), Plan("t1", Planning("s")), SetStatus("t1", TaskStatus.FAILED, "no"))
    kept = only(home)
    assert kept.task == store.read.task("t1")
    assert kept.handoffs == (DONE,)
    assert [past.kind for past in kept.history] == ["task_created", "task_planned", "status_changed"]
    assert [past.ts for past in kept.history] == [event.ts for event in store.read.events("t1")]
    assert int((home.joinpath(*FOLDER) / MARK).read_text()) == store.read.last_seq()


def test_files_are_for_their_owner_alone(home: Path, store: Store) -> None:
    give(home, store, Create(TASK_RECORD))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder(home), *folder(home).iterdir())}
    assert modes == {"t1": 0o700, TASK: 0o600, LOG: 0o600}


def catch_up(home: Path, store: Store) -> None:
    """What the next server does first."""

    async def work() -> None:
        ledger = TaskFiles(home, store)
        await ledger.catch_up()
        ledger.close()

    asyncio.run(work())


def test_catch_up_writes_missing_tasks(home: Path, store: Store) -> None:
    give(home, store, Create(TASK_RECORD))
    other = replace(HANDED, id="t2", number=2)
    record = replace(DONE, task="t2")
    with closing(open_store(home / "later.db")) as later:
        # One server was killed after it had marked the first task and before it wrote anything of the second.
        give(
            home, later, Create(TASK_RECORD), Create(other, (record,)), SetStatus("t2", TaskStatus.FAILED), noting=False
        )
        assert [one.task.id for one in read_all(home)[0]] == ["t1"]
        (folder(home) / TASK).write_text("untouched")
        catch_up(home, later)
        (kept,), unreadable = read_all(home)
        assert unreadable == 1, "what was marked is not written again"
        assert (kept.task, kept.handoffs) == (later.read.task("t2"), (record,))
        assert [past.kind for past in kept.history] == ["task_created", "status_changed"]
        forget_mark(home)
        catch_up(home, later)
        assert [one.task.id for one in read_all(home)[0]] == ["t1", "t2"]


async def written(ledger: TaskFiles) -> None:
    """Until all that was submitted so far is in the files."""
    await asyncio.get_running_loop().run_in_executor(ledger._thread, lambda: None)


def test_catch_up_continues_after_the_mark(home: Path, store: Store) -> None:
    orders = [Create(replace(TASK_RECORD, id=f"t{number}", number=number)) for number in range(1, 101)]
    give(home, store, *orders, SetStatus("t1", TaskStatus.FAILED), noting=False)
    mark = home.joinpath(*FOLDER) / MARK
    last = store.read.last_seq()

    async def killed_on_the_way() -> None:
        ledger = TaskFiles(home, store)
        catching_up = asyncio.create_task(ledger.catch_up())
        async with asyncio.timeout(15):
            while not mark.exists() or int(mark.read_text()) < 10:
                await written(ledger)
        assert catching_up.cancel(), "it is marked as it goes"

    asyncio.run(killed_on_the_way())
    assert 0 < int(mark.read_text()) < last
    (folder(home, "t2") / TASK).unlink()

    async def killed_afterwards() -> None:
        ledger = TaskFiles(home, store)
        await ledger.catch_up()
        await written(ledger)

    asyncio.run(killed_afterwards())
    assert int(mark.read_text()) == last
    kept, unreadable = read_all(home)
    assert {one.task.id for one in kept} == {order.task for order in orders} - {"t2"}, "what is marked is left alone"
    assert (kept[0].task, unreadable) == (store.read.task("t1"), 0)


def test_mark_of_another_database_is_ignored(home: Path, store: Store) -> None:
    give(home, store, Create(TASK_RECORD), noting=False)
    home.joinpath(*FOLDER).mkdir(parents=True)
    (home.joinpath(*FOLDER) / MARK).write_text("999")
    catch_up(home, store)
    assert only(home).task == TASK_RECORD


def test_incomplete_line_is_skipped(home: Path, store: Store) -> None:
    give(home, store, Create(HANDED, (DONE,)))
    whole = (folder(home) / LOG).read_bytes()
    for torn in (b'{"handoff": {"id": "h9"', b'{"handoff": {"id": "h9"}}\n', b"[1]\n", b'{"seq": 1}\n', b"\xff\n"):
        (folder(home) / LOG).write_bytes(whole + torn)
        assert only(home).handoffs == (DONE,)
        assert len(only(home).history) == 1


def test_unreadable_task_is_counted(home: Path, store: Store) -> None:
    give(home, store, Create(TASK_RECORD))
    (folder(home) / TASK).write_text("{")
    assert read_all(home) == ([], 1)


@pytest.mark.parametrize(
    ("task", "chain", "status", "agent"),
    [
        (TASK_RECORD, [OPEN], TaskStatus.ACTIVE, "developer"),
        (Task("t1", 1, "x", 1.0, 1.0, status=TaskStatus.ACTIVE, current_agent="qa"), [DONE], TaskStatus.WAITING, None),
        (Task("t1", 1, "x", 1.0, 1.0, status=TaskStatus.ACTIVE), [DONE], TaskStatus.ACTIVE, None),
        (Task("t1", 1, "x", 1.0, 1.0, status=TaskStatus.COMPLETED), [OPEN], TaskStatus.COMPLETED, "developer"),
        (ENDING, [DONE], TaskStatus.COMPLETED, None),
        (ENDING, [replace(DONE, status=Status.STOPPED)], TaskStatus.FAILED, None),
        (replace(ENDING, status=TaskStatus.COMPLETED), [OPEN], TaskStatus.ACTIVE, "developer"),
    ],
)
def test_task_follows_newer_handoffs(task: Task, chain: list[Handoff], status: TaskStatus, agent: str | None) -> None:
    after = follow_handoffs(task, chain)
    assert (after.status, after.current_agent, after.handoffs) == (status, agent, chain[-1].number)


def test_open_handoff_of_unknown_run_is_lost(home: Path, store: Store) -> None:
    give(home, store, Restore(HANDED, (DONE,)))
    with (folder(home) / LOG).open("ab") as file:
        file.write(
            b'{"handoff":{"id":"h2","task":"t1","number":2,"run":"r9","agent":"dev","depth":0,"started_at":4.0}}\n'
        )
    store.close()
    begun = time.time()
    told = restore(home)
    assert (told.tasks, told.runs) == (1, 0)
    with closing(open_store(home / "hocket.db")) as after:
        first, second = after.read.handoffs("t1")
        assert first == DONE
        assert (second.status, second.reason, second.output) == (Status.LOST, Reason.LOST, LOST_OUTPUT)
        assert second.completed_at is not None
        assert second.completed_at >= begun
        task = after.read.task("t1")
        assert task is not None
        assert (task.current_agent, task.handoffs) == (None, 2)
        catch_up(home, after)
        assert only(home).handoffs == (first, second)


def test_unencodable_change_is_logged_and_not_marked(
    home: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    give(home, store, Create(TASK_RECORD))
    ledger = TaskFiles(home, store)
    asyncio.run(ledger.catch_up())
    odd = Event(store.read.last_seq() + 1, 2.0, "t1", "t1", CHANGED, {"event": "odd", "value": object()})
    ledger.note(Committed([odd], [], {}, {"t1": TASK_RECORD}))
    ledger.close()
    assert "the files of task t1 cannot be written" in caplog.text
    assert int((home.joinpath(*FOLDER) / MARK).read_text()) == store.read.last_seq(), "what is missing is not marked"


def test_copied_task_folder_does_not_affect_other_tasks(home: Path, store: Store) -> None:
    give(home, store, Create(HANDED, (DONE,)), Create(replace(TASK_RECORD, id="t2", number=2)))
    store.close()
    shutil.copytree(folder(home), folder(home, "t1.bak"))
    stranger = (folder(home) / TASK).read_text().replace('"t1"', '"t9"')  # with a number that is taken
    folder(home, "t9").mkdir()
    (folder(home, "t9") / TASK).write_text(stranger)
    told = restore(home)
    assert (told.tasks, told.unreadable) == (2, 1)
    (left,) = told.left_out
    assert left.startswith("task t9: ")
    with closing(open_store(home / "hocket.db")) as after:
        assert after.read.handoffs("t1") == [DONE]
        assert [after.read.task(name) is not None for name in ("t1", "t2", "t9")] == [True, True, False]


def test_failed_write_is_repeated_with_next_change(home: Path, store: Store) -> None:
    """A file stands where the folder should be; then it does not."""

    async def work() -> None:
        journal = Journal(store, asyncio.get_running_loop())
        ledger = TaskFiles(home, store)
        journal.listen(ledger.note)
        await ledger.catch_up()
        home.joinpath(*FOLDER).mkdir(parents=True)
        folder(home).write_text("in the way")
        await journal.write([], orders=[Create(HANDED, (DONE,))])
        await asyncio.get_running_loop().run_in_executor(ledger._thread, folder(home).unlink)
        await journal.write([], orders=[SetStatus("t1", TaskStatus.FAILED)])
        ledger.close()

    asyncio.run(work())
    assert only(home).handoffs == (DONE,)
    assert [past.kind for past in only(home).history] == ["task_created", "status_changed"]


# --- Removed tasks ---


def test_next_server_removes_files_of_removed_task(home: Path, store: Store) -> None:
    other = replace(TASK_RECORD, id="t2", number=2)
    give(home, store, Create(TASK_RECORD), Create(other))
    (folder(home) / ("a" * 64)).write_text("an attachment")
    # The server was killed between its two steps.
    give(home, store, Remove("t1"), noting=False)
    assert (store.read.task("t1"), folder(home).exists()) == (None, True)
    catch_up(home, store)
    assert not folder(home).exists()
    assert only(home).task.id == "t2"


def test_partly_removed_files_are_no_task(home: Path, store: Store) -> None:
    give(home, store, Create(TASK_RECORD))
    (folder(home) / ("a" * 64)).mkdir()  # it stops there
    with pytest.raises(OSError, match="aaa"):
        remove_files(folder(home))
    assert read_all(home) == ([], 0)


def test_only_own_files_of_a_task_are_removed(home: Path, store: Store, tmp_path: Path) -> None:
    give(home, store, Create(TASK_RECORD))
    (folder(home) / "mine.txt").write_text("a note")
    (tmp_path / TASK).write_text("elsewhere")
    remove_files(folder(home))
    assert [path.name for path in folder(home).iterdir()] == ["mine.txt"]
    folder(home, "t2").symlink_to(tmp_path)
    remove_files(folder(home, "t2"))
    assert (tmp_path / TASK).exists()


def test_removal_keeps_the_sequence_of_events(home: Path, store: Store) -> None:
    give(home, store, Create(TASK_RECORD), SetStatus("t1", TaskStatus.FAILED))
    before = store.read.last_seq()
    give(home, store, Remove("t1"))
    assert store.read.last_seq() == before + 1
    assert [event.data["event"] for event in store.read.events("t1")] == ["task_removed"]
    with pytest.raises(NotFound):
        give(home, store, Remove("t1"))

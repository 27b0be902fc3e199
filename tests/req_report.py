"""``--req-report``: which requirement lines have a passing test, and which have none.

A test names its lines with ``@pytest.mark.req("S1-B03")``. The ids travel as user properties of the test's
reports, so the summary is the same with workers and without.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

PROPERTY = "req"
FUTURE = "F"
LIST = Path(__file__).with_name("requirements.txt")


def read_ids(text: str) -> dict[str, str]:
    """``ID TAG`` lines; a line that starts with # is a remark."""
    lines = (line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {line[0]: line[1] for line in lines}


def known_ids() -> dict[str, str]:
    return read_ids(LIST.read_text(encoding="utf-8"))


def ids_of(item: pytest.Item) -> list[str]:
    return [name for marker in item.iter_markers("req") for name in marker.args]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--req-report", action="store_true", help="list the requirement lines and their passing tests")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Requirements(), "requirements")


class Requirements:
    """Collects the outcomes of one session."""

    def __init__(self) -> None:
        self.known = known_ids()
        self.ids: dict[str, set[str]] = defaultdict(set)
        self.passed: set[str] = set()
        self.not_passed: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.user_properties.extend((PROPERTY, name) for name in ids_of(item))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        unknown = [name for name in ids_of(item) if name not in self.known]
        if unknown:
            pytest.fail(f"unknown requirement {', '.join(unknown)}: not in {LIST.name}", pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        names = {str(value) for key, value in report.user_properties if key == PROPERTY}
        if not names:
            return
        test = base_name(report.nodeid)
        self.ids[test] |= names
        if report.passed and report.when == "call":
            self.passed.add(test)
        elif not report.passed:
            self.not_passed.add(test)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if config.getoption("--req-report"):
            terminalreporter.section("requirements")
            for line in summary(self.known, self.shown()):
                terminalreporter.write_line(line)

    def shown(self) -> dict[str, list[str]]:
        """Per requirement the tests that passed in all their variants."""
        tests: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self.passed - self.not_passed):
            for name in self.ids[test]:
                tests[name].append(test)
        return tests


def base_name(nodeid: str) -> str:
    """The variants of a parametrised test count as one, and so does its worker group."""
    return re.sub(r"(\[.*\])?(@\w+)?$", "", nodeid, flags=re.DOTALL)


def summary(known: Mapping[str, str], shown: Mapping[str, Iterable[str]]) -> list[str]:
    """The report's lines: what is shown with its tests, then what is not."""
    covered = [f"{name} {tag}  {', '.join(shown[name])}" for name, tag in known.items() if name in shown]
    missing = [name for name, tag in known.items() if name not in shown and tag != FUTURE]
    needed = sum(tag != FUTURE for tag in known.values())
    return [
        *covered,
        f"shown: {len(covered)} of {len(known)} lines ({needed} need a test)",
        f"without a passing test: {len(missing)}",
        *(" ".join(missing[start : start + 12]) for start in range(0, len(missing), 12)),
    ]

"""What an agent says, line by line: parts of messages as they arrive, whole messages for what is still missing.

A part is kept until its line is complete. Of what was said already, only its length and a checksum are remembered:
enough to see that a whole message begins with it, and small however long the message is. Secrets are masked in parts
as they are in the whole, also where a part ends in the middle of one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from hocket.chain.parse import bare_marker, marker_alone, may_matter, next_marker
from hocket.model import RESULT_LIMIT, Spec
from hocket.providers.base import ReaderEvent, State
from hocket.providers.json_values import cut, with_newest
from hocket.redaction import Redactor

Block = list[Any]
"""Of one block of a message: how many characters were said, their checksum, what is kept back, whether the line that is
kept back has lost its beginning, whether the whole block has been seen, and what is held that may begin a secret."""

_NEW: Block = [0, 0, "", False, False, None]
_MOST_BLOCKS = 64
_LONGEST_KEPT = RESULT_LIMIT // 4
"""Characters of a line that are kept back; with up to four bytes each, what is said then fits into one event."""


class TextBlocks:
    """Turns texts into events, for one run. It has no memory of its own: that is the state it is handed."""

    def __init__(self, spec: Spec, redactor: Redactor) -> None:
        self._redactor = redactor
        self._marker_text = spec.marker
        # Looking for the marker's text first keeps ordinary lines free of any further work.
        self._needle = bare_marker(spec.marker) if spec.loop else ""

    def part(self, state: State, key: str, text: str, who: Mapping[str, Any]) -> list[ReaderEvent]:
        """One more piece of a block, whose key ``block_key`` makes."""
        blocks = state.get("blocks") or {}
        sent, checksum, kept, headless, complete, held = self._known(blocks.get(key, _NEW))
        if complete:
            return []
        masked, held = self._redactor.feed(held, text)
        kept += masked
        end = kept.rfind("\n") + 1
        if not end and len(kept) <= _LONGEST_KEPT:
            state["blocks"] = with_newest(blocks, key, [sent, checksum, kept, headless, False, held], _MOST_BLOCKS)
            return []
        # A line of this length is said in pieces, for a state must stay small.
        end = end or len(kept)
        now, rest = kept[:end], kept[end:]
        block = [sent + end, _checksum(now, checksum), rest, not now.endswith("\n"), False, held]
        state["blocks"] = with_newest(blocks, key, block, _MOST_BLOCKS)
        return self.lines(state, now, who, headless=headless, block=key)

    def whole(self, state: State, message: str, text: str, who: Mapping[str, Any]) -> list[ReaderEvent]:
        """A complete block of a message (by its key): only what its parts have not said yet."""
        blocks = state.get("blocks") or {}
        key = _key_of(state, blocks, message, text)
        if key is None:
            return self.lines(state, text, who) + self._end_of_block(state, who)
        sent, checksum, _kept, headless, *_ = blocks[key]
        state["blocks"] = {**blocks, key: [0, 0, "", False, True, None]}
        begun = len(text) >= sent and _checksum(text[:sent]) == checksum
        rest = text[sent:] if begun else text
        said = self.lines(state, rest, who, headless=begun and headless, block=key if begun else "")
        return said + self._end_of_block(state, who)

    def flush(self, state: State, speaker: str, who: Mapping[str, Any]) -> list[ReaderEvent]:
        """What was kept back of this speaker's blocks, whose message has ended without being told whole."""
        blocks = state.get("blocks")
        if not blocks:
            return self._end_of_block(state, who)
        ended = [key for key in blocks if key.startswith(f"{speaker}/")]
        said = []
        for key in ended:
            _sent, _checksum, kept, headless, _complete, held = self._known(blocks[key])
            said += self.lines(state, kept + self._redactor.flush(held), who, headless=headless, block=key)
        said += self._end_of_block(state, who)
        state["blocks"] = {key: block for key, block in blocks.items() if key not in ended}
        return said

    def _known(self, block: Block) -> Block:
        """A block as it is now. Earlier versions kept lines back as they came, with nothing masked."""
        if len(block) == len(_NEW):
            return block
        sent, checksum, kept, headless, complete = block
        masked, held = self._redactor.feed(None, kept)
        return [sent, checksum, masked, headless, complete, held]

    def lines(
        self, state: State, text: str, who: Mapping[str, Any], *, headless: bool = False, block: str = ""
    ) -> list[ReaderEvent]:
        """Events for whole lines. Put together again, they are the text: an empty line is said as well."""
        if not text:
            return []
        text = text.removesuffix("\n")
        said: list[ReaderEvent] = [("text", {**cut(text), **who})]
        if not who:
            said += self._marker(state, text, headless, block)
        return said

    def result(self, state: State, text: str) -> list[ReaderEvent]:
        """A turn's result, which repeats what was said or says something else: only the marker can be new in it."""
        return self._marker(state, text, False, "") + self._end_of_block(state, {})

    def _marker(self, state: State, text: str, headless: bool, block: str) -> list[ReaderEvent]:
        """The first line that says the marker and nothing else, once in a run."""
        if not self._needle or state.get("marker"):
            return []
        said = self._end_of_block(state, {}) if state.get("fence") and state["fence"][0] != block else []
        _, fence = state.get("fence") or ("", None)
        if said or not (self._needle in text or may_matter(text, fence)):
            return said
        for number, line in enumerate(text.split("\n")):
            # The rest of a line whose beginning was said before is no line of its own.
            fence, found = next_marker(f"...{line}" if headless and not number else line, self._marker_text, fence)
            if found is not None:
                return _found(state, found)
        state["fence"] = None if fence is None else [block, fence]
        return []

    def _end_of_block(self, state: State, who: Mapping[str, Any]) -> list[ReaderEvent]:
        """A block of code ends at the latest with the text that it is in."""
        if who or not state.get("fence"):
            return []
        _, fence = state["fence"]
        state["fence"] = None
        found = marker_alone(fence)
        return [] if found is None else _found(state, found)


def _found(state: State, line: str) -> list[ReaderEvent]:
    state["marker"], state["fence"] = True, None
    return [("marker", {"line": line})]


def _checksum(text: str, so_far: int = 0) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"), so_far)


def message_key(speaker: str, message: str) -> str:
    """By who said it, so that what several agents say at the same time is never mixed up. The main agent is ""."""
    return f"{speaker}/{message}"


def block_key(message: str, index: int) -> str:
    return f"{message}#{index}"


def _key_of(state: State, blocks: Mapping[str, Block], message: str, text: str) -> str | None:
    """The parts that belong to a whole block. It does not say its number, so it is the next of its message that
    comes; where parts were lost, the ones that it begins with."""
    told = (state.get("told") or {}).get(message, 0)
    key = block_key(message, told)
    if key in blocks:
        return key
    open_ones = (key for key in blocks if key.startswith(f"{message}#") and not blocks[key][4])
    return next((key for key in open_ones if _begins(text, blocks[key])), None)


def _begins(text: str, block: Block) -> bool:
    sent, checksum, kept = block[:3]
    return bool(kept or sent) and _checksum(text[:sent]) == checksum and text.startswith(kept, sent)

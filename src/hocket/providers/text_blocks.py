"""Texts of messages as events, line by line: from the parts of a message, and from the whole for what is missing.

A part is held back until its line is complete. Of what was emitted only the length and a checksum are stored: enough to
recognise it in the whole message. Secrets are redacted in parts as in the whole, also where a part ends inside of one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from hocket.chain.parse import bare_marker, marker_alone, marker_in, may_matter
from hocket.model import RESULT_LIMIT, Spec
from hocket.providers.base import ReaderEvent, State
from hocket.providers.output_lines import cut, with_newest
from hocket.redaction import Redactor

Block = list[Any]
"""One block of a message: the number of emitted characters, their checksum, the text that is held back, whether that
text continues a line, whether the whole block was seen, and the redactor's part of what is held back."""

_NEW: Block = [0, 0, "", False, False, None]
_MOST_BLOCKS = 64
_LONGEST_HELD = RESULT_LIMIT // 4
"""Characters of a line that are held back; with up to four bytes each, they fit into one event."""


class TextBlocks:
    """Emits the texts of one run. Its memory is the state that it is given; ``who`` marks a subagent."""

    def __init__(self, spec: Spec, redactor: Redactor) -> None:
        self._redactor = redactor
        self._marker_text = spec.marker
        # Looking for the marker's text first keeps ordinary lines free of any further work.
        self._needle = bare_marker(spec.marker) if spec.loop else ""

    def part(self, state: State, key: str, text: str, who: Mapping[str, Any]) -> list[ReaderEvent]:
        """One more piece of the block with this ``block_key``."""
        blocks = state.get("blocks") or {}
        sent, checksum, kept, continues, complete, held = self._current(blocks.get(key, _NEW))
        if complete:
            return []
        masked, held = self._redactor.feed(held, text)
        kept += masked
        end = kept.rfind("\n") + 1
        if not end and len(kept) <= _LONGEST_HELD:
            state["blocks"] = with_newest(blocks, key, [sent, checksum, kept, continues, False, held], _MOST_BLOCKS)
            return []
        end = end or len(kept)  # A line of this length is emitted in pieces, because a state must stay small.
        now, rest = kept[:end], kept[end:]
        block = [sent + end, _checksum(now, checksum), rest, not now.endswith("\n"), False, held]
        state["blocks"] = with_newest(blocks, key, block, _MOST_BLOCKS)
        return self._lines(state, now, who, continues=continues, block=key)

    def whole(self, state: State, message: str, text: str, who: Mapping[str, Any]) -> list[ReaderEvent]:
        """A complete block of the message with this ``message_key``: what its parts have not emitted."""
        blocks = state.get("blocks") or {}
        key = _key_of(state, blocks, message, text)
        if key is None:
            return self._lines(state, text, who) + self._end_of_fence(state, who)
        sent, checksum, _kept, continues, *_ = blocks[key]
        state["blocks"] = {**blocks, key: [0, 0, "", False, True, None]}
        begun = len(text) >= sent and _checksum(text[:sent]) == checksum
        rest = text[sent:] if begun else text
        events = self._lines(state, rest, who, continues=begun and continues, block=key if begun else "")
        return events + self._end_of_fence(state, who)

    def has_begun(self, state: State, message: str, text: str) -> bool:
        """Whether parts of the message have arrived with which this text begins."""
        block = (state.get("blocks") or {}).get(block_key(message, 0))
        return block is not None and _begins(text, block)

    def flush(self, state: State, speaker: str, who: Mapping[str, Any]) -> list[ReaderEvent]:
        """What is held back of this speaker's blocks, whose message ended without arriving whole."""
        blocks = state.get("blocks") or {}
        ended = [key for key in blocks if key.startswith(f"{speaker}/")]
        events = []
        for key in ended:
            _sent, _checksum, kept, continues, _complete, held = self._current(blocks[key])
            events += self._lines(state, kept + self._redactor.flush(held), who, continues=continues, block=key)
        if ended:
            state["blocks"] = {key: block for key, block in blocks.items() if key not in ended}
        return events + self._end_of_fence(state, who)

    def result(self, state: State, text: str) -> list[ReaderEvent]:
        """The result of a turn, which repeats its last text or replaces it: only a marker can be new in it."""
        return self._marker(state, text, False, "") + self._end_of_fence(state, {})

    def _current(self, block: Block) -> Block:
        """A block of the current form. Earlier versions held lines back without redaction."""
        if len(block) == len(_NEW):
            return block
        sent, checksum, kept, continues, complete = block
        masked, held = self._redactor.feed(None, kept)
        return [sent, checksum, masked, continues, complete, held]

    def _lines(
        self, state: State, text: str, who: Mapping[str, Any], *, continues: bool = False, block: str = ""
    ) -> list[ReaderEvent]:
        """Events for whole lines. Joined by line ends they are the text, so an empty line counts as well."""
        if not text:
            return []
        text = text.removesuffix("\n")
        marker = [] if who else self._marker(state, text, continues, block)
        return [("text", {**cut(text), **who}), *marker]

    def _marker(self, state: State, text: str, continues: bool, block: str) -> list[ReaderEvent]:
        """The first line that is the marker and nothing else, once in a run."""
        if not self._needle or state.get("marker"):
            return []
        ended = self._end_of_fence(state, {}) if state.get("fence") and state["fence"][0] != block else []
        _, fence = state.get("fence") or ("", None)
        if ended or not (self._needle in text or may_matter(text, fence)):
            return ended
        # The rest of a line whose beginning was emitted before is no line of its own.
        fence, found = marker_in(f"...{text}" if continues else text, self._marker_text, fence)
        if found is not None:
            return _found(state, found)
        state["fence"] = None if fence is None else [block, fence]
        return []

    def _end_of_fence(self, state: State, who: Mapping[str, Any]) -> list[ReaderEvent]:
        """A fenced code block ends at the latest with the text that it is in."""
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
    """With the speaker, because several agents write at the same time. The main agent is ""."""
    return f"{speaker}/{message}"


def block_key(message: str, index: int) -> str:
    return f"{message}#{index}"


def _key_of(state: State, blocks: Mapping[str, Block], message: str, text: str) -> str | None:
    """The parts that belong to a whole block. It has no number, so it is the next block of its message; where parts
    were lost, the block that it begins with."""
    key = block_key(message, (state.get("told") or {}).get(message, 0))
    if key in blocks:
        return key
    incomplete = (key for key in blocks if key.startswith(f"{message}#") and not blocks[key][4])
    return next((key for key in incomplete if _begins(text, blocks[key])), None)


def _begins(text: str, block: Block) -> bool:
    sent, checksum, kept = block[:3]
    return bool(kept or sent) and _checksum(text[:sent]) == checksum and text.startswith(kept, sent)

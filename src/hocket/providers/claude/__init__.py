"""The Claude CLI: its command line, its JSON lines in both directions, and the verdict on a run."""

from __future__ import annotations

from hocket.providers.base import Conversation, OwnTools, Pricing, Program, Provider, Sessions, TranscriptFiles
from hocket.providers.claude import (
    conversation,
    definitions,
    launch,
    mcp_requests,
    paths,
    privileges,
    questions,
    reader,
    session_files,
    settings,
    transcripts,
    usage,
    verdict,
)
from hocket.providers.claude.team import files, terminal

provider = Provider(
    name="claude",
    program=Program(
        "claude", "the Claude CLI", "HOCKET_CLAUDE", "install Claude Code: npm install -g @anthropic-ai/claude-code"
    ),
    longest_line=16 * 1024 * 1024,
    launch=launch.launch,
    with_prompt=launch.with_prompt,
    reader=reader.reader,
    verdict=verdict.verdict,
    is_transient=verdict.is_transient,
    conversation=Conversation(
        message=conversation.message,
        answer=conversation.answer,
        interrupt=conversation.interrupt,
        is_finished=conversation.is_finished,
        is_only_background=conversation.is_only_background,
        background_seconds=600.0,  # as long as the CLI itself waits for them
    ),
    terminal=terminal.terminal,
    team_start=settings.team_start,
    hook_question=questions.asked_by_hook,
    sessions=Sessions(
        launch.resume,
        paths.transcripts,
        TranscriptFiles(
            patterns=paths.transcript_patterns,
            reader=transcripts.reader,
            helper_folder=transcripts.helper_folder,
            about=transcripts.about,
            helper=transcripts.helper,
            continued=usage.continued,
            forked=transcripts.forked,
        ),
    ),
    observed=session_files.observed,
    teams=files.teams,
    pricing=Pricing(launch.bound, usage.unpriced_tokens),
    own_tools=OwnTools(mcp_requests.request, mcp_requests.reply, mcp_requests.refusal, mcp_requests.pending),
    definitions=definitions,
    privileges=privileges,
)

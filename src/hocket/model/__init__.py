"""The values of the domain: agents, specs, events, runs and tasks. Pure; imports nothing of ours but errors."""

from hocket.input_limits import DEFAULT_MARKER
from hocket.model.agent import Agent, Approval, Definition, DelegationGrant
from hocket.model.run import CHANGING, RESULT_LIMIT, Event, Kind, Origin, Reason, Run, Status, amount, apply, fold
from hocket.model.spec import (
    PROMPT,
    RUN_DIRECTORY,
    SESSION,
    BoundChain,
    Bounds,
    FolderApproval,
    GroupedStep,
    Isolation,
    Spec,
    Step,
    Worktree,
    environments_of,
    stage_number,
    stages,
)

__all__ = [
    "CHANGING",
    "DEFAULT_MARKER",
    "PROMPT",
    "RESULT_LIMIT",
    "RUN_DIRECTORY",
    "SESSION",
    "Agent",
    "Approval",
    "BoundChain",
    "Bounds",
    "Definition",
    "DelegationGrant",
    "Event",
    "FolderApproval",
    "GroupedStep",
    "Isolation",
    "Kind",
    "Origin",
    "Reason",
    "Run",
    "Spec",
    "Status",
    "Step",
    "Worktree",
    "amount",
    "apply",
    "environments_of",
    "fold",
    "stage_number",
    "stages",
]

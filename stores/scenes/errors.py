"""What can go wrong with scene folders, as part of the tree of :mod:`stores.errors`.

```
Transient
├── GenerationMoved      the folder has changed under a copy: run again on top of it
└── LockConflict
    └── StaleFence       a worker with a newer fencing token has been here
UserError
└── UnknownScene         a person named a scope, file or generation that is not there
SedimentError
└── ToolError            an agent asked its tools for something it may not or cannot have
```
"""

from __future__ import annotations

from typing import Literal

from stores.errors import LockConflict, SedimentError, Transient, UserError

__all__ = ["GenerationMoved", "StaleFence", "ToolError", "ToolReason", "UnknownScene"]


class GenerationMoved(Transient):
    """The current generation is not the one the work was based on; nothing was written.

    :arg base: the generation the work began with.
    :arg current: the generation that is current now. Equal to ``base`` when a person changed
        the files of the generation in place, or when the copy itself is gone.
    """

    reason = "generation_moved"

    def __init__(self, message: str, *, base: int, current: int) -> None:
        super().__init__(message)
        self.base = base
        self.current = current


class StaleFence(LockConflict):
    """The fencing token is older than the newest one the folder has seen; nothing was written.

    :arg token: the token that was shown.
    :arg newest: the newest one seen.
    """

    reason = "stale_fence"

    def __init__(self, message: str, *, token: int, newest: int) -> None:
        super().__init__(message)
        self.token = token
        self.newest = newest


class UnknownScene(UserError):
    """There is no such scope, file or generation."""

    reason = "unknown_scene"


ToolReason = Literal[
    "bad_path",
    "bad_text",
    "no_text",
    "unknown_file",
    "text_not_found",
    "too_large",
    "too_many_files",
]


class ToolError(SedimentError):
    """A tool call that was refused. The message is written for the model: show it as it is.

    It holds the path the model gave, never text of a file.

    :arg reason: which rule, for metrics and tests.
    """

    def __init__(self, message: str, *, reason: ToolReason) -> None:
        super().__init__(message)
        self.reason = reason

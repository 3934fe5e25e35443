"""What a scene or persona run can be refused for, as part of the tree of :mod:`stores.errors`.

```
Terminal
└── MalformedAnswer
    └── RunRefused        a run that broke a rule: asked again with the reason, then given up
```
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stores.errors import MalformedAnswer

__all__ = ["Complaint", "RunRefused"]

_CHARS = 800


class RunRefused(MalformedAnswer):
    """What a model wrote breaks a rule; nothing of it was kept.

    :arg reason: which rule: reason of the dead letter when it is given up.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Complaint:
    """What was wrong with a run, as it travels from one attempt to the next.

    It holds its attempt, so that the third request differs from the second, whose recorded
    answer was wrong.
    """

    attempt: int
    what: str

    def __str__(self) -> str:
        return f"run {self.attempt}: {' '.join(self.what.split())[:_CHARS]}"

    def after(self, error: MalformedAnswer) -> RunRefused:
        """Give the error that tells the next attempt what was wrong with this one."""
        return RunRefused(str(Complaint(self.attempt + 1, error.message)), reason=error.reason)

    @classmethod
    def heard(cls, error: str | None) -> Complaint:
        """Read an error back; number 0 says that nothing was wrong yet."""
        if not error:
            return cls(0, "")
        found = re.fullmatch(r"run (\d+): (.*)", error, re.DOTALL)
        return cls(int(found[1]), found[2]) if found else cls(1, error[:_CHARS])

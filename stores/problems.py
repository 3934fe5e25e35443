"""What is wrong with data that does not fit its model: pydantic's findings, by field, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

__all__ = ["Problem", "problems_in", "problems_of"]


class Problem(NamedTuple):
    """One thing that is wrong. As text: ``field: message``.

    :arg field: path of the field, with dots; ``""`` where it is the whole.
    :arg message: what is wrong with it, without what was given.
    :arg kind: pydantic's name for it, such as ``json_invalid``.
    """

    field: str
    message: str
    kind: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def problems_of(error: ValidationError) -> list[Problem]:
    """Give all that is wrong, in the order of the model's fields; never empty."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return problems_in(found)


def problems_in(found: Sequence[Mapping[str, Any]], *, below: int = 0) -> list[Problem]:
    """Read pydantic's own list.

    :arg below: steps at the front of each path that name no field, such as ``body``.
    """
    return [
        Problem(
            ".".join(map(str, one["loc"][below:])),
            str(one["msg"]).removeprefix("Value error, "),
            one["type"],
        )
        for one in found
    ]

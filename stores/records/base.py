"""What all contract records share."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

__all__ = [
    "CONTRACT_VERSION",
    "MAX_ID_CHARS",
    "Contract",
    "Id",
    "Moment",
    "OwnerId",
    "names_none",
    "schema_of",
    "to_utc",
]

CONTRACT_VERSION = 1
MAX_ID_CHARS = 256


def to_utc(value: datetime) -> datetime:
    """Express an aware datetime in UTC."""
    return value.astimezone(timezone.utc)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _no_control(value: str) -> str:
    if not value.isprintable() and _CONTROL.search(value):
        message = "must not contain control characters"
        raise ValueError(message)
    return value


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(_no_control)]
"""Any Unicode without control characters, 1 to 256 characters."""


def names_none(value: str) -> bool:
    """Say whether a text is empty or a wildcard: `*`, `%`, white space, and nothing else."""
    return not value.strip().strip("*%").strip()


def _names_one(value: str) -> str:
    if not value[0].isalnum() and names_none(value):
        message = "must name one; white space and wildcards (* and %) name nobody"
        raise ValueError(message)
    return value


OwnerId = Annotated[Id, AfterValidator(_names_one)]
"""Whose something is, or which conversation: what could mean "all" to somebody names nobody."""

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?")


def _no_number(value: object) -> object:
    if isinstance(value, (int, float)) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
        message = "a time is text like 2026-03-01T09:30:00Z, not a number"
        raise ValueError(message)
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_no_number)]
"""A time that somebody gives. A number would be seconds to one and milliseconds to another."""


class Contract(BaseModel):
    """A record that topics carry as JSON. Unknown fields are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of a contract record."""
    schema = model.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

"""What flows and what is kept: the record types, frozen, versioned, decoded once at the edge.

- ``log``: bytes with a position (:class:`LogRecord` in, :class:`OutRecord` out);
- ``event``, ``atom``, ``outcome``, ``profile``, ``forget``: what topics carry as JSON, published
  as JSON Schema under ``docs/contract/``;
- ``flow``: what lives inside a dataflow (:class:`SourcedEvent`, :class:`Window`,
  :class:`Memory`).

All times are aware datetimes; every one of them is event time, never a wall clock.
"""

from stores.records.atom import (
    ATOM_TYPES,
    CHAT_TYPES,
    WORK_TYPES,
    Atom,
    AtomStatus,
    AtomType,
)
from stores.records.base import (
    CONTRACT_VERSION,
    MAX_ID_CHARS,
    Contract,
    Id,
    Moment,
    names_none,
    schema_of,
    to_utc,
)
from stores.records.event import (
    DECODE_REASONS,
    MAX_EVENT_BYTES,
    ContentPart,
    ControlRequest,
    ForgetTarget,
    L0Event,
    Role,
)
from stores.records.flow import (
    ClosedBy,
    Extraction,
    IndexedEvent,
    Memory,
    Redriven,
    RefusedMemory,
    SceneSegment,
    SourcedEvent,
    Window,
)
from stores.records.forget import Tombstone
from stores.records.log import Headers, LogRecord, OutRecord, Position
from stores.records.outcome import (
    SKIP_REASONS,
    Outcome,
    OutcomeResult,
    PersonaJob,
    ProfileEdit,
    SceneJob,
)
from stores.records.profile import Profile, ProfileKind, profile_id

__all__ = [
    "ATOM_TYPES",
    "CHAT_TYPES",
    "CONTRACT_VERSION",
    "DECODE_REASONS",
    "MAX_EVENT_BYTES",
    "MAX_ID_CHARS",
    "SKIP_REASONS",
    "WORK_TYPES",
    "Atom",
    "AtomStatus",
    "AtomType",
    "ClosedBy",
    "ContentPart",
    "Contract",
    "ControlRequest",
    "Extraction",
    "ForgetTarget",
    "Headers",
    "Id",
    "IndexedEvent",
    "L0Event",
    "LogRecord",
    "Memory",
    "Moment",
    "OutRecord",
    "Outcome",
    "OutcomeResult",
    "PersonaJob",
    "Position",
    "Profile",
    "ProfileEdit",
    "ProfileKind",
    "Redriven",
    "RefusedMemory",
    "Role",
    "SceneJob",
    "SceneSegment",
    "SourcedEvent",
    "Tombstone",
    "Window",
    "names_none",
    "profile_id",
    "schema_of",
    "to_utc",
]

"""Personas (L3): one Markdown profile of each scope, from its scenes.

Read in this order: ``triggers`` (when one is due), ``draft`` (its sections, and what is wrong
with one), ``writer`` (by rules), ``requests`` (what is still to be answered), ``work`` (the
stage), ``operator`` (when jobs go there).
"""

from flows.persona.draft import LIMITS, Mode
from flows.persona.operator import hold_jobs
from flows.persona.requests import PersonaRequests
from flows.persona.triggers import NOBODY_ASKED
from flows.persona.work import (
    PERSONA,
    PersonaParts,
    PersonaResult,
    PersonaWork,
    QueuedPersonaJob,
)

__all__ = [
    "LIMITS",
    "NOBODY_ASKED",
    "PERSONA",
    "Mode",
    "PersonaParts",
    "PersonaRequests",
    "PersonaResult",
    "PersonaWork",
    "QueuedPersonaJob",
    "hold_jobs",
]

"""The rules by name, what is done on each, and what the findings on one memory come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from connectors.settings import DEFAULT_GATE_CHARS, DEFAULT_GATE_MODES, GateMode, GateRule
from flows.gate.lasting import doubtful_type, generalised_instruction
from flows.gate.orders import human_authority, instruction_like
from flows.gate.periods import old_and_new_state, several_periods
from flows.gate.secrets import secret
from flows.gate.stages import several_stages
from flows.gate.subject import Subject

__all__ = [
    "GATE_VERSION",
    "REASONS",
    "WARNINGS",
    "Finding",
    "GatePolicy",
    "Verdict",
    "examine",
    "verdict",
]

GATE_VERSION = 1
"""Raise it when the same memory could be split into other texts: it is part of a piece's id."""

REASONS: dict[GateRule, str] = {
    "secret": "it holds a key, token, password, card, account or identity number",
    "instruction_like": "it is an order to the agent that reads it, or poses as a system prompt",
    "human_authority": "it claims to be approved or verified by a person",
    "several_stages": "it tells an incident in stages: material for a scene",
    "generalised_instruction": "it was asked for one task and is told as a standing instruction",
    "doubtful_type": "its type does not fit what it says",
    "old_and_new_state": "what was and what is now are told together",
    "several_periods": "it tells of several time periods or changes of state",
    "too_long": "it is longer than an atom should be",
}
"""Every rule and what it found, in the order in which they are tried."""

WARNINGS: dict[str, str] = {
    "scene_layer": "left whole for the scene stage to take up",
    "split_failed": "it could not be split and was kept as it was",
    "split_by_rules": "a piece that was cut out by sentence, without a model",
}
"""Warnings that say what the gate did, beside the rules' names."""

_CHECKS: dict[GateRule, Callable[[Subject], str | None]] = {
    "secret": secret,
    "instruction_like": instruction_like,
    "human_authority": human_authority,
    "several_stages": several_stages,
    "generalised_instruction": generalised_instruction,
    "doubtful_type": doubtful_type,
    "old_and_new_state": old_and_new_state,
    "several_periods": several_periods,
}


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What is done on each rule, and how long an atom may be.

    :arg max_chars: characters of a text at most.
    """

    modes: Mapping[GateRule, GateMode] = field(default_factory=lambda: DEFAULT_GATE_MODES)
    max_chars: int = DEFAULT_GATE_CHARS


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found of a memory.

    :arg detail: in words, and never in the memory's own: it may hold a secret.
    """

    rule: GateRule
    mode: GateMode
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a memory.

    :arg refusal: set when ``action`` is ``reject``.
    :arg codes: the rules that found something and do not reject, in the rules' order.
    """

    action: Literal["pass", "reject", "route", "split"]
    codes: tuple[GateRule, ...] = ()
    refusal: Finding | None = None


def examine(subject: Subject, policy: GatePolicy) -> tuple[Finding, ...]:
    """Try every rule on a memory, in the order of :data:`REASONS`."""
    found = [
        Finding(rule, policy.modes[rule], detail)
        for rule, check in _CHECKS.items()
        if (detail := check(subject)) is not None
    ]
    if len(subject.text) > policy.max_chars:
        detail = f"{len(subject.text)} characters"
        found.append(Finding("too_long", policy.modes["too_long"], detail))
    return tuple(found)


def verdict(findings: tuple[Finding, ...]) -> Verdict:
    """Weigh findings: the strictest mode counts, in the order reject, route, split, warn."""
    refusal = next((one for one in findings if one.mode == "reject"), None)
    if refusal is not None:
        return Verdict("reject", (), refusal)
    codes = tuple(one.rule for one in findings)
    modes = {one.mode for one in findings}
    action: Literal["pass", "route", "split"] = (
        "route" if "route" in modes else "split" if "split" in modes else "pass"
    )
    return Verdict(action, codes)

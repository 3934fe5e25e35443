"""The gate: an extraction in; what may become atoms, and what was refused, out.

Depends on the window, the extraction and the recorded answers alone, so a replay decides the
same. A memory that passes unchanged keeps the id it would have without a gate, whatever becomes
of its neighbours; only a piece of a split has an id of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from connectors.metrics import GATE_FINDINGS
from flows.extract.text import extractable_text
from flows.gate.policy import GATE_VERSION, Finding, GatePolicy, Verdict, examine, verdict
from flows.gate.recheck import judged_by_source
from flows.gate.split import RuleSplitter, Splitter
from flows.gate.subject import Subject
from stores.records import Extraction, Memory, RefusedMemory, Window

__all__ = ["Gate", "Gated", "Passed"]


@dataclass(frozen=True, slots=True)
class Passed:
    """A memory that may become an atom.

    :arg ordinal: its place in the extraction, from 0; of a piece, ``<place>.<piece>``.
    :arg made_by: who made a piece; empty for a memory as the extractor gave it.
    """

    memory: Memory
    ordinal: str
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class Gated:
    """What became of an extraction: in its order, a piece where its memory was."""

    passed: tuple[Passed, ...]
    refused: tuple[RefusedMemory, ...]


class Gate:
    """Examines memories and warns, splits, routes or refuses, as the policy says.

    The texts of findings and refusals are never the memory's own. Whatever splits gives is
    examined again; a piece is not split a second time.

    :arg splitter: how a memory is cut; by sentence when none is given.
    """

    def __init__(self, policy: GatePolicy | None = None, splitter: Splitter | None = None) -> None:
        self._policy = policy or GatePolicy()
        self._splitter = splitter or RuleSplitter()
        self._made_by = f"{self._splitter.version}/{GATE_VERSION}"

    async def check(self, window: Window, extraction: Extraction) -> Gated:
        """Examine all memories of a window.

        Asks a model at most once, and only when something is to be split. Raises
        :class:`~stores.errors.Transient` when that call may succeed later.
        """
        said = _said(window, [one for one in extraction.memories if judged_by_source(one)])
        judged = [(memory, self._judge(memory, said)) for memory in extraction.memories]
        to_split = [memory for memory, found in judged if found.action == "split"]
        said |= _said(window, to_split)
        pieces = iter(await self._splitter.split(to_split, window, said) if to_split else ())
        passed: list[Passed] = []
        refused: list[RefusedMemory] = []
        for place, (memory, found) in enumerate(judged):
            ordinal = str(place)
            if found.refusal is not None:
                refused.append(_refused(ordinal, found.refusal))
            elif found.action == "split":
                made, turned_down = self._pieces(next(pieces), ordinal, said)
                refused += turned_down
                passed += made or [Passed(_warned(memory, *found.codes, "split_failed"), ordinal)]
            elif found.action == "route":
                passed.append(Passed(_routed(memory, found), ordinal))
            else:
                passed.append(Passed(_warned(memory, *found.codes), ordinal))
        return Gated(tuple(passed), (*extraction.refused, *refused))

    def _judge(self, memory: Memory, said: Mapping[str, str]) -> Verdict:
        heard = memory.source_event_ids if judged_by_source(memory) else ()
        subject = Subject.of(memory, tuple(said[one] for one in heard))
        findings = examine(subject, self._policy)
        for finding in findings:
            GATE_FINDINGS.labels(finding.rule, finding.mode).inc()
        return verdict(findings)

    def _pieces(
        self, pieces: tuple[Memory, ...], ordinal: str, said: Mapping[str, str]
    ) -> tuple[list[Passed], list[RefusedMemory]]:
        passed: list[Passed] = []
        refused: list[RefusedMemory] = []
        for number, piece in enumerate(pieces):
            found = self._judge(piece, said)
            place = f"{ordinal}.{number}"
            if found.refusal is not None:
                refused.append(_refused(place, found.refusal))
            else:
                passed.append(Passed(_warned(piece, *found.codes), place, self._made_by))
        return passed, refused


def _said(window: Window, memories: Sequence[Memory]) -> dict[str, str]:
    """Give what the user said in the events that memories name, by event id."""
    named = {one for memory in memories for one in memory.source_event_ids}
    return {
        sourced.event.event_id: extractable_text(sourced.event)
        for sourced in window.events
        if sourced.event.event_id in named
    }


def _refused(ordinal: str, finding: Finding) -> RefusedMemory:
    return RefusedMemory(finding.rule, f"memory {ordinal}: {finding.detail}")


def _warned(memory: Memory, *codes: str) -> Memory:
    return replace(memory, warnings=(*memory.warnings, *codes)) if codes else memory


def _routed(memory: Memory, found: Verdict) -> Memory:
    """Leave an incident whole: as an event that fills no slot, for the scene stage to tell."""
    return replace(_warned(memory, *found.codes, "scene_layer"), type="episodic", slot=None)

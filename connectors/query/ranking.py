"""One ranked list from several searches, by ranks alone. Pure.

Scores of the arms are never compared: BM25 has no upper bound, and the offline embedding
model gives unrelated texts a cosine of 0.78, so no threshold on either means anything.
Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009) needs only the places.

It follows that a dense search always finds something, also for a question that nothing
answers. An empty keyword arm does not show such a question either: it is empty for every
question asked in another language than the memory. Telling the two apart is left to a
threshold learned from the model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from connectors.query.models import Layer
from stores.protocols import Hit, SearchArm
from stores.records import Atom, IndexedEvent

__all__ = ["LAYER_WEIGHTS", "RRF_K", "Folded", "Ranked", "fold_sources", "merge", "rank_layer"]

RRF_K = 60
"""The constant of the paper: large enough that one arm's first place does not decide alone."""

LAYER_WEIGHTS: Mapping[Layer, float] = {"atoms": 1.05, "events": 1.0}
"""What a layer's scores are multiplied by before the layers meet.

Each layer is ranked in itself, so the best atom and the best event arrive with the same score
whatever they are worth. An atom is self-contained, dated and current where an event is one
line of a conversation, so it goes first; but raw events alone are a strong rival, so they are
not pushed out: at 1.05 and k = 60 the first event comes after the first three or four atoms,
then the two alternate. Much below the factor 2 between a hit of both arms and one of one arm.
"""

_ARMS: tuple[SearchArm, ...] = ("dense", "keyword")  # fixed order: float sums stay equal

_SAME = 0.7
"""Share of an event's trigrams that an atom must have to say the same: "I moved to Berlin"
and "The user moved to Berlin" have 0.9, a sentence and a longer one that holds it 0.5."""

_NOT_WORD = re.compile(r"[\W_]+")
_GRAM = 3


@dataclass(frozen=True, slots=True)
class Ranked:
    """A record with its fused score and its place, from 1, in each arm that found it."""

    layer: Layer
    record: Atom | IndexedEvent
    score: float
    ranks: Mapping[SearchArm, int] = field(hash=False)

    @property
    def id(self) -> str:
        """The atom id, or the event id."""
        record = self.record
        return record.atom_id if isinstance(record, Atom) else record.event_id


@dataclass(frozen=True, slots=True)
class Folded:
    """An event left out because an atom that came from it says the same."""

    event_id: str
    atom_id: str


def rank_layer(layer: Layer, arms: Mapping[SearchArm, Sequence[Hit]]) -> list[Ranked]:
    """Fuse the arms of one layer, best first; a record found twice by an arm counts once."""
    records: dict[str, Atom | IndexedEvent] = {}
    ranks: dict[str, dict[SearchArm, int]] = defaultdict(dict)
    for arm in _ARMS:
        for rank, hit in enumerate(arms.get(arm, ()), start=1):
            records.setdefault(hit.id, hit.record)
            ranks[hit.id].setdefault(arm, rank)
    weight = LAYER_WEIGHTS[layer]
    return _sorted(
        Ranked(
            layer,
            record,
            weight * sum(1 / (RRF_K + ranks[key][arm]) for arm in _ARMS if arm in ranks[key]),
            dict(ranks[key]),
        )
        for key, record in records.items()
    )


def merge(layers: Iterable[Sequence[Ranked]]) -> list[Ranked]:
    """Join ranked layers into one list, best first."""
    return _sorted(item for layer in layers for item in layer)


def fold_sources(ranked: Sequence[Ranked], limit: int) -> tuple[list[Ranked], list[Folded]]:
    """Leave out events that an atom of the list cites and says again.

    The atom stands for both: it takes the better of the two places. Only as far down the list
    as the first ``limit`` that stay; what comes after them is not looked at.
    """
    citing: dict[str, list[Ranked]] = defaultdict(list)
    for item in ranked:
        if isinstance(item.record, Atom):
            for event_id in item.record.source_event_ids:
                citing[event_id].append(item)
    kept: dict[tuple[Layer, str], Ranked] = {}
    folded: list[Folded] = []
    for item in ranked:
        atom = _said_by(item, citing) if len(kept) < limit else None
        if atom is not None:
            folded.append(Folded(item.id, atom.id))
            atom = replace(atom, score=max(atom.score, item.score))
        stays = atom or item
        kept.setdefault((stays.layer, stays.id), stays)
    return _sorted(kept.values()), folded


def _said_by(item: Ranked, citing: Mapping[str, Sequence[Ranked]]) -> Ranked | None:
    if isinstance(item.record, Atom) or item.id not in citing:
        return None
    said = _grams(item.record.text)
    for atom in citing[item.id]:
        if said and len(said & _grams(atom.record.text)) >= _SAME * len(said):
            return atom
    return None


def _grams(text: str) -> set[str]:
    """Give the letter trigrams of a text: they compare English and Chinese alike."""
    letters = _NOT_WORD.sub(" ", text.casefold()).strip()
    return {letters[i : i + _GRAM] for i in range(max(1, len(letters) - _GRAM + 1))}


def _sorted(items: Iterable[Ranked]) -> list[Ranked]:
    """Order by score, then the newer, then the id: the same searches give the same list."""
    return sorted(
        items, key=lambda item: (-item.score, -item.record.occurred_at.timestamp(), item.id)
    )

"""One ranked list from several searches. Pure.

Scores of the arms are never compared: BM25 has no upper bound, and the offline embedding model
gives unrelated texts a cosine of 0.78. Reciprocal rank fusion (Cormack, Clarke and Büttcher,
SIGIR 2009) needs only the places. Three things come on top of it, each by a factor:

- **what a record is**: its layer, an atom's priority, a scene's heat, how recent it is, who said
  it: somebody whom the question names, or an assistant;
- **what stands around an event**: in a conversation the answer often stands beside the line
  that has the question's words, so a hit gives a share of its score to its neighbours;
- **diversity**: of two items that say the same the better one stays.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache, partial

from connectors.query.models import SearchLayer
from stores.protocols import Hit, SearchArm
from stores.records import Atom, IndexedEvent, Profile
from stores.speakers import UNNAMED

__all__ = [
    "LAYER_WEIGHTS",
    "NEAR_SHARES",
    "RRF_K",
    "Folded",
    "Ranked",
    "Record",
    "Weights",
    "distinct",
    "rank_layer",
    "spread",
]

Record = Atom | IndexedEvent | Profile

RRF_K = 20
"""The paper's constant is 60, for lists of a thousand. Ours are of thirty: on the development
half of LoCoMo evidence found within 1,000 tokens is 0.79 at 20 and 0.77 at 60."""

NEAR_SHARES = (0.4, 0.3, 0.2, 0.1)
"""What an event one, two, three, four messages away gets of a hit's score. On the same data
evidence found within 1,000 tokens goes from 0.72 to 0.79 by it."""

_NEAR_BYTES = 300
"""A longer neighbour, of more than some 75 tokens, gets less in proportion: it takes the place of
several short ones, and to stand beside a hit is a weak sign. On the development half of PersonaMem,
with its long messages, evidence found within 1,000 tokens goes from 0.61 to 0.68 by it."""

LAYER_WEIGHTS: Mapping[SearchLayer, float] = {"atoms": 1.05, "events": 1.0, "scenes": 0.6}
"""What a layer's scores are multiplied by before the layers meet.

Each layer is ranked in itself, so the best atom and the best event arrive with the same score
whatever they are worth. An atom is self-contained, dated and current where an event is one
line of a conversation, so it goes first; but raw events alone are a strong rival, so they are
not pushed out. A scope has a handful of scenes, so that to be the best of them says little, and
an item tells only what the scene is about.
"""

_ARMS: tuple[SearchArm, ...] = ("dense", "keyword")  # fixed order: float sums stay equal

_SAME = 0.7
"""Share of an event's trigrams that an atom must have to say the same: "I moved to Berlin"
and "The user moved to Berlin" have 0.9, a sentence and a longer one that holds it 0.5."""
_REPEATS = 0.9  # of the trigrams of either: the same but for an ending
_PRIORITY_SPAN = 0.2  # from the least to the most important atom
_RECENCY_SPAN = 0.1  # between now and long ago
_SPEAKER = 1.35
"""Of an event or atom whose speaker is named by the question: of what somebody does and likes,
their own words tell most. On the development half of LoCoMo evidence within 500 tokens goes from
0.71 to 0.75 by it, within 1,000 from 0.83 to 0.84; anything from 1.2 to 1.5 does the same."""
_NO_PEOPLE = frozenset({"assistant", "system", "tool"})
_NOT_A_PERSON = 0.6
"""Of an event of an assistant, a tool or the system: memory is about people, and assistants are
long-winded. On PersonaMem's development half, by BM25 alone, evidence within 2,000 tokens goes
from 0.57 to 0.71 by it (0.69 with 0.7, 0.63 with 0.9)."""
_STRICT_PRIORITY = 110  # a strict instruction counts as more than the most important
_HEAT_STEP, _HEAT_STEPS = 0.02, 10

_DAY = timedelta(days=1)
_DAY_S = _DAY.total_seconds()

_NOT_WORD = re.compile(r"[\W_]+")
_DIGITS = re.compile(r"\d+")
_GRAM = 3


@dataclass(frozen=True, slots=True)
class Ranked:
    """A record with its score and its place, from 1, in each arm that found it.

    :arg factors: what the score is made of, for who asks to have it explained.
    :arg id: the atom id, the event id, or the profile id; read from the record when left out.
    :arg at_s: event time, of a profile when it was last written, in seconds; likewise.
    """

    layer: SearchLayer
    record: Record
    score: float
    ranks: Mapping[SearchArm, int] = field(hash=False)
    factors: Mapping[str, float] = field(default_factory=dict, hash=False)
    id: str = ""
    at_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", _id_of(self.record))
            object.__setattr__(self, "at_s", _time_of(self.record).timestamp())

    def scored(self, score: float, factors: Mapping[str, float]) -> Ranked:
        """Give it with another score, and with more of what that is made of.

        Not by `replace`, which takes five times as long; a recall comes here hundreds of times.
        """
        told = {**self.factors, **factors}
        return Ranked(self.layer, self.record, score, self.ranks, told, self.id, self.at_s)


@dataclass(frozen=True, slots=True)
class Folded:
    """An item left out because another one says the same."""

    id: str
    kept_id: str


def rank_layer(
    layer: SearchLayer,
    arms: Mapping[SearchArm, Sequence[Hit]],
    relevant: Callable[[str, float | None], bool] = lambda text, cosine: True,
) -> list[Ranked]:
    """Fuse the arms of one layer, best first; a record found twice by an arm counts once.

    :arg relevant: told a record's indexed text and its cosine, says whether it counts at all.
    """
    records: dict[str, Record] = {}
    ranks: dict[str, dict[SearchArm, int]] = defaultdict(dict)
    cosines: dict[str, float] = {}
    for arm in _ARMS:
        for rank, hit in enumerate(arms.get(arm, ()), start=1):
            records.setdefault(hit.id, hit.record)
            ranks[hit.id].setdefault(arm, rank)
            if arm == "dense":
                cosines.setdefault(hit.id, hit.score)
    # One upsert writes an atom and what it supersedes, but a reader may see the halves apart.
    gone = {
        old for record in records.values() if isinstance(record, Atom) for old in record.supersedes
    }
    ranked = []
    for key, record in records.items():
        if key in gone or not relevant(record.search_text(), cosines.get(key)):
            continue
        fused = sum(1 / (RRF_K + ranks[key][arm]) for arm in _ARMS if arm in ranks[key])
        ranked.append(Ranked(layer, record, fused, dict(ranks[key]), {"fused": fused}))
    return _sorted(ranked)


def spread(events: Sequence[Ranked], around: Iterable[IndexedEvent]) -> list[Ranked]:
    """Give the neighbours of hits their share of the hits' scores.

    Then all are brought back to where the best one was: an event has neighbours where an atom
    has none, and that says nothing about which of the two is worth more.

    :arg events: ranked events.
    :arg around: events that stand near the best of them, themselves included, without a gap
        between those of one session.
    """
    sessions: dict[str, dict[str, IndexedEvent]] = defaultdict(dict)
    for event in around:
        sessions[event.session_id][event.event_id] = event
    scores = {item.id: item.score for item in events}
    shares: dict[str, float] = defaultdict(float)
    records: dict[str, IndexedEvent] = {}
    for one_session in sessions.values():
        inside = sorted(one_session.values(), key=lambda event: event.position)
        for place, event in enumerate(inside):
            score = scores.get(event.event_id)
            if score is None:
                continue
            for distance, share in enumerate(NEAR_SHARES, start=1):
                for at in (place - distance, place + distance):
                    if 0 <= at < len(inside):
                        near = inside[at]
                        shares[near.event_id] += share * score * _brevity(near)
                        records[near.event_id] = near
    items = {item.id: item for item in events}
    for key, record in records.items():
        if key not in items:
            items[key] = Ranked("events", record, 0.0, {}, {"fused": 0.0})
    before = max(scores.values(), default=0.0)
    after = max((item.score + shares.get(key, 0.0) for key, item in items.items()), default=0.0)
    scale = before / after if after else 1.0
    return _sorted(_with_share(item, shares.get(item.id), scale) for item in items.values())


def _brevity(event: IndexedEvent) -> float:
    return min(1.0, _NEAR_BYTES / max(1, len(event.text.encode())))


def _with_share(item: Ranked, share: float | None, scale: float) -> Ranked:
    if share is None:
        return item.scored(item.score * scale, {"scale": scale})
    return item.scored((item.score + share) * scale, {"near": share, "scale": scale})


@dataclass(frozen=True, slots=True)
class Weights:
    """What a record is worth beside how well it fits.

    :arg now: event times are measured from here; later ones count as now.
    :arg half_life: after it half of what recency gives is gone.
    :arg question: who is named in it.
    """

    now: datetime
    half_life: timedelta
    question: str = ""

    def weigh(self, items: Iterable[Ranked]) -> list[Ranked]:
        """Multiply scores; order anew."""
        named = cache(partial(_names, self.question.casefold()))
        now_s = self.now.timestamp()
        recency = cache(self._recency)
        return _sorted(
            # By whole days, so that a question asked again gives the same answer to the last digit.
            self._one(item, named, recency(int(max(now_s - item.at_s, 0.0) // _DAY_S)))
            for item in items
        )

    def _recency(self, days: int) -> float:
        fresh: float = 0.5 ** (days * _DAY / self.half_life)
        return 1 - _RECENCY_SPAN * (1 - fresh)

    def _one(self, item: Ranked, named: Callable[[str], bool], recency: float) -> Ranked:
        factors = {"layer": LAYER_WEIGHTS[item.layer]}
        record = item.record
        if isinstance(record, Atom):
            points = _STRICT_PRIORITY if record.priority < 0 else record.priority
            factors["priority"] = 1 - _PRIORITY_SPAN / 2 + _PRIORITY_SPAN * points / 100
            if record.said_by != UNNAMED and named(record.said_by):
                factors["speaker"] = _SPEAKER
        elif isinstance(record, IndexedEvent):
            if record.name and named(record.name):
                factors["speaker"] = _SPEAKER
            if record.role in _NO_PEOPLE:
                factors["role"] = _NOT_A_PERSON
        else:
            factors["heat"] = 1 + _HEAT_STEP * min(record.heat, _HEAT_STEPS)
        factors["recency"] = recency
        score = item.score
        for factor in factors.values():
            score *= factor
        return item.scored(score, factors)


def distinct(ranked: Sequence[Ranked], limit: int) -> tuple[list[Ranked], list[Folded]]:
    """Leave out what another item says: events that an atom cites and says again, repeats.

    The atom stands for both: it takes the better of the two places. Only as far down the list
    as the first ``limit`` that stay; what comes after them is not looked at.
    """
    citing: dict[str, list[Ranked]] = defaultdict(list)
    for item in ranked:
        if isinstance(item.record, Atom):
            for event_id in item.record.source_event_ids:
                citing[event_id].append(item)
    kept: dict[tuple[SearchLayer, str], Ranked] = {}
    said: list[_Said] = []
    grams = cache(_grams)  # for this call: what was forgotten is kept nowhere
    folded: list[Folded] = []
    for item in ranked:
        if len(kept) >= limit:
            kept.setdefault((item.layer, item.id), item)
            continue
        atom = _said_by(item, citing, grams)
        if atom is not None:
            folded.append(Folded(item.id, atom.id))
        stays = item if atom is None else replace(atom, score=max(atom.score, item.score))
        if (stays.layer, stays.id) in kept:
            continue
        says = _Said.by(stays, grams)
        same = next((other for other in said if says.repeats(other)), None)
        if same is not None:
            folded.append(Folded(stays.id, same.id))
            continue
        kept[stays.layer, stays.id] = stays
        said.append(says)
    return _sorted(kept.values()), folded


@dataclass(frozen=True, slots=True)
class _Said:
    """What an item says, to be compared."""

    id: str
    grams: frozenset[str]
    digits: list[str]

    @classmethod
    def by(cls, item: Ranked, grams: Callable[[str], frozenset[str]]) -> _Said:
        return cls(item.id, grams(item.record.text), _DIGITS.findall(item.record.text))

    def repeats(self, other: _Said) -> bool:
        """Tell whether they are the same but for a few letters; another number is another fact."""
        shorter, longer = sorted((len(self.grams), len(other.grams)))
        least = _REPEATS * longer
        if shorter < least or self.digits != other.digits:
            return False
        return len(self.grams & other.grams) >= least


def _said_by(
    item: Ranked,
    citing: Mapping[str, Sequence[Ranked]],
    grams: Callable[[str], frozenset[str]],
) -> Ranked | None:
    if item.layer != "events" or item.id not in citing:
        return None
    said = grams(item.record.text)
    for atom in citing[item.id]:
        if len(said & grams(atom.record.text)) >= _SAME * len(said):
            return atom
    return None


def _names(question: str, name: str) -> bool:
    """Say whether a question names somebody, by any of their names; scripts without spaces too."""
    return any(
        re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", question)
        for word in name.casefold().split()
        if len(word) > 1
    )


def _id_of(record: Record) -> str:
    if isinstance(record, Atom):
        return record.atom_id
    return record.event_id if isinstance(record, IndexedEvent) else record.profile_id


def _time_of(record: Record) -> datetime:
    return record.updated_at if isinstance(record, Profile) else record.occurred_at


def _grams(text: str) -> frozenset[str]:
    """Give the letter trigrams of a text: they compare English and Chinese alike."""
    letters = _NOT_WORD.sub(" ", text.casefold()).strip()
    return frozenset(letters[i : i + _GRAM] for i in range(max(1, len(letters) - _GRAM + 1)))


def _sorted(items: Iterable[Ranked]) -> list[Ranked]:
    """Order by score, then the newer, then the id: the same searches give the same list."""
    return sorted(items, key=lambda item: (-item.score, -item.at_s, item.id))

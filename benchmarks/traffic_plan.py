"""What a traffic run says, does and is held against: pure, the same for the same seed.

Wired up by :mod:`benchmarks.traffic`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from random import Random
from statistics import median

import orjson
from prometheus_client.parser import text_string_to_metric_families

from stores.ids import scope_key
from tests.rig import scripted_llm
from tests.rig.scripted_llm import CHAT, Received, Step

__all__ = [
    "AGENT",
    "DISTURBANCES",
    "TENANT",
    "Ask",
    "Conversations",
    "Disturbance",
    "Failures",
    "Growth",
    "Plan",
    "Recalls",
    "Sample",
    "growths",
    "not_held",
    "question",
    "recalls",
    "within_s",
]

TENANT, AGENT = "acme", "helper"
START = datetime(2026, 1, 1, 8, tzinfo=timezone.utc)
SESSION_EVENTS = 30
"""Messages of a session, then it is ended."""
LEAST_AVAILABLE = 0.999
_MIDDLE, _END, _PART = 0.5, 0.9, 0.1
"""Shares of the traffic at which the parts begin whose memory is compared, and their length."""


@dataclass(frozen=True)
class Disturbance:
    """Something done to the installation while events and questions go on.

    :arg share: when, as a share of the traffic's time.
    """

    name: str
    share: float


DISTURBANCES = (
    Disturbance("broker killed", 0.10),
    Disturbance("l1 rescaled", 0.22),
    Disturbance("query services restarted", 0.32),
)


@dataclass(frozen=True)
class Plan:
    """How much is said, by how many, how fast.

    :arg minutes: of traffic, by the clock.
    :arg rate: events a second.
    :arg scopes: users who talk.
    :arg hours: of event time that the traffic spans.
    """

    minutes: float
    rate: float
    scopes: int
    seed: int = 0
    hours: float = 2.0

    @property
    def seconds(self) -> float:
        """Seconds of traffic, by the clock."""
        return 60 * self.minutes

    @property
    def events(self) -> int:
        """Events in all, ends of sessions after the traffic left out."""
        return round(self.rate * self.seconds)

    @property
    def compression(self) -> float:
        """How many times faster than the clock event time goes."""
        return 60 * self.hours / self.minutes

    def occurred_at(self, number: int) -> datetime:
        """Give the event time of event ``number``."""
        return START + timedelta(hours=self.hours) * (number / self.events)

    def due(self, elapsed_s: float) -> int:
        """Give how many events should have been said after so many seconds."""
        return min(self.events, int(elapsed_s * self.rate))


# --- what is said ----------------------------------------------------------------------------

_CITIES = ("Lisbon", "Porto", "Oslo", "Graz", "Ghent", "Turku", "Bilbao", "Brno", "Cork", "Lviv")
_DISHES = ("ramen", "risotto", "lentil soup", "dumplings", "paella", "okra stew", "pancakes")
_HOBBIES = ("climbing", "chess", "pottery", "sailing", "birdwatching", "the cello", "judo")


class Conversations:
    """Users who talk in sessions; the first users say the most.

    Events come in the order in which they are produced. A third of what users say is a fact with a
    slot, whose value changes now and then.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rng = Random(plan.seed)
        self._said: Counter[int] = Counter()
        self._number = 0

    @property
    def users(self) -> int:
        """Count the users who have said something."""
        return len(self._said)

    def next(self) -> tuple[bytes, bytes]:
        """Give the next event: (scope key, value)."""
        number = self._number
        self._number += 1
        # Squared: a tenth of the users says a third.
        user = int(self._plan.scopes * self._rng.random() ** 2)
        turn = self._said[user]
        self._said[user] += 1
        when = self._plan.occurred_at(number)
        if turn % (SESSION_EVENTS + 1) == SESSION_EVENTS:
            return self._event(user, turn, when, type="session_end")
        text = self._reply() if turn % 2 else self._statement(number)
        role = "assistant" if turn % 2 else "user"
        return self._event(user, turn, when, type="message", role=role, content=text)

    def ends(self) -> Iterator[tuple[bytes, bytes]]:
        """Give the end of every session that is open; nothing is said after it."""
        for user, said in sorted(self._said.items()):
            if said % (SESSION_EVENTS + 1):
                when = self._plan.occurred_at(self._number)
                yield self._event(user, said, when, type="session_end", ends="last")

    def _event(
        self, user: int, turn: int, when: datetime, *, ends: str = "", **fields: str
    ) -> tuple[bytes, bytes]:
        value = {
            "v": 1,
            "event_id": f"u{user}-{turn}{ends}",
            "tenant_id": TENANT,
            "agent_id": AGENT,
            "user_id": user_name(user),
            "session_id": f"s{turn // (SESSION_EVENTS + 1)}",
            "occurred_at": when.isoformat(),
            **fields,
        }
        return scope_key([TENANT, AGENT, user_name(user)]).encode(), orjson.dumps(value)

    def _statement(self, number: int) -> str:
        choose = self._rng.choice
        return choose(
            (
                f"FACT[home.city]: I live in {choose(_CITIES)} now.",
                f"FACT: I have taken up {choose(_HOBBIES)} with friend {number % 97}.",
                f"Yesterday I cooked {choose(_DISHES)} for {number % 9 + 2} people, all went well.",
                f"My train to {choose(_CITIES)} was {number % 50 + 5} minutes late again.",
                "What would you do on a rainy Sunday?",
                f"I promised my sister to call her on day {number % 28 + 1}.",
            )
        )

    def _reply(self) -> str:
        return self._rng.choice(
            (
                "That sounds good. Tell me more about it.",
                "I see. Shall I remind you of it?",
                f"You could try {self._rng.choice(_HOBBIES)} some day.",
            )
        )


def user_name(user: int) -> str:
    """Name a user."""
    return f"user-{user}"


def question(rng: Random, users: int) -> tuple[str, str]:
    """Draw a question about one of the users who have said something: (user, question)."""
    asked = (
        "where does the user live?",
        f"has the user tried {rng.choice(_HOBBIES)}?",
        f"who ate the {rng.choice(_DISHES)}?",
        f"what happened on the way to {rng.choice(_CITIES)}?",
    )
    return user_name(rng.randrange(max(1, users))), rng.choice(asked)


# --- how the model fails -----------------------------------------------------------------------


class Failures:
    """The script of a model that fails a share of its calls, by the seed and what it is asked.

    A question that is asked again has its luck anew. Embeddings never fail.
    """

    KINDS: Mapping[str, Callable[[], Step]] = {
        "500": scripted_llm.server_error,
        "429": lambda: scripted_llm.rate_limited(1),
        "timeout": scripted_llm.hang,
        "broken JSON": scripted_llm.broken_json,
    }

    def __init__(self, rate: float, seed: int) -> None:
        self._rate = rate
        self._seed = seed
        self._asked: Counter[bytes] = Counter()
        self.calls = 0
        self.failed: Counter[str] = Counter()

    def __call__(self, request: Received) -> Step:
        """Give what to do with a request."""
        if request.path != CHAT:
            return Step()
        body = orjson.dumps(request.body, option=orjson.OPT_SORT_KEYS)
        question = blake2b(body, digest_size=8).digest()  # bodies would fill the memory
        self._asked[question] += 1
        self.calls += 1
        rng = Random(f"{self._seed}|{self._asked[question]}|{question.hex()}")
        if rng.random() < self._rate:
            kind = rng.choice(list(self.KINDS))
            self.failed[kind] += 1
            return self.KINDS[kind]()
        return Step(latency_s=rng.uniform(0.2, 0.5))


# --- what is measured ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """One recall as its caller saw it.

    :arg at: seconds since the traffic began.
    :arg failure: why there was no answer; empty where there was one.
    :arg degraded: the parts that the answer was without.
    :arg tries: services that were asked.
    """

    at: float
    ms: float
    failure: str = ""
    degraded: tuple[str, ...] = ()
    tries: int = 1


@dataclass(frozen=True)
class Recalls:
    """All recalls of a run. Times in milliseconds, of answered ones."""

    asked: int
    answered: int
    asked_again: int
    p50_ms: float
    p95_ms: float
    failures: Mapping[str, int]
    degraded: Mapping[str, int]

    @property
    def availability(self) -> float:
        """Give the share that was answered; none asked is none answered."""
        return self.answered / self.asked if self.asked else 0.0


def recalls(asks: Sequence[Ask]) -> Recalls:
    """Count recalls."""
    took = sorted(ask.ms for ask in asks if not ask.failure)

    def part(share: float) -> float:
        return round(took[min(len(took) - 1, int(len(took) * share))], 1) if took else 0.0

    return Recalls(
        asked=len(asks),
        answered=len(took),
        asked_again=sum(ask.tries > 1 for ask in asks),
        p50_ms=part(0.5),
        p95_ms=part(0.95),
        failures=dict(Counter(ask.failure for ask in asks if ask.failure)),
        degraded=dict(Counter(one for ask in asks for one in ask.degraded)),
    )


@dataclass(frozen=True)
class Sample:
    """How it stood at one moment.

    :arg at: seconds since the traffic began.
    :arg rss: process id and resident megabytes, by name of the process.
    :arg lag: records not read, by flow; a flow that does not answer is left out.
    :arg pending: items that wait in stages, by flow.
    """

    at: float
    rss: Mapping[str, tuple[int, float]]
    lag: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Growth:
    """Resident memory of one process: middle and end of the traffic, in megabytes."""

    name: str
    middle_mb: float
    end_mb: float
    mb_per_hour: float
    most_mb: float

    @property
    def percent(self) -> float:
        """Give by how much it grew from the middle to the end."""
        return 100 * (self.end_mb / self.middle_mb - 1)


def within_s(page: str, layer: str, share: float) -> float | None:
    """Give the seconds within which a share became recallable, as a metrics page tells.

    That is the upper bound of a bucket, so rather too much; ``None`` when there was nothing.
    """
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(page)
        if family.name == "sediment_recallable_seconds"
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.labels["layer"] == layer
    ]
    most = max((count for _, count in buckets), default=0.0)
    return min((le for le, count in buckets if most and count >= share * most), default=None)


def growths(samples: Sequence[Sample], seconds: float, calm_s: float) -> list[Growth]:
    """Give the growth of each process that was one and the same from the middle to the end.

    :arg seconds: that the traffic took.
    :arg calm_s: when the last disturbance was over; the middle is not before. None is given when
        that leaves no time between middle and end.
    """
    middle_s, end_s, part_s = (share * seconds for share in (_MIDDLE, _END, _PART))
    middle_s = max(middle_s, calm_s)
    if middle_s + part_s > end_s:
        return []
    found = []
    for name in sorted({name for sample in samples for name in sample.rss}):
        seen = [(one.at, *one.rss[name]) for one in samples if name in one.rss]
        parts = [
            [row for row in seen if first <= row[0] <= first + part_s]
            for first in (middle_s, end_s)
        ]
        if not all(parts) or len({pid for part in parts for _, pid, _ in part}) > 1:
            continue
        middle, end = (median(mb for _, _, mb in part) for part in parts)
        hours = (median(at for at, _, _ in parts[1]) - median(at for at, _, _ in parts[0])) / 3600
        most = max(mb for _, _, mb in seen)
        found.append(
            Growth(name, round(middle, 1), round(end, 1), round((end - middle) / hours, 1), most)
        )
    return found


def not_held(
    *,
    clean: bool,
    drained: bool,
    accepted: int,
    refused: int,
    recorded: int,
    asked: Recalls,
    died: Sequence[str],
    skipped: Sequence[str],
) -> list[str]:
    """Say what did not hold, in sentences; empty when all did.

    :arg clean: the audit explains every record.
    :arg drained: nothing was open or on its way when the run ended.
    :arg accepted: events that the broker acknowledged; ``refused`` that it did not.
    :arg recorded: records that the audit found.
    :arg died: processes that ended by themselves, or not as they should.
    :arg skipped: disturbances that did not come to pass.
    """
    said = [f"{name} ended by itself or badly" for name in died]
    said += [f"did not come to pass: {name}" for name in skipped]
    if not clean:
        said.append("the audit is not clean")
    if not drained:
        said.append("not everything had ended when the time was up")
    if recorded < accepted:
        said.append(f"{accepted - recorded} acknowledged events are not in the log")
    if refused:
        said.append(f"{refused} events were not acknowledged")
    if asked.availability < LEAST_AVAILABLE:
        said.append(
            f"recall was available {asked.availability:.3%}, to be reached is {LEAST_AVAILABLE:.1%}"
        )
    return said

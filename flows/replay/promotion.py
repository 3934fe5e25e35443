"""Whether a generation may become the current one, and how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from connectors.log import EndAt, LogReader, Place, StartAt
from connectors.settings import Settings
from flows.parts import consumer_group
from flows.progress import EVENT_FLOWS
from flows.replay.plan import Span, place_of, span_of
from stores.generations import Generation
from stores.records import LogRecord, Outcome

__all__ = [
    "Standing",
    "atoms_in",
    "behind",
    "given_up",
    "reasons_against",
    "span_asked",
    "standing_of",
    "wait_until_read",
]

_SHOW_EVERY = 500


@dataclass(frozen=True, slots=True)
class Standing:
    """How a generation stands.

    :arg lag: records of the events topic that its flows have not read; ``None`` when none of
        them has noted how far it is.
    :arg given_up: windows and records that ended as dead letters and were not redriven since,
        by reason.
    """

    atoms: int
    given_up: Mapping[str, int]
    lag: int | None

    @property
    def dead(self) -> int:
        """Count all that was given up."""
        return sum(self.given_up.values())


def standing_of(
    reader: LogReader,
    settings: Settings,
    generation: Generation,
    show: Callable[[int], None] = lambda _: None,
) -> Standing:
    """Read a generation's topics. ``settings`` are those of the generation.

    :arg show: told now and then how many more records were read.
    """

    def all_of(topic: str) -> Iterator[LogRecord]:
        count = 0
        for record in reader.read(settings.topic(topic), StartAt.beginning(), EndAt.latest()):
            count += 1
            if count == _SHOW_EVERY:
                show(count)
                count = 0
            yield record
        show(count)

    return Standing(
        atoms=atoms_in(all_of("l1.atoms")),
        given_up=given_up(all_of("outcomes")),
        lag=behind(_committed(reader, settings), span_asked(reader, settings, generation)),
    )


def span_asked(reader: LogReader, settings: Settings, generation: Generation) -> Span:
    """Give the part of the events topic that a generation is about, up to its end as it is now."""
    start = place_of("--from", generation.start)
    return span_of(reader, settings.topic("l0.events"), start, Place("end"))


def _committed(reader: LogReader, settings: Settings) -> Mapping[int, int]:
    """Say how far a generation is: the flow ``all``, or the slower of ``l0`` and ``l1``."""
    events = settings.topic("l0.events")
    by_flow = {
        name: reader.committed(consumer_group(settings, name), events) for name in EVENT_FLOWS
    }
    whole, index, memory = by_flow["all"], by_flow["l0"], by_flow["l1"]
    apart = {at: min(offset, memory[at]) for at, offset in index.items() if at in memory}
    return {
        at: max(whole.get(at, 0), apart.get(at, 0)) for at in sorted({*whole.keys(), *apart.keys()})
    }


def behind(committed: Mapping[int, int], span: Span) -> int | None:
    """Count the records of a span that were not read; ``None`` when nothing is noted.

    >>> span = Span({0: 0, 1: 2}, {0: 7, 1: 3})
    >>> behind({0: 5}, span), behind({}, Span({0: 4}, {0: 4})), behind({}, span)
    (3, 0, None)
    """
    if not committed and span.records:
        return None
    return sum(
        max(0, end - max(span.starts[at], committed.get(at, 0))) for at, end in span.ends.items()
    )


def atoms_in(records: Iterable[LogRecord]) -> int:
    """Count the atoms of a topic: keys whose last record has a value."""
    there: dict[bytes, bool] = {}
    for record in records:
        there[record.key or b""] = record.value is not None
    return sum(there.values())


def given_up(records: Iterable[LogRecord]) -> Mapping[str, int]:
    """Count what ended as a dead letter, by reason; of one id, the newest outcome counts."""
    results: dict[str, str] = {}
    for record in records:
        try:
            outcome = Outcome.model_validate_json(record.value or b"")
        except ValidationError:
            continue
        dead = outcome.result == "dead_lettered"
        results[outcome.outcome_id] = (outcome.reason or "unknown") if dead else ""
    return dict(sorted(Counter(filter(None, results.values())).items()))


def reasons_against(
    generation: Generation,
    standing: Standing,
    current: Standing,
    *,
    allow_dead_letters: bool,
    allow_partial: bool,
) -> list[str]:
    """Say why a generation should not become the current one; lag is judged apart."""
    name = generation.name
    reasons = []
    if generation.problem:
        reasons.append(f"its replay stopped: {generation.problem}")
    elif generation.state == "building":
        reasons.append("its replay has not come to its end; run the same command again")
    if not generation.whole() and not allow_partial:
        reasons.append(
            "it holds a part only (--from or a scope was given): recall would lose the rest; "
            "--allow-partial promotes it all the same"
        )
    if standing.dead > current.dead and not allow_dead_letters:
        reasons.append(
            f"it gave up {standing.dead} windows or records, the current one {current.dead}; "
            f"see `SEDIMENT_GENERATION={name} sediment dlq list`, or use --allow-dead-letters"
        )
    return reasons


def wait_until_read(
    reader: LogReader,
    settings: Settings,
    generation: Generation,
    again: Callable[[int | None], bool],
) -> int | None:
    """Wait until a generation has read what the events topic holds now; give the lag then left.

    Later events do not count: under live traffic the lag is never 0 for long.

    :arg again: waits a little and says whether to look again; told the lag, ``None`` when the
        generation's flows have noted nothing yet.
    """
    span = span_asked(reader, settings, generation)
    while True:
        lag = behind(_committed(reader, settings), span)
        if lag == 0 or not again(lag):
            return lag

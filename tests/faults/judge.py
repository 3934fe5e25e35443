"""What must hold after a run: read from the topics and the store, compared with no disturbance."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import orjson

from connectors.kafka.deadletter import parse_dead_letter
from connectors.settings import Settings
from flows.cli.audit import run_audit
from flows.cli.common import err
from flows.layer_parts import open_persona_folder, open_scene_folder
from flows.outputs import record_id
from flows.scenes.job import place_in_process
from flows.scenes.profiles import file_of
from flows.upkeep.audit import EndResult
from stores.records import Atom, LogRecord, Outcome, PersonaJob, Profile, SceneJob
from stores.scenes import ProfileFile, without_navigation
from tests.faults.conversation import Conversation, poisoned
from tests.faults.flow_process import StoreKind, opened_store
from tests.faults.servers import Topics

__all__ = ["Final", "Judged", "faults_found", "final_state"]

_LETTERS = ("l0.dlq", "l1.dlq", "l2.dlq", "l3.dlq")
_READ = ("outcomes", "l1.atoms", "l2.jobs", "l3.jobs", "profiles", "answers", *_LETTERS)
_LAYERS = ("scene_job", "persona_job")
_DATE = re.compile(r" \(\d{4}-\d\d-\d\d\)")


@dataclass(frozen=True)
class Final:
    """The final state of a run, free of positions, attempts and times.

    :arg atoms: by scope and id, by a strong read of the store.
    :arg events: by scope, event id to text, of the index.
    :arg folded: newest record of each atom.
    :arg outcomes: newest of each id, without attempts and places.
    :arg jobs: windows of each scope's scene jobs, each once, in order.
    :arg letters: (stage, reason, window id, event bytes) of the dead letters.
    :arg profiles: what scene and persona files tell, by scope and kind and path, as the files
        have it.
    """

    atoms: Mapping[str, Mapping[str, dict[str, Any]]]
    events: Mapping[str, Mapping[str, str]]
    folded: Mapping[str, dict[str, Any]]
    outcomes: Mapping[str, dict[str, Any]]
    jobs: Mapping[str, list[str]]
    letters: frozenset[tuple[str, str, str, bytes]]
    profiles: Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Judged:
    """A final state and the records it was read from.

    :arg indexed: what the index says of scenes and personas; ``told``: what the topic says.
    :arg jobs: the jobs of scenes and personas that are on their topics, by the id of their outcome.
    """

    final: Final
    outcomes: Sequence[Outcome]
    answers: Sequence[LogRecord]
    holes: Sequence[str]
    indexed: Mapping[str, dict[str, Any]]
    told: Mapping[str, dict[str, Any]]
    jobs: Mapping[str, str]


def final_state(topics: Topics, settings: Settings, kind: StoreKind, talk: Conversation) -> Judged:
    """Read the final state of a run that has ended."""
    read = topics.read(_READ)
    with opened_store(settings, kind) as store:
        atoms = {
            scope: {one.atom_id: one.model_dump(mode="json") for one in store.atoms_of(scope)}
            for scope in talk.scopes
        }
        events = {
            scope: {event.event_id: event.text for event in store.events_of(scope)}
            for scope in talk.scopes
        }
        indexed = [one for scope in talk.scopes for one in store.profiles_of(scope)]
    newest = {record.key: record.value for record in read["profiles"]}
    told = [Profile.model_validate_json(value) for value in newest.values() if value]
    written = [Outcome.model_validate_json(record.value or b"") for record in read["outcomes"]]
    jobs: dict[str, dict[str, None]] = defaultdict(dict)
    for record in read["l2.jobs"]:
        job = SceneJob.model_validate_json(record.value or b"")
        jobs[job.scope][job.window_id] = None
    folded = [Atom.model_validate_json(record.value or b"") for record in read["l1.atoms"]]
    letters = [parse_dead_letter(record) for name in _LETTERS for record in read[name]]
    final = Final(
        atoms=atoms,
        events=events,
        folded={atom.atom_id: atom.model_dump(mode="json") for atom in folded},
        outcomes={_name(one): _end(one) for one in written if one.kind not in _LAYERS},
        jobs={scope: list(windows) for scope, windows in jobs.items()},
        letters=frozenset(
            (letter.stage, letter.reason, letter.window_id, letter.record.value or b"")
            for letter in letters
        ),
        profiles=_in_files(settings, talk),
    )
    holes = [
        f"the log has lost offset {offset} of {name}/{partition}"
        for name, records in read.items()
        for partition, offset in _holes(records)
    ]
    return Judged(
        final,
        written,
        read["answers"],
        holes,
        indexed={_where(one): _telling(file_of(one)) for one in indexed},
        told={_where(one): _telling(file_of(one)) for one in told if not one.deleted},
        jobs=_jobs(settings, read),
    )


def _jobs(settings: Settings, read: Mapping[str, Sequence[LogRecord]]) -> dict[str, str]:
    """Give the jobs on their topics in words, by the id that the outcome of each must have."""
    found: dict[str, str] = {}
    for stage, name, model in (
        ("scenes", "l2.jobs", _scene_job),
        ("persona", "l3.jobs", _persona_job),
    ):
        for record in read[name]:
            job = model(record)
            outcome = record_id(stage, place_in_process(settings.topic(name), job.job_id))
            found[outcome] = f"{name} {record.position.offset} {job.scope} {job.job_id}"
    return found


def _scene_job(record: LogRecord) -> SceneJob:
    return SceneJob.model_validate_json(record.value or b"")


def _persona_job(record: LogRecord) -> PersonaJob:
    return PersonaJob.model_validate_json(record.value or b"")


def _in_files(settings: Settings, talk: Conversation) -> dict[str, dict[str, Any]]:
    """Read what is in the folders of scenes and personas."""
    found: dict[str, dict[str, Any]] = {}
    for kind, opened in (("scene", open_scene_folder), ("persona", open_persona_folder)):
        with opened(settings) as folder:
            for scope in talk.scopes:
                for path, file in folder.files(scope).items():
                    # A persona's navigation is by scene, and recall lists those by itself.
                    body = without_navigation(file.body) if kind == "persona" else file.body
                    found[f"{scope} {kind} {path}"] = _telling(replace(file, body=body))
    return found


def _where(profile: Profile) -> str:
    return f"{profile.scope} {profile.kind} {profile.path}"


def _telling(file: ProfileFile) -> dict[str, Any]:
    """Give what a file tells. When it was written, and as which version, is live timing."""
    return {
        "title": file.title,
        "body": file.body.strip(),
        "atoms": sorted(file.atoms),
        "archived": sorted(file.archived),
        "generator": file.generator,
    }


def _holes(records: Sequence[LogRecord]) -> list[tuple[int, int]]:
    """Give the offsets that a topic does not have any more: then the log lost them, not we."""
    there = {(record.position.partition, record.position.offset) for record in records}
    ends = {partition: offset for partition, offset in sorted(there)}
    return [
        (partition, offset)
        for partition, end in ends.items()
        for offset in range(end)
        if (partition, offset) not in there
    ]


def _name(outcome: Outcome) -> str:
    """Name an outcome by what it ends: the id of a record's holds its place."""
    if outcome.kind == "window" or not outcome.event_ids:
        return outcome.outcome_id if outcome.kind == "window" else f"{outcome.stage} refusals"
    return f"{outcome.stage} {outcome.scope} {outcome.event_ids}"


def _end(outcome: Outcome) -> dict[str, Any]:
    left_out = {"attempts", "topic", "partition", "offsets", "pipeline"}
    if outcome.kind == "record":
        left_out.add("outcome_id")
    return outcome.model_dump(mode="json", exclude=left_out)


def faults_found(
    judged: Judged,
    reference: Final,
    talk: Conversation,
    settings: Settings,
    *,
    flow: str,
    answers_again: int,
    journal: Mapping[bytes, str],
    may_be_given_up: bool,
) -> list[str]:
    """Give everything that is wrong, in words; an empty list is a run that held.

    :arg answers_again: answers that may be on the topic a second time, because a process died or
        a server was away between the topic and the journal.
    :arg journal: the answers that were used, by request.
    :arg may_be_given_up: a window may have dead letters and end well all the same. It is then
        reconciled after windows that came after it, so atoms may differ from an undisturbed run.
    """
    return [
        *judged.holes[:3],
        *_audit(settings),
        *_state(judged.final, reference, flow, may_be_given_up),
        *_windows(judged.final, talk),
        *_order(judged.outcomes),
        *_answers(judged.answers, journal, answers_again),
        *(_layers(judged, flow) if flow == "all" else []),
    ]


def _layers(judged: Judged, flow: str) -> list[str]:
    """Every job has its end, and files, topic and index tell the same of every atom."""
    files = judged.final.profiles
    found = _differences("files against topic:", files, judged.told)
    found += _differences("files against index:", files, judged.indexed)
    ended = {one.outcome_id for one in judged.outcomes if one.kind in _LAYERS}
    left = [name for one, name in judged.jobs.items() if one not in ended]
    found += [f"{len(left)} of {len(judged.jobs)} jobs have no outcome: {left[:5]}"] if left else []
    strange = ended.difference(judged.jobs)
    found += [f"{len(strange)} outcomes are of no job"] if strange else []
    for scope, atoms in judged.final.atoms.items():
        scenes = [file for name, file in files.items() if name.startswith(f"{scope} scene ")]
        told = {one for file in scenes for one in (*file["atoms"], *file["archived"])}
        lost, unknown = atoms.keys() - told, told - atoms.keys()
        found += [f"scenes of {scope} do not tell of {sorted(lost)[:3]}"] if lost else []
        found += [f"scenes of {scope} tell of no atom {sorted(unknown)[:3]}"] if unknown else []
        if atoms and f"{scope} persona persona.md" not in files:
            found.append(f"{scope} has no persona")
    return found


def _audit(settings: Settings) -> list[str]:
    """Every event explained, and ended: nothing is open or on its way when all has been read."""

    class Later:
        """A clock so far ahead that every outcome counts as settled, and proves order."""

        def now(self) -> datetime:
            return datetime.now(timezone.utc) + timedelta(hours=1)

    before, err.quiet = err.quiet, True  # its progress bars would be between ours
    try:
        report = run_audit(settings, Later())
    finally:
        err.quiet = before
    found = [
        f"audit: open: {one.session_id} of {one.scope} from {one.first}, {one.events} events"
        for one in report.open_windows[:3]
    ]
    found += [
        f"audit: {one.result}: {one.scope} {one.event_id} at {one.position}: {one.reason}"
        for one in report.problems[:5]
    ]
    found += [f"audit: an outcome without its events: {one}" for one in report.unmatched[:5]]
    found += [f"audit: {report.unreadable} unreadable outcomes"] if report.unreadable else []
    unfinished: tuple[EndResult, ...] = ("open", "pending", "not_read")
    for result in unfinished:
        if count := report.count(result):
            found.append(f"audit: {count} records are {result} when all has been read")
    if not report.records:
        found.append("audit: no records were looked at")
    return found


def _state(final: Final, reference: Final, flow: str, may_be_given_up: bool) -> list[str]:
    found = _differences("outcomes", final.outcomes, reference.outcomes)
    if not may_be_given_up:
        for name in ("atoms", "folded", "jobs"):
            found += _differences(name, getattr(final, name), getattr(reference, name))
    if flow != "l1":
        found += _differences("events", final.events, reference.events)
        if not may_be_given_up:
            found += _differences("profile", _undated(final.profiles), _undated(reference.profiles))
    in_store = {name: atom for atoms in final.atoms.values() for name, atom in atoms.items()}
    found += _differences("store against topic:", in_store, final.folded)
    more, fewer = final.letters - reference.letters, reference.letters - final.letters
    if may_be_given_up:
        healed = {name for name, end in final.outcomes.items() if end["result"] == "extracted"}
        more = frozenset(letter for letter in more if letter[2] not in healed)
    found += [f"a dead letter too many: {letter[:3]}" for letter in sorted(more)[:3]]
    found += [f"a dead letter is missing: {letter[:3]}" for letter in sorted(fewer)[:3]]
    return found


def _undated(profiles: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Take the dates and the order that comes from them out of personas.

    A persona is written anew for what is new or no longer holds, not for what is said again: so
    whether a line has the date of the first or the second time depends on when it was written.
    """
    return {
        name: {**file, "body": sorted(_DATE.sub("", file["body"]).splitlines())}
        if " persona " in name
        else file
        for name, file in profiles.items()
    }


def _differences(name: str, is_: Mapping[str, Any], should: Mapping[str, Any]) -> list[str]:
    if is_ == should:
        return []
    found = [
        f"{name} {key}: {_difference(is_.get(key), should.get(key))}"
        for key in sorted(is_.keys() | should.keys())
        if is_.get(key) != should.get(key)
    ]
    return [*found[:3], *([f"{name}: {len(found) - 3} more"] if len(found) > 3 else [])]


def _difference(one: Any, other: Any) -> str:
    """Say what differs, as deep inside as possible."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        where = ", ".join(f"{key}: {_difference(one.get(key), other.get(key))}" for key in keys[:3])
        return f"{{{where}}}"
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = [(at, a, b) for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
        return "; ".join(f"[{at}] {_difference(a, b)}" for at, a, b in parts[:3])
    return f"{_short(one)} and not {_short(other)}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)})"


def _windows(final: Final, talk: Conversation) -> list[str]:
    """The windows are those that the pure rules cut; only what is poison was given up."""
    found: list[str] = []
    for window in talk.windows:
        end = final.outcomes.get(window.window_id)
        wanted = ("dead_lettered",) if poisoned(window) else ("extracted", "empty")
        if end is None:
            found.append(f"window {window.window_id} of {window.session_id} has no outcome")
        elif end["result"] not in wanted:
            found.append(f"window {window.window_id}: {end['result']}, {end['reason']}")
    return found[:5]


def _order(outcomes: Sequence[Outcome]) -> list[str]:
    """Outcomes of a session stand in the order of its windows, the first of each and the last.

    However they ended: one that was skipped or given up waits behind those before it.
    """
    found: list[str] = []
    for which, written in (("first", outcomes), ("last", list(reversed(outcomes)))):
        sessions: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)
        for outcome in written:
            if outcome.kind == "window":
                session = (outcome.scope or "", outcome.session_id or "")
                sessions[session].setdefault(outcome.offsets[0])
        for session, places in sessions.items():
            order = list(places) if which == "first" else list(reversed(places))
            if order != sorted(order):
                found.append(f"order of {session}, {which} outcomes: windows at {order}")
    return found[:5]


def _answers(answers: Sequence[LogRecord], journal: Mapping[bytes, str], again: int) -> list[str]:
    """An answer is recorded once for each request, and the newest on the topic is the one used.

    One that is on the topic and was not yet in the journal when its process died may have been
    asked for anew; of these there are no more than calls were in flight.
    """
    texts: dict[bytes, list[str]] = defaultdict(list)
    for record in answers:
        texts[record.key or b""].append(orjson.loads(record.value or b"{}")["text"])
    found = [
        f"request {key!r}: {_short(journal[key])} was used, the topic ends with {_short(given[-1])}"
        for key, given in texts.items()
        if key in journal and journal[key] != given[-1]
    ]
    found += [f"request {key!r} is not on the topic" for key in journal.keys() - texts.keys()]
    unused = len(texts.keys() - journal.keys())
    if unused > again:
        found.append(f"{unused} answers on the topic are not in the journal")
    more = sum(map(len, texts.values())) - len(texts)
    if more > again:
        found.append(f"{more} answers were recorded again, {again} at most could be")
    return found[:5]

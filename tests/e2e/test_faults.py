"""What fails on the way from Kafka to memory: kills, models, endpoints, poison.

Real Kafka, milvus-lite, and a scripted model and embeddings over real HTTP.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from connectors.kafka.deadletter import parse_dead_letter
from connectors.settings import Settings
from flows.parts import open_store
from stores.ids import scope_key
from stores.records import Atom, Outcome, OutRecord, SceneJob
from tests.cli.in_process import InProcess
from tests.e2e.cli import Sediment
from tests.e2e.on_kafka import OnKafka
from tests.rig import extraction_script, reconcile_script, scripted_llm
from tests.rig.events import at, body
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import CHAT, EMBEDDINGS, Received, ScriptedLlm, Step

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

USERS = ("ana", "bob", "cho", "dee", "eve", "fay")
SESSIONS = 4
WINDOWS = 3  # of each session
TURNS = 2  # in each window
CONCURRENCY = 4
DIMENSION = 32


def settings_of(kafka: OnKafka, llm: ScriptedLlm) -> dict[str, str]:
    return {
        **kafka.env,
        "SEDIMENT_LLM_BASE_URL": llm.url,
        "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
        "SEDIMENT_EMBEDDINGS_BASE_URL": llm.url,
        "SEDIMENT_EMBEDDINGS_MODEL": extraction_script.SCRIPTED_MODEL,
        "SEDIMENT_EMBEDDINGS_DIMENSION": str(DIMENSION),
        "SEDIMENT_WINDOW_USER_TURNS": str(TURNS),
        "SEDIMENT_CONCURRENCY": str(CONCURRENCY),
        "SEDIMENT_SNAPSHOT_INTERVAL_S": "0.5",
        "SEDIMENT_SCENE_WRITER": "off",
    }


def conversations(
    kafka: OnKafka, text: Callable[[str, int, int], str] | None = None
) -> list[OutRecord]:
    """Every user talks in several sessions, one after the other; all of it by its own producer.

    A user's city is stated in every session anew, so that atoms supersede each other.
    """
    records: list[OutRecord] = []
    for session in range(SESSIONS):
        for user in USERS:
            for turn in range(WINDOWS * TURNS):
                said = f"FACT: {user} tells thing {turn} of day {session}."
                if turn == 1:
                    said = f"FACT[home.city]: {user} lives in city {session}."
                if text is not None:
                    said = text(user, session, turn) or said
                event = body(
                    f"{user}-{session}-{turn}",
                    user_id=user,
                    session_id=f"{user}-{session}",
                    content=said,
                    occurred_at=at(86_400 * session + 10 * turn).isoformat(),
                )
                records.append(
                    OutRecord(
                        kafka.topic("l0.events"),
                        scope_key(["acme", "helper", user]).encode(),
                        orjson.dumps(event),
                        (("trace", event["event_id"].encode()),),
                    )
                )
    return records


ALL_WINDOWS = len(USERS) * SESSIONS * WINDOWS


@pytest.fixture
def llm(llm_server: ScriptedLlm) -> ScriptedLlm:
    llm_server.answer = extraction_script.answer
    llm_server.dimension = DIMENSION
    return llm_server


@pytest.fixture
def kafka(kafka_broker: KafkaBroker) -> OnKafka:
    """Topics of this test, with every conversation in them."""
    kafka = OnKafka(kafka_broker)
    kafka.append(conversations(kafka))
    return kafka


def stored(cli: InProcess) -> dict[str, Atom]:
    """Read the store of every user, by atom id."""
    found = [
        Atom.model_validate(item)
        for user in USERS
        for item in cli.json(
            "memories", "list", "--tenant", "acme", "--agent", "helper", "--user", user
        )["items"]
    ]
    return {atom.atom_id: atom for atom in found}


def distinct(outcomes: Sequence[Outcome]) -> dict[str, set[str]]:
    """Give every different end that each window was given, whatever it took to get there."""
    ends: dict[str, set[str]] = {}
    for outcome in outcomes:
        end = outcome.model_dump_json(exclude={"attempts"})
        ends.setdefault(outcome.outcome_id, set()).add(end)
    return ends


def assert_complete(outcomes: Sequence[Outcome]) -> None:
    """Every event is in exactly one window, and every window has exactly one end."""
    ends = distinct(outcomes)
    assert len(ends) == ALL_WINDOWS
    assert {name: end for name, end in ends.items() if len(end) > 1} == {}
    once = {outcome.outcome_id: outcome for outcome in outcomes}.values()
    ended = Counter((outcome.scope, name) for outcome in once for name in outcome.event_ids)
    assert len(ended) == len(USERS) * SESSIONS * WINDOWS * TURNS
    assert set(ended.values()) == {1}


# --- kills -----------------------------------------------------------------------------------


class SlowAndUnreliable:
    """A model that takes its time and fails one call in five, but no window more than twice.

    A third malformed answer would be given up, and a second outage waits for 15 s: neither is
    what this is about. Which window fails, and how, depends on the seed alone.
    """

    def __init__(self, seed: int, latency_s: float) -> None:
        self._seed, self._latency_s = seed, latency_s
        self._asked: Counter[str] = Counter()
        self.outages = 0

    def __call__(self, request: Received) -> Step:
        if request.path != CHAT or reconcile_script.is_asked(request.body):
            return Step()  # what new memories do to known ones is asked of a model that is well
        window = "|".join(text for _, _, _, text in extraction_script.shown_lines(request.body))
        self._asked[window] += 1
        chance = random.Random(f"{self._seed}|{self._asked[window]}|{window}").random()
        if self._asked[window] == 1 and chance < 0.06:
            self.outages += 1
            outages = [
                scripted_llm.rate_limited(1),
                scripted_llm.server_error(),
                scripted_llm.cut_off(),
            ]
            return outages[int(chance * 1000) % 3]
        if self._asked[window] <= 2 and chance < 0.25:
            broken = [scripted_llm.broken_json(), scripted_llm.wrong_schema()]
            return broken[int(chance * 1000) % 2]
        return Step(latency_s=self._latency_s)


@dataclass(frozen=True)
class Undisturbed:
    outcomes: list[Outcome]
    atoms: dict[str, Atom]
    jobs: dict[str, list[str]]


@pytest.fixture(scope="module")
def undisturbed(
    kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Undisturbed]:
    """The same conversations, run once from beginning to end with a model that never fails."""
    kafka = OnKafka(kafka_broker)
    kafka.append(conversations(kafka))
    with scripted_llm.scripted_llm(answer=extraction_script.answer, dimension=DIMENSION) as llm:
        cli = InProcess(tmp_path_factory.mktemp("undisturbed"), settings_of(kafka, llm))
        cli.run("run", "l1", "--to-end")
        atoms = stored(cli)
    assert kafka.atoms() == atoms
    assert_complete(kafka.outcomes())
    offsets = {outcome.outcome_id: outcome.offsets[0] for outcome in kafka.outcomes()}
    jobs = _jobs(kafka)
    assert jobs.keys() == {f"acme/helper/{user}" for user in USERS}
    for windows in jobs.values():
        assert len(windows) == SESSIONS * WINDOWS
        assert windows == sorted(windows, key=offsets.__getitem__)
    yield Undisturbed(kafka.outcomes(), atoms, jobs)


def test_killed_while_the_model_is_slow_and_fails(
    undisturbed: Undisturbed, kafka: OnKafka, llm: ScriptedLlm, tmp_path: Path
) -> None:
    """kill -9 at a seeded moment, through the command; the fault rig does it at every point."""
    script = SlowAndUnreliable(seed=7, latency_s=0.3)
    llm.script = script
    env = settings_of(kafka, llm)
    sediment = Sediment(tmp_path / "data", env)
    before = llm.count()
    process = sediment.start("run", "l1", "--to-end")
    while llm.count() == before and process.poll() is None:
        time.sleep(0.02)
    time.sleep(random.Random(20250302).uniform(0.3, 1.2))
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cli = InProcess(tmp_path / "data", env)
    cli.run("run", "l1", "--to-end")
    atoms = stored(cli)
    assert atoms == undisturbed.atoms
    assert kafka.atoms() == atoms, "an atom in the store has no record, or another one"
    outcomes = kafka.outcomes()
    assert _jobs(kafka) == undisturbed.jobs
    _assert_asked_once(llm, script)
    assert {o.outcome_id: (o.result, o.atom_ids) for o in outcomes} == {
        o.outcome_id: (o.result, o.atom_ids) for o in undisturbed.outcomes
    }
    assert_complete(outcomes)


def _jobs(kafka: OnKafka) -> dict[str, list[str]]:
    """Give every scope's windows in the order in which their scene jobs were first written.

    Scene jobs are keyed by scope, so this is the order that the next stage works in; outcomes
    are keyed by window and have none.
    """
    windows: dict[str, dict[str, None]] = {}
    for record in kafka.read("l2.jobs"):
        job = SceneJob.model_validate_json(record.value or b"")
        assert record.key == job.scope.encode()
        windows.setdefault(job.scope, {})[job.window_id] = None
    return {scope: list(found) for scope, found in windows.items()}


def _assert_asked_once(llm: ScriptedLlm, script: SlowAndUnreliable) -> None:
    """See that nothing was asked again but what failed, or was under way at the kill."""
    asked = [orjson.dumps(request.body) for request in llm.requests if request.path == CHAT]
    assert script.outages > 0
    again = len(asked) - len(set(asked))
    assert again <= script.outages + CONCURRENCY


def test_an_outcome_written_again_is_the_same_but_for_the_attempts_it_took(
    kafka: OnKafka, llm: ScriptedLlm, tmp_path: Path
) -> None:
    """One call failed at first; done again, its recorded answer is there at once."""
    llm.script = scripted_llm.in_turn(scripted_llm.server_error())
    cli = InProcess(tmp_path / "data", settings_of(kafka, llm))
    cli.run("run", "l1", "--to-end")
    asked = llm.count()
    shutil.rmtree(tmp_path / "data" / "recovery")
    cli.run("run", "l1", "--to-end")
    assert llm.count() == asked
    outcomes = kafka.outcomes()
    assert len(outcomes) == 2 * ALL_WINDOWS
    assert {outcome.attempts for outcome in outcomes} == {1, 2}
    same = {outcome.model_dump_json(exclude={"attempts"}) for outcome in outcomes}
    assert len(same) == ALL_WINDOWS


# --- models and endpoints ----------------------------------------------------------------------


def test_a_model_that_refuses_stops_the_flow_and_a_repaired_one_completes(
    undisturbed: Undisturbed, kafka: OnKafka, llm: ScriptedLlm, tmp_path: Path
) -> None:
    cli = InProcess(tmp_path / "data", settings_of(kafka, llm))
    llm.script = lambda request: scripted_llm.refused(401) if request.path == CHAT else None
    said = cli.run("run", "l1", "--to-end", code=1).err
    assert "The flow has stopped" in said
    assert "401" in said
    assert len(kafka.outcomes()) <= 20 + CONCURRENCY
    llm.script = None
    cli.run("run", "l1", "--to-end")
    outcomes = kafka.outcomes()
    given_up = {o.outcome_id for o in outcomes if o.result == "dead_lettered"}
    assert len(given_up) <= 20 + CONCURRENCY
    atoms = stored(cli).values()
    extracted = {o.outcome_id: o for o in outcomes if o.result == "extracted"}
    assert {atom.window_id for atom in atoms} <= extracted.keys()
    # A repeat is a statement of the atom that stands, which came from another window.
    told = {event_id for atom in atoms for event_id in atom.source_event_ids}
    assert all(told & set(outcome.event_ids) for outcome in extracted.values())
    given_up_events = {e for o in outcomes if o.outcome_id in given_up for e in o.event_ids}
    assert not told & given_up_events
    assert_complete(outcomes)


def test_a_poison_session_is_given_up_alone_with_its_original_bytes(
    kafka_broker: KafkaBroker, llm: ScriptedLlm, tmp_path: Path
) -> None:
    def text(user: str, session: int, turn: int) -> str:
        return f"FACT: poison {turn} for the model." if (user, session) == ("cho", 1) else ""

    kafka = OnKafka(kafka_broker)
    kafka.append(conversations(kafka, text))
    cli = InProcess(tmp_path / "data", settings_of(kafka, llm))
    llm.script = scripted_llm.when(
        lambda request: "poison" in request.prompt().rpartition("<conversation>")[2],
        scripted_llm.says("I am not JSON at all."),
    )
    cli.run("run", "l1", "--to-end")

    letters = [parse_dead_letter(record) for record in kafka.read("l1.dlq")]
    original = {
        record.position: record
        for record in kafka.read("l0.events")
        if b"poison" in (record.value or b"")
    }
    assert {letter.record.position for letter in letters} == original.keys()
    assert len(letters) == len(original) == WINDOWS * TURNS
    for letter in letters:
        assert letter.record == original[letter.record.position]
        assert letter.record.headers == (("trace", b"cho-1-" + letter.record.headers[0][1][-1:]),)
        assert (letter.stage, letter.reason, letter.attempt) == ("extract", "malformed_answer", 3)
        assert "poison" not in letter.error
    outcomes = kafka.outcomes()
    assert_complete(outcomes)
    assert Counter(outcome.result for outcome in outcomes) == {
        "dead_lettered": WINDOWS,
        "extracted": ALL_WINDOWS - WINDOWS,
    }
    assert {o.session_id for o in outcomes if o.result == "dead_lettered"} == {"cho-1"}
    said = {source for atom in stored(cli).values() for source in atom.source_event_ids}
    assert len(said) == (ALL_WINDOWS - WINDOWS) * TURNS


def test_embeddings_that_fail_for_a_while_lose_nothing(
    undisturbed: Undisturbed, kafka: OnKafka, llm: ScriptedLlm, tmp_path: Path
) -> None:
    """Both stages that embed meet the outage at once: each waits for 5 s, then goes on."""
    left = {"index": 3, "reconcile": len(USERS)}

    def script(request: Received) -> Step | None:
        if request.path != EMBEDDINGS:
            return None
        stage = "index" if request.body["input"][0].startswith("FACT") else "reconcile"
        left[stage] -= 1
        return scripted_llm.server_error() if left[stage] >= 0 else None

    llm.script = script
    cli = InProcess(tmp_path / "data", settings_of(kafka, llm))
    cli.run("run", "all", "--to-end")
    assert max(left.values()) < 0, left
    assert stored(cli) == undisturbed.atoms == kafka.atoms()
    assert_complete(kafka.outcomes())
    assert kafka.read("l0.dlq") == kafka.read("l1.dlq") == []
    assert _indexed(cli) == {
        (user, f"{user}-{session}-{turn}")
        for user in USERS
        for session in range(SESSIONS)
        for turn in range(WINDOWS * TURNS)
    }


def _indexed(cli: InProcess) -> set[tuple[str, str]]:
    """Look up every event in the search index."""
    found: set[tuple[str, str]] = set()
    settings = Settings(data_dir=cli.data_dir)

    class Embedder:
        name, dimension = f"{extraction_script.SCRIPTED_MODEL}/{DIMENSION}", DIMENSION

    with open_store(settings, Embedder(), write=False) as store:  # type: ignore[arg-type]
        for user in USERS:
            names = [f"{user}-{s}-{t}" for s in range(SESSIONS) for t in range(WINDOWS * TURNS)]
            for event in store.get_events(scope_key(["acme", "helper", user]), names):
                found.add((user, event.event_id))
    return found

"""Export and import: the same bytes for the same memories, checked, and back again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connectors.filelog import FileLog
from connectors.log import EndAt, StartAt
from flows.gate import GatePolicy
from flows.upkeep.export_format import canonical, folder_name, memory_page, read_manifest
from flows.upkeep.exporting import Exported, check_place, write_export
from flows.upkeep.history import History
from flows.upkeep.importing import Appended, ImportLog, check_export
from stores.errors import UserError
from stores.records import MAX_EVENT_BYTES, Atom, OutRecord, Tombstone
from stores.tombstones import Tombstones, tombstone_of
from stores.value_keys import value_keys
from tests.rig.events import START, at, atom, body, sourced

FIELDS = ("tenant", "agent", "user")
ANA, BOB = "acme/helper/ana", "acme/helper/bob"


class Clock:
    def __init__(self, days: int) -> None:
        self._now = START + timedelta(days=days)

    def now(self) -> datetime:
        return self._now


class Log:
    """A file log, and its export."""

    def __init__(self, folder: Path, *, days: int = 1, partitions: int = 1) -> None:
        self.log = FileLog(folder, Clock(days), partitions=partitions)
        self.kept_out = Tombstones()

    def events(self, *events: dict[str, object]) -> None:
        for one in events:
            scope = f"{one['tenant_id']}/{one['agent_id']}/{one['user_id']}"
            self.append("l0.events", scope.encode(), orjson.dumps(one))

    def atoms(self, *atoms: Atom) -> None:
        for one in atoms:
            value = one.model_dump_json(exclude_none=True).encode()
            self.append("l1.atoms", one.atom_id.encode(), value)

    def append(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        self.log.append([OutRecord(self.topic(topic), key, value)])

    def records(self, topic: str) -> list[bytes | None]:
        records = self.log.read(self.topic(topic), StartAt.beginning(), EndAt.latest())
        return [record.value for record in records]

    def topic(self, name: str) -> str:
        return f"sediment.{name}"

    def history(self) -> History:
        return History(
            self.log, self.topic, scope_fields=FIELDS, dedup_ids=1000, kept_out=self.kept_out
        )

    def export(self, folder: Path, scope: str | None = None, *, replace: bool = False) -> Exported:
        return write_export(
            self.history(), folder, scope_fields=FIELDS, scope=scope, replace=replace
        )

    def import_(self, folder: Path, fields: Sequence[str] = FIELDS) -> tuple[Appended, Appended]:
        manifest = check_export(folder, fields)

        def publish(tombstones: Sequence[Tombstone]) -> None:
            for one in tombstones:
                self.kept_out.add(one)

        into = ImportLog(
            folder, manifest, self.history(), self.log, self.topic,
            publish=publish, gate=GatePolicy(),
        )  # fmt: skip
        into.tombstones()
        events, atoms = Appended(), Appended()
        into.events(events)
        into.atoms(atoms)
        return events, atoms


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


LISBON = atom("a1", "User lives in Lisbon", slot="home.city", scope=ANA, sources=["e1"])
PORTO = atom("a2", "User moved to Porto", slot="home.city", scope=ANA, seconds=60, sources=["e3"])
OLD = LISBON.model_copy(
    update={"status": "superseded", "superseded_by": "a2", "valid_until": at(60)}
)
NURSE = atom("b1", "User works as a nurse", scope=BOB, type="episodic", seconds=5)
SAID = [
    body("e1", content="I live in Lisbon. 好", metadata={"x": 1}),
    body("e2", user_id="bob", occurred_at=at(5).isoformat()),
    body("e3", occurred_at=at(60).isoformat(), extra={"b": 1, "a": [1.5, None]}),
    body("e4", type="session_end", role=None, content=None),
]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path / "log")
    made.events(*SAID)
    made.atoms(LISBON, NURSE, PORTO, OLD)
    return made


# --- the format ------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _JSON))
def test_canonical_keeps_every_value_and_is_one_way_of_writing(value: dict[str, object]) -> None:
    try:
        spaced = json.dumps(value, indent=1).encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return  # lone surrogates: no event has them
    line = canonical(spaced)
    assert b"\n" not in line
    assert json.loads(line) == value
    assert canonical(line) == line
    assert canonical(json.dumps(dict(reversed(value.items()))).encode()) == line


def test_what_cannot_be_made_canonical_stays_on_one_line() -> None:
    deep = b'{"a":\n' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert canonical(deep) == deep.replace(b"\n", b" ")
    grows = b'{"a": [' + b",".join([b"1e9"] * (MAX_EVENT_BYTES // 6)) + b"]}"
    assert canonical(grows) == grows


_PART = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)


@given(st.lists(st.tuples(_PART, _PART), min_size=2, max_size=2, unique=True))
@example([("acme", "Ana"), ("acme", "ana")])
@example([("a+b", "c"), ("a", "b+c")])
@example([("a/b", "c"), ("a%2Fb", "c")])
def test_folder_names_are_safe_and_tell_scopes_apart_in_any_case(
    pairs: list[tuple[str, str]],
) -> None:
    first, second = (
        folder_name("/".join(p.replace("%", "%25").replace("/", "%2F") for p in pair))
        for pair in pairs
    )
    assert first.casefold() != second.casefold()
    for name in (first, second):
        assert name.isascii() and 0 < len(name) <= 200
        assert not set(name) & set('./\\:*?"<>| ')


def test_a_page_shows_what_holds_first_and_no_text_acts_as_markdown() -> None:
    tricky = atom("a3", "# <b>User</b>\n\n- likes `tea`", scope=ANA, seconds=30)
    page = memory_page(ANA, [OLD, tricky, PORTO])
    assert page.startswith("# Memory of acme / helper / ana\n\n## Persona\n")
    assert page.index("User moved to Porto (said") < page.index("## Superseded")
    assert page.index("## Superseded") < page.index("User lives in Lisbon (said")
    assert "until 2026-03-01 09:01; now: User moved to Porto; from e1" in page
    assert r"- \# \<b\>User\</b\> - likes \`tea\` (said" in page
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Memory of acme / helper / ana",
        "## Persona",
        "## Superseded",
    ]


# --- export ----------------------------------------------------------------------------------


def test_an_export_holds_the_first_events_and_the_final_atoms(log: Log, tmp_path: Path) -> None:
    log.events(body("e1", content="again"))
    log.append("l0.events", b"k", b"not an event")
    exported = log.export(tmp_path / "out")
    lines = (tmp_path / "out" / "acme+helper+ana" / "events.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == [SAID[0], SAID[2], SAID[3]]
    atoms = (tmp_path / "out" / "acme+helper+ana" / "atoms.jsonl").read_bytes().splitlines()
    assert [Atom.model_validate_json(line) for line in atoms] == [OLD, PORTO]
    assert (exported.manifest.events, exported.manifest.atoms) == (4, 3)
    assert (exported.repeated, exported.refused) == (1, 1)


@pytest.mark.parametrize("partitions", [1, 3])
def test_two_logs_with_the_same_events_and_atoms_give_the_same_bytes(
    log: Log, tmp_path: Path, partitions: int
) -> None:
    """Other offsets, partitions, timestamps, order between scopes, versions of atoms on the way."""
    other = Log(tmp_path / "other", days=30, partitions=partitions)
    other.events(SAID[1], SAID[1], SAID[0], SAID[2], SAID[3])
    other.atoms(PORTO, NURSE, LISBON, OLD, NURSE)
    first, again = log.export(tmp_path / "out"), log.export(tmp_path / "again")
    second = other.export(tmp_path / "two")
    assert tree(tmp_path / "out") == tree(tmp_path / "again") == tree(tmp_path / "two")
    assert first.digest == again.digest == second.digest
    other.events(body("e9"))
    assert other.export(tmp_path / "three").digest != first.digest


def test_a_scope_without_events_is_exported_too(log: Log, tmp_path: Path) -> None:
    """As where retention took its events."""
    log.atoms(atom("c1", "User swims", scope="acme/helper/abe"))
    manifest = log.export(tmp_path / "out").manifest
    assert [(entry.scope, entry.events, entry.atoms) for entry in manifest.scopes] == [
        ("acme/helper/abe", 0, 1), (ANA, 3, 2), (BOB, 1, 1),
    ]  # fmt: skip
    assert (tmp_path / "out" / "acme+helper+abe" / "events.jsonl").read_bytes() == b""


def test_one_scope_is_exported_alone(log: Log, tmp_path: Path) -> None:
    log.export(tmp_path / "all")
    log.export(tmp_path / "one", BOB)
    manifest = read_manifest((tmp_path / "one" / "manifest.json").read_bytes(), "")
    assert [entry.scope for entry in manifest.scopes] == [BOB]
    every = tree(tmp_path / "all")
    assert {name: every[name] for name in tree(tmp_path / "one") if "/" in name} == {
        name: text for name, text in tree(tmp_path / "one").items() if "/" in name
    }
    with pytest.raises(UserError, match="nothing of scope"):
        log.export(tmp_path / "none", "acme/helper/eve")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "log", "one"]


def test_only_an_earlier_export_is_replaced_and_only_when_asked(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    log.export(folder)  # an empty folder is taken
    with pytest.raises(UserError, match="--replace"):
        log.export(folder)
    log.events(body("e9"))
    log.export(folder, replace=True)
    assert read_manifest((folder / "manifest.json").read_bytes(), "").events == 5
    (folder / "acme+helper+ana" / "notes.md").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.md, which no export wrote"):
        check_place(folder, replace=True)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a folder"):
        check_place(tmp_path / "file", replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "log", "out"]


# --- import ----------------------------------------------------------------------------------


@pytest.fixture
def exported(log: Log, tmp_path: Path) -> Path:
    log.export(tmp_path / "out")
    return tmp_path / "out"


def test_imported_and_exported_again_it_is_byte_equal(exported: Path, tmp_path: Path) -> None:
    fresh = Log(tmp_path / "fresh", days=100)
    events, atoms = fresh.import_(exported)
    assert (events.written, atoms.written) == (4, 3)
    fresh.export(tmp_path / "again")
    assert tree(tmp_path / "again") == tree(exported)
    events, atoms = fresh.import_(exported)
    assert (events, atoms) == (Appended(0, 4), Appended(0, 3))


def test_what_is_there_by_its_id_stays_and_what_was_taken_out_stays_out(
    exported: Path, tmp_path: Path
) -> None:
    there = Log(tmp_path / "there")
    there.events(body("e1", content="the one that was there"))
    newer = PORTO.model_copy(update={"occurred_at": at(500)})
    there.atoms(newer)
    there.append("l1.atoms", b"a1", None)
    events, atoms = there.import_(exported)
    assert (events, atoms) == (Appended(3, 1), Appended(1, 2))
    final = there.export(tmp_path / "again").manifest
    assert final.atoms == 2
    text = (tmp_path / "again" / "acme+helper+ana" / "events.jsonl").read_text()
    assert "the one that was there" in text and "Lisbon" not in text


def test_an_import_that_was_cut_off_goes_on(exported: Path, tmp_path: Path) -> None:
    cut = Log(tmp_path / "cut")
    cut.import_(exported)
    part = Log(tmp_path / "part")
    lines = cut.records("l0.events")
    for value in lines[:2]:
        part.append("l0.events", ANA.encode(), value)
    events, _ = part.import_(exported)
    assert events == Appended(2, 2)
    assert part.records("l0.events") == lines


def spoiled(exported: Path) -> Iterator[tuple[str, str]]:
    """Spoil an export in one way after the other; gives what and what the error says."""
    ana = exported / "acme+helper+ana"
    manifest = exported / "manifest.json"
    whole = manifest.read_text()
    for name in ("atoms.jsonl", "events.jsonl", "memory.md"):
        before = (ana / name).read_bytes()
        (ana / name).write_bytes(before + b"\n")
        yield name, "its hash differs"
        (ana / name).unlink()
        yield name, "is missing"
        (ana / name).write_bytes(before)
    for old, new, says in [
        ('"version": 2', '"version": 3', "format version 3"),
        ('"version": 2', '"version": 2, "more": 1', "not the manifest"),
        ('"memory.md"', '"scenes/../../x.md": "", "memory.md"', "not as an export"),
        ('"format"', '"form"', "not the manifest"),
        ("acme+helper+ana", "../elsewhere", "not as an export writes it"),
        ('"atoms": 2', '"atoms": 7', "counts of scope"),
        ('"scope": "acme/helper/ana"', '"scope": "acme/helper/eve"', "not as an export"),
    ]:
        assert old in whole
        manifest.write_text(whole.replace(old, new))
        yield new, says
    manifest.write_text("[]")
    yield "[]", "not the manifest"
    manifest.unlink()
    yield "no manifest", "holds no"


def test_a_spoiled_export_is_refused_and_nothing_written(exported: Path, tmp_path: Path) -> None:
    fresh = Log(tmp_path / "fresh")
    for what, says in spoiled(exported):
        with pytest.raises(UserError) as raised:
            fresh.import_(exported)
        assert says in raised.value.message, (what, raised.value.message)
    assert fresh.records("l0.events") == fresh.records("l1.atoms") == []


def test_an_export_of_other_scopes_is_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SEDIMENT_SCOPE_FIELDS"):
        Log(tmp_path / "fresh").import_(exported, ("tenant", "user"))


# --- what was forgotten ----------------------------------------------------------------------


def forgetting(event_id: str, *, offset: int = 77, request_id: str = "r") -> Tombstone:
    request = sourced(
        request_id, offset=offset, type="forget", role=None, content=None,
        request={"target": "event", "event_ids": [event_id]},
    )  # fmt: skip
    return tombstone_of(request)


def test_what_was_forgotten_is_not_exported_and_its_tombstone_is(log: Log, tmp_path: Path) -> None:
    log.kept_out.add(forgetting("e1"))
    exported = log.export(tmp_path / "out")
    ana = tmp_path / "out" / "acme+helper+ana"
    assert (exported.manifest.events, exported.manifest.atoms, exported.forgotten) == (3, 2, 2)
    assert all(b"Lisbon" not in text for text in tree(tmp_path / "out").values())
    (line,) = (ana / "tombstones.jsonl").read_bytes().splitlines()
    buried = Tombstone.model_validate_json(line)
    assert buried.event_keys == forgetting("e1").event_keys
    assert (buried.topic, buried.partition, buried.offset) == ("", 0, -1)
    assert not (tmp_path / "out" / "acme+helper+bob" / "tombstones.jsonl").exists()


def test_tombstones_of_two_logs_give_the_same_bytes(log: Log, tmp_path: Path) -> None:
    """Whatever places, parts and order they have there."""
    whole = forgetting("e1")
    part = whole.model_copy(update={"tombstone_id": "part", "event_keys": ("k2", "k1")})
    other = Log(tmp_path / "other")
    other.events(*SAID)
    other.atoms(LISBON, NURSE, PORTO, OLD)
    for made, tombstones in ((log, [whole, part]), (other, [part, forgetting("e1", offset=3)])):
        for one in tombstones:
            made.kept_out.add(one)
    assert log.export(tmp_path / "one").digest == other.export(tmp_path / "two").digest


def test_an_older_export_brings_nothing_back(log: Log, exported: Path, tmp_path: Path) -> None:
    fresh = Log(tmp_path / "fresh")
    fresh.kept_out.add(forgetting("e1"))
    events, atoms = fresh.import_(exported)
    assert (events, atoms) == (Appended(3, 0, 1), Appended(2, 0, 1))
    assert not any(b"Lisbon" in (value or b"") for value in fresh.records("l1.atoms"))
    assert not any(b"Lisbon" in (value or b"") for value in fresh.records("l0.events"))


def test_tombstones_come_along_and_keep_out_an_older_export(
    log: Log, exported: Path, tmp_path: Path
) -> None:
    log.kept_out.add(forgetting("e1"))
    log.export(tmp_path / "newer")
    fresh = Log(tmp_path / "fresh")
    fresh.import_(tmp_path / "newer")
    events, atoms = fresh.import_(exported)
    assert (events, atoms) == (Appended(0, 3, 1), Appended(0, 2, 1))
    fresh.export(tmp_path / "again")
    assert tree(tmp_path / "again") == tree(tmp_path / "newer")


def test_a_rejected_value_is_not_imported(exported: Path, tmp_path: Path) -> None:
    fresh = Log(tmp_path / "fresh")
    values = value_keys(ANA, "USER MOVED TO PORTO")
    reject = {"kind": "reject", "event_keys": (), "text_keys": values}
    fresh.kept_out.add(forgetting("e9").model_copy(update=reject))
    events, atoms = fresh.import_(exported)
    assert (events, atoms) == (Appended(4), Appended(2, 0, 1))


def test_spoiled_tombstones_are_refused(log: Log, tmp_path: Path) -> None:
    log.kept_out.add(forgetting("e1"))
    log.export(tmp_path / "out")
    (tmp_path / "out" / "acme+helper+ana" / "tombstones.jsonl").write_bytes(b"{}\n")
    with pytest.raises(UserError, match="hash differs"):
        Log(tmp_path / "fresh").import_(tmp_path / "out")

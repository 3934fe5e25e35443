"""Scene and persona files: what is written is read back, and whatever is found is repaired."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from stores.scenes import ProfileFile, parse, render
from stores.scenes.document import decode, is_text
from stores.scenes.front_matter import read_fields, split, write_fields

AT = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=120)
LINE = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=60).map(
    lambda text: " ".join(text.split())
)
WHEN = st.datetimes(timezones=st.just(timezone.utc))
IDS = st.lists(st.from_regex(r"[0-9a-f]{1,32}", fullmatch=True), unique=True, max_size=6)


@st.composite
def scene_files(draw: st.DrawFn) -> ProfileFile:
    ids = draw(IDS)
    cut = draw(st.integers(0, len(ids)))
    body = draw(st.text(st.characters(exclude_categories=("Cc", "Cs")) | st.just("\n")))
    extra = draw(
        st.dictionaries(
            st.sampled_from(["tags", "cssclass", "x-1"]), LINE | st.lists(LINE).map(tuple)
        )
    )
    return ProfileFile(
        kind="scene",
        title=draw(LINE.filter(bool)),
        body=body.strip(),
        created=draw(WHEN),
        updated=draw(WHEN),
        summary=draw(LINE),
        heat=draw(st.integers(0, 999_999_999)),
        atoms=tuple(ids[:cut]),
        archived=tuple(ids[cut:]),
        generator=draw(LINE),
        extra=tuple(extra.items()),
    )


@given(scene_files())
def test_what_is_written_is_read_back_without_repairs(file: ProfileFile) -> None:
    text = render(file)
    parsed = parse(text, "scene", "x.md", AT)
    assert parsed.file == file
    assert parsed.repairs == ()
    assert render(parsed.file) == text


@given(scene_files())
def test_a_full_yaml_reader_agrees(file: ProfileFile) -> None:
    fields = split(render(file)).fields
    assert fields is not None
    loaded = yaml.safe_load(fields)
    assert loaded["title"] == file.title
    assert loaded["summary"] == file.summary
    assert loaded["heat"] == file.heat
    assert loaded["atoms"] == list(file.atoms)


@given(ANY_TEXT, ANY_TEXT, st.sampled_from(["{f}\n{b}", "---\n{f}\n---\n{b}", "---\n{f}\n{b}"]))
@example("title: [[[[", "body", "---\n{f}\n---\n{b}")
@example("a: &a [*a]\n<<: *a", "body", "---\n{f}\n---\n{b}")
@example("[" * 5000, "body", "---\n{f}\n---\n{b}")
@example("created: 0001-01-01T00:00:00+14:00", "", "---\n{f}\n---\n{b}")
def test_whatever_is_found_is_read_and_then_stays_as_it_is(
    fields: str, body: str, form: str
) -> None:
    found = parse(form.format(f=fields, b=body), "scene", "x.md", AT)
    assert found.repairs
    text = render(found.file)
    text.encode("utf-8")
    again = parse(text, "scene", "x.md", AT)
    assert again.file == found.file
    assert again.repairs == ()


@given(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1))
def test_a_body_is_kept_whatever_the_front_matter(body: str) -> None:
    for text in (body, f"---\ntitle: : {{\n---\n{body}", f"---\nheat: many\n---\n\n{body}\n"):
        assert parse(text, "scene", "x.md", AT).file.body.endswith(body)


def test_what_is_missing_stays_as_it_was_known() -> None:
    known = ProfileFile(
        "scene", "Porto", "Old.", AT, AT, "Moving.", 7, ("a1",), ("a0",), "m/1", (("tags", "x"),)
    )
    bare = parse("New.", "scene", "porto.md", AT + timedelta(days=1), known)
    assert bare.file == ProfileFile(
        "scene", "Porto", "New.", AT, AT, "Moving.", 7, ("a1",), ("a0",), "m/1", (("tags", "x"),)
    )
    assert bare.repairs == ("no front matter",)
    some = parse("---\ntitle: Lisbon\natoms: []\n---\nNew.", "scene", "porto.md", AT, known)
    assert (some.file.title, some.file.atoms, some.file.heat) == ("Lisbon", (), 7)


def test_an_unknown_file_takes_title_and_summary_from_its_text() -> None:
    file = parse("# The move\n\n- one\n\nAna moves to Porto.\n", "scene", "x.md", AT).file
    assert (file.title, file.summary) == ("The move", "Ana moves to Porto.")
    assert (file.created, file.updated, file.heat, file.atoms) == (AT, AT, 0, ())
    assert parse("Hello.", "scene", "moving-to-porto.md", AT).file.title == "moving to porto"


@pytest.mark.parametrize(
    ("line", "repair"),
    [
        ("heat: -3", "heat is not a whole number from 0 up"),
        ("heat: [1]", "heat is not a whole number from 0 up"),
        ("created: yesterday", "created is not a date"),
        ("created: 1700000000", "created is not a date"),
        ("title: [a, b]", "title is a list"),
        ("atoms: [a1, a1]", "atoms holds something that is no id, or an id twice"),
        ("type: persona", "type is not scene"),
        ("nested: {a: b}", "front matter is not proper YAML"),
        ("summary: he said: no", "front matter is not proper YAML"),
    ],
)
def test_repairs_name_the_field(line: str, repair: str) -> None:
    assert repair in parse(f"---\n{line}\n---\nBody.", "scene", "x.md", AT).repairs


def test_values_are_never_guessed_to_be_numbers_dates_or_truth() -> None:
    fields, proper = read_fields("title: no\natoms: [0123, 1e3, 2026-01-01]\nsummary: null")
    assert proper
    assert fields == {"title": "no", "atoms": ("0123", "1e3", "2026-01-01"), "summary": "null"}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("2026-03-01", "2026-03-01T00:00:00+00:00"),
        ("2026-03-01 10:30", "2026-03-01T10:30:00+00:00"),
        ("2026-03-01T10:30:00+02:00", "2026-03-01T08:30:00+00:00"),
        ("2026-03-01T10:30:00Z", "2026-03-01T10:30:00+00:00"),
    ],
)
def test_a_person_may_write_dates_in_many_ways(written: str, wanted: str) -> None:
    file = parse(f"---\ncreated: {written}\n---\nx", "scene", "x.md", AT).file
    assert file.created.isoformat() == wanted


def test_nearly_yaml_is_read_line_by_line() -> None:
    fields, proper = read_fields("title: Porto: the move\natoms:\n- a1\n  - 'a2'\nheat: 3")
    assert not proper
    assert fields == {"title": "Porto: the move", "atoms": ("a1", "a2"), "heat": "3"}


def test_a_fence_around_the_whole_file_is_taken_off_and_others_stay() -> None:
    whole = parse("```markdown\n---\ntitle: T\n---\nBody.\n```\n", "scene", "x.md", AT)
    assert (whole.file.title, whole.file.body) == ("T", "Body.")
    code = "```python\nprint()\n```"
    assert parse(code, "scene", "x.md", AT).file.body == code


def test_two_rules_around_prose_are_no_front_matter() -> None:
    text = "---\nJust a thought\n---\nand more"
    assert parse(text, "scene", "x.md", AT).file.body == text


def test_a_persona_has_no_heat() -> None:
    text = render(ProfileFile("persona", "Ana", "Likes tea.", AT, AT, atoms=("a1",)))
    assert "heat" not in text
    assert parse(text, "persona", "persona.md", AT).repairs == ()


def test_a_person_s_editor_may_write_other_encodings() -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
        assert decode("Café.".encode(encoding)) == "Café."
    assert decode(bytes(range(256)))
    assert is_text("Café\r\n\t".encode())
    assert not is_text(b"caf\xe9")
    assert not is_text(b"a\0b")


def test_fields_are_written_in_the_order_given() -> None:
    assert write_fields([("b", "x"), ("a", ())]) == "---\nb: x\na: []\n---\n"


def test_front_matter_on_one_line_with_its_end_behind_it_is_read() -> None:
    """As a small model writes it."""
    fields = "title: 用户名叫林悦。summary: 在出版社上班。atoms: [10a0d526f880, 33b286d4]"
    text = f"---\n{fields}---\n\n正文。"
    file = parse(text, "scene", "x.md", AT).file
    assert (file.title, file.summary, file.body) == ("用户名叫林悦。", "在出版社上班。", "正文。")
    assert file.atoms == ("10a0d526f880", "33b286d4")
    prose = "---\nA title: not one---\n\nText."
    assert parse(prose, "scene", "x.md", AT).file.body == prose

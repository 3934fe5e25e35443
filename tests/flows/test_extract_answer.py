"""A model's answer, checked: what is refused, what is repaired, which language."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.tokens import count_tokens
from flows.extract import answer as checks
from flows.extract.answer import REFUSALS, Checked, Kept, check_answer
from flows.extract.modes import CHAT
from flows.extract.prompt import plan_requests
from flows.extract.work import atoms_of_extraction
from stores.errors import MalformedAnswer
from stores.records import Memory, Window
from tests.rig.events import sourced
from tests.rig.fake_chat import (
    CHINESE,
    ENGLISH,
    FakeChat,
    answer,
    extract,
    memory,
    window,
)


def one(**fields: Any) -> Memory:
    (found,) = extract(FakeChat(answer(memory(**fields)))).memories
    return found


# --- refused memories -----------------------------------------------------------------------------

GOOD = memory(text="User works as a nurse")
REFUSED: list[tuple[str, Any]] = [
    ("not_an_object", "User likes tea"),
    ("not_an_object", None),
    ("not_an_object", ["User likes tea"]),
    ("unknown_type", memory(type="gossip")),
    ("unknown_type", memory(type=None)),
    ("unknown_type", memory(type=["persona"])),
    ("question", memory(text="Does the user live in Oslo?")),
    ("question", memory(text="用户住在奥斯陆吗？")),
    ("question", memory(text="Does the user live in Oslo?")),
    ("question", memory(text="用户住在奥斯陆吗？")),
    ("question", memory(text="Does the user live in Oslo?")),
    ("question", memory(text="用户住在奥斯陆吗？")),
    ("question", memory(text="Does the user live in Oslo?")),
    ("question", memory(text="用户住在奥斯陆吗？")),
    ("empty_text", memory(text="")),
    ("empty_text", memory(text=" \n\x00 ")),
    ("empty_text", memory(text="...!")),
    ("empty_text", memory(text=None)),
    ("empty_text", memory(text={"en": "User lives in Oslo"})),
    ("empty_text", memory(text="(m1)")),
    ("too_long", memory(text=" ".join(f"word{n}" for n in range(100)))),
    ("leaked_json", memory(text='User likes tea", "type": "persona", "priority": 80')),
    ("leaked_json", memory(text='{"text": "User likes tea"}')),
    ("leaked_json", memory(text="[{'text': 'User likes tea'}]")),
    ("leaked_json", memory(text='User likes tea\\", \\"sources\\": [\\"m1\\"')),
    ("leaked_json", memory(text="```json User likes tea")),
    ("leaked_prompt", memory(text="User said </conversation> and left")),
    ("leaked_prompt", memory(text="Keep only what the user said or clearly confirmed.")),
    ("leaked_prompt", memory(text="User wrote {{conversation}} first")),
    ("looping", memory(text="User likes tea. " * 9)),
    ("looping", memory(text="User likes very " + "very " * 30)),
    ("empty_text", memory(text="Sun 2026-03-01T09:00+00:00")),
    ("no_source", memory(sources=[])),
    ("no_source", memory(sources=None)),
    ("no_source", memory(sources=[""])),
    ("unknown_source", memory(sources=["m9"])),
    ("unknown_source", memory(sources=["m1", "m9"])),
    ("unknown_source", memory(sources=["m1-m9"])),
    ("unknown_source", memory(sources=["m0-m2"])),
    ("unknown_source", memory(sources=["u1"])),
    ("unknown_source", memory(sources=["m0"])),
    ("unknown_source", memory(sources=[None])),
    ("unknown_source", memory(sources=[True])),
    ("unknown_source", memory(sources=[{"id": "m1"}])),
    ("unknown_source", memory(sources="the user")),
    ("not_said_by_user", memory(sources=["m2"])),
    ("low_priority", memory(priority=49)),
    ("low_priority", memory(priority=-1)),
    ("low_priority", memory(priority=-1000)),
    ("low_priority", memory(priority="10")),
    ("low_priority", memory(type="episodic", priority=59)),
    ("low_priority", memory(type="instruction", priority=69)),
    ("low_priority", memory(type="instruction", priority=-2)),
    ("duplicate", memory(text="user WORKS as a nurse.")),
]


@pytest.mark.parametrize(("reason", "item"), REFUSED)
def test_a_bad_memory_is_refused_and_the_others_stand(reason: str, item: Any) -> None:
    last = memory(text="User uses Celsius", sources=["m3"])
    extraction = extract(FakeChat(answer(GOOD, item, last)))
    assert [found.text for found in extraction.memories] == [
        "User works as a nurse",
        "User uses Celsius",
    ]
    assert [refused.reason for refused in extraction.refused] == [reason]
    assert extraction.refused[0].detail.startswith("memory 2")


def test_more_than_twenty_are_refused() -> None:
    many = [memory(text=f"User owns boat number {n}") for n in range(23)]
    extraction = extract(FakeChat(answer(*many)))
    assert [found.text for found in extraction.memories] == [m["text"] for m in many[:20]]
    assert [refused.reason for refused in extraction.refused] == ["too_many"] * 3


def test_cut_off_answer_is_never_taken() -> None:
    chat = FakeChat(answer(GOOD), finish="length")
    with pytest.raises(MalformedAnswer, match="too long and cut off") as caught:
        extract(chat)
    with pytest.raises(MalformedAnswer, match="answer 2 "):
        extract(chat, error=caught.value.message)


def test_every_refusal_is_declared_and_tested() -> None:
    elsewhere = {"too_many", "wrong_language"}
    assert {reason for reason, _ in REFUSED} | elsewhere == set(REFUSALS)


# --- repaired memories ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [
        ("episode", "episodic"),
        ("Instruct", "instruction"),
        (" preference ", "persona"),
        ("PERSONA", "persona"),
    ],
)
def test_type_aliases(given_type: str, kept: str) -> None:
    assert one(type=given_type).type == kept


@pytest.mark.parametrize(
    ("given_priority", "kept"),
    [
        ("85", 85),
        (" 85/100", 85),
        (85.6, 86),
        (0.9, 90),
        (1000, 100),
        (10**400, 100),
        (float("inf"), 100),
        (float("nan"), 50),
        (None, 50),
        ("high", 50),
        (True, 50),
        ([80], 50),
        (50, 50),
    ],
)
def test_priority_is_repaired(given_priority: Any, kept: int) -> None:
    checked = Checked()
    (shown,) = plan_requests(ENGLISH, 4000, count_tokens)
    check_answer(
        {"memories": [memory(priority=given_priority)]},
        shown.lines,
        checked,
        kept_if=Kept(CHAT),
        instructions="",
        last_chance=False,
    )
    assert [found.priority for found in checked.memories] == [kept]


def test_strict_instruction_keeps_minus_one() -> None:
    assert one(type="instruction", priority=-1).priority == -1
    assert one(type="instruction", priority="-1").priority == -1


@pytest.mark.parametrize("sources", [["m3", "m1"], ["M1", "[m3]"], [1, 3], "m1, m3", ["m1,m3"]])
def test_sources_come_in_log_order_as_event_ids(sources: Any) -> None:
    assert one(sources=sources).source_event_ids == ("u1", "u2")


def test_assistant_source_is_kept_beside_the_users() -> None:
    assert one(sources=["m2", "m3", "m2"]).source_event_ids == ("a1", "u2")


@pytest.mark.parametrize("sources", [["m1-m3"], ["m1–m2", "m3"], "[m1 to m3]", ["M1..3"]])
def test_a_range_of_sources_is_all_the_lines_in_it(sources: Any) -> None:
    assert one(sources=sources).source_event_ids == ("u1", "a1", "u2")


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("User  lives\n in\tOslo ", "User lives in Oslo"),
        ("User lives in Oslo (m1)", "User lives in Oslo"),
        ("Sun 2026-03-01T09:00+00:00 'User lives in Oslo.'", "User lives in Oslo."),
        ('m1 user Sun 2026-03-01T09:00+00:00 "User lives in Oslo"', "User lives in Oslo"),
        ("User lives in Oslo [m1, m3].", "User lives in Oslo."),
        ("User li\x00ves in Oslo", "User lives in Oslo"),
        ("User drives a BMW (M3)", "User drives a BMW (M3)"),
    ],
)
def test_text_is_tidied(raw: str, kept: str) -> None:
    assert one(text=raw).text == kept


def test_lone_surrogates_do_not_reach_an_atom() -> None:
    raw = answer(memory(text="User lives in @Oslo")).replace("@", "\\ud83d")
    (found,) = extract(FakeChat(raw)).memories
    found.text.encode()
    assert "Oslo" in found.text


@pytest.mark.parametrize(
    ("slot", "kept"),
    [
        ("home.city", "home.city"),
        ("Home.City ", "home.city"),
        ("favorite.ice cream", "favourite.ice-cream"),
        ("favourite.茶", "favourite.tea"),
        ("", None),
        ("null", None),
        ("none", None),
        ("住址", None),
        ("x" * 100, None),
        (7, None),
        ("a b; drop", None),
    ],
)
def test_slot_is_a_short_dotted_name_or_none(slot: Any, kept: str | None) -> None:
    assert one(slot=slot).slot == kept


def test_an_episode_fills_no_slot() -> None:
    assert one(type="episodic", slot="home.city").slot is None


TOKYO = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("given_time", "kept"),
    [
        ("2026-03-04T10:30:00+09:00", datetime(2026, 3, 4, 10, 30, tzinfo=TOKYO)),
        ("2026-03-04T10:30+0900", datetime(2026, 3, 4, 10, 30, tzinfo=TOKYO)),
        ("2026-03-04 10:30:15.5Z", datetime(2026, 3, 4, 10, 30, 15, tzinfo=timezone.utc)),
        ("2026-03-04", datetime(2026, 3, 4, tzinfo=timezone.utc)),  # the event's own zone
        ("2026-03-04T10:30", datetime(2026, 3, 4, 10, 30, tzinfo=timezone.utc)),
        ("2026-02-30", None),
        ("0001-01-01T00:00+09:00", None),
        ("2026-03-04T10:30+99:00", None),
        ("next week", None),
        ("2026", None),
        ("", None),
        (1772582400, None),
    ],
)
def test_activity_times(given_time: Any, kept: datetime | None) -> None:
    found = one(type="episodic", activity_start=given_time)
    assert found.activity_start == kept


def test_an_end_before_the_start_is_dropped() -> None:
    found = one(type="episodic", activity_start="2026-03-04", activity_end="2026-03-03")
    assert (found.activity_start, found.activity_end) == (
        datetime(2026, 3, 4, tzinfo=timezone.utc),
        None,
    )


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.lists(
        ANY_JSON
        | st.fixed_dictionaries({}, optional=dict.fromkeys(memory(), ANY_JSON)).map(
            lambda odd: memory(**odd)
        ),
        max_size=4,
    )
)
@settings(max_examples=200)
def test_whatever_a_list_holds_is_kept_or_refused(items: list[Any]) -> None:
    text = json.dumps({"memories": items})
    try:
        extraction = extract(FakeChat(text), error="answer 1 to request 1 of 1: x")
    except MalformedAnswer:
        return  # the parser's choice: json that json-repair must not touch
    assert len(extraction.memories) + len(extraction.refused) == len(items)
    assert {refused.reason for refused in extraction.refused} <= set(REFUSALS)
    atoms_of_extraction(ENGLISH, extraction, "v")


# --- language -------------------------------------------------------------------------------------

RUSSIAN = window(sourced("u1", content="Я переехала в Осло на прошлой неделе."))
JAPANESE = window(sourced("u1", content="先週、大阪に引っ越しました。看護師です。"))
CONFIRMED = window(
    sourced("u1", content="我想换一个新的城市生活，你觉得呢？"),
    sourced("a1", role="assistant", content="你要搬到上海吗？"),
    sourced("u2", content="OK"),
)
MIXED = window(sourced("u1", content="我在 Google Cloud 做 SRE, based in 上海, on call 每周一"))


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (CHINESE, "User lives in Shanghai"),
        (JAPANESE, "User lives in Osaka"),
        (JAPANESE, "User started living in大阪 recently."),
        (CHINESE, "User works as a nurse in 上海"),
        (RUSSIAN, "User lives in Oslo"),
        (ENGLISH, "用户住在奥斯陆，是一名护士"),
    ],
)
def test_wrong_language_is_asked_again_then_refused(events: Window, text: str) -> None:
    chat = FakeChat(answer(memory(text=text)))
    with pytest.raises(MalformedAnswer, match="in the language of the user") as caught:
        extract(chat, events)
    extraction = extract(chat, events, error=caught.value.message)
    assert extraction.memories == ()
    assert [refused.reason for refused in extraction.refused] == ["wrong_language"]


def test_a_short_reply_is_judged_by_what_the_user_said_around_it() -> None:
    with pytest.raises(MalformedAnswer, match="in the language of the user"):
        extract(FakeChat(answer(memory(text="User moves to Shanghai", sources=["m3"]))), CONFIRMED)


@pytest.mark.parametrize(
    ("events", "text", "sources"),
    [
        (CHINESE, "用户住在上海，是一名护士", ["m1"]),
        (CHINESE, "用户住在 Shanghai Xuhui District", ["m1"]),
        (JAPANESE, "ユーザーは大阪に住んでいる", ["m1"]),
        (RUSSIAN, "Пользователь живёт в Осло", ["m1"]),
        (ENGLISH, "User lives in Oslo", ["m1"]),
        (CONFIRMED, "用户打算搬到上海", ["m2", "m3"]),
        (MIXED, "User is an SRE at Google Cloud", ["m1"]),
        (MIXED, "用户在谷歌云工作", ["m1"]),
        (window(sourced("u1", content="OK 42")), "用户同意了", ["m1"]),
    ],
)
def test_right_or_mixed_language_is_taken(events: Window, text: str, sources: list[str]) -> None:
    extraction = extract(FakeChat(answer(memory(text=text, sources=sources))), events)
    assert [found.text for found in extraction.memories] == [text]


@given(
    st.text("abc ", min_size=1, max_size=90),
    st.integers(1, 6),
    st.text("abcd ", max_size=9),
    st.text("abcd ", max_size=5),
)
def test_loops_and_leaks_are_found_wherever_they_begin(
    unit: str, times: int, before: str, behind: str
) -> None:
    text = before + unit * times + behind
    assert checks._loops(text) == (checks._LOOP.search(text) is not None)
    runs = [text[at : at + 40] for at in range(len(text) - 39)]
    instructions = f"{behind}{unit}{unit}{before}"
    assert checks._repeats(text, instructions) == any(run in instructions for run in runs)

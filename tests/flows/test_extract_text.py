"""What of a message may become memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flows.extract import text as extractable
from flows.extract.text import (
    clean_text,
    context_text,
    extractable_text,
    has_user_text,
    without_repeats,
)
from stores.records import SourcedEvent, Window
from tests.rig.events import sourced

SAID = "I moved to Oslo."
BLOCK_TAGS = [
    "relevant-memories",
    "user-persona",
    "relevant-scenes",
    "scene-navigation",
    "current_task_context",
    "history_task_context",
    "memories",  # Sediment's own recall fence
    "sediment-recall",
    "mem0_memories",
    "RelevantMemories",
    "supermemory-context",
    "recalled",
    "system-reminder",
]


def user(content: Any) -> str:
    return extractable_text(sourced("e", content=content).event)


@pytest.mark.parametrize("tag", BLOCK_TAGS)
def test_injected_block_goes_with_its_content(tag: str) -> None:
    assert user(f"<{tag}>likes tea</{tag}>\n{SAID}") == SAID
    assert user(f'{SAID} <{tag} source="x">\nlikes tea\n</{tag}>') == SAID
    assert user(f"<{tag}/>{SAID}</{tag}>") == SAID


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{SAID}\n<memory>never closed: likes tea", SAID),
        (f"<memory>a<memory>b</memory>c</memory>{SAID}", SAID),
        (f"<memory>a<memory>b</memory>{SAID}", SAID),
        (f"<memory>a<user-persona>b</memory>{SAID}", SAID),
        (f"<me\x00mory>likes tea</memory>{SAID}", SAID),
        (f"<mem\u200bory>likes tea</memory>{SAID}", SAID),
        (f"{SAID}\n```python\nname = 'Ana'\n```", SAID),
        (f"{SAID}\n````\n```\nstill code\n```\n````", SAID),
        (f"{SAID}\n```\nnever closed", SAID),
        (f"data:image/png;base64,iVBORw0KGgo= {SAID}", SAID),
        (f"![cat](data:image/png;base64,iVBORw0KGgo=) {SAID}", SAID),
        ("Q" * 400 + " " + SAID, SAID),
        (f"[media attached: /media/in/a.jpg (image/jpeg)]\n{SAID}", SAID),
        (f"[[reply_to_current]] {SAID}", SAID),
        (f"System: [2026-02-21 16:24:25 UTC] Compacted (95k)\n\n{SAID}", SAID),
        (f"User: System: [x] y\nUser: {SAID}", SAID),
        (f"[Sat 2026-02-21 16:24 UTC] {SAID}", SAID),
        (f"One.\n[2026-02-21 16:24] {SAID}", f"One.\n{SAID}"),
        (f"Conversation info (untrusted metadata):\n```json\n{{}}\n```\n{SAID}", SAID),
        (f"User: {SAID}", SAID),
        (f"Patient: {SAID}", SAID),
        (f"\x00\x07{SAID}\x1b", SAID),
        ("a\n\n\n\n\n\nb", "a\n\nb"),
        ("one\r\ntwo\u2028three", "one\ntwo\nthree"),
    ],
)
def test_what_a_host_put_there_goes(text: str, left: str) -> None:
    assert user(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "I wrote <b>bold</b> and x < y > z.",
        "My path is /home/ana, and `inline code` stays.",
        "/home/ana is my folder",
        "Remind the User: no wait, me.",
        "我上周三搬到了上海。",
        "42",
        "See [the docs] on 2026-03-01.",
        "A new session was great.",
        "My heartbeat is too fast at night.",
        "I told System: no.",
        "a\n\nb",
    ],
)
def test_what_the_user_said_stays_word_for_word(text: str) -> None:
    assert user(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n ",
        "???",
        "？？",
        "...!",
        "👍",
        "/new",
        "/model gpt-5",
        "NO_REPLY",
        "HEARTBEAT_OK",
        "Read HEARTBEAT.md if it exists. Follow it strictly.",
        "[2026-04-30 09:57:13 GMT+8] Exec completed\n\nRead HEARTBEAT.md if it exists.",
        "A new session was started via /new or /reset. Greet the user.",
        "✅ New session started · model: m",
        "(session bootstrap)",
        "You are running a boot check. Follow BOOT.md.",
        "Pre-compaction memory flush. Store durable memories now.",
        "<relevant-memories>User likes tea.</relevant-memories>",
    ],
)
def test_nothing_is_extractable_from_what_nobody_said(text: str) -> None:
    assert user(text) == ""


@pytest.mark.parametrize("role", ["system", "tool"])
def test_other_roles_give_no_text(role: str) -> None:
    event = sourced("e", role=role, content=SAID).event
    assert (extractable_text(event), context_text(event)) == ("", "")


def test_assistant_text_is_context_only() -> None:
    event = sourced("e", role="assistant", content=f"Assistant: {SAID}\n```\ncode\n```").event
    assert (extractable_text(event), context_text(event)) == ("", SAID)
    assert context_text(sourced("e", role="assistant", content="NO_REPLY").event) == ""
    therapist = sourced("e", role="assistant", content=f"Therapist: {SAID}").event
    assert context_text(therapist) == SAID


def test_only_text_parts_count() -> None:
    parts = [{"type": "image_url"}, {"type": "text", "text": SAID}, {"type": "text"}]
    assert user(parts) == SAID
    assert user([{"type": "image_url"}]) == ""


def test_events_without_content_give_no_text() -> None:
    end = sourced("e", type="session_end", role=None, content=None).event
    called = sourced("e", role="assistant", content=None, tool_calls=[{"id": "c"}]).event
    assert (extractable_text(end), context_text(called)) == ("", "")


def window(*events: SourcedEvent) -> Window:
    return Window("w", "acme/helper/ana", "s1", events, (), "turns")


def test_window_without_user_text_is_told_apart() -> None:
    assert not has_user_text(
        window(
            sourced("e1", role="assistant", content=SAID),
            sourced("e2", content="???"),
            sourced("e3", role="tool", content=SAID),
        )
    )
    assert has_user_text(window(sourced("e1", content=SAID)))


def ids(*events: SourcedEvent) -> list[str]:
    return [kept.event.event_id for kept, _ in without_repeats(events)]


def test_tool_loop_keeps_the_first_of_equal_messages() -> None:
    loop = [
        sourced(f"{role}{turn}", role=role, content=f"{role} says the very same thing again")
        for turn in range(8)
        for role in ("user", "assistant")
    ]
    assert ids(*loop) == ["user0", "assistant0"]


def test_repeats_are_told_by_role_and_cleaned_text() -> None:
    assert ids(
        sourced("e1", content=SAID),
        sourced("e2", role="assistant", content=SAID),
        sourced("e3", content=f"<memory>x</memory>{SAID}"),
        sourced("e4", role="tool", content=SAID),
        sourced("e5", role="tool", content=SAID),
    ) == ["e1", "e2", "e4", "e5"]


def test_short_reply_counts_once_per_question() -> None:
    assert ids(
        sourced("q1", role="assistant", content="Do you have a dog?"),
        sourced("a1", content="Yes."),
        sourced("again", content="Yes."),
        sourced("q2", role="assistant", content="Are you vegetarian?"),
        sourced("a2", content="Yes."),
    ) == ["q1", "a1", "q2", "a2"]


PIECES = st.sampled_from(
    [
        *(f"<{tag}>" for tag in BLOCK_TAGS[:4]),
        *(f"</{tag}>" for tag in BLOCK_TAGS[:4]),
        "<user-persona ",
        "<user-",
        "persona>",
        "<memory\n",
        "/>",
        "<",
        ">",
        "`",
        "```",
        "````",
        "data:image/png;base64,",
        "=",
        "AAAA",
        "A" * 210,
        "![",
        "](",
        ")",
        "[media attached",
        "[media",
        " attached: ",
        "]",
        "[[reply_to",
        "[2026-01-01 10:00]",
        "[Mon 2026-01-01",
        "User: ",
        "user:",
        "Assistant: ",
        "Patient：",
        "System: [",
        "To send an image back,",
        "x (untrusted metadata):",
        "(untrusted ",
        "\n",
        "\n\n",
        "\r",
        " ",
        "\t",
        "\x00",
        "\u200b",
        "\u2028",
        "NO_REPLY",
        "/new",
        "I like tea.",
        "搬家",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=14).map("".join)


@given(TEXTS, st.sampled_from(["user", "assistant", "tool"]))
@example("<user-persona <memory>x</memory> >", "user")
@example("[mediadata:a/b;base64,=attached: x]", "user")
@example("User: System: [x]\nUser: hi", "user")
@example("<user-persona [media attached: <b>] >", "user")
def test_cleaning_twice_is_cleaning_once(text: str, speaker: str) -> None:
    once = clean_text(text, speaker=speaker)
    assert clean_text(once, speaker=speaker) == once


@given(TEXTS)
def test_nothing_injected_is_left(text: str) -> None:
    left = clean_text(text)
    assert not re.search(r"</?(relevant-memories|user-persona)>|```|\x00|\n{3}", left)
    assert left == left.strip()


class CountingPattern:
    """Counts the characters that a pattern's searches are handed."""

    def __init__(self, pattern: re.Pattern[str], counts: list[int]) -> None:
        self._pattern, self._counts = pattern, counts

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._pattern, name)

        def counted(*args: Any) -> Any:
            self._counts.append(len(args[-1]))
            return method(*args)

        return counted


ADVERSARIAL = ["<", "<memory>", "</memory>", "<memory a", "<memory><recall>", "`", "``` ", "![a"]
ADVERSARIAL += ["data:image/", "A" * 199 + " ", "[media attached", "[2026-01-01\n", "User: "]
ADVERSARIAL += ["System:", "(untrusted \n", "\n", " ", "\x00", "<a ", "[[reply_to", "\n  "]


@pytest.mark.parametrize("unit", ADVERSARIAL)
def test_each_pattern_sees_an_adversarial_mebibyte_once(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that searched the rest of the text again at each hit would count far more.

    That no single pattern backtracks badly cannot be counted: there the suite's own timeout
    is the limit, at which quadratic work on a mebibyte does not end.
    """
    text = (unit * (1024 * 1024 // len(unit) + 1))[: 1024 * 1024]
    counts: list[int] = []
    patterns = {n: p for n, p in vars(extractable).items() if isinstance(p, re.Pattern)}
    for name, pattern in patterns.items():
        monkeypatch.setattr(extractable, name, CountingPattern(pattern, counts))
    extractable_text(sourced("e", content="(short)").event)  # every pattern is in place
    assert counts
    counts.clear()
    left = clean_text(text)
    assert sum(counts) <= (len(patterns) + 1) * len(text)
    assert len(left) <= len(text)


# --- the short way ------------------------------------------------------------------------------

TRICKS: list[str] = [
    "<memory>", "</memory>", "```", "`", "[media attached x]", "System: [x", "User: ", "AI：",
    "To Send An Image Back, do", "to \u017fend an \u0131mage back, do", "(untrusted x):", "[", ")",
    "[2026-01-01 10:00]", "\n", "\n\n\n", "data:image/png;base64,AAAA", "x" * 210, "y" * 199,
    "\u00ad", "\u200b", "\t", "\r\n", "\u2028", "\xa0", "\u3000", "\x7f", "heartbeat", "/go",
    "sess\u0131on bootstrap", "Read HEARTBEAT.md", "hello world", "你好。", "need an apple", " ",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(TRICKS), max_size=6).map("".join),
    st.sampled_from(["user", "assistant"]),
)
def test_what_is_not_looked_at_closely_would_stay_as_it_is(text: str, speaker: str) -> None:
    event = sourced("e", role=speaker, content=text).event
    quick = clean_text(text, speaker=speaker), context_text(event)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extractable, "_is_clean", lambda _text: False)
        patch.setattr(extractable, "may_match", lambda *_: True)
        assert quick == (clean_text(text, speaker=speaker), context_text(event))

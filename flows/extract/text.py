"""What of a message may become memory: the cleaning that every extractor shares.

Hosts put things into messages that nobody said: recalled memories, persona blocks, media notes,
heartbeats, code. Extracting from them would feed memory to itself. One function says what a user
said (:func:`extractable_text`), one what may be shown around it (:func:`context_text`).

Every removed piece leaves a blank line behind, and no pattern reaches over a blank line: what is
left and right of it cannot join into something new, so cleaning twice is cleaning once. Every
pattern is anchored or stops at its own opening character, so the work is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stores.records import L0Event, SourcedEvent, Window
from stores.speakers import UNNAMED

__all__ = [
    "clean_text",
    "context_text",
    "extractable_text",
    "has_user_text",
    "may_match",
    "said_by",
    "without_repeats",
]

_GAP = "\n\n"

# --- blocks a host injects -------------------------------------------------------------------

_TAG = re.compile(r"<(/?)([A-Za-z][\w:.\-]*)((?!\n\n)\s(?:(?!\n\n)[^<>])*)?(/?)>")
_INJECTED_TAGS = frozenset(
    {
        "user-persona",
        "relevant-scenes",
        "scene-navigation",
        "current-task-context",
        "history-task-context",
        "task-context",
        "user-profile",
        "system-reminder",
        "environment-context",
        "environment-details",
    }
)
# "memor" covers memory and memories in every spelling: relevantMemories, mem0_memories.
_INJECTED_WORDS = ("memor", "recall", "sediment")

_FENCE = re.compile(r"`{3,}")

_INLINE = re.compile(
    r"!\[[^\[\]\n]{0,200}\]\(data:[^()\s]*\)"
    r"|data:[a-z]{1,30}/[\w.+\-]{1,60}(?:;[\w.=\-]{1,60}){0,4};base64,[A-Za-z0-9+/_\-]*={0,2}"
    r"|(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{200,}={0,2}"
    r"|\[media attached[^\[\]\n]*\]?"
    r"|\[\[reply_to[^\[\]\n]*(?:\]\])?",
    re.IGNORECASE,
)

# --- lines and prefixes ----------------------------------------------------------------------

_TIMESTAMP = r"\[(?:[A-Z][a-z]{2},?[ ])?\d{4}-\d{2}-\d{2}[^\[\]<>\n]{0,40}\]"
_USER_PREFIX = r"(?:User|Human|Patient)[ ]?[:：]"
_ASSISTANT_PREFIX = r"(?:Assistant|AI|Therapist)[ ]?[:：]"
_ANY_PREFIX = rf"(?:{_TIMESTAMP}|{_USER_PREFIX}|{_ASSISTANT_PREFIX})"
_HOST_LINE = re.compile(
    rf"^(?:[ \t]*{_ANY_PREFIX})*[ \t]*(?:System:[ ]*\[|To send an image back,)[^\n]*$"
    r"|^[^(\n]*\(untrusted [^)\n]*\):?[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_LINE_TIMESTAMP = re.compile(rf"^(?:[ \t]*{_TIMESTAMP})+[ \t]*", re.MULTILINE)
_LEAD = {
    "user": re.compile(rf"\A(?:\s*(?:{_TIMESTAMP}|{_USER_PREFIX}))+", re.IGNORECASE),
    "assistant": re.compile(rf"\A(?:\s*(?:{_TIMESTAMP}|{_ASSISTANT_PREFIX}))+", re.IGNORECASE),
}

_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # tab and newline stay
    "\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"  # invisible
    "\ud800-\udfff]"  # lone surrogates: no encoder takes them
)
_NEWLINES = re.compile(r"\n{3,}")

# Every pattern above needs a character that cannot be printed, one of these marks, a run of 200
# characters, or the words "send an image back".
_MARKS = ("<", "[", ":", "：", "(", "```", "\n\n\n")
_HARMLESS = bytes(set(range(32, 127)) - set(b"<[:(`")) + b"\n"
_LONG_RUN = 200

# --- whole messages that nobody said ---------------------------------------------------------

_NOISE = re.compile(
    r"^[^\w\n]*(?:"
    r"a new session was started via /|pre-compaction memory flush\W"
    r"|you are running a boot check|read heartbeat\.md"
    r")"
    r"|\A[^\w\n]*(?:new session started ·|(?<=[\[(])session bootstrap)"
    r"|\A\W*(?:session bootstrap|heartbeat(?:_ok| poll| check)?|no_reply)\W*\Z",
    re.IGNORECASE | re.MULTILINE,
)
_NOISE_BY = ("session", "pre-compaction", "boot check", "heartbeat", "no_reply")
_COMMAND = re.compile(r"\A/[A-Za-z][\w\-]*(?:\s|\Z)")

_SHORT_REPLY_CHARS = 12
_MAX_NAME_CHARS = 64


def clean_text(text: str, *, speaker: str = "user") -> str:
    """Take out of a message what a host put there: injected blocks, code, media, host lines.

    Keeps the wording of the rest. Idempotent; work linear in the text. An injected block that
    is never closed ends with the text: better a lost sentence than memory fed to itself.

    :arg speaker: role whose own leading prefix (``User: ``, ``Assistant: ``) is dropped.

    >>> clean_text("User: <relevant-memories>likes tea</relevant-memories>I moved to Oslo.")
    'I moved to Oslo.'
    """
    if _is_clean(text):
        return text.strip()
    text = _CONTROL.sub("", _LINE_BREAK.sub("\n", text))
    text = _without_blocks(text)
    text = _without_fences(text)
    text = _INLINE.sub(_GAP, text)
    text = _HOST_LINE.sub("", text)
    text = _LINE_TIMESTAMP.sub("", text)
    lead = _LEAD.get(speaker)
    if lead is not None:
        text = lead.sub("", text)
    return _NEWLINES.sub(_GAP, text).strip()


def _is_clean(text: str) -> bool:
    """Say, for little, that no pattern finds anything: of most messages none does."""
    if text.isascii():
        if text.encode().translate(None, _HARMLESS) or "\n\n\n" in text:
            return False
    elif not text.replace("\n", " ").isprintable() or any(mark in text for mark in _MARKS):
        return False
    if "d an " in text.lower():
        return False
    return len(text) < _LONG_RUN or all(len(word) < _LONG_RUN for word in text.split())


def extractable_text(event: L0Event) -> str:
    """Give what the user said in this event: the only text that memories may come from.

    Empty for every other role, for framework noise (boot and session messages, heartbeats),
    for slash commands and for text without a letter or digit.
    """
    return context_text(event) if event.role == "user" else ""


def context_text(event: L0Event) -> str:
    """Give what a user or assistant said, for understanding; nothing for other roles and noise.

    An assistant's text explains what the user confirmed; it is never a source on its own.
    """
    if event.type != "message" or event.role not in {"user", "assistant"}:
        return ""
    text = clean_text(_spoken(event), speaker=event.role)
    # Of nearly every text the first character answers: to look at all takes half of the time.
    if not text[:1].isalnum() and (_COMMAND.match(text) or not any(map(str.isalnum, text))):
        return ""
    return "" if may_match(text, *_NOISE_BY) and _NOISE.search(text) else text


def may_match(text: str, *pieces: str) -> bool:
    """Say whether a pattern is worth trying that needs one of ``pieces``, whatever the case.

    Only a text in ASCII is ever turned away: other letters have ways to match that no piece shows.

    :arg pieces: in small letters.

    >>> may_match("User likes tea", "coffee"), may_match("User likes TEA", "tea", "coffee")
    (False, True)
    """
    if not text.isascii():
        return True
    small = text.lower()
    for piece in pieces:  # a loop: this is asked for every rule of every memory
        if piece in small:
            return True
    return False


def has_user_text(window: Window) -> bool:
    """Say whether a window holds anything that may be extracted from."""
    return any(extractable_text(sourced.event) for sourced in window.events)


def said_by(event: L0Event) -> str:
    """Give who says it: the name that the event gives the speaker, on one line, else ``user``."""
    name = " ".join(_CONTROL.sub("", event.name or "").split())
    return name[:_MAX_NAME_CHARS].strip() or UNNAMED


def without_repeats(events: Iterable[SourcedEvent]) -> tuple[tuple[SourcedEvent, str], ...]:
    """Drop messages that say again, word for word, what the same role said before (tool loops).

    Each event that is left comes with its :func:`context_text`. The first one stays, order is
    kept, events without text are left as they are. A short reply such as "yes" is a repeat only
    when it answers the same assistant message.
    """
    seen: set[tuple[str, str, str]] = set()
    kept: list[tuple[SourcedEvent, str]] = []
    answered = ""
    for sourced in events:
        role = sourced.event.role or ""
        text = context_text(sourced.event)
        short_reply = role == "user" and len(text) <= _SHORT_REPLY_CHARS
        key = (role, text, answered if short_reply else "")
        if role == "assistant" and text:
            answered = text
        if text and key in seen:
            continue
        seen.add(key)
        kept.append((sourced, text))
    return tuple(kept)


def _spoken(event: L0Event) -> str:
    """Read the text parts only: the placeholders of ``L0Event.text`` were said by nobody."""
    if event.content is None or isinstance(event.content, str):
        return event.content or ""
    return "\n".join(part.text for part in event.content if part.type == "text" and part.text)


def _without_blocks(text: str) -> str:
    """Remove injected blocks with their content; a stray closing tag goes alone.

    A block ends where its own tag is balanced, else at its last closing tag, else with the text.
    """
    tags = [
        (match.start(), match.end(), _kind(match), match[2].lower())
        for match in _TAG.finditer(text)
        if _is_injected(match[2])
    ]
    return _cut(text, _block_spans(tags, len(text)))


def _kind(match: re.Match[str]) -> str:
    if match[1]:
        return "close"
    return "empty" if match[4] or (match[3] or "").endswith("/") else "open"


def _is_injected(name: str) -> bool:
    lowered = name.lower()
    if any(word in lowered for word in _INJECTED_WORDS):
        return True
    return lowered.replace("_", "-") in _INJECTED_TAGS


def _block_spans(tags: Sequence[tuple[int, int, str, str]], length: int) -> list[tuple[int, int]]:
    last_close = {name: end for _, end, kind, name in tags if kind == "close"}
    spans: list[tuple[int, int]] = []
    inside, begin, depth = "", 0, 0
    for start, end, kind, name in tags:
        if not inside:
            if kind == "open":
                inside, begin, depth = name, start, 1
            else:
                spans.append((start, end))
        elif name == inside and kind != "empty":
            depth += 1 if kind == "open" else -1
            if depth == 0:
                spans.append((begin, end))
                inside = ""
    if inside:
        closed = last_close.get(inside, 0)
        unbalanced_end = closed if closed > begin else length
        spans.append((begin, unbalanced_end))
        spans += [(start, end) for start, end, _, _ in tags if start >= unbalanced_end]
    return spans


def _without_fences(text: str) -> str:
    """Remove fenced code; a fence that is never closed ends with the text, as in Markdown."""
    spans: list[tuple[int, int]] = []
    begin, ticks = 0, 0
    for match in _FENCE.finditer(text):
        run = match.end() - match.start()
        if not ticks:
            begin, ticks = match.start(), run
        elif run >= ticks:
            spans.append((begin, match.end()))
            ticks = 0
    if ticks:
        spans.append((begin, len(text)))
    return _cut(text, spans)


def _cut(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Replace each span by a blank line. Spans are in order and do not overlap."""
    kept: list[str] = []
    position = 0
    for start, end in spans:
        kept.append(text[position:start])
        position = end
    kept.append(text[position:])
    return _GAP.join(kept)

"""An incident told in stages: a story, which belongs into a scene rather than into one atom."""

from __future__ import annotations

import re

from flows.gate.subject import Subject

__all__ = ["several_stages"]

_BEGINS = re.compile(
    r"\b(?:first(?:ly)?|at first|initially|to begin with|in the beginning)\b"
    r"|首先|一开始|起初|最初|(?:\A|[,。;])\s*[^\s,。;]{0,6}?先(?![生前后天])",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"\b(?:then|next,|after that|afterwards|later|subsequently|following that|second(?:ly)?,)"
    r"|然后|接着|随后|后来|之后|其次|再(?:后来|之后)",
    re.IGNORECASE,
)
_ENDS = re.compile(
    r"\b(?:finally|eventually|in the end|at last|ultimately|lastly)\b|最后|最终|终于|结果",
    re.IGNORECASE,
)
# A recipe and a manual go by steps as well, and are no incident.
_HOW_TO = re.compile(
    r"\b(?:stir|preheat|simmer|chop|whisk|bake|pour|sprinkle|click|press|tap|install|add (?:the|a)"
    r"|minutes (?:or )?until)\b"
    r"|洗净|切成|切碎|倒入|腌制|翻炒|煮|炖|蒸|烤箱|加入|搅拌|点击|按下|安装",
    re.IGNORECASE,
)
_INCIDENT_CHARS = 80
_INCIDENT_CHARS_CJK = 30


def several_stages(subject: Subject) -> str | None:
    """Say that a memory tells an incident from its beginning over what came next to its end.

    A rule or a recipe also has steps; it is one thing and stays one atom.
    """
    if subject.type in {"instruction", "work_method"}:
        return None
    text = subject.text
    enough = _INCIDENT_CHARS if text.isascii() else _INCIDENT_CHARS_CJK
    if len(text) < enough or _HOW_TO.search(text):
        return None
    begin = _BEGINS.search(text)
    middle = _GOES_ON.search(text, begin.end()) if begin else None
    end = _ENDS.search(text, middle.end()) if middle else None
    return "told from beginning to end in stages" if end else None

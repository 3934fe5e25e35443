"""Who a memory is told of, where the producer names who speaks: by name, or as the user.

It is stored by name and searched as the user's, for a name that half of a scope's memories have
tells none of them from the others. Pure, for English, Chinese, Japanese, Korean and some more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["UNNAMED", "people_of", "told_of", "told_of_user"]

UNNAMED = "user"
"""What ``said_by`` is where the producer gave the speaker no name."""

_OPENING = re.compile(
    r"(?:The user|El usuario|La usuaria|L['’]utilisateur|L['’]utilisatrice|Der (?:Benutzer|Nutzer)"
    r"|Die (?:Benutzerin|Nutzerin)|O usuário|A usuária|L['’]utente|Пользователь)\b"
)
_ANYWHERE = re.compile(r"\bUser\b(?! [A-Z])|用户|使用者|ユーザー|사용자")
_THE_USER = re.compile(rf"{_OPENING.pattern}|{_ANYWHERE.pattern}")
_HAN = re.compile(r"[\u3400-\u9fff]")


def people_of(speakers: Iterable[str]) -> list[str]:
    """Name each person once, in the order of their first words; who has no name is left out.

    >>> people_of(["Caroline", "user", "Melanie", "CAROLINE", ""])
    ['Caroline', 'Melanie']
    """
    first: dict[str, str] = {}
    for name in speakers:
        first.setdefault(name.casefold(), name)
    return [name for folded, name in first.items() if folded not in ("", UNNAMED)]


def told_of(text: str, who: str) -> str:
    """Tell of ``who`` what is told of the user; once, so that the rest stays as it was said.

    A text that names them comes back as it is.

    >>> told_of("User lives in Porto.", "Caroline"), told_of("User's sister is Eva.", "Bo")
    ('Caroline lives in Porto.', "Bo's sister is Eva.")
    >>> told_of("用户住在杭州。", "小林"), told_of("User's name is Bo.", "Bo")
    ('小林住在杭州。', "User's name is Bo.")
    """
    if _nameless(who) or who.casefold() in text.casefold():
        return text
    found = _OPENING.match(text) or _ANYWHERE.search(text)
    return text if found is None else text[: found.start()] + who + text[found.end() :]


def told_of_user(text: str, who: str) -> str:
    """Undo :func:`told_of`.

    >>> told_of_user("Caroline lives in Porto.", "Caroline"), told_of_user("小林住在杭州。", "小林")
    ('User lives in Porto.', '用户住在杭州。')
    """
    if _nameless(who) or who not in text or _THE_USER.search(text):
        return text
    before, _, after = text.partition(who)
    return before + ("用户" if _HAN.search(before + after) else "User") + after


def _nameless(who: str) -> bool:
    # A name that is a word for the user, such as ユーザー, could not be told from one.
    return who == UNNAMED or _THE_USER.search(who) is not None

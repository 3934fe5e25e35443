"""What single-valued things are called when somebody asks for them, in English and Chinese.

"User moved to Lisbon" shares no word with "where does she live?". An atom knows what it is the
value of (its slot), so the words of the question are indexed with it.
"""

from __future__ import annotations

import re

__all__ = ["slot_words"]

_WORDS: dict[str, tuple[str, str]] = {
    "name": ("name, is called", "名字，叫什么"),
    "age": ("age, how old", "年龄，几岁，多大"),
    "birthday": ("birthday, born", "生日，出生"),
    "home": ("lives in, home", "住在哪里，城市，家"),
    "origin": ("comes from, grew up in", "来自，老家"),
    "job.title": ("works as, job, occupation, profession", "工作，职业，做什么"),
    "job.employer": ("works for, employer, company", "公司，单位，在哪里上班"),
    "job": ("job, work", "工作，职业，做什么"),
    "school": ("school, studies at", "学校，上学"),
    "relationship": ("relationship, partner, married", "感情，伴侣，结婚"),
    "partner": ("partner, married to", "伴侣，爱人"),
    "family": ("family", "家人"),
    "pet": ("pet", "宠物"),
    "diet": ("diet, eats, food", "饮食，吃"),
    "allergy": ("allergic to, must not eat", "过敏，不能吃"),
    "favourite": ("favourite, likes most", "最喜欢"),
    "taste": ("likes, dislikes", "喜欢，不喜欢"),
    "language": ("language, speaks", "语言"),
}
_CJK = re.compile(r"[\u3400-\u9fff]")


def slot_words(slot: str, text: str) -> str:
    """Give the words that ask for ``slot``, in the language of ``text``; ``""`` if unknown.

    >>> slot_words("home.city", "User moved to Lisbon.")
    'lives in, home'
    >>> slot_words("favourite.饮料", "用户最喜欢的饮料是桂花乌龙。")
    '最喜欢 饮料'
    >>> slot_words("family.sister.job", "用户妹妹是药剂师。")
    '家人 工作，职业，做什么'
    """
    parts = slot.split(".")
    if parts[0] == "family" and parts[2:]:  # what is asked of them is asked of a user too
        kin, asked = slot_words(parts[0], text), ".".join(parts[2:])
        return f"{kin} {slot_words(asked, text) or asked}"
    for known in (slot, ".".join(parts[:2]), parts[0]):
        if known in _WORDS:
            words = _WORDS[known][1 if _CJK.search(text) else 0]
            rest = " ".join(parts[len(known.split(".")) :])
            # "city" adds nothing to "lives in"; the thing that is a favourite does.
            return words if known in {"home", slot} or not rest else f"{words} {rest}"
    return ""

"""From "I" to "User": a clause in the user's own words, told of them in third person."""

from __future__ import annotations

import re

__all__ = ["alone_en", "alone_zh", "strip_opening_zh", "third_person_en", "third_person_zh"]

_ADVERB = (
    r"(?:really|also|just|still|always|never|absolutely|actually|currently|now|then|recently|"
    r"usually|typically|normally|rarely|seldom|already|even|both|mostly|mainly|generally|"
    r"particularly|especially|truly|personally|definitely|simply|genuinely|totally|quite|finally|"
    r"often|sometimes|originally|hardly|almost|ever|successfully|first|once|eventually|no longer)"
)
_FIRST_VERB = re.compile(rf"^((?:{_ADVERB} )*)([\w']+)(.*)$", re.DOTALL | re.IGNORECASE)
_OPENING = re.compile(
    r"^(?P<self>I|we)(?:(?P<short>'m|'re|'ve|'ll|'d)\b|(?= ))\s*(?P<rest>.*)$",
    re.DOTALL | re.IGNORECASE,
)
_SHORT_FORMS = {"'m": "is", "'re": "is", "'ve": "has", "'ll": "will", "'d": "would"}

_IRREGULAR = {
    "am": "is", "are": "is", "have": "has", "do": "does", "go": "goes", "don't": "doesn't",
    "haven't": "hasn't", "aren't": "isn't", "were": "was",
}  # fmt: skip
_SAME = frozenset(
    "was is has will would can could should must might may cannot can't won't wouldn't couldn't "
    "wasn't didn't hasn't did had used went got bought met ran took gave held won lost quit left "
    "made built wrote led saw broke felt thought knew became began came found flew drove grew "
    "heard kept read sold spent spoke stood taught told understood woke wore put set cut hit let "
    "learnt swam sang chose froze rode rose shook fell fought sent slept sat paid said split "
    "brought caught did ate drank threw hurt cost shut mustn't".split()
)
_REGULAR_PAST = re.compile(r"(?<!ne)(?<!bre)(?<!fe)(?<!spe)(?<!ble)(?<!proce)(?<!succe)ed$")
_PRESENT = (
    r"live|work|love|like|enjoy|prefer|play|run|walk|swim|cook|drink|eat|read|write|teach|study|"
    r"have|speak|hate|bake|paint|travel|sing|dance|cycle|go|own|collect|volunteer|train|practi[sc]e|watch|listen"
)
_MY = re.compile(r"\bmy\b", re.IGNORECASE)
_SECOND_VERB = re.compile(rf"^( (?:and|or) (?:{_ADVERB} )*)({_PRESENT})\b")
_LATER_VERB = re.compile(
    rf"^((?:(?! to ).)*? (?:and|but) (?:{_ADVERB} )*)(have|want|need|prefer|hope)"
    r"(?= (?:to|a|an|the|my|it|them|more)\b)"
)
_HABIT = re.compile(r"\b(?:usually|often|always|never|sometimes|rarely|normally|typically)\b")
_LINKING = re.compile(
    r"^((?:I|we)(?:'\w+)?(?: (?:am|are|have|was|were|will|had))?)(?: (?:also|even|actually|then))+"
    r"(?= )",
    re.IGNORECASE,
)
_LINKING_AT_END = re.compile(r",? (?:too|as well|instead)(?=[.!\s]*$|,)", re.IGNORECASE)
_LINKING_ZH = re.compile(
    r"(我们?)(?:还|也|其实)+(?=很|非常|比较|特别|喜欢|爱|会|有[一两]|养|对|买)"
)
_PARTNER = re.compile(r"^my ((?:[\w'-]+ ){0,3}?[\w'-]+) and I\b", re.IGNORECASE)

_INSIDE: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\bI'm\b|\bI am\b|\bi'm\b|\bi am\b", "they are"),
        (r"\bI was\b", "they were"),
        (r"\bI wasn't\b", "they weren't"),
        (r"\bI\b|\bi\b(?!\.e)|\bwe\b", "they"),
        (r"\b(?:me|us)\b", "them"),
        (r"\b(?:my|our)\b", "their"),
        (r"\b(?:myself|ourselves)\b", "themselves"),
        (r"\b(?:mine|ours)\b", "theirs"),
    )
)
_FILLER_AT_END = re.compile(
    r"[\s,]*(?:,\s*(?:by the way|btw|you know|haha\w*|lol|to be honest|actually|though|too|as well|"
    r"please|thanks|thank you|yes|right|in fact|i think|i guess))*[\s.,;:!~…—–-]*$",
    re.IGNORECASE,
)
_CLOSED = (".", "?", "!", '."', '!"', '?"', "。")
_LOOSE_END = re.compile(
    r"(?:,? so let's\b.*|,? (?:and|but|so|because|since|when|while|which|that|where|though|as)"
    r"(?: (?:this time|then|now|since then|today|lately|sometimes|recently|here|"
    r"honestly|i guess|again))*)$",
    re.IGNORECASE,
)


def alone_en(clause: str) -> str:
    """Take away the words that tie a clause to the one before, which nobody will see.

    >>> alone_en("I've also joined a choir, too"), alone_en("I love rain instead.")
    ("I've joined a choir", 'I love rain.')
    """
    return _LINKING_AT_END.sub("", _LINKING.sub(r"\1", clause))


def alone_zh(clause: str) -> str:
    """Do the same for a Chinese clause.

    >>> alone_zh("我还很喜欢读书"), alone_zh("我还在上海")
    ('我很喜欢读书', '我还在上海')
    """
    return _LINKING_ZH.sub(r"\1", clause, count=1)


def _conjugate(verb: str) -> str:
    lower = verb.lower()
    if lower in _IRREGULAR:
        return _IRREGULAR[lower]
    if lower in _SAME or _REGULAR_PAST.search(lower):
        return verb
    if lower.endswith(("s", "sh", "ch", "x", "z", "o")):
        return f"{verb}es"
    if lower.endswith("y") and lower[-2:-1] not in "aeiou":
        return f"{verb[:-1]}ies"
    return f"{verb}s"


def _inside(text: str) -> str:
    for pattern, word in _INSIDE:
        text = pattern.sub(word, text)
    return text


def third_person_en(clause: str) -> str:
    """Tell an English clause of the user, as a sentence.

    >>> third_person_en("I moved to Lisbon because I love my job")
    'User moved to Lisbon because they love their job.'
    >>> third_person_en("My sister and I don't eat meat!")
    "User and their sister don't eat meat."
    """
    clause = _LOOSE_END.sub("", _FILLER_AT_END.sub("", clause))
    partner, opening = _PARTNER.match(clause), _OPENING.match(clause)
    if partner:
        told = f"User and their {_inside(partner[1])}{_inside(clause[partner.end() :])}"
    elif opening:
        told = f"User {_predicate(opening['short'], opening['rest'])}"
    elif clause[:3].lower() in {"my ", "our"}:
        told = f"User's {_inside(clause.split(' ', 1)[-1])}"
    else:
        told = _inside(clause if "User" in clause else _MY.sub("User's", clause, count=1))
        told = told[:1].upper() + told[1:]
    return told if told.endswith(_CLOSED) else f"{told}."


def _predicate(short: str | None, rest: str) -> str:
    if short:
        return f"{_SHORT_FORMS[short.lower()]} {_inside(rest)}"
    found = _FIRST_VERB.match(rest)
    if found is None:
        return _inside(rest)
    verb = "reads" if found[2] == "read" and _HABIT.search(found[1]) else _conjugate(found[2])
    tail = _inside(found[3])
    if verb != found[2]:
        for later in (_SECOND_VERB, _LATER_VERB):
            tail = later.sub(lambda more: more[1] + _conjugate(more[2]), tail)
    return f"{found[1]}{verb}{tail}"


_ZH_FILLER_AT_START = re.compile(
    r"^(?:(?:对了|其实|嗯+|哦+|啊|哎呀?|嗨|哈喽|你好啊?|您好|不对|(?:我|我?刚才|前面)?(?:说错|搞错|弄错|记错|写错)了?|口误|不是|另外|还有|"
    r"而且|那么|那(?=今|昨|明|我)|"
    r"然后|所以|但是?|不过|因为|顺便说一下|话说|说起来|告诉你|是的|好的|谢谢|嘿|哈哈+|对|那个|"
    r"记一下|记住|"
    r"补充一下|更正一下|纠正一下|跟你说)[，,、：:！!\s]*)+"
)
_ZH_FILLER_AT_END = re.compile(r"(?:[的地]?[啦哦呀呢啊哈吧嘛噢]|哈哈+)?[\s，,。！!～~…；;]*$")


def strip_opening_zh(clause: str) -> str:
    """Take away what only opens a Chinese clause."""
    return _ZH_FILLER_AT_START.sub("", clause)


def third_person_zh(clause: str) -> str:
    """Tell a Chinese clause of the user, as a sentence.

    >>> third_person_zh("我住在杭州，因为我喜欢西湖啦！")
    '用户住在杭州，因为用户喜欢西湖。'
    """
    told = _ZH_FILLER_AT_END.sub("", clause)
    told = told.replace("我们家", "用户家").replace("我们", "用户等人").replace("我", "用户")
    return f"{told}。"

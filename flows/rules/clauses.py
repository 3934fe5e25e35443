"""From a message to the clauses in which the user states something, by leaving out the rest.

What is left out before any rule looks: questions, hypotheticals, quoted and invented text, text
handed over to be worked on, jokes that are taken back, and every sentence with a secret in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["clauses", "holds_secret", "is_chinese", "is_hypothetical", "sentences"]

_CJK = re.compile(r"[\u3400-\u9fff]")
_SPEAKER = re.compile(r"\s*(?:User|Patient|Human|Me|用户)\s*[:：]\s*")
_QUOTED_LINE = re.compile(r"^\s*(?:>|\||\d{1,2}:\d\d\s+\S+:).*$", re.M)

# A quotation in which somebody says "I": other people's words, or the user's invention.
_QUOTATION = re.compile(
    r"\"[^\"\n]{0,600}\"|“[^”\n]{0,600}”|「[^」\n]{0,600}」|『[^』\n]{0,600}』"
    r"|(?<![A-Za-z])'[^'\n]{3,600}[.!?,]'"
)
_FIRST_PERSON = re.compile(r"\b(?:I|I'm|my|we)\b|我|咱", re.I)
_HIDDEN = "\ufffc"

# From here on the message is material for a task, not the user about themselves.
_HANDED_OVER = re.compile(
    r"\b(?:translate|proof-?read|rewrite|rephrase|paraphrase|summari[sz]e|correct|edit|polish|"
    r"improve|fix|review|check)\b[^.!?\n]{0,60}(?::|\n)"
    r"|\b(?:role-?play(?:ing)?|pretend (?:that|to be|you|I)|act as|(?:write|draft|compose|make up)"
    r" (?:me |us )?(?:a|an|the|my|some) [^.!?\n]{0,60}(?::|\n|\b(?:saying|where|in which|about)\b)"
    r"|(?:the|my) (?:draft|paragraph|essay|text|lyrics|email|letter) (?:says|reads|goes|is)?\s?:)"
    r"|(?:翻译|润色|改写|校对|总结|修改)[^。！？\n]{0,20}[:：\n]"
    r"|(?:扮演|角色扮演|假装(?:你|我)|写(?:一|个|首|篇|段)[^。！？\n]{0,30}[:：\n])",
    re.I,
)
# Every hand-over holds one of these; looking for them first is ten times cheaper.
_HANDED_OVER_SIGNS = (
    ":", "：", "\n", "saying", "where", "in which", "about", "play", "pretend", "act as", "扮演",
    "假装",
)  # fmt: skip
_TAKEN_BACK = re.compile(
    r"\b(?:just kidding|only kidding|i'm kidding|kidding!|jk|just joking|i'm joking|only joking)\b"
    r"|开玩笑|骗你的|逗你(?:的|玩)|说着玩",
    re.I,
)
_TAKEN_BACK_SIGNS = ("kidding", "joking", "jk", "玩笑", "骗你", "逗你", "说着玩")
_SECRET = re.compile(
    r"\b(?:pass(?:word|code|phrase|wd)s?|pin(?: code| number)?|api[ _-]?keys?|secret(?: key)?|"
    r"access (?:key|token)|private key|tokens?|cvv|cvc|ssn|social security|credit card|"
    r"card number|(?:bank )?account number|iban|routing number|passport number|one-time code|otp)\b"
    r"|密码|口令|验证码|密钥|卡号|账号是|身份证号|护照号|私钥"
    r"|\b(?:sk|pk|ghp|xox[bp]|AKIA)[-_A-Za-z0-9]{12,}|(?:\d[ -]?){11,}\d",
    re.I,
)
_HYPOTHETICAL_SENTENCE = re.compile(
    r"\W*(?:(?:and|but|so|well|oh|ok)[, ]+)?(?:if|suppose|supposing|imagine|say|let's say|what if|"
    r"hypothetically|in (?:a|my|the) (?:dream|story|novel|game|book|film|movie)|"
    r"in another life|assuming|were i)\b"
    r"|.{0,6}(?:如果|假如|假设|要是|倘若|万一|想象|要不是|在(?:我的)?(?:梦里|故事里|小说里))",
    re.I,
)
_HYPOTHETICAL_CLAUSE = re.compile(
    r"\b(?:if|wish|hypothetically|would(?:n't)? have|could have|should have|might|maybe|perhaps|"
    r"as though|dreamt|dreamed that)\b"
    r"|如果|假如|要是|可能|也许|说不定|或许|恨不得|梦见|梦到|假装|差点",
    re.I,
)
_REPORTED = re.compile(
    r"(?:他|她|它|他们|她们|有人|别人|妈妈?|爸爸?|老公|老婆|朋友|同事|老板|老师|医生)[^，]{0,4}"
    r"(?:说|觉得|认为|问)|据说|听说"
)

_SENTENCE_END = re.compile(
    r"[。！？；…]+\s*|\n+|;\s+"
    r"|[.!?]+[\"')\]]*\s+(?=[^a-z\s])"  # not before a small letter: "approx. five", "e.g. tea"
    r"|[a-z]{3}[.!?]+\s+(?=i\b)"
)
_ABBREVIATION = re.compile(r"\b(?:Dr|Mr|Mrs|Ms|St|Prof|Mt|vs|e\.g|i\.e|a\.m|p\.m)\.$", re.I)
_QUESTION = re.compile(r"[?？][\"'”)\s]*$|(?:吗|呢|没有呀)[\s。！~]*$")
_ASKING = re.compile(
    r"\W*(?:(?:and|but|so)\s+)?(?:can|could|would|will|do|does|did|what|how|any|which|where|when|"
    r"why|who|is|are|should|have you|got any|please|may|shall)\b"
    r"|(?:你|可以|能|有没有|有什么|怎么|什么|哪|请问|请|会不会|是不是|该|要不要|推荐|帮)",
    re.I,
)

_CLAUSE_CUT_EN = re.compile(
    r",?\s+(?:-\s+)?(?:and|but|so|(?:even )?though|plus)\s+"
    r"(?=(?:(?:also|now|then)\s+)?(?:I|I'm|I've|I'll|my)\b)"
    r"|,\s+(?:so|but|and)\s+(?=(?:if|you|your|please|can|could|what|how|don't|do|let)\b)"
    r"|[,—–]\s*(?=(?:I|I'm|I've|I'll|my)\s)|\s[-—–]+\s+(?=(?:I|I'm|I've|my)\b)",
    re.I,
)
_PARTNER = re.compile(
    r"^(my (?:[\w'-]+ )?(?:wife|husband|partner|spouse|fianc[ée]e?|boyfriend|girlfriend|son|"
    r"daughter|"
    r"kids|children|brother|sister|mother|mom|mum|father|dad|parents|friends?|cousin|roommate|"
    r"flatmate|family|colleagues?)(?:,? [A-Z][\w'-]*,?)?) and I\b",
    re.I,
)
_BEFORE_SUBJECT = re.compile(
    r"(?:(?:back )?(?:in|on|during|by) (?:[^,]{0,30}\d|(?:early |late )?(?:jan|feb|mar|apr|may|jun|"
    r"jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun))|last|next|this|yesterday|tomorrow|today|"
    r"tonight)[^,]{0,30},\s+(?=(?:I|my|we)\b)",
    re.I,
)
_CLAUSE_CUT_ZH = re.compile(
    r"[，,]\s*(?!(?:因为|由于|主要是|名?叫|它叫|她叫|他叫|一?直到|要?待到)[^，]*)"
)
_SUBJECT_ZH = re.compile(r".{0,10}?我(?![家妈爸女儿子的妹弟哥姐老])")
_OPENS_WITH_VERB_ZH = re.compile(
    r"(?:现在|目前|平时|平常|今年|还|也|又|最|特别|很|非常|比较|不太|不|已经|刚刚?|一直|经常|"
    r"每[天周年月])*"
    r"(?:住在|搬|在|是|做|当|养|有|喜欢|爱|讨厌|对|学|来自|叫|会|喝|吃|去|参加|开始|准备|打算|要去)"
)
_NEW_SUBJECT_ZH = re.compile(r"(?:他|她|它|这|那|大家|朋友|人|你|您)")

_MAX_CLAUSE_CHARS = 300
_CUT_AFTER_CHARS = 80
_WIDE_SPACE = re.compile(r"[^\S\n]{2,}|[^\S\n ]")  # the rules know one space between words


def is_chinese(text: str) -> bool:
    """Tell Chinese from English by the share of Chinese characters: a fifth is enough."""
    return len(_CJK.findall(text)) * 5 >= len(text) > 0


def _own_words(text: str) -> str:
    """Cut a message down to what the user says in their own name."""
    text = _SPEAKER.sub("", text[:64], count=1) + text[64:] if text else text
    text = text.replace("’", "'").replace("‘", "'")
    lower = text.lower()
    signed = any(sign in lower for sign in _HANDED_OVER_SIGNS)
    handed_over = _HANDED_OVER.search(text) if signed else None
    if handed_over:
        text = text[: handed_over.start()]
    text = _QUOTED_LINE.sub("", text)
    return _QUOTATION.sub(
        lambda quote: _HIDDEN if _FIRST_PERSON.search(quote[0]) else quote[0], text
    )


def _split(text: str) -> Iterator[str]:
    """Split text at sentence ends; an abbreviation's point is none."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        piece = text[start : end.end()].strip()
        if not _ABBREVIATION.search(piece[-8:]):
            start = end.end()
            if piece:
                yield piece
    if text[start:].strip():
        yield text[start:].strip()


def sentences(text: str) -> list[str]:
    """Give a message's sentences that may state a fact, in order.

    A question keeps what was stated before it in the same sentence ("I live in Faro, any
    tips?"), the question itself goes.
    """
    kept: list[str] = []
    own = _own_words(text)
    lower = own.lower()
    jokes = any(sign in lower for sign in _TAKEN_BACK_SIGNS)
    for sentence in _split(own):
        if jokes and _TAKEN_BACK.search(sentence):
            if kept:
                kept.pop()
            continue
        if _HIDDEN in sentence or _HYPOTHETICAL_SENTENCE.match(sentence):
            continue
        stated = _before_the_question(sentence) if _QUESTION.search(sentence) else sentence
        if stated:
            kept.append(_WIDE_SPACE.sub(" ", stated))
    return kept


def _before_the_question(sentence: str) -> str:
    pieces = re.split(r"([,，])\s*", sentence)
    # pieces alternate text and mark; the question is the last text and must look like one
    for index in range(2, len(pieces), 2):
        if _ASKING.match(pieces[index]):
            return "".join(pieces[: index - 1])
    return ""


def clauses(sentence: str) -> list[str]:
    """Cut a sentence into clauses that each state one thing, in order.

    A Chinese clause without a subject gets the one of the clause before it.
    """
    pieces = _chinese(sentence) if is_chinese(sentence) else _english(sentence)
    shortened = (_shorten(piece.strip()) for piece in pieces)
    return [piece for piece in shortened if piece]


def holds_secret(sentence: str) -> bool:
    """Tell whether a sentence names a password, a key or the like: nothing of it is kept."""
    return _SECRET.search(sentence) is not None


def is_hypothetical(clause: str) -> bool:
    """Tell whether a clause says what might be, not what is."""
    return _HYPOTHETICAL_CLAUSE.search(clause) is not None


def _english(sentence: str) -> Iterator[str]:
    # "my wife and I" is one subject, and "in May, I" one clause
    together = _PARTNER.match(sentence) or _BEFORE_SUBJECT.match(sentence)
    start = together.end() if together else 0
    first, *others = _CLAUSE_CUT_EN.split(sentence[start:])
    yield sentence[:start] + first
    yield from others


def _chinese(sentence: str) -> Iterator[str]:
    about_me = False
    for raw in _CLAUSE_CUT_ZH.split(sentence):
        clause = raw.strip("。.！!～~；; ")
        if _REPORTED.search(clause) and not clause.startswith("我说"):
            return
        if _SUBJECT_ZH.match(clause):
            about_me = True
        elif "我" in clause or _NEW_SUBJECT_ZH.match(clause):
            about_me = False
        elif about_me and _OPENS_WITH_VERB_ZH.match(clause):
            clause = f"我{clause}"
        yield clause


def _shorten(clause: str) -> str:
    """Keep a clause readable: a very long one ends at its last comma that leaves a sentence."""
    if len(clause) <= _MAX_CLAUSE_CHARS:
        return clause
    comma = max(clause.rfind(mark, _CUT_AFTER_CHARS, _MAX_CLAUSE_CHARS) for mark in (", ", "，"))
    return clause[:comma] if comma > 0 else ""

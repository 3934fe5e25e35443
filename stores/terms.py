"""Words as keyword search compares them, on both sides: what is indexed and what is asked.

Analyzers differ between Milvus servers and milvus-lite, and milvus-lite has no stemmer. So
words in Latin letters are brought to their stem here, and the commonest English words, which
say nothing about a text, are left out. Everything else, Chinese, Japanese and Korean above
all, is left to the server's tokenizer.
"""

from __future__ import annotations

import re
import threading
import unicodedata

import Stemmer

__all__ = ["TERMS_VERSION", "index_terms", "query_terms", "terms_in"]

TERMS_VERSION = "terms-1"
"""Kept with each collection: what was indexed one way must not be asked another way."""

_ASCII_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9_]+")
_RUN = re.compile(r"[\w']+")
_WORD = re.compile(r"[a-zà-öø-ÿ]+(?:'[a-z]+)?|[^a-zà-öø-ÿ']+")

_STOP_WORDS = frozenset(
    """
    a about after again all also am an and any are as at be because been before being but by can
    could did do does doing don down for from had has have having he her here hers him his how i
    if in into is it its itself just me more most my no nor not of off on once only or other our
    ours out over own s same she should so some such t than that the their theirs them then there
    these they this those through to too under until up very was we were what when where which
    while who whom why will with would you your yours user user's
    i'm i've i'd i'll you're you've it's he's she's we're they're that's there's what's don't
    doesn't didn't isn't aren't wasn't weren't can't won't couldn't shouldn't wouldn't
    """.split()
)
_stemming = threading.local()  # a stemmer is not safe to share between threads


def index_terms(text: str) -> str:
    """Reduce a text to the terms that are indexed, in its order.

    >>> index_terms("She moved to Lisbon and lives by the river.")
    'move lisbon live river'
    >>> index_terms("我喜欢 hiking。")
    '我喜欢 hike'
    """
    return " ".join(terms_in(text))


def terms_in(text: str) -> list[str]:
    """Give the terms of :func:`index_terms` one by one."""
    return _terms(text, keep_stop_words=False)


def query_terms(text: str) -> str:
    """Reduce a question likewise; one of stop words only is asked as it is.

    >>> query_terms("Where does she live?"), query_terms("Who am I?")
    ('live', 'who am i')
    """
    terms = terms_in(text) or _terms(text, keep_stop_words=True)
    return " ".join(terms)


def _terms(text: str, *, keep_stop_words: bool) -> list[str]:
    # Of a text in ASCII the shorter way gives the same words.
    words = _ASCII_WORD.findall(text.lower()) if text.isascii() else _words(text, keep_stop_words)
    if not keep_stop_words:
        words = [word for word in words if word not in _STOP_WORDS]
    stems: list[str] = _stemmer().stemWords(words)  # a word in other letters is its own stem
    return stems


def _words(text: str, keep_stop_words: bool) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    if not keep_stop_words:
        # Every atom about the user says so, in Chinese as in English: it tells nothing apart.
        folded = folded.replace("用户", " ")
    # Latin words stand beside Chinese ones without a space, as in "我用Kafka".
    return [word for run in _RUN.findall(folded) for word in _WORD.findall(run)]


def _stemmer() -> Stemmer.Stemmer:
    found = getattr(_stemming, "english", None)
    if found is None:
        found = _stemming.english = Stemmer.Stemmer("english")
    return found

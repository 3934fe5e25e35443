"""What an atom is about, by rules: its scene, its slot, its type, the words in it. Pure.

For the rule-based writer only. What fits nothing goes to the topic of the atoms it shares most
terms with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from flows.reconcile.candidates import terms_of
from stores.records import Atom

__all__ = ["NAMED", "OTHER", "TOPICS", "Language", "Topic", "is_chinese", "topics_of"]

Language = str
"""``en`` or ``zh``: what headings and titles are written in."""

NAMED = "scene:"
"""What the key of a topic begins with that is one scene, by the name extraction gave it."""

_HAN = re.compile(r"[\u3400-\u9fff]")
_SHARED_TERMS = 2


@dataclass(frozen=True, slots=True)
class Topic:
    """One situation that the rules know.

    :arg titles: in English and Chinese; the file name is made of it.
    :arg slots: slots, or what they begin with before a dot.
    :arg words: an expression that finds it in texts of atoms without such a slot.
    """

    key: str
    titles: tuple[str, str]
    slots: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    words: str = ""

    def title(self, language: Language) -> str:
        """Give its title in a language."""
        return self.titles[language == "zh"]


OTHER = Topic("other", ("Other things told", "其他"))
TOPICS: tuple[Topic, ...] = (
    Topic("requests", ("How to answer", "怎样回答"), slots=("reply",), types=("instruction",)),
    Topic(
        "identity",
        ("Who they are", "基本情况"),
        slots=("name", "age", "birthday", "gender", "origin", "language", "home"),
    ),
    Topic("work", ("Work and study", "工作与学习"), slots=("job", "school")),
    Topic(
        "family",
        ("Family and pets", "家人与宠物"),
        slots=("family", "pet", "relationship"),
        words=r"\b(?:mother|father|mum|mom|dad|parents?|sister|brother|sibling|daughter|son|child"
        r"|children|wife|husband|partner|boyfriend|girlfriend|cousin|aunt|uncle|grand\w+|dog|cat)\b"
        r"|妈|爸|母亲|父亲|妹|姐|哥|弟|女儿|儿子|孩子|妻子|丈夫|老公|老婆|奶奶|爷爷|外婆|猫|狗",
    ),
    Topic(
        "food",
        ("Food, drink and health", "饮食与健康"),
        slots=("diet", "allergy", "taste", "favourite.drink", "favourite.food", "favourite.dish",
               "favourite.饮料", "favourite.食物", "health"),
        words=r"\b(?:allerg\w+|vegan|vegetarian|drinks?|coffee|tea|eats?|cook\w*|recipes?)\b"
        r"|过敏|吃|喝|咖啡|茶|素食",
    ),
    Topic(
        "plans",
        ("Plans and events", "计划与经历"),
        types=("episodic",),
    ),
    Topic(
        "interests",
        ("Interests and everyday life", "兴趣与日常"),
        slots=("favourite", "hobby", "interest"),
        words=r"\b(?:learning|training|practi[cs]\w+|hobby|plays?|running|reading|paint\w*|collects?"
        r"|enjoys?|loves?|likes?|every (?:day|week|morning|evening))\b"
        r"|在学|爱好|喜欢|每天|每周|练习|画画|跑步|读书",
    ),
    Topic("tasks", ("Tasks", "任务"), types=("work_task",)),
    Topic("facts", ("Facts of the work", "工作事实"), types=("work_fact",)),
    Topic("methods", ("Methods", "方法"), types=("work_method",)),
    Topic("artifacts", ("Artifacts", "产出物"), types=("work_artifact",)),
)  # fmt: skip


def is_chinese(texts: Iterable[str]) -> bool:
    """Say whether texts are Chinese for the most part.

    >>> is_chinese(["User lives in Oslo.", "用户住在杭州。", "用户养了一只猫。"])
    True
    """
    counts = Counter(bool(_HAN.search(text)) for text in texts)
    return counts[True] > counts[False]


def topics_of(atoms: Sequence[Atom]) -> dict[str, str]:
    """Give the key of the topic of each atom, by its id. The same for any order of ``atoms``."""
    found: dict[str, str] = {}
    open_ones: list[Atom] = []
    for atom in atoms:
        key = _known(atom)
        if key:
            found[atom.atom_id] = key
        else:
            open_ones.append(atom)
    terms = {atom.atom_id: set(terms_of(atom.text)) for atom in atoms} if open_ones else {}
    sorted_known = sorted((atom for atom in atoms if atom.atom_id in found), key=_order)
    common = _common(terms)
    for atom in open_ones:
        scored = Counter[str]()
        for other in sorted_known:
            shared = (terms[atom.atom_id] & terms[other.atom_id]) - common
            scored[found[other.atom_id]] = max(scored[found[other.atom_id]], len(shared))
        best = max(scored.items(), key=lambda item: (item[1], item[0]), default=("", 0))
        found[atom.atom_id] = best[0] if best[1] >= _SHARED_TERMS else _otherwise(atom)
    return found


def _known(atom: Atom) -> str:
    if atom.scene and atom.scene.strip():
        return NAMED + " ".join(atom.scene.split())
    for topic in TOPICS:
        if atom.type in topic.types and atom.type != "episodic":
            return topic.key
    if atom.slot:
        parts = atom.slot.split(".")
        for size in (2, 1):
            name = ".".join(parts[:size])
            for topic in TOPICS:
                if name in topic.slots:
                    return topic.key
    if atom.type == "episodic":
        return "plans"
    return next((topic.key for topic in TOPICS if _tells(topic.words, atom.text)), "")


def _otherwise(atom: Atom) -> str:
    return "interests" if atom.type == "persona" else OTHER.key


def _tells(words: str, text: str) -> bool:
    return bool(words) and _pattern(words).search(text) is not None


@lru_cache(maxsize=32)
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)


def _common(terms: dict[str, set[str]]) -> set[str]:
    """Give terms that stand in so many texts that sharing them says nothing ("user")."""
    counts = Counter(term for found in terms.values() for term in found)
    return {term for term, count in counts.items() if count > max(2, len(terms) // 4)}


def _order(atom: Atom) -> tuple[object, ...]:
    return atom.occurred_at, atom.atom_id

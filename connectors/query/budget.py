"""What of a ranked list reaches the prompt: never more than any of four budgets. Pure.

Items are taken in order until one does not fit. That one is shortened to the room that is
left, when there is room for something readable; after it nothing is taken, so that an answer
is always the best items and never a filler that happened to be short.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from connectors.query.fence import Renderer, render_system
from connectors.query.models import Cut, CutReason, RecallItem

__all__ = [
    "About",
    "Budget",
    "Fitted",
    "FittedAnswer",
    "fit",
    "fit_answer",
    "fit_system",
    "report_cut",
    "shorten",
]

MIN_CHARS = 40
"""Below this a shortened memory tells nobody anything."""

LEAST_SHARE = 0.15
"""Of the tokens, for persona and scenes, however many items are asked for: of 240 it is a line."""
ITEM_TOKENS = 75
"""What one item is reckoned with before it is known: 300 characters, a tenth of what all items
may have by default. So the ten of the default leave a quarter of 1,000 tokens."""

_MARK = "…"
_SENTENCE_END = re.compile(r"[.!?](?=\s)|[。！？；…\n]")
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper bounds of one answer.

    :arg limit: items.
    :arg tokens: of the rendered text, fence and dates included.
    :arg chars_per_memory: of one item's text.
    :arg total_chars: of all items' texts together.
    """

    limit: int
    tokens: int
    chars_per_memory: int
    total_chars: int

    def for_system(self, share: float) -> int:
        """Give the tokens that persona and scenes may take: what the items leave.

        Who asks for many items wants what bears on the question, and persona and scenes do not.
        It depends on nothing that is found, so that they are told alike for every question.

        :arg share: of the tokens, at most; :data:`LEAST_SHARE` is theirs in any case, unless
            ``share`` is less.

        >>> [Budget(limit, 1000, 800, 3000).for_system(0.25) for limit in (5, 10, 11, 100)]
        [250, 250, 175, 150]
        """
        least, most = min(share, LEAST_SHARE) * self.tokens, share * self.tokens
        return int(min(most, max(least, self.tokens - self.limit * ITEM_TOKENS)))


@dataclass(frozen=True, slots=True)
class Fitted:
    """What fits: items, the text they render to, its exact tokens, and what was left out."""

    items: tuple[RecallItem, ...]
    context: str
    tokens: int
    cut: tuple[Cut, ...]


def shorten(text: str, max_chars: int) -> str:
    """Cut a text to ``max_chars`` code points at most, ``…`` included.

    At the end of a sentence when that keeps at least half, else between words likewise, else
    where it falls. A text that is short enough comes back as it is.

    >>> shorten("It rained. We stayed at home all day.", 20)
    'It rained.…'
    >>> shorten("我住在柏林。我喜欢爬山和游泳。", 10)
    '我住在柏林。…'
    """
    if len(text) <= max_chars:
        return text
    room = max_chars - len(_MARK)
    head = text[:room]
    ends = [match.end() for match in _SENTENCE_END.finditer(text, 0, room + 1)]
    sentence = max((end for end in ends if end <= room), default=0)
    space = max(head.rfind(" "), head.rfind("\n"))
    for end in (sentence, space):
        if end * 2 >= room and head[:end].strip():
            return head[:end].rstrip() + _MARK
    return head + _MARK


def fit(
    items: Sequence[RecallItem],
    budget: Budget,
    render: Callable[[Sequence[RecallItem]], str],
    count_tokens: Callable[[str], int],
) -> Fitted:
    """Take items in order while they fit.

    ``render`` gives ``""`` for no items, and for one more always more tokens, in whatever order
    it tells them. The tokens are counted on the text of all items together, because tokens of
    joined texts do not add up.
    """
    whole = [_cut_to(item, budget.chars_per_memory) for item in items[: budget.limit]]
    within = _within_chars(whole, budget.total_chars)

    @cache
    def told(size: int) -> tuple[str, int]:
        text = render(within[:size])
        return text, count_tokens(text)

    count = _longest_prefix(len(within), lambda size: told(size)[1] <= budget.tokens)
    taken = within[:count]
    context, tokens = told(count)
    reason: CutReason = "limit"
    if count < len(whole):
        reason = "budget_tokens" if count < len(within) else "max_total_recall_chars"
        room = budget.total_chars - sum(len(item.text) for item in taken)
        short = _shortened(
            whole[count],
            room,
            lambda one: count_tokens(render([*taken, one])) <= budget.tokens,
        )
        if short is not None:
            taken.append(short)
            context = render(taken)
            tokens = count_tokens(context)
    left = [item.id for item in items[len(taken) :]]
    return Fitted(
        items=tuple(_counted(item, count_tokens) for item in taken),
        context=context,
        tokens=tokens,
        cut=(report_cut(reason, left),) if left else (),
    )


@dataclass(frozen=True, slots=True)
class About:
    """The system context: the text, its exact tokens, and what was left out.

    :arg scenes: lines that are told, the first ones.
    """

    context: str
    tokens: int
    cut: tuple[Cut, ...]
    scenes: int = 0


def fit_system(
    persona: str, scenes: Sequence[str], tokens: int, count_tokens: Callable[[str], int]
) -> About:
    """Fit persona and scene lines into ``tokens``: the persona first, shortened if it must be.

    :arg scenes: a line each, the most important first; taken while they fit.
    """

    def fits(text: str, lines: Sequence[str]) -> bool:
        return count_tokens(render_system(text, lines)) <= tokens

    told = persona
    if not fits(persona, ()):
        room = _longest_prefix(len(persona), lambda size: fits(shorten(persona, size), ()))
        told = shorten(persona, room) if room >= MIN_CHARS else ""
    count = _longest_prefix(len(scenes), lambda size: fits(told, scenes[:size]))
    context = render_system(told, scenes[:count])
    left = [line.split(":", 1)[0] for line in scenes[count:]]
    if told != persona:
        left.insert(0, "persona")
    cut = (report_cut("system_budget", left),) if left else ()
    return About(context, count_tokens(context), cut, count)


@dataclass(frozen=True, slots=True)
class FittedAnswer:
    """A whole answer.

    :arg told: ids of items left out because the system context tells the same in its line.
    """

    about: About
    items: Fitted
    told: tuple[str, ...]


def fit_answer(
    items: Sequence[RecallItem],
    budget: Budget,
    count_tokens: Callable[[str], int],
    *,
    persona: str,
    navigation: Mapping[str, str],
    system_share: float,
    beyond: Sequence[str] = (),
) -> FittedAnswer:
    """Fit a whole answer into ``budget.tokens``: the system context first, items in what is left.

    The system context is the same for every question, so it is the item that gives way where a
    scene is both.

    :arg navigation: lines of scenes by their ids, the most important first.
    :arg system_share: of the tokens, at most, for persona and scene lines; see
        :meth:`Budget.for_system`.
    :arg beyond: ids of what was found and comes after the items.
    """
    lines = tuple(navigation.values())
    about = fit_system(persona, lines, budget.for_system(system_share), count_tokens)
    told = frozenset(tuple(navigation)[: about.scenes])
    left = [item for item in items if item.id not in told]
    room = replace(budget, tokens=budget.tokens - about.tokens)
    fitted = fit(left[: budget.limit], room, Renderer(), count_tokens)
    if late := [*(item.id for item in left[budget.limit :]), *beyond]:
        fitted = replace(fitted, cut=(*fitted.cut, report_cut("limit", late)))
    return FittedAnswer(about, fitted, tuple(item.id for item in items if item.id in told))


def report_cut(reason: CutReason, ids: Sequence[str]) -> Cut:
    """Say what was left out and why."""
    return Cut(reason=reason, count=len(ids), ids=tuple(ids[:_NAMED]))


def _cut_to(item: RecallItem, max_chars: int) -> RecallItem:
    text = shorten(item.text, max_chars)
    if text == item.text:
        return item
    return item.model_copy(update={"text": text, "truncated": True})


def _counted(item: RecallItem, count_tokens: Callable[[str], int]) -> RecallItem:
    return item.model_copy(update={"tokens": count_tokens(item.text)})


def _within_chars(items: Sequence[RecallItem], total_chars: int) -> list[RecallItem]:
    within: list[RecallItem] = []
    for item in items:
        total_chars -= len(item.text)
        if total_chars < 0:
            break
        within.append(item)
    return within


def _longest_prefix(most: int, fits: Callable[[int], bool]) -> int:
    """Find the largest size up to ``most`` that fits; most often that is ``most`` itself."""
    low, high = 0, most
    middle = most
    while low < high:
        if fits(middle):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def _shortened(
    item: RecallItem, room: int, fits: Callable[[RecallItem], bool]
) -> RecallItem | None:
    """Find by halving the longest short form, up to ``room`` characters, that fits."""
    low, high = MIN_CHARS, min(room, len(item.text))
    best: RecallItem | None = None
    while low <= high:
        middle = (low + high) // 2
        short = _cut_to(item, middle)
        if fits(short):
            best, low = short, middle + 1
        else:
            high = middle - 1
    return best

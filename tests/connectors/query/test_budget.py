from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.query.budget import MIN_CHARS, About, Budget, fit, fit_answer, shorten
from connectors.query.fence import render
from connectors.tokens import count_tokens
from tests.connectors.query.fakes import START, item

ROOMY = Budget(limit=100, tokens=10_000, chars_per_memory=800, total_chars=100_000)

texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=1200
) | st.lists(
    st.sampled_from(["I live in Berlin.", "我喜欢爬山。", "<b>", "🙂", "a " * 300]), min_size=1
).map(" ".join)
budgets = st.builds(
    Budget,
    limit=st.integers(1, 12),
    tokens=st.integers(1, 1500),
    chars_per_memory=st.integers(MIN_CHARS, 900),
    total_chars=st.integers(MIN_CHARS, 4000),
)


@settings(max_examples=150)
@given(st.lists(texts, max_size=15), budgets)
def test_no_budget_is_ever_passed(memories: list[str], budget: Budget) -> None:
    items = [
        item(str(i), text).model_copy(update={"occurred_at": START + timedelta(days=i * 7 % 3)})
        for i, text in enumerate(memories)
    ]  # the order of their days is not that of their scores
    fitted = fit(items, budget, render, count_tokens)

    assert len(fitted.items) <= budget.limit
    assert count_tokens(fitted.context) == fitted.tokens <= budget.tokens
    assert fitted.context == render(fitted.items)
    assert all(len(one.text) <= budget.chars_per_memory for one in fitted.items)
    assert sum(len(one.text) for one in fitted.items) <= budget.total_chars
    # The best items and no others, each as it was or marked as shortened.
    assert [one.id for one in fitted.items] == [one.id for one in items[: len(fitted.items)]]
    if count := len(fitted.items):
        assert count_tokens(render(fitted.items[: count - 1])) < fitted.tokens
    for one, whole in zip(fitted.items, items, strict=False):
        assert one.truncated == (one.text != whole.text)
        assert one.text == whole.text or one.text.endswith("…")
        assert one.tokens == count_tokens(one.text)
    # What is not there is reported.
    assert sum(cut.count for cut in fitted.cut) == len(items) - len(fitted.items)


@settings(max_examples=100)
@given(st.lists(texts, min_size=1, max_size=5), budgets)
def test_not_zero_when_the_first_alone_fits(memories: list[str], budget: Budget) -> None:
    items = [item(str(i), text) for i, text in enumerate(memories)]
    first = items[0].model_copy(update={"text": shorten(items[0].text, budget.chars_per_memory)})
    fits = len(first.text) <= budget.total_chars and count_tokens(render([first])) <= budget.tokens
    fitted = fit(items, budget, render, count_tokens)
    if fits:
        assert fitted.items
        assert fitted.items[0].text == first.text


def test_the_limit_is_reported_with_what_it_left_out() -> None:
    fitted = fit(
        [item(str(i), "x") for i in range(30)],
        Budget(limit=2, tokens=10_000, chars_per_memory=800, total_chars=3000),
        render,
        count_tokens,
    )
    (cut,) = fitted.cut
    assert (len(fitted.items), cut.reason, cut.count, len(cut.ids)) == (2, "limit", 28, 20)
    assert cut.ids[0] == "2"


def test_the_first_that_does_not_fit_is_shortened_and_nothing_comes_after_it() -> None:
    long = "We talked about the garden. " * 20
    items = [item("a", "x" * 700), item("b", long), item("c", "short")]
    budget = Budget(limit=10, tokens=10_000, chars_per_memory=800, total_chars=900)
    fitted = fit(items, budget, render, count_tokens)
    assert [one.id for one in fitted.items] == ["a", "b"]
    assert fitted.items[1].truncated
    assert fitted.items[1].text.endswith("garden.…")
    (cut,) = fitted.cut
    assert (cut.reason, cut.ids) == ("max_total_recall_chars", ("c",))


def test_a_memory_larger_than_the_token_budget_is_shortened_to_it() -> None:
    budget = Budget(limit=10, tokens=80, chars_per_memory=800, total_chars=3000)
    fitted = fit([item("a", "我今天去了公园。" * 90)], budget, render, count_tokens)
    assert len(fitted.items) == 1
    assert fitted.tokens <= 80
    assert fitted.items[0].truncated


def test_too_small_a_budget_gives_nothing_and_says_why() -> None:
    budget = Budget(limit=10, tokens=5, chars_per_memory=800, total_chars=3000)
    fitted = fit([item("a", "I live in Berlin")], budget, render, count_tokens)
    assert (fitted.items, fitted.context, fitted.tokens) == ((), "", 0)
    assert [(cut.reason, cut.ids) for cut in fitted.cut] == [("budget_tokens", ("a",))]


def test_everything_that_fits_is_whole_and_nothing_is_cut() -> None:
    items = [item(str(i), "I live in Berlin. " * 3) for i in range(5)]
    fitted = fit(items, ROOMY, render, count_tokens)
    assert [one.text for one in fitted.items] == [one.text for one in items]
    assert fitted.cut == ()


def about(limit: int, share: float = 0.25, found: int = 100) -> About:
    items = [item(str(i), "I live in Berlin. " * 4) for i in range(found)]
    budget = Budget(limit=limit, tokens=1000, chars_per_memory=800, total_chars=100_000)
    fitted = fit_answer(
        items,
        budget,
        count_tokens,
        persona="She likes tea. " * 200,
        navigation={},
        system_share=share,
    )
    assert fitted.about.tokens + fitted.items.tokens <= 1000
    return fitted.about


def test_persona_and_scenes_get_what_the_items_asked_for_leave() -> None:
    assert 200 < about(limit=5).tokens <= 250
    assert about(limit=10).tokens == about(limit=5).tokens, "the share is the most"
    assert 160 < about(limit=11).tokens <= 175
    assert 130 < about(limit=100).tokens <= 150, "some is theirs in any case"
    assert 60 < about(limit=100, share=0.1).tokens <= 100, "unless the share is less"
    assert about(limit=1, share=0.0).context == ""


def test_what_is_found_does_not_change_the_system_context() -> None:
    assert about(limit=100, found=0) == about(limit=100, found=3) == about(limit=100)


@pytest.mark.parametrize(
    ("text", "max_chars", "short"),
    [
        ("Short.", 40, "Short."),
        ("One two. Three four five six.", 12, "One two.…"),
        ("One two three four five", 12, "One two…"),
        ("abcdefghijklmnopqrstuvwxyz", 10, "abcdefghi…"),
        ("The price is 3.14 euros today", 16, "The price is…"),
        ("A. Then a very long sentence that goes on", 30, "A. Then a very long sentence…"),
    ],
)
def test_a_text_is_cut_where_it_hurts_least(text: str, max_chars: int, short: str) -> None:
    assert shorten(text, max_chars) == short

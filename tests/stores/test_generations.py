"""Names, the pointer, and the register of generations as its topic tells it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from connectors.kafka.topics import TOPICS
from connectors.settings import Settings, load_settings
from stores.errors import SettingsError, UserError
from stores.generation_answers import GenerationAnswers
from stores.generations import (
    MAIN,
    SHARED_TOPICS,
    Generation,
    Generations,
    Pointer,
    generation_record,
    pointer_record,
)
from stores.protocols import ChatAnswer
from stores.records import LogRecord, OutRecord, Position


def read(*records: OutRecord) -> Generations:
    return Generations.of(
        LogRecord(Position(one.topic, 0, place), 0, one.key, one.value)
        for place, one in enumerate(records)
    )


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", MAIN])
def test_the_first_generation_keeps_every_name_it_had(name: str) -> None:
    settings = Settings(generation=name)
    assert {settings.topic(spec.name) for spec in TOPICS} == {
        f"sediment.{spec.name}" for spec in TOPICS
    }
    assert settings.generation_collections == "sediment"
    assert settings.generation_dir == settings.data_dir
    assert settings.generation_name == MAIN


def test_another_one_has_its_own_beside_what_all_share() -> None:
    settings = Settings(generation="v-2")
    names = {spec.name: settings.topic(spec.name) for spec in TOPICS}
    assert {name for name, full in names.items() if full == f"sediment.{name}"} == SHARED_TOPICS
    assert names["l1.atoms"] == "sediment.v-2.l1.atoms"
    assert settings.generation_collections == "sediment_v_2"
    assert settings.generation_dir == settings.data_dir / "generations" / "v-2"


def test_every_shared_topic_is_one_of_ours() -> None:
    assert {spec.name for spec in TOPICS if spec.shared} == SHARED_TOPICS


@pytest.mark.parametrize("name", ["V2", "a b", "../x", "a.b", "x" * 33, "ü"])
def test_a_name_that_topics_and_folders_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"SEDIMENT_GENERATION: .* use 1 to 32 of a-z"):
        load_settings(generation=name)


# --- the pointer -----------------------------------------------------------------------------


def test_promotions_are_gone_back_from_one_by_one() -> None:
    pointer = Pointer().to("a").to("b")
    assert (pointer.current, pointer.previous) == ("b", (MAIN, "a"))
    assert pointer.back().current == "a"
    assert pointer.back().back() == Pointer()
    with pytest.raises(UserError, match="nothing to undo"):
        Pointer().back()


def test_a_generation_is_gone_back_to_once_however_often_it_was_current() -> None:
    pointer = Pointer().to("a").to(MAIN).to("a")
    assert pointer.previous == (MAIN,)
    assert Pointer().to("a").to("b").without("a").back().current == MAIN


# --- the register ----------------------------------------------------------------------------


def test_an_empty_topic_holds_the_first_generation_and_recall_reads_it() -> None:
    known = read()
    assert known.current == MAIN
    assert [one.name for one in known.standing()] == [MAIN]
    assert known.state(MAIN) == "promoted"


def test_the_newest_record_of_a_key_counts_and_what_is_not_ours_is_passed_over() -> None:
    building = Generation(name="v2")
    known = read(
        generation_record("t", building),
        OutRecord("t", b"current", b"{"),
        OutRecord("t", b"generation:v3", b"not json"),
        OutRecord("t", b"somebody", b"{}"),
        OutRecord("t", None, None),
        generation_record("t", building.model_copy(update={"state": "ready"})),
        pointer_record("t", Pointer().to("v2")),
    )
    assert known.current == "v2"
    assert [(one.name, known.state(one.name)) for one in known.standing()] == [
        (MAIN, "ready"),
        ("v2", "promoted"),
    ]


def test_what_is_not_there_or_gone_is_said() -> None:
    known = read(generation_record("t", Generation(name="v1", state="dropped")))
    with pytest.raises(UserError, match="v1 was dropped"):
        known.get("v1")
    with pytest.raises(UserError, match="v9 does not exist"):
        known.get("v9")
    assert [one.name for one in known.standing()] == [MAIN]


def test_a_replay_that_asks_for_something_else_is_told_in_what() -> None:
    made = Generation(name="v2", answers="fresh", scope={"user": "ana"})
    assert made.differences(made.model_copy(update={"state": "ready", "pipeline": "x"})) == ()
    asked = made.model_copy(update={"answers": "missing", "scope": {}, "start": "7"})
    assert made.differences(asked) == (
        "--from was beginning, now 7",
        "the scope was user ana, now all",
        "--answers was fresh, now missing",
    )
    assert not made.whole() and Generation(name="v2").whole()


# --- answers of its own ----------------------------------------------------------------------


class Journal:
    def __init__(self) -> None:
        self.kept: dict[str, ChatAnswer] = {}
        self.about: list[str] = []

    def get(self, request_hash: str) -> ChatAnswer | None:
        return self.kept.get(request_hash)

    def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
        return [self.kept.get(one) for one in request_hashes]

    def put(
        self, request_hash: str, prompt_version: str, answer: ChatAnswer, about: Sequence[str] = ()
    ) -> None:
        self.kept.setdefault(request_hash, answer)
        self.about += about

    def forget(self, about: Sequence[str]) -> int:
        return len(about)


def test_a_generation_sees_its_own_answers_only_and_forgets_with_all() -> None:
    journal = Journal()
    shared, own = (ChatAnswer(text, "m", 1, 1, 0.0) for text in ("shared", "own"))
    journal.put("h", "p/1", shared)
    answers = GenerationAnswers(journal, "v2")
    assert answers.get("h") is None
    answers.put("h", "p/1", own, ("event",))
    assert answers.get("h") == own
    assert answers.get_many(["other", "h"]) == [None, own]
    assert journal.get("h") == shared
    assert GenerationAnswers(journal, "v3").get("h") is None
    assert journal.about == ["event"]
    assert answers.forget(["event", "other"]) == 2

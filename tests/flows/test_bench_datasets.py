"""Each benchmark's files become histories and questions; what is visible, and what is evidence."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import orjson
import pytest

from flows.bench.building import events_between
from flows.bench.data import chosen, cuts_of
from flows.bench.locomo import load_locomo
from flows.bench.longmemeval import load_longmemeval
from flows.bench.personamem import load_personamem
from stores.errors import UserError
from tests.rig.bench_data import LATER_WORD, locomo_folder, longmemeval_folder, personamem_folder


def test_personamem_a_system_message_begins_a_session_a_day_later(tmp_path: Path) -> None:
    dataset = load_personamem(personamem_folder(tmp_path))
    (history,) = dataset.histories.values()
    sessions = [one.session_id.rpartition(":")[2] for one in history.messages]
    assert sessions == ["s0"] * 5 + ["s1"] * 4
    assert history.messages[0].said_at == datetime(2024, 1, 1, 9, tzinfo=timezone.utc)
    assert history.messages[4].said_at == datetime(2024, 1, 1, 9, 4, tzinfo=timezone.utc)
    assert history.messages[5].said_at == datetime(2024, 1, 2, 9, tzinfo=timezone.utc)


def test_personamem_a_question_sees_its_history_up_to_the_end_index(tmp_path: Path) -> None:
    dataset = load_personamem(personamem_folder(tmp_path))
    early, late, _ = dataset.questions
    assert len(dataset.visible(early)) == 5
    assert not any(LATER_WORD in one.text for one in dataset.visible(early))
    assert len(dataset.visible(late)) == 9
    assert (early.answer, early.options[3]) == ("d", "(d) Bees?")


def test_personamem_evidence_is_where_the_distance_points(tmp_path: Path) -> None:
    dataset = load_personamem(personamem_folder(tmp_path))
    early, late, other = dataset.questions

    def places(evidence: tuple[frozenset[str], ...]) -> list[list[int]]:
        return [sorted(int(name.rpartition(":")[2]) for name in unit) for unit in evidence]

    assert places(early.evidence) == [[1, 3]]  # the user's of 1, 2, 3
    assert places(late.evidence) == [[6, 8]]
    assert other.evidence == ()  # points between messages


def test_personamem_takes_the_columns_of_the_other_sizes(tmp_path: Path) -> None:
    assert len(load_personamem(personamem_folder(tmp_path, extra_column=True)).questions) == 3


def test_halves_are_by_a_rule(tmp_path: Path) -> None:
    dataset = load_personamem(personamem_folder(tmp_path))
    assert [one.half for one in dataset.questions] == ["dev", "dev", "held-out"]
    assert [one.id for one in chosen(dataset, "held-out", None).questions] == ["q-other"]
    assert [one.id for one in chosen(dataset, "all", 1).questions] == ["q-early"]


def test_histories_are_cut_where_questions_are_asked(tmp_path: Path) -> None:
    dataset = load_personamem(personamem_folder(tmp_path))
    (name,) = dataset.histories
    assert cuts_of(dataset.questions) == [{name: 5}, {name: 9}]


def test_an_ended_session_says_so_and_the_last_one_does_not(tmp_path: Path) -> None:
    dataset = load_personamem(personamem_folder(tmp_path))
    (history,) = dataset.histories.values()
    first = events_between("personamem", history, 0, 5)
    rest = events_between("personamem", history, 5, 9)
    assert [one.event.type for one in first] == ["message"] * 5
    assert [one.event.type for one in rest] == ["session_end"] + ["message"] * 4
    assert rest[0].event.session_id == first[0].event.session_id
    both = events_between("personamem", history, 0, 9)
    assert [one.value for one in both] == [one.value for one in (*first, *rest)]


def test_locomo_turns_are_dated_by_their_session_and_named(tmp_path: Path) -> None:
    dataset = load_locomo(locomo_folder(tmp_path))
    messages = dataset.histories["conv-26"].messages
    assert messages[1].said_at == datetime(2023, 5, 8, 13, 56, 1, tzinfo=timezone.utc)
    assert messages[3].said_at == datetime(2023, 5, 25, 9, 5, tzinfo=timezone.utc)
    assert {one.name for one in messages} == {"Ilse", "Tomas"}
    assert messages[5].text == "Look! [shared a picture: a bowl]"


def test_locomo_evidence_in_one_string_is_split_and_unknown_turns_are_left(tmp_path: Path) -> None:
    dataset = load_locomo(locomo_folder(tmp_path, asked=2))
    one, two, adversarial = dataset.questions
    assert one.evidence == (frozenset({"conv-26:D1:1"}),)
    assert two.evidence == (frozenset({"conv-26:D1:2"}), frozenset({"conv-26:D2:1"}))
    assert (adversarial.scored, adversarial.abstain, adversarial.type) == (
        False,
        True,
        "adversarial",
    )
    assert one.scored


def test_longmemeval_sessions_are_in_the_order_of_time(tmp_path: Path) -> None:
    dataset = load_longmemeval(longmemeval_folder(tmp_path))
    question, abstaining = dataset.questions
    said = [one.text for one in dataset.visible(question)]
    assert said[0] == "I bought two oil lamps."
    assert question.evidence == (frozenset({"lme1:1:0", "lme1:1:1"}),)
    assert question.asked_at == datetime(2023, 6, 1, 10, tzinfo=timezone.utc)
    assert (abstaining.abstain, abstaining.evidence) == (True, ())


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no locomo\*.json in"):
        load_locomo(tmp_path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    folder = personamem_folder(tmp_path)
    path = folder / "questions_32k.csv"
    path.write_text(path.read_text().replace("correct_answer", "gold", 1))
    with pytest.raises(UserError, match="has no column correct_answer"):
        load_personamem(folder)


def test_a_broken_instance_is_named(tmp_path: Path) -> None:
    (tmp_path / "longmemeval_s.json").write_bytes(orjson.dumps([{"question_id": "x1"}]))
    with pytest.raises(UserError, match=r"instance 0 \(x1\).*haystack_dates"):
        load_longmemeval(tmp_path)

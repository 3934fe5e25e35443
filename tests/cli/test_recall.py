"""``sediment recall``: the service's answer on the command line, within what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.query.models import RecallAnswer
from flows.cli.memories import show_answer
from tests.cli.in_process import ANA, InProcess

QUESTION = "where does she live?"


def test_the_json_is_the_answer_of_the_service(remembered: InProcess) -> None:
    printed = remembered.json("recall", QUESTION, *ANA)
    answer = RecallAnswer.model_validate(printed)
    assert answer.model_dump(mode="json") == printed
    best = answer.items[0]
    assert (best.layer, best.source_event_ids) == ("atom", ("e4",))
    assert "Porto" in best.text
    assert best.text in answer.user_context


def test_a_value_that_was_corrected_is_no_memory_any_more(remembered: InProcess) -> None:
    items = remembered.json("recall", QUESTION, *ANA)["items"]
    assert not any("Lisbon" in item["text"] for item in items if item["layer"] == "atom")


def test_another_user_s_memories_are_never_given(remembered: InProcess) -> None:
    ana = remembered.json("recall", f"{QUESTION} Nairobi", *ANA, "--limit", "100")
    assert ana["items"]
    assert not any("e3" in item["source_event_ids"] for item in ana["items"])
    bob = remembered.json("recall", "Nairobi", *ANA[:4], "--user", "bob")
    assert {source for item in bob["items"] for source in item["source_event_ids"]} == {"e3"}
    nobody = remembered.json("recall", "Nairobi", *ANA[:4], "--user", "nobody")
    assert (nobody["items"], nobody["user_context"]) == ([], "")


def test_never_more_than_was_asked_for(remembered: InProcess) -> None:
    assert len(remembered.json("recall", QUESTION, *ANA, "--limit", "1")["items"]) == 1
    answer = remembered.json("recall", QUESTION, *ANA, "--budget-tokens", "45")
    assert answer["budget_tokens"] == 45
    assert 0 < answer["tokens"] <= 45
    assert "budget_tokens" in {cut["reason"] for cut in answer["cut"]}


def test_a_person_sees_layer_time_text_and_source(remembered: InProcess) -> None:
    printed = remembered.run("recall", QUESTION, *ANA).out
    for word in ("atom", "event", "2026-03-01 09:03", "Porto", "e4"):
        assert word in printed


def test_a_speaker_that_has_a_name_is_told_by_it(
    remembered: InProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = RecallAnswer.model_validate(remembered.json("recall", QUESTION, *ANA))
    event = next(item for item in answer.items if item.layer == "event")
    named = event.model_copy(update={"speaker": "Ana\nMaria"})
    show_answer(answer.model_copy(update={"items": [named]}))
    assert "event · Ana Maria · 2026-03-01" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("q", "--tenant", "acme", "--agent", "helper"), "the scope needs user"),
        (("q", *ANA, "--limit", "0"), "--limit"),
        (("q", *ANA, "--budget-tokens", "0"), "--budget-tokens"),
    ],
    ids=["scope", "limit", "budget"],
)
def test_what_cannot_be_asked_is_exit_code_2(
    arguments: tuple[str, ...], said: str, cli: InProcess
) -> None:
    assert said in cli.run("recall", *arguments, code=2).err


def test_a_store_that_is_not_there_is_exit_code_3(tmp_path: Path) -> None:
    cli = InProcess(tmp_path, {"SEDIMENT_MILVUS_URI": "http://127.0.0.1:9"})
    assert "milvus" in cli.run("recall", "q", *ANA, code=3).err


def test_a_data_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    """A name that was misspelt looks like a memory that was lost."""
    cli = InProcess(tmp_path / "misspelt")
    said = f"there is no data folder {cli.data_dir} yet"
    assert said in cli.run("recall", QUESTION, *ANA).err
    assert said not in cli.run("recall", QUESTION, *ANA).err, "by now it is there"

"""``sediment doctor memories``: what was noted, and what today's rules say of what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig.events import at, body
from tests.rig.scripted_llm import Received, ScriptedLlm, Step, says, scripted_llm

EVENT = "User went to Oslo on 2026-03-01."
STANDING = "User wants replies kept under 100 words."
PIN = "User's PIN is 4821."


def _memories(request: Received) -> Step:
    made = [
        {"text": EVENT, "type": "persona", "priority": 80, "sources": ["m1"]},
        {"text": STANDING, "type": "instruction", "priority": 90, "sources": ["m2"]},
        {"text": PIN, "type": "persona", "priority": 90, "sources": ["m1"]},
        {"text": "User likes tea.", "type": "persona", "priority": 80, "sources": ["m1"]},
    ]
    fields = {"slot": None, "activity_start": None, "activity_end": None}
    return says(orjson.dumps({"memories": [fields | one for one in made], "scenes": []}).decode())


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    """Memories made by a gate that only warns; read by one with the default rules."""
    folder = tmp_path_factory.mktemp("lenient")
    said = [
        "I went to Oslo on the first. I like tea.",
        "In this email, keep replies under 100 words.",
    ]
    events = [
        body(f"e{number}", content=text, occurred_at=at(number).isoformat())
        for number, text in enumerate(said)
    ]
    with scripted_llm(_memories) as server:
        env = {
            "SEDIMENT_LLM_BASE_URL": server.url,
            "SEDIMENT_GATE": '{"secret": "warn", "generalised_instruction": "warn"}',
        }
        prepared = InProcess(folder / "data", env)
        prepared.run("ingest", str(write_lines(folder / "events.jsonl", *events)))
        prepared.run("run", "--embedded")
    return InProcess(folder / "data")


def _by_text(found: dict[str, Any]) -> dict[str | None, dict[str, Any]]:
    return {item["text"]: item for item in found["items"]}


def test_what_was_noted_and_what_is_found_now(lenient: InProcess) -> None:
    found = lenient.json("doctor", "memories", *ANA, code=1)
    items = _by_text(found)
    assert found["checked"] == 4
    assert items.keys() == {EVENT, STANDING, None}, "nothing is listed of a good one"
    assert items[EVENT]["warnings"] == ["doubtful_type"]
    assert items[EVENT]["findings"] == [
        {"rule": "doubtful_type", "mode": "warn", "detail": "a dated event, typed persona"}
    ]
    assert [one["mode"] for one in items[STANDING]["findings"]] == ["reject"]


def test_a_secret_that_is_stored_is_listed_and_not_shown(lenient: InProcess) -> None:
    (item,) = lenient.json("doctor", "memories", *ANA, "--rule", "secret", code=1)["items"]
    assert item["text"] is None
    printed = lenient.run("doctor", "memories", *ANA, code=1)
    assert "4821" not in printed.out + printed.err
    assert "not shown" in printed.out
    assert "3 of 4 memories" in printed.out


def test_only_one_rule(lenient: InProcess) -> None:
    found = lenient.json("doctor", "memories", *ANA, "--rule", "doubtful_type", code=1)
    assert list(_by_text(found)) == [EVENT]
    assert lenient.json("doctor", "memories", *ANA, "--rule", "too_long")["items"] == []


def test_a_rule_that_is_none_is_named(lenient: InProcess) -> None:
    printed = lenient.run("doctor", "memories", *ANA, "--rule", "too_lon", code=2)
    assert "too_lon" in printed.err
    assert "too_long" in printed.err


def test_the_length_of_today_counts(lenient: InProcess) -> None:
    strict = InProcess(lenient.data_dir, {"SEDIMENT_GATE_MAX_CHARS": "40"})
    found = strict.json("doctor", "memories", *ANA, "--rule", "too_long")
    assert found["items"] == []
    assert strict.json("doctor", "memories", *ANA, code=1)["checked"] == 4


def test_good_memories_are_exit_code_0_and_superseded_ones_count_with_all(
    remembered: InProcess,
) -> None:
    assert "nothing found in" in remembered.run("doctor", "memories", *ANA).out
    active = remembered.json("doctor", "memories", *ANA)["checked"]
    every = remembered.json("doctor", "memories", *ANA, "--all")["checked"]
    assert every > active


def test_a_scope_is_needed(remembered: InProcess) -> None:
    assert "agent" in remembered.run("doctor", "memories", "--tenant", "acme", code=2).err


CARD = "4111 1111 1111 1111"


@pytest.mark.parametrize("by_model", [True, False], ids=["model", "rules"])
def test_a_card_number_reaches_no_atom_no_outcome_and_no_log_line(
    by_model: bool, tmp_path: Path, llm_server: ScriptedLlm, caplog: pytest.LogCaptureFixture
) -> None:
    said = [f"I live in Oslo. My card number is {CARD}.", "I work as a nurse."]
    events = [
        body(f"e{number}", content=text, occurred_at=at(number).isoformat())
        for number, text in enumerate(said)
    ]
    texts = [f"User's card number is {CARD}.", "User works as a nurse."]
    fields = {"type": "persona", "priority": 80, "slot": None, "activity_start": None,
              "activity_end": None}  # fmt: skip
    made = [fields | {"text": text, "sources": [f"m{n}"]} for n, text in enumerate(texts, start=1)]
    llm_server.script = lambda _: says(orjson.dumps({"memories": made, "scenes": []}).decode())
    cli = InProcess(
        tmp_path / "data", {"SEDIMENT_LLM_BASE_URL": llm_server.url} if by_model else {}
    )
    with caplog.at_level("DEBUG"):
        printed = [
            cli.run("ingest", str(write_lines(tmp_path / "events.jsonl", *events))),
            cli.run("--verbose", "run", "--embedded"),
            cli.run("memories", "list", *ANA),
            cli.run("doctor", "memories", *ANA, "--all"),
        ]
    written = [*cli.logged("sediment.l1.atoms"), *cli.logged("sediment.outcomes")]
    shown = "".join(one.out + one.err for one in printed) + caplog.text
    kept = b"".join(record.value or b"" for record in written)
    for needle in (CARD, CARD.replace(" ", ""), CARD[-4:]):
        assert needle not in shown
        assert needle.encode() not in kept
    assert b"nurse" in kept
    ended = [orjson.loads(record.value or b"") for record in cli.logged("sediment.outcomes")]
    (outcome,) = [one for one in ended if one["kind"] == "window"]
    assert outcome["refused"] == ({"secret": 1} if by_model else {})
    # L0 keeps what was said: it is the user's own words, and what `forget` takes away.
    assert CARD.encode() in b"".join(record.value or b"" for record in cli.logged())

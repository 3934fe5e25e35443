"""A generation knows by which settings it was made, and says in what a request differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.settings import load_settings
from flows.replay.made_of import made_of, with_settings
from stores.generations import Generation

MODEL = {"llm_base_url": "http://127.0.0.1:9/v1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gate", {"too_long": "warn"}),
        ("gate_max_chars", 80),
        ("extract_mode", "work"),
        ("extract_least_priority", {"persona": 10}),
        ("llm_model", "another"),
        ("llm_max_tokens", 100),
        ("embeddings_base_url", "http://127.0.0.1:9/v1"),
        ("scene_writer", "rules"),
        ("scene_between_s", 1.0),
        ("scene_capacity", 5),
        ("scene_file_bytes", 2048),
        ("scene_atoms", 7),
        ("scene_steps", 7),
        ("scene_tokens", 7000),
        ("persona_atoms", 7),
    ],
)
def test_what_decides_the_result_is_noted(name: str, value: Any) -> None:
    before = with_settings(Generation(name="v2"), load_settings(**MODEL))
    after = with_settings(Generation(name="v2"), load_settings(**{**MODEL, name: value}))
    assert before.differences(after), f"{name} was not noticed"
    assert before.differences(before) == ()


@pytest.mark.parametrize(
    "name", ["concurrency", "pending_cap", "embeddings_batch", "llm_timeout_s"]
)
def test_what_says_how_fast_is_not(name: str) -> None:
    assert made_of(load_settings(**MODEL)) == made_of(load_settings(**MODEL, **{name: 3}))


def test_guidance_is_noted_by_hash_and_not_by_its_words(tmp_path: Path) -> None:
    guidance = tmp_path / "guidance.md"
    guidance.write_text("Care about allergies.")
    first = made_of(load_settings(**MODEL, extract_guidance=guidance))
    guidance.write_text("Care about birthdays.")
    second = made_of(load_settings(**MODEL, extract_guidance=guidance))
    assert first["extract_guidance"] != second["extract_guidance"]
    assert "llergies" not in str(first)


def test_prompts_are_noted_by_version() -> None:
    made = made_of(load_settings(**MODEL))
    prompts = {name: value for name, value in made.items() if name.startswith("prompt_")}
    assert {value.partition("/")[0] for value in prompts.values()} == {
        "extract-chat", "split-memory", "reconcile", "scenes-chat", "persona-chat",
    }  # fmt: skip


def test_without_a_model_its_settings_decide_nothing() -> None:
    assert made_of(load_settings(scene_steps=7, llm_model="x")) == made_of(load_settings())

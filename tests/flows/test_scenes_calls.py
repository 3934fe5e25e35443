"""The forms in which models call tools, whatever form they are asked for."""

from __future__ import annotations

import orjson
import pytest

from flows.prompts import load_prompt
from flows.scenes.errors import Complaint
from flows.scenes.question import FIRST_FILE, Opening, Step, read_steps
from stores.errors import MalformedAnswer
from tests.rig.layers import SCOPE, fact

WRITE = Step("write", path="boats.md", text="Text.")
DONE = Step("done", text="ok")


@pytest.mark.parametrize(
    "said",
    [
        '{"steps": [{"tool": "write", "path": "boats.md", "text": "Text."}]}',
        '[{"name": "write_file", "arguments": {"path": "boats.md", "content": "Text."}}]',
        '{"action": "create", "args": {"file": "boats.md", "text": "Text."}}',
        '{"steps": [{"write": {"path": "boats.md", "text": "Text."}}]}',
        '{"type": "function", "function": {"name": "write",'
        ' "arguments": "{\\"path\\": \\"boats.md\\", \\"text\\": \\"Text.\\"}"}}',
        '<tool_call>\n{"name": "write", "arguments": {"path": "boats.md", "text": "Text."}}\n'
        "</tool_call>",
        '{"tool": "Write", "filename": "boats.md", "content": "Text."}',
    ],
)
def test_a_call_is_understood_in_the_form_a_model_learned(said: str) -> None:
    assert read_steps(said) == [WRITE]


def test_several_tagged_calls_are_steps_in_their_order() -> None:
    calls = [
        {"name": "write", "arguments": {"path": "boats.md", "text": "Text."}},
        {"name": "finish", "arguments": {"text": "ok"}},
    ]
    said = "".join(f"<tool_call>{orjson.dumps(one).decode()}</tool_call>" for one in calls)
    assert read_steps(said) == [WRITE, DONE]


@pytest.mark.parametrize(
    "said",
    [
        '{"tool": "delete", "path": "boats.md"}',
        '{"name": "boats.md", "text": "Text."}',
        '{"arguments": {"path": "boats.md"}}',
        '{"name": "write", "arguments": "not JSON"}',
        "<tool_call>nothing</tool_call>",
    ],
)
def test_what_is_not_clear_is_refused(said: str) -> None:
    with pytest.raises(MalformedAnswer):
        read_steps(said)


def test_an_empty_folder_is_told_as_such() -> None:
    opening = Opening(SCOPE, {}, [fact(1)], 15)
    _, (_, text) = opening.messages(load_prompt("scenes-chat"), Complaint(0, ""))
    assert f'[0,15,"{FIRST_FILE}"]' in text
    for name in ("scenes-chat", "scenes-work"):
        assert f"`{FIRST_FILE}`" in load_prompt(name).system

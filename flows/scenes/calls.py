"""What a model writes for a step, in whatever form it learned to call tools. Pure.

Asked for ``{"tool": "write", "path": …}`` models also give the forms they were trained on:
``{"name": "write_file", "arguments": {…}}``, ``{"write": {…}}``, ``<tool_call>`` around each,
``content`` for ``text``. What is meant is clear, so it is taken; anything else is for the caller
to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from connectors.llm import parse_json_answer

__all__ = ["calls_in", "plain_call"]

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_TOOLS = {
    "read_file": "read", "open": "read", "view": "read", "cat": "read",
    "write_file": "write", "create": "write", "create_file": "write", "new": "write",
    "edit_file": "edit", "replace": "edit", "str_replace": "edit", "update": "edit",
    "finish": "done", "end": "done", "stop": "done",
}  # fmt: skip
_FIELDS = {
    "file": "path", "file_path": "path", "filename": "path", "file_name": "path", "name": "path",
    "content": "text", "contents": "text", "body": "text",
    "old_text": "old", "old_string": "old", "old_str": "old",
    "new_text": "new", "new_string": "new", "new_str": "new",
}  # fmt: skip
_NAMES = ("tool", "action", "function", "tool_name", "name")
_ARGUMENTS = ("arguments", "args", "parameters", "params", "input", "tool_input")
_OWN = ("path", "text", "old", "new")


def calls_in(text: str) -> object:
    """Read an answer's JSON; several calls in ``<tool_call>`` tags are one list.

    Raises :class:`~stores.errors.MalformedAnswer` as :func:`connectors.llm.parse_json_answer`.
    """
    tagged = _CALL.findall(text)
    return [parse_json_answer(one) for one in tagged] if tagged else parse_json_answer(text)


def plain_call(item: object, tools: tuple[str, ...]) -> dict[str, Any]:
    """Give a step in the form that was asked for, as far as its meaning is clear.

    >>> plain_call({"name": "write_file", "args": {"file": "a.md", "content": "x"}}, ("write",))
    {'tool': 'write', 'path': 'a.md', 'text': 'x'}
    >>> plain_call({"read": {"path": "a.md"}}, ("read",))
    {'tool': 'read', 'path': 'a.md'}
    """
    if not isinstance(item, dict):
        return {}
    if len(item) == 1:
        ((only, given),) = item.items()
        if _tool(only) in tools and isinstance(given, dict):
            return _call(_tool(only), given)
    function = item.get("function")
    if isinstance(function, dict):  # {"type": "function", "function": {"name": …}}
        item = function
    called = next((name for name in _NAMES if _tool(item.get(name)) in tools), None)
    if called is None:
        return dict(item)
    arguments = next((item[name] for name in _ARGUMENTS if item.get(name)), None)
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = None
    rest = {name: value for name, value in item.items() if name != called}
    return _call(_tool(item[called]), arguments if isinstance(arguments, dict) else rest)


def _tool(name: object) -> str:
    known = name.strip().lower() if isinstance(name, str) else ""
    return _TOOLS.get(known, known)


def _call(tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    call: dict[str, Any] = {"tool": tool}
    for name, value in given.items():
        own = name if name in _OWN else _FIELDS.get(name.lower())
        if own is not None and call.get(own) is None:
            call[own] = value
    return call

"""The scripted model's scenes and personas: valid, deterministic, named scripted everywhere.

Not a model: one scene file, ``notes.md``, that lists all atoms it was ever shown, tells the newest;
a persona that counts the scenes it was shown and says the last note again.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

__all__ = ["answer", "is_asked"]

_FENCED = re.compile(r"<(atoms|scenes|results|persona)>\n(.*?)\n?</\1>", re.DOTALL)
_BODY = re.compile(r"---\n.*?\n---\n\n(.*)", re.DOTALL)
_ID = re.compile(r"- \"?([0-9a-f]{12,32})\"?$", re.MULTILINE)
_NOTES = "notes.md"
_TOLD = 60  # lines; with all of them the file would grow until no write is allowed


def is_asked(request_body: dict[str, Any]) -> bool:
    """Say whether a request is about scenes or a persona."""
    messages = request_body["messages"]
    first = messages[1]["content"] if len(messages) > 1 else ""
    return "<state>\n" in first or "<persona>\n" in first


def answer(request_body: dict[str, Any]) -> str:
    """Answer a request about scenes or a persona."""
    messages = [one["content"] for one in request_body["messages"]]
    first = _fences(messages[1])
    if "persona" in first:
        return orjson.dumps(_persona(first)).decode()
    known = {orjson.loads(line)[0] for line in first["scenes"].splitlines()}
    # An answer that was refused stands between: it is asked again, without results of its own.
    results = [shown["results"] for one in messages[2:] if "results" in (shown := _fences(one))]
    if _NOTES in known and not results:
        return orjson.dumps({"steps": [_step("read", _NOTES)]}).decode()
    before = orjson.loads(results[-1].splitlines()[0])[2] if results else ""
    atoms = [orjson.loads(line) for line in first["atoms"].splitlines()]
    ids = dict.fromkeys([*_ID.findall(before), *(atom[0] for atom in atoms)])
    body = _BODY.match(before)
    lines = [body[1].strip()] if body else []
    lines += [f"- {atom[4]}" for atom in atoms]
    listed = "\n".join(f"  - {one[:12]}" for one in ids)
    text = f"---\ntitle: Notes\nsummary: {len(ids)} notes.\natoms:\n{listed}\n---\n\n"
    write = _step("write", _NOTES, text + "\n".join("\n".join(lines).splitlines()[-_TOLD:]))
    return orjson.dumps({"steps": [write, _step("done", None, "done")]}).decode()


def _step(tool: str, path: str | None, text: str | None = None) -> dict[str, Any]:
    return {"tool": tool, "path": path, "text": text, "old": None, "new": None}


def _persona(first: dict[str, str]) -> dict[str, Any]:
    scenes = [orjson.loads(line) for line in first["scenes"].splitlines()]
    # In their own words: a persona in another language than the notes is refused.
    lines = [line for scene in scenes for line in scene[2].split("\n") if line.startswith("- ")]
    told = lines[-1].removeprefix("- ") if lines else "Is known."
    lists: dict[str, list[str]] = {
        name: [] for name in ("preferences", "interests", "speak", "decide", "traits")
    }
    return {
        "name": "",
        "archetype": f"{len(scenes)}: {told}",
        "basics": [told],
        **lists,
        "tags": [*told.rstrip(".").split(), "one", "two", "three"][:3],
    }


def _fences(text: str) -> dict[str, str]:
    return dict(_FENCED.findall(text))

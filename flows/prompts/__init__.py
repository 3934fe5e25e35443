"""Prompts are files: one Markdown file per prompt, with its name and version in front matter.

A prompt's words live in its file only. Change the file, raise its version: the version is part
of the recorded answers' and the atoms' identity.

>>> load_prompt("extract-chat").version
'extract-chat/3'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources

__all__ = ["Prompt", "load_prompt", "parse_prompt"]

_FILE = re.compile(
    r"---\nname: (?P<name>[a-z\-]+)\nversion: (?P<version>\d+)\n---\n"
    r"## system\n(?P<system>.*?)\n## user\n(?P<user>.*)",
    re.DOTALL,
)
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as its file gives it.

    :arg version: name and version, e.g. ``extract-chat/1``.
    :arg system: the system message; the same for every call, so that servers can cache it. It
        may hold ``{{name}}`` for what the settings decide.
    :arg user: the user message, with ``{{name}}`` where values go.
    """

    version: str
    system: str
    user: str

    def fill(self, values: Mapping[str, str]) -> str:
        """Put ``values`` into the user message, in one pass: a value is never read as a template.

        Raises ``KeyError`` when the file asks for a value that is not given.
        """
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self.user).strip()

    def with_system(self, values: Mapping[str, str]) -> Prompt:
        """Put ``values`` into the system message, likewise; the version stays.

        Raises ``KeyError`` when the file asks for a value that is not given.
        """
        filled = _PLACEHOLDER.sub(lambda match: values[match[1]], self.system)
        return replace(self, system=filled)


def load_prompt(name: str) -> Prompt:
    """Read ``flows/prompts/<name>.md``. Raises ``ValueError`` when its form or name is wrong."""
    text = resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8")
    prompt = parse_prompt(text)
    if not prompt.version.startswith(f"{name}/"):
        message = f"prompt file {name}.md names itself {prompt.version}"
        raise ValueError(message)
    return prompt


def parse_prompt(text: str) -> Prompt:
    """Read a prompt file's text. Raises ``ValueError`` when its form is wrong."""
    match = _FILE.fullmatch(text)
    if match is None:
        message = "a prompt file has front matter (name, version), `## system` and `## user`"
        raise ValueError(message)
    return Prompt(
        version=f"{match['name']}/{int(match['version'])}",
        system=match["system"].strip(),
        user=match["user"].strip(),
    )

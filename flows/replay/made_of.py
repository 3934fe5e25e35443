"""What else decides what comes out of a replay: every setting of the stages, for the manifest.

A generation that is filled with one set of them and gone on with another holds two kinds of
memory, and nobody could say later which atom is of which. So they are kept with it and compared.
Numbers that only say how fast something is done are not among them.
"""

from __future__ import annotations

import orjson

from connectors.settings import Settings
from flows.extract.guidance import load_guidance
from flows.prompts import load_prompt
from stores.generations import Generation

__all__ = ["made_of", "with_settings"]


def with_settings(asked: Generation, settings: Settings) -> Generation:
    """Give a manifest that says by which settings it is made."""
    return asked.model_copy(update={"settings": made_of(settings)})


def made_of(settings: Settings) -> dict[str, str]:
    """Give every setting that decides what memory comes of the same events, by name, as text.

    Raises :class:`~stores.errors.SettingsError` when the guidance file is wrong.
    """
    mode = settings.extract_mode
    values: dict[str, object] = {
        "gate": settings.gate,
        "gate_max_chars": settings.gate_max_chars,
        "embeddings": (
            f"{settings.embeddings_model} {settings.embeddings_dimension}"
            if settings.embeddings_base_url
            else "bundled"
        ),
        "scene_writer": settings.scene_writer,
    }
    if settings.llm_base_url:
        values |= {
            "llm_model": settings.llm_model,
            "llm_max_tokens": settings.llm_max_tokens,
            "extract_mode": mode,
            "extract_least_priority": settings.extract_least_priority,
            "extract_guidance": _guidance(settings),
            "prompt_extract": _version(f"extract-{mode}"),
            "prompt_split": _version("split-memory"),
            "prompt_reconcile": _version("reconcile"),
        }
    if settings.scene_writer != "off":
        values |= {
            "scene_pace_s": [
                settings.scene_quiet_s, settings.scene_between_s, settings.scene_max_wait_s,
            ],
            "scene_capacity": settings.scene_capacity,
            "scene_file_bytes": settings.scene_file_bytes,
        }  # fmt: skip
    if settings.scene_writer == "model" and settings.llm_base_url:
        values |= {
            "scene_atoms": settings.scene_atoms,
            "scene_steps": settings.scene_steps,
            "scene_tokens": settings.scene_tokens,
            "persona_atoms": settings.persona_atoms,
            "prompt_scenes": _version(f"scenes-{mode}"),
            "prompt_persona": _version(f"persona-{mode}"),
        }
    return {name: _text(value) for name, value in sorted(values.items())}


def _version(prompt: str) -> str:
    return load_prompt(prompt).version


def _guidance(settings: Settings) -> str:
    """Give a hash of the guidance; the path says nothing, and the words may be private."""
    return load_guidance(settings.extract_guidance).digest() if settings.extract_guidance else ""


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()

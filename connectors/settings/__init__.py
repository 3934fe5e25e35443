"""Every setting, declared once: name, default, meaning. ``docs/configuration.md`` mirrors it.

A setting comes, in this order, from the command line, the environment (``SEDIMENT_`` and its
name in capitals), the file named by ``SEDIMENT_CONFIG`` (TOML), its default here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from connectors.settings.distilling import (
    DEFAULT_GATE_CHARS,
    DEFAULT_GATE_MODES,
    Distilling,
    GateMode,
    GateRule,
)
from connectors.settings.places import SCOPE_FIELDS, Places, ScopeField
from connectors.settings.serving import Serving
from stores.errors import SettingsError

__all__ = [
    "DEFAULT_GATE_CHARS",
    "DEFAULT_GATE_MODES",
    "SCOPE_FIELDS",
    "GateMode",
    "GateRule",
    "ScopeField",
    "Settings",
    "load_settings",
]


class Settings(Serving, Distilling, Places):  # fields come in the order of the last base first
    """Sediment's effective settings. Frozen; pass it, never read the environment elsewhere."""

    model_config = SettingsConfigDict(env_prefix="SEDIMENT_", frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the TOML file, when one is named, behind the environment."""
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        path = os.environ.get("SEDIMENT_CONFIG")
        if path:
            if not Path(path).is_file():
                message = f"SEDIMENT_CONFIG names {path}, which is not a file"
                raise SettingsError(message)
            sources.append(TomlConfigSettingsSource(settings_cls, toml_file=path))
        return tuple(sources)


def load_settings(**overrides: Any) -> Settings:
    """Read the settings; ``overrides`` (from the command line) win, ``None`` means not given.

    Raises :class:`~stores.errors.SettingsError` listing every setting that is wrong at once.
    """
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            name = str(problem["loc"][0]) if problem["loc"] else ""
            variable = f"SEDIMENT_{name.upper()}: " if name else ""
            lines.append(f"{variable}{problem['msg']}")
        message = "settings: " + "; ".join(lines)
        raise SettingsError(message) from None

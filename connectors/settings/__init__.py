"""Every setting, declared once: name, default, meaning. ``docs/configuration.md`` mirrors it.

A setting comes, in this order, from the command line, the environment (``SEDIMENT_`` and its
name in capitals), the file named by ``SEDIMENT_CONFIG`` (TOML), its default here.
"""

from __future__ import annotations

import logging
import os
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
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

logger = logging.getLogger(__name__)


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
        sources: list[PydanticBaseSettingsSource] = [init_settings, _Environment(settings_cls)]
        path = os.environ.get("SEDIMENT_CONFIG")
        if path:
            if not Path(path).is_file():
                message = f"SEDIMENT_CONFIG names {path}, which is not a file"
                raise SettingsError(message)
            try:
                sources.append(TomlConfigSettingsSource(settings_cls, toml_file=path))
            except ValueError as error:  # both TOML readers raise a kind of it
                message = f"SEDIMENT_CONFIG names {path}, which is not TOML: {error}"
                raise SettingsError(message) from None
        return tuple(sources)


def load_settings(**overrides: Any) -> Settings:
    """Read the settings; ``overrides`` (from the command line) win, ``None`` means not given.

    A variable that is none of them but nearly reads like one is warned of, once.

    Raises :class:`~stores.errors.SettingsError` listing every setting that is wrong at once.
    """
    for name in sorted(os.environ):
        if name.startswith(_PREFIX):
            _warn_if_misspelt(name)
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        lines = [_told(problem) for problem in error.errors()]
        message = "settings: " + lines[0] if len(lines) == 1 else _LINE.join(["settings:", *lines])
        raise SettingsError(message) from None


_PREFIX = "SEDIMENT_"
_NEARLY = 0.85  # LLM_MODL and LLM_MODEL have 0.94; what a cluster sets for its services is below
_LINE = "\n  "
_AS_JSON = ("dict_type", "list_type", "tuple_type")


@cache
def _warn_if_misspelt(variable: str) -> None:
    name = variable.removeprefix(_PREFIX).lower()
    if name in Settings.model_fields or name == "config":
        return
    for near in get_close_matches(name, Settings.model_fields, 1, _NEARLY):
        logger.warning(
            "%s is no setting and does nothing; did you mean %s%s?",
            variable, _PREFIX, near.upper(),
        )  # fmt: skip


def _told(problem: ErrorDetails) -> str:
    """Say in one line which variable is wrong, where in it, and how."""
    where = [str(part) for part in problem["loc"]]
    variable = f"SEDIMENT_{where[0].upper()}: " if where else ""
    inside = ".".join(where[1:])
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{where[0]}: there is no such setting; `sediment config show` lists all"
    if problem["type"] in _AS_JSON:
        text += ", written as JSON"
    return f"{variable}{inside}: {text}" if inside else f"{variable}{text}"


class _Environment(EnvSettingsSource):
    """The environment; what should be JSON and is not is left to the field, which says so."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Read JSON; of anything else give the text."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value

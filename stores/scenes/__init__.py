"""Scenes (L2) and personas (L3) as Markdown files that a person can read and edit.

In the order of a run::

    SceneFolder.checkout ─ fold_heat ─ SceneSandbox (the agent's tools) ─ clean_up ─ check_run
        ─ SceneFolder.commit ─ changed_profiles

``names``, ``front_matter``, ``document``, ``tidy``, ``rules``, ``versions`` and ``navigation``
are pure; ``folder`` and ``sandbox`` touch the disk, ``heat`` asks Redis.
"""

from stores.scenes.document import DELETED_MARK, Parsed, ProfileFile, parse, render
from stores.scenes.errors import GenerationMoved, StaleFence, ToolError, UnknownScene
from stores.scenes.folder import PERSON, Files, SceneFolder, WorkingCopy
from stores.scenes.generation import Applied, Change, Generation
from stores.scenes.heat import HeatCounters, LocalHeat, RedisHeat, fold_heat
from stores.scenes.names import normal_name, unique_names
from stores.scenes.navigation import (
    IndexEntry,
    index_of,
    navigation,
    with_navigation,
    without_navigation,
)
from stores.scenes.rules import CAPACITY, Pressure, Violation, check_run, pressure
from stores.scenes.sandbox import SandboxLimits, SceneSandbox, ToolCall
from stores.scenes.tidy import Cleaned, Run, clean_up
from stores.scenes.versions import changed_profiles

__all__ = [
    "CAPACITY",
    "DELETED_MARK",
    "PERSON",
    "Applied",
    "Change",
    "Cleaned",
    "Files",
    "Generation",
    "GenerationMoved",
    "HeatCounters",
    "IndexEntry",
    "LocalHeat",
    "Parsed",
    "Pressure",
    "ProfileFile",
    "RedisHeat",
    "Run",
    "SandboxLimits",
    "SceneFolder",
    "SceneSandbox",
    "StaleFence",
    "ToolCall",
    "ToolError",
    "UnknownScene",
    "Violation",
    "WorkingCopy",
    "changed_profiles",
    "check_run",
    "clean_up",
    "fold_heat",
    "index_of",
    "navigation",
    "normal_name",
    "parse",
    "pressure",
    "render",
    "unique_names",
    "with_navigation",
    "without_navigation",
]

"""Scenes (L2): a folder of Markdown files for each scope, kept by an agent or by rules.

Read in this order: ``job`` and ``debounce`` (which jobs become one run, and when), ``operator``
(how Bytewax sees it), ``work`` (a run, from lock to index), ``repair`` (what is forgotten goes
first), ``question`` and ``agent`` (the model's loop), ``attribution`` (what it forgot to list),
``topics`` and ``writer`` (the rules), ``checks`` (what no text may hold), ``profiles`` (topic and
index), ``resting`` (what may not be told there).
"""

from flows.scenes.agent import AgentLimits, SceneAgent
from flows.scenes.debounce import Pace
from flows.scenes.job import JoinedJob, QueuedJob
from flows.scenes.operator import join_jobs
from flows.scenes.profiles import ProfileSync
from flows.scenes.resting import Resting
from flows.scenes.work import SceneLimits, SceneParts, SceneResult, SceneWork
from flows.scenes.writer import RULES

__all__ = [
    "RULES",
    "AgentLimits",
    "JoinedJob",
    "Pace",
    "ProfileSync",
    "QueuedJob",
    "Resting",
    "SceneAgent",
    "SceneLimits",
    "SceneParts",
    "SceneResult",
    "SceneWork",
    "join_jobs",
]

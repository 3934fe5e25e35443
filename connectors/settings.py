"""Every setting, declared once: name, default, meaning. ``docs/configuration.md`` mirrors it.

A setting comes, in this order, from the command line, the environment (``SEDIMENT_`` and its
name in capitals), the file named by ``SEDIMENT_CONFIG`` (TOML), its default here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from stores.errors import SettingsError
from stores.generations import MAIN, SHARED_TOPICS, check_generation_name
from stores.ids import scope_key
from stores.records import AtomType

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

ScopeField = Literal["tenant", "team", "agent", "user"]
SCOPE_FIELDS: tuple[ScopeField, ...] = ("tenant", "team", "agent", "user")

GateRule = Literal[
    "secret",
    "instruction_like",
    "human_authority",
    "several_stages",
    "generalised_instruction",
    "doubtful_type",
    "old_and_new_state",
    "several_periods",
    "too_long",
]
GateMode = Literal["warn", "split", "route", "reject"]
DEFAULT_GATE_MODES: dict[GateRule, GateMode] = {
    "secret": "reject",
    "instruction_like": "reject",
    "human_authority": "warn",
    "several_stages": "route",
    "generalised_instruction": "reject",
    "doubtful_type": "warn",
    "old_and_new_state": "split",
    "several_periods": "split",
    "too_long": "split",
}
DEFAULT_GATE_CHARS = 300
_RESHAPED: tuple[GateRule, ...] = (
    "several_stages",
    "old_and_new_state",
    "several_periods",
    "too_long",
)
"""Rules on how much one memory tells: only what they find can be cut, or left to a scene."""


class Settings(BaseSettings):
    """Sediment's effective settings. Frozen; pass it, never read the environment elsewhere."""

    model_config = SettingsConfigDict(env_prefix="SEDIMENT_", frozen=True, extra="forbid")

    # Where things are
    data_dir: Path = Field(
        default=Path(".sediment"), description="Folder of the embedded log, stores and snapshots."
    )
    brokers: str = Field(
        default="", description="Kafka bootstrap servers; empty means the embedded file log."
    )
    kafka: dict[str, str] = Field(
        default_factory=dict,
        description="Further librdkafka properties, as JSON (security, TLS, client ids).",
    )
    topic_prefix: str = Field(default="sediment", description="What every topic name begins with.")
    topic_partitions: int = Field(
        default=4, ge=1, description="Partitions of topics that `sediment topics create` makes."
    )
    consumer_group: str = Field(
        default="sediment",
        description="Consumer group that offsets are also committed to, for lag tools.",
    )
    milvus_uri: str = Field(
        default="", description="Milvus server; empty means milvus-lite in the data folder."
    )
    milvus_token: SecretStr = Field(default=SecretStr(""), description="Milvus `user:password`.")
    collection_prefix: str = Field(
        default="sediment", description="What every Milvus collection name begins with."
    )
    analyzer: Literal["standard", "jieba"] = Field(
        default="jieba",
        description="Tokenizer of keyword search, fixed when a collection is made: `jieba` finds "
        "Chinese and English, `standard` only languages that put spaces between words.",
    )
    generation: str = Field(
        default="",
        description="Generation of memory to read and write, `main` for the first; empty follows "
        "the one that was promoted.",
    )
    redis_url: str = Field(
        default="",
        description="Redis for recorded answers and rate limits; empty keeps answers in the data "
        "folder, and limits in each process.",
    )

    # Scope
    scope_fields: tuple[ScopeField, ...] = Field(
        default=("tenant", "agent", "user"),
        description="Which ids together own a memory, in order, as a JSON list.",
    )

    # Windows
    window_user_turns: int = Field(
        default=5, ge=1, description="User messages after which a session's window closes."
    )
    window_warmup: bool = Field(
        default=False, description="Close a new session's first windows at 1, 2, 4 user messages."
    )
    window_gap_s: float = Field(
        default=600.0, gt=0, description="Seconds of silence, in event time, that close a window."
    )
    window_max_tokens: int = Field(
        default=6000, ge=100, description="Tokens of text at which a window closes."
    )
    window_background: int = Field(
        default=5, ge=0, description="Earlier messages of the session shown as context."
    )
    dedup_ids: int = Field(
        default=100_000,
        ge=1,
        description="Event ids remembered per scope, newest first, to drop repeated events.",
    )

    # Stages
    concurrency: int = Field(
        default=60, ge=1, description="Calls in flight at once, per process and stage."
    )
    pending_cap: int = Field(
        default=1000,
        ge=1,
        description="Items waiting in stages, per process, at which reading pauses.",
    )
    halt_dead_letter_rate: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of the last 100 items that may fail for good before the flow stops.",
    )
    snapshot_interval_s: float = Field(
        default=2.0, gt=0, description="Seconds between recovery snapshots."
    )

    # Model
    llm_base_url: str = Field(
        default="",
        description="OpenAI-compatible endpoint; empty means the rule-based extractor.",
    )
    llm_api_key: SecretStr = Field(default=SecretStr(""), description="Key of the endpoint.")
    llm_model: str = Field(default="gpt-4o-mini", description="Chat model that extracts.")
    llm_timeout_s: float = Field(default=180.0, gt=0, description="Time limit of one chat call.")
    llm_max_tokens: int = Field(default=4096, ge=1, description="Answer tokens of one chat call.")

    # Quality gate
    gate: dict[GateRule, GateMode] = Field(
        default_factory=lambda: dict(DEFAULT_GATE_MODES),
        description="What the quality gate does on each rule, as JSON; rules left out keep their "
        "default: docs/quality-gate.md.",
    )
    gate_max_chars: int = Field(
        default=DEFAULT_GATE_CHARS, ge=40, description="Characters of one memory at most."
    )

    # Extraction
    extract_mode: Literal["chat", "work"] = Field(
        default="chat",
        description="What memories are about: `chat` (a person) or `work` (facts, tasks, methods, "
        "artifacts); work needs an LLM.",
    )
    extract_least_priority: dict[AtomType, Annotated[int, Field(ge=0, le=100)]] = Field(
        default_factory=dict,
        description="Priority from which a memory of a type is kept, as JSON; types left out "
        "keep theirs: persona 50, episodic 60, all others 70.",
    )
    extract_guidance: Path | None = Field(
        default=None,
        description="Markdown file of what all scopes care about, or TOML file that says it for "
        "single scopes; see docs/extraction.md.",
    )

    # Scenes and persona
    scene_writer: Literal["model", "rules", "off"] = Field(
        default="model",
        description="Who writes scenes and persona: `model` (rules where no LLM is set), `rules`, "
        "or nobody (`off`).",
    )
    scene_quiet_s: float = Field(
        default=10.0, ge=0, description="Seconds after a scope's last new atoms until a scene run."
    )
    scene_between_s: float = Field(
        default=900.0, ge=0, description="Seconds between two scene runs of a scope, at least."
    )
    scene_max_wait_s: float = Field(
        default=3600.0, gt=0, description="Seconds that new atoms wait for a scene run, at most."
    )
    scene_capacity: int = Field(default=15, ge=3, description="Scene files of a scope, at most.")
    scene_file_bytes: int = Field(default=16384, ge=1024, description="Bytes of one scene file.")
    scene_atoms: int = Field(default=40, ge=1, description="Atoms given to one scene run, at most.")
    scene_steps: int = Field(default=20, ge=1, description="Answers of the model in one scene run.")
    scene_time_s: float = Field(default=300.0, gt=0, description="Time limit of one scene run.")
    scene_tokens: int = Field(
        default=200_000, ge=1000, description="Tokens of all requests and answers of a scene run."
    )
    persona_atoms: int = Field(
        default=50, ge=1, description="Atoms that scenes gained since the last persona, for a new."
    )

    # Embeddings
    embeddings_base_url: str = Field(
        default="", description="OpenAI-compatible endpoint; empty means the bundled model."
    )
    embeddings_api_key: SecretStr = Field(default=SecretStr(""), description="Its key.")
    embeddings_model: str = Field(
        default="text-embedding-3-small", description="Model asked of that endpoint."
    )
    embeddings_dimension: int = Field(
        default=1536, ge=2, description="Length of that endpoint's vectors."
    )
    embeddings_batch: int = Field(
        default=64, ge=1, description="Texts embedded and written in one call."
    )

    # Recall
    recall_limit: int = Field(default=10, ge=1, le=100, description="Items at most.")
    recall_timeout_s: float = Field(
        default=5.0, gt=0, description="After this a recall answers with what it has."
    )
    recall_half_life_days: float = Field(
        default=90.0, gt=0, description="Days after which half of what recency adds is gone."
    )
    recall_min_similarity: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="Cosine from which a hit counts without sharing the question's words; unset "
        "means that of the bundled model, and for an endpoint that every hit counts.",
    )
    recall_system_share: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="Share of the token budget that persona and scenes may take.",
    )
    max_chars_per_memory: int = Field(default=800, ge=40, description="Characters of one item.")
    max_total_recall_chars: int = Field(default=3000, ge=40, description="Characters of all.")
    budget_tokens: int = Field(default=1000, ge=1, description="Tokens of all items together.")

    # Query service
    host: str = Field(default="127.0.0.1", description="Address the query service binds to.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port of the query service.")
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port on which `sediment run` serves /metrics; 0 off.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address of that port.")
    api_keys_file: Path | None = Field(
        default=None,
        description="JSON file of hashed API keys and their scopes; needed off loopback, and "
        "with Kafka or a Milvus server.",
    )
    mcp_key: SecretStr = Field(
        default=SecretStr(""), description="API key that `sediment mcp` acts with on stdio."
    )
    audit_file: Path | None = Field(
        default=None,
        description="File of JSON lines about writes, forgets and denied calls; unset, they go "
        "to the log.",
    )
    rate_limit: float = Field(
        default=50.0, ge=0, description="Calls a second that one API key may make; 0 no limit."
    )
    rate_limit_burst: int = Field(
        default=100, ge=1, description="Calls that one API key may make at once after a pause."
    )
    rate_limit_fails: Literal["open", "closed"] = Field(
        default="closed",
        description="What happens to calls while Redis cannot count them: `open` lets them "
        "through, `closed` answers 503.",
    )

    @field_validator("gate", mode="before")
    @classmethod
    def _gate_modes_fit_their_rules(cls, value: object) -> object:
        if not isinstance(value, dict):
            message = 'give a JSON object of rules and modes, such as {"too_long": "warn"}'
            raise ValueError(message)
        for rule, mode in value.items():
            if rule not in DEFAULT_GATE_MODES:
                message = f"`{rule}` is no rule; there are {', '.join(DEFAULT_GATE_MODES)}"
                raise ValueError(message)
            modes = (
                ("warn", "split", "route", "reject") if rule in _RESHAPED else ("warn", "reject")
            )
            if mode not in modes:
                message = f"`{mode}` is no mode of `{rule}`; it can be {', '.join(modes)}"
                raise ValueError(message)
        return {**DEFAULT_GATE_MODES, **value}

    @field_validator("scope_fields")
    @classmethod
    def _scope_fields_are_distinct(cls, value: tuple[ScopeField, ...]) -> tuple[ScopeField, ...]:
        if not value or len(set(value)) != len(value):
            message = f"name each of {', '.join(SCOPE_FIELDS)} at most once, and at least one"
            raise ValueError(message)
        return value

    @field_validator("generation")
    @classmethod
    def _generation_can_name_topics(cls, value: str) -> str:
        return check_generation_name(value) if value else value

    @model_validator(mode="after")
    def _tenant_is_in_the_scope(self) -> Settings:
        if "tenant" not in self.scope_fields:
            message = "scope_fields: `tenant` must be one of them; tenants never share a memory"
            raise ValueError(message)
        return self

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

    @property
    def embedded(self) -> bool:
        """True when the log is the file log in the data folder."""
        return not self.brokers

    @property
    def generation_name(self) -> str:
        """Name the generation, for people and in the register."""
        return self.generation or MAIN

    @property
    def generation_prefix(self) -> str:
        """Give what the names of a generation's own topics begin with."""
        return f"{self.topic_prefix}.{self.generation}" if self._named else self.topic_prefix

    @property
    def generation_collections(self) -> str:
        """Give what the names of a generation's collections begin with."""
        name = self.generation.replace("-", "_")  # Milvus takes no hyphens
        return f"{self.collection_prefix}_{name}" if self._named else self.collection_prefix

    @property
    def generation_dir(self) -> Path:
        """Give the folder for what a generation keeps outside of log, stores and answers."""
        return self.data_dir / "generations" / self.generation if self._named else self.data_dir

    @property
    def _named(self) -> bool:
        return self.generation not in ("", MAIN)

    def topic(self, name: str) -> str:
        """Give a topic its full name: ``l0.events`` is ``sediment.l0.events``.

        A topic that is not shared is the generation's own: ``sediment.v2.l1.atoms``.
        """
        prefix = self.topic_prefix if name in SHARED_TOPICS else self.generation_prefix
        return f"{prefix}.{name}"

    def scope_of(self, *, tenant: str, agent: str = "", user: str = "", team: str = "") -> str:
        """Build the scope key from ids; an id that the scope needs and lacks is an error."""
        given = {"tenant": tenant, "team": team, "agent": agent, "user": user}
        missing = [name for name in self.scope_fields if not given[name]]
        if missing:
            message = (
                f"the scope needs {', '.join(missing)}: "
                f"a memory belongs to {', '.join(self.scope_fields)} together"
            )
            raise SettingsError(message)
        return scope_key(given[name] for name in self.scope_fields)


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

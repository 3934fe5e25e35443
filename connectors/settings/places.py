"""Where things are, whose a memory is, and the names that follow from both."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings

from stores.errors import SettingsError
from stores.generations import MAIN, SHARED_TOPICS, check_generation_name
from stores.ids import scope_key

__all__ = ["SCOPE_FIELDS", "Places", "ScopeField"]

ScopeField = Literal["tenant", "team", "agent", "user"]
SCOPE_FIELDS: tuple[ScopeField, ...] = ("tenant", "team", "agent", "user")


class Places(BaseSettings):
    """Log, stores, generation and scope."""

    # Where things are
    data_dir: Path = Field(
        default=Path(".sediment"), description="Folder of the embedded log, stores and snapshots."
    )
    brokers: str = Field(
        default="", description="Kafka bootstrap servers; empty means the embedded file log."
    )
    require_brokers: bool = Field(
        default=False,
        description="Refuse to start without `brokers`: what is meant to run on Kafka shall not "
        "begin an embedded log because a variable is missing.",
    )
    kafka: dict[str, str] = Field(
        default_factory=dict,
        description="Further librdkafka properties, as JSON (security, TLS, client ids).",
    )
    broker_patience_s: float = Field(
        default=900.0,
        gt=0,
        description="Seconds for which a flow that runs waits for brokers that are away, before "
        "it stops. At the start it waits for 15 s.",
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
        pattern=r"^$|^(redis|rediss|unix)://",
        description="Redis for what processes share: recorded answers, locks, heat of scenes, "
        "limits of model calls and API keys. Empty: answers in the data folder, all else in each "
        "process.",
    )

    # Scope
    scope_fields: tuple[ScopeField, ...] = Field(
        default=("tenant", "agent", "user"),
        description="Which ids together own a memory, in order, as a JSON list.",
    )

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
    def _tenant_is_in_the_scope(self) -> Places:
        if "tenant" not in self.scope_fields:
            message = "scope_fields: `tenant` must be one of them; tenants never share a memory"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _brokers_are_there_where_required(self) -> Places:
        if self.require_brokers and not self.brokers:
            message = (
                "SEDIMENT_BROKERS: not set, and SEDIMENT_REQUIRE_BROKERS says that it must be; "
                "without it the log would be a file in the data folder"
            )
            raise ValueError(message)
        return self

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

"""What answers: recall, the query service, keys and limits, metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

__all__ = ["Serving"]


class Serving(BaseSettings):
    """How memory is told, and to whom."""

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

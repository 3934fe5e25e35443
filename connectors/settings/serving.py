"""What answers: recall, the query service, keys and limits, metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings

__all__ = ["Serving"]

_MIN_SECRET_CHARS = 32


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
        description="Share of the token budget that persona and scenes may take; less where many "
        "items are asked for.",
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
        description="Port on which `sediment run` serves /metrics, /healthz and /readyz; 0 off.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address of that port.")
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="Form of log lines on stderr: `text` for people, `json` one object a line.",
    )
    otel_endpoint: str = Field(
        default="",
        description="Where OpenTelemetry traces go, over OTLP/HTTP, as http://collector:4318; "
        "empty takes OTEL_EXPORTER_OTLP_ENDPOINT, and no traces where that is unset.",
    )
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
    ui_secret: SecretStr = Field(
        default=SecretStr(""),
        description="What sessions of the status page are sealed with, 32 characters or more; set "
        "it where services stand side by side. Unset, each process makes up its own.",
    )
    flow_metrics: tuple[str, ...] = Field(
        default=(),
        description="Metrics addresses of running flows, as a JSON list; the status page shows "
        "what they say.",
    )
    rate_limit: float = Field(
        default=50.0,
        ge=0,
        description="Calls a second that one API key may make; 0 no limit, for nobody.",
    )
    rate_limit_burst: int = Field(
        default=100, ge=1, description="Calls that one API key may make at once after a pause."
    )
    rate_limit_peer: float = Field(
        default=200.0,
        ge=0,
        description="Calls a second that one address may make without a valid key, twice as many "
        "at once after a pause; 0 no limit.",
    )
    rate_limit_fails: Literal["open", "closed"] = Field(
        default="closed",
        description="What happens to calls while Redis cannot count them: `open` lets them "
        "through, `closed` answers 503.",
    )

    @field_validator("ui_secret")
    @classmethod
    def _secret_cannot_be_guessed(cls, value: SecretStr) -> SecretStr:
        if 0 < len(value.get_secret_value()) < _MIN_SECRET_CHARS:
            message = f"must have {_MIN_SECRET_CHARS} characters or more"
            raise ValueError(message)
        return value

    @property
    def traces_endpoint(self) -> str:
        """Give the address that takes traces; empty for none.

        OpenTelemetry's own variables count where ours is not set.
        """
        own = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
        if own and not self.otel_endpoint:
            return own
        base = self.otel_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        return base.rstrip("/") + "/v1/traces" if base else ""

"""What flows do: windows, stages, models, extraction, gate, scenes, persona, embeddings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings

from stores.records import AtomType

__all__ = ["DEFAULT_GATE_CHARS", "DEFAULT_GATE_MODES", "Distilling", "GateMode", "GateRule"]

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
_HTTP = r"^$|^https?://"
_RESHAPED: tuple[GateRule, ...] = (
    "several_stages",
    "old_and_new_state",
    "several_periods",
    "too_long",
)
"""Rules on how much one memory tells: only what they find can be cut, or left to a scene."""


class Distilling(BaseSettings):
    """How events become memory."""

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
        pattern=_HTTP,
        description="OpenAI-compatible endpoint; empty means the rule-based extractor.",
    )
    llm_api_key: SecretStr = Field(default=SecretStr(""), description="Key of the endpoint.")
    llm_model: str = Field(default="gpt-4o-mini", description="Chat model that extracts.")
    llm_timeout_s: float = Field(default=180.0, gt=0, description="Time limit of one chat call.")
    llm_max_tokens: int = Field(default=4096, ge=1, description="Answer tokens of one chat call.")
    llm_concurrency: int = Field(
        default=60,
        ge=0,
        description="Chat calls in flight at once, by all workers on one Redis; 0 no limit.",
    )
    llm_requests_per_minute: int = Field(
        default=0, ge=0, description="Chat calls a minute, by all workers together; 0 no limit."
    )
    llm_tokens_per_minute: int = Field(
        default=0, ge=0, description="Their tokens a minute, prompts and answers; 0 no limit."
    )
    llm_tokens_per_day: int = Field(
        default=0,
        ge=0,
        description="Their tokens a day (UTC), then calls wait until midnight; 0 no limit.",
    )
    llm_dollars_per_day: float = Field(
        default=0.0, ge=0, description="Dollars a day, the same way; needs `llm_prices`."
    )
    llm_prices: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="Dollars for a million tokens of prompt and of answer, by model, as JSON: "
        '`{"gpt-4o-mini": [0.15, 0.60]}`.',
    )

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
        default="",
        pattern=_HTTP,
        description="OpenAI-compatible endpoint; empty means the bundled model.",
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

    @model_validator(mode="after")
    def _a_budget_in_dollars_has_a_price(self) -> Distilling:
        if self.llm_dollars_per_day and self.llm_model not in self.llm_prices:
            message = (
                f"SEDIMENT_LLM_DOLLARS_PER_DAY: {self.llm_model} has no price; "
                "set SEDIMENT_LLM_PRICES"
            )
            raise ValueError(message)
        return self

    @field_validator("llm_prices")
    @classmethod
    def _prices_are_not_negative(
        cls, value: dict[str, tuple[float, float]]
    ) -> dict[str, tuple[float, float]]:
        for model, prices in value.items():
            if not all(0 <= price < math.inf for price in prices):
                message = f"{model}: a price is a number of dollars from 0 on"
                raise ValueError(message)
        return value

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

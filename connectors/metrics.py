"""Every metric, declared once. ``docs/metrics.md`` mirrors it; a test compares them."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = [
    "ANSWERS_RECORDED_HITS",
    "DEAD_LETTERS",
    "DUPLICATES",
    "EVENTS_DECODED",
    "GATE_FINDINGS",
    "LLM_CALLS",
    "LLM_COST",
    "LLM_HELD",
    "LLM_LIMIT_WAIT",
    "LLM_SPENT_TODAY",
    "LLM_TOKENS",
    "LOG_AWAY_SECONDS",
    "LOG_LAG",
    "LOG_OFFSET_RESETS",
    "OUTCOMES",
    "PERSONA_RUNS",
    "RATE_LIMITED",
    "RATE_LIMIT_ERRORS",
    "RECALLABLE_SECONDS",
    "RECALL_DEGRADED",
    "RECALL_SECONDS",
    "RECONCILED",
    "RECONCILE_REFUSED",
    "SCENES_SEGMENTED",
    "SCENE_RUNS",
    "SCENE_STEPS",
    "SCENE_TOKENS",
    "STAGE_IN_FLIGHT",
    "STAGE_OLDEST_SECONDS",
    "STAGE_PENDING",
    "STAGE_RETRIES",
    "STAGE_RETRIES_WAITING",
    "STORE_SECONDS",
    "WINDOW_EVENTS",
]

EVENTS_DECODED = Counter("sediment_events_decoded", "L0 events accepted at the edge", ["type"])
DUPLICATES = Counter("sediment_events_duplicate", "Events dropped because their id was seen")
WINDOW_EVENTS = Histogram(
    "sediment_window_events",
    "Events in a closed window",
    ["closed_by"],
    buckets=(1, 2, 5, 10, 20, 50, 100, 200),
)
STAGE_PENDING = Gauge("sediment_stage_pending", "Items waiting in a stage", ["stage"])
STAGE_IN_FLIGHT = Gauge("sediment_stage_in_flight", "Calls in flight in a stage", ["stage"])
STAGE_OLDEST_SECONDS = Gauge(
    "sediment_stage_oldest_pending_seconds",
    "Age of the item that has been in a stage longest; 0 when it is empty",
    ["stage"],
)
STAGE_RETRIES_WAITING = Gauge(
    "sediment_stage_retries_waiting", "Items in a stage that wait to be tried again", ["stage"]
)
STAGE_RETRIES = Counter(
    "sediment_stage_retries", "Calls that failed and will be tried again", ["stage", "reason"]
)
DEAD_LETTERS = Counter("sediment_dead_letters", "Dead letters written", ["stage", "reason"])
OUTCOMES = Counter("sediment_outcomes", "Outcomes written", ["stage", "result"])
LLM_CALLS = Counter("sediment_llm_calls", "Chat calls that were sent", ["model", "result"])
LLM_TOKENS = Counter("sediment_llm_tokens", "Tokens of chat calls", ["model", "kind"])
LLM_COST = Counter(
    "sediment_llm_cost_dollars",
    "Dollars for chat calls by SEDIMENT_LLM_PRICES; a model without a price costs nothing",
    ["model"],
)
LLM_LIMIT_WAIT = Histogram(
    "sediment_llm_limit_wait_seconds",
    "Time that a chat call waited for the limits that all workers share",
    buckets=(0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30),
)
LLM_HELD = Gauge(
    "sediment_llm_held",
    "1 while no chat call may begin: budget (the day's is used up), paused (the endpoint asked for "
    "it), redis (calls cannot be counted)",
    ["reason"],
)
LLM_SPENT_TODAY = Gauge(
    "sediment_llm_spent_today",
    "Spent since midnight UTC by all workers, in tokens and dollars",
    ["unit"],
)
ANSWERS_RECORDED_HITS = Counter(
    "sediment_answers_recorded_hits", "Chat calls answered from the journal"
)
SCENES_SEGMENTED = Counter(
    "sediment_scenes_segmented",
    "Scene segments that extraction gave: kept, or why one was left out",
    ["result"],
)
SCENE_RUNS = Counter(
    "sediment_scene_runs",
    "Scene runs by how they ended: applied, repeated, refused, moved, edited, edit_refused, "
    "no_recorded_answer",
    ["result"],
)
SCENE_STEPS = Histogram(
    "sediment_scene_steps", "Answers of the model in one scene run", buckets=(1, 2, 3, 4, 6, 10, 20)
)
SCENE_TOKENS = Histogram(
    "sediment_scene_prompt_tokens",
    "Prompt tokens of one scene run, all its requests together",
    buckets=(1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000),
)
PERSONA_RUNS = Counter(
    "sediment_persona_runs",
    "Persona jobs by how they ended: a trigger, edit, not_due, removed, repeated, refused, "
    "no_recorded_answer",
    ["result"],
)
STORE_SECONDS = Histogram(
    "sediment_store_seconds", "Time of one store call", ["operation"]
)  # fmt: skip
RECALLABLE_SECONDS = Histogram(
    "sediment_recallable_seconds",
    "From the log's time of an event to when it can be recalled, as events or atoms; from its own "
    "time for scenes and persona",
    ["layer"],
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 14_400),
)
RECALL_SECONDS = Histogram("sediment_recall_seconds", "Time of one recall", ["step"])
RECALL_DEGRADED = Counter(
    "sediment_recall_degraded", "Recalls answered without one of their parts", ["reason"]
)
LOG_LAG = Gauge(
    "sediment_log_lag",
    "Records of a partition that the flow of this process has not read yet",
    ["flow", "topic", "partition"],
)
LOG_AWAY_SECONDS = Gauge(
    "sediment_log_away_seconds",
    "How long Kafka has not answered a flow that is reading or writing; 0 when it does",
    ["doing"],
)
LOG_OFFSET_RESETS = Counter(
    "sediment_log_offset_resets",
    "Times a partition was read from its beginning because the wanted offset was gone",
    ["topic"],
)
GATE_FINDINGS = Counter(
    "sediment_gate_findings",
    "What the quality gate found, by rule and what it did",
    ["rule", "mode"],
)
RECONCILED = Counter(
    "sediment_reconciled",
    "New atoms by what became of them: stored, repeated, updated, merged, retracted, history, "
    "rejected_value, forgotten; again when their window was applied before",
    ["result"],
)
RECONCILE_REFUSED = Counter(
    "sediment_reconcile_refused",
    "Parts of a reconcile answer that were not followed",
    ["reason"],
)
RATE_LIMITED = Counter("sediment_rate_limited", "Calls of the query service refused with 429")
RATE_LIMIT_ERRORS = Counter(
    "sediment_rate_limit_errors", "Calls that could not be counted because Redis did not answer"
)

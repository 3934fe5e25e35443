"""When a replay may use several processes, and how their numbers add up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from connectors.settings import load_settings
from flows.replay.counts import Counts
from flows.replay.plan import Span
from flows.replay.processes import why_threads
from flows.replay.running import Share
from stores.generations import AnswerMode

SERVERS: dict[str, Any] = {"brokers": "kafka:9092", "milvus_uri": "http://milvus:19530"}
MODEL: dict[str, Any] = {"llm_base_url": "http://model/v1"}


@pytest.mark.parametrize(
    ("given", "answers", "why"),
    [
        ({}, "recorded", "log in files"),
        ({"milvus_uri": "http://milvus:19530"}, "recorded", "log in files"),
        ({"brokers": "kafka:9092"}, "recorded", "SEDIMENT_MILVUS_URI"),
        ({**SERVERS, **MODEL}, "missing", "SEDIMENT_REDIS_URL"),
        ({**SERVERS, **MODEL}, "fresh", "SEDIMENT_REDIS_URL"),
    ],
)
def test_where_a_part_belongs_to_one_process_its_threads_do_it(
    tmp_path: Path, given: dict[str, Any], answers: AnswerMode, why: str
) -> None:
    assert why in why_threads(load_settings(data_dir=tmp_path, **given), answers)


@pytest.mark.parametrize(
    ("given", "answers"),
    [
        (SERVERS, "missing"),  # by rules: there is no model
        ({**SERVERS, **MODEL}, "recorded"),
        ({**SERVERS, **MODEL, "redis_url": "redis://redis/0"}, "fresh"),
    ],
)
def test_with_servers_for_all_of_it_several_may(
    tmp_path: Path, given: dict[str, Any], answers: AnswerMode
) -> None:
    assert why_threads(load_settings(data_dir=tmp_path, **given), answers) == ""


def test_counts_add_up_and_the_longest_time_stays() -> None:
    one = Counts(read=2, ended=1, saved=3, seconds=2.0, processor_s=1.5, offsets={0: 7})
    other = Counts(read=5, asked=1, seconds=3.0, processor_s=0.5, offsets={1: 9})
    assert one + other == Counts(
        read=7,
        ended=1,
        asked=1,
        saved=3,
        seconds=3.0,
        processor_s=2.0,
        offsets={0: 7, 1: 9},
    )


def test_history_is_snapshot_more_rarely_than_live_traffic(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, snapshot_interval_s=3.0)
    history = Share(settings, "l1", Span({}, {}), {}, "recorded")
    assert history.snapshot_interval == timedelta(seconds=15)
    assert replace(history, follow=True).snapshot_interval == timedelta(seconds=3)

"""``sediment run``: what it is asked for, what it says, and when it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stores.embedded import open_embedded
from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig.events import at, body
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import ScriptedLlm, refused


@pytest.fixture
def ingested(cli: InProcess, tmp_path: Path) -> InProcess:
    """Two messages in the log, of which nothing is processed."""
    events = [
        body("e1", content="I live in Lisbon."),
        body("e2", content="I work as a nurse.", occurred_at=at(60).isoformat()),
    ]
    cli.run("ingest", str(write_lines(tmp_path / "events.jsonl", *events)))
    return cli


def test_it_says_what_it_did_and_what_extracts(ingested: InProcess) -> None:
    printed = ingested.run("run", "--embedded")
    assert printed.out == (
        "reached the end of the log: 2 events read, 1 windows ended, 2 events indexed, "
        "1 scene jobs ended"
    )
    assert "extraction: rule-based, no LLM is configured" in printed.err
    assert "0 windows ended" in ingested.run("run", "--embedded").out


def test_a_request_is_no_event_that_was_indexed(ingested: InProcess) -> None:
    ingested.run("forget", *ANA, "--event", "e1", "--yes")
    assert "3 events read, 1 windows ended, 2 events indexed" in (
        ingested.run("run", "--embedded").out
    )


def test_what_was_given_up_is_said(ingested: InProcess, llm_server: ScriptedLlm) -> None:
    """Below the halt rate the run ends well: without a word it would look as if all were well."""
    llm_server.script = lambda _: refused(401)
    asked = InProcess(ingested.data_dir, {"SEDIMENT_LLM_BASE_URL": llm_server.url})
    printed = asked.run("run", "--embedded").out
    assert "1 windows ended (1 of them given up: `sediment dlq list`)" in printed


def test_the_log_in_the_data_folder_is_used_without_brokers_and_that_is_said(
    ingested: InProcess,
) -> None:
    assert "no brokers are set" in ingested.run("run").err
    assert ingested.json("memories", "list", *ANA)["total"] == 2


def test_snapshots_of_a_kafka_cluster_are_not_gone_on_from(ingested: InProcess) -> None:
    """Whoever tries it in files and then on Kafka has one data folder, unless told otherwise."""
    ingested.run("run", "--embedded")
    mark = ingested.data_dir / "recovery" / "all" / "log"
    assert mark.read_text() == "the log in files\n"
    mark.write_text("Kafka cluster abc\n")
    refused = ingested.run("run", "--embedded", code=2).err
    assert "are of Kafka cluster abc, and this run reads the log in files" in refused
    refused = ingested.run("up", code=2).err
    assert "are of Kafka cluster abc, and this run reads the log in files" in refused


def test_index_and_extraction_one_after_the_other(ingested: InProcess) -> None:
    assert ingested.run("run", "l0", "--embedded").out.endswith("2 events indexed")
    assert ingested.json("memories", "list", *ANA)["total"] == 0
    assert ingested.run("run", "l1", "--embedded").out.endswith("1 windows ended")
    assert ingested.json("memories", "list", *ANA)["total"] == 2
    layers = {item["layer"] for item in ingested.json("recall", "Lisbon", *ANA)["items"]}
    assert "atom" in layers


def test_several_workers_give_the_same_memories(ingested: InProcess, tmp_path: Path) -> None:
    other = InProcess(tmp_path / "other")
    shutil.copytree(ingested.data_dir, other.data_dir)
    ingested.run("run", "--embedded")
    other.run("run", "--embedded", "--workers", "2")
    listing = ("memories", "list", *ANA, "--json")
    assert other.text(*listing) == ingested.text(*listing)


def test_an_unknown_flow_is_exit_code_2(cli: InProcess) -> None:
    printed = cli.run("run", "l9", code=2)
    assert printed.err == "error: FLOW: l9 is not one of all, l0, l1, l2, l3"


def test_the_embedded_log_and_kafka_exclude_each_other(cli: InProcess) -> None:
    assert "exclude" in cli.run("run", "--embedded", "--brokers", "127.0.0.1:9", code=2).err


def test_a_wrong_setting_is_exit_code_2(tmp_path: Path) -> None:
    cli = InProcess(tmp_path, {"SEDIMENT_CONCURRENCY": "many"})
    assert "SEDIMENT_CONCURRENCY" in cli.run("run", "--embedded", code=2).err


def test_a_data_folder_in_use_is_exit_code_2(ingested: InProcess) -> None:
    with open_embedded(ingested.data_dir) as owner:
        printed = ingested.run("run", "--embedded", code=2)
    assert str(owner.owner_pid) in printed.err
    assert "Traceback" not in printed.err


def test_a_store_made_with_other_settings_is_refused_and_both_are_named(
    remembered: InProcess,
) -> None:
    other = InProcess(remembered.data_dir, {"SEDIMENT_ANALYZER": "standard"})
    printed = other.run("run", "--embedded", code=2)
    assert "jieba" in printed.err
    assert "standard" in printed.err


def test_a_broker_that_is_not_there_is_exit_code_3(cli: InProcess, dead_broker: str) -> None:
    printed = cli.run("run", "l1", "--to-end", "--brokers", dead_broker, code=3)
    assert "error: kafka: " in printed.err


@pytest.mark.kafka
def test_topics_that_are_not_there_are_exit_code_2(
    cli: InProcess, kafka_broker: KafkaBroker
) -> None:
    options = ("--to-end", "--brokers", kafka_broker.bootstrap)
    assert "sediment topics create" in cli.run("run", "l1", *options, code=2).err

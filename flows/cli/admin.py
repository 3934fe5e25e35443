"""``sediment topics`` and ``config``: what surrounds the flow."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import SecretStr
from rich.table import Table
from rich.text import Text

from connectors.settings import Settings
from flows.cli.common import Brokers, DataDir, Json, err, out, print_json, settings_from
from stores.errors import UserError

__all__ = ["config", "topics"]

topics = typer.Typer(no_args_is_help=True, help="Create and describe Sediment's Kafka topics.")
config = typer.Typer(no_args_is_help=True, help="Show the effective settings.")

_MASK = "********"


@topics.command("create")
def create(
    brokers: Brokers = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="Partitions of each.")] = None,
    json: Json = False,
) -> None:
    """Create the topics that do not exist. Existing ones are left as they are.

    Exit code 1 when one that exists is not as declared.

    Example: sediment topics create --brokers localhost:9092
    """
    from connectors.kafka.connection import KafkaConnection
    from connectors.kafka.topics import create_topics

    settings = _on_kafka(settings_from(brokers=brokers, topic_partitions=partitions))
    connection = KafkaConnection(settings.brokers, settings.kafka)
    reports = create_topics(connection, settings.topic_prefix, settings.topic_partitions)
    if json:
        print_json([
            {
                "name": report.name,
                "created": report.created,
                "partitions": report.partitions,
                "differences": list(report.differences),
            }
            for report in reports
        ])  # fmt: skip
    else:
        for report in reports:
            what = "created" if report.created else "exists"
            out.print(f"{report.name}: {what}, {report.partitions} partitions")
            for difference in report.differences:
                err.print(f"  {difference}; Sediment does not change it", style="yellow")
    if any(report.differences for report in reports):
        raise typer.Exit(1)


@topics.command("describe")
def describe(brokers: Brokers = None, json: Json = False) -> None:
    """Show every topic as the cluster has it: partitions, offsets, retention.

    Example: sediment topics describe --brokers localhost:9092 --json
    """
    from connectors.kafka.connection import KafkaConnection
    from connectors.kafka.topics import describe_topics

    settings = _on_kafka(settings_from(brokers=brokers))
    states = describe_topics(
        KafkaConnection(settings.brokers, settings.kafka), settings.topic_prefix
    )
    if json:
        print_json([
            {
                "name": state.name,
                "holds": state.spec.holds,
                "key": state.spec.key,
                "partitions": state.partitions,
                "replication": state.replication,
                "offsets": [list(pair) for pair in state.offsets],
                "config": {name: state.config.get(name) for name in state.spec.config()},
            }
            for state in states
        ])  # fmt: skip
        return
    table = Table(expand=True)
    for column in ("topic", "partitions", "records", "policy", "holds"):
        table.add_column(column)
    for state in states:
        records = sum(end - oldest for oldest, end in state.offsets)
        missing = state.partitions == 0
        table.add_row(
            state.name,
            "missing" if missing else str(state.partitions),
            "" if missing else str(records),
            state.config.get("cleanup.policy", ""),
            state.spec.holds,
            style="red" if missing else "",
        )
    out.print(table)


def _on_kafka(settings: Settings) -> Settings:
    if settings.embedded:
        message = "--brokers: topics live on Kafka; name its bootstrap servers"
        raise UserError(message)
    return settings


@config.command("show")
def show(data_dir: DataDir = None, brokers: Brokers = None, json: Json = False) -> None:
    """Show every setting as it is in effect, secrets masked, and its meaning.

    Example: SEDIMENT_PORT=9000 sediment config show
    """
    settings = settings_from(data_dir=data_dir, brokers=brokers)
    if json:
        print_json({name: _shown(getattr(settings, name)) for name in Settings.model_fields})
        return
    table = Table(expand=True)
    table.add_column("setting", no_wrap=True)  # a name that is cut cannot be set
    for column in ("value", "meaning"):
        table.add_column(column, overflow="fold")
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        changed = value != field.get_default(call_default_factory=True)
        table.add_row(
            Text(f"SEDIMENT_{name.upper()}", style="bold" if changed else ""),
            Text(str(_shown(value)), style="bold" if changed else ""),
            Text(field.description or ""),
        )
    out.print(table)


def _shown(value: object) -> object:
    if isinstance(value, SecretStr):
        return _MASK if value.get_secret_value() else ""
    if isinstance(value, dict):  # librdkafka properties: some of them are secrets
        secret = ("password", "secret", "key", "token")
        return {
            name: _MASK if any(word in name.lower() for word in secret) else text
            for name, text in value.items()
        }
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)

"""The published event contract: JSON Schema and AsyncAPI, generated from the record types.

``python -m connectors.contract --write`` writes ``docs/contract/``; ``--check`` says whether
what is there is what would be written. The schemas say everything about a record except:

- the calendar: ``2024-02-30`` has the form of a date;
- the limit of 1 MiB on the whole value, and that it is UTF-8 JSON without lone surrogates;
- that the new text of an edit is more than white space;
- that the scope may be configured to need an optional id (``team_id``).
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from connectors.kafka.deadletter import HEADER_NAMES
from connectors.kafka.topics import TOPICS, TopicSpec
from connectors.settings import Settings
from stores.records import (
    CONTRACT_VERSION,
    MAX_EVENT_BYTES,
    MAX_ID_CHARS,
    Atom,
    ControlRequest,
    L0Event,
    Outcome,
    PersonaJob,
    Profile,
    SceneJob,
    Tombstone,
    schema_of,
)

__all__ = ["CHANNELS", "CONTRACT_DIR", "asyncapi", "contract_files", "event_schema", "main"]

CONTRACT_DIR = Path(__file__).parents[1] / "docs" / "contract"

_SCHEMAS: dict[str, type[BaseModel]] = {
    "l0-event": L0Event,
    "l1-atom": Atom,
    "outcome": Outcome,
    "scene-job": SceneJob,
    "persona-job": PersonaJob,
    "profile": Profile,
    "tombstone": Tombstone,
}

CHANNELS: dict[str, str] = {
    "l0.events": "L0Event",
    "l1.atoms": "Atom",
    "l2.jobs": "SceneJob",
    "l3.jobs": "PersonaJob",
    "profiles": "Profile",
    "tombstones": "Tombstone",
    "outcomes": "Outcome",
    "l0.dlq": "DeadLetter",
    "l1.dlq": "DeadLetter",
    "l2.dlq": "DeadLetter",
    "l3.dlq": "DeadLetter",
}
"""Published topics, without the prefix, and the message each holds."""

_KEYS = {
    "L0Event": (
        "The scope key, UTF-8: the ids that own a memory (by default tenant_id, agent_id, "
        "user_id, in this order) joined by `/`, after `%` in an id became `%25` and then `/` "
        "became `%2F`. Records of one key stay in order."
    ),
    "Atom": "The atom id.",
    "SceneJob": "The scope key, as of l0.events.",
    "PersonaJob": "The scope key, as of l0.events.",
    "Profile": "The profile id.",
    "Tombstone": "The tombstone id.",
    "Outcome": "The scope key, as of l0.events; the outcome id where there is no scope.",
    "DeadLetter": "The key of the original record, untouched; may be absent.",
}

_SUMMARIES = {
    "L0Event": "One event of a conversation; any service may produce it.",
    "Atom": "One version of one fact; the newest record of a key is the atom as it is now.",
    "SceneJob": "A request to bring a scope's scenes up to date.",
    "PersonaJob": "A request to bring a scope's persona up to date.",
    "Profile": "One version of a scene file or a persona; the newest record of a key counts.",
    "Tombstone": "What keeps forgotten or rejected memory out: ids and hashes, no text.",
    "Outcome": "The one end of a window or of a refused record.",
    "DeadLetter": "A record that could not be handled: its original bytes, and why in headers.",
}

_HEADERS = {
    "stage": "Stage that gave up on the record.",
    "topic": "Topic of the original record.",
    "partition": "Its partition, decimal.",
    "offset": "Its offset, decimal.",
    "timestamp-ms": "Its Kafka timestamp, milliseconds since 1970, decimal.",
    "attempt": "How many times it was tried, decimal.",
    "error-class": "Class of the last error.",
    "reason": "Machine-readable reason.",
    "error": "What was wrong, for a person; never conversation text; at most 1000 characters.",
    "first-failed-at": "Time of the first failure, RFC 3339.",
    "last-failed-at": "Time of the last failure, RFC 3339.",
    "pipeline": "Version of the pipeline that gave up.",
    "window-id": "The window that was given up; empty for a record that never reached one.",
}

_NO_CONTROL = {"pattern": r"[\u0000-\u001f\u007f-\u009f]"}
# As `not` and not as one anchored pattern: `$` also matches before a last newline in Python.

_RFC_3339 = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})$"
)

_EXAMPLE = {
    "v": CONTRACT_VERSION,
    "event_id": "7f3c1d0a-1",
    "type": "message",
    "tenant_id": "acme",
    "agent_id": "helper",
    "user_id": "ana",
    "session_id": "2026-03-01-a",
    "role": "user",
    "content": "I moved to Porto last week.",
    "occurred_at": "2026-03-01T09:00:00+01:00",
}


def event_schema() -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of an L0 event."""
    return _published(L0Event, schema_of(L0Event))


def contract_files() -> dict[str, bytes]:
    """Generate every file of ``docs/contract/``, by name; same code, same bytes."""
    files = {
        f"{name}.schema.json": _json(_published(model, schema_of(model)))
        for name, model in _SCHEMAS.items()
    }
    return {**files, "asyncapi.yaml": _yaml(asyncapi())}


def asyncapi() -> dict[str, Any]:
    """Generate the AsyncAPI 3.0 document: topics, keys, messages, who sends and who receives."""
    topics = {spec.name: spec for spec in TOPICS}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Sediment",
            "version": f"{CONTRACT_VERSION}.0.0",
            "description": (
                "Topics of Sediment, seen from Sediment: it receives conversation events and "
                "sends what became of them. Delivery is at least once and ids come from "
                "content: whoever reads these topics upserts by id."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": "localhost:9092",
                "protocol": "kafka",
                "description": "Your Kafka cluster; the host is an example.",
            }
        },
        "channels": {name: _channel(topics[name], message) for name, message in CHANNELS.items()},
        "operations": {
            _operation_id(name): _operation(name, message) for name, message in CHANNELS.items()
        },
        "components": {
            "messages": {name: _message(name) for name in _SUMMARIES},
            "schemas": _component_schemas(),
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check ``docs/contract/``. Exit code 1: it is not what would be written."""
    parser = argparse.ArgumentParser(prog="python -m connectors.contract", description=__doc__)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", action="store_true", help="write docs/contract/")
    choice.add_argument("--check", action="store_true", help="compare, write nothing")
    write = parser.parse_args(arguments).write
    stale = {name: body for name, body in contract_files().items() if _on_disk(name) != body}
    for name, body in stale.items():
        if write:
            CONTRACT_DIR.mkdir(parents=True, exist_ok=True)
            (CONTRACT_DIR / name).write_bytes(body)
        print(f"{'wrote' if write else 'out of date'}: docs/contract/{name}")
    if stale and not write:
        print("run: python -m connectors.contract --write")
        return 1
    return 0


def _on_disk(name: str) -> bytes | None:
    path = CONTRACT_DIR / name
    return path.read_bytes() if path.exists() else None


# --- AsyncAPI ----------------------------------------------------------------------------------


def _channel(spec: TopicSpec, message: str) -> dict[str, Any]:
    config = spec.config()
    topic: dict[str, Any] = {"cleanup.policy": [config["cleanup.policy"]]}
    if "retention.ms" in config:
        topic["retention.ms"] = int(config["retention.ms"])
    topic["max.message.bytes"] = int(config["max.message.bytes"])
    return {
        "address": f"{{prefix}}.{spec.name}",
        "title": spec.name,
        "description": f"{spec.holds}.",
        "parameters": {
            "prefix": {
                "description": str(Settings.model_fields["topic_prefix"].description),
                "default": str(Settings.model_fields["topic_prefix"].default),
            }
        },
        "messages": {message: {"$ref": f"#/components/messages/{message}"}},
        "bindings": {"kafka": {"topicConfiguration": topic, "bindingVersion": "0.5.0"}},
    }


def _operation_id(channel: str) -> str:
    verb = "receive" if channel == "l0.events" else "send"
    return f"{verb}.{channel}"


def _operation(channel: str, message: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "action": _operation_id(channel).partition(".")[0],
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": _SUMMARIES[message],
        "messages": [{"$ref": f"#/channels/{channel}/messages/{message}"}],
    }
    if operation["action"] == "receive":
        group = {
            "type": "string",
            "default": str(Settings.model_fields["consumer_group"].default),
            "description": "Offsets are committed to it for lag tools; it assigns nothing.",
        }
        operation["bindings"] = {"kafka": {"groupId": group, "bindingVersion": "0.5.0"}}
    return operation


def _message(name: str) -> dict[str, Any]:
    message: dict[str, Any] = {
        "name": name,
        "title": name,
        "summary": _SUMMARIES[name],
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{name}"},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": _KEYS[name]},
                "bindingVersion": "0.5.0",
            }
        },
    }
    if name == "L0Event":
        message["description"] = f"At most {MAX_EVENT_BYTES} bytes of UTF-8 JSON."
        message["examples"] = [{"name": "message", "payload": _EXAMPLE}]
    if name == "DeadLetter":
        message["contentType"] = "application/octet-stream"
        message["headers"] = {
            "type": "object",
            "properties": {
                header: {"type": "string", "description": _HEADERS[header.partition("-")[2]]}
                for header in HEADER_NAMES
            },
            "required": list(HEADER_NAMES),
        }
    return message


def _component_schemas() -> dict[str, Any]:
    models = list(_SCHEMAS.values())
    _, together = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    by_name = {model.__name__: model for model in models}
    schemas = {
        name: _published(by_name.get(name), schema) for name, schema in together["$defs"].items()
    }
    schemas["DeadLetter"] = {
        "type": "string",
        "format": "binary",
        "description": "The value of the original record, untouched; may be absent.",
    }
    return schemas


# --- what pydantic's generator cannot say ------------------------------------------------------


def _published(model: type[BaseModel] | None, schema: dict[str, Any]) -> dict[str, Any]:
    done: dict[str, Any] = _completed(schema)
    return {**done, "allOf": _event_is_complete()} if model is L0Event else done


def _completed(node: Any) -> Any:
    """Add the rules that live in validators, drop the titles made of field names."""
    if isinstance(node, list):
        return [_completed(item) for item in node]
    if not isinstance(node, dict):
        return node
    done = {key: _completed(value) for key, value in node.items()}
    for field in done.get("properties", {}).values():
        field.pop("title", None)
    if isinstance(text := done.get("description"), str):
        done["description"] = inspect.cleandoc(text).replace("``", "`")
    if done.get("maxLength") == MAX_ID_CHARS:
        done["not"] = _NO_CONTROL
    if done.get("format") == "date-time":
        done["pattern"] = _RFC_3339
    if done.get("title") == ControlRequest.__name__:
        done["allOf"] = _request_is_complete()
    return done


def _event_is_complete() -> list[dict[str, Any]]:
    """Say what each type of event needs; a message is the default type."""

    def present(field: str) -> dict[str, Any]:
        return {"required": [field], "properties": {field: {"not": {"type": "null"}}}}

    def only_for(types: list[str], then: dict[str, Any]) -> dict[str, Any]:
        return {
            "if": {"required": ["type"], "properties": {"type": {"enum": types}}},
            "then": then,
        }

    content = {"anyOf": [present("content"), present("tool_calls")]}
    return [
        {
            "if": {"properties": {"type": {"const": "message"}}},
            "then": {"allOf": [present("role"), content]},
        },
        only_for(["forget", "reject", "edit"], present("request")),
        only_for(
            ["reject", "edit"],
            {"properties": {"request": {"properties": {"target": {"const": "atom"}}}}},
        ),
        only_for(
            ["edit"],
            {
                **present("content"),
                "properties": {
                    "content": {"not": {"enum": [None, "", []]}},
                    "request": {"properties": {"atom_ids": {"maxItems": 1}}},
                },
            },
        ),
    ]


def _request_is_complete() -> list[dict[str, Any]]:
    """Say that a request about events or atoms names at least one."""
    return [
        {
            "if": {"properties": {"target": {"const": target}}},
            "then": {
                "required": [f"{target}_ids"],
                "properties": {f"{target}_ids": {"minItems": 1}},
            },
        }
        for target in ("event", "atom")
    ]


# --- bytes -------------------------------------------------------------------------------------


def _json(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _yaml(document: dict[str, Any]) -> bytes:
    import yaml  # a development dependency: only who generates the contract needs it

    class Plain(yaml.SafeDumper):
        """Writes shared parts out each time instead of as anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    body = yaml.dump(
        document, Dumper=Plain, sort_keys=False, allow_unicode=True, width=100, encoding="utf-8"
    )
    head = b"# Generated by `python -m connectors.contract --write`; do not edit.\n"
    return head + bytes(body)


if __name__ == "__main__":
    sys.exit(main())

"""How Sediment talks to Kafka: the librdkafka properties of each kind of client, in one place."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from connectors.log import MAX_RECORD_BYTES
from stores.errors import LogAway, SedimentError, SettingsError

__all__ = [
    "KafkaConnection",
    "is_hopeless",
    "kafka_error",
    "kafka_failure",
    "topic_identity",
    "topic_partitions",
    "unavailable",
]

logger = logging.getLogger(__name__)

_LOOK_OUT_MS = 5_000
"""How long a broker may hold the question of a reader that follows while nothing comes. A record
that comes is answered with at once; ten such questions a second were the most that an idle
installation asked of its broker."""
_FRAMING_BYTES = 64 * 1024  # record and batch overhead around a record of the largest size


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """A Kafka cluster and how to reach it.

    :arg brokers: bootstrap servers, ``host:port`` joined by commas.
    :arg properties: further librdkafka properties (security, TLS, client ids). They win over
        our defaults, but not over those that our promises rest on.
    :arg request_timeout_s: time limit of a blocking question to the brokers. One is asked only
        when something is opened, never while records flow.
    :arg patience_s: for how long a dataflow that runs waits for brokers that are away.
    """

    brokers: str
    properties: Mapping[str, str] = field(default_factory=dict)
    request_timeout_s: float = 15.0
    patience_s: float = 60.0

    def admin(self) -> AdminClient:
        """Give the client that asks about the cluster: one in the process, kept to its end.

        One that the garbage collector finds while a question is open may be destroyed in a thread
        of its own, because answers run Python there: librdkafka then aborts the process.
        """
        return _admin(self.brokers, tuple(sorted(self.properties.items())))

    def consumer(self, group: str, *, follow: bool = False) -> dict[str, Any]:
        """Give the properties of a consumer of one assigned partition.

        Its memory is bounded: librdkafka reads ahead 16 MiB at most, whether or not the
        dataflow takes anything.

        :arg follow: it reads on for ever, and so waits most of the time.
        """
        defaults: dict[str, Any] = {
            "queued.max.messages.kbytes": 16 * 1024,
            "fetch.queue.backoff.ms": 10,
        }
        if follow:
            defaults["fetch.wait.max.ms"] = _LOOK_OUT_MS
        promised = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,  # the end can be a transaction marker, not a record
            "auto.offset.reset": "error",  # we say it aloud and count it
            "allow.auto.create.topics": False,
        }
        return self._with(defaults, promised)

    def producer(self, patience_s: float = 60.0) -> dict[str, Any]:
        """Give the properties of an idempotent producer.

        It splits keys as Kafka's Java producer does. A record that is not acknowledged within
        ``patience_s`` seconds is an error; until then it is sent again, in order.
        """
        defaults = {
            "compression.type": "lz4",
            "linger.ms": 5,
            "message.timeout.ms": round(patience_s * 1000),
            "queue.buffering.max.kbytes": 64 * 1024,
        }
        promised = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "message.max.bytes": MAX_RECORD_BYTES + _FRAMING_BYTES,
        }
        return self._with(defaults, promised)

    def _with(self, defaults: dict[str, Any], promised: dict[str, Any]) -> dict[str, Any]:
        return {
            "reconnect.backoff.max.ms": 2000,
            "error_cb": _log_error,
            "logger": _librdkafka,
            **defaults,
            **self.properties,
            "bootstrap.servers": self.brokers,
            **promised,
        }


@functools.cache
def _admin(brokers: str, properties: tuple[tuple[str, str], ...]) -> AdminClient:
    made = KafkaConnection(brokers, dict(properties))._with({"log_level": 0}, {})
    del made["error_cb"], made["logger"]  # nobody polls it: what it has to say would pile up
    return AdminClient(made)


class _Seldom(logging.Filter):
    """Lets one kind of line through once in ten seconds.

    Otherwise a broker that is away is said twenty times a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().split(" ", 1)[0]  # e.g. FAIL, ERROR, with the client's name
        now = time.monotonic()
        if now < self._next.get(kind, 0.0):
            return False
        self._next[kind] = now + _SELDOM_S
        return True


_SELDOM_S = 10.0
_librdkafka = logging.getLogger(f"{__name__}.librdkafka")
_librdkafka.addFilter(_Seldom())
logger.addFilter(_Seldom())  # a process has many clients, and each says it


def _log_error(error: KafkaError) -> None:
    """Log what librdkafka does not log itself; it keeps trying. Fatal ones surface in the calls."""
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        logger.warning("kafka: %s; still trying", error.str())


def kafka_error(error: BaseException) -> KafkaError:
    """Take the :class:`KafkaError` out of a :class:`KafkaException`."""
    inner = error.args[0] if error.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


def unavailable(message: str) -> SedimentError:
    """Build the error of a cluster that does not do what it was asked."""
    service = "kafka"
    return LogAway(service, message)


_HOPELESS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
_MISSING = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})


def is_hopeless(error: KafkaError) -> bool:
    """Say whether waiting does not mend it; librdkafka itself calls few of these fatal."""
    return error.fatal() or error.code() in _HOPELESS


def kafka_failure(what: str, topic: str, error: KafkaError) -> SedimentError:
    """Build the error of something that failed: to be waited out, or for a person to repair.

    :arg what: what failed, without what is in any record.
    """
    if error.code() in _MISSING:
        return SettingsError(f"topic {topic} does not exist; make it with `sediment topics create`")
    if error.code() in _HOPELESS:
        message = f"{what}: {error.str()}; check SEDIMENT_KAFKA and what the user may do there"
        return SettingsError(message)
    return unavailable(f"{what}: {error.str()}")


def topic_partitions(connection: KafkaConnection, topic: str) -> int:
    """Count the partitions of a topic; never creates it, whatever the broker's settings are.

    Raises :class:`~stores.errors.SettingsError` when there is no such topic, and
    :class:`~stores.errors.ServiceUnavailable` when no broker answers.
    """
    admin = connection.admin()
    topics = TopicCollection([topic])
    described = admin.describe_topics(topics, request_timeout=connection.request_timeout_s)
    try:
        return len(described[topic].result().partitions)
    except KafkaException as error:
        what = f"topic {topic}"
        raise kafka_failure(what, topic, kafka_error(error)) from None


def topic_identity(connection: KafkaConnection, topic: str) -> str:
    """Tell a topic from one of its name in another cluster, and from one made anew.

    Raises as :func:`topic_partitions` does. Brokers before 2.8 give topics no id.
    """
    admin = connection.admin()
    timeout = connection.request_timeout_s
    cluster = admin.describe_cluster(request_timeout=timeout)
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout)
    try:
        topic_id = described[topic].result().topic_id
        return f"Kafka cluster {cluster.result().cluster_id}, topic {topic} ({topic_id})"
    except KafkaException as error:
        what = f"topic {topic}"
        raise kafka_failure(what, topic, kafka_error(error)) from None

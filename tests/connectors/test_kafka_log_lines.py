"""What Kafka's client says about itself is said seldom."""

from __future__ import annotations

import logging
from collections import Counter

from confluent_kafka import KafkaError

from connectors.kafka.connection import _log_error, logger


def test_brokers_that_are_away_are_told_once_however_many_clients_a_process_has() -> None:
    said: Counter[str] = Counter()

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said[record.getMessage()] += 1

    handler = Counting()
    logger.addHandler(handler)
    try:
        for _ in range(60):
            _log_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    finally:
        logger.removeHandler(handler)
    assert sum(said.values()) <= 1, "at most: another test of this process may just have said it"

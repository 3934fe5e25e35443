"""The client that asks about the cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.rig.kafka import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DROPPED_WITH_A_QUESTION_OPEN = """
import gc, sys
from concurrent.futures import wait
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from connectors.kafka.connection import KafkaConnection

answers = []
made = AdminClient._make_futmap_result_from_list

def told(*arguments):
    gc.collect()
    made(*arguments)

def dropped(bootstrap, topic):
    ring = [KafkaConnection(bootstrap).admin()]
    ring.append(ring)  # as a traceback holds what its frames hold
    answers.extend(ring[0].describe_topics(TopicCollection([topic])).values())

AdminClient._make_futmap_result_from_list = staticmethod(told)
gc.disable()
dropped(*sys.argv[1:])
assert wait(answers, timeout=60).done
"""


def test_one_that_is_dropped_while_a_question_is_open_ends_nothing(
    kafka_broker: KafkaBroker,
) -> None:
    """As at the end of a flow. Destroyed by a thread of its own, it would abort the process."""
    command = (sys.executable, "-c", DROPPED_WITH_A_QUESTION_OPEN)
    arguments = kafka_broker.bootstrap, kafka_broker.create_topic()
    done = subprocess.run([*command, *arguments], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()

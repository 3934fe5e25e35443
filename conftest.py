"""Fixtures of the test rig: real servers, started and stopped by the tests that use them."""

from hypothesis import settings

pytest_plugins = [
    "tests.rig.embedded_once",
    "tests.rig.kafka",
    "tests.rig.redis",
    "tests.rig.scripted_llm",
]

# How long an example takes is the machine's business: nothing is asserted about time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

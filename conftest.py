"""Fixtures of the test rig: real servers, started and stopped by the tests that use them."""

pytest_plugins = ["tests.rig.kafka", "tests.rig.redis", "tests.rig.scripted_llm"]

"""What every process of a flow would load anew: imported once, before any is forked.

Most of it is the client of the model, which the product loads only where it asks one.
"""

from __future__ import annotations

import gc

import openai

from connectors.tokens import count_tokens
from tests.faults import flow_process

__all__ = ["flow_process"]

count_tokens("loads the vocabulary")
assert openai.AsyncOpenAI(api_key="-", base_url="http://127.0.0.1:1").chat.completions
gc.freeze()  # or each process copies all of it when it first collects

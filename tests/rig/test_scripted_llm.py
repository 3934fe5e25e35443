"""The scripted server is what other tests stand on, so what it promises is tested too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import httpx
import numpy as np
import openai
import pytest

from tests.rig import scripted_llm as rig
from tests.rig.scripted_llm import ScriptedLlm, Step, in_turn, says, when

Post = Callable[..., httpx.Response]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


@pytest.fixture
def post(http: httpx.Client, llm_server: ScriptedLlm) -> Post:
    def send(text: str = "hello") -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        return http.post(f"{llm_server.url}/chat/completions", json=body)

    return send


def text_of(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def test_the_official_client_understands_it(llm_server: ScriptedLlm) -> None:
    with openai.OpenAI(base_url=llm_server.url, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["scripted"]
        chat = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}]
        )
        assert chat.model == "scripted"
        assert chat.choices[0].message.content == '{"memories": []}'
        vectors = client.embeddings.create(
            model="m", input=["a b", "c"], dimensions=16, encoding_format="float"
        )
        assert [len(item.embedding) for item in vectors.data] == [16, 16]
        llm_server.script = in_turn(rig.rate_limited(9))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="m", messages=[])
        assert caught.value.response.headers["retry-after"] == "9"


def test_steps_go_in_turn_and_then_the_default(llm_server: ScriptedLlm, post: Post) -> None:
    llm_server.answer = lambda body: body["messages"][0]["content"].upper()
    llm_server.script = in_turn(rig.server_error(), says("first"), None)
    assert post().status_code == 500
    assert [text_of(post()) for _ in range(3)] == ["first", "HELLO", "HELLO"]


def test_only_the_picked_requests_are_scripted(llm_server: ScriptedLlm, post: Post) -> None:
    llm_server.script = when(lambda request: "poison" in request.prompt(), rig.refused(400))
    assert [post(text).status_code for text in ("a", "poison", "b")] == [200, 400, 200]


def test_random_failures_do_not_depend_on_the_order(llm_server: ScriptedLlm, post: Post) -> None:
    def failed(order: Sequence[int], seed: int = 1) -> set[int]:
        llm_server.script = rig.at_random(0.3, seed, rig.server_error())
        return {number for number in order if post(str(number)).status_code == 500}

    numbers = range(60)
    assert failed(numbers) == failed(numbers[::-1])
    assert 5 < len(failed(numbers)) < 35
    assert failed(numbers) != failed(numbers, seed=2)


def test_a_cut_body_is_a_broken_connection(llm_server: ScriptedLlm, post: Post) -> None:
    llm_server.script = in_turn(rig.cut_off())
    with pytest.raises(httpx.RemoteProtocolError):
        post()
    assert post().status_code == 200


def test_it_ends_while_a_request_hangs() -> None:
    async def run() -> None:
        with rig.scripted_llm(lambda _: rig.hang()) as server:
            async with httpx.AsyncClient() as client:
                call = asyncio.create_task(client.post(f"{server.url}/chat/completions", json=CHAT))
                while not server.in_flight:
                    await asyncio.sleep(0.01)
        with pytest.raises((httpx.HTTPError, asyncio.CancelledError)):
            await call

    asyncio.run(run())


def test_what_it_saw_is_kept(llm_server: ScriptedLlm, post: Post) -> None:
    llm_server.script = in_turn(Step(latency_s=0.02), rig.server_error())
    post("one")
    post("two")
    first, second = llm_server.requests
    assert (first.number, first.body["messages"][0]["content"], first.status) == (0, "one", 200)
    assert (second.number, second.prompt(), second.status) == (1, "two", 500)
    assert first.ended is not None
    assert first.started < first.ended <= second.started
    assert first.headers["content-type"] == "application/json"
    llm_server.clear()
    assert (llm_server.count(), llm_server.max_in_flight) == (0, 0)


def test_an_unknown_path_is_404(llm_server: ScriptedLlm, http: httpx.Client) -> None:
    assert http.get(f"{llm_server.url}/nothing").status_code == 404


REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def test_600_requests_at_once(llm_server: ScriptedLlm) -> None:
    async def send() -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", llm_server.port)
        writer.write(REQUEST)
        return reader, writer

    async def run() -> list[bytes]:
        llm_server.script = lambda _: rig.hang()
        hanging = await asyncio.gather(*[send() for _ in range(600)])
        while llm_server.in_flight < 600:
            await asyncio.sleep(0.01)
        llm_server.script = None
        served = await asyncio.gather(*[send() for _ in range(600)])
        answers = [await reader.readline() for reader, _ in served]
        for _, writer in [*hanging, *served]:
            writer.close()
        return answers

    assert set(asyncio.run(run())) == {b"HTTP/1.1 200 Scripted\r\n"}
    assert llm_server.max_in_flight > 600


def test_the_same_words_are_near() -> None:
    near, same, far = (
        rig.bag_of_words(text, 128)
        for text in ("the user keeps bees", "bees the user KEEPS!", "rain in Porto tomorrow")
    )
    assert near @ same > 0.99
    assert near @ far < 0.5
    assert rig.bag_of_words("他住在里斯本", 128) @ rig.bag_of_words("里斯本", 128) > 0.5
    np.testing.assert_allclose(np.linalg.norm(rig.bag_of_words("", 8)), 1.0, atol=1e-6)

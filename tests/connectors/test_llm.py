from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.llm import OpenAIChat, RecordedChat, make_chat, parse_json_answer
from connectors.metrics import ANSWERS_RECORDED_HITS, LLM_CALLS, LLM_TOKENS
from connectors.settings import Settings
from stores.answers import SqliteAnswers
from stores.errors import (
    LogAway,
    MalformedAnswer,
    OversizedInput,
    RateLimited,
    RequestRefused,
    RequestTimedOut,
    SedimentError,
    ServiceUnavailable,
    StoreMismatch,
)
from stores.protocols import ChatAnswer, ChatRequest
from tests.rig import scripted_llm as rig
from tests.rig.scripted_llm import Received, ScriptedLlm, Step, in_turn, says, when

SECRET = "my sister Mireille keeps bees"
SCHEMA = {
    "type": "object",
    "properties": {"memories": {"type": "array", "items": {"type": "string"}}},
    "required": ["memories"],
    "additionalProperties": False,
}


def asking(text: str = SECRET, schema: dict[str, Any] | None = None) -> ChatRequest:
    return ChatRequest(
        model="scripted",
        messages=(("system", "answer in JSON"), ("user", text)),
        prompt_version="test/1",
        schema=schema,
        max_tokens=50,
    )


def client(server: ScriptedLlm, timeout_s: float = 20.0) -> OpenAIChat:
    return OpenAIChat("scripted", base_url=server.url, timeout_s=timeout_s, clock=lambda: 20.0)


def ask(chat: OpenAIChat | RecordedChat, request: ChatRequest) -> ChatAnswer:
    return asyncio.run(chat.complete(request))


def failing(server: ScriptedLlm, *steps: Step, timeout_s: float = 20.0) -> SedimentError:
    server.script = in_turn(*steps)
    with pytest.raises(SedimentError) as caught:
        ask(client(server, timeout_s), asking())
    return caught.value


# --- asking ----------------------------------------------------------------------------------


def test_an_answer_comes_with_its_tokens_and_the_request_is_what_was_asked(
    llm_server: ScriptedLlm,
) -> None:
    llm_server.answer = lambda body: json.dumps({"said": body["messages"][1]["content"]})
    before = LLM_TOKENS.labels("scripted", "prompt")._value.get()
    answer = ask(client(llm_server), asking())
    assert json.loads(answer.text) == {"said": SECRET}
    assert (answer.model, answer.finish_reason, answer.recorded) == ("scripted", "stop", False)
    assert answer.prompt_tokens > 0
    assert answer.completion_tokens > 0
    assert LLM_TOKENS.labels("scripted", "prompt")._value.get() == before + answer.prompt_tokens
    sent = llm_server.requests[0].body
    assert sent == {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "answer in JSON"},
            {"role": "user", "content": SECRET},
        ],
        "max_tokens": 50,
        "temperature": 0.0,
    }


def test_a_key_is_sent_as_bearer_and_no_key_is_no_obstacle(llm_server: ScriptedLlm) -> None:
    ask(client(llm_server), asking())
    ask(OpenAIChat("scripted", base_url=llm_server.url, api_key="k-1"), asking())
    headers = [request.headers["authorization"] for request in llm_server.requests]
    assert headers == ["Bearer no-key", "Bearer k-1"]


def test_a_schema_is_sent_strict(llm_server: ScriptedLlm) -> None:
    ask(client(llm_server), asking(schema=SCHEMA))
    assert llm_server.requests[0].body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "test-1", "strict": True, "schema": SCHEMA},
    }


def formats(server: ScriptedLlm) -> list[str]:
    return [
        request.body.get("response_format", {}).get("type", "plain") for request in server.requests
    ]


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_server_without_schemas_is_asked_more_simply_and_remembered(
    llm_server: ScriptedLlm, status: int
) -> None:
    llm_server.script = when(lambda r: "response_format" in r.body, rig.refused(status))
    chat = client(llm_server)
    ask(chat, asking(schema=SCHEMA))
    assert formats(llm_server) == ["json_schema", "json_object", "plain"]
    ask(chat, asking("again", schema=SCHEMA))
    assert formats(llm_server)[3:] == ["plain"]


def test_a_server_that_breaks_over_the_format_is_asked_more_simply(llm_server: ScriptedLlm) -> None:
    """As the server of llama-cpp-python does: 500, with its validation error as the message."""
    told = "1 validation error: {'loc': ('body', 'response_format'), 'input': 'json_schema'}"

    def knows_objects_only(request: Received) -> bool:
        return bool(request.body.get("response_format", {}).get("type") == "json_schema")

    llm_server.script = when(knows_objects_only, rig.refused(500, message=told))
    chat = client(llm_server)
    ask(chat, asking(schema=SCHEMA))
    ask(chat, asking("again", schema=SCHEMA))
    assert formats(llm_server) == ["json_schema", "json_object", "json_object"]


def test_an_outage_is_not_taken_for_a_format_that_is_not_known(llm_server: ScriptedLlm) -> None:
    llm_server.script = in_turn(rig.refused(500, message="the worker died"))
    with pytest.raises(ServiceUnavailable):
        ask(client(llm_server), asking(schema=SCHEMA))
    assert formats(llm_server) == ["json_schema"]


def test_a_server_with_json_mode_only_stays_in_json_mode(llm_server: ScriptedLlm) -> None:
    def only_objects(request: Received) -> bool:
        return bool(request.body.get("response_format", {}).get("type") == "json_schema")

    llm_server.script = when(only_objects, rig.refused(400))
    chat = client(llm_server)
    ask(chat, asking(schema=SCHEMA))
    ask(chat, asking(schema=SCHEMA))
    assert formats(llm_server) == ["json_schema", "json_object", "json_object"]


def test_a_request_that_is_refused_in_every_form_changes_nothing(llm_server: ScriptedLlm) -> None:
    llm_server.script = in_turn(*[rig.refused(400)] * 3)
    chat = client(llm_server)
    with pytest.raises(RequestRefused):
        ask(chat, asking(schema=SCHEMA))
    ask(chat, asking(schema=SCHEMA))
    assert formats(llm_server)[3:] == ["json_schema"]


def test_a_model_with_other_parameter_names_is_understood(llm_server: ScriptedLlm) -> None:
    llm_server.script = in_turn(
        rig.refused(400, "unsupported_parameter", "max_tokens"),
        rig.refused(400, "unsupported_value", "temperature"),
    )
    chat = client(llm_server)
    ask(chat, asking(schema=SCHEMA))
    ask(chat, asking(schema=SCHEMA))
    last = llm_server.requests[-1].body
    assert llm_server.count() == 4
    assert last["max_completion_tokens"] == 50
    assert "max_tokens" not in last
    assert "temperature" not in last
    assert last["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("step", "kind", "wait"),
    [
        (rig.rate_limited(7), RateLimited, 7.0),
        (rig.rate_limited("Thu, 01 Jan 1970 00:01:00 GMT"), RateLimited, 40.0),
        (rig.rate_limited(), RateLimited, None),
        (rig.rate_limited("soon"), RateLimited, None),
        (rig.refused(429, "insufficient_quota"), RateLimited, None),
        (rig.server_error(500), ServiceUnavailable, None),
        (rig.server_error(503), ServiceUnavailable, None),
        (rig.refused(408), RequestTimedOut, None),
        (rig.cut_off(), ServiceUnavailable, None),
        (Step(raw=b"<html>gateway</html>"), ServiceUnavailable, None),
        (Step(raw=b"[]"), ServiceUnavailable, None),
        (Step(raw=b'{"choices": []}'), ServiceUnavailable, None),
        (
            Step(status=429, headers={"retry-after-ms": "250", "retry-after": "9"}),
            RateLimited,
            0.25,
        ),
    ],
)
def test_what_may_pass_is_transient(
    llm_server: ScriptedLlm, step: Step, kind: type[SedimentError], wait: float | None
) -> None:
    error = failing(llm_server, step)
    assert type(error) is kind
    assert getattr(error, "retry_after", None) == wait
    assert llm_server.count() == 1  # the stage retries, not the client


@pytest.mark.parametrize("status", [401, 403, 404, 409, 418])
def test_other_4xx_are_refusals_with_the_status(llm_server: ScriptedLlm, status: int) -> None:
    error = failing(llm_server, rig.refused(status, "invalid_api_key"))
    assert isinstance(error, RequestRefused)
    assert error.status == status
    assert "invalid_api_key" in str(error)


TOO_LONG = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."


@pytest.mark.parametrize(
    "step",
    [
        rig.refused(400, "context_length_exceeded"),
        rig.refused(413),
        rig.refused(400, 400, message=TOO_LONG),  # vLLM repeats the status as its code
        rig.refused(400, message="the request exceeds the available context size"),
        rig.refused(500, message="prompt is too long: context window exceeded"),
    ],
)
def test_a_prompt_over_the_models_limit_is_oversized(llm_server: ScriptedLlm, step: Step) -> None:
    assert isinstance(failing(llm_server, step), OversizedInput)


def test_a_prompt_over_the_limit_is_not_asked_in_simpler_forms(llm_server: ScriptedLlm) -> None:
    llm_server.script = in_turn(rig.refused(400, 400, message=TOO_LONG))
    with pytest.raises(OversizedInput):
        ask(client(llm_server), asking(schema=SCHEMA))
    assert formats(llm_server) == ["json_schema"]


@pytest.mark.parametrize(
    ("step", "says_so"),
    [
        (says('{"memories": ["a', finish_reason="length"), "cut off at 50 tokens"),
        (says("", finish_reason="content_filter"), "withheld"),
        (rig.refusal(), "refusal"),
        (says("  \n"), "empty"),
    ],
)
def test_an_answer_that_is_none_is_malformed(
    llm_server: ScriptedLlm, step: Step, says_so: str
) -> None:
    error = failing(llm_server, step)
    assert isinstance(error, MalformedAnswer)
    assert says_so in str(error)


def test_a_hanging_server_times_out(llm_server: ScriptedLlm) -> None:
    assert isinstance(failing(llm_server, rig.hang(), timeout_s=0.2), RequestTimedOut)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with rig.scripted_llm() as server:
        gone = client(server)
    with pytest.raises(ServiceUnavailable, match=r"^llm: "):
        ask(gone, asking())


def test_no_error_tells_what_was_said(llm_server: ScriptedLlm) -> None:
    echo = orjson.dumps({"error": {"message": SECRET, "code": SECRET, "type": SECRET}})
    for status in (400, 401, 429, 500):
        error = failing(llm_server, Step(status=status, raw=echo))
        assert SECRET not in f"{error} {error!r} {error.__cause__}"
        assert pickle.loads(pickle.dumps(error)).message == error.message


def test_calls_are_counted_by_result(llm_server: ScriptedLlm) -> None:
    def value(result: str) -> float:
        return float(LLM_CALLS.labels("scripted", result)._value.get())

    before = {name: value(name) for name in ("ok", "rate_limited", "malformed_answer")}
    failing(llm_server, rig.rate_limited(1))
    failing(llm_server, says(""))
    ask(client(llm_server), asking())
    assert {name: value(name) - was for name, was in before.items()} == dict.fromkeys(before, 1.0)


def test_one_client_serves_several_loops_and_leaves_no_connection(llm_server: ScriptedLlm) -> None:
    chat = client(llm_server)
    done: list[ChatAnswer] = []

    def in_own_loop() -> None:
        done.append(asyncio.run(chat.complete(asking())))

    threads = [threading.Thread(target=in_own_loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 3
    assert ask(chat, asking()).text == done[0].text  # unclosed sockets would warn, so fail


def test_a_closed_client_opens_again(llm_server: ScriptedLlm) -> None:
    async def twice() -> None:
        chat = client(llm_server)
        await chat.complete(asking())
        await chat.aclose()
        await chat.aclose()
        await chat.complete(asking())

    asyncio.run(twice())
    assert llm_server.count() == 2


def test_cancelling_the_task_cancels_the_call(llm_server: ScriptedLlm) -> None:
    llm_server.script = lambda _: rig.hang()

    async def cancel() -> None:
        task = asyncio.create_task(client(llm_server).complete(asking()))
        while not llm_server.in_flight:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while llm_server.in_flight:
            await asyncio.sleep(0.01)

    asyncio.run(cancel())


def test_lone_surrogates_are_replaced_both_ways(llm_server: ScriptedLlm) -> None:
    body = {"choices": [{"message": {"content": "half \ud83d"}}]}
    llm_server.script = in_turn(Step(raw=json.dumps(body).encode()))
    answer = ask(client(llm_server), asking("half \ud83d"))
    assert answer.text == "half \ufffd"
    assert llm_server.requests[0].body["messages"][1]["content"] == "half \ufffd"


# --- recording -------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> SqliteAnswers:
    return SqliteAnswers(tmp_path / "answers.sqlite")


def together(*calls: Coroutine[Any, Any, ChatAnswer]) -> list[ChatAnswer | BaseException]:
    async def run() -> list[ChatAnswer | BaseException]:
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def test_nothing_is_asked_twice_also_by_the_next_process(
    llm_server: ScriptedLlm, journal: SqliteAnswers
) -> None:
    hits = ANSWERS_RECORDED_HITS._value.get()
    first = ask(RecordedChat(client(llm_server), journal), asking())
    again = ask(RecordedChat(client(llm_server), journal), asking())
    assert llm_server.count() == 1
    assert (first.recorded, again.recorded) == (False, True)
    assert (again.text, again.prompt_tokens) == (first.text, first.prompt_tokens)
    assert ANSWERS_RECORDED_HITS._value.get() == hits + 1
    ask(RecordedChat(client(llm_server), journal), asking("something else"))
    assert llm_server.count() == 2


def test_an_answer_is_recorded_before_it_is_returned(llm_server: ScriptedLlm) -> None:
    class Down:
        def get(self, request_hash: str) -> ChatAnswer | None:
            return None

        def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
            return [None for _ in request_hashes]

        def put(
            self,
            request_hash: str,
            prompt_version: str,
            answer: ChatAnswer,
            about: Sequence[str] = (),
        ) -> None:
            raise ServiceUnavailable("redis", "scripted")

        def forget(self, about: Sequence[str]) -> int:
            return 0

    with pytest.raises(ServiceUnavailable):
        ask(RecordedChat(client(llm_server), Down()), asking())


def test_an_answer_that_could_not_be_recorded_is_not_paid_again(
    journal: SqliteAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage comes again and again while the log is away."""
    put, attempts = SqliteAnswers.put, list[str]()

    def late(self: SqliteAnswers, key: str, *arguments: Any, **more: Any) -> None:
        attempts.append(key)
        if len(attempts) < 4:
            raise LogAway("kafka", "scripted")
        put(self, key, *arguments, **more)

    monkeypatch.setattr(SqliteAnswers, "put", late)
    fake = Fake()
    chat = RecordedChat(fake, journal)
    for _ in range(3):
        with pytest.raises(LogAway):
            ask(chat, asking())
    assert (ask(chat, asking()).text, fake.asked) == ("answer 1", 1)
    assert ask(chat, asking()).recorded
    ask(chat, asking("something else"))
    assert fake.asked == 2


class Fake:
    """A chat of our own, where a server cannot give what the test needs."""

    name = "fake"

    def __init__(self, finish_reason: str = "stop") -> None:
        self.asked = 0
        self.finish_reason = finish_reason
        self.during: Callable[[], None] = lambda: None

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        self.asked += 1
        self.during()
        text = f"answer {self.asked}"
        return ChatAnswer(text, "fake", 1, 1, 0.0, finish_reason=self.finish_reason)


def test_only_whole_answers_are_recorded(journal: SqliteAnswers) -> None:
    fake = Fake("length")
    chat = RecordedChat(fake, journal)
    assert [ask(chat, asking()).text for _ in range(2)] == ["answer 1", "answer 2"]


def test_the_answer_another_process_recorded_first_is_the_one_used(journal: SqliteAnswers) -> None:
    fake = Fake()
    theirs = ChatAnswer("theirs", "fake", 1, 1, 0.0)
    fake.during = lambda: journal.put(asking().request_hash(), "test/1", theirs)
    answer = ask(RecordedChat(fake, journal), asking())
    assert (answer.text, answer.recorded) == ("theirs", True)


def test_identical_requests_at_once_ask_once(
    llm_server: ScriptedLlm, journal: SqliteAnswers
) -> None:
    llm_server.script = lambda _: rig.slow(0.1)
    chat = RecordedChat(client(llm_server), journal)
    answers = together(*[chat.complete(asking()) for _ in range(20)])
    assert llm_server.count() == 1
    assert len({answer.text for answer in answers if isinstance(answer, ChatAnswer)}) == 1


def test_identical_requests_at_once_fail_once(
    llm_server: ScriptedLlm, journal: SqliteAnswers
) -> None:
    llm_server.script = lambda _: Step(latency_s=0.1, status=500, raw=b"{}")
    chat = RecordedChat(client(llm_server), journal)
    errors = together(*[chat.complete(asking()) for _ in range(5)])
    assert [type(error) for error in errors] == [ServiceUnavailable] * 5
    assert llm_server.count() == 1
    llm_server.script = None
    assert ask(chat, asking()).recorded is False  # an error is not recorded


def test_one_that_is_cancelled_leaves_the_others_their_answer(
    llm_server: ScriptedLlm, journal: SqliteAnswers
) -> None:
    llm_server.script = in_turn(rig.hang())
    chat = RecordedChat(client(llm_server), journal)

    async def run() -> tuple[ChatAnswer, ChatAnswer]:
        first = asyncio.create_task(chat.complete(asking()))
        others = [asyncio.create_task(chat.complete(asking())) for _ in range(3)]
        while not llm_server.in_flight:
            await asyncio.sleep(0.01)
        others[0].cancel()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await others[1], await others[2]

    one, other = asyncio.run(run())
    assert one.text == other.text
    assert llm_server.count() == 2


class Watched(SqliteAnswers):
    """A journal that notes who looks into it, and cannot read one of its answers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.threads: list[str] = []
        self.looks: list[int] = []
        self.unreadable = ""

    def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
        self.threads.append(threading.current_thread().name)
        self.looks.append(len(request_hashes))
        if self.unreadable in request_hashes:
            message = "cannot be read"
            raise StoreMismatch(message)
        return super().get_many(request_hashes)


def test_answers_wanted_at_once_are_looked_up_together_beside_the_loop(tmp_path: Path) -> None:
    journal = Watched(tmp_path / "answers.sqlite")
    chat = RecordedChat(Fake(), journal)
    first = together(*[chat.complete(asking(str(number))) for number in range(40)])
    journal.threads.clear()
    journal.looks.clear()
    again = together(*[chat.complete(asking(str(number))) for number in range(40)])
    assert [one.text for one in again if isinstance(one, ChatAnswer) and one.recorded] == [
        one.text for one in first if isinstance(one, ChatAnswer)
    ]
    assert sorted(journal.looks) == [8, 16, 16]
    assert threading.current_thread().name not in journal.threads


def test_an_answer_that_cannot_be_read_fails_its_own_request_alone(tmp_path: Path) -> None:
    journal = Watched(tmp_path / "answers.sqlite")
    journal.unreadable = asking("2").request_hash()
    chat = RecordedChat(Fake(), journal)
    results = together(*[chat.complete(asking(str(number))) for number in range(5)])
    assert [type(one) for one in results] == [
        StoreMismatch if number == 2 else ChatAnswer for number in range(5)
    ]


def test_one_that_is_cancelled_while_it_is_looked_up_leaves_the_others(tmp_path: Path) -> None:
    chat = RecordedChat(Fake(), Watched(tmp_path / "answers.sqlite"))

    async def run() -> list[ChatAnswer | BaseException]:
        calls = [asyncio.create_task(chat.complete(asking(str(one)))) for one in range(3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(one) for one in asyncio.run(run())] == [
        ChatAnswer, asyncio.CancelledError, ChatAnswer,
    ]  # fmt: skip


def test_a_request_with_a_lone_surrogate_has_a_hash(journal: SqliteAnswers) -> None:
    assert ask(RecordedChat(Fake(), journal), asking("half \ud83d")).text == "answer 1"


def test_without_an_endpoint_there_is_no_chat(
    llm_server: ScriptedLlm, journal: SqliteAnswers
) -> None:
    assert make_chat(Settings(), journal) is None
    chat = make_chat(Settings(llm_base_url=llm_server.url, llm_model="scripted"), journal)
    assert chat is not None
    assert chat.name == "scripted"
    asyncio.run(chat.complete(asking()))
    asyncio.run(chat.complete(asking()))
    assert llm_server.count() == 1


# --- reading ---------------------------------------------------------------------------------

READABLE: list[tuple[str, object]] = [
    ('{"a": 1}', {"a": 1}),
    ("{}", {}),
    ("[]", []),
    ('[{"a": 1}]', [{"a": 1}]),
    ('[{"a": "b"}, {"a": "c",},] and so on', [{"a": "b"}, {"a": "c"}]),
    ('\ufeff{"a": 1}', {"a": 1}),
    ('```json\n{"a": 1}\n```', {"a": 1}),
    ('```\n{"a": 1}\n```\n', {"a": 1}),
    ('```json\n{"a": 1}', {"a": 1}),
    ('```json\n{"a": 1,}\n```', {"a": 1}),
    ('Here you are: {"a": 1}', {"a": 1}),
    ('{"a": 1} Anything else?', {"a": 1}),
    ('{"a": 1,} Anything "else"?', {"a": 1}),
    ('As [1] says: {"a": 1}', {"a": 1}),
    ('As [they] say: {"a": 1,}', {"a": 1}),
    ('“{"a": 1}”', {"a": 1}),
    ('<think>maybe {"a": 2}?</think>{"a": 1}', {"a": 1}),
    ('{"a": 1,}', {"a": 1}),
    ("{'a': 'b'}", {"a": "b"}),
    ("{'a': True, 'b': None}", {"a": True, "b": None}),
    ("{a: 1}", {"a": 1}),
    ("{“a”: “b”}", {"a": "b"}),
    ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
    ('{"a": 1, // why\n "b": 2}', {"a": 1, "b": 2}),
    ('{"a": "two\nlines"}', {"a": "two\nlines"}),
    ('{"a": "she said "no" twice"}', {"a": 'she said "no" twice'}),
    ('{"m": [{"t": "say "x", "y" now", "n": 1}]}', {"m": [{"t": 'say "x", "y" now', "n": 1}]}),
    ('{"a": "C:\\data"}', {"a": "C:\\data"}),
    ('{"a": "80"}', {"a": "80"}),
    ('{"a": 1}}', {"a": 1}),
    ('{"a": 1}\n{"a": 1}', {"a": 1}),
    ('{"a": "\\ud83d\\ude00 \\ud800"}', {"a": "\U0001f600 \ufffd"}),
    ('{"a": "\ud800"}', {"a": "\ufffd"}),
    ('{"a": "他说"好"了"}', {"a": '他说"好"了'}),
    ('{"a": null}', {"a": None}),
    ('{"a": "... and so on"}', {"a": "... and so on"}),
]


@pytest.mark.parametrize(("text", "value"), READABLE)
def test_readable_answers(text: str, value: object) -> None:
    assert parse_json_answer(text) == value


UNREADABLE: list[tuple[str, str]] = [
    ("", "empty"),
    (" \n\t", "empty"),
    ("<think>hm</think>", "empty"),
    ("null", "no JSON object"),
    ("42", "no JSON object"),
    ('"just a string"', "no JSON object"),
    ("I'm sorry, I cannot help with that.", "no JSON object"),
    ("```json\n```", "no JSON object"),
    ('{"a": 1', "cut off"),
    ('{"a": [{"t": "x"}, {"t": "y', "cut off"),
    ('{"a": [{"t": "x"}, {"t": "y"}', "cut off"),
    ('{"a": [{"t": "x"}]', "cut off"),
    ('{"a": "x"', "cut off"),
    ('{"a": "x', "cut off"),
    ('{"a":', "cut off"),
    ("{", "cut off"),
    ("[1, 2", "cut off"),
    ('[{"t": ["x"]}, {"t": "y"', "cut off"),
    ('[["x"], ["y"', "cut off"),
    ('[["x"], ["y"]', "cut off"),
    ('{"a": "say "x" now", "b": [{"t": "see {y} and [z]', "cut off"),
    ('```json\n{"a": {"b": 1}\n```', "cut off"),
    ('{"a": 1} {"b": 2}', "several"),
    ('{"a": 1}\n\n{"a": 2}', "several"),
    ('[{"a": 1}] [{"a": 2}]', "several"),
    ('{"a": 1, "a": 2}', "not JSON"),
    ('{"a": 1, "b":}', "not JSON"),
    ('{"a": NaN}', "not JSON"),
    ('{"a": 1e999}', "not JSON"),
    ('{"a": [{"t": "x"}, ...]}', "leaves a part out"),
    ("[" * 50_000, "not JSON"),
    ('{"a": "' + "x" * 100_001, "too long"),
]


@pytest.mark.parametrize(("text", "why"), UNREADABLE)
def test_unreadable_answers_say_why(text: str, why: str) -> None:
    with pytest.raises(MalformedAnswer, match=why):
        parse_json_answer(text)


def test_the_complaint_does_not_repeat_the_answer() -> None:
    for text in (SECRET, f'{{"a": "{SECRET}', f'{{"a": "{SECRET}", "b":}}', f'"{SECRET}"'):
        with pytest.raises(MalformedAnswer) as caught:
            parse_json_answer(text)
        assert SECRET not in str(caught.value)


WHOLE = [
    '{"memories": [{"text": "User keeps bees, [two] hives {old}", "priority": 60, "at": null},'
    ' {"text": "用户住在里斯本", "sources": ["e1", "e2"]}], "done": true}',
    '{"memories": [{"text": "User said "never again" to it", "priority": 60},'
    ' {"text": "User\'s cat is "Mo"", "sources": ["e1"]}]}',
    '[{"text": "User said "no" to it", "sources": ["e1"]}, ["a", ["b"]], {"text": "x"}]',
    '[["User said "no" to it"], ["a", ["b"]]]',
]


@pytest.mark.parametrize("whole", WHOLE)
def test_every_answer_that_was_cut_somewhere_is_refused(whole: str) -> None:
    assert parse_json_answer(whole)
    for end in range(len(whole)):
        with pytest.raises(MalformedAnswer):
            parse_json_answer(whole[:end])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_any_json_is_read_as_it_is(value: object) -> None:
    assert parse_json_answer(json.dumps(value)) == value
    assert parse_json_answer(f"```json\n{json.dumps(value, ensure_ascii=False)}\n```") == value


@given(st.text(alphabet='{}[]",:\\a1 \n`', max_size=60))
def test_any_text_is_a_value_or_a_malformed_answer(text: str) -> None:
    try:
        assert isinstance(parse_json_answer(text), (dict, list))
    except MalformedAnswer as error:
        assert error.message

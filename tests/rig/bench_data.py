"""Small benchmark files of our own writing, in the three official schemas."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from connectors.tokens import count_tokens

__all__ = ["locomo_folder", "longmemeval_folder", "personamem_folder"]

CARD = "Current user persona: Name: Wren. Wren repairs bicycles."
SHARED = "c" * 64
"""Id of the context that two questions are asked on, at two places."""
SAID = [
    ("system", CARD),
    ("user", "User: I love rowing on the lake at dawn."),
    ("assistant", "Assistant: The lake must be quiet then."),
    ("user", "User: My brother keeps seven beehives behind the mill."),
    ("assistant", "Assistant: Seven hives make a lot of honey."),
    ("system", CARD),
    ("user", "User: I gave up rowing after a zeppelin landed on the boathouse."),
    ("assistant", "Assistant: What a strange reason."),
    ("user", "User: Now I go climbing with the zeppelin pilot."),
]
"""What is said after message 5 names a zeppelin; before it nobody does."""
LATER_WORD = "zeppelin"
COLUMNS = (
    "persona_id,question_id,question_type,topic,context_length_in_tokens,"
    "distance_to_ref_in_tokens,user_question_or_message,correct_answer,all_options,"
    "shared_context_id,end_index_in_shared_context"
).split(",")
OPTIONS = ["(a) Rowing?", "(b) Climbing?", "(c) Chess?", "(d) Bees?"]


def personamem_folder(folder: Path, *, extra_column: bool = False) -> Path:
    """Write a context with a question after message 5 and one at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    context = [{"role": role, "content": text} for role, text in SAID]
    (folder / "shared_contexts_32k.jsonl").write_bytes(orjson.dumps({SHARED: context}) + b"\n")
    early = "What does my brother keep behind the mill?"
    late = "Which sport do I do now?"
    rows = [
        _question("q-early", early, "(d)", 5, distance=_distance(3, 5, early)),
        _question("q-late", late, "(b)", 9, distance=_distance(8, 9, late)),
        _question("q-other", "Who am I?", "(c)", 9, distance="1", persona="12"),
    ]
    names = [*COLUMNS, "stereotypical"] if extra_column else COLUMNS
    with (folder / "questions_32k.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return folder


def _distance(place: int, end: int, question: str) -> str:
    between = sum(count_tokens(text) for _, text in SAID[place:end])
    return str(between + count_tokens(question))


def _question(
    name: str, text: str, answer: str, end: int, *, distance: str, persona: str = "0"
) -> Mapping[str, str]:
    return {
        "persona_id": persona,
        "question_id": name,
        "question_type": "recall" if end < len(SAID) else "evolution",
        "topic": "sport",
        "context_length_in_tokens": "100",
        "distance_to_ref_in_tokens": distance,
        "user_question_or_message": text,
        "correct_answer": answer,
        "all_options": str(OPTIONS),
        "shared_context_id": SHARED,
        "end_index_in_shared_context": str(end),
    }


def locomo_folder(folder: Path, samples: Sequence[str] = ("conv-26",), asked: int = 4) -> Path:
    """Write conversations of two sessions; ``asked`` questions each, and an adversarial one."""
    folder.mkdir(parents=True, exist_ok=True)
    body = [_sample(name, asked) for name in samples]
    (folder / "locomo10.json").write_bytes(orjson.dumps(body))
    return folder


def _sample(name: str, asked: int) -> Mapping[str, Any]:
    first = [
        ("Ilse", "I started pottery lessons in the old dairy."),
        ("Tomas", "I adopted a parrot that sings sea shanties."),
        ("Ilse", "My kiln arrives on a lorry next week."),
    ]
    second = [("Tomas", "The parrot learned the word marmalade."), ("Ilse", "My first bowl broke.")]
    questions = [
        {"question": "What lessons did Ilse start?", "answer": "pottery", "evidence": ["D1:1"],
         "category": 4},
        {"question": "Which word did the parrot of Tomas learn?", "answer": "marmalade",
         "evidence": ["D1:2; D2:1", "D9:9"], "category": 1},
    ]  # fmt: skip
    repeated = [dict(questions[number % 2]) for number in range(asked)]
    adversarial = {
        "question": "What lessons did Tomas start?",
        "adversarial_answer": "pottery",
        "evidence": ["D1:1"],
        "category": 5,
    }
    return {
        "sample_id": name,
        "conversation": {
            "speaker_a": "Ilse",
            "speaker_b": "Tomas",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": _turns(1, first),
            "session_2_date_time": "9:05 am on 25 May, 2023",
            "session_2": [
                *_turns(2, second),
                {"speaker": "Ilse", "dia_id": "D2:3", "text": "Look!", "blip_caption": "a bowl"},
            ],
        },
        "qa": [*repeated, adversarial],
    }


def _turns(session: int, said: Sequence[tuple[str, str]]) -> list[Mapping[str, str]]:
    return [
        {"speaker": speaker, "dia_id": f"D{session}:{number}", "text": text}
        for number, (speaker, text) in enumerate(said, start=1)
    ]


def longmemeval_folder(folder: Path) -> Path:
    """Write an instance whose sessions are out of order, and one to abstain from."""
    folder.mkdir(parents=True, exist_ok=True)
    sessions = [
        [{"role": "user", "content": "The lighthouse key hangs under the anchor."},
         {"role": "assistant", "content": "Noted."}],
        [{"role": "user", "content": "I bought two oil lamps."}],
    ]  # fmt: skip
    instance = {
        "question_id": "lme1",
        "question_type": "single-session-user",
        "question": "Where does the lighthouse key hang?",
        "answer": "under the anchor",
        "question_date": "2023/06/01 (Thu) 10:00",
        "haystack_dates": ["2023/05/30 (Tue) 07:05", "2023-05-20T00:37:00"],
        "haystack_session_ids": ["s-late", "s-early"],
        "haystack_sessions": sessions,
        "answer_session_ids": ["s-late"],
    }
    abstaining = {**instance, "question_id": "lme2_abs", "answer_session_ids": []}
    (folder / "longmemeval_oracle.json").write_bytes(orjson.dumps([instance, abstaining]))
    return folder

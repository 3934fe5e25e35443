"""The language check: wrong languages are seen, and nothing right is called wrong."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from flows.extract import language
from flows.extract.language import in_another_language

SPOKEN = {
    "en": "Last month I moved to Galway, and now I work in a small bookshop.",
    "es": "El mes pasado me mudé a Granada y ahora trabajo en una librería del centro.",
    "fr": "Le mois dernier j'ai déménagé à Nantes et je travaille dans une librairie.",
    "de": "Letzten Monat bin ich nach Leipzig gezogen und arbeite in einer Buchhandlung.",
    "pt": "No mês passado mudei-me para Coimbra e agora trabalho numa livraria do centro.",
    "it": "Il mese scorso mi sono trasferita a Torino e adesso lavoro in una libreria.",
    "nl": "Vorige maand ben ik naar Groningen verhuisd en nu werk ik in een boekwinkel.",
    "sv": "Förra månaden flyttade jag till Lund och nu jobbar jag i en bokhandel.",
    "pl": "W zeszłym miesiącu przeprowadziłam się do Torunia i pracuję w księgarni.",
    "tr": "Geçen ay Bursa'ya taşındım ve şimdi küçük bir kitapçıda çalışıyorum.",
    "vi": "Tháng trước tôi chuyển đến Huế và bây giờ làm việc ở một hiệu sách.",
    "ja": "先月、松本に引っ越して、今は小さな本屋で働いています。",
    "ko": "지난달에 전주로 이사해서 지금은 작은 서점에서 일해요.",
    "zh": "上个月我搬到了大理，现在在一家小书店工作。",
    "ru": "В прошлом месяце я переехала в Тверь и работаю в книжном магазине.",
}
TOLD = {
    "en": "User moved to another city last month and works in a bookshop",
    "es": "El usuario se mudó a otra ciudad y trabaja en una librería",
    "fr": "L'utilisateur a déménagé et travaille dans une librairie",
    "de": "Nutzer ist umgezogen und arbeitet in einer Buchhandlung",
    "pt": "O usuário mudou-se para outra cidade e trabalha numa livraria",
    "it": "L'utente si è trasferita e lavora in una libreria",
    "nl": "De gebruiker is verhuisd en werkt in een boekwinkel",
    "sv": "Användaren har flyttat och jobbar i en bokhandel",
    "pl": "Użytkownik przeprowadził się i pracuje w księgarni",
    "tr": "Kullanıcı taşındı ve küçük bir kitapçıda çalışıyor",
    "vi": "Người dùng đã chuyển nhà và làm việc ở một hiệu sách",
    "ja": "ユーザーは引っ越して小さな本屋で働いている",
    "ko": "사용자는 이사해서 작은 서점에서 일한다",
    "zh": "用户搬了家，在一家小书店工作",
    "ru": "Пользователь переехал и работает в книжном магазине",
}
NEAR = {("es", "pt"), ("pt", "es"), ("de", "nl"), ("nl", "de"), ("ja", "zh")}
"""Too near to each other, or, for a short Japanese note in characters alone, not to be told."""


@pytest.mark.parametrize("spoken", SPOKEN)
def test_of_fifteen_languages_only_the_users_own_is_taken(spoken: str) -> None:
    said = [SPOKEN[spoken]]
    taken = {told for told, text in TOLD.items() if not in_another_language(text, said, said)}
    assert taken - {told for told in TOLD if (spoken, told) in NEAR} == {spoken}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("My bands are Die Nachtfalter, Los Gatos and Les Enfants du Soir, in this order.",
         "User loves Los Gatos and Die Nachtfalter"),
        ("I only ever drink café au lait, never anything else in the mornings.",
         "User drinks café au lait"),
        ("Trabajo desde hace años en Google Cloud y vivo en un pueblo de montaña.",
         "Google Cloud, Site Reliability Engineer"),
        ("Mi libro favorito de siempre es The Old Man and the Sea, lo leo cada año.",
         "The Old Man and the Sea"),
        ("Ich höre seit Jahren am liebsten The Cure und Pink Floyd, immer abends.",
         "Mag The Cure und Pink Floyd"),
        ("word0 word1 word2 word3 word4 word5 word6 word7 word8 word9", "User lives in Oslo"),
        ("id=4f2a path=/usr/lib/x.so err=ENOENT ts=1700000 pid=33 uid=0", "User debugs a crash"),
        ("ok", "User agrees"),
        ("Trabajo en Madrid as a product manager and I love it here", "User works in Madrid"),
    ],
)  # fmt: skip
def test_names_ids_and_mixed_speech_are_never_called_wrong(said: str, text: str) -> None:
    assert not in_another_language(text, [said], [said])


def test_who_speaks_two_languages_may_be_quoted_in_either() -> None:
    said = [SPOKEN["es"], SPOKEN["es"].replace("mes", "año"), "I work in a small bookshop now."]
    assert not in_another_language("User works in a small bookshop now", said, said)
    assert in_another_language("User works in a small bookshop now", said[:2], said)


def test_the_answer_is_the_same_every_time() -> None:
    said = [SPOKEN["es"]]
    assert {in_another_language(TOLD["en"], said, said) for _ in range(20)} == {True}


def test_words_that_the_user_said_are_in_the_users_language() -> None:
    said = [
        "Mein Chef hat mir geschrieben: please send the quarterly report before noon. Ich finde "
        "das furchtbar und möchte am liebsten noch heute kündigen."
    ]
    assert not in_another_language("Send the quarterly report before noon", said, said)
    assert in_another_language("User wants to quit his job because of the boss", said, said)


def test_no_text_stays_behind_a_guess() -> None:
    """What is forgotten later must not live on in a cache."""
    said = ["Der Leuchtturm Zanzibarine steht seit Jahren am Rand der alten Stadt am Meer."]
    in_another_language("User restores the lighthouse that stands by the sea", said, said)
    kept = language._guesses
    assert kept, "the control: something was guessed, and kept"
    assert all(isinstance(key, bytes) for key in kept)
    assert "zanzibarine" not in str(kept).casefold()


def test_only_the_last_guesses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_MOST_GUESSES", 2)
    monkeypatch.setattr(language, "_guesses", OrderedDict())
    first = language._guess("the lighthouse stands by the sea")
    for words in ("der Leuchtturm steht am Meer", "el faro está junto al mar"):
        language._guess(words)
    assert len(language._guesses) == 2
    assert language._guess("the lighthouse stands by the sea") == first


def test_where_all_is_in_ascii_the_short_way_says_the_same() -> None:
    told = ["User moved to Lund", "El usuario trabaja en una tienda de libros", "OK", "42!", ""]
    said = [SPOKEN["en"], SPOKEN["fr"].encode("ascii", "ignore").decode(), "OK", "I run", ""]
    for text in told:
        for first in said:
            for second in [*said, SPOKEN["zh"]]:
                asked = text, [first], [first, second]
                assert in_another_language(*asked) == language._in_another(*asked), asked

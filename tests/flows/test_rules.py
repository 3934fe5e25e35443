"""The rule-based extractor, sentence by sentence, in English and Chinese."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.rules import MAX_MEMORIES, RuleExtractor
from flows.rules.dated import resolved
from flows.rules.dates import resolve, resolve_end
from stores.records import L0Event, LogRecord, Memory, Position, Role, SourcedEvent, Window, to_utc

SAID_AT = datetime.fromisoformat("2025-03-05T09:30:00+01:00")  # a Wednesday


def sourced(text: str, *, number: int = 0, role: Role = "user") -> SourcedEvent:
    event = L0Event(
        v=1,
        event_id=f"event-{number}",
        tenant_id="t",
        agent_id="a",
        user_id="u",
        session_id="s",
        role=role,
        content=text,
        occurred_at=SAID_AT,
    )
    record = LogRecord(Position("l0", 0, number), 0, None, None)
    return SourcedEvent("t/a/u", event, record, to_utc(SAID_AT))


def window(*events: SourcedEvent) -> Window:
    return Window("w", "t/a/u", "s", events, (), "turns")


def memories(*texts: str) -> tuple[Memory, ...]:
    events = (sourced(text, number=number) for number, text in enumerate(texts))
    return RuleExtractor().memories(window(*events))


# (what the user says, the memory's text, its type, its slot)
ENGLISH = [
    ("My name is Ana.", "User's name is Ana.", "persona", "name"),
    ("My name is \u092a\u094d\u0930\u093f\u092f\u093e.",  # half of it are marks
     "User's name is \u092a\u094d\u0930\u093f\u092f\u093e.", "persona", "name"),
    ("Hi, I'm Ana! How are you?", "User's name is Ana.", "persona", "name"),
    ("I moved to Lisbon in March.", "User moved to Lisbon in March.", "persona", "home.city"),
    ("Actually, I moved to Porto.", "User moved to Porto.", "persona", "home.city"),
    ("I live in New York City.", "User lives in New York City.", "persona", "home.city"),
    ("i live in lisbon", "User lives in lisbon.", "persona", "home.city"),
    ("I'm based in Berlin now.", "User is based in Berlin now.", "persona", "home.city"),
    ("I've lived in Oslo for ten years.", "User has lived in Oslo for ten years.", "persona",
     "home.city"),
    ("I don't live in Porto anymore.", "User doesn't live in Porto anymore.", "persona",
     "home.city"),
    ("I live in a small flat with my brother.", "User lives in a small flat with their brother.",
     "persona", None),
    ("I'm from Sichuan.", "User is from Sichuan.", "persona", "origin"),
    ("I grew up in a fishing village.", "User grew up in a fishing village.", "persona",
     "childhood.place"),
    ("I'm 34 years old.", "User is 34 years old.", "persona", "age"),
    ("I just turned 40!", "User just turned 40.", "persona", "age"),
    ("My birthday is on May 3rd.", "User's birthday is on May 3rd.", "persona", "birthday"),
    ("I'm a nurse.", "User is a nurse.", "persona", "job.title"),
    ("I work as a data engineer.", "User works as a data engineer.", "persona", "job.title"),
    ("I've been a teacher for six years.", "User has been a teacher for six years.", "persona",
     "job.title"),
    ("I work at Globex.", "User works at Globex.", "persona", "job.employer"),
    ("I no longer work at Acme, I'm at Globex now.",
     "User now works at Globex (no longer at Acme).", "persona", "job.employer"),
    ("I no longer work for Acme.", "User no longer works for Acme.", "persona", "job.employer"),
    ("I quit my job last week.", "User quit their job last week (2025-02-24 – 2025-03-02).",
     "persona", "job.employer"),
    ("I'm retired.", "User is retired.", "persona", "job.title"),
    ("I study law at Coimbra.", "User studies law at Coimbra.", "persona", None),
    ("I run a small bakery in the old town.", "User runs a small bakery in the old town.",
     "persona", None),
    ("I'm married.", "User is married.", "persona", "relationship"),
    ("My wife and I got married in 2019.", "User and their wife got married in 2019.", "persona",
     "relationship"),
    ("My sister's name is Ana.", "User's sister's name is Ana.", "persona", "family.sister"),
    ("I misspoke, my sister's name is Bea.", "User's sister's name is Bea.", "persona",
     "family.sister"),
    ("I misspoke, I have no sister.", "User has no sister.", "persona", "family.sister"),
    ("My daughter Mia is 7.", "User's daughter Mia is 7.", "persona", "family.mia.age"),
    ("My brother is a pilot.", "User's brother is a pilot.", "persona", "family.brother.job"),
    ("My parents live in Braga.", "User's parents live in Braga.", "persona", None),
    ("We have two kids.", "User has two kids.", "persona", None),
    ("I have a cat named Miso.", "User has a cat named Miso.", "persona", "pet.cat"),
    ("My dog's name is Rex.", "User's dog's name is Rex.", "persona", "pet.dog"),
    ("I'm allergic to peanuts.", "User is allergic to peanuts.", "persona", "allergy.peanut"),
    ("I'm not allergic to peanuts after all.", "User is not allergic to peanuts after all.",
     "persona", "allergy.peanut"),
    ("I have asthma.", "User has asthma.", "persona", None),
    ("I was diagnosed with type 2 diabetes.", "User was diagnosed with type 2 diabetes.",
     "persona", None),
    ("I'm lactose intolerant.", "User is lactose intolerant.", "persona", None),
    ("I don't eat meat.", "User doesn't eat meat.", "persona", "taste.meat"),
    ("I'm a vegetarian.", "User is a vegetarian.", "persona", "diet"),
    ("I've gone vegan.", "User has gone vegan.", "persona", "diet"),
    ("I love jazz.", "User loves jazz.", "persona", "taste.jazz"),
    ("I love jazz and old films.", "User loves jazz and old films.", "persona", None),
    ("I don't like coffee.", "User doesn't like coffee.", "persona", "taste.coffee"),
    ("I hate cilantro!", "User hates cilantro.", "persona", "taste.cilantro"),
    ("I stopped drinking coffee.", "User stopped drinking coffee.", "persona", "taste.coffee"),
    ("I prefer trains to planes.", "User prefers trains to planes.", "persona", None),
    ("My favourite colour is teal.", "User's favourite colour is teal.", "persona",
     "favourite.colour"),
    ("My favorite drink is now green tea.", "User's favorite drink is now green tea.", "persona",
     "favourite.drink"),
    ("I'm a big fan of Miles Davis.", "User is a big fan of Miles Davis.", "persona", None),
    ("I'm afraid of heights.", "User is afraid of heights.", "persona", None),
    ("I speak Portuguese and French.", "User speaks Portuguese and French.", "persona", None),
    ("I play the cello.", "User plays the cello.", "persona", None),
    ("I go swimming every Tuesday.", "User goes swimming every Tuesday.", "persona", None),
    ("I usually wake up at five.", "User usually wakes up at five.", "persona", None),
    ("I'm learning Portuguese.", "User is learning Portuguese.", "persona", None),
    ("My dream is to open a bookshop.", "User's dream is to open a bookshop.", "persona", None),
    ("I went to the opera yesterday.", "User went to the opera yesterday (2025-03-04).",
     "episodic", None),
    ("I'm flying to Rome tomorrow.", "User is flying to Rome tomorrow (2025-03-06).",
     "episodic", None),
    ("In 2013, I recorded an album.", "In 2013, User recorded an album.", "episodic", None),
    ("I have a dentist appointment next Wednesday.",
     "User has a dentist appointment next Wednesday (2025-03-12).", "episodic", None),
    ("My exam is on Friday.", "User's exam is on Friday.", "episodic", None),
    # what ties it to what was said before, and what is said next of somebody else, is left out
    ("I've also enrolled in a pottery class, too.", "User has enrolled in a pottery class.",
     "episodic", None),
    ("I prefer quiet evenings instead.", "User prefers quiet evenings.", "persona", None),
    ("My sister Ida is a nurse and she brought us plums.", "User's sister Ida is a nurse.",
     "persona", None),
    ("I work for Acme, they gave me a desk.", "User works for Acme.", "persona", "job.employer"),
    ("My parents live in Braga, so it's an hour.", "User's parents live in Braga.", "persona",
     None),
    ("My favourite colour is teal and so is my bike.", "User's favourite colour is teal.",
     "persona", "favourite.colour"),
    ("Dune is my favourite book.", "Dune is User's favourite book.", "persona",
     "favourite.book"),
    ("I love to read.", "User loves to read.", "persona", "taste.read"),
    ("I like sci-fi movies too.", "User likes sci-fi movies.", "persona", "taste.sci-fi-movie"),
    ("I usually read in bed.", "User usually reads in bed.", "persona", None),
    ("I enjoy painting and want to teach it.", "User enjoys painting and wants to teach it.",
     "persona", None),
    ("Last Friday I joined a choir.", "Last Friday, User joined a choir (2025-02-28).",
     "episodic", None),
    ("I finished my thesis!", "User finished their thesis.", "episodic", None),
    ("I live in Faro, can you recommend a café?", "User lives in Faro.", "persona", "home.city"),
    ("User: I live in Faro.", "User lives in Faro.", "persona", "home.city"),
    ("Always answer in bullet points.",
     'User\'s standing request: "Always answer in bullet points."', "instruction", None),
    ("Please never suggest seafood.", 'User\'s standing request: "Please never suggest seafood."',
     "instruction", None),
    ("From now on, reply in Spanish.", 'User\'s standing request: "From now on, reply in Spanish."',
     "instruction", "reply.language"),
    ("Please call me Marcus.", 'User\'s standing request: "Please call me Marcus."',
     "instruction", "name.preferred"),
    ("I prefer short answers.", 'User\'s standing request: "I prefer short answers."',
     "instruction", None),
]  # fmt: skip
CHINESE = [
    ("我叫林悦。", "用户名叫林悦。", "persona", "name"),
    ("我住在杭州。", "用户住在杭州。", "persona", "home.city"),
    ("不对，我现在住在苏州。", "用户现在住在苏州。", "persona", "home.city"),
    (
        "我上个月搬到了苏州",
        "用户上个月搬到了苏州 (2025-02-01 – 2025-02-28)。",
        "persona",
        "home.city",
    ),
    (
        "上个月我搬到了苏州",
        "上个月用户搬到了苏州 (2025-02-01 – 2025-02-28)。",
        "persona",
        "home.city",
    ),
    ("我是四川人。", "用户是四川人。", "persona", "origin"),
    ("我来自成都。", "用户来自成都。", "persona", "origin"),
    ("我今年28岁。", "用户今年28岁。", "persona", "age"),
    ("我的生日是5月3日。", "用户的生日是5月3日。", "persona", "birthday"),
    ("我是一名插画师。", "用户是一名插画师。", "persona", "job.title"),
    ("我在一家设计公司做插画师。", "用户在一家设计公司做插画师。", "persona", "job.title"),
    ("我在华山医院上班。", "用户在华山医院上班。", "persona", "job.employer"),
    ("我辞职了。", "用户辞职了。", "persona", "job.employer"),
    ("我在复旦大学读研。", "用户在复旦大学读研。", "persona", None),
    ("我结婚了。", "用户结婚了。", "persona", "relationship"),
    ("我妹妹叫小雨。", "用户妹妹叫小雨。", "persona", "family.younger-sister"),
    ("我没有妹妹。", "用户没有妹妹。", "persona", "family.younger-sister"),
    ("我女儿今年7岁。", "用户女儿今年7岁。", "persona", "family.daughter.age"),
    ("我妹妹是护士。", "用户妹妹是护士。", "persona", "family.younger-sister.job"),
    ("我有两个孩子。", "用户有两个孩子。", "persona", None),
    ("我养了一只猫，叫团子。", "用户养了一只猫，叫团子。", "persona", "pet.cat"),
    ("我对花生过敏。", "用户对花生过敏。", "persona", "allergy.peanut"),
    ("我有哮喘。", "用户有哮喘。", "persona", None),
    ("我不吃香菜。", "用户不吃香菜。", "persona", "taste.cilantro"),
    ("我吃素。", "用户吃素。", "persona", "diet"),
    ("我喜欢爵士乐。", "用户喜欢爵士乐。", "persona", "taste.jazz"),
    ("我不喜欢咖啡。", "用户不喜欢咖啡。", "persona", "taste.coffee"),
    ("我喜欢画画和爬山。", "用户喜欢画画和爬山。", "persona", None),
    ("我最喜欢的饮料是乌龙茶。", "用户最喜欢的饮料是乌龙茶。", "persona", "favourite.drink"),
    ("我的爱好是摄影。", "用户的爱好是摄影。", "persona", None),
    ("我每天晚上都会跑五公里。", "用户每天晚上都会跑五公里。", "persona", None),
    ("我还很喜欢读书。", "用户很喜欢读书。", "persona", "taste.读书"),
    ("我会弹钢琴。", "用户会弹钢琴。", "persona", None),
    ("我正在学西班牙语。", "用户正在学西班牙语。", "persona", None),
    ("我上周三去了医院。", "用户上周三去了医院 (2025-02-26)。", "episodic", None),
    ("明天我要去面试。", "明天用户要去面试 (2025-03-06)。", "episodic", None),
    ("下周我会去北京旅游，可以给我一些建议吗？", "下周用户会去北京旅游。", "episodic", None),
    (
        "以后请用中文回答我。",
        "用户的长期要求：“以后请用中文回答我。”",
        "instruction",
        "reply.language",
    ),
    ("永远不要给我推荐恐怖片。", "用户的长期要求：“永远不要给我推荐恐怖片。”", "instruction", None),
    ("以后叫我小林吧。", "用户的长期要求：“以后叫我小林吧。”", "instruction", "name.preferred"),
]
NOT_A_MEMORY = [
    "Hello!", "Thanks, that was great.", "Good night!", "How are you today?",
    "Where do I live?", "Do you like coffee?", "Write me a poem about cats.",
    "Can you book a table for two?", "I'm tired today.", "I'm so happy right now!",
    "I love that idea!", "I like your suggestion.", "I love it.", "I hate this.",
    "If I lived in Paris I would eat chocolate.", "Suppose I work at Globex.",
    "I might move to Berlin.", "Maybe I'm allergic to peanuts.", "I wish I lived in Rome.",
    'She said "I live in Paris."', "My boss said “I hate jazz”.",
    'She said "Stay here. I live in Paris. I love jazz." and left.',
    "I'm flying to Rome tomorrow if I get the job.", "I moved to Lisbon as if by magic.",
    "Each time I sat down to write, I felt weighed down.", "我喜欢的是那一个。",
    "Translate this: I live in Berlin.", "Please proofread:\nI am a nurse from Ohio.",
    "Let's role-play. I live in a castle.", "In my dream I moved to Rome.",
    "> I live in Berlin.", "I am a penguin, just kidding.", "I live in Rome. Just kidding!",
    "My password is hunter2 and I live in Faro.", "My card number is 4111 1111 1111 1111.",
    "My API key is sk-abcdefghijklmnopqrstuv.", "I bought it yesterday.",
    "Never mind.", "Never give up!", "Always happy to help.", "Call me when you land.",
    "I'll look at that tomorrow.", "He lives in Rome.", "Ana loves jazz.",
    "I'm a bit worried.", "I'm a little confused by this code.", "I think so too.",
    "I had a terrible day yesterday.", "I'm going to bed now.",
    "I wrote reviews of phones that I bought last month.",
    "I decided to skip fairs after moving in May.",
    "I dislike using this kind of loop.", "I used to have a dog with that name.",
    "I sent a few more last week.", "I got great news on Friday.", "I'm learning a new skill.",
    "我早上去公园跑步了。", "我很喜欢里面的演员。", "我在学习函数的概念时。",
    "我在当前公司工作了几年。",
    "你好！", "谢谢你。", "晚安！", "你喜欢咖啡吗？", "我该怎么办？", "帮我写一首诗。",
    "今天好累啊。", "如果我住在海边就好了。", "要是我是医生就好了。", "我可能会搬到北京。",
    "他说我住在北京。", "他住在北京。", "我妈说“我最怕坐高铁”。", "翻译：我住在柏林。",
    "我的密码是123456，我住在杭州。", "我住在月球，开玩笑的。", "我喜欢你的建议。", "我喜欢这个。",
    "我叫了外卖。", "我是说明天再聊。",
]  # fmt: skip


@pytest.mark.parametrize(("said", "text", "kind", "slot"), ENGLISH + CHINESE)
def test_a_plain_statement_becomes_one_memory(
    said: str, text: str, kind: str, slot: str | None
) -> None:
    found = memories(said)
    assert [(memory.text, memory.type, memory.slot) for memory in found] == [(text, kind, slot)]
    assert found[0].source_event_ids == ("event-0",)


@pytest.mark.parametrize("said", NOT_A_MEMORY)
def test_nothing_is_remembered(said: str) -> None:
    assert [memory.text for memory in memories(said)] == []


@pytest.mark.parametrize(
    ("said", "start", "end"),
    [
        ("I went to the opera yesterday.", "2025-03-04T00:00:00", "2025-03-04T23:59:59"),
        ("I'm flying to Rome tomorrow.", "2025-03-06T00:00:00", "2025-03-06T23:59:59"),
        ("I have an exam next Wednesday at 3.", "2025-03-12T15:00:00", None),
        ("I have a meeting tomorrow at 9:30.", "2025-03-06T09:30:00", None),
        ("I saw my doctor last Friday.", "2025-02-28T00:00:00", "2025-02-28T23:59:59"),
        ("I visited Kyoto three weeks ago.", "2025-02-10T00:00:00", "2025-02-16T23:59:59"),
        ("I'm flying to Rome on April 12.", "2025-04-12T00:00:00", "2025-04-12T23:59:59"),
        ("I ran a marathon on April 12.", "2024-04-12T00:00:00", "2024-04-12T23:59:59"),
        ("I visited Kyoto in May 2019.", "2019-05-01T00:00:00", "2019-05-31T23:59:59"),
        ("In 2013, I recorded an album.", "2013-01-01T00:00:00", "2013-12-31T23:59:59"),
        ("我上周三去了医院。", "2025-02-26T00:00:00", "2025-02-26T23:59:59"),
        ("明天下午三点我要去面试。", "2025-03-06T15:00:00", None),
        ("下周末我要去爬黄山。", "2025-03-15T00:00:00", "2025-03-16T23:59:59"),
        ("我去年参加了马拉松。", "2024-01-01T00:00:00", "2024-12-31T23:59:59"),
        ("三天前我去了西湖。", "2025-03-02T00:00:00", "2025-03-02T23:59:59"),
        ("2024年5月1日我参加了婚礼。", "2024-05-01T00:00:00", "2024-05-01T23:59:59"),
    ],
)
def test_dates_are_resolved_in_the_messages_own_offset(
    said: str, start: str, end: str | None
) -> None:
    (memory,) = memories(said)
    assert memory.activity_start == datetime.fromisoformat(f"{start}+01:00")
    assert memory.activity_start.utcoffset() == SAID_AT.utcoffset()
    assert memory.activity_end == (datetime.fromisoformat(f"{end}+01:00") if end else None)


@pytest.mark.parametrize("said", ["I'm in Rome until last Friday", "我在罗马到上周五"])
def test_an_end_that_is_past_is_none(said: str) -> None:
    assert resolve_end(said, SAID_AT, whole_period=True) is None


def test_a_date_that_the_calendar_lacks_is_no_date() -> None:
    assert resolve("on February 30", SAID_AT, future=True) is None
    assert resolve("in 999 years", SAID_AT.replace(year=9999), future=True) is None


def test_facts_of_one_sentence_are_told_one_by_one() -> None:
    texts = [memory.text for memory in memories("My name is Ana, I'm 34 and I live in Faro.")]
    assert texts == ["User's name is Ana.", "User is 34 years old.", "User lives in Faro."]
    texts = [memory.text for memory in memories("我叫林悦，住在上海，在一家设计公司做插画师。")]
    assert texts == ["用户名叫林悦。", "用户住在上海。", "用户在一家设计公司做插画师。"]


def test_the_last_value_of_a_message_counts() -> None:
    texts = [memory.text for memory in memories("I live in Porto. Sorry, I live in Faro.")]
    assert texts == ["User lives in Faro."]


def test_strictness_decides_the_priority_of_a_request() -> None:
    strict, standing = memories("Never use emojis.", "From now on, reply in English.")
    assert strict.priority == -1
    assert 70 <= standing.priority <= 100


def test_only_the_user_is_believed() -> None:
    said = (
        sourced("You live in Porto, I live in Faro.", number=0, role="assistant"),
        sourced("I live in Milan.", number=1, role="tool"),
        sourced("I live in Rome.", number=2, role="system"),
    )
    assert RuleExtractor().memories(window(*said)) == ()


def test_what_the_host_injected_is_not_what_the_user_said() -> None:
    texts = memories("<relevant-memories>\nI live in Porto.\n</relevant-memories>\nI love jazz.")
    assert [memory.text for memory in texts] == ["User loves jazz."]


def test_a_fact_said_twice_is_one_memory_with_both_sources() -> None:
    (memory,) = memories("I love jazz.", "I love jazz!")
    assert memory.source_event_ids == ("event-0", "event-1")


def test_a_window_gives_at_most_twenty() -> None:
    colours = [f"My favourite thing{number} is teal." for number in range(30)]
    many = memories(*[f"I'm allergic to nuts{number}." for number in range(30)], *colours)
    assert len(many) == MAX_MEMORIES


def test_extract_gives_the_same_memories_every_time() -> None:
    events = window(sourced("My name is Ana and I moved to Faro last week."))
    extractor = RuleExtractor()
    first = asyncio.run(extractor.extract(events, None))
    again = asyncio.run(extractor.extract(events, "ignored"))
    assert first == again
    assert first.memories == extractor.memories(events)
    assert len(first.memories) == 2
    assert extractor.version == "rules/4"


@pytest.mark.parametrize(
    "when",
    ["yesterday", "Tomorrow", "today", "tonight", "LAST night", "next Wed", "this weekend",
     "last month", "two weeks ago", "昨天", "下周三", "上个月", "昨日に",
     "来週の水曜日に", "先月から", "내일", "지난주 금요일에", "다음 달에"],
)  # fmt: skip
def test_every_kind_of_relative_date_is_resolved_in_a_memory(when: str) -> None:
    text = f"User ran {when}"
    assert resolved(text, None, SAID_AT)[0].startswith(f"{text} (2025-")
    assert resolved(f"{text} in 2025", None, SAID_AT) == (f"{text} in 2025", None)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("明日、引っ越しをします", "2025-03-06"),
        ("明後日に面接がある", "2025-03-07"),
        ("再来週の月曜日に面接がある", "2025-03-17"),
        ("先週の金曜に京都へ行った", "2025-02-28"),
        ("사용자는 모레 이사한다", "2025-03-07"),
        ("사용자는 다음 주 수요일에 치과에 간다", "2025-03-12"),
        ("어젯밤에 잘 못 잤다", "2025-03-04"),
    ],
)
def test_relative_days_of_japanese_and_korean_are_resolved(text: str, day: str) -> None:
    assert resolved(text, None, SAID_AT)[0] == f"{text} ({day})"


def test_a_chinese_name_that_is_a_japanese_day_is_no_date() -> None:
    assert resolved("用户喜欢玩明日方舟", None, SAID_AT) == ("用户喜欢玩明日方舟", None)
    assert resolve("我希望将来月薪涨一点", SAID_AT, future=True) is None


def test_the_models_time_stays_and_its_day_is_written_where_the_words_mean_it() -> None:
    tomorrow = SAID_AT + timedelta(days=1)
    assert resolved("User flies tomorrow", tomorrow, SAID_AT) == (
        "User flies tomorrow (2025-03-06)",
        None,
    )
    later = SAID_AT + timedelta(days=3)
    assert resolved("User flies tomorrow", later, SAID_AT) == ("User flies tomorrow", None)


FRAGMENTS = st.sampled_from(
    ["I ", "I'm ", "my ", "live in ", "is ", "favourite ", "我", "喜欢", "住在", "，", "。",
     ", and ", '"', "“", ":", "\n", "next ", "Wednesday", "99月99日", "February 31", "at 99",
     "25点", "name "]
)  # fmt: skip


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=300), st.lists(st.one_of(FRAGMENTS, st.text(max_size=8))).map("".join)
    )
)
def test_no_text_makes_it_raise(text: str) -> None:
    for memory in memories(text):
        assert memory.text.strip()
        assert -1 <= memory.priority <= 100
        memory.text.encode("utf-8")

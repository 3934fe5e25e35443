"""Slots: the names of single-valued things, the same from the LLM, the rules and every language.

A slot is how a newer value finds the older one that it replaces. So one thing has one name:
small letters, ``.`` between the parts, ``-`` inside one, English for what is common, singular.

``family.<kin>`` and ``pet.<kind>`` hold that there is one, what it is called, or that there is
none: "I have no sister" meets "my sister is called Ann". What is said of it has a slot beneath
(``family.sister.job``).
"""

from __future__ import annotations

import re

__all__ = ["KNOWN_SLOTS", "SHOWN_SLOTS", "WORK_SLOTS", "normal_slot", "slot_of_text"]

KNOWN_SLOTS = (
    "name",
    "name.preferred",
    "age",
    "birthday",
    "gender",
    "home.city",
    "home.country",
    "origin",
    "job.title",
    "job.employer",
    "school",
    "relationship",
    "family.<kin>",
    "pet.<kind>",
    "diet",
    "allergy.<thing>",
    "taste.<thing>",
    "favourite.<kind>",
    "language.native",
    "reply.language",
    "reply.style",
)
"""Slots that the rules fill; a model may name others alike."""

SHOWN_SLOTS = tuple(
    slot
    for slot in KNOWN_SLOTS
    if slot not in {"birthday", "gender", "home.country", "origin", "school", "language.native"}
)
"""Those that the chat prompt shows. What hardly ever gets another value is left out: each name is
sent with every window."""

WORK_SLOTS = ("task.<name>", "fact.<name>", "method.<name>", "artifact.<name>")
"""Slots that the work prompt shows."""

_MAX_CHARS = 60
_SLOT = re.compile(r"[a-z][a-z0-9\-]*(?:\.[\w\-]+){0,3}")
_NOTHING = frozenset({"null", "none", "n-a", "other"})
_ALIASES = {
    "relationship.status": "relationship",
    "partner": "family.partner",
    "partner.name": "family.partner",
    "pet.name": "pet",
    "language": "language.native",
    "nickname": "name.preferred",
    "home": "home.city",
    "job": "job.title",
    "employer": "job.employer",
}
_KIN = {
    "mum": "mother", "mom": "mother", "妈妈": "mother", "妈": "mother", "母亲": "mother",
    "dad": "father", "爸爸": "father", "爸": "father", "父亲": "father",
    "父母": "parent", "爸妈": "parent",
    "老婆": "wife", "妻子": "wife", "太太": "wife", "老公": "husband", "丈夫": "husband",
    "先生": "husband", "爱人": "partner", "spouse": "partner",
    "男朋友": "boyfriend", "男友": "boyfriend", "女朋友": "girlfriend", "女友": "girlfriend",
    "未婚夫": "fiancé", "未婚妻": "fiancée",
    "女儿": "daughter", "儿子": "son", "孩子": "child", "宝宝": "baby",
    "kids": "child", "kid": "child", "children": "child",
    "哥哥": "older-brother", "哥": "older-brother", "弟弟": "younger-brother",
    "弟": "younger-brother", "姐姐": "older-sister", "姐": "older-sister",
    "妹妹": "younger-sister", "妹": "younger-sister",
    "奶奶": "grandmother", "外婆": "grandmother", "姥姥": "grandmother", "grandma": "grandmother",
    "爷爷": "grandfather", "外公": "grandfather", "姥爷": "grandfather", "grandpa": "grandfather",
    "室友": "roommate", "flatmate": "roommate",
    "兄弟姐妹": "sibling", "兄弟": "brother", "姐妹": "sister",
}  # fmt: skip
_OLDER = re.compile(r"^(?:older|elder|big|oldest|大)-?")
_YOUNGER = re.compile(r"^(?:younger|little|youngest|小)-?")
_PETS = {
    "猫": "cat", "小猫": "cat", "猫咪": "cat", "小猫咪": "cat", "橘猫": "cat", "布偶": "cat",
    "布偶猫": "cat", "英短": "cat", "kitten": "cat",
    "狗": "dog", "小狗": "dog", "狗狗": "dog", "小狗狗": "dog", "柯基": "dog", "金毛": "dog",
    "哈士奇": "dog", "柴犬": "dog", "泰迪": "dog", "puppy": "dog",
    "宠物": "pet",
    "兔子": "rabbit", "仓鼠": "hamster", "鹦鹉": "parrot", "乌龟": "turtle", "金鱼": "goldfish",
}  # fmt: skip
_OTHER_KIN = (
    "sister", "brother", "sibling", "son", "parent", "partner", "cousin", "aunt", "uncle", "niece",
    "nephew", "twin", "boss", "manager",
)  # fmt: skip
_MANY = ("friend", "colleague", "coworker", "neighbour", "neighbor", "classmate", "朋友", "同事",
         "邻居", "同学")  # fmt: skip
_PERSON = "|".join(sorted({*_KIN, *_KIN.values(), *_OTHER_KIN, *_MANY}, key=len, reverse=True))
_OF_SOMEBODY = re.compile(
    r"(?:(?:The )?[Uu]ser['’]s |用户的?)"
    r"(?P<who>(?:(?:older|elder|big|oldest|younger|little|youngest|twin|late|best)[- ])?"
    rf"(?:{_PERSON})(?:-in-law)?)(?![a-z])(?P<theirs>(?:['’]s |的?)(?:{_PERSON})(?![a-z]))?"
)
_SHARED = ("family", "relationship")  # theirs as much as the user's
# Common things that people like, avoid or call their favourite, Chinese and English synonyms.
_THINGS = {
    "饮料": "drink", "beverage": "drink", "颜色": "colour", "color": "colour", "食物": "food",
    "菜": "dish", "水果": "fruit", "蔬菜": "vegetable", "甜点": "dessert", "零食": "snack",
    "电影": "film", "movie": "film", "电视剧": "series", "show": "series", "tv-show": "series",
    "书": "book", "小说": "novel", "作家": "author", "writer": "author", "歌": "song",
    "歌曲": "song", "歌手": "singer", "乐队": "band", "音乐": "music", "游戏": "game",
    "运动": "sport", "球队": "team", "球星": "player", "动物": "animal", "花": "flower",
    "季节": "season", "城市": "city", "国家": "country", "餐厅": "restaurant", "数字": "number",
    "演员": "actor", "科目": "subject", "节日": "holiday",
    "咖啡": "coffee", "茶": "tea", "绿茶": "green-tea", "牛奶": "milk", "酒": "alcohol",
    "啤酒": "beer", "红酒": "red-wine", "烟": "smoking", "抽烟": "smoking", "可乐": "cola",
    "肉": "meat", "牛肉": "beef", "猪肉": "pork", "羊肉": "lamb", "鸡肉": "chicken", "鱼": "fish",
    "海鲜": "seafood", "虾": "shrimp", "prawn": "shrimp", "鸡蛋": "egg", "香菜": "cilantro",
    "coriander": "cilantro", "辣": "spicy-food", "辣椒": "chili", "甜食": "sweet",
    "巧克力": "chocolate", "花生": "peanut", "坚果": "nut", "芒果": "mango", "草莓": "strawberry",
    "花粉": "pollen", "青霉素": "penicillin", "乳糖": "lactose", "麸质": "gluten",
    "爵士乐": "jazz", "古典音乐": "classical-music", "摇滚": "rock", "足球": "football",
    "soccer": "football", "篮球": "basketball", "网球": "tennis", "羽毛球": "badminton",
    "跑步": "running", "游泳": "swimming", "爬山": "hiking", "画画": "painting",
    "摄影": "photography", "狗": "dog", "猫": "cat", "雨天": "rain", "smoking": "smoking",
}  # fmt: skip
_TABLES = {
    "family": _KIN,
    "pet": _PETS,
    "favourite": _THINGS,
    "taste": _THINGS,
    "allergy": _THINGS,
}
_KEEPS_IE = ("cookies", "movies", "smoothies", "selfies", "hoodies")
_KEEPS_S = ("ss", "us", "is", "news")


def normal_slot(value: object) -> str | None:
    """Give a slot its one name; ``None`` when it is no short dotted name.

    >>> normal_slot("Favorite.ice cream"), normal_slot("favourite.饮料")
    ('favourite.ice-cream', 'favourite.drink')
    >>> normal_slot("family.little sister.name"), normal_slot("family.妹妹")
    ('family.younger-sister', 'family.younger-sister')
    >>> normal_slot("allergy.peanuts"), normal_slot("住址")
    ('allergy.peanut', None)
    """
    if not isinstance(value, str):
        return None
    name = re.sub(r"[\s_\-]+", "-", value.strip().lower()).replace("favorite", "favourite")
    name = _ALIASES.get(name, name)
    if len(name) > _MAX_CHARS or not _SLOT.fullmatch(name) or name in _NOTHING:
        return None
    parts = [part.strip("-") for part in name.split(".")]
    if not all(parts):
        return None
    table = _TABLES.get(parts[0])
    if table is not None and len(parts) > 1:
        parts[1] = _kin(parts[1]) if parts[0] == "family" else _thing(parts[1], table)
        if parts[0] in {"family", "pet"} and parts[2:] == ["name"]:
            del parts[2]
    return ".".join(parts)


def slot_of_text(value: object, text: str) -> str | None:
    """Give the slot of a text, beneath the relative that it tells of; ``None`` where one has many.

    A model that notes where the user's sister lives may well call it the user's home, and the
    user would move there with her.

    >>> slot_of_text("home.city", "User's sister lives in Ghent.")
    'family.sister.home.city'
    >>> slot_of_text("age", "用户女儿七岁。"), slot_of_text("job", "User's friend is a vet.")
    ('family.daughter.age', None)
    """
    slot = normal_slot(value)
    told = slot and slot.split(".")[0] not in _SHARED and _OF_SOMEBODY.match(text)
    if not slot or not told:
        return slot
    if told["theirs"] or told["who"].endswith(_MANY):
        return None
    return normal_slot(f"family.{told['who']}.{'job' if slot == 'job.title' else slot}")


def _kin(word: str) -> str:
    for pattern, side in ((_OLDER, "older-"), (_YOUNGER, "younger-")):
        if word not in _KIN and pattern.search(word):
            known = _thing(pattern.sub("", word), _KIN)
            return known if known.startswith(("older-", "younger-")) else side + known
    return _thing(word, _KIN)


def _thing(word: str, table: dict[str, str]) -> str:
    return table.get(word) or table.get(_singular(word)) or _singular(word)


def _singular(word: str) -> str:
    if len(word) <= 3 or not word.isascii() or not word.endswith("s") or word.endswith(_KEEPS_S):  # noqa: PLR2004
        return word
    if word.endswith("ies"):
        return word[:-1] if word.endswith(_KEEPS_IE) else f"{word[:-3]}y"
    return word[:-2] if word.endswith(("sses", "shes", "ches", "xes", "toes")) else word[:-1]

"""What is told as lasting and was not meant so, and types that do not fit what they say."""

from __future__ import annotations

import re

from flows.gate.subject import Subject, tokens

__all__ = ["doubtful_type", "generalised_instruction"]

_WORK_EN = (
    r"(?:e-?mail|letter|message|text|reply|answer|response|task|document|essay|paragraph|report"
    r"|code|function|script|story|poem|post|tweet|translation|summary|presentation|slides?"
    r"|chat|conversation|session|question|exercise|assignment|draft|article|file|list|recipe|speech"
    r"|version|request)"
)
_WORK_ZH = (
    r"(?:邮件|信|文章|文档|作文|报告|代码|函数|脚本|故事|诗|帖子|翻译|译文|摘要|总结|回答|回复|对话|会话"
    r"|练习|作业|草稿|文件|清单|演讲稿|任务)"
)
_ONE_TASK = re.compile(
    rf"\b(?:in|for|on|with|within|during|about|of)\s+(?:just\s+)?(?:this|the following|the attached"
    rf"|the above|today's)\s+(?:(?:one|next|short|whole|particular)\s+)?{_WORK_EN}\b"
    rf"|\b(?:make|write|keep|wants?|translate|format) this {_WORK_EN}\b"
    r"|\b(?:just |only )?(?:for )?this (?:once|one time)\b|\bjust this time\b|\bthis time only\b"
    r"|\bjust for (?:today|now|this)\b|\bfor now\b"
    rf"|(?:这|此|本)(?:一)?(?:封|篇|个|段|份|条|首|张|场)?{_WORK_ZH}"
    rf"|(?:这一?次|本次|这一?回)(?:[,，]|的?{_WORK_ZH}|请|先|就|只|不要|别|用|写)"
    r"|仅此一次|暂时(?:请|先|只|不要|别|用)"
    r"|この(?:メール|文章|翻訳|タスク|回答|会話)|今回(?:は|だけ)"
    r"|이번(?:에는|에만|만)|이 (?:이메일|메일|글|작업|번역|대화)",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:wants|asks|expects|prefers|please|let's|don't|do not|can you|could you|would you"
    r"|will you|you (?:can|need)|should|must|i (?:want|need|prefer|would like)"
    r"|i'd (?:like|prefer|rather)|no|avoid|only|never|always|use|keep|make|write|reply|answer"
    r"|respond|add|give|show|stick|leave|skip|include)\b"
    r"|请|要求|不要|别|必须|应该|只|用|写|保持|希望|帮|改|要|ください|して|해\s?줘|하세요|주세요|말고",
    re.IGNORECASE,
)
_FOR_GOOD = re.compile(
    r"\b(?:from now on|from here on|going forward|henceforth|in (?:the )?future|every time"
    r"|each time|whenever|in general|generally|as a rule|by default|permanently|any time|as always"
    r"|all my|all future|from today|after this)\b"
    r"|以后|今后|从现在起|从今|往后|每次|每当|一直|长期|默认|永远|所有的?|凡是|これから|今後|いつも|毎回"
    r"|앞으로|항상|매번",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。！？;；])\s*")
_NAMED_BY = 2  # words in common that show which sentence an instruction comes from

_DAY = (
    r"(?:\b\d{4}-\d\d-\d\d\b|\byesterday\b|\btomorrow\b|\b(?:last|next) (?:mon|tues|wednes|thurs"
    r"|fri|satur|sun)day\b|\blast (?:night|weekend|week)\b|\bnext (?:weekend|week)\b)"
)
_DAY_ZH = (
    r"(?:\d{4}年\d{1,2}月\d{1,2}[日号]|\d{4}-\d\d-\d\d|昨天|昨晚|明天|后天|上个?(?:周|星期)[一二三四五六日天末]"
    r"|下个?(?:周|星期)[一二三四五六日天末])"
)
_DID = (
    r"(?:went|visited|attended|met|bought|watched|saw|flew|travell?ed|ran|finished|completed"
    r"|celebrated|hosted|booked|ordered|(?:had|has|have) (?:an?|his|her|their) (?:\w+ )?(?:meeting"
    r"|appointment|interview|dinner|lunch|exam|surgery|date|call|flight)|will|plans to|is going to"
    r"|is (?:flying|travell?ing|meeting|visiting|leaving|attending))"
)
_EVENT = re.compile(
    rf"\AUser(?: also| just| recently)? {_DID}\b[^.;]*?{_DAY}|{_DAY},? User {_DID}\b", re.IGNORECASE
)
_EVENT_ZH = re.compile(
    rf"\A用户[^。;]{{0,6}}?{_DAY_ZH}[^。;]{{0,20}}?(?:去了|参加了?|买了|见了|看了|去|要去|将去|会去|出发"
    rf"|面试|开会|考试|体检|手术|看病|聚餐|飞往|有个?(?:会议|面试|约会|预约))"
)
_REPLIES = (
    r"(?:repl(?:y|ies)|respon(?:d|ses?)|answers?|address(?:es|ed)?|calls?|called|assistant"
    r"|explanations?|summar(?:y|ies|i[sz]e))"
)
_STANDING = re.compile(
    rf"\AUser (?:wants|asks|asked|expects|requests|requested|requires|instructed|told)\b[^.;]*?"
    rf"\b(?:the assistant|the AI|{_REPLIES})\b[^.;]*?\b(?:always|never|from now on|going forward"
    rf"|in (?:the )?future|every time)\b"
    rf"|\AUser (?:wants|asks|asked|expects|requests|requested|requires|instructed|told)\b[^.;]*?"
    rf"\b(?:always|never|from now on|going forward|in (?:the )?future|every time)\b[^.;]*?"
    rf"\b(?:the assistant|the AI|{_REPLIES})\b"
    r"|\A用户(?:希望|要求|请|让)[^。;]{0,10}?(?:助手|助理|AI|回答|回复|称呼)[^。;]{0,10}?"
    r"(?:以后|今后|每次|始终|总是|永远|一律)"
    r"|\A用户(?:希望|要求|请|让)[^。;]{0,10}?(?:以后|今后|每次|始终|总是|永远|一律)[^。;]{0,10}?"
    r"(?:助手|助理|AI|回答|回复|称呼)",
    re.IGNORECASE,
)


def generalised_instruction(subject: Subject) -> str | None:
    """Say that an instruction is told as a standing one, and was given for one task only.

    Judged by the sentence that it comes from: the one with most words in common. Where none has
    any (the memory is in other words, or in another language), nothing is said.
    """
    if subject.type != "instruction":
        return None
    if _for_one_task(subject.text):
        return "an instruction for one task"
    wanted = set(tokens(subject.text))
    shared, sentence = max(
        (
            (len(wanted & set(tokens(sentence))), sentence)
            for text in subject.said
            for sentence in _SENTENCE.split(text)
        ),
        key=lambda found: found[0],
        default=(0, ""),
    )
    if shared >= _NAMED_BY and _for_one_task(sentence):
        return "given for one task, told as a standing one"
    return None


def _for_one_task(text: str) -> bool:
    """Say whether something is asked for, for one task, and nothing says that it is for good."""
    if _ONE_TASK.search(text) is None or _FOR_GOOD.search(text) is not None:
        return False
    return _ASKS.search(text) is not None


def doubtful_type(subject: Subject) -> str | None:
    """Say what a memory seems to be, when its type says something else."""
    text = subject.text
    if subject.type == "persona" and (_EVENT.search(text) or _EVENT_ZH.match(text)):
        return "a dated event, typed persona"
    if subject.type in {"persona", "episodic"} and _STANDING.match(text):
        return f"a standing rule, typed {subject.type}"
    return None

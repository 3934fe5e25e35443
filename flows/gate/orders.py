"""Text aimed at an agent that will read the memory, and text that claims a person stands behind it.

A memory tells about the user. One that speaks to the reader, or poses as a system prompt, was
planted: by a page the user pasted, or by a model that repeated it. "User wants the assistant to
answer in French" is told about the user and is no order in this sense.
"""

from __future__ import annotations

import re

from flows.extract.text import may_match
from flows.gate.subject import Subject

__all__ = ["human_authority", "instruction_like"]

_OVERRIDES = re.compile(
    r"\b(?:ignor(?:e|ing)|disregard(?:ing)?|forget(?:ting)?|overrid(?:e|ing)|bypass(?:ing)?)\s+"
    r"(?:(?:all|any|the|of|everything in|these|those|its|your|my|other)\s+)*"
    r"(?:(?:previous|prior|above|earlier|preceding|foregoing)(?:\s+system)?"
    r"\s+(?:instructions?|prompts?|directions|directives|guidelines|rules|messages|context)"
    r"|system (?:prompts?|instructions?|messages?|rules)"
    r"|(?<=your )(?:instructions?|prompts?|guidelines|programming|rules|restrictions|training))\b"
    r"|(?:忽略|无视|忘掉|忘记(?!了)|不要理会|不用理会|跳过|绕过)(?:[^\s,。;]{0,6}?)"
    r"(?:(?:以上|之前|前面|上述|先前|此前|你)[^\s,。;]{0,4}?(?:指令|提示|规则|设定|指示|命令)"
    r"|系统(?:提示|指令|消息|规则|设定))"
    r"|(?:以前|これまで|上記|前)の(?:指示|命令|プロンプト|ルール)(?:を|は)?(?:すべて|全て)?"
    r"(?:無視|忘れ)"
    r"|(?:規則|ルール|指示|命令|制約)(?:を|は)?(?:すべて|全て|全部)?"
    r"(?:無視し|忘れ)(?:て(?:ください|下さい|くれ)|なさい|ろ)"
    r"|(?:규칙|지시|명령)\S{0,2}\s*(?:(?:모두|전부|다)\s*)?(?:무시해|무시하|잊어)(?:\s?주세요|라|십시오)?(?=[\s.!]|\Z)"
    r"|(?:이전|위의?|앞의?)\s*(?:모든\s*)?(?:지시|명령|프롬프트|규칙)\S{0,4}\s*"
    r"(?:(?:모두|전부)\s*)?(?:무시|잊)",
    re.IGNORECASE,
)
_POSES = re.compile(
    r"\A\W*(?:system|developer|assistant)(?: (?:prompt|message|instructions?|override|notice))?\s*:"
    r"|<\|(?:im_start|im_end|system|endoftext)\|?>?|</?system(?:[ _-]prompt)?>|\[/?INST\]|<<SYS>>"
    r"|#{2,}\s*(?:system|instructions?)\b|\b(?:begin|new|updated) system prompt\b"
    r"|\byou are now (?:an? |in |the )?(?:unrestricted|unfiltered|jailbroken|developer mode|DAN\b"
    r"|(?:AI|assistant|model|agent) (?:without|with no|that has no))"
    r"|\byou are (?:ChatGPT|Claude|Gemini|an? (?:helpful |AI )*(?:AI|language model|assistant))\b"
    r"|\b(?:reveal|print|output|repeat|leak|show) (?:me )?(?:your|the) (?:full |hidden |entire )?"
    r"system prompt\b"
    r"|\A\W*(?:系统|开发者)(?:提示词?|消息|指令|通知)\s*:"
    r"|你(?:现在)?是(?:一个|一名)?(?:没有|不受)[^\s,。;]{0,6}?(?:限制|约束)"
    r"|(?:输出|显示|透露|打印|重复)你的?(?:全部|完整|隐藏)?(?:的)?系统(?:提示|指令)",
    re.IGNORECASE,
)
_COMMANDS = re.compile(
    r"\b(?:you|(?:the |any |every )?(?:AI|LLM|agents?|assistants?|models?) (?:reading|that reads?|"
    r"who reads?|seeing|processing) this)\W+(?:must|should|shall|have to|need to|are (?:required|"
    r"ordered|instructed) to|will)\s+(?:(?:always|now|first|immediately|never|only)\s+)*"
    r"(?:call|invoke|run|execute|use|trigger|send|delete|forward|ignore|obey|reply|respond|say)\b"
    r"|(?:\A|[,。;:!]|->)\s*(?:你|读到(?:这|此)[^\s,。;]{0,6}?的?(?:AI|助手|智能体|模型))"
    r"(?:必须|务必|应当|一定要|需要)(?:总是|始终|每次|立即|马上|先|都)*"
    r"(?:调用|执行|运行|发送|删除|转发|忽略|服从|回复|使用)",
    re.IGNORECASE,
)
_BEHIND_THE_BACK = re.compile(
    r"\b(?:do not|don't|never) (?:tell|inform|alert|notify|mention (?:this|it) to|"
    r"reveal (?:this|it) to) the (?:user|human|operator)\b"
    r"|\b(?:send|forward|upload|post|exfiltrate) (?:all|the|every|any) [^.;]{0,40}?"
    r"(?:conversations?|memor(?:y|ies)|credentials|passwords|chat history|user data) to "
    r"(?:https?:|[\w.+\-]+@)"
    r"|(?:不要|别|不得|禁止)(?:告诉|让|通知|告知)(?:用户|使用者)(?:知道|此事|这)?"
    r"|把(?:所有|全部)[^\s,。;]{0,8}?(?:对话|记忆|密码|数据)[^\s,。;]{0,4}?(?:发送|转发|上传)(?:到|给)",
    re.IGNORECASE,
)
# Without one of these no ASCII text matches; looking for them takes a tenth of the time.
_OVERRIDES_BY = ("ignor", "disregard", "forget", "overrid", "bypass")
_POSES_BY = (
    "system", "developer", "assistant", "<|", "inst]", "<<sys>>", "##", "you are",
)  # fmt: skip
_COMMANDS_BY = (
    "must", "should", "shall", "have to", "need to", "required", "ordered", "instructed", "will",
)  # fmt: skip
_BEHIND_THE_BACK_BY = ("the user", "the human", "the operator", "http", "@")
_CLAIMS_BY = (
    "approved", "verified", "confirmed", "authori", "certified", "reviewed", "signed off",
    "endorsed", "trusted]", "official]",
)  # fmt: skip
# Told about the user, in the third person: then an order in it is the user's own.
_ASKED_BY_USER = re.compile(
    r"\AUser(?:'s)? (?:wants|asks|asked|prefers|requests|requested|expects|standing request)\b"
    r"|\A用户(?:希望|要求|请|想|的长期要求)",
    re.IGNORECASE,
)

_AUTHORITY = (
    r"(?:an? |the |our |your )?(?:human(?: (?:reviewer|operator|admin\w*))?|person"
    r"|(?:system |security |site )?(?:admin(?:istrator)?s?|operators?|moderators?|developers?)"
    r"|OpenAI|Anthropic|Google)"
)
_APPROVED = r"(?:approved|verified|confirmed|authori[sz]ed|certified|reviewed|signed off|endorsed)"
_CLAIMS = re.compile(
    rf"\b(?:this|the above|the following|these)\s+(?:\w+\s+)?(?:memor(?:y|ies)|instructions?|facts?"
    rf"|notes?|information|statements?|entry|messages?|rules?|claims?|data)\W+(?:(?:has|have|was|"
    rf"were|is|are|been|already|manually)\s+)*{_APPROVED}\s+(?:by|on by)\s+{_AUTHORITY}\b"
    rf"|\b(?:human|admin(?:istrator)?|operator|moderator)[- ]{_APPROVED}\b"
    rf"|(?:\A|[\[(]|[.;:!]\s)\W*(?:pre-?)?{_APPROVED} by {_AUTHORITY}\b"
    rf"|\[(?:{_APPROVED}|trusted|official)\]"
    r"|(?:此|该|本|这|以上|下列|上述)(?:条|项|段)?(?:记忆|信息|内容|指令|规则|说明|消息|事实)"
    r"[^\s,。;]{0,4}?(?:由|经|被|得到)?[^\s,。;]{0,4}?(?:管理员|人工|真人|人类|开发者|官方|运营)"
    r"[^\s,。;]{0,4}?(?:审核|批准|验证|确认|核实|授权|认证)"
    r"|(?:\A|[\[(【,。;:]\s*)(?:已)?(?:由|经|经过)(?:系统)?(?:管理员|人工|真人|开发者|官方)"
    r"(?:审核|批准|验证|确认|核实|授权|认证)",
    re.IGNORECASE,
)


def instruction_like(subject: Subject) -> str | None:
    """Say how a memory speaks to the agent that will read it."""
    text = subject.everything
    if may_match(text, *_OVERRIDES_BY) and _OVERRIDES.search(text):
        return "tells the reader to set its instructions aside"
    if may_match(text, *_POSES_BY) and _POSES.search(text):
        return "poses as a system prompt"
    ordered = may_match(text, *_COMMANDS_BY) and _COMMANDS.search(text)
    if ordered and not _ASKED_BY_USER.match(subject.text):
        return "gives the reader an order"
    if may_match(text, *_BEHIND_THE_BACK_BY) and _BEHIND_THE_BACK.search(text):
        return "asks the reader to act behind the user's back"
    return None


def human_authority(subject: Subject) -> str | None:
    """Say that a memory claims a person's approval. Nothing in a text can give it that."""
    text = subject.everything
    claims = may_match(text, *_CLAIMS_BY) and _CLAIMS.search(text)
    return "claims to be approved by a person" if claims else None

"""Secrets: what must not become memory, whoever said it.

Token formats are those of detect-secrets, asked in memory, by their patterns alone: nothing is
sent anywhere to be verified. Its detectors for entropy, keywords and IP addresses are left out,
since they are made for source code and fire on prose. What they would miss in prose is here:
passwords told in words, payment cards (Luhn), bank accounts (IBAN), identity numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.basic_auth import BasicAuthDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.npm import NpmDetector
from detect_secrets.plugins.openai import OpenAIDetector
from detect_secrets.plugins.private_key import PrivateKeyDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.telegram_token import TelegramBotTokenDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector

from flows.extract.text import may_match
from flows.gate.subject import Subject

__all__ = ["luhn", "secret"]

_DETECTORS: tuple[RegexBasedDetector, ...] = (
    AWSKeyDetector(),
    AzureStorageKeyDetector(),
    BasicAuthDetector(),
    DiscordBotTokenDetector(),
    GitHubTokenDetector(),
    GitLabTokenDetector(),
    JwtTokenDetector(),
    MailchimpDetector(),
    NpmDetector(),
    OpenAIDetector(),
    PrivateKeyDetector(),
    PypiTokenDetector(),
    SendGridDetector(),
    SlackDetector(),
    SquareOAuthDetector(),
    StripeDetector(),
    TelegramBotTokenDetector(),
    TwilioKeyDetector(),
)
# What every token of the detectors and of _KEY has: one of these in it, or so many characters
# without a space. A test holds it against the detectors' own patterns.
_TOKEN_MARKS = ("://", "eyj", "private key", "putty", "_authtoken", "xox")
_SHORTEST_TOKEN = 16
# Keys that detect-secrets 1.5 has no detector for, by the prefix their makers give them.
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-(?:proj-|ant-|or-)?|[sr]k_(?:live|test)_|github_pat_|npm_|hf_|AIza"
    r"|ya29\.|dop_v1_|shpat_|xapp-)(?=[\w\-]*\d)[\w\-]{16,}"
)
_NAMED_KEY = re.compile(
    r"\b(?:api|access|secret|auth|client|private|encryption|signing|licen[cs]e|recovery|bearer)"
    r"[ _-]?(?:api[ _-]?)?(?:keys?|tokens?|secrets?|codes?)\b[^.;:=\n]{0,30}?(?:\bis\b|\bto\b|[:=])"
    r"\s*[\"'`“]?(?=[\w+/\-]*\d)(?=[\w+/\-]*[A-Za-z])[\w+/\-]{8,}"
    r"|(?:密钥|秘钥|令牌|私钥|访问码|授权码)(?:是|为|[:=])\s*[\"'“「]?(?=[\w+/\-]*\d)[\w+/\-]{8,}",
    re.IGNORECASE,
)
_SEED_PHRASE = re.compile(
    r"\b(?:seed|recovery|mnemonic|wallet) phrase\b[^.;:=\n]{0,30}?(?:\bis\b|[:=])\s*[\"'“]?"
    r"(?:[a-z]{3,8}[\s,]+){11,23}[a-z]{3,8}\b"
    r"|助记词(?:是|为|[:=])\s*[\"'“]?(?:[a-z]{3,8}[\s,]+){11,23}[a-z]{3,8}",
    re.IGNORECASE,
)

# --- passwords in words ----------------------------------------------------------------------

_PASSWORD = re.compile(
    r"\b(?:pass(?:word|code|phrase)|passwd|pwd|login code)\b[^.;:=\n\"'“]{0,40}?"
    r"(?:\b(?:is|was|to|as)\b|[:=])\s*(?P<quote>[\"'`“「])?(?P<value>[^\s\"'`”」]{4,64})",
    re.IGNORECASE,
)
_PASSWORD_CJK = re.compile(
    r"(?:密码|口令|パスワード|비밀번호)(?:[^\s,。;、]{0,6}?)"
    r"(?:是|为|[:=]|改成了?|改为了?|设成了?|设为|换成了?|は|는)\s*(?P<quote>[\"'“「])?"
    r"(?P<value>[!-~]{4,64})"
)
_CODE = re.compile(
    r"\b(?:PINs?(?: code| number)?|CVV|CVC2?|security code|verification code|one-time code|OTP"
    r"|unlock code|alarm code|door code|access code)\b[^.;:=\n]{0,40}?(?:\b(?:is|was|to)\b|[:=])"
    r"\s*[\"'“]?(?P<value>\d{3,8})(?![\d.,%]*\d|\s*(?:digits?|characters?|numbers?|days?|years?"
    r"|minutes?|hours?|times?)\b)"
    r"|(?:验证码|动态码|安全码|取款密码|支付密码|暗証番号|PIN码?|인증번호)(?:是|为|[:=]|は|는)\s*"
    r"[\"'“]?\d{3,8}(?!\d|[位个天年次])",
)
# A word without digit or sign is taken for a password only in quotes: "password is wrong".
_LOOKS_MADE_UP = re.compile(r"(?=.*[A-Za-z])(?=.*[\d@#$%^&*_+!])|\d{4,}|.*[@#$%^&*_+].*")
_ENDING = ".,;:!?)。,;"

# --- numbers with a check digit --------------------------------------------------------------

_DIGITS = re.compile(r"(?<![A-Za-z0-9_+.\-])\d(?:[ \-]?\d){12,18}(?![A-Za-z0-9_]|[.\-]\d)")
# Ranges as the networks publish them: American Express, Diners, JCB, Discover, Visa, Mastercard,
# UnionPay, Mir. A number outside of them is an order, a phone or a parcel.
_CARD = re.compile(
    r"3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12}"
    r"|6(?:011|5\d\d|4[4-9]\d)\d{12}|4\d{15}(?:\d{3})?|4\d{12}"
    r"|5[1-5]\d{14}|2(?:2(?:2[1-9]|[3-9]\d)|[3-6]\d\d|7(?:[01]\d|20))\d{12}|62\d{14,17}"
)
_GROUPS = re.compile(r"\d+")
_SHORTEST_GROUP = 4  # a card is written whole or in groups of four to six, and a rest

_IBAN = re.compile(r"(?<![A-Z0-9])([A-Z]{2})(\d{2})((?: ?[A-Z0-9]){11,30})(?![A-Z0-9])")
_IBAN_CHARS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22,
    "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28,
    "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23,
    "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
    "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LI": 21, "LT": 20, "LU": 20, "LV": 21,
    "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18, "NO": 15,
    "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SE": 24,
    "SI": 19, "SK": 24, "SM": 27, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
}  # fmt: skip
"""Characters of an IBAN by country, as the SWIFT registry lists them."""
_IBAN_REST = 97

_CHINESE_ID = re.compile(
    r"(?<![\dA-Za-z])[1-9]\d{5}(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx]"
    r"(?![\dA-Za-z])"
)
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_ID_CHECK = "10X98765432"
_US_SSN = re.compile(
    r"\b(?:SSN|social security)\b.{0,30}?(?<!\d)\d{3}-?\d{2}-?\d{4}(?!\d)", re.IGNORECASE
)

# Without one of these no ASCII text matches the pattern of that name.
_NAMED_KEY_BY = ("key", "token", "secret", "code")
_PASSWORD_BY = ("passw", "passc", "passp", "pwd", "login code")
_DIGIT = re.compile(r"\d")  # without one, no pattern from _CODE on matches any text


def secret(subject: Subject) -> str | None:
    """Name the kind of secret a memory holds, never the secret itself.

    >>> secret(Subject("persona", "", "User's card is 4111 1111 1111 1111."))
    'card number'
    """
    return next(_kinds(subject.everything), None)


def _kinds(text: str) -> Iterator[str]:
    longest = max(map(len, text.split()), default=0)
    may_hold_token = longest >= _SHORTEST_TOKEN or may_match(text, *_TOKEN_MARKS)
    for detector in _DETECTORS if may_hold_token else ():
        if any(True for _ in detector.analyze_string(text)):
            yield str(detector.secret_type).lower()
    if may_hold_token and _KEY.search(text):
        yield "key or token"
    if may_match(text, *_NAMED_KEY_BY) and _NAMED_KEY.search(text):
        yield "key or token"
    if may_match(text, "phrase") and _SEED_PHRASE.search(text):
        yield "seed phrase"
    if may_match(text, *_PASSWORD_BY) and _tells_password(text):
        yield "password or code"
    if not _DIGIT.search(text):
        return
    if _CODE.search(text):
        yield "password or code"
    if any(_is_card(match[0]) for match in _DIGITS.finditer(text)):
        yield "card number"
    if any(_is_iban(match) for match in _IBAN.finditer(text)):
        yield "bank account number"
    if _US_SSN.search(text) or any(_is_chinese_id(one[0]) for one in _CHINESE_ID.finditer(text)):
        yield "identity number"


def _tells_password(text: str) -> bool:
    for pattern in (_PASSWORD, _PASSWORD_CJK):
        for match in pattern.finditer(text):
            value = match["value"].rstrip(_ENDING)
            if match["quote"] or _LOOKS_MADE_UP.match(value):
                return True
    return False


def luhn(digits: str) -> bool:
    """Check the Luhn digit of a number.

    >>> luhn("4111111111111111"), luhn("4111111111111112")
    (True, False)
    """
    doubled = "0246813579"
    total = sum(
        int(doubled[int(digit)]) if place % 2 else int(digit)
        for place, digit in enumerate(reversed(digits))
    )
    return total % 10 == 0


def _is_card(written: str) -> bool:
    groups = _GROUPS.findall(written)
    digits = "".join(groups)
    grouped = all(len(group) >= _SHORTEST_GROUP for group in groups[:-1])
    return grouped and bool(_CARD.fullmatch(digits)) and luhn(digits)


def _is_iban(match: re.Match[str]) -> bool:
    """Check length and check digits; words that follow the number are not part of it."""
    wanted = _IBAN_CHARS.get(match[1])
    written = match[0].replace(" ", "")
    if wanted is None or len(written) < wanted:
        return False
    number = written[4:wanted] + written[:4]
    return int("".join(str(int(char, 36)) for char in number)) % _IBAN_REST == 1


def _is_chinese_id(number: str) -> bool:
    total = sum(weight * int(digit) for weight, digit in zip(_ID_WEIGHTS, number, strict=False))
    return _ID_CHECK[total % 11] == number[-1].upper()

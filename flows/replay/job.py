"""One replay as it was asked for: the generation's manifest, and what of the topic it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from connectors.log import LogReader
from connectors.settings import Settings
from flows import PIPELINE
from flows.generations import GenerationLog
from flows.parts import extractor_of, generation_log, in_generation, open_log
from flows.replay.answers import NobodyToAsk
from flows.replay.plan import Span, Wanted, in_scope, place_of, span_of
from stores.errors import UserError
from stores.generations import MAIN, AnswerMode, Generation, check_generation_name
from stores.protocols import ChatModel, Extractor

__all__ = ["Job", "asked_for", "extractor_with"]


def asked_for(into: str, start: str, end: str, ids: Mapping[str, str], answers: str) -> Generation:
    """Read the command line's words. Raises ``UserError`` naming the option that is wrong."""
    try:
        check_generation_name(into)
    except ValueError as error:
        message = f"--into: {error}"
        raise UserError(message) from None
    if into == MAIN:
        message = f"--into: {MAIN} is what `sediment run` fills; name a new generation"
        raise UserError(message)
    mode: AnswerMode | None = next((one for one in get_args(AnswerMode) if one == answers), None)
    if mode is None:
        message = f"--answers: {answers} is not one of {', '.join(get_args(AnswerMode))}"
        raise UserError(message)
    if place_of("--from", start).kind == "end":
        message = "--from: nothing lies behind the end; name where to begin"
        raise UserError(message)
    place_of("--to", end)
    scope = {name: value for name, value in sorted(ids.items()) if value}
    return Generation(name=into, start=start, end=end, scope=scope, answers=mode)


@dataclass(frozen=True)
class Job:
    """What a replay works on.

    :arg settings: those of the generation.
    :arg asked: the manifest that the command line asks for.
    """

    settings: Settings
    asked: Generation
    reader: LogReader
    register: GenerationLog
    span: Span
    wanted: Wanted | None

    @classmethod
    def of(cls, base: Settings, asked: Generation) -> Job:
        """Look up in the log what is asked for, as it is now."""
        wanted = in_scope(base.scope_fields, asked.scope)
        log = open_log(base)
        start, end = place_of("--from", asked.start), place_of("--to", asked.end)
        return cls(
            settings=in_generation(base, asked.name),
            asked=asked.model_copy(
                update={
                    "extractor": extractor_with(base).version,
                    "windows": _windows(base),
                    "pipeline": PIPELINE,
                }
            ),
            reader=log.reader,
            register=generation_log(base, log),
            span=span_of(log.reader, base.topic("l0.events"), start, end),
            wanted=wanted,
        )

    def manifest(self) -> Generation:
        """Give the generation's manifest: the one there is, or a new one.

        Raises ``UserError`` when there is one of other making, or it was dropped.
        """
        known = self.register.read()
        if self.asked.name not in known.manifests:
            return self.asked.model_copy(update={"created_from": known.current})
        generation = known.get(self.asked.name)
        if differences := generation.differences(self.asked):
            told = "; ".join(differences)
            message = (
                f"--into: generation {generation.name} was begun otherwise: {told}. "
                "Go on with the same, or replay into another generation"
            )
            raise UserError(message)
        return generation.model_copy(update={"problem": ""})


def extractor_with(settings: Settings, chat: ChatModel | None = None) -> Extractor:
    """Make the configured extractor on a model that asks nobody."""
    if not settings.llm_base_url:
        return extractor_of(settings, None)
    return extractor_of(settings, chat or NobodyToAsk(settings.llm_model))


def _windows(settings: Settings) -> str:
    """Say when windows close, so that a generation is not cut in two ways."""
    warmup = ", warm-up" if settings.window_warmup else ""
    return (
        f"{settings.window_user_turns} user turns{warmup}, {settings.window_gap_s:g} s, "
        f"{settings.window_max_tokens} tokens, {settings.window_background} before, "
        f"scope {'/'.join(settings.scope_fields)}"
    )

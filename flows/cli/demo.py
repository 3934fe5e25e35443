"""``sediment demo``: a conversation that ships with Sediment, from its events to recall."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from connectors.importers import ImportDefaults, read_events
from connectors.settings import Settings
from flows.cli.common import Brokers, DataDir, out, progress_bar, scope_label, settings_from
from flows.cli.ingest import Ingested, ingest_file
from flows.cli.memories import ask, show_answer, show_atoms
from flows.cli.persona import persona_with_navigation
from flows.cli.run import process
from flows.cli.scenes import show_index
from flows.demo import CONVERSATION, DemoQuestion, load_demo
from flows.progress import Progress
from flows.runner import StopSignal, stop_on_signals
from stores.errors import SettingsError
from stores.records import Atom

if TYPE_CHECKING:
    from connectors.query.models import RecallAnswer

__all__ = ["demo"]

_SHOWN_PER_QUESTION = 3
_TOUR = """\
sediment memories list --tenant demo --agent companion --user ana
sediment memories show ID --tenant demo --agent companion --user ana
sediment scenes history --tenant demo --agent companion --user ana
sediment persona show --tenant demo --agent companion --user ana
sediment recall "your own question" --tenant demo --agent companion --user ana
sediment ingest FILE --tenant acme --agent helper --user you --session first
sediment up        the flow and the query service together"""


def demo(data_dir: DataDir = None, brokers: Brokers = None) -> None:
    """Ingest a conversation, let all layers settle, ask questions. Again, it changes nothing.

    Example: sediment demo
    """
    settings = settings_from(data_dir=data_dir, brokers=brokers)
    questions = load_demo().questions
    where = f"the log in {settings.data_dir}" if settings.embedded else settings.brokers
    out.rule("[bold]1. Events go in")
    count = _ingest(settings)
    out.print(f"{count} events of three users over seven weeks, into {where}.")

    out.rule("[bold]2. Memory settles")
    out.print(_extraction_note(settings))
    stop = StopSignal()
    progress = Progress()
    with stop_on_signals(stop):
        process(settings, "all", stop, progress, follow=False)
    if stop():
        out.print("stopped; run the demo again and it goes on")
        return
    scopes = list(dict.fromkeys(_scope(question, settings) for question in questions))
    for scope, atoms in zip(scopes, _atoms(settings, scopes), strict=True):
        show_atoms(atoms, title=f"\nWhat is known of {scope_label(scope)}")
    out.print("\n● holds today   ○ superseded by something said later", style="dim")

    out.rule("[bold]3. Scenes and persona")
    _show_layers(settings, scopes[0])

    out.rule("[bold]4. Recall")
    asked = [(_scope(question, settings), question.question) for question in questions]
    for question, answer in zip(questions, ask(settings, asked), strict=True):
        _show(question, answer)
    out.rule("[bold]Go on")
    # `make demo` runs in a fresh clone, where the command is in .venv and not on the PATH.
    program = "sediment" if shutil.which("sediment") else os.path.relpath(sys.argv[0])
    out.print(Text(_TOUR.replace("sediment ", f"{program} ")), soft_wrap=True)


def _show_layers(settings: Settings, scope: str) -> None:
    """Show one user's scene folder, one of its files, and their persona."""
    from flows.layer_parts import open_persona_folder, open_scene_folder

    if settings.scene_writer == "off":
        out.print("SEDIMENT_SCENE_WRITER is off, so there are none")
        return
    with open_scene_folder(settings) as scenes, open_persona_folder(settings) as personas:
        files = scenes.files(scope)
        kept = len(scenes.history(scope))
        persona = persona_with_navigation(personas, scenes, scope)
    out.print(Text(f"The scene folder of {scope_label(scope)}, after {kept} runs", "bold"))
    show_index(files)
    largest = max(files, key=lambda name: (len(files[name].archived), name), default=None)
    if largest is not None:
        out.print(Text(f"\n{largest}", "bold"))
        out.print(Padding(Text(files[largest].body), (0, 0, 0, 3)))
    if persona is not None:
        out.print(Text("\npersona.md", "bold"))
        out.print(Padding(Text(persona.body), (0, 0, 0, 3)))


def _ingest(settings: Settings) -> int:
    from flows.opening import open_log

    if not settings.embedded:
        from connectors.kafka.connection import KafkaConnection
        from connectors.kafka.topics import create_topics

        connection = KafkaConnection(settings.brokers, settings.kafka)
        create_topics(connection, settings.topic_prefix, settings.topic_partitions)
    items = read_events(CONVERSATION, defaults=ImportDefaults(), format="events")
    done = Ingested()
    with progress_bar() as bar:
        task = bar.add_task("ingest", total=None)
        for done in ingest_file(items, open_log(settings).appender, settings):
            bar.update(task, completed=done.events, total=done.events)
    if done.problems:
        message = f"the demo conversation does not fit the settings: {done.problems[0]}"
        raise SettingsError(message)
    return done.events


def _extraction_note(settings: Settings) -> str:
    if settings.llm_base_url:
        return f"{settings.llm_model} at {settings.llm_base_url} extracts the memories."
    return (
        "No LLM is configured, so extraction is [bold]rule-based[/]: it finds plainly stated "
        "facts in English and Chinese and nothing subtler. For a model, set "
        "SEDIMENT_LLM_BASE_URL, SEDIMENT_LLM_API_KEY and SEDIMENT_LLM_MODEL to any "
        "OpenAI-compatible endpoint, and SEDIMENT_DATA_DIR to a new folder, and run it again."
    )


def _atoms(settings: Settings, scopes: Sequence[str]) -> list[list[Atom]]:
    from connectors.embeddings import make_embedder
    from flows.opening import open_store

    with open_store(settings, make_embedder(settings), write=False) as store:
        return [store.atoms_of(scope) for scope in scopes]


def _scope(question: DemoQuestion, settings: Settings) -> str:
    return settings.scope_of(tenant=question.tenant, agent=question.agent, user=question.user)


def _show(question: DemoQuestion, answer: RecallAnswer) -> None:
    out.print(Text.assemble(("\n" + question.question, "bold"), f"   ({question.user})"))
    show_answer(answer, _SHOWN_PER_QUESTION)

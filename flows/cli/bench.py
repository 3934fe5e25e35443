"""``sediment bench``: how good the memory is, measured on public benchmarks; and how fast."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table

from connectors.settings import Settings
from flows.bench.data import BENCHMARKS, Benchmark, Dataset, HalfChoice, chosen, hash_of_file
from flows.bench.datasets import LOADERS
from flows.bench.files import read_json
from flows.bench.rows import Row, rows_named
from flows.cli.bench_speed import speed
from flows.cli.common import Json, err, out, print_json, progress_bar, settings_from
from stores.errors import UserError

__all__ = ["bench"]

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure memory: its quality on PersonaMem, LoCoMo and LongMemEval, and its speed.",
)
_HALVES: tuple[HalfChoice, ...] = ("dev", "held-out", "all")
_ABOUT: Mapping[Benchmark, str] = {
    "personamem": "PersonaMem v1: choices of four, asked on the history visible to each question.",
    "locomo": "LoCoMo: dated sessions of two people; categories 1 to 4 scored, 5 apart.",
    "longmemeval": "LongMemEval, oracle or S: a haystack of sessions for each question.",
}
_READER_CALLS = 8
_SHOWN = (
    "row",
    "accuracy",
    "evidence_at_1000_tokens",
    "evidence_at_2000_tokens",
    "recall_at_10",
    "injected_tokens",
    "vs_plain",
    "vs_plain_p",
    "latency_p50_ms",
)

Data = Annotated[
    Path, typer.Option("--data", help="Folder of the official files.", exists=True, file_okay=False)
]
Out = Annotated[Path, typer.Option("--out", help="Folder of the results; one run each.")]
Work = Annotated[
    Path | None,
    typer.Option(
        "--work",
        help="Folder of memory, vectors and recorded answers; holds the data's text "
        "[default: work in --out]",
    ),
]
Half = Annotated[str, typer.Option("--half", help=f"One of {', '.join(_HALVES)}.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Questions at most.")]
RetrievalOnly = Annotated[
    bool, typer.Option("--retrieval-only", help="Measure what needs no reader.")
]
Rows = Annotated[
    str, typer.Option("--rows", help="Rows, with commas between; plain is always there.")
]
Budget = Annotated[
    int, typer.Option("--budget-tokens", min=1, help="Tokens of context a reader is given.")
]
ReaderUrl = Annotated[
    str, typer.Option("--reader-base-url", help="Endpoint of the reader [default: the LLM's].")
]
ReaderModel = Annotated[str, typer.Option("--reader-model", help="Its model.")]
ReaderKey = Annotated[
    str,
    typer.Option("--reader-api-key", envvar="BENCH_READER_API_KEY", help="Its key."),
]
JudgeUrl = Annotated[
    str, typer.Option("--judge-base-url", help="Endpoint of the judge [default: the reader's].")
]
JudgeModel = Annotated[str, typer.Option("--judge-model", help="Its model.")]
JudgeKey = Annotated[
    str, typer.Option("--judge-api-key", envvar="BENCH_JUDGE_API_KEY", help="Its key.")
]
Prices = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        help='JSON of dollars for a million tokens: {"model": {"prompt": 1, "completion": 4}}.',
        exists=True,
        dir_okay=False,
    ),
]
WithText = Annotated[
    bool, typer.Option("--with-text", help="Keep question, context and answer in the lines.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would ask and cost; do not.")]


@dataclass(frozen=True)
class _Endpoint:
    base_url: str
    model: str
    api_key: str


@dataclass(frozen=True)
class _Options:
    data: Path
    out: Path
    work: Path
    half: HalfChoice
    limit: int | None
    rows: Sequence[Row]
    budget_tokens: int
    reader: _Endpoint | None
    judge: _Endpoint | None
    prices: Mapping[str, Mapping[str, float]]
    with_text: bool


def _command(name: Benchmark) -> Callable[..., None]:
    def command(
        data: Data,
        out_folder: Out,
        work: Work = None,
        half: Half = "dev",
        limit: Limit = None,
        retrieval_only: RetrievalOnly = False,
        rows: Rows = "",
        budget_tokens: Budget = 2000,
        reader_base_url: ReaderUrl = "",
        reader_model: ReaderModel = "",
        reader_api_key: ReaderKey = "",
        judge_base_url: JudgeUrl = "",
        judge_model: JudgeModel = "",
        judge_api_key: JudgeKey = "",
        prices: Prices = None,
        with_text: WithText = False,
        dry_run: DryRun = False,
        json: Json = False,
    ) -> None:
        settings = settings_from()
        if half not in _HALVES:
            message = f"--half: {half} is not one of {', '.join(_HALVES)}"
            raise UserError(message)
        reader = judge = None
        if not retrieval_only:
            reader = _reader(settings, reader_base_url, reader_model, reader_api_key, dry_run)
            judge = _Endpoint(
                judge_base_url or reader.base_url,
                judge_model or reader.model,
                judge_api_key or (reader.api_key if not judge_base_url else ""),
            )
        options = _Options(
            data=data,
            out=out_folder,
            work=work or out_folder / "work",
            half=half,
            limit=limit,
            rows=rows_named([one.strip() for one in rows.split(",") if one.strip()]),
            budget_tokens=budget_tokens,
            reader=reader,
            judge=judge,
            prices=_price_table(prices),
            with_text=with_text,
        )
        _run(name, settings, options, dry_run=dry_run, json=json)

    command.__doc__ = f"""{_ABOUT[name]}

    Builds memory with the pipeline as it is set up, then asks every row every question: no
    memory, full context, plain hybrid search, Sediment, and Sediment without each layer. Killed
    and started again it goes on. Without a reader give --retrieval-only.

    Example: sediment bench {name} --data data/{name} --out results/{name} --retrieval-only
    """
    return command


for _name in BENCHMARKS:
    bench.command(_name)(_command(_name))
bench.command("speed")(speed)


def _reader(
    settings: Settings, base_url: str, model: str, api_key: str, dry_run: bool
) -> _Endpoint:
    if dry_run and not (base_url or settings.llm_base_url):
        return _Endpoint("", model or "any model", "")  # to estimate, nobody is asked
    if base_url:
        if not model:
            message = "--reader-model: say which model of --reader-base-url reads"
            raise UserError(message)
        return _Endpoint(base_url, model, api_key)
    if not settings.llm_base_url:
        message = (
            "no reader: give --reader-base-url and --reader-model, set SEDIMENT_LLM_BASE_URL, or "
            "ask for --retrieval-only"
        )
        raise UserError(message)
    key = api_key or settings.llm_api_key.get_secret_value()
    return _Endpoint(settings.llm_base_url, model or settings.llm_model, key)


def _price_table(path: Path | None) -> Mapping[str, Mapping[str, float]]:
    if path is None:
        return {}
    table = read_json(path, dict)
    for model, price in table.items():
        fine = isinstance(price, dict) and all(
            isinstance(price.get(key), int | float) for key in ("prompt", "completion")
        )
        if not fine:
            message = f"--prices: {model} needs numbers prompt and completion"
            raise UserError(message)
    return cast("Mapping[str, Mapping[str, float]]", table)


def _run(
    name: Benchmark, settings: Settings, options: _Options, *, dry_run: bool, json: bool
) -> None:
    dataset = chosen(LOADERS[name](options.data), options.half, options.limit)
    if not dataset.questions:
        message = (
            f"--half: no question of {options.data} is in {options.half} ({dataset.half_rule})"
        )
        raise UserError(message)
    if dry_run:
        _show_plan(_plan(dataset, settings, options), json)
        return
    from flows.bench.results import Results

    config = _config(dataset, settings, options)
    results = Results(options.out, config["identity"])
    results.describe(config)
    if not json:
        err.print(f"{config['half']} half: {dataset.half_rule}")
        for note in dataset.notes:
            err.print(note)
    _measure(dataset, settings, options, results)
    _tell(dataset, settings, options, config, json)


def _measure(dataset: Dataset, settings: Settings, options: _Options, results: Any) -> None:
    from flows.bench.building import bench_settings, opened_memory
    from flows.bench.run import Run, Telling
    from flows.runner import StopSignal, stop_on_signals

    own = bench_settings(settings, options.work)
    stop = StopSignal()
    with ExitStack() as stack:
        reader = _open_reader(options, settings.llm_timeout_s, stack)
        run = Run(dataset, options.rows, options.budget_tokens, results, reader, options.with_text)
        total = len(dataset.questions) * len(options.rows)
        if not run.missing():
            return
        stack.enter_context(stop_on_signals(stop))
        memory = stack.enter_context(opened_memory(own, options.work))
        bar = stack.enter_context(progress_bar())
        building = bar.add_task("events indexed", total=None)
        asking = bar.add_task("answers", total=total, completed=total - run.missing())

        def built(number: int, rounds: int, progress: Any) -> None:
            name = f"round {number} of {rounds}, events"
            bar.update(building, description=name, completed=progress.indexed)

        def asked(done: int, of: int) -> None:
            bar.update(asking, completed=done, total=of)

        run.execute(memory, stop, Telling(built, asked))
    if stop():
        raise KeyboardInterrupt


def _open_reader(options: _Options, timeout_s: float, stack: ExitStack) -> Any:
    if options.reader is None or options.judge is None:
        return None
    from connectors.llm import OpenAIChat, RecordedChat
    from flows.bench.reading import Reader
    from stores.answers import SqliteAnswers

    journal = stack.enter_context(closing(SqliteAnswers(options.work / "readings.sqlite")))

    def chat(endpoint: _Endpoint) -> RecordedChat:
        model = OpenAIChat(
            endpoint.model,
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            timeout_s=timeout_s,
        )
        return RecordedChat(model, journal)

    return Reader(chat(options.reader), chat(options.judge), at_once=_READER_CALLS)


def _config(dataset: Dataset, settings: Settings, options: _Options) -> dict[str, Any]:
    from flows import PIPELINE
    from flows.bench.retrieval import BUDGETS, ITEM_CHARS, ITEMS

    extractor = settings.llm_model if settings.llm_base_url else "rule-based, no LLM"
    embeddings = settings.embeddings_model if settings.embeddings_base_url else "bundled model"
    reader = options.reader.model if options.reader else ""
    judge = options.judge.model if options.judge else ""
    files = {path.name: hash_of_file(path) for path in dataset.files}
    return {
        "benchmark": dataset.name,
        "identity": {
            "benchmark": dataset.name,
            "data": files,
            "half": options.half,
            "budget_tokens": options.budget_tokens,
            "reader": reader,
            "judge": judge,
            "extractor": extractor,
            "embeddings": embeddings,
        },
        "half": options.half,
        "half_rule": dataset.half_rule,
        "notes": dataset.notes,
        "questions": len(dataset.questions),
        "limit": options.limit,
        "rows": [row.name for row in options.rows],
        "reader": reader,
        "judge": judge,
        "extractor": extractor,
        "embeddings": embeddings,
        "budgets": BUDGETS,
        "items": ITEMS,
        "item_chars": ITEM_CHARS,
        "recall_half_life_days": settings.recall_half_life_days,
        "pipeline": PIPELINE,
        "commit": _commit(),
    }


def _commit() -> str:
    """Name the commit of this code; empty where it was installed without one."""
    here = Path(__file__).parent
    ask = ("git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40")
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


def _tell(
    dataset: Dataset,
    settings: Settings,
    options: _Options,
    config: dict[str, Any],
    json: bool,
) -> None:
    """Write the tables and the report, of the lines of this half and limit."""
    from flows.bench.building import bench_settings, build_costs
    from flows.bench.report import to_html
    from flows.bench.results import Results
    from flows.bench.summary import Price, Tally, fields_of, summarise, to_csv, types_to_csv

    results = Results(options.out, config["identity"])
    asked = {one.id for one in dataset.questions}
    lines = [line for line in results.lines.values() if line.question_id in asked]
    models = {"build": settings.llm_model, "reader": config["reader"], "judge": config["judge"]}
    prices = {
        part: Price(options.prices[model]["prompt"], options.prices[model]["completion"])
        for part, model in models.items()
        if model in options.prices
    }
    tally = Tally(build_costs(bench_settings(settings, options.work)), prices)
    scored = [line for line in lines if line.scored]
    summaries = summarise(scored, options.rows, tally)
    by_type = {
        kind: summarise([line for line in scored if line.type == kind], options.rows, tally)
        for kind in sorted({line.type for line in scored})
    }
    left = [line for line in lines if not line.scored]
    apart = summarise(left, options.rows, tally) if left else []
    results.write("summary.csv", to_csv(summaries))
    results.write("types.csv", types_to_csv(by_type))
    report = results.write("report.html", to_html(options.rows, summaries, by_type, apart, config))
    shown = [fields_of(one) for one in summaries]
    if json:
        print_json(
            {
                "benchmark": dataset.name,
                "half": options.half,
                "half_rule": dataset.half_rule,
                "out": str(options.out),
                "rows": shown,
                "apart": [fields_of(one) for one in apart],
            }
        )
        return
    table = Table(title=f"{dataset.name}, {len(asked)} questions, {options.half} half")
    table.add_column("row", min_width=max(len(row.name) for row in options.rows))
    measured = [name for name in _SHOWN if any(values[name] is not None for values in shown)]
    for column in measured[1:]:
        table.add_column(column.replace("_", " "), justify="right", overflow="fold")
    for values in shown:
        table.add_row(*("" if values[name] is None else str(values[name]) for name in measured))
    out.print(table)
    if failed := sum(sum(one.errors.values()) for one in summaries):
        err.print(f"{failed} answers failed and count as wrong; the report says why")
    out.print(f"report: {report}")


def _plan(dataset: Dataset, settings: Settings, options: _Options) -> dict[str, Any]:
    """Estimate what a run would ask. Nothing is opened."""
    from flows.bench.estimates import estimated

    models = {
        "build": settings.llm_model if settings.llm_base_url else "",
        "reader": options.reader.model if options.reader else "",
        "judge": options.judge.model if options.judge else "",
    }
    return estimated(
        dataset,
        options.rows,
        budget_tokens=options.budget_tokens,
        turns_per_window=settings.window_user_turns,
        models=models,
        prices=options.prices,
    )


def _show_plan(plan: Mapping[str, Any], json: bool) -> None:
    if json:
        print_json(plan)
        return
    table = Table(title="what this run would do (estimated)", show_header=False)
    for name, value in plan.items():
        table.add_row(name.replace("_", " "), "unknown" if value is None else str(value))
    out.print(table)

"""The parts of the page: what is shown of one run, or of several side by side.

One run: training and validation have a colour each. Several: every run has one, its training is
thin and its validation has dots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fairseq_hybrid.pages import charts, skeleton, timelines
from fairseq_hybrid.pages.charts import Curve
from fairseq_hybrid.pages.skeleton import colour, number, text
from fairseq_hybrid.planner import panels, traces
from fairseq_hybrid.report import settings
from fairseq_hybrid.report.run import Run
from fairseq_hybrid.report.samples import Sample, attention_map

BY_UPDATES, BY_TIME = "by-updates", "by-minutes"
SHARES = (("k-forward", "computing"), ("k-send", "busy sending"), ("k-wait", "waiting"))


# What to see first


def summary(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs side by side: {', '.join(run.name for run in runs)}."
    (run,) = runs
    parts = [str(run.setting("arch") or ""), _workers(run)]
    if run.log.parameters:
        parts.append(f"{number(run.log.parameters)} parameters")
    return ", ".join(part for part in parts if part) + f": {run.state}."


def _workers(run: Run) -> str:
    count = run.setting("distributed_world_size")
    if not isinstance(count, int):
        return ""
    return "1 worker" if count == 1 else f"{count} workers under {run.setting('ddp_backend')}"


def _facts(run: Run, name: str) -> Iterator[tuple[str, str, str]]:
    """What, how much, and a word on it. `name`: of the loss that is shown."""
    log = run.log
    loss = run.best(name)
    if loss:
        value = loss.values[name]
        more = f"at update {loss.update:,}"
        if "ppl" in loss.values:
            more = f"perplexity {number(loss.values['ppl'])}, {more}"
        yield "best validation loss", f"{value:.3f}", more
    elif log.curve:
        value = log.curve[-1].values.get(name, math.nan)
        yield "last training loss", _fixed(value), "no validation in the log"
    bleu = run.best("bleu", max)
    if run.bleu is not None:
        yield "BLEU, test", f"{run.bleu:.2f}", "score.txt"
    if bleu:
        yield "best BLEU, validation", f"{bleu.values['bleu']:.2f}", f"at update {bleu.update:,}"
    speed = run.middle("wps")
    if speed is not None:
        yield "words per second", number(speed), "target words, median"
    starts = len(log.sessions)
    more = f"in {starts} sessions" if starts > 1 else f"{log.epoch} epochs" if log.epoch > 1 else ""
    yield "updates", f"{log.updates:,}", more
    yield "time", duration(log.seconds), _when(run)
    sent = run.middle("sent_mb")
    if sent is not None:
        yield "sent per update", f"{number(sent)} MB", "all workers of a replica together"
    waits = [run.mean(f"wait{n}") for n in range(run.stages)]
    if waits:
        share = sum(w for w in waits if w is not None) / len(waits)
        yield "waiting", f"{share:.0f} %", "of the workers' time"


def facts(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return skeleton.figures(_facts(runs[0], _loss(runs)))
    every = [{what: value for what, value, _ in _facts(run, _loss(runs))} for run in runs]
    names = list(dict.fromkeys(name for facts in every for name in facts))
    rows = [
        ["state", *(run.state for run in runs)],
        ["model", *(str(r.setting("arch") or "–") for r in runs)],
    ]
    rows.append(["workers", *(_workers(run) or "–" for run in runs)])
    rows += [[name, *(facts.get(name, "–") for facts in every)] for name in names]
    table = skeleton.table(["", *(run.name for run in runs)], rows, colours=True)
    return skeleton.section("At a glance", [table])


def _when(run: Run) -> str:
    dates = [day for s in run.log.sessions for day in (s.began, s.ended) if day]
    if not dates:
        return ""
    begin, end = dates[0], dates[-1]
    same = begin.date() == end.date()
    return f"{begin:%-d %b %Y, %H:%M} – {end:{'%H:%M' if same else '%-d %b, %H:%M'}}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def remarks(runs: Sequence[Run], notes: Sequence[str]) -> str:
    """What one should know of the logs: restarts, losses that are no numbers, warnings."""
    shown = list(notes)
    for run in runs:
        log, whose = run.log, f"{run.name}: " if len(runs) > 1 else ""
        if log.odd:
            shown.append(
                f"{whose}the loss was not a finite number in {log.odd:,} reports, first at update "
                f"{log.odd_at:,}."
            )
        if log.lost:
            shown.append(
                f"{whose}{log.lost:,} updates were made again after a restart; the curves show "
                "them once, the time counts both."
            )
        if "before" in run.state and log.last:
            shown.append(f"{whose}the log ends with: {log.last}")
        if log.config is None:
            shown.append(
                f"{whose}the log does not have the settings, so neither comparison nor command."
            )
    lists = []
    for run in runs:
        said = [
            f"{message}{f' ({count:,} times)' if count > 1 else ''}"
            for message, count in run.log.messages.items()
        ]
        if run.log.more_messages:
            said.append(f"and {run.log.more_messages:,} more")
        if said:
            inside = "".join(skeleton.paragraph(line) for line in said)
            lists.append(skeleton.details(f"Warnings and errors in the log of {run.name}", inside))
    if not shown and not lists:
        return ""
    return skeleton.section(
        "Remarks", [*(skeleton.paragraph(line, "text warn") for line in shown), *lists]
    )


# Curves


def time_unit(runs: Sequence[Run]) -> tuple[str, float]:
    longest = max(run.log.seconds for run in runs)
    return ("hours", 3600.0) if longest > 6 * 3600 else ("minutes", 60.0)


def curves(runs: Sequence[Run]) -> str:
    unit, seconds = time_unit(runs)
    by = [(BY_UPDATES, False, "update", 1.0), (BY_TIME, True, unit, seconds)]
    figures: list[str] = []
    for kind, by_time, x_unit, scale in by:
        figures += _charts(runs, kind, by_time, x_unit, scale)
    if not any(figures):
        return ""
    switch = (
        '<div class="switch" role="radiogroup" aria-label="Curves against">against '
        '<input type="radio" name="x" id="x-updates" checked><label for="x-updates">updates</label>'
        '<input type="radio" name="x" id="x-minutes">'
        f'<label for="x-minutes">{unit}</label></div>'
    )
    body = f'<div class="charts">{"".join(figures)}</div>'
    return skeleton.section("Curves", [switch, _legend(runs), body])


def _legend(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return skeleton.key([(f"{colour(0)}", "training"), (f"{colour(1)} dot", "validation")])
    entries = [(_kind(i), run.name) for i, run in enumerate(runs)]
    return skeleton.key(entries) + skeleton.paragraph(
        "Thin: training. With dots: validation.", "note"
    )


def _loss(runs: Sequence[Run]) -> str:
    """What all of them logged and can be compared by: without label smoothing."""
    return "nll_loss" if all(run.has("nll_loss") for run in runs) else "loss"


def _kind(place: int) -> str:
    return colour(place) + (" dashed" if place // 8 % 2 else "")


def _charts(
    runs: Sequence[Run], kind: str, by_time: bool, x_unit: str, scale: float
) -> Iterator[str]:
    one = len(runs) == 1
    loss = _loss(runs)
    lines = []
    for i, run in enumerate(runs):
        name = "" if one else f"{run.name}, "
        validated = run.validation(loss, by_time, scale)
        faint = "" if one or not validated else " faint"
        lines.append(Curve(f"{name}training", _kind(i) + faint, run.curve(loss, by_time, scale)))
        lines.append(
            Curve(f"{name}validation", colour(1) if one else _kind(i), validated, dots=True)
        )
    title = "Loss" if loss == "loss" else "Loss without label smoothing"
    yield charts.chart(title, "bits per target word", lines, x_unit, f"large {kind}")
    bleu = [
        Curve(
            run.name, colour(1) if one else _kind(i), run.validation("bleu", by_time, scale), True
        )
        for i, run in enumerate(runs)
    ]
    yield charts.chart("BLEU of validation", "higher is better", bleu, x_unit, kind)
    for name, title, unit, zero in (
        ("wps", "Speed", "target words per second", True),
        ("lr", "Learning rate", "", False),
        ("sent_mb", "Sent per update", "MB, all workers of a replica", True),
    ):
        some = [
            Curve(run.name, _kind(i), run.curve(name, by_time, scale)) for i, run in enumerate(runs)
        ]
        yield charts.chart(title, unit, some, x_unit, kind, zero)


# Time of the workers


def time_of_stages(runs: Sequence[Run], notes: list[str]) -> str:
    with_stages = [run for run in runs if run.stages]
    body, dummy = [], len(runs) == 1
    if with_stages:
        rows = []
        for run in with_stages:
            for n in reversed(range(run.stages)):
                wait, send = (run.mean(f"{what}{n}") or 0.0 for what in ("wait", "send"))
                parts = [
                    ("forward", "computing", 100 - wait - send),
                    ("send", "busy sending", send),
                ]
                name = f"stage {n}" if dummy else f"{run.name}, stage {n}"
                rows.append((name, [*parts, ("wait", "waiting", wait)]))
        body += [
            skeleton.key((f"{kind} box", name) for kind, name in SHARES),
            timelines.shares(rows),
        ]
        ideal = [
            f"{run.mean('ideal'):.0f} %" for run in with_stages if run.mean("ideal") is not None
        ]
        if ideal:
            body.append(skeleton.paragraph(
                f"Computing at most: {', '.join(ideal)}, in a simulation of the schedule in which "
                "messages take no time.", "note",
            ))  # fmt: skip
    for run in runs:
        if run.trace:
            body.append(_traced(run, notes, with_name=not dummy))
    if not any(body):
        return ""
    note = (
        "A stage is a worker's share of the layers; stage 0 has the embeddings and the first "
        "layers. Means over the whole run."
    )
    return skeleton.section("Where the time goes", body, note)


def _traced(run: Run, notes: list[str], with_name: bool) -> str:
    try:
        updates = traces.read_updates(str(run.trace))
    except Exception as error:
        notes.append(f"{run.name}: no timeline, as {run.trace} cannot be read: {error}")
        return ""
    whose = f"{run.name}: " if with_name else ""
    shown = [
        panels.Panel(
            f"{whose}{each.update}, measured: {1000 * each.timeline.seconds:,.0f} ms",
            each.timeline,
            [f"stage {n % each.stages}" for n in range(each.timeline.workers)],
        )
        for each in updates
    ]
    return panels.html(shown)


# The rest


def sentences(runs: Sequence[Run], found: Mapping[str, Sequence[Sample]], split: str) -> str:
    """`found`: by name of the run, the same sentences in the same order."""
    if not found:
        return ""
    names = [run.name for run in runs if run.name in found]
    articles: list[str] = []
    for samples in zip(*(found[name] for name in names)):
        rows = [("source", samples[0].source)]
        rows += [
            (name if len(names) > 1 else "output", s.output) for name, s in zip(names, samples)
        ]
        rows.append(("wanted", samples[0].wanted))
        inside = "".join(f"<dt>{text(a)}</dt><dd>{text(b)}</dd>" for a, b in rows)
        maps = [attention_map(sample) for sample in samples]
        drawn = "".join(
            (skeleton.element("h3", text(name)) if len(names) > 1 else "") + each
            for name, each in zip(names, maps)
            if each
        )
        more = (
            skeleton.details("what it looked at", drawn, len(runs) == 1 and not articles)
            if drawn
            else ""
        )
        articles.append(f'<article><dl class="sample">{inside}</dl>{more}</article>')
    note = (
        f"From the {split} set, beam 5. What it looked at: a row for each piece of the output, "
        "a column for each of the source; the darker, the more attention."
    )
    return skeleton.section("Translations", articles, note)


def comparison(runs: Sequence[Run]) -> str:
    known = [run for run in runs if run.log.config]
    if len(known) < 2:
        return ""
    rows = settings.differences([run.log.config or {} for run in known])
    if not rows:
        return skeleton.section(
            "Settings that differ", [], "None: these runs have the same settings."
        )
    table = skeleton.table(
        ["", *(r.name for r in known)], [[f, *v] for f, v in rows], colours=len(known) == len(runs)
    )
    return skeleton.section("Settings that differ", [table])


def commands(runs: Sequence[Run]) -> str:
    parts = []
    for run in runs:
        inside = ""
        words = settings.command(run.log.config) if run.log.config else None
        if words:
            inside += _titled("Train on", _how_it_goes_on(run))
            inside += skeleton.command(["fairseq-hybrid-train", *words])
        elif run.log.config:
            said = "No command to train on: this installation has no such model, task or the like."
            inside += skeleton.paragraph(said, "note")
        if run.checkpoint and run.setting("task") == "translation":
            inside += _titled("Translate")
            inside += skeleton.command(
                ["fairseq-hybrid-translate", str(run.checkpoint), "A sentence."]
            )
        if inside:
            parts.append(inside if len(runs) == 1 else skeleton.details(run.name, inside))
    return skeleton.section("Go on", parts) if parts else ""


def _titled(title: str, note: str = "") -> str:
    return skeleton.element("h3", text(title)) + skeleton.paragraph(note, "note")


def _how_it_goes_on(run: Run) -> str:
    said = (
        "The settings of the log, where they are not fairseq's defaults. It goes on from "
        "checkpoint_last.pt in --save-dir; start it where the training was started."
    )
    last = run.log.sessions[-1] if run.log.sessions else None
    if last is None or not last.done:
        return said
    limit = next((n for n in ("max_update", "max_epoch", "patience") if n in last.why), None)
    more = f": raise {settings.flag(limit)} to train longer" if limit else ""
    return f"This training is done{more}. {said}"


def _fixed(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "not a number"

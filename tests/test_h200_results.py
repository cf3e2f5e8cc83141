"""The page of the H200 results: each of its figures is derived again from the records and the bench files."""

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import ladder
import pytest
import yaml
from support.quick import ROOT

from ampcompare import load_runs
from ampcompare.runs import RunRecord

FOLDER = ROOT / "docs" / "results" / "2026-11-26-h200"
BACKENDS = ("none", "native", "apex_o1")
# Names and dates that have digits and are no figures.
NAMES = r"ResNet50|CIFAR-10|NVIDIA H200|TF32|fp32|fp16|bf16|2026-11-26|O1"


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def arms(name: str) -> dict[str, dict[str, Any]]:
    return {arm["label"]: arm for arm in read(name)["arms"]}


def milliseconds(name: str, operation: str) -> list[float]:
    """Both columns of a row of `why explain`: fp32's and the backend's."""
    row = re.search(rf"^ {operation}, ms +(\S+) +(\S+)", (FOLDER / name).read_text(), re.M)
    assert row is not None, operation
    return [float(value) for value in row.groups()]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RunRecord]]:
    """Return the runs of the archive by folder."""
    folder = tmp_path_factory.mktemp("records")
    with tarfile.open(FOLDER / "records.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return {name: load_runs([folder / name]) for name in ("comparison", "memory", "strong40")}


@pytest.fixture(scope="module")
def page() -> str:
    return (FOLDER / "README.md").read_text()


@pytest.fixture(scope="module")
def rungs() -> list[ladder.Rung]:
    return ladder.build_ladder(ladder.read_measurements(FOLDER))


def test_the_ladder_of_the_page_is_made_from_the_files(page: str, rungs: list[ladder.Rung]):
    assert f"\n{ladder.to_markdown(rungs)}\n" in page
    assert (FOLDER / "ladder.png").stat().st_size > 10_000
    known = json.loads(json.dumps([vars(rung) for rung in rungs], default=vars))
    for found, written in zip(known, read("ladder.json"), strict=True):
        assert found.keys() == written.keys()
        assert found["images_per_second"] == pytest.approx(written["images_per_second"])
        assert [found[key] for key in ("backend", "source", "others")] == [
            written[key] for key in ("backend", "source", "others")
        ]


def test_each_rung_has_the_rate_of_its_source_and_the_quotients_of_rates(
    rungs: list[ladder.Rung], records: dict[str, list[RunRecord]]
):
    """By a way of its own: from the options of an arm, or the config of a run; ratios from rates alone."""
    about = yaml.safe_load((FOLDER / "measurements.yaml").read_text())["files"]
    rates: dict[tuple[str, tuple[str, str, str]], list[float]] = {}
    for name in (name for name in about if name.endswith(".json")):
        for arm in read(name)["arms"]:
            if arm["images_per_second"] and "execution" in arm["options"]:
                backend, execution = arm["options"]["backend"], arm["options"]["execution"]
                backend = "tf32" if about[name]["tf32"] and backend == "none" else backend
                rung = (backend, about[name]["memory_format"], execution)
                rates.setdefault((name, rung), []).append(arm["images_per_second"])
    for name, runs in records.items():
        for run in runs:
            assert (run.config["tf32"], run.config["memory_format"]) == (
                about[name]["tf32"],
                about[name]["memory_format"],
            )
            rung = tuple(run.config[key] for key in ("backend", "memory_format", "execution"))
            value = run.summary_number("throughput/images_per_second_median")
            rates.setdefault((name, rung), []).append(value)
    taken = set()
    for rung in rungs:
        own = (rung.backend, rung.memory_format, rung.execution)
        for source, rate in ((rung.source, rung.images_per_second), *rung.others):
            assert rate == pytest.approx(geometric_mean(rates[source, own]))
            taken.add((source, own))
        for base, relative in (("none", rung.to_strict), ("tf32", rung.to_tf32)):
            if relative is not None:
                first, last = relative.sources[0], relative.sources[-1]
                theirs = geometric_mean(rates[last, (base, *own[1:])])
                # The bench's ratio is a median of ratios: near the quotient of the two medians. Steps of
                # eager trainings vary more.
                near = 0.02 if rung.execution == "eager" else 0.005
                assert relative.value == pytest.approx(geometric_mean(rates[first, own]) / theirs, rel=near)
    assert taken == rates.keys()


def figures(records: dict[str, list[RunRecord]]) -> Iterator[str]:
    """Every passage of the page with a figure, as the files have it."""
    yield from of_the_comparison(records["comparison"])
    yield from of_the_ladder()
    yield from of_the_memory(records["memory"])
    yield from of_forty_epochs(*records["strong40"])
    yield from of_batch_norm()


def of_the_comparison(runs: list[RunRecord]) -> Iterator[str]:
    found = read("comparison/comparison.json")
    groups = {group["label"]: group for group in found["groups"]}

    def mean(label: str, figure: str) -> float:
        return groups[label]["figures"][figure]["value"]

    def ends(label: str, figure: str) -> list[float]:
        compared = groups[label]["compared"][figure]
        assert compared["confidence"] == pytest.approx(1 - 0.05 / 6)  # two backends, three looks
        return [compared[key] for key in ("value", "low", "high")]

    def percent(label: str, figure: str) -> str:
        value, low, high = (f"{100 * (x - 1):+.0f}" for x in ends(label, figure))
        spread = f" ({low} to {high})" if (low, high) != (value, value) else " (no spread)"
        return minus(f"{value}%{spread}")

    def points(label: str) -> tuple[str, str]:
        value, low, high = (minus(f"{x:+.2f}") for x in ends(label, "quality_difference"))
        return value, f"{low} to {high}"

    speeds = {label: "{:.2f}× ({:.2f} to {:.2f})".format(*ends(label, "speedup")) for label in BACKENDS[1:]}
    value, low, high = ends("native", "speedup")
    gain, span = points("native")
    yield f"{value:.2f}× as fast (99.17% CI {low:.2f} to {high:.2f}; n = {groups['native']['runs']} seeds;"
    energy, memory = (f"{100 * (1 - ends('native', f)[0]):.0f}%" for f in ("energy_ratio", "memory_ratio"))
    yield f"Peak memory falls by {memory} and GPU energy per image by {energy}."
    times = {label: f"{mean(label, 'seconds_to_target'):.0f} s" for label in BACKENDS}
    yield f"reaches {found['target']:.0f}% eval accuracy after {times['native']} instead of {times['none']}."
    yield f"inconclusive: {gain} points, 99.17% CI {span}."
    yield "The brackets hold 99.17% confidence intervals"

    def row(name: str, base: str, cell: Any) -> str:
        return f"\n| {name} | {base} | {cell('native')} | {cell('apex_o1')} |\n"

    rate = {label: f"{mean(label, 'images_per_second'):,.0f} images/s" for label in BACKENDS}
    peak = {label: f"{mean(label, 'peak_mib'):,.0f} MiB" for label in BACKENDS}
    joules = {label: f"{mean(label, 'joules_per_image'):.3g} J" for label in BACKENDS}
    score = {label: f"{mean(label, 'quality'):.2f}%" for label in BACKENDS}
    epochs = f"{runs[0].config['epochs']}"
    yield row("speed", rate["none"], lambda label: f"{speeds[label]}, {rate[label]}")
    yield row("peak memory", peak["none"], lambda label: f"{percent(label, 'memory_ratio')}, {peak[label]}")
    yield row(
        "GPU energy per image",
        joules["none"],
        lambda label: f"{percent(label, 'energy_ratio')}, {joules[label]}",
    )
    yield row(
        f"training time to {found['target']:.0f}% eval accuracy",
        times["none"],
        lambda label: f"{percent(label, 'time_ratio')}, {times[label]}",
    )
    yield f"**Time to {found['target']:.0f}%.**"
    yield row(
        f"eval accuracy after {epochs} epochs",
        score["none"],
        lambda label: "{} points ({}), {}".format(*points(label), score[label]),
    )
    assert ends("native", "time_ratio")[2] < 1 < ends("apex_o1", "time_ratio")[2]  # shown, not shown
    whole = {x: mean("none", "train_seconds") / mean(x, "train_seconds") for x in BACKENDS[1:]}
    yield (
        f"{value:.2f}× is the ratio of median step rates. The ratio of the whole training times, with "
        f"capture and slow steps included, is {whole['native']:.2f}× for `native` "
        f"and {whole['apex_o1']:.2f}× for `apex_o1`."
    )
    seeds = sorted({run["seed"] for run in found["runs"]})
    yield f"seeds {seeds[0]}, {seeds[1]} and {seeds[2]}, {epochs} epochs"
    yield f"learning rate {runs[0].config['optimizer']['lr']}, cosine"
    assert runs[0].config["optimizer"]["momentum"] == runs[0].config["optimizer"]["weight_decay"] == 0
    batch = {run.config["batch_size"] for run in runs}
    yield f"at batch {batch.pop()}:"
    images = round(runs[0].summary_number("data/test_images") or 0) + 50_000
    assert runs[0].values("global_step").max() == int(epochs) * (50_000 // 128 + 1)
    yield f"The {images:,} images"
    plan = runs[0].config["plan"]
    yield "looks at {}, {} and {} seeds counted".format(*plan["looks"])
    yield f"a margin of {plan['margin']} points"
    accuracies = [run["quality"] for run in found["runs"] if run["name"].startswith("none_")]
    yield f"differ by {max(accuracies) - min(accuracies):.2f} points between seeds"
    skipped = sorted({round(run["skipped_steps"]) for run in found["runs"]} - {0})
    steps = round(runs[0].values("global_step").max())
    yield f"skipped {skipped[0]} or {skipped[1]} of its {steps:,} steps"
    assert len(skipped) == 2
    seen = runs[0].environment
    yield f"driver {seen['driver']}, torch {seen['torch']}, cuDNN 9.19.0, Python {seen['python']}."
    assert seen["cudnn"] == 9 * 10_000 + 19 * 100
    yield f"The largest speed-up above, {value:.2f}×,"


def of_the_ladder() -> Iterator[str]:
    compiled, loops, backends = map(arms, ("compiled.json", "loops.json", "backends.json"))
    native = [compiled[f"native execution={how}"] for how in ("cuda_graph", "compile_graph")]
    tf32 = [compiled[f"none execution={how}"] for how in ("cuda_graph", "compile_graph")]
    graph, compiler = (f"{a['ratio'] / b['ratio']:.2f}×" for a, b in zip(native, tf32, strict=True))
    yield f"trains {graph} as fast in `cuda_graph` and {compiler} as fast in `compile_graph`"
    yield f"adds {graph} to that in `cuda_graph` and {compiler} in `compile_graph`"
    strict, plain = backends["none"]["images_per_second"], tf32[0]["images_per_second"]
    yield f"TF32 alone is {plain / strict:.2f}× as fast as strict fp32 †"
    yield f"only {backends['native_bf16']['images_per_second'] / plain:.2f}× as fast as TF32 †"
    rates = [x["images_per_second"] for x in (backends["native"], loops["native cuda_graph"], native[0])]
    rates.append(arms("tf32.json")["native"]["images_per_second"])
    yield f"differ by up to {100 * (max(rates) / min(rates) - 1):.1f}%"
    eager = arms("exec.json")["native execution=eager"]["images_per_second"]
    eager /= loops["native eager"]["images_per_second"]
    control = read("exec.json")["control"]
    spread = f"{control['ratio']:.2f}× ({control['low']:.2f} to {control['high']:.2f})"
    yield f"differs by {100 * (eager - 1):.0f}%; the control of `exec.json` was {spread}"
    (idle,) = re.findall(r"In (\d+) % of the step no op runs", (FOLDER / "explain.txt").read_text())
    yield f"no GPU operation runs for {idle}% of the shortest step"
    yield "hold together at 95%"
    assert 1 - read("backends.json")["level"] < 0.05 / len(backends)


def of_the_memory(runs: list[RunRecord]) -> Iterator[str]:
    eager = {run.config["backend"]: run.summary_number("memory/peak_mib") or 0 for run in runs}
    groups = {group["label"]: group for group in read("comparison/comparison.json")["groups"]}
    graph = {label: groups[label]["figures"]["peak_mib"]["value"] for label in BACKENDS}
    steps = {round(run.values("global_step").max()) for run in runs}
    length = steps.pop()
    changes = []
    for name, of in ((f"`eager` (runs of {length} steps)", eager), ("`cuda_graph` (the nine runs)", graph)):
        changes.append(f"{100 * (of['native'] / of['none'] - 1):.0f}%")
        cells = f"{of['none']:,.0f} MiB | {of['native']:,.0f} MiB | {changes[-1]}"
        yield minus(f"\n| {name} | {cells} |\n")
    yield f"runs of only {length} steps"
    yield f"The saving of {changes[1][1:]} is true of captured steps only"
    yield f"{graph['none'] / eager['none']:.1f} times as much memory"
    yield f"In `eager` the saving is {changes[0][1:]}."
    compiled = arms("compiled.json")
    tf32, native = (compiled[f"{x} execution=cuda_graph"]["peak_mib"] for x in ("none", "native"))
    yield f"{tf32:,.0f} MiB in `cuda_graph` and contiguous layout, against {native:,.0f} MiB of `native`"


def of_forty_epochs(run: RunRecord) -> Iterator[str]:
    accuracy, train, whole, rate, peak, joules, skipped = (
        run.summary_number(key) or 0
        for key in (
            "eval/accuracy",
            "time/train_seconds",
            "time/elapsed_seconds",
            "throughput/images_per_second_median",
            "memory/peak_mib",
            "energy/joules_per_image",
            "amp/skipped_steps",
        )
    )
    steps = run.values("global_step").max()
    yield f"shortened to {run.config['epochs']} epochs, seed {run.config['seed']}: "
    yield f"{100 * accuracy:.2f}% eval accuracy after {train:.0f} s of training"
    yield f"took {whole:.0f} s in all, at {rate:,.0f} images/s, {peak:,.0f} MiB peak memory"
    yield f" and {joules:.3g} J per image"
    yield f"{skipped:.0f} of {steps:,.0f} steps were skipped"
    yield f"\n## {run.config['epochs']} epochs with the strong recipe\n"
    yield f"[{run.config['epochs']} epochs](#{run.config['epochs']}-epochs-with-the-strong-recipe)"
    assert run.config["tf32"] is True
    assert run.config["eval"]["autocast"] is False


def of_batch_norm() -> Iterator[str]:
    backends = arms("backends.json")
    bf16, fp16, native, o2 = (backends[x] for x in ("native_bf16", "fp16", "native", "apex_o2"))
    rates = [f"{arm['images_per_second']:,.0f}" for arm in (bf16, fp16, native, o2)]
    yield f"reach {rates[0]} and {rates[1]} images/s in `cuda_graph`, where `native` reaches {rates[2]}."
    yield f"({rates[3]} images/s)"
    of = {}
    for operation in ("convolution", "normalisation"):
        fp32, low = milliseconds("explain-bf16.txt", operation)
        of[operation] = (milliseconds("explain.txt", operation)[1], low)
        yield f"\n| {operation} | {fp32:#.3g} | {of[operation][0]:.2f} | {low:.2f} |\n"
    yield f"{of['normalisation'][1] - of['normalisation'][0]:.2f} ms more in bf16"
    steps = bf16["step_ms"], native["step_ms"]
    yield f"takes {steps[0] - steps[1]:.2f} ms more ({steps[0]:.2f} instead of {steps[1]:.2f} ms)"


def minus(text: str) -> str:
    return text.replace("-", "−")


def test_every_figure_of_the_page_is_derived_from_the_files(
    page: str, records: dict[str, list[RunRecord]], rungs: list[ladder.Rung]
):
    passages = [ladder.to_markdown(rungs), *figures(records)]
    assert [passage for passage in passages if passage not in page] == []
    rest = page
    for passage in sorted(passages, key=len, reverse=True):
        rest = rest.replace(passage, "\n")
    rest = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", rest, flags=re.S)
    rest = rest.replace("10 bits of mantissa", "")  # of the format
    assert re.findall(r".{0,20}\d\S*", re.sub(NAMES, "", rest)) == []


def quotes() -> Iterator[tuple[str, str]]:
    """Yield what other pages quote from these results."""
    groups = {group["label"]: group for group in read("comparison/comparison.json")["groups"]}
    found = groups["native"]["compared"]
    value, low, high = (found["speedup"][key] for key in ("value", "low", "high"))
    speed = f"{value:.2f}× as fast as strict fp32 (99.17% CI {low:.2f} to {high:.2f}; n = 3"
    compiled = arms("compiled.json")
    graph, compiler = (
        f"{compiled[f'native execution={how}']['ratio'] / compiled[f'none execution={how}']['ratio']:.2f}×"
        for how in ("cuda_graph", "compile_graph")
    )
    saved = [f"{100 * (1 - found[key]['value']):.0f}%" for key in ("memory_ratio", "energy_ratio")]
    times = [groups[x]["figures"]["seconds_to_target"]["value"] for x in ("native", "none")]
    points = (minus(f"{found['quality_difference'][key]:+.2f}") for key in ("value", "low", "high"))
    for page in ("README.md", "docs/results.md"):
        yield page, f"trains ResNet50 {speed}"
        yield page, f"{graph} as fast in `cuda_graph` and {compiler} in `compile_graph`"
        yield page, "Peak memory falls by {} and GPU energy per image by {}".format(*saved)
    yield "docs/results.md", "78% eval accuracy after {:.0f} s instead of {:.0f} s".format(*times)
    yield "docs/results.md", "{} points, 99.17% CI {} to {}".format(*points)
    backends = arms("backends.json")
    rates = {x: f"{arm['ratio']:.2f}×" for x, arm in backends.items()}
    order = ("native", "apex_o2", "fp16", "native_bf16")
    yield "docs/performance.md", f": {', '.join(f'{x} {rates[x]}' for x in order)}."
    tf32 = compiled["none execution=cuda_graph"]["images_per_second"]
    yield "docs/performance.md", f"TF32 alone is {tf32 / backends['none']['images_per_second']:.2f}×"
    of_tf32 = f"{graph} as fast as TF32 in `cuda_graph` and {compiler} in `compile_graph`"
    yield "docs/performance.md", f"`native` is {of_tf32}"
    yield "docs/performance.md", f"`native` trains {value:.2f}× as fast as strict fp32 in channels_last"


def test_what_other_pages_quote_is_what_the_files_say():
    missing = [(page, quote) for page, quote in quotes() if quote not in Path(ROOT / page).read_text()]
    assert missing == []

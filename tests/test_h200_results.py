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

from ampcompare import analyse_runs, load_runs
from ampcompare.runs import RunRecord

pytestmark = pytest.mark.slow  # the archive does not change: whoever changes it, or the analysis, runs this
FOLDER = ROOT / "docs" / "results" / "2026-11-26-h200"
BACKENDS = ("none", "native", "apex_o1")
FOLDERS = ("comparison", "comparison-tf32", "memory", "strong40")
# Names and dates that have digits and are no figures.
NAMES = r"ResNet50|CIFAR-10|NVIDIA H200|TF32|fp32|fp16|bf16|2026-11-26|O1|16-bit|ViT-S/16"


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
    return {name: load_runs([folder / name]) for name in FOLDERS}


@pytest.fixture(scope="module")
def page() -> str:
    return (FOLDER / "README.md").read_text()


@pytest.fixture(scope="module")
def rungs() -> list[ladder.Rung]:
    return ladder.build_ladder(ladder.read_measurements(FOLDER))


def tables(rungs: list[ladder.Rung]) -> list[str]:
    return [*ladder.to_markdown(rungs).values(), ladder.bench_table(read("transformer.json"))]


def test_the_tables_of_the_page_are_made_from_the_files(page: str, rungs: list[ladder.Rung]):
    assert [table for table in tables(rungs) if f"\n\n{table}\n" not in page] == []
    assert (FOLDER / "ladder.png").stat().st_size > 10_000


def test_each_rung_has_the_rate_of_its_source_and_the_quotients_of_rates(
    rungs: list[ladder.Rung], records: dict[str, list[RunRecord]]
):
    """By a way of its own: from the options of an arm, or the config of a run; ratios from rates alone."""
    about = yaml.safe_load((FOLDER / "measurements.yaml").read_text())["files"]
    rates: dict[tuple[str, tuple[str, str, str]], list[float]] = {}
    for name in (name for name in about if name.endswith(".json") and about[name].get("ladder")):
        for arm in read(name)["arms"]:
            options = arm["options"]
            if "execution" in options:
                # A file that records the layout is newer than the backend `tf32`, which it names.
                is_new = "memory_format" in options
                assert is_new != ("memory_format" in about[name])
                layout = options["memory_format"] if is_new else about[name]["memory_format"]
                backend = options["backend"]
                if not is_new and about[name]["tf32"] and backend == "none":
                    backend = "tf32"
                rung = (backend, options["execution"], layout)
                rates.setdefault((name, rung), []).append(arm["images_per_second"])
    for name, runs in records.items():
        for run in runs:
            rung = tuple(run.config[key] for key in ("backend", "execution", "memory_format"))
            value = run.summary_number("throughput/images_per_second_median")
            rates.setdefault((name, rung), []).append(value)
    taken = set()
    for rung in rungs:
        own = (rung.measured.backend, *rung.measured.setting)
        for measured in (rung.measured, *rung.repeats):
            assert measured.images_per_second == pytest.approx(geometric_mean(rates[measured.source, own]))
            taken.add((measured.source, own))
        for base, relative in (("none", rung.to_strict), ("tf32", rung.to_tf32)):
            if relative is not None:
                source = rung.measured.source
                theirs = geometric_mean(rates[source, (base, *own[1:])])
                # The bench's ratio is a median of ratios: near the quotient of the two medians. Steps of
                # eager trainings vary more.
                near = 0.02 if own[1] == "eager" else 0.005
                ratio = geometric_mean(rates[source, own]) / theirs
                assert relative.value == pytest.approx(ratio, rel=near)
    assert taken == rates.keys()


def figures(records: dict[str, list[RunRecord]], rungs: list[ladder.Rung]) -> Iterator[str]:
    """Every passage of the page with a figure, as the files have it."""
    yield from of_the_comparison(records["comparison"])
    yield from of_the_comparison_with_tf32(records["comparison-tf32"])
    yield from of_the_ladder(rungs)
    yield from of_the_memory()
    yield from of_the_transformer()
    yield from of_forty_epochs(*records["strong40"])
    yield from of_bf16()


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
    times = {label: f"{mean(label, 'seconds_to_target'):.0f} s" for label in BACKENDS}
    yield "In brackets: 99.17% confidence intervals"

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
    yield f"**Time to {found['target']:.0f}%.** This target was not planned"
    yield row(
        f"eval accuracy after {epochs} epochs",
        score["none"],
        lambda label: "{} points ({}), {}".format(*points(label), score[label]),
    )
    assert ends("native", "time_ratio")[2] < 1 < ends("apex_o1", "time_ratio")[2]  # shown, not shown
    whole = {x: mean("none", "train_seconds") / mean(x, "train_seconds") for x in BACKENDS[1:]}
    yield (
        f"{ends('native', 'speedup')[0]:.2f}× is the ratio of median step rates. "
        "The ratio of the whole training times, with "
        f"capture and slow steps included, is {whole['native']:.2f}× for `native` "
        f"and {whole['apex_o1']:.2f}× for `apex_o1`."
    )
    seeds = sorted({run["seed"] for run in found["runs"]})
    yield f"seeds {seeds[0]}, {seeds[1]} and {seeds[2]}: {epochs} epochs of the recipe `reference`"
    yield f"learning rate {runs[0].config['optimizer']['lr']}, cosine"
    assert runs[0].config["optimizer"]["momentum"] == runs[0].config["optimizer"]["weight_decay"] == 0
    batch = {run.config["batch_size"] for run in runs}
    yield f"at batch {batch.pop()}, in channels_last:"
    assert runs[0].values("global_step").max() == int(epochs) * (50_000 // 128 + 1)
    plan = runs[0].config["plan"]
    yield "has 95% confidence in all, also if you look at {}, {} and {} seeds".format(*plan["looks"])
    yield f"decide a margin of {plan['margin']} points"
    accuracies = [run["quality"] for run in found["runs"] if run["name"].startswith("none_")]
    yield f"differ by {max(accuracies) - min(accuracies):.2f} points between seeds"
    skipped = sorted({round(run["skipped_steps"]) for run in found["runs"]} - {0})
    steps = round(runs[0].values("global_step").max())
    yield f"skipped {skipped[0]} or {skipped[1]} of its {steps:,} steps"
    assert len(skipped) == 2
    seen = runs[0].environment
    yield f"driver {seen['driver']}, torch {seen['torch']}, cuDNN 9.19.0, Python {seen['python']}."
    assert seen["cudnn"] == 9 * 10_000 + 19 * 100


def of_the_comparison_with_tf32(runs: list[RunRecord]) -> Iterator[str]:
    found = read("comparison-tf32/comparison.json")
    tf32, native = (next(g for g in found["groups"] if g["label"] == label) for label in ("tf32", "native"))
    assert found["baseline"] == "tf32"
    compared = native["compared"]
    assert {compared[x]["confidence"] for x in ("speedup", "quality_difference")} == {0.975}  # two looks

    def pair(figure: str, shown: str) -> str:
        return " | ".join(shown.format(group["figures"][figure]["value"]) for group in (tf32, native))

    def percent(figure: str, shown: str) -> str:
        value, low, high = (100 * (compared[figure][key] - 1) for key in ("value", "low", "high"))
        return minus(f"{value:+.0f}% ({low:{shown}} to {high:{shown}})")

    speed = "{value:.2f}× ({low:.2f} to {high:.2f})".format(**compared["speedup"])
    gain = compared["quality_difference"]
    points = minus("{value:+.2f} points ({low:+.2f} to {high:+.2f})".format(**gain))
    target, epochs = f"{found['target']:.0f}%", runs[0].config["epochs"]
    yield "| change (97.5% CI) |"
    yield f"\n| speed | {pair('images_per_second', '{:,.0f} images/s')} | {speed} |\n"
    yield f"\n| peak memory | {pair('peak_mib', '{:,.0f} MiB')} | {percent('memory_ratio', '+.2f')} |\n"
    energy = f"{pair('joules_per_image', '{:.3g} J')} | {percent('energy_ratio', '+.0f')}"
    yield f"\n| GPU energy per image | {energy} |\n"
    name = f"training time to {target} eval accuracy"
    yield f"\n| {name} | {pair('seconds_to_target', '{:.0f} s')} | {percent('time_ratio', '+.1f')} |\n"
    name = f"eval accuracy after {epochs} epochs"
    yield f"\n| {name} | {pair('quality', '{:.2f}%')} | {points} |\n"
    yield f"**Time to {target}.** The target was not planned"
    plan = runs[0].config["plan"]
    assert plan["target"] is None
    seeds = sorted({run["seed"] for run in found["runs"]})
    assert len(seeds) == plan["looks"][0] < plan["max_seeds"] == 6  # the first look
    yield speed.replace("×", "× as fast as TF32").replace("(", "(97.5% CI ").replace(")", "; n = 3 seeds)")
    saved = [f"{100 * (1 - compared[x]['value']):.0f}%" for x in ("memory_ratio", "energy_ratio")]
    yield "Peak memory falls by {} and GPU energy per image by {}.".format(*saved)
    yield f"changes by {points.replace('(', '(97.5% CI ').replace(')', '; n = 3)')}"
    assert gain["low"] < -plan["margin"] < 0 < gain["high"]
    yield f"The planned margin is {plan['margin']} points"
    yield f"contains zero and exceeds the margin of {plan['margin']} points"
    yield "seeds {}, {} and {}: {} epochs of the settings of `configs/strong.yaml`".format(*seeds, epochs)
    optimizer = runs[0].config["optimizer"]
    yield f"SGD with momentum {optimizer['momentum']}, weight decay {optimizer['weight_decay']}, cosine"
    images = round(runs[0].summary_number("data/test_images") or 0) + 50_000
    yield f"The {images:,} images"
    yield "has 95% confidence in all, also if you look at {} and again at {} seeds".format(*plan["looks"])
    ((_, claim),) = analyse_runs(runs, baseline="tf32").undecided
    assert claim.more_seeds is None  # "too few to say how many more seeds"
    steps_per_epoch = 50_000 // 128 + 1
    first: dict[str, list[float]] = {"tf32": [], "native": []}
    rest: dict[str, list[float]] = {"tf32": [], "native": []}
    evaluations: dict[str, list[float]] = {"tf32": [], "native": []}
    for run in runs:
        backend, seconds = run.config["backend"], run.values("time/train_seconds")
        end = seconds[list(run.values("global_step")).index(steps_per_epoch)]
        first[backend].append(end)
        rest[backend].append(seconds.max() - end)
        whole = run.summary_number("time/elapsed_seconds") or 0
        evaluations[backend].append(whole - seconds.max())
        steps, skipped = run.values("global_step").max(), run.summary_number("amp/skipped_steps")
        assert steps == epochs * steps_per_epoch
        if backend == "native":
            yield f"skipped {skipped:.0f} of its {steps:,.0f} steps"
            assert run.config["eval"]["autocast"] is False
    both = first["tf32"] + first["native"]
    yield f"The first epoch took {min(both):.0f} to {max(both):.0f} s"
    later = {backend: sorted({f"{x:.0f}" for x in values}) for backend, values in rest.items()}
    after = {backend: " to ".join(seconds) for backend, seconds in later.items()}
    yield f"took {after['tf32']} s with `tf32` and {after['native']} s with `native`"
    times = [group["figures"]["train_seconds"]["value"] for group in (tf32, native)]
    yield f"The whole training is therefore only {times[0] / times[1]:.2f}× as fast"
    yield f"the closer you get to {compared['speedup']['value']:.2f}×"
    spent = [f"{sum(evaluations[backend]) / 3:.0f} s" for backend in ("native", "tf32")]
    yield f"the {epochs} evaluations took {spent[0]} instead of {spent[1]}"
    yield f"The savings there are {saved[0]} and"  # of the nine runs: of_the_memory


def rate_of(rungs: list[ladder.Rung], *key: str) -> float:
    """The rate of a backend in an execution and a layout."""
    return of(rungs, *key).measured.images_per_second


def of(rungs: list[ladder.Rung], *key: str) -> ladder.Rung:
    return next(rung for rung in rungs if (rung.measured.backend, *rung.measured.setting) == key)


def of_the_ladder(rungs: list[ladder.Rung]) -> Iterator[str]:
    compiled, graph = (("compile_graph", "channels_last"), ("cuda_graph", "channels_last"))
    ratio: dict[tuple[str, str, str], str] = {}
    for name, setting in (("compiled", compiled), ("graph", graph)):
        native, tf32 = of(rungs, "native", *setting), of(rungs, "tf32", *setting)
        relatives = (("native", "strict", native.to_strict), ("native", "tf32", native.to_tf32))
        for backend, base, relative in (*relatives, ("tf32", "strict", tf32.to_strict)):
            assert relative is not None
            ratio[name, backend, base] = f"{relative.value:.2f}×"
    both = [
        [f"{rate_of(rungs, x, *setting):,.0f}" for x in ("native", "tf32")] for setting in (compiled, graph)
    ]
    first, second = (ratio[name, "native", "tf32"] for name in ("compiled", "graph"))
    yield f"trains {first} as fast in `compile_graph` ({both[0][0]} instead of {both[0][1]} images/s)"
    yield f"and {second} as fast in `cuda_graph` ({both[1][0]} instead of {both[1][1]})"
    strict = of(rungs, "native", *compiled).to_strict
    assert strict is not None
    assert 1 - read("ladder-compiled.json")["level"] < 0.05 / 5
    span = f"{strict.low:.2f} to {strict.high:.2f}"
    yield f"`native` trains {strict.value:.2f}× as fast in `compile_graph` (95% CI {span})"
    yield f"and {ratio['graph', 'native', 'strict']} in `cuda_graph`"
    alone = [ratio[name, "tf32", "strict"] for name in ("compiled", "graph")]
    yield "TF32 alone is {} and {} as fast as strict fp32.".format(*alone)
    yield f"{alone[1]} as fast as strict fp32 in `cuda_graph` and {alone[0]} in `compile_graph`"
    yield f"Mixed precision adds {second} and {first} to that"
    for layout in ("contiguous", "channels_last"):  # no 16-bit backend is shown to be faster than TF32
        tf32 = of(rungs, "tf32", "eager", layout).interval
        for backend in ("native", "apex_o1", "native_bf16"):
            interval = of(rungs, backend, "eager", layout).interval
            assert interval is not None
            assert tf32 is not None
            assert interval[0] < tf32[1]
    gains = [
        rate_of(rungs, backend, *graph) / rate_of(rungs, backend, "cuda_graph", "contiguous")
        for backend in ("native", "tf32")
    ]
    yield "speeds `native` up by {:.0%} and TF32 by {:.0%}".format(*(gain - 1 for gain in gains))
    eager = f"{rate_of(rungs, 'native', 'eager', 'channels_last'):,.0f}"
    yield f"reaches {eager} images/s in `eager`, {both[1][0]} in `cuda_graph`"
    yield f"and {both[0][0]} in `compile_graph`."
    rung = of(rungs, "native", "eager", "contiguous")
    (repeat,) = rung.repeats
    rates = f"{rung.measured.images_per_second:,.0f} images/s here and {repeat.images_per_second:,.0f}"
    yield f"reached {rates} in an earlier bench"
    (idle,) = re.findall(r"In (\d+) % of the step no op runs", (FOLDER / "explain.txt").read_text())
    yield f"no GPU operation ran for {idle}% of the time"
    spreads: dict[str, float] = {}
    for rung in rungs:
        rates_of = [x.images_per_second for x in (rung.measured, *rung.repeats)]
        spread = 100 * (max(rates_of) / min(rates_of) - 1)
        execution = rung.measured.execution
        spreads[execution] = max(spread, spreads.get(execution, 0))
    assert spreads["cuda_graph"] < 2
    assert spreads["compile_graph"] < 6
    yield "within 2% in `cuda_graph` and within 6% in `compile_graph`"
    yield f"In `cuda_graph` the rates differ by at most {spreads['cuda_graph']:.1f}%"
    yield f"in `compile_graph` by at most {spreads['compile_graph']:.1f}%"
    yield f"in `eager` by up to {spreads['eager']:.0f}%"
    shapes = []
    for name in ("ladder.json", "ladder-compiled.json"):
        (rounds,) = {arm["rounds"] for arm in arms(name).values()}
        shapes.append(f"one bench of {len(arms(name))} trainings and {rounds} rounds ([`{name}`]({name}))")
    yield shapes[0]
    yield shapes[1]
    yield "95% confidence intervals that hold together within one file"
    controls = [read(name)["control"] for name in ("ladder.json", "ladder-compiled.json")]
    shown = "{ratio:.2f}× ({low:.2f} to {high:.2f})".format(**controls[0])
    yield f"was {shown} in `ladder.json`"
    yield "and {ratio:.2f}× ({low:.4f} to {high:.4f}) in `ladder-compiled.json`".format(**controls[1])


def of_the_memory() -> Iterator[str]:
    peak = {tuple(label.split()): arm["peak_mib"] for label, arm in arms("ladder.json").items()}
    layout = "memory_format=channels_last"
    eager, graph = (
        {x: peak[x, f"execution={how}", layout] for x in ("none", "native", "tf32")}
        for how in ("eager", "cuda_graph")
    )
    saved = [1 - found["native"] / found["none"] for found in (eager, graph)]
    yield "needs {:.0%} less memory than strict fp32 in `eager` and {:.0%} less in `cuda_graph`".format(
        *saved
    )
    times = {f"{graph[x] / eager[x]:.1f}" for x in ("none", "tf32")}
    yield f"take {times.pop()} times as much memory in `cuda_graph` as in `eager`"
    assert not times
    yield f"`native` takes {graph['native'] / eager['native'] - 1:.0%} more"
    found = {}
    for name, base in (("comparison", "none"), ("comparison-tf32", "tf32")):
        groups = {
            x["label"]: x["figures"]["peak_mib"]["value"] for x in read(f"{name}/comparison.json")["groups"]
        }
        assert groups[base] < graph[base]
        assert groups["native"] > graph["native"]
        found[name] = f"{1 - groups['native'] / groups[base]:.0%}"
    yield f"The savings there are {found['comparison-tf32']} and {found['comparison']}"


def of_the_transformer() -> Iterator[str]:
    found = {arm["options"]["backend"]: arm for arm in read("transformer.json")["arms"]}
    (rounds,) = {arm["rounds"] for arm in found.values()}
    (batch,) = {arm["options"]["batch_size"] for arm in found.values()}
    yield "`timm:vit_small_patch16_224` on synthetic images of 224 × 224 pixels"  # the name says so
    assert {arm["options"]["model.name"] for arm in found.values()} == {"timm:vit_small_patch16_224"}
    yield f"batch {batch}, AdamW, `cuda_graph`, {rounds} rounds"
    tf32, native = found["tf32"]["ratio"], found["native"]["ratio"]
    ratios = f"{tf32:.2f}× as fast as strict fp32, and `native` {native / tf32:.2f}× as fast as TF32"
    yield f"TF32 alone is {ratios}"
    yield f"falls by {1 - found['native']['peak_mib'] / found['none']['peak_mib']:.0%} only"


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
    yield f"\n## {run.config['epochs']} epochs of the strong config\n"
    yield f"no other backend was trained for {run.config['epochs']} epochs"
    assert run.config["tf32"] is True
    assert run.config["eval"]["autocast"] is False


def of_bf16() -> Iterator[str]:
    bench, compiled, vit = arms("ladder.json"), arms("ladder-compiled.json"), arms("transformer.json")
    layouts = ("contiguous", "channels_last")
    names = [
        [f"{x} execution=cuda_graph memory_format={layout}" for x in ("native", "native_bf16")]
        for layout in layouts
    ]
    pairs = [
        ([bench[name] for name in pair], f"ResNet50, `cuda_graph`, {x}")
        for pair, x in zip(names, layouts, strict=True)
    ]
    for arms_of, name in ((compiled, "ResNet50, `compile_graph`"), (vit, "ViT-S/16, `cuda_graph`")):
        pairs.append(([arms_of[x] for x in ("native", "native_bf16")], f"{name}, channels_last"))
    for pair, name in pairs:
        rates = [arm["images_per_second"] for arm in pair]
        cells = f"{rates[0]:,.0f} images/s | {rates[1]:,.0f} images/s | {rates[1] / rates[0]:.2f}×"
        yield f"\n| {name} | {cells} |\n"
    milliseconds_of = {}
    for operation in ("convolution", "normalisation"):
        fp32, low = milliseconds("explain-bf16.txt", operation)
        milliseconds_of[operation] = (milliseconds("explain.txt", operation)[1], low)
        yield f"\n| {operation} | {fp32:#.3g} | {milliseconds_of[operation][0]:.2f} | {low:.2f} |\n"
    difference = milliseconds_of["normalisation"][1] - milliseconds_of["normalisation"][0]
    yield f"{difference:.2f} ms more in bf16"
    native, bf16 = (arm["step_ms"] for arm in pairs[0][0])
    yield f"takes {bf16 - native:.2f} ms more ({bf16:.2f} instead of {native:.2f} ms)"
    yield f"as fast as `native` ({arms('backends.json')['apex_o2']['images_per_second']:,.0f} images/s)"


def minus(text: str) -> str:
    return text.replace("-", "−")


def test_every_figure_of_the_page_is_derived_from_the_files(
    page: str, records: dict[str, list[RunRecord]], rungs: list[ladder.Rung]
):
    passages = [*tables(rungs), *figures(records, rungs)]
    assert [passage for passage in passages if passage not in page] == []
    rest = page
    for passage in sorted(passages, key=len, reverse=True):
        rest = rest.replace(passage, "\n")
    rest = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", rest, flags=re.S)
    rest = rest.replace("10 bits of mantissa", "")  # of the format
    assert re.findall(r".{0,20}\d\S*", re.sub(NAMES, "", rest)) == []


def quotes(rungs: list[ladder.Rung]) -> Iterator[tuple[str, str]]:
    """Yield what other pages quote from these results: the page, and the text."""
    yield from quotes_of_the_summary(rungs)
    found = {group["label"]: group for group in read("comparison/comparison.json")["groups"]}["native"][
        "compared"
    ]
    value, low, high = (found["speedup"][key] for key in ("value", "low", "high"))
    speed = f"{value:.2f}× as fast (CI {low:.2f} to {high:.2f}; n = 3)"
    compiled = arms("compiled.json")
    graph, compiler = (
        f"{compiled[f'native execution={how}']['ratio'] / compiled[f'none execution={how}']['ratio']:.2f}×"
        for how in ("cuda_graph", "compile_graph")
    )
    saved = [f"{100 * (1 - found[key]['value']):.0f}%" for key in ("memory_ratio", "energy_ratio")]
    yield "README.md", f"`native` is {speed}, with {saved[0]} less peak memory and {saved[1]} less GPU energy"
    (tf32_runs,) = (x for x in read("comparison-tf32/comparison.json")["groups"] if x["label"] == "native")
    beside = tf32_runs["compared"]
    span = "{value:.2f}× as fast (CI {low:.2f} to {high:.2f}; n = 3)".format(**beside["speedup"])
    less = [f"{1 - beside[key]['value']:.0%} less" for key in ("memory_ratio", "energy_ratio")]
    yield "README.md", f"{span}, with {less[0]} peak memory and {less[1]} GPU energy per image"
    backends = arms("backends.json")
    rates = {x: f"{arm['ratio']:.2f}×" for x, arm in backends.items()}
    order = ("native", "apex_o2", "fp16", "native_bf16")
    yield "docs/performance.md", f": {', '.join(f'{x} {rates[x]}' for x in order)}."
    tf32 = compiled["none execution=cuda_graph"]["images_per_second"]
    yield "docs/performance.md", f"TF32 alone is {tf32 / backends['none']['images_per_second']:.2f}×"
    of_tf32 = f"{graph} as fast as TF32 in `cuda_graph` and {compiler} in `compile_graph`"
    yield "docs/performance.md", f"`native` is {of_tf32}"
    yield "docs/performance.md", f"`native` trains {value:.2f}× as fast as strict fp32 in channels_last"


def quotes_of_the_summary(rungs: list[ladder.Rung]) -> Iterator[tuple[str, str]]:
    rows = []
    for execution in ("compile_graph", "cuda_graph"):
        key = execution, "channels_last"
        rates = [rate_of(rungs, x, *key) for x in ("none", "tf32", "native")]
        relative = of(rungs, "native", *key).to_tf32
        assert relative is not None
        rows.append((f"ResNet50, `{execution}`", rates, relative.value))
    found = {arm["options"]["backend"]: arm for arm in read("transformer.json")["arms"]}
    rates = [found[x]["images_per_second"] for x in ("none", "tf32", "native")]
    rows.append(("ViT-S/16, `cuda_graph`", rates, found["native"]["ratio"] / found["tf32"]["ratio"]))
    for name, rates, ratio in rows:
        cells = " | ".join(f"{rate:,.0f}" for rate in rates)
        yield "docs/results.md", f"\n| {name} | {cells} | {ratio:.2f}× |\n"
    for folder, name, level in (
        ("comparison-tf32", "`tf32` in `compile_graph`, 10 epochs, 97.5% CI", 0.975),
        ("comparison", "strict fp32 in `cuda_graph`, 15 epochs, 99.17% CI", 1 - 0.05 / 6),
    ):
        groups = {group["label"]: group for group in read(f"{folder}/comparison.json")["groups"]}
        compared, runs = groups["native"]["compared"], groups["native"]["runs"]
        assert compared["speedup"]["confidence"] == pytest.approx(level)
        speed = "{value:.2f}× ({low:.2f} to {high:.2f})".format(**compared["speedup"])
        changes = [
            [f"{100 * (compared[figure][key] - 1):+.0f}" for key in ("value", "low", "high")]
            for figure in ("memory_ratio", "energy_ratio")
        ]
        memory, energy = f"{changes[0][0]}%", "{}% ({} to {})".format(*changes[1])
        points = "{value:+.2f} ({low:+.2f} to {high:+.2f})".format(**compared["quality_difference"])
        cells = minus(f"{memory} | {energy} | {points}")
        yield "docs/results.md", f"\n| {name} | {speed} | {cells} | {runs} |\n"
    peak = arms("ladder.json")
    native, strict = (
        peak[f"{x} execution=eager memory_format=channels_last"]["peak_mib"] for x in ("native", "none")
    )
    yield "docs/results.md", f"in `eager` it is {1 - native / strict:.0%} relative to strict fp32"


def test_what_other_pages_quote_is_what_the_files_say(rungs: list[ladder.Rung]):
    missing = [(page, quote) for page, quote in quotes(rungs) if quote not in Path(ROOT / page).read_text()]
    assert missing == []

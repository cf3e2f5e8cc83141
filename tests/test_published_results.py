"""The published results in docs/results: whole, derived again from their records, quoted as they are."""

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.quick import ROOT

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.reproduction import REPRODUCED
from ampcompare.report.exports import to_json

RESULTS = ROOT / "docs" / "results"
COMPARISONS = sorted(RESULTS.glob("*/*/comparison.json"))
PARTS = [pytest.param(path, id=f"{path.parts[-3]}/{path.parts[-2]}") for path in COMPARISONS]
DAY = "2026-11-22-xeon-amx"
H200 = "2026-11-26-h200"
# Every figure of these pages was derived from the files beside it when it was published. Who changes a page
# or a file derives its figures again.
CONTENT = {
    H200: "3fa2db17dff947cea30d860d2322923a81f6fca7cb54083c205b051a8c477030",
    DAY: "746d584080257e00bb5de4f6a7465d85aff1978d14fed21b3e1e8a6b539a7eea",
}
MOST_BYTES = 5_000_000


def estimates(found: Any) -> Iterator[tuple[float, float, float]]:
    """Every figure with an interval that a comparison holds, at whatever depth: value, low, high."""
    if isinstance(found, dict):
        if all(isinstance(found.get(key), float) for key in ("value", "low", "high")):
            yield found["value"], found["low"], found["high"]
        for inner in found.values():
            yield from estimates(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from estimates(inner)


def compared(path: str, label: str) -> dict[str, Any]:
    """Return what a published comparison says of an arm relative to the baseline."""
    groups = json.loads((RESULTS / path / "comparison.json").read_text())["groups"]
    return next(group["compared"] for group in groups if group["label"] == label)


def text(name: str) -> str:
    return (ROOT / name).read_text().replace("\xa0", " ")


@pytest.mark.slow  # the archive does not change: whoever changes it, or the analysis, runs this
@pytest.mark.parametrize("comparison", PARTS)
def test_a_result_is_whole_and_its_records_give_the_same_figures_again(comparison: Path, tmp_path: Path):
    """The records do not refute the publication, either.

    Times vary by 10% between runs, so five runs are inconclusive for times; they are conclusive for memory.
    """
    folder = comparison.parent
    for name in ("index.html", "comparison.csv", "comparison.md", "sweep.yaml"):
        assert (folder / name).stat().st_size > 0
    committed = json.loads(comparison.read_text())
    assert {run["outcome"] for run in committed["runs"]} == {"finished"}
    archive = folder.parent / "records.tar.xz"
    assert 0 < archive.stat().st_size < MOST_BYTES
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    runs = load_runs([str(tmp_path / folder.name)])
    analysis = analyse_runs(runs, baseline=committed["baseline"], target=committed["target"])
    again = json.loads(to_json(analysis))
    found, known = list(estimates(again)), list(estimates(committed))
    assert len(found) == len(known) > 10
    for ours, theirs in zip(found, known, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
    (publication,) = [path for path in folder.glob("*.yaml") if path.name != "sweep.yaml"]
    result = analyse_runs(runs, baseline=committed["baseline"], reproduce=str(publication)).reproduction
    assert result is not None
    assert not result.is_refuted
    verdicts = {row.published_metric.name: row.verdict for row in result.rows}
    assert verdicts["peak_memory"] == REPRODUCED
    if folder.name == "accuracy":
        assert set(verdicts.values()) == {REPRODUCED}


@pytest.mark.parametrize("name", CONTENT)
def test_a_published_page_and_its_files_are_as_they_were_published(name: str):
    folder = RESULTS / name
    files = [folder / "README.md", *sorted(folder.glob("*.json"))]
    if name == DAY:
        files += sorted(folder.glob("*/*.json"))
    content = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    assert content.hexdigest() == CONTENT[name]


def quotes() -> Iterator[tuple[str, str]]:
    """Yield what the pages quote from the comparisons: the page, and the text."""
    arms = {x["label"]: x for x in json.loads((RESULTS / H200 / "loops.json").read_text())["arms"]}
    for label, said in {
        "native eager": "native, eager",
        "native cuda_graph": "native, cuda_graph",
        "apex_o1 eager": "apex_o1, eager",
        "apex_o1 cuda_graph": "apex_o1, cuda_graph",
        "native plain": "a careful loop, native",
        "native seed-style": "a seed-style loop, native",
    }.items():
        arm = arms[label]
        span = f"{arm['ratio']:.2f}× ({arm['low']:.2f} to {arm['high']:.2f})"
        yield (
            "docs/performance.md",
            f"| {said} | {arm['images_per_second']:,.0f} | {span} | {arm['peak_mib']:,.0f} |\n",
        )

    for folder in ("comparison-tf32", "comparison"):
        gain = compared(f"{H200}/{folder}", "native")
        speed = "{value:.2f}× as fast (CI {low:.2f} to {high:.2f}; n = 3)".format(**gain["speedup"])
        memory, energy = (f"{1 - gain[key]['value']:.0%} less" for key in ("memory_ratio", "energy_ratio"))
        yield "README.md", f"{speed}, with {memory} peak memory and {energy} GPU energy per image"

    xeon = [compared(f"{DAY}/speed-{network}", "native_bf16") for network in ("resnet20", "resnet50")]
    beside = "{:.2f}× and ResNet50 {:.2f}×".format(
        *(one["speedup"]["beside_control"]["value"] for one in xeon)
    )
    yield "README.md", f"trains ResNet20 {beside} as fast as the A/A control"
    difference = compared(f"{DAY}/accuracy", "native_bf16")["quality_difference"]
    points = "{value:+.2f} (CI {low:+.2f} to {high:+.2f}; n = 5)".format(**difference)
    yield "README.md", f"within one point: {points.replace('-', '−')}"


def test_what_the_pages_quote_is_what_the_comparisons_say():
    assert len(COMPARISONS) >= 3
    assert [quote for quote in quotes() if quote[1].replace("\xa0", " ") not in text(quote[0])] == []

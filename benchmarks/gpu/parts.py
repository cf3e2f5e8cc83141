"""The parts of the GPU check, in the order of what a minute of each tells.

1. The tests: whether the rest means anything. 2. Throughput. 3. The comparison. 4. Published settings.
5. 100 epochs. Each says how long it may take at most, what it needs, and whether it can be cut short.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gpu_claims

from ampcompare.precision import REGISTRY
from ampcompare.sweeps.order import in_blocks
from gpu.needs import Images

LIMIT_SECONDS = 480
GRACE_SECONDS = 15  # for each of the two signals that a part is ended with
PYTEST = (sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider")
AMPCOMPARE = (sys.executable, "-m", "ampcompare.cli")
TRAIN = (sys.executable, "run_experiment.py")
LOAD = (
    "import sys; from ampcompare.data.dataset import build_dataset; "
    "print(len(build_dataset(*sys.argv[1:]).train))"
)

COMPARED = ("none", "native", "apex_o1")  # in the seed's comparison
BF16 = tuple(name for name, backend in REGISTRY.items() if backend.dtype == "bfloat16")
OTHERS = tuple(name for name in REGISTRY if name not in (*COMPARED, *BF16))
SEEDS = (223, 224, 225)
EPOCHS = 8
# Compiled steps come last: the first of each takes a minute to make.
EXECUTIONS = "cuda_graph,eager,plain,seed-style,compile_graph,compile"
TRAINING_IMAGES, LONG_EPOCHS = 50_000, 100
LONG_EXTRA_SECONDS = 60  # start-up, search, and an evaluation every ten epochs

# Options are read with omegaconf, whatever is done.
TESTING = ("pytest", "hypothesis", "omegaconf", "wandb", "rich", "pandas")
BENCHING = ("typer", "rich", "omegaconf")
TRAINING = ("wandb", "omegaconf", "rich")
REPORTING = ("typer", "rich", "pandas", "scipy", "protobuf", "jinja2", "vl-convert-python")


@dataclass(frozen=True)
class Part:
    """A command, and the conditions that it is run under.

    `seconds` is what it gets at most, its end included. `least` is what it can do something with: a part that
    has one is cut short and goes on at the next start; None: it needs `seconds`. `waits`: why it is not to be
    run yet.
    """

    name: str
    command: tuple[str, ...]
    seconds: int = LIMIT_SECONDS
    least: int | None = None
    needs: tuple[str, ...] = ()
    images: bool = False
    after: str = ""  # the part that has to have passed
    again: bool = False  # run at every start: it judges what the others have made
    waits: str = ""


def parts(out: Path, images: Images) -> list[Part]:
    """Every part, most telling first. What one waits for is looked up in `out`."""
    found = [*tests(COMPARED), *throughput(out, COMPARED, "compared"), *image_loading(images)]
    found += comparison(out, images, COMPARED)
    found += [*tests((*OTHERS, *BF16)), *throughput(out, ("native", *OTHERS), "half")]
    found += throughput(out, BF16, "bf16")
    found += comparison(out, images, (*OTHERS, *BF16))
    found += published(out, images)
    found.append(long_training(out, images))
    return [*found, *judging(out)]


def tests(backends: tuple[str, ...]) -> Iterator[Part]:
    """Each backend's tests have a process of their own: an error on the device spoils all that comes after
    it.
    """
    if "native" in backends:
        of_no_backend = " and ".join(f"not {name}" for name in REGISTRY)
        yield Part("tests", (*PYTEST, "tests/gpu", "-k", of_no_backend), 240, needs=TESTING)
    for backend in backends:
        yield Part(f"tests-{backend}", (*PYTEST, "tests/gpu", "-k", named(backend)), 420, needs=TESTING)


def named(backend: str) -> str:
    """pytest's words for tests with this backend in their name, and none of which it is a part."""
    longer = [f"not {name}" for name in REGISTRY if backend in name and name != backend]
    return " and ".join([backend, *longer])


def throughput(out: Path, backends: tuple[str, ...], name: str) -> Iterator[Part]:
    """Each claim is a ratio within one of these, or one row's share of the limit; every round is kept."""
    options = (
        "--execution",
        EXECUTIONS,
        "--backends",
        ",".join(backends),
        "--rounds",
        "2",
        "--device",
        "cuda",
    )
    name = f"throughput-{name}"
    command = (*AMPCOMPARE, "bench", "throughput", *options, "--go-on", "--out", str(out / name))
    yield Part(name, command, least=120, needs=BENCHING)


def image_loading(images: Images) -> Iterator[Part]:
    """Decoded once and kept, so that no training finds out in its middle what is wrong with them."""
    if not images.are_made:
        load = (sys.executable, "-c", LOAD, *filter(None, (images.source, images.root)))
        yield Part("images", load, 240, images=True)


def training(out: Path, runs: str, images: Images, name: str, words: tuple[str, ...], **how: int) -> Part:
    """A training that saves its state where it is stopped."""
    record = (f"output_dir={out / runs}", "wandb.mode=offline", "resume=auto", "device=cuda")
    saved = ("checkpoint.every_minutes=2", "checkpoint.every_epochs=null")
    command = (*TRAIN, *words, *record, *saved, *images.words)
    after = "" if images.are_made else "images"
    how = {"least": 120, **how}
    return Part(f"train-{name}", command, needs=TRAINING, images=True, after=after, **how)


def comparison(out: Path, images: Images, backends: tuple[str, ...]) -> Iterator[Part]:
    """The strong recipe, shortened. The order is drawn within each seed: machines get warm, lent ones end."""
    for backend, seed in in_blocks(f"gpu-check {' '.join(backends)}", backends, SEEDS):
        how = (
            "execution=cuda_graph",
            f"epochs={EPOCHS}",
            "schedule.warmup_epochs=1",
            "wandb.group=gpu-check",
        )
        words = ("--config", "strong", f"backend={backend}", f"seed={seed}", *how)
        yield training(out, "runs-comparison", images, f"comparison-{seed}-{backend}", words)


def published(out: Path, images: Images) -> Iterator[Part]:
    """The seed's experiment, two epochs of it as it was run: eager, contiguous."""
    for backend, _ in in_blocks("gpu-check tootouch", COMPARED, [None]):
        words = ("--config", "reference", f"backend={backend}", "epochs=2", "wandb.group=tootouch")
        yield training(out, "runs-tootouch", images, f"tootouch-{backend}", words, seconds=300)


def long_training(out: Path, images: Images) -> Part:
    """100 epochs of native as it trains fastest, if what was measured says that they fit into a part."""
    fastest, rate = gpu_claims.fastest_native(out) or (("execution=cuda_graph",), 0.0)
    room, need, waits = LIMIT_SECONDS - 2 * GRACE_SECONDS, 0, "for native's throughput"
    if rate:
        need = round(TRAINING_IMAGES * LONG_EPOCHS / rate) + LONG_EXTRA_SECONDS
        waits = (
            f"for a faster GPU: {need} s at {rate:,.0f} images/s, a part has {room} s" if need > room else ""
        )
    words = ("backend=native", *fastest, "memory_format=channels_last", f"epochs={LONG_EPOCHS}")
    how = (*words, "eval.every=10")
    part = training(out, gpu_claims.RUNS, images, "100-epochs-native", how, least=need + 2 * GRACE_SECONDS)
    return replace(part, waits=waits)


def judging(out: Path) -> Iterator[Part]:
    runs, to = out / "runs-comparison", out / "report"
    waits = "" if runs.is_dir() else "for the comparison's trainings"
    report = (*AMPCOMPARE, "report", str(runs), "--out", str(to))
    yield Part("comparison-report", report, 120, needs=REPORTING, again=True, waits=waits)
    waits = "" if gpu_claims.files(out) else "for throughput"
    claims = (sys.executable, "benchmarks/gpu_claims.py", str(out))
    yield Part("claims", claims, 60, needs=("pandas", "protobuf"), again=True, waits=waits)

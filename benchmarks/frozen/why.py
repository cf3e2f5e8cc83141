"""The corpus of why: JSON of `why explain`, `why diff` and `why guard` on small networks, without times."""

import json
import tempfile
from pathlib import Path
from typing import Any

from values import command, forked, write

NETWORKS = Path(__file__).with_name("networks.py")
BASE = "data.train_limit=32 data.test_limit=8 batch_size=8 device=cpu".split()
TEXT = [f"data.source={NETWORKS}:texts", "task.metric=null", *BASE]
OF_TEXT = [f"model.name={NETWORKS}:letters", *TEXT]
OF_IMAGES = [f"model.name={NETWORKS}:images", "data.source=synthetic", *BASE]
OVERFLOWING = [f"model.name={NETWORKS}:overflowing", *TEXT]
BACKENDS = ("native", "native_bf16", "apex_o2", "fp16", "bf16_sr")
TIMES = (
    "ms",
    "cost",
    "about",
    "sentences",
    "seconds",
    "speed",
    "rounds",
    "step_ms",
    "version",
    "torch",
    "device",
    "machine",
)


def cases() -> dict[str, list[str]]:
    """Return the command of each case. With `none` and in bf16 nothing is wrong."""
    found = {}
    for backend in BACKENDS:
        found[f"explain {backend}, text"] = ["explain", "--seconds", "0", *OF_TEXT, f"backend={backend}"]
        found[f"diff {backend}, text"] = ["diff", "--all", *OF_TEXT, f"backend={backend}"]
    for backend in ("native", "apex_o2"):
        found[f"explain {backend}, images"] = ["explain", "--seconds", "0", *OF_IMAGES, f"backend={backend}"]
        found[f"diff {backend}, images"] = ["diff", *OF_IMAGES, f"backend={backend}"]
        found[f"diff {backend}, overflowing"] = ["diff", *OVERFLOWING, f"backend={backend}"]
    for name, words in {"text": OF_TEXT, "overflowing": OVERFLOWING}.items():
        found[f"diff none,native_bf16, {name}"] = ["diff", *words, "backend=none,native_bf16"]
        found[f"guard fp16, {name}"] = ["guard", "--steps", "8", *words, "backend=fp16"]
        found[f"guard native_bf16, {name}"] = ["guard", "--steps", "8", *words, "backend=native_bf16"]
    found["diff none, text"] = ["diff", *OF_TEXT, "backend=none"]
    layouts = ["diff", *OF_IMAGES, "backend=native_bf16", "memory_format=contiguous,channels_last"]
    found["diff contiguous,channels_last, images"] = layouts
    compiled = ["diff", *OF_IMAGES, "backend=native_bf16", "execution=eager,compile"]
    found["diff eager,compile, images"] = compiled
    return found


def timeless(value: Any) -> Any:
    """Return a value without its times, and without texts, which are printed, too."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def answer(words: list[str]) -> list[Any]:
    """Return exit code, JSON and printed lines of a command."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        code, output = command(["why", *words, "--json", str(file)])
        found = timeless(json.loads(file.read_text())) if file.exists() else None
    return [{"exit code": code, "found": found}, output.replace(folder, "OUT").splitlines()]


def main() -> None:
    """Write the corpus."""
    import torch

    import ampcompare.cli  # noqa: F401 - so that the forks have it

    torch.set_num_threads(1)
    answers = {name: forked(lambda words=words: answer(words)) for name, words in cases().items()}  # type: ignore[misc]
    ended = {name: found if isinstance(found, list) else [found, []] for name, found in answers.items()}
    write({name: pair[0] for name, pair in ended.items()}, {name: pair[1] for name, pair in ended.items()})


if __name__ == "__main__":
    main()

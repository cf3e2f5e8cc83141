"""The AMP recipe, scaled down."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from ampcompare.bench.recipe.config import RecipeConfig, misaligned
from ampcompare.bench.recipe.measure import run_recipe
from ampcompare.bench.recipe.table import bench_recipe, recipe_config
from ampcompare.errors import UserError
from ampcompare.models import mlp
from ampcompare.precision import REGISTRY
from ampcompare.published.publication import load

SMALL = RecipeConfig(width=16, batch_size=8, batches=2, epochs=2)


def test_the_file_is_the_published_recipe():
    config, given = recipe_config([])
    assert (config.layers, config.width, config.batch_size) == (3, 4096, 512)
    assert (config.batches, config.epochs, config.lr) == (50, 3, 0.001)
    assert given == set()
    linear = [m for m in mlp.build(SMALL.width, SMALL.layers) if isinstance(m, torch.nn.Linear)]
    assert len(linear) == 3
    theirs = load("recipe")
    assert [p.text for p in theirs.find_figure("total_time").values.values()] == ["8.063", "3.298"]
    assert [p.text for p in theirs.find_figure("peak_memory").values.values()] == ["1367458816", "1803759616"]


@pytest.mark.parametrize("backend", list(REGISTRY))
def test_every_backend_trains_it(backend: str):
    torch.manual_seed(0)
    found = run_recipe(backend, SMALL, torch.device("cpu"))
    assert found["seconds"] > 0
    assert 0.5 < found["loss"] < 3
    assert found["peak_bytes"] is None
    assert found["environment"]["device_type"] == "cpu"


def test_sizes_that_are_no_multiple_of_8_are_warned_of_with_the_reason():
    assert misaligned(RecipeConfig()) == []
    (warning,) = misaligned(RecipeConfig(width=4095))
    assert "width=4095 is no multiple of 8" in warning
    assert "Tensor Cores" in warning


@pytest.mark.slow
def test_the_table_says_that_a_cpu_is_scaled_down():
    text = io.StringIO()
    words = ["width=12", "batch_size=8", "epochs=1"]
    bench_recipe(words, ["none", "native"], "cpu", 1, Console(file=text, width=160))
    printed = text.getvalue()
    assert "scaled down (batches=10)" in printed
    assert "width=12 is no multiple of 8" in printed
    assert "8.063" in printed
    assert "1,803,759,616" in printed


@pytest.mark.parametrize(
    ("words", "backends", "device", "expected"),
    [
        (["size=3"], ["none"], "cpu", "size: no such key of the recipe"),
        (["width=0"], ["none"], "cpu", "width='0': expected a whole number at least 1"),
        ([], ["O1"], "cpu", "backend='O1': expected one of none"),
        ([], ["none"], "cuda:77", "device='cuda:77': not there"),
    ],
)
def test_bad_input_is_named(words: list[str], backends: list[str], device: str, expected: str):
    with pytest.raises(UserError) as caught:
        bench_recipe(words, backends, device, 1, Console(file=io.StringIO()))
    assert expected in str(caught.value)


def test_the_command_is_there_and_loads_no_torch_itself():
    code = "import sys; from ampcompare.bench.recipe import table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "ampcompare.cli", "bench", "recipe", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "published" in done.stdout

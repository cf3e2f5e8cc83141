from __future__ import annotations

from pathlib import Path

import pytest
from support.offline_runs import plan, write_runs

ODD_ROWS = [
    {"global_step": 0, "train/loss": "NaN", "text": "a", "flag": True, "nested": {"a": 1, "b": {"c": "x"}}},
    {"global_step": 1, "train/loss": 1e-300, "text": "ü 🚀", "flag": False, "list": [1, 2.5, None]},
    {"global_step": 1, "train/loss": 1e300, "none": None, "back\\slash/and.dot": 3},
    {"global_step": 2, "big": 2**52 + 1, "minus": -7, "third": 1 / 3},
]


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory) -> dict[str, Path]:
    """`.wandb` files of the real client: a usual run, an odd one, a failed one, one killed in full flight."""
    folder = tmp_path_factory.mktemp("real")
    usual = plan(
        "native", name="usual", group="together", job_type="train", tags=["one", "two"], notes="a note"
    )
    usual["late_config"] = {"late": {"added": 1}, "batch_size": 256}
    odd = plan(
        "none", 1, name="</script><script>alert(1)</script>", config={"empty": {}, "null": None, "list": [1]}
    )
    odd["rows"] = ODD_ROWS
    odd["summary"]["deep"] = {"a": {"b": [1, {"c": None}]}}
    failed = plan("apex_o1", 2) | {"exit_code": 3}
    killed = plan("none", 3) | {"kill": True}
    files = write_runs(folder, [usual, odd, failed, killed])
    return dict(zip(("usual", "odd", "failed", "killed"), files, strict=True))

"""Import paths that README and docs named, or that packages offered, before the rooms were moved."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from support.quick import HANG

PATHS = {
    "ampcompare": ("__version__",),
    "ampcompare.bench.traffic": ("per_image",),
    "ampcompare.config": ("Config", "LEAVES", "load_config"),
    "ampcompare.data": (
        *("SOURCES", "Dataset", "DeviceLoader", "ImageSet", "batch_crop", "batch_flip", "batch_in_one_pass"),
        *("build_dataset", "normalization", "normalize"),
    ),
    "ampcompare.experiment": ("Result", "run"),
    "ampcompare.precision": ("REGISTRY", "Backend", "build_precision"),
    "ampcompare.precision.apex": ("amp",),
    "ampcompare.precision.apex.amp": (
        *("casts", "float_function", "half_function", "initialize", "load_state_dict", "master_params"),
        *("promote_function", "register_float_function", "register_half_function"),
        *("register_promote_function", "reset", "scale_loss", "state_dict"),
    ),
    "ampcompare.precision.apex.o1": ("ApexO1", "ApexScaling"),
    "ampcompare.precision.base": ("Precision", "PrecisionOptions"),
    "ampcompare.records": ("RunRecord", "load_runs"),
    "ampcompare.report": ("analyse_runs",),
}


@pytest.mark.parametrize("module", PATHS)
def test_what_could_be_imported_still_can_be(module: str):
    exec(f"from {module} import {', '.join(PATHS[module])}")


@pytest.mark.parametrize("module", ["ampcompare.config", "ampcompare.data"])
def test_a_name_that_a_package_lacks_is_an_error_that_names_both(module: str):
    with pytest.raises(AttributeError, match=rf"module '{module}' has no attribute 'nothing'"):
        _ = import_module(module).nothing


def test_packages_that_the_options_and_the_report_use_load_no_torch():
    code = (
        "import sys; from ampcompare.config import load_config; from ampcompare.data import SOURCES; "
        "from ampcompare.records import load_runs; from ampcompare.report import analyse_runs; "
        "from ampcompare.precision import REGISTRY, build_precision; load_config('reference'); "
        "raise SystemExit('torch' in sys.modules)"
    )
    assert not subprocess.run([sys.executable, "-c", code], timeout=HANG, check=False).returncode

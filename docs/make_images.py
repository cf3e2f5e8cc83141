#!/usr/bin/env python3
"""Make docs/images again from the published records. Needs Chromium.

python docs/make_images.py
"""

import io
import shutil
import tarfile
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from ampcompare import analyse_runs, load_runs
from ampcompare.report.pipeline import write_report

DOCS = Path(__file__).resolve().parent
RECORDS = DOCS / "results" / "2026-11-26-h200" / "records.tar.xz"
WIDTH, HEIGHT = 1280, 1430  # CSS pixels: the page's heading, its table and the first charts


def main() -> None:
    """Write `report.png`: the upper part of the page of the nine runs on an NVIDIA H200."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        with tarfile.open(RECORDS) as archive:
            archive.extractall(folder, filter="data")
        analysis = analyse_runs(load_runs([Path(folder) / "comparison"]), target=78)
        write_report(analysis, Path(folder) / "report", formats=["html"])
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto((Path(folder) / "report" / "index.html").as_uri())
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        browser.close()
    picture.quantize(128).save(DOCS / "images" / "report.png", "png", optimize=True)


if __name__ == "__main__":
    main()

"""`ampcompare bench data`: batches made our way and the seed's. Free of torch."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from ampcompare.bench.child import measure
from ampcompare.bench.results import estimate, header, machine_words, markdown_table, write_results

MEASURING = Path(__file__).with_name("batches.py")
LEAST = 30.0  # times the seed's way
MOST_DIFFERENT = 1e-6  # fp32 rounding of pixels of about 2
COLUMNS = ("how", "images/s", "times the seed's way")


def bench_data(rounds: int, images: int, out: Path | None, console: Console) -> bool:
    """Measure, print, write; whether ours is fast enough and the same, image for image."""
    with console.status(f"{rounds} rounds of {images:,} images"):
        found = measure(MEASURING, {"rounds": rounds, "images": images}, "making batches", threads=1)
    head = header(found.pop("environment"))
    theirs = found["images_per_second"]["PIL and DataLoader"]
    rows = []
    for name, rates in found["images_per_second"].items():
        ratio = estimate([ours / pil for ours, pil in zip(rates, theirs, strict=True)])
        found.setdefault("ratio", {})[name] = ratio
        rows.append((name, str(estimate(rates)), str(ratio)))
    holds = ratio.median >= LEAST and found["largest_difference"] <= MOST_DIFFERENT
    table = Table(title=f"Batches of {found['batch_size']} with crop and flip, 1 thread", box=None)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "how" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    note = (
        f"Medians (95 % intervals where there are six rounds or more, ranges below) of {rounds} interleaved "
        "rounds. Given the same crops and flips both make the same batch: largest difference "
        f"{found['largest_difference']:.1e}."
    )
    console.print(note)
    console.print(machine_words(head))
    console.print(
        f"{'reached' if holds else 'not reached'}: at least {LEAST:g} times, the same within "
        f"{MOST_DIFFERENT:g}"
    )
    if out is not None:
        text = f"# Making batches\n\n{markdown_table(COLUMNS, rows)}\n\n{note}"
        for path in write_results(out, "data", head, {"rounds": rounds, **found, "holds": holds}, text):
            console.print(f"wrote {path}", soft_wrap=True, markup=False)
    return holds

"""Everything that needs a GPU, part by part: tests, benchmarks, trainings. `make gpu-check` runs it.

    python benchmarks/gpu_check.py [--out FOLDER] [--archive FILE] [--data cifar10|synthetic|PATH] [--only
                                   WORD] [--minutes N] [--list]

It runs from a checkout, installed or not; what a part lacks here is said before anything runs, and the part
is left out. Each has at most eight minutes and a log in the folder; one that passed is not run again, one
that was cut short goes on where it was. With `--minutes` nothing is started that could not end within them.
Each start ends by packing figures and records into one archive, whose path is the last line. `summary.md`
says what passed, failed, lacks something or is still to do, `claims.md` what the figures come to beside what
is claimed. Exit code 0 when all parts passed, 1 otherwise, 2 without a GPU, 130 when told to end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # also where nothing is installed
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu import ROOT, needs, packing, runner
from gpu.parts import Part, parts

EXIT_TOLD = 130


def read_words(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu-check")
    parser.add_argument("--archive", type=Path, help="where to pack what came out; by default OUT.tar.xz")
    parser.add_argument(
        "--data", default="cifar10", help="cifar10, synthetic, or a folder or archive of images"
    )
    parser.add_argument("--only", default="", help="parts with this in their name")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end within so many")
    parser.add_argument(
        "--list", action="store_true", help="name the parts, what they run and what they lack here"
    )
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    options, began = read_words(words), time.monotonic()
    out: Path = options.out.resolve()
    if options.list:
        with tempfile.TemporaryDirectory() as site:  # nothing is left behind
            show(look_around(options, out, Path(site) / "site"))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("error: gpu-check needs a CUDA device; PyTorch sees none", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    archive = options.archive.resolve() if options.archive else out.with_name(f"{out.name}.tar.xz")
    code, check = EXIT_TOLD, None
    with runner.ending_on_signals():
        try:
            check = look_around(options, out, out / ".site")
            check.run(runner.Budget(options.minutes, began))
            code = 0 if check.has_passed() else 1
        except runner.Told as signal:
            print(f"told to end ({signal}); started again it goes on", flush=True)
        finally:
            runner.hear_no_more()
            if check:
                check.has_passed()
            take_home(out, archive)
    return code


def look_around(options: argparse.Namespace, out: Path, site: Path) -> Check:
    """What was brought along and what the chosen parts lack here. Wheels are unpacked into `site`."""
    if note := needs.install_wheels(site):
        print(note, flush=True)
    env = needs.environment(site)
    wanted = [part for part in parts(out, needs.Images()) if options.only in part.name]
    images = needs.find_images(options.data, env) if any(part.images for part in wanted) else needs.Images()
    lacking = needs.lacks({name for part in wanted for name in part.needs}, env)
    return Check(out, images, lacking, env, options.only)


def show(check: Check) -> None:
    """Name the parts, what they run, and what they lack or wait for."""
    for part in check.chosen():
        why = check.why_not(part)
        print(f"{part.name}: {' '.join(part.command[1:])}{f'  [{why}]' if why else ''}")


@dataclass(frozen=True)
class Check:
    """The chosen parts, in `out`, with what is lacking for them here."""

    out: Path
    images: needs.Images
    lacking: dict[str, str]
    env: dict[str, str]
    only: str = ""

    def every(self) -> list[Part]:
        """All parts, made anew: what one waited for may have been made."""
        return parts(self.out, self.images)

    def chosen(self) -> list[Part]:
        """Those with the word in their names, and those that they come after."""
        every = self.every()
        before = {part.after for part in every if self.only in part.name}
        return [part for part in every if self.only in part.name or part.name in before]

    def why_not(self, part: Part) -> str:
        return runner.why_not(part, self.lacking, self.images.lack, self.out)

    def is_done(self, part: Part) -> bool:
        return not part.again and runner.read_state(part.name, self.out)["state"] == runner.PASSED

    def has_passed(self) -> bool:
        """Whether every part has; writes the summary."""
        return runner.write_summary([part.name for part in self.every()], self.out)

    def say_what_is_lacking(self) -> None:
        """Before anything runs, one line a part; the states say it, too."""
        for part in self.chosen():
            if self.is_done(part):
                continue
            why = self.why_not(part)
            if why.startswith("lacks"):
                print(f"{part.name}: {why}", flush=True)
                runner.write_state(part.name, self.out, why)
            elif runner.read_state(part.name, self.out)["state"].startswith("lacks"):
                runner.write_state(part.name, self.out, runner.TO_DO)  # it has been brought since

    def run(self, budget: runner.Budget) -> None:
        """Each chosen part that has not passed, has what it needs and can end in time."""
        self.say_what_is_lacking()
        names = [part.name for part in self.chosen()]
        late: list[str] = []
        for number, name in enumerate(names, 1):
            part = next(p for p in self.every() if p.name == name)
            if self.is_done(part):
                continue
            if why := self.why_not(part):
                runner.write_state(name, self.out, why)
                continue
            seconds = budget.of(part)
            if seconds is None:
                late.append(name)
                continue
            print(f"{number}/{len(names)} {name} ...", flush=True)
            print(f"    {runner.run_part(part, self.out, self.env, seconds)}", flush=True)
            self.has_passed()
        if late:
            print(
                f"{budget.minutes:g} minutes do not hold {', '.join(late)}; started again it goes on with "
                f"{late[0]}"
            )


def take_home(out: Path, archive: Path) -> None:
    """Pack the folder, say what stays behind; the last line is the archive's path."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    for line in packing.pack(out, archive):
        print(f"not packed: {line}")
    print(archive, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

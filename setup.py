"""The wheel carries configs/ and sweeps/; all else is said in pyproject.toml.

They lie at the top of the repository, outside the package, where setuptools' package-data does not reach. An
editable install has nothing to copy: `ampcompare.runtime.paths` finds the checkout's own.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithShipped(build_py):
    """Copies the files to `ampcompare/shipped/`, anew: none that has gone since the last build stays."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        shipped = Path(self.build_lib) / "ampcompare" / "shipped"
        for old in shipped.rglob("*.yaml"):
            old.unlink()
        for file in sorted(path for folder in ("configs", "sweeps") for path in Path(folder).rglob("*.yaml")):
            self.mkpath(str((shipped / file).parent))
            self.copy_file(str(file), str(shipped / file))


setup(cmdclass={"build_py": BuildWithShipped})

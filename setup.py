"""Put configs/ and sweeps/ into the wheel; everything else is in pyproject.toml.

Both folders lie outside the package, where setuptools' package-data does not reach. An editable install
copies nothing: `ampcompare.runtime.paths` finds the folders of the checkout.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithShipped(build_py):
    """Copy the files to `ampcompare/shipped/` and remove the files of an earlier build."""

    def run(self) -> None:
        """Build the package and copy the files."""
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

"""Renew constraints.txt: what pip chooses on each supported Python, as versions only."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12")
HEADER = """\
# Exact versions that Sediment is tested with, for Python 3.10 to 3.12.
# Renew: `make constraints`. It holds versions only, so it works with any package index.
"""


def resolved(python: str) -> dict[str, str]:
    """Ask pip what it would install with ``python``: name to version."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        report = Path(folder) / "report.json"
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
        subprocess.run([*pip, "--dry-run", "--report", report, ".[dev]"], check=True)
        chosen = json.loads(report.read_text())["install"]
    names = {entry["metadata"]["name"]: entry["metadata"]["version"] for entry in chosen}
    return {name.lower().replace("_", "-"): version for name, version in names.items()}


def main() -> None:
    """Write the file, one line a package, with a marker where the versions differ."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for version in VERSIONS:
        python = shutil.which(f"python{version}")
        if python is None:
            raise SystemExit(f"python{version} is not installed; all of {VERSIONS} are needed")
        for name, chosen in resolved(python).items():
            found[name][version] = chosen
    lines = []
    for name, by_python in sorted(found.items()):
        if name == "sediment":
            continue
        for chosen in dict.fromkeys(by_python.values()):
            pythons = [version for version in by_python if by_python[version] == chosen]
            markers = " or ".join(f"python_version == '{version}'" for version in pythons)
            everywhere = len(set(by_python.values())) == 1
            lines.append(f"{name}=={chosen}" + ("" if everywhere else f"; {markers}"))
    Path("constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

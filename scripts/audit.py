"""Known holes in the pinned dependencies, by pip-audit.

    python scripts/audit.py        exit 1 where one is known; says so where pypi.org cannot be asked

A machine without a network, or with a mirror that has no advisories, cannot answer the question;
that is not the same as an answer.
"""

import json
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    command += ["--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"Not audited: {done.stderr.strip().splitlines()[-1:] or 'pip-audit said nothing'}.")
        return 0
    asked = [one for one in found if "vulns" in one]
    holes = [(one, hole) for one in asked for hole in one["vulns"]]
    for one, hole in holes:
        fixed = ", ".join(hole["fix_versions"]) or "no version yet"
        print(f"{one['name']} {one['version']}: {hole['id']}, mended in {fixed}")
    print(f"{len(asked)} of {len(found)} pinned packages audited, {len(holes)} known holes.")
    if not asked:
        print("Nothing could be audited: pypi.org was not reached. Run it where it can be.")
    return int(bool(holes))


if __name__ == "__main__":
    sys.exit(main())

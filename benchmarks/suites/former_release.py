"""The release before, from the history of this repository."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

COMMIT = "a81cbee"
"""The last commit that sends one Pulsar message per request and per reply, without sessions."""


def export_former_release(repository: Path, folder: Path, commit: str = COMMIT) -> Path | None:
    """Export the package ``dispatch`` of ``commit``, once, and return the folder that contains it.

    Args:
        repository: a clone of this repository.
        folder: where exported releases are retained.

    Returns None if the clone does not have the commit: a shallow one, or files without a history.
    """
    target = folder / commit
    if target.is_dir():
        return target
    command = ["git", "-C", str(repository), "archive", commit, "dispatch"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed when it is complete: an interrupted export leaves no half release, and two at once do not collide.
    temporary = Path(tempfile.mkdtemp(prefix=f"{commit}-", dir=folder))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(temporary, filter="data")
        temporary.chmod(0o755)
        if not target.is_dir():
            temporary.rename(target)
    except OSError:
        if not target.is_dir():  # else another run was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target

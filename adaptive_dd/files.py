"""Files of ours: written whole or not at all, locked by one process, moved aside when damaged."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TextIO

from adaptive_dd.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows has no flock; there the lock file is only a note
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, a full disk or a crash never sees half of it. Raises StoreError."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None


def take_lock(path: Path) -> TextIO:
    """Hold a lock file for as long as the returned file is open; the system frees it when the process dies.

    Raises StoreError when another process holds it, OSError when the file cannot be made.
    """
    file = path.open("a+", encoding="utf-8")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(20).strip() or "unknown"
        file.close()
        raise StoreError(f"{path.parent} is written by another proxy (process {holder})") from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def move_aside(path: Path, suffix: str) -> Path:
    """Rename a damaged database with what belongs to it, never over an earlier one. Returns the new path."""
    target = path.with_name(f"{path.name}.{suffix}")
    count = 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.name}.{suffix}-{count}")
    for part in ("", "-wal", "-shm"):
        piece = path.with_name(path.name + part)
        if piece.exists():
            os.replace(piece, target.with_name(target.name + part))
    return target

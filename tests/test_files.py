"""Files of ours: whole or not at all, locked by one, moved aside and never over another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adaptive_dd.errors import StoreError
from adaptive_dd.files import move_aside, take_lock, write_atomically


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text("old")
    write_atomically(path, "nöw")
    assert path.read_text(encoding="utf-8") == "nöw"
    assert os.listdir(tmp_path) == ["policy.json"]


def test_a_write_that_fails_keeps_the_old_file_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"policy\.json cannot be written: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["policy.json"]


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        write_atomically(tmp_path / "no" / "policy.json", "new")


def test_a_lock_is_held_by_one_and_says_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = take_lock(path)
    with pytest.raises(StoreError, match=rf"written by another proxy \(process {os.getpid()}\)"):
        take_lock(path)
    first.close()
    take_lock(path).close()


def test_a_damaged_database_moves_with_its_parts_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for expected in ("a.db.damaged", "a.db.damaged-2"):
        for part in ("", "-wal", "-shm"):
            (tmp_path / f"a.db{part}").write_text(expected)
        assert move_aside(path, "damaged").name == expected
    assert not path.exists()
    assert (tmp_path / "a.db.damaged").read_text() == "a.db.damaged"
    assert (tmp_path / "a.db.damaged-2-wal").read_text() == "a.db.damaged-2"

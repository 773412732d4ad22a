"""A command run in this process: what it prints and its exit code, in a tenth of the time of a new interpreter."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from unittest import mock

from adaptive_dd.cli import main


def run_here(*args: str) -> subprocess.CompletedProcess[str]:
    """One command to its end. A test of what only a process can show takes `support.process` instead."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ADAPTIVE_DD_")}
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, {**clean, "COLUMNS": "200"}, clear=True),
        mock.patch.object(sys, "argv", ["adaptive-dd", *args]),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())

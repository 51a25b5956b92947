"""A recipe that is ended ends what it has started."""

from __future__ import annotations

import os
import signal

import pytest
from jobs import ROOT, alive, children, finish, start, wait_for

COMMAND = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(143)))
print("begun", flush=True)
time.sleep(60)
"""
RECIPE = f"""
set -euo pipefail
source {ROOT}/examples/translation/tools.sh
logged "$1" 'begun|saved' python -c '{COMMAND.replace("'", '"')}'
echo not reached
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_recipe_ends_its_training_first(tmp_path, signum, code):
    log = tmp_path / "log"
    recipe = start("bash", "-c", RECIPE, "recipe", log)
    wait_for(lambda: log.exists() and "begun" in log.read_text())
    everybody = [recipe.pid, *children(recipe.pid)]
    os.kill(recipe.pid, signum)
    result = finish(recipe, 30)
    assert result.code == code
    assert "not reached" not in result.out
    wait_for(lambda: not alive(everybody), timeout=5)
    assert "saved" in log.read_text()

"""The grammar needs neither torch nor fairseq: imported by itself, its tests start at once."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fairseq_hybrid"))

"""Lets these tests, and the processes they start, import the stand-in model beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

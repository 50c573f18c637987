import sys
from pathlib import Path

# Last, so that the benchmarks' loaders.py does not hide the package of that name.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

"""A program that ends with a loader open, however it ends, ends with its own status: no thread in C++ aborts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[2]
# A child for each case, because an interpreter ends once; forked, because the imports take seconds.
SCRIPT = """
import json, os, sys
from pathlib import Path
from loaders import DaliLoader, ImageTransform, SampleAwareDataLoader, Samples, SpdlLoader

samples = Samples.load(Path(sys.argv[1]))
ENDS = ("falls off", "exception", "exit", "interrupt")
case, children = None, {}
for kind, end in [(kind, end) for kind in (DaliLoader, SpdlLoader, SampleAwareDataLoader) for end in ENDS]:
    child = os.fork()
    if not child:
        case = kind, end
        break
    children[child] = f"{kind.__name__} {end}"
else:
    found = {}
    while len(found) < len(children):
        child, status = os.wait()
        found[children[child]] = os.waitstatus_to_exitcode(status)
    print(json.dumps(found))
    sys.exit()

kind, end = case
if kind is SampleAwareDataLoader:
    loader = kind([1.0, 2.0] * 50, batch_size=2, num_workers=2)
    batches = iter(loader)
else:
    loader = kind(samples=samples, transform=ImageTransform(size=32), batch_size=2, seed=0)
    batches = loader.epoch(0)
next(batches)
if end == "exception":
    raise ValueError("the program ends")
if end == "exit":
    sys.exit(3)
if end == "interrupt":
    raise KeyboardInterrupt
"""


def test_a_program_that_closes_nothing_ends_with_its_own_status(image_tree, tmp_path):
    image_tree(24).save(tmp_path / "samples.parquet")
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "samples.parquet")],
        check=False, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPO)},
        timeout=280,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    # Python ends by the signal itself after an interrupt.
    expected = {"falls off": 0, "exception": 1, "exit": 3, "interrupt": -2}
    assert len(found) == 12
    assert {case: status for case, status in found.items() if status != expected[case.split(" ", 1)[1]]} == {}

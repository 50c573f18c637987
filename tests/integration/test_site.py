"""`make docs` builds the site without a warning, and none of its links is dead."""

import html.parser
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

REPO = Path(__file__).parents[2]


class Links(html.parser.HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(page.read_text())

    def handle_starttag(self, _, attributes):
        given = dict(attributes)
        self.links += [given[key] for key in ("href", "src") if given.get(key)]
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}


def test_the_site_has_no_warning_and_no_dead_link(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", REPO / "docs", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {page.resolve(): Links(page) for page in tmp_path.rglob("*.html")}
    assert len(pages) > 30
    for page, found in pages.items():
        for link in found.links:
            path, anchor = urldefrag(link)
            if ":" in path or path.startswith("//"):
                continue
            target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or target not in pages or unquote(anchor) in pages[target].anchors, f"{page.name}: {link}"

"""`make docs` builds the site without a warning, none of its links is dead, and pages fit a browser's window."""

import html.parser
import json
import re
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen
from urllib.parse import unquote, urldefrag

import pytest

from harness.run.prepare import find_or_make
from harness.run.progress import write_live
from tests.harness.run.test_watch import state
from tests.integration.runs import SMALL, command, places, run

pytestmark = [pytest.mark.process, pytest.mark.slow]

REPO = Path(__file__).parents[2]
LOOK = """<!doctype html><title></title><body><script>
for (const page of PAGES) for (const width of [1400, 400]) {
  const frame = Object.assign(document.createElement("iframe"), {src: page, width, height: 900})
  const tell = () => document.title += `${page}: ${frame.contentDocument.documentElement.scrollWidth} of ${width}; `
  frame.addEventListener("load", tell, {once: true})    // a run at work is loaded again and again
  document.body.append(frame)
}
</script>"""


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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = run([sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", REPO / "docs", folder])
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_the_site_has_no_warning_and_no_dead_link(site):
    pages = {page.resolve(): Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 30
    for page, found in pages.items():
        for link in found.links:
            path, anchor = urldefrag(link)
            if ":" in path or path.startswith("//"):
                continue
            target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or target not in pages or unquote(anchor) in pages[target].anchors, f"{page.name}: {link}"


def test_site_report_and_a_run_at_work_fit_a_wide_and_a_narrow_window_of_a_browser(site, tmp_path):
    assert run(command("+experiment=smoke", *SMALL, *places(tmp_path))).returncode in (0, 6)
    folder = tmp_path / "results" / "latest"
    write_live(folder / "live.json", state(t_s=time.time(), doing="pytorch" * 30))
    browser = [find_or_make("browser"), "--headless", "--no-sandbox", "--allow-file-access-from-files", "--dump-dom"]
    browser += [f"--user-data-dir={tmp_path / 'profile'}"]
    watch = [sys.executable, "-u", "-m", "harness.run.watch", folder, "--web", "0"]
    with Popen(watch, stdout=PIPE, text=True) as watching:
        (tmp_path / "watch.html").write_text(run([*browser, watching.stdout.readline().strip()], timeout_s=60).stdout)
        watching.kill()
    assert "90 samples a second" in (tmp_path / "watch.html").read_text()
    pages = [page.as_uri() for page in (tmp_path / "watch.html", folder / "report.html", *site.glob("*.html"))]
    (tmp_path / "look.html").write_text(LOOK.replace("PAGES", json.dumps(pages)))
    shown = run([*browser, (tmp_path / "look.html").as_uri()], timeout_s=60).stdout
    found = re.findall(r"(\S+): (\d+) of (\d+);", shown)
    assert len(found) == 2 * len(pages)
    assert not [one for one in found if int(one[1]) > int(one[2])]

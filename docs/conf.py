"""The site: these pages and the public classes, by Sphinx with MyST; `make docs` builds it and refuses a warning.

Sphinx is taken because it checks: a reference without a target is an error, and signatures come from the code.
"""

import re
from importlib import metadata
from pathlib import Path

project = "joulefeed"
release = metadata.version(project)
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = project
html_show_copyright = False
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
highlight_language = "text"
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)]*)\)")


def name_files(app, docname, source):
    """Name a file of the repository that is no page, in place of a link that leads out of the site."""
    pages = Path(app.srcdir)
    here = Path(app.env.doc2path(docname)).parent

    def named(link: re.Match[str]) -> str:
        target = (here / link[2].partition("#")[0]).resolve()
        return link[0] if target.is_relative_to(pages) else f"{link[1]} (`{target.relative_to(pages.parent)}`)"

    source[0] = _LINK.sub(named, source[0])


def setup(app):
    """Connect the function above."""
    app.connect("source-read", name_files)

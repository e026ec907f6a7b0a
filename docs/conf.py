"""Configures Sphinx, which builds the site from the pages of this folder (`make docs`).

A link to a code file, such as `../flows/run.py`, leads to the file on a git forge. In the site it leads to a page with the
file's highlighted text.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

CHECKOUT = Path(__file__).resolve().parents[1]
CODE = (".py", ".yaml", ".toml")
sys.path.insert(0, str(CHECKOUT))  # for publications, which an install leaves out

project = "siloflow"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["results", "examples"]
highlight_language = "none"  # blocks without a language are output and pseudocode
default_role = "literal"  # docstrings put code in single backticks
myst_heading_anchors = 4  # as a git forge makes them
suppress_warnings = ["myst.header"]  # README's title is above the title of the page that includes it
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
add_module_names = False

html_theme = "furo"
html_title = "siloflow"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"

_linked: set[str] = set()


class CodeLinks(SphinxTransform):
    """Lets links to code files lead to pages with their text."""

    default_priority = 400

    def apply(self, **options: Any) -> None:
        """Replace the downloads that MyST makes of such links."""
        for link in [*self.document.findall(addnodes.download_reference)]:
            file = Path(self.env.relfn2path(link["reftarget"])[1])
            if file.suffix in CODE and file.is_relative_to(CHECKOUT):
                path = file.relative_to(CHECKOUT).as_posix()
                _linked.add(path)
                uri = f"{'../' * self.env.docname.count('/')}code/{path}.html"
                link.replace_self(nodes.reference("", "", *link.children, refuri=uri, internal=True))


def code_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each linked code file."""
    for path in sorted(_linked):
        text = (CHECKOUT / path).read_text(encoding="utf-8")
        highlighted = app.builder.highlighter.highlight_block(text, get_lexer_for_filename(path).aliases[0])
        yield f"code/{path}", {"title": path, "body": f"<h1>{path}</h1>{highlighted}"}, "page.html"


def setup(app: Sphinx) -> None:
    """Register the links to code."""
    app.add_transform(CodeLinks)
    app.connect("html-collect-pages", code_pages)

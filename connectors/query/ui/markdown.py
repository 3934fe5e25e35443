"""Markdown of scenes and personas as HTML that does nothing.

Memory is what somebody once said. So no HTML of it is taken as HTML, and nothing in it becomes a
link or a picture: a reader sees the address and decides. Only structure is rendered.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from markupsafe import Markup

from connectors.query.fence import clean_text

__all__ = ["rendered"]

_ACTIVE = ["link", "image", "autolink", "html_inline", "html_block", "reference", "entity"]
_PARSER = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table")
_PARSER.disable(_ACTIVE)


def rendered(text: str) -> Markup:
    r"""Render Markdown; headings are two levels lower, below those of the page.

    >>> rendered("# Ana <b>")
    Markup('<h3>Ana &lt;b&gt;</h3>\n')
    >>> rendered("[here](https://example.org)")
    Markup('<p>[here](https://example.org)</p>\n')
    """
    tokens = _PARSER.parse(clean_text(text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return Markup(_PARSER.renderer.render(tokens, _PARSER.options, {}))

"""Self-contained HTML pages in one look: no script, style, font or picture from elsewhere.

They know texts and templates, not what the numbers mean.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_page(template: str, **values: Any) -> str:
    """The page of one of the templates beside this module. Every value is shown as text, never read as markup."""
    environment = Environment(
        loader=PackageLoader(__name__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)

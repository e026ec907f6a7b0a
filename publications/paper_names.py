"""The papers that there are tables of, by name, without reading one."""

from pathlib import Path

PAPERS = Path(__file__).parent / "pages"


def names() -> list[str]:
    """In order."""
    return sorted(page.stem for page in PAPERS.glob("*.yaml"))

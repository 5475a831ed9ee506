"""The pages of the documentation: their links lead somewhere, and the first page is short."""

import re

import pytest

import toy

PAGES = [
    toy.ROOT / "README.md",
    toy.ROOT / "CONTRIBUTING.md",
    *sorted((toy.ROOT / "docs").glob("*.md")),
    *sorted((toy.ROOT / "examples").glob("**/*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page):
    """Return the anchors that GitHub gives to the titles of a page."""
    titles = re.findall(r"^#+ (.*)", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(toy.ROOT)))
def test_links_lead_somewhere(page):
    for name, anchor in LINK.findall(page.read_text("utf-8")):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


def test_the_first_page_is_short():
    assert len((toy.ROOT / "README.md").read_text("utf-8").splitlines()) <= 160

"""Build the site of the documentation in build/site: make docs

The pages are the Markdown files of the repository, at the paths where a code host shows them. This
script copies them to build/docs, runs the notebooks, adapts links to files that are no pages
(source code becomes pages of its own), and has Zensical build the site. Nothing is fetched, and the
built pages load nothing from other sites.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from docs_pages import LINK, ROOT, find_pages, is_outside, read_page, resolve

PATTERNS = ("*.md", "docs/*.md", "experiments/*.md", "benchmarks/*.md")
LEFT_OUT = {"README.md"}  # docs/index.md takes its place
STAGED, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
SOURCE_SUFFIXES = {".cff": "yaml", ".py": "python", ".toml": "toml", ".txt": "text"}
# Zensical loads this from another site to search in pages opened from disk; ours stands in for it.
FETCHED_SCRIPT, OWN_SCRIPT = "https://unpkg.com/iframe-worker/shim", "assets/file_worker.js"
API = re.compile(r"<!-- api: (?P<names>[\w, \n]+) -->")
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)" alt="(?P<words>[^"]*)">\s*</picture>'
)
# Members of base classes that are not in the reference themselves.
INHERITED_MEMBERS = {"CompareSettings": "[jobs, seeds]", "Federation": "true"}
IMAGE_FILE = re.compile(r'<img\b[^>]* src="(?!data:)([^"#]+)')
FETCHED = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)="(https?:)?//[^"]*"')


def site_path(path: str) -> str:
    """Return where a file of the repository is in the staged folder."""
    if path in LEFT_OUT:
        return "index.md"
    path = path.removeprefix("docs/")
    if (ROOT / "docs" / path).suffix == ".py" and path.startswith("notebooks/"):
        return str(Path(path).with_suffix(".md"))
    return path


def stage_pages() -> None:
    """Copy the pages with their links adapted, and write a page for each linked source file."""
    shutil.rmtree(STAGED, ignore_errors=True)
    for folder in ("assets", "images"):
        shutil.copytree(ROOT / "docs" / folder, STAGED / folder)
    linked: set[str] = set()
    for page in find_pages(PATTERNS):
        if page not in LEFT_OUT:
            text = adapt_pictures(adapt_links(page, read_page(page), linked))
            write_staged(site_path(page), expand_api(text))
    for path in sorted(linked):
        stage_linked(path)


def adapt_links(page: str, text: str, linked: set[str]) -> str:
    """Point the relative links of a page to staged files; add files that are no pages to `linked`.

    Links in code blocks are examples and stay.
    """

    def adapt(match: re.Match[str]) -> str:
        target = match["target"]
        if is_outside(target) or target.startswith("#"):
            return match[0]
        path, (_, mark, anchor) = resolve(page, target), target.partition("#")
        staged = site_path(path)
        if not staged.endswith(".md"):
            linked.add(path)
            staged = source_page(path)
        here = posixpath.dirname(site_path(page)) or "."
        adapted = posixpath.relpath(staged, here) + mark + anchor
        return match[0].replace(f"({target})", f"({adapted})")

    pieces = re.split(r"(^ *```+.*?^ *```+$)", text, flags=re.M | re.S)
    return "".join(p if i % 2 else LINK.sub(adapt, p) for i, p in enumerate(pieces))


def adapt_pictures(text: str) -> str:
    """Let pictures for light and dark follow the site's own switch, not only the system's."""
    return PICTURE.sub(
        lambda match: "\n".join(
            f'<img src="{match[scheme]}#only-{scheme}" alt="{match["words"]}">'
            for scheme in ("light", "dark")
        ),
        text,
    )


def source_page(path: str) -> str:
    """Return the staged path that stands for a file or folder of the repository."""
    if (ROOT / path).is_dir():
        return f"source/{path}/index.md"
    return f"source/{path}.md" if Path(path).suffix in SOURCE_SUFFIXES else f"source/{path}"


def stage_linked(path: str) -> None:
    """Write a page with a file's source or a folder's files; copy files of other kinds."""
    target = source_page(path)
    if (ROOT / path).is_dir():
        tracked = subprocess.run(
            ["git", "ls-files", "--", path], cwd=ROOT, capture_output=True, text=True, check=True
        )
        body = f"```text\n{tracked.stdout}```\n"
    elif Path(path).suffix in SOURCE_SUFFIXES:
        body = f"````{SOURCE_SUFFIXES[Path(path).suffix]}\n{read_page(path)}````\n"
    else:
        (STAGED / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, STAGED / target)
        return
    write_staged(target, f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{body}")


def expand_api(text: str) -> str:
    """Put the documentation of the names in after each mark `<!-- api: ... -->`."""

    def expand(match: re.Match[str]) -> str:
        names = match["names"].replace("\n", " ").split(",")
        return "\n\n".join(f"::: udjfl.{name.strip()}" + options(name.strip()) for name in names)

    def options(name: str) -> str:
        members = INHERITED_MEMBERS.get(name)
        return f"\n    options:\n      inherited_members: {members}" if members else ""

    return API.sub(expand, text)


def write_staged(path: str, text: str) -> None:
    target = STAGED / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def stage_notebooks() -> None:
    """Run every notebook and write its page."""
    from docs_notebooks import render_notebook  # needs the extra docs

    for path in sorted((ROOT / "docs" / "notebooks").glob("*.py")):
        print(f"running {path.relative_to(ROOT)}", flush=True)
        page = str(path.relative_to(ROOT))
        text = adapt_links(page, render_notebook(path), set())
        write_staged(site_path(page), text)


def nav_pages(nav: Any) -> list[str]:
    """List the pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [page for child in children for page in nav_pages(child)]


def build_site() -> None:
    """Run Zensical, which stops at broken links, and make the built pages load only local files."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "NO_COLOR": "1"}
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        raise SystemExit("The site could not be built: see the messages above.")
    for page in SITE.rglob("*.html"):
        depth = len(page.relative_to(SITE).parts) - 1
        html = page.read_text(encoding="utf-8").replace(FETCHED_SCRIPT, "../" * depth + OWN_SCRIPT)
        fetched = FETCHED.search(html)
        if fetched:
            raise SystemExit(f"{page} loads something from another site: {fetched[0]}")
        for image in IMAGE_FILE.findall(html):
            if not (page.parent / image).exists():
                raise SystemExit(f"{page} shows {image}, which does not exist")
        page.write_text(html, encoding="utf-8")


def main() -> None:
    """Stage the pages, run the notebooks, build the site."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keep-notebooks", action="store_true", help="do not run them again")
    arguments = parser.parse_args()
    rendered = {path: path.read_bytes() for path in (STAGED / "notebooks").glob("*.md")}
    stage_pages()
    if arguments.keep_notebooks and rendered:
        (STAGED / "notebooks").mkdir()
        for path, content in rendered.items():
            path.write_bytes(content)
    else:
        stage_notebooks()
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    missing = [page for page in nav_pages(nav) if not (STAGED / page).exists()]
    if missing:
        raise SystemExit(f"zensical.toml: the navigation has {missing[0]}, which does not exist")
    build_site()
    print(f"Open {SITE.relative_to(ROOT)}/index.html in a browser.")


if __name__ == "__main__":
    main()

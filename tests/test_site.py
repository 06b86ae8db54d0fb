"""The documentation: every link of the pages leads somewhere, every public name has one, and the site's checks bite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import fedtempo as ft

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def site_module(name: str) -> ModuleType:
    """A file of docs/site/, which is no package."""
    spec = spec_from_file_location(f"docs_site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


api, pages, check, gallery = (site_module(name) for name in ("api", "pages", "check", "gallery"))


def without_code(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)


def links(text: str) -> Iterator[tuple[str, str]]:
    """Path and anchor of every link that stays here."""
    for target in re.findall(r"\]\(([^()\s]+)\)", without_code(text)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(text: str) -> set[str]:
    """What can stand behind a page's #: its headings, in small letters, with hyphens."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for path, anchor in links(page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_anchors_are_those_of_headings() -> None:
    text = "# A `b`: c, d\n\n```sh\n# none\n```\n\n## [x](y.md) and **z**\n[one](#here) [two](there.md#x) [three](https://a.b)\n"
    assert anchors(text) == {"a-b-c-d", "x-and-z"}
    assert list(links(text)) == [("y.md", ""), ("", "here"), ("there.md", "x")]


def test_every_public_name_is_on_one_page() -> None:
    assert api.check() == []
    assert len(api.public_names()) > 200


def test_a_name_on_no_page_on_two_or_unknown_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    given = api.PAGES["schemes"]
    names = given["names"].split()
    names[names.index("FedFix")] = "Forgotten"
    monkeypatch.setitem(api.PAGES, "schemes", {**given, "names": " ".join([*names, "FedAvg"])})
    assert api.check() == [
        "fedtempo.FedAvg: it is 2 times on the pages",
        "fedtempo.FedFix: on no page of docs/site/reference.toml",
        "fedtempo.Forgotten: on a page, but not public",
    ]


def test_a_name_without_a_docstring_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ft.FedFix, "__doc__", None)
    monkeypatch.setattr(ft.LowRank, "__doc__", "LowRank(rank: int = 2)")
    found = ["fedtempo.FedFix: it has no docstring", "fedtempo.LowRank: it has no docstring"]
    assert api.check() == found


def test_the_names_of_pytorch_are_read_without_it() -> None:
    assert api.listed("fedtempo.torch") == ["LocalTorch", "TorchProblem", "problem"]


def test_every_page_and_example_is_in_the_menu() -> None:
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    there |= {f"examples/{path.stem}.md" for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".toml")}
    there |= {
        f"examples/{path.name}.md" for path in (ROOT / "examples").iterdir() if path.is_dir() and "__" not in path.name
    }
    there |= {"examples/index.md", "changelog.md", "contributing.md"}
    assert set(pages.TITLES) == there


def test_the_pages_of_the_site_are_written_and_link_to_each_other(tmp_path: Path) -> None:
    pages.write(tmp_path)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert written == set(pages.TITLES)
    made_later = {"cli.md", "plan_page.html"} | {f"api/{page}.md" for page in api.PAGES}
    for page in sorted(written):
        for path, _ in links((tmp_path / page).read_text(encoding="utf-8")):
            target = (tmp_path / page).parent / path
            assert target.exists() or target.relative_to(tmp_path).as_posix() in made_later, f"{page}: {path}"


def test_what_is_made_exists() -> None:
    """`make docs` in a page is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        told = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(told) <= targets, page.name


def test_links_that_leave_docs_lead_to_pages_of_the_site() -> None:
    for text, led in {
        "[a](../examples/own_rule.py)": "[a](examples/own_rule.md)",
        "[a](../examples/slurm/jobs.sh)": "[a](examples/slurm.md)",
        "[plan.md](plan.md#documents)": "[Read a plan](plan.md#documents)",
        "[a](../CHANGELOG.md)": "[a](changelog.md)",
        "[a](https://flower.ai)": "[a](https://flower.ai)",
    }.items():
        assert pages.relinked(text, ROOT / "docs", Path()) == led
    assert pages.relinked("[a](../docs/plan.md)", ROOT / "examples", Path("examples")) == "[a](../plan.md)"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_a_tutorial_has_the_whole_script_and_what_it_prints(path: Path) -> None:
    page = pages.tutorial(path)
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    _, _, code = pages.opening(path.read_text(encoding="utf-8"))
    shown = [line for block in blocks for line in block.splitlines() if line.strip()]
    told = [line for line in code.splitlines() if line.strip() and line not in shown]
    assert [line for line in code.splitlines() if line in shown and line.strip()] == shown
    assert all(line.startswith("# ") and line[2:] in page for line in told)
    assert path.with_suffix(".out").read_text(encoding="utf-8").rstrip() in page


def test_the_check_of_the_site_finds_what_is_broken(tmp_path: Path) -> None:
    good = '<h1 id="top">x</h1><a href="b.html#there">b</a><a href="https://flower.ai">c</a><a href="#top">d</a>'
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text('<p id="there"><img src="pic.svg"><link rel="stylesheet" href="style.css">')
    (tmp_path / "pic.svg").touch()
    (tmp_path / "style.css").write_text("p { color: red }")
    assert check.check(tmp_path) == []
    (tmp_path / "a.html").write_text(good.replace("#there", "#nowhere").replace("#top", "c.html"))
    (tmp_path / "b.html").write_text(
        '<script src="https://cdn.example/x.js"></script><img src="none.svg"><a href="../x.html">e</a>'
    )
    (tmp_path / "style.css").write_text("@import url('//fonts.example/f.css');")
    assert check.check(tmp_path) == [
        "a.html: b.html#nowhere: there is no such anchor",
        "a.html: c.html: there is no such file",
        "b.html: loads https://cdn.example/x.js from another host",
        "b.html: ../x.html: it leaves the site",
        "b.html: none.svg: there is no such file",
        "style.css: loads //fonts.example/f.css from another host",
    ]


def test_examples_in_docstrings_become_code() -> None:
    pytest.importorskip("griffe", reason="make docs installs it")
    fenced = site_module("doctests").fenced
    text = "What it is.\n\n>>> f(1)\n2\n\n>>> f(2)\n3\n\nMore.\n"
    assert fenced(text) == "What it is.\n\n\n```pycon\n>>> f(1)\n2\n\n>>> f(2)\n3\n```\n\nMore.\n"
    assert fenced("No example.\n") == "No example.\n"
    assert fenced(">>> f()  # doctest: +SKIP\na\n<BLANKLINE>\nb") == "\n```pycon\n>>> f()\na\n\nb\n```\n"


@pytest.mark.slow
def test_the_pictures_of_the_gallery_are_what_its_code_draws(tmp_path: Path) -> None:
    """Timelines to the bit; where something was trained, all but the numbers, which may differ on another processor."""
    drawn = gallery.draw(tmp_path)
    kept = sorted((ROOT / "docs" / "gallery").glob("*.svg"))
    assert [path.name for path in drawn] == [path.name for path in kept]
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for now, before in zip(drawn, kept, strict=True):
        assert f"](gallery/{before.name})" in page
        texts = [path.read_text(encoding="utf-8").split() for path in (now, before)]
        if before.name == "study.svg":
            texts = [re.sub(r'(id|href|clip-path)="[^"]*"|[\d.\-]+', "", " ".join(text)).split() for text in texts]
        assert texts[0] == texts[1], f"{before.name}: run python docs/site/gallery.py"


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 70

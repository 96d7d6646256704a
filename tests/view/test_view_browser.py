"""The pages in a headless Chromium: they show what there is, obey the keyboard, and nothing in them acts."""

import asyncio
import json
import os
import re
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.fleet.pool_processes import Fleet
from tests.view.chromium import CHROMIUM, Page, browser
from tests.view.shown import HOSTILE, viewer, write_run

from patchwright.rollout.events import FILE, Events
from patchwright.store import Run
from patchwright.view.export import export_html
from patchwright.view.shelf import open_shelf

if CHROMIUM is None:
    warnings.warn("THE PAGES ARE NOT TESTED: no chromium here (apt-get install chromium)", stacklevel=1)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium)"),
]
SHOWN = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e").replace("\ud800", "\\ud800")
PLACES = {
    "#/runs": "document.querySelectorAll('.chart').length > 3",
    "#/attempts?run=demo": "document.querySelectorAll('#rows tbody tr').length === 13",
    "#/tasks?run=demo": "document.querySelectorAll('.cell').length",
    "#/attempt?run=demo&id=rl-1-alpha-0": "document.querySelectorAll('.msg').length === 5",
    "#/attempt?run=demo&id=rl-1-alpha-0&tab=patch": "document.querySelector('.diff .add')",
    "#/attempt?run=demo&id=rl-1-alpha-1&tab=tests": "document.querySelectorAll('.tag.failed').length",
    "#/attempt?run=demo&id=rl-1-alpha-0&tab=commands": "document.querySelectorAll('.msg').length === 1",
    "#/attempt?run=demo&id=rl-1-alpha-0&tab=tokens": "document.querySelectorAll('.t').length === 9",
    "#/attempt?run=demo&id=rl-1-alpha-0&tab=turns": "document.querySelectorAll('#panel td').length",
    "#/attempt?run=demo&id=eval-x-9": "document.querySelectorAll('.msg').length === 5",
    "#/attempt?run=demo&id=rl-2-beta-2": "document.querySelector('.head .tag.void')",
    "#/compare?run=demo&a=rl-1-alpha-0&b=rl-1-alpha-1": "document.querySelectorAll('.two').length === 3",
    "#/live?run=demo": "document.querySelectorAll('.tile').length",
    "#/attempt?run=demo&id=nobody": "document.querySelector('[role=alert]')",
}
"""Every page, and what is there once it is shown."""

PROBES = (Path(__file__).parent / "probes.js").read_text(encoding="utf-8")
"""`tooPale()` and `nameless()`."""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("pages") / "demo")
    events = Events(folder / FILE)
    events.note(HOSTILE, "queue", task=HOSTILE)
    events.note("over", "queue")
    events.note("over", "end", outcome="void", error=HOSTILE)
    return folder


def look(run: Path, at: Callable[[Page, str], Awaitable[None]]) -> None:
    """A browser on a viewer; nothing may have gone wrong in it, and nobody else been asked."""

    async def go() -> None:
        async with viewer(run) as (link, _), browser() as page:
            await page.open(link, PLACES["#/runs"])
            await at(page, link)
            assert await page.js("window.owned") is None
            assert page.errors == []
            own = link.split("/?")[0]
            assert [url for url in page.asked if not url.startswith(own)] == []

    asyncio.run(go())


async def visit(page: Page, place: str) -> None:
    await page.go("#/none", "true")
    await page.js("document.getElementById('main').replaceChildren()")
    if "nobody" in place:  # the refusal is logged by the browser itself
        before = len(page.errors)
        await page.go(place, PLACES[place])
        page.errors[before:] = [error for error in page.errors[before:] if "404" not in error]
        return
    await page.go(place, PLACES[place])


async def keep(page: Page, name: str) -> None:
    """A picture for who looks at what CI made."""
    if folder := os.environ.get("PATCHWRIGHT_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        await page.picture(Path(folder) / f"{name}.png")


def test_every_page_shows_hostile_content_as_text_and_nothing_acts(run: Path):
    async def at(page: Page, link: str) -> None:
        assert "token=" not in await page.js("location.href")
        for place in PLACES:
            await visit(page, place)
            assert await page.js("document.querySelectorAll('main img, main script').length") == 0, place
        await visit(page, "#/attempt?run=demo&id=rl-1-alpha-0")
        assert SHOWN in await page.js("document.getElementById('main').textContent")
        await visit(page, "#/attempt?run=demo&id=rl-1-alpha-0&tab=patch")
        assert SHOWN in await page.js("document.querySelector('.diff .add').textContent")
        await visit(page, "#/live?run=demo")
        assert SHOWN in await page.js("document.getElementById('main').textContent")

    look(run, at)


def test_every_page_can_be_read_and_reached_by_everybody(run: Path):
    async def at(page: Page, link: str) -> None:
        await page.js(PROBES)
        for dark in (False, True):
            await page.dark(dark)
            for place in PLACES:
                await visit(page, place)
                await keep(page, f"{re.sub('[^a-z0-9]+', '-', place).strip('-')}{'-dark' * dark}")
                assert await page.js("tooPale()") == [], (place, dark)
                if dark:
                    continue
                assert await page.js("nameless()") == [], place
                marks = "['header', 'main', 'nav', 'h1']"
                found = await page.js(f"{marks}.map((x) => document.querySelectorAll(x).length)")
                assert found[1] == 1 and min(found) >= 1, (place, found)
                wide = await page.js(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                assert wide <= 0, place

    look(run, at)


def test_the_keyboard_goes_everywhere(run: Path):
    async def at(page: Page, link: str) -> None:
        await page.key("j")
        await page.key("Enter")
        await page.until("location.hash.startsWith('#/attempts')")
        await page.until("document.querySelectorAll('#rows tbody tr').length === 13")
        await page.key("/")
        assert await page.js("document.activeElement.id") == "search"
        for letter in "beta":
            await page.key(letter)
        await page.until(  # the last letter's answer: the field is made anew with what was asked
            "document.getElementById('search')?.defaultValue === 'beta'"
            " && document.querySelectorAll('#rows tbody tr').length === 6"
        )
        assert await page.js("document.activeElement.id + document.activeElement.value") == "searchbeta"
        await page.key("Escape")
        await page.key("j")
        await page.key("j")
        wanted = await page.js("document.querySelector('tr.here .id').textContent")
        await page.key("Enter")
        await page.until("document.querySelectorAll('.tabs').length && location.hash.includes('#/attempt?')")
        assert await page.js("document.querySelector('h1').textContent") == wanted
        await page.key("5")
        await page.until("document.querySelector('#tab-tokens').ariaSelected === 'true'")
        await page.key("?")
        assert await page.js("!!document.querySelector('#help:not([hidden]) [role=dialog]')")
        await page.key("Escape")
        assert await page.js("document.getElementById('help').hidden")
        await page.key("c")
        await page.until("document.querySelectorAll('.two').length === 3")
        await page.key("Escape")
        await page.until("location.hash.includes('#/attempt?')")
        await page.key("Tab")
        await page.until("document.activeElement !== document.body")

    look(run, at)


def test_enter_works_on_links_and_buttons_of_a_list(run: Path):
    async def at(page: Page, link: str) -> None:
        await visit(page, "#/attempts?run=demo")
        await page.js("document.querySelector('#rows th button').focus()")
        await page.key("Enter")
        await page.until("location.hash.includes('order=outcome')")
        await page.until("!!document.querySelector('th[aria-sort=ascending]')")
        await page.js("document.querySelector('#nav a[href*=tasks]').focus()")
        await page.key("Enter")
        await page.until("location.hash.startsWith('#/tasks')")

    look(run, at)


def test_a_search_that_was_left_calls_nobody_back(run: Path):
    async def at(page: Page, link: str) -> None:
        await visit(page, "#/attempts?run=demo")
        typed = (
            "const s = document.getElementById('search'); s.value = 'x'; s.dispatchEvent(new Event('input'));"
        )
        await page.js(f"(() => {{ {typed} location.hash = '#/tasks?run=demo'; }})()")
        await asyncio.sleep(0.5)
        assert await page.js("location.hash") == "#/tasks?run=demo"

    look(run, at)


def test_a_part_that_comes_late_does_not_take_the_place_of_the_one_chosen_after_it(run: Path):
    hold = """window.fetch = (was => async (url, ...more) => {
        if (String(url).includes('/api/tokens')) await new Promise((go) => { window.release = go; });
        return was(url, ...more);
    })(window.fetch)"""

    async def at(page: Page, link: str) -> None:
        await visit(page, "#/attempt?run=demo&id=rl-1-alpha-0")
        await page.js(f"void ({hold})")
        await page.js("document.getElementById('tab-tokens').click()")
        await page.until("!!window.release")
        await page.js("document.getElementById('tab-patch').click()")
        await page.until("!!document.querySelector('#panel .diff')")
        await page.js("release()")
        await asyncio.sleep(0.5)
        assert await page.js("document.querySelectorAll('#panel .diff').length") == 1

    look(run, at)


def test_who_leaves_an_attempt_before_it_is_shown_gets_where_they_went(run: Path):
    leave = """window.fetch = (was => async (url, ...more) => {
        const answer = await was(url, ...more);
        if (!String(url).includes('/api/attempt?')) return answer;
        const said = await answer.json();
        return { ok: true, json: async () => { location.hash = '#/tasks?run=demo'; return said; } };
    })(window.fetch)"""

    async def at(page: Page, link: str) -> None:
        await page.js(f"void ({leave})")
        await page.go("#/attempt?run=demo&id=rl-1-alpha-0", PLACES["#/tasks?run=demo"])
        assert await page.js("location.hash") == "#/tasks?run=demo"

    look(run, at)


def test_very_many_tokens_and_those_without_a_log_prob_are_shown(run: Path):
    async def at(page: Page, link: str) -> None:
        turn = {
            "id": 0,
            "parent": None,
            "prompt": [],
            "drift": [],
            "train": True,
            "version": 1,
            "logprobs": [],
        }
        made = f"{{ ...{json.dumps(turn)}, sampled: Array(300000).fill(7), versions: Array(300000).fill(1) }}"
        show = f"tokensView({{ texts: {{}}, turns: [{made}] }})"
        add = f"document.querySelector('main').append(...{show})"
        await page.js(f"import('./tokens.js').then(({{ tokensView }}) => {add})")
        await page.js("document.querySelector('.t').dispatchEvent(new Event('pointerover', {bubbles: true}))")
        said = await page.js("document.querySelector('.readout').textContent")
        assert "log-prob not recorded" in said and "p 1" not in said

    look(run, at)


def test_tokens_are_coloured_and_name_their_exact_ids(run: Path):
    async def at(page: Page, link: str) -> None:
        await visit(page, "#/attempt?run=demo&id=rl-1-alpha-0&tab=tokens")
        # There is no tokenizer in this run: the ids themselves are shown.
        assert await page.js("[...document.querySelectorAll('.t')].map((x) => x.textContent)") == list(
            "123456789"
        )
        kinds = {}
        for by in ("mask", "logprob", "advantage", "drift", "version"):
            choose = f"const s = document.querySelector('#panel select'); s.value = '{by}';"
            choose += "s.dispatchEvent(new Event('change'))"
            await page.js(f"(() => {{ {choose} }})()")
            kinds[by] = await page.js(
                "[...document.querySelectorAll('.t')].map((x) => x.className.split(' ').at(-1))"
            )
        assert kinds["mask"] == ["off"] * 3 + ["q3"] * 2 + ["off"] + ["q3"] * 3
        assert kinds["logprob"][3:5] == ["p1", "p3"] or kinds["logprob"][3:5] == ["p2", "p3"]
        assert set(kinds["advantage"][3:5]) <= {"q1", "q2", "q3", "q4"} and kinds["advantage"][5] == "off"
        assert kinds["drift"][5] == "p3" and kinds["version"][6:] == ["q2", "q1", "q1"]
        await page.js(
            "document.querySelectorAll('.t')[7].dispatchEvent(new Event('pointerover', {bubbles: true}))"
        )
        said = await page.js("document.querySelector('.readout').textContent")
        assert "id 8" in said and "log-prob -2" in said and "weights 4" in said

    look(run, at)


def test_a_chart_says_its_values_and_a_run_can_be_left_out(run: Path):
    async def at(page: Page, link: str) -> None:
        label = await page.js("document.querySelector('.chart svg[aria-label^=\"Reward\"]').ariaLabel")
        assert label == "Reward. demo: last 0.200 at 2"
        await page.js("document.querySelector('.chart svg[aria-label^=\"Resolve\"]').focus()")
        await page.key("ArrowRight")
        tip = await page.until("[...document.querySelectorAll('.tip')].find((x) => !x.hidden)?.textContent")
        assert "50.0% [" in tip
        await page.js("document.querySelector('#runs input').click()")
        assert await page.js("document.querySelectorAll('.chart').length") == 0

    look(run, at)


def test_the_live_page_follows_a_run(tmp_path: Path):
    folder = tmp_path / "live"
    with Run.create_or_open(folder, {}):
        events = Events(folder / FILE)

        async def at(page: Page, link: str) -> None:
            await page.go("#/live?run=live", "document.querySelectorAll('.tile').length")
            assert "running" in await page.js("document.querySelector('main [role=status]').textContent")
            events.note("rl-1", "queue", task="toy")
            events.note("rl-1", "agent")
            await page.until("document.querySelectorAll('.lane').length === 1")
            events.note("rl-1", "end", outcome="resolved")
            await page.until("document.querySelectorAll('.lane.over .mark.resolved').length === 1")

        async def go() -> None:
            async with viewer(folder) as (link, _), browser() as page:
                await page.open(link, "document.querySelector('#runs')")
                await at(page, link)
                assert page.errors == []

        asyncio.run(go())


def test_the_live_page_shows_the_nodes_and_leases_of_a_pool(run: Path, tmp_path: Path):
    fleet = Fleet(tmp_path)

    async def go() -> None:
        told = {"pool": fleet.pool.url, "pool_token_file": fleet.token_file}
        async with viewer(run, **told) as (link, _), browser() as page, fleet.client() as client:
            leases = [await client.allocate("host") for _ in range(3)]
            await page.open(link, PLACES["#/runs"])
            await page.go("#/live?run=demo", "document.querySelectorAll('.tile').length")
            await page.until("document.body.innerText.includes('Fleet: 3 leases, 0 waiting')")
            await page.until("document.getElementById('main').innerText.split('yes').length === 3")
            shown = await page.js("document.getElementById('main').innerText")
            assert all(node.url in shown for node in fleet.nodes)
            await keep(page, "fleet")
            await client.close(leases[0])
            await page.until("document.body.innerText.includes('Fleet: 2 leases, 0 waiting')")

    try:
        asyncio.run(go())
    finally:
        fleet.stop()


def test_an_export_opens_from_disk_and_asks_nobody(run: Path, tmp_path: Path):
    shelf = open_shelf([run])
    export_html(shelf.book("demo"), "rl-1-alpha-0", tmp_path / "one.html")
    shelf.close()
    assert "<img" not in (tmp_path / "one.html").read_text()

    async def go() -> None:
        async with browser() as page:
            await page.open(f"file://{tmp_path}/one.html")
            assert await page.js("document.querySelectorAll('.msg').length") == 5
            assert SHOWN in await page.js("document.getElementById('main').textContent")
            for tab, there in {"patch": ".diff .add", "tests": ".tag.passed", "tokens": ".t"}.items():
                await page.js(f"document.getElementById('tab-{tab}').click()")
                await page.until(f"!!document.querySelector('#panel {there}')")
            assert await page.js("window.owned") is None
            assert page.errors == []
            assert all(url.startswith("file://") for url in page.asked), json.dumps(page.asked)

    asyncio.run(go())

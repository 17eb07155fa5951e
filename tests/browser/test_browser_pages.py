"""Every page and tab, at two widths and in two themes, while members come, go and are killed."""

import contextlib
import itertools
import re
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from browser_kit import LIMIT_S, NARROW, SCREENSHOTS, WIDE, Watched, World, eventually, watched
from confluent_kafka import Producer
from page_checks import layout_breaks, outline, poor_contrasts, tab_stops, unnamed_controls
from playwright.sync_api import Browser

# Enough for the header, the tabs, and the heads of the first tables.
STOPS_MAX = 70


@pytest.fixture(scope="module")
def busy(world: World) -> Iterator[World]:
    """A broker that has something to show on each page, and goes on having it."""
    world.create_topic("walk-orders", 2, range_fetch_enable="true")
    world.create_topic("walk-payments", 3)
    world.create_topic("walk-payments.by-key", -1, branch_source_topic="walk-payments")
    for topic in ("walk-orders", "walk-payments"):
        world.produce(topic, 300)
    hired = [
        world.hire("cooperative", "walk-billing", "walk-orders", "billing-1"),
        world.hire("cooperative", "walk-billing", "walk-orders", "billing-2"),
        world.hire("classic", "walk-classic", "walk-payments", "classic-1"),
        world.hire("consumer", "walk/next gen", "walk-payments", "next-1"),
        world.hire("classic", "walk-branches", "walk-payments.by-key", "branches-1"),
    ]
    for member in hired:
        member.wait_for_assignment()
    hired[1].ask("hold")
    hired[2].ask("hold")
    transaction = Producer(
        {
            "bootstrap.servers": world.bootstrap,
            "transactional.id": "walk",
            "transaction.timeout.ms": 900_000,
            "log_level": 0,
        }
    )
    transaction.init_transactions(60)
    transaction.begin_transaction()
    transaction.produce("walk-payments", b"not yet", key=b"k")
    transaction.flush(60)
    world.produce("walk-orders", 40)
    world.produce("walk-payments", 40)
    yield world
    transaction.abort_transaction(60)
    world.dismiss(hired)


def addresses(world: World, at: Watched) -> list[str]:
    """All pages: what the navigation has, and every tab of groups and topics of every kind."""
    at.open(world.url + "/")
    found = _links(at, "header nav a")
    for page in (
        "/groups/walk-billing",
        "/groups/walk-classic",
        "/groups/walk%2Fnext%20gen",
        "/groups/walk-branches",
        "/topics/walk-orders",
        "/topics/walk-payments.by-key",
    ):
        at.open(world.url + page)
        tabs = _links(at, ".tabs a")
        assert len(tabs) > 2, page
        found += tabs
    at.open(world.url + "/topics/walk-payments?tab=messages")
    record = _links(at, 'a[href*="record="]')
    assert record, "messages lead to records"
    found.append(record[0])
    found += [
        "/search?q=walk",
        "/groups?q=nothing-has-this",
        "/groups/walk-classic?tab=offsets&strategy=earliest",
        "/groups/walk-billing?tab=sharing&ranges.sort=-in_flight&partitions.size=1",
        "/topics/walk-payments?tab=messages&from=offset&at=10",
    ]
    return list(dict.fromkeys(found))


def _links(at: Watched, selector: str) -> list[str]:
    found: list[str] = at.page.eval_on_selector_all(
        selector, "all => all.map(one => one.pathname + one.search)"
    )
    return found


def slug(address: str) -> str:
    """The name of a page's pictures."""
    parts = urlsplit(address)
    text = f"{parts.path} {parts.query}".replace("/topics?tab", "")
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "overview"


@contextlib.contextmanager
def coming_and_going(world: World) -> Iterator[None]:
    """Members that join the groups, and leave or are killed, one after the other."""
    over = threading.Event()
    visits: list[str] = []

    def churn() -> None:
        for number in itertools.count():
            kind, group, topic = (
                ("classic", "walk-classic", "walk-payments"),
                ("cooperative", "walk-billing", "walk-orders"),
                ("consumer", "walk/next gen", "walk-payments"),
            )[number % 3]
            visitor = world.hire(kind, group, topic, f"visitor-{number}")
            visitor.wait_for_assignment()
            world.forget(visitor)
            if number % 2:
                visitor.leave()
            else:
                visitor.kill()
            visits.append(kind)
            if over.is_set():
                return

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * LIMIT_S)
    assert visits and not thread.is_alive()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_page(browser: Browser, busy: World, width: int) -> None:
    """No page has errors, breaks its layout, is hard to read, or has controls without a name."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    bad: list[str] = []
    with watched(browser, width) as at, coming_and_going(busy):
        for address in addresses(busy, at):
            at.open(busy.url + address)
            for theme in ("light", "dark"):
                at.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                bad += [f"{address} {theme}: contrast {one}" for one in poor_contrasts(at.page)]
                name = f"{slug(address)}-{width}-{theme}.png"
                at.page.screenshot(path=SCREENSHOTS / name, full_page=True)
            bad += [f"{address}: too wide: {one}" for one in layout_breaks(at.page)]
            bad += [f"{address}: without a name: {one}" for one in unnamed_controls(at.page)]
            bad += [f"{address}: {one}" for one in at.troubles]
            at.troubles.clear()
    assert not bad, "\n".join(bad)


def test_checks_see_what_is_wrong(browser: Browser, busy: World) -> None:
    """The checks of this file find texts, layouts, controls and scripts that are broken."""
    with watched(browser, NARROW) as at:
        at.open(busy.url + "/groups/walk-billing?tab=sharing")
        at.page.click("#live-pause")
        assert not poor_contrasts(at.page) and not layout_breaks(at.page)
        at.page.eval_on_selector("h1", "one => one.style.color = '#8a949e'")
        at.page.eval_on_selector(".pieces text", "one => one.style.fill = '#3a88b8'")
        assert len(poor_contrasts(at.page)) == 2
        at.page.eval_on_selector("h1", "one => one.style.width = '500px'")
        assert layout_breaks(at.page)
        at.page.eval_on_selector("#theme", "one => { one.textContent = ''; one.title = ''; }")
        assert len(unnamed_controls(at.page)) == 1
        at.page.eval_on_selector(
            "#find", "one => one.style.setProperty('outline', 'none', 'important')"
        )
        assert [stop["id"] for stop in tab_stops(at.page, 12) if not stop["seen"]] == ["find"]
        at.page.evaluate("console.error('broken'); setTimeout(() => broken(), 0)")
        at.page.goto(busy.url + "/groups/nobody-has-heard-of")
        kinds = {trouble.split(":")[0] for trouble in at.troubles}
        assert {"console error", "script", "answer"} <= kinds
        at.troubles.clear()


def test_pages_are_whole_without_javascript(browser: Browser, busy: World) -> None:
    """Without scripts a page has the heads and tables that it has with them."""
    with watched(browser) as at, watched(browser, java_script_enabled=False) as plain:
        # One group of each kind of tab is enough here.
        pages = [one for one in addresses(busy, at) if not one.startswith("/groups/walk%2F")]
        for address in pages:
            at.open(busy.url + address)
            plain.page.goto(busy.url + address)
            with_scripts, without = outline(at.page), outline(plain.page)
            assert without["heads"] == with_scripts["heads"], address
            assert without["tables"] == with_scripts["tables"], address
            assert without["text"] > 40, address


def test_pages_are_used_by_keyboard(browser: Browser, busy: World) -> None:
    """Tab reaches navigation, search, tabs, filter and sorting, with a focus that is seen."""
    with watched(browser) as at:
        at.open(busy.url + "/groups/walk-classic?tab=members")
        stops = tab_stops(at.page, STOPS_MAX)
        reached = {(stop["place"], stop["href"] or stop["id"]) for stop in stops}
        for place, selector in (("header", "header a"), ("tabs", ".tabs a"), ("sort", "th a")):
            wanted = at.page.eval_on_selector_all(
                selector, "all => all.map(one => one.getAttribute('href'))"
            )
            assert wanted and {(place, href) for href in wanted} <= reached, place
        assert ("header", "find") in reached and ("header", "theme") in reached
        assert any(stop["place"] == "filter" for stop in stops)
        assert all(stop["seen"] for stop in stops), [one for one in stops if not one["seen"]]
        at.page.evaluate("document.activeElement.blur()")
        at.page.keyboard.press("/")
        assert at.page.evaluate("document.activeElement.id") == "find"
        at.page.keyboard.type("walk-bill")
        at.page.keyboard.press("Enter")
        at.page.wait_for_url(lambda address: "walk-classic" not in address)
        eventually(lambda: "walk-billing" in at.page.inner_text("main"), "it is found")


def test_sorting_and_themes(browser: Browser, busy: World) -> None:
    """A column's head sorts by it, and the button of the theme is remembered over pages."""
    with watched(browser) as at:
        at.open(busy.url + "/topics")
        at.page.click("th a >> nth=0")
        at.page.wait_for_load_state("load")
        eventually(lambda: at.table("topics"), "the table is there again")
        names = [row["Topic"] for row in at.table("topics") if "Topic" in row]
        assert names == sorted(names, reverse=names != sorted(names)) and len(names) >= 3
        at.page.click("#theme")
        at.page.click("#theme")
        at.open(busy.url + "/groups")
        assert at.page.evaluate("document.documentElement.dataset.theme") == "dark"

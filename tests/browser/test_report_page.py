"""The report in a real browser: its content, and its use with the mouse or only the keyboard."""

import json
import shutil

import pytest

import report_runs
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.translator import load_translator

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
SPARSE, STOCK = range(2)
PLACES = ("cross", "encoder", "decoder")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Return the path of the page and, for each model, its attention by sentence number."""
    folder = tmp_path_factory.mktemp("Bericht für uns")
    data, folders = report_runs.train_runs(folder)
    report_runs.page_of(folders, 6)
    path = folder / "report.html"
    pairs = []
    for run in folders:
        translator = load_translator(str(run / "average.pt"), str(data), cpu=True)
        padding = translator.task.source_dictionary.pad()
        pairs.append(
            {
                pair.number: pair
                for sample in translator.batches("test", 4000)
                for pair in forced_attention(translator.models[0], sample, padding, PLACES)
            }
        )
    return path, pairs


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    chromedriver = shutil.which("chromedriver")
    if not browser or not chromedriver:
        pytest.skip("no browser: needs chromium and chromedriver (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver, reported):
    """Open the page in a wide window and light colours; the test must not cause browser errors."""
    show(driver, "light", 1280)
    driver.get_log("browser"), driver.get_log("performance")
    driver.get(reported[0].as_uri())
    yield driver
    assert driver.get_log("browser") == []
    # The browser opens pages of its own, but must not request anything from a server.
    assert {url for url in requested(driver) if not url.startswith(("chrome", "data:"))} <= {
        reported[0].as_uri()
    }


def requested(driver):
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"]


def show(driver, theme, width):
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def choose(page, **values):
    for name, value in values.items():
        Select(page.find_element(By.ID, name)).select_by_value(str(value))


def cells(page):
    """Class and label of each cell, row by row."""
    return page.execute_script(
        "return [...document.querySelectorAll('#grid tbody tr')].map(row => "
        "[...row.querySelectorAll('td')].map(cell => [cell.className, cell.ariaLabel]))"
    )


def read_weight(page):
    """Return the displayed weight of the cell last pointed at."""
    return page.find_element(By.CSS_SELECTOR, "#weight .value").text


def number_in(text):
    return 0.0 if text == "exactly 0" else float(text.removeprefix("about "))


def test_page_opens_with_the_last_layer_and_the_mean_of_the_heads(page, reported):
    chosen = [
        page.find_element(By.ID, name).get_property("value") for name in ("place", "layer", "head")
    ]
    assert chosen == ["cross", str(len(reported[1][0][0].weights["cross"]) - 1), "mean"]


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_cut_off(page, width):
    """What is wider than the page scrolls, and captions are read without scrolling."""
    show(page, "light", width)
    beyond = page.execute_script(
        "return [...document.querySelectorAll('body *')].filter(part => "
        "!part.closest('.scroll > *, .steps > *, .skip') && "
        "part.getBoundingClientRect().right > innerWidth + 1).map(part => part.outerHTML)"
    )
    assert beyond == []
    tables = page.find_elements(By.CSS_SELECTOR, ".caption + .scroll > table")
    assert len(tables) >= 4
    wide = page.execute_script(
        "return [...document.querySelectorAll('.caption + .scroll')].map(box => "
        "box.scrollWidth > box.clientWidth + 1)"
    )
    assert any(wide) == (width == 400)


@pytest.mark.each_value
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", [SPARSE, STOCK])
def test_every_cell_is_the_models_own_weight(model, place, page, reported):
    choose(page, model=model, sentence=2, place=place)
    weights = reported[1][model][2].weights[place]
    last = len(weights) - 1
    choices = [(str(head), weights[last, head]) for head in range(weights.shape[1])]
    for head, expected in [*choices, ("mean", weights[last].mean(0))]:
        choose(page, layer=last, head=head)
        shown = cells(page)
        assert (len(shown), len(shown[0])) == expected.shape
        for query, row in enumerate(shown):
            for key, (kind, label) in enumerate(row):
                text = label.rpartition(": ")[2]
                if place == "decoder" and key > query:
                    assert (kind, text) == ("masked", "not visible to the query")
                    continue
                weight = expected[query, key].item()
                assert (kind == "zero") == (weight == 0) == (text == "exactly 0")
                assert ("negative" in kind) == (weight < 0)
                if abs(weight) > 1e-6:
                    digits = 0.006 if abs(weight) > 1e-4 else 0.6
                    # Weights of both signs may cancel in the mean, but not their rounding errors.
                    rounding = 1e-3 * expected.abs().max().item() if head == "mean" else 0
                    assert number_in(text) == pytest.approx(weight, rel=digits, abs=rounding)


def test_null_rows_are_marked_and_named(page, reported):
    weights = reported[1][SPARSE][0].weights
    found = {place: (part == 0).all(-1).nonzero().tolist() for place, part in weights.items()}
    place, (layer, head, _) = next((p, rows[0]) for p, rows in found.items() if rows)
    choose(page, model=SPARSE, sentence=0, place=place, layer=layer, head=head)
    null = (weights[place][layer, head] == 0).all(-1).tolist()
    rows = page.find_elements(By.CSS_SELECTOR, "#grid tbody tr")
    assert ["null" in row.get_attribute("class") for row in rows] == null
    assert ["null" in row.find_element(By.TAG_NAME, "th").text for row in rows] == null
    assert f"{sum(null)} quer" in page.find_element(By.ID, "scale").text
    hatched = rows[null.index(True)].find_element(By.CSS_SELECTOR, "td.zero")
    assert "gradient" in hatched.value_of_css_property("background-image")
    if False in null:
        plain = rows[null.index(False)].find_elements(By.CSS_SELECTOR, "td.zero")
        assert all(cell.value_of_css_property("background-image") == "none" for cell in plain)


def test_zeros_look_unlike_the_smallest_weight(page):
    """A weight has an outline however small it is; an exact 0 has none, in either theme."""
    choose(page, model=SPARSE, sentence=1, place="cross")
    for theme in ("light", "dark"):
        show(page, theme, 1280)
        shadows = page.execute_script(
            "const row = document.querySelector('#grid tbody tr:not(.null)');"
            "const [one, other] = [...row.querySelectorAll('td')];"
            "one.className = 'weight'; one.style.setProperty('--share', 0);"
            "other.className = 'zero';"
            "return [one, other].map(cell => getComputedStyle(cell).boxShadow)"
        )
        assert shadows[0] != "none" and shadows[1] == "none"


def test_hover_tells_query_key_and_weight(page, reported):
    choose(page, model=SPARSE, sentence=3, place="cross", layer=0, head=1)
    pair = reported[1][SPARSE][3]
    weights = pair.weights["cross"][0, 1]
    query, key = divmod(int(weights.argmax()), weights.shape[1])
    row = page.find_elements(By.CSS_SELECTOR, "#grid tbody tr")[query]
    cell = row.find_elements(By.TAG_NAME, "td")[key]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    ActionChains(page).move_to_element(cell).perform()
    assert number_in(read_weight(page)) == pytest.approx(weights[query, key].item(), rel=0.006)
    sentence = report_runs.data_in(reported[0].read_text(encoding="utf-8"))["models"][SPARSE]
    sentence = sentence["sentences"][3]
    told = [part.text for part in page.find_elements(By.CSS_SELECTOR, "#weight strong")]
    assert told[:2] == [sentence["target"][query], sentence["source"][key]]
    assert "layer 1, head 2" in page.find_element(By.ID, "weight").text


def test_keyboard_alone(page, reported):
    """Tab to each control, change it with the arrow keys, and walk through the grid."""

    def press(*keys):
        ActionChains(page).send_keys(*keys).perform()

    def focused():
        return page.execute_script(
            "return document.activeElement.id || document.activeElement.role"
        )

    def tab_to(name):
        for _ in range(60):
            press(Keys.TAB)
            if focused() == name:
                return
        raise AssertionError(f"Tab does not reach {name}")

    tab_to("model")
    press(Keys.ARROW_DOWN, Keys.ARROW_UP)
    tab_to("sentence")
    press(Keys.ARROW_DOWN)
    tab_to("next")
    press(Keys.ENTER)
    tab_to("place")
    press(Keys.ARROW_DOWN)
    tab_to("layer")
    press(Keys.ARROW_DOWN)
    tab_to("head")
    press(Keys.ARROW_DOWN)
    state = {
        name: page.find_element(By.ID, name).get_property("value")
        for name in ("model", "sentence", "place", "layer", "head")
    }
    assert state == {"model": "0", "sentence": "2", "place": "encoder", "layer": "1", "head": "0"}
    weights = reported[1][SPARSE][2].weights["encoder"][1, 0]
    tab_to("gridcell")
    at = [0, 0]
    for key, place in (
        ("", (0, 0)),
        (Keys.ARROW_RIGHT, (0, 1)),
        (Keys.ARROW_DOWN, (1, 1)),
        (Keys.END, (1, len(weights) - 1)),
        (Keys.ARROW_RIGHT, (1, len(weights) - 1)),
        (Keys.HOME, (1, 0)),
        (Keys.ARROW_UP, (0, 0)),
        (Keys.ARROW_UP, (0, 0)),
    ):
        press(key)
        at = place
        assert number_in(read_weight(page)) == pytest.approx(weights[at].item(), rel=0.006)
        label = page.execute_script("return document.activeElement.ariaLabel")
        assert label.endswith(read_weight(page))
    outline = page.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    # One Tab leaves the grid.
    press(Keys.TAB)
    assert focused() != "gridcell"


def test_alternatives_are_those_of_the_model(page, reported):
    models = report_runs.data_in(reported[0].read_text(encoding="utf-8"))["models"]
    for number, model in enumerate(models):
        choose(page, model=number, sentence=1)
        steps = page.find_elements(By.CSS_SELECTOR, "#steps > li")
        expected = model["sentences"][1]["steps"]
        assert len(steps) == len(expected)
        for step, found in zip(steps, expected, strict=True):
            tokens = [item.text for item in step.find_elements(By.CSS_SELECTOR, "ul bdi")]
            assert tokens == [entry["token"] for entry in found["alternatives"]]
            frames = step.find_elements(By.CSS_SELECTOR, "li.given, li.impossible")
            assert len(frames) == 1
            possible = "impossible" not in frames[0].get_attribute("class")
            assert possible == (found["p"] > 0)
            every = found["nonzeros"] == model["vocabulary"]
            assert (f"all {found['nonzeros']} tokens" in step.text) == every
        note = page.find_element(By.ID, "support").text
        assert ("Every token has nonzero" in note) == (number == STOCK)


def test_text_is_shown_as_it_is(page, reported):
    sentences = report_runs.data_in(reported[0].read_text(encoding="utf-8"))["models"][0][
        "sentences"
    ]
    for found in sentences:
        choose(page, sentence=found["number"])
        for name, key in (("source", "source"), ("reference", "target")):
            assert page.find_element(By.ID, name).get_property("textContent") == " ".join(
                found[key]
            )
    assert page.find_element(By.TAG_NAME, "h1").text.endswith("sparse <i>, stock")
    assert page.find_elements(By.CSS_SELECTOR, "main b, main i") == []


def test_figures_are_drawn_and_named(page):
    figures = page.find_elements(By.TAG_NAME, "figure")
    assert len(figures) >= 8
    for figure in figures:
        picture = figure.find_element(By.TAG_NAME, "svg")
        assert (
            picture.get_attribute("aria-label")
            == figure.find_element(By.TAG_NAME, "figcaption").text
        )
        assert picture.size["height"] > 100
    ids = page.execute_script("return [...document.querySelectorAll('[id]')].map(part => part.id)")
    assert len(ids) == len(set(ids))
    missing = page.execute_script(
        "return [...document.querySelectorAll('use')].filter(use => "
        "!document.querySelector(use.getAttribute('xlink:href'))).length"
    )
    assert missing == 0

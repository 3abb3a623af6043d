"""The pages of a map of one image in Chromium, opened from disk and used as a person would."""

import io
import json
import re

import numpy as np
import pytest
import rasterio
from PIL import Image
from sklearn.dummy import DummyClassifier

from undulatus.products.browse.image_map import open_picture, raster_map
from undulatus.products.browse.image_site import build_image_site

selenium = pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

# Selenium leaves its sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

TIMEOUT = 60
"""Seconds: a busy machine may be slow."""

PANES = ("image", "class", "probability", "uncertainty")

COLOURS = {10: (0x00, 0x72, 0xB2), 20: (0xC8, 0xA1, 0x65), 30: (0x7F, 0xC4, 0xE0)}


@pytest.fixture(scope="module")
def site(tmp_path_factory, class_map, image):
    """Return a function that builds the pages, once for each step between spectra."""
    maps = raster_map(class_map)
    picture = open_picture(image, maps)
    model = DummyClassifier().fit(np.zeros((3, 1)), ["a", "b", "c"])
    values = {name: [[0.01 * q] * 3 for q in range(5)] for name in ("a", "b", "c")}
    model.provenance_ = {
        "class_profiles": {
            "features": ["B02", "B03", "B08"],
            "quantiles": [0.05, 0.25, 0.5, 0.75, 0.95],
            "values": values,
        }
    }
    folder, made = tmp_path_factory.mktemp("chromium"), {}

    def build(step=1):
        if step not in made:
            made[step] = build_image_site(
                maps, picture, folder / str(step), model=model, spectra_step=step
            ).as_uri()
        return made[step]

    return build


@pytest.fixture
def opened(browser, site):
    """Return a function that opens the page at a place, and waits until its tiles are drawn."""

    def visit(place="", width=1280, address=None):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(f"{address or site()}{place}")
        wait_for_tiles(browser)
        return browser

    return visit


def wait(browser, condition):
    return WebDriverWait(browser, TIMEOUT, 0.02).until(lambda _: condition())


def wait_for_tiles(browser):
    """Wait until what was asked for is drawn."""
    two_frames = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
    browser.execute_async_script(two_frames)
    return wait(browser, lambda: browser.execute_script("return document.body.dataset.shown"))


def canvas_of(browser, pane):
    return browser.find_element("css selector", f"#pane-{pane} canvas")


def shown(browser, pane):
    """Return the colours of a pane on the screen, without its border."""
    for button in browser.find_elements("class name", "enlarge"):
        browser.execute_script("arguments[0].style.opacity = 0", button)
    with Image.open(io.BytesIO(canvas_of(browser, pane).screenshot_as_png)) as file:
        return np.asarray(file.convert("RGB"))[1:-1, 1:-1]


def view_of(browser):
    return browser.execute_script("return {...window.undulatusPanes.view}")


def pixels_under(browser, image):
    """Return the row and column of the image under the centre of each pixel of the screen."""
    view = view_of(browser)
    height, width = image.shape[:2]
    rows, columns = (
        np.floor(centre + (np.arange(size) + 0.5 - size / 2) / view["scale"]).astype(int)
        for centre, size in ((view["y"], height), (view["x"], width))
    )
    return rows, columns


def choose(browser, row, column):
    """Type the row and column of a pixel, counted from one, and wait for what is said of it."""
    for name, number in (("row", row + 1), ("column", column + 1)):
        box = browser.find_element("id", name)
        box.clear()
        box.send_keys(str(number), Keys.TAB)
    expect_pixel(browser, row, column)


def expect_pixel(browser, row, column):
    said = "return document.body.dataset.pixel"
    wait(browser, lambda: browser.execute_script(said) == f"{row} {column}")


def probabilities(browser):
    rows = browser.find_elements("css selector", "#pixel-probabilities li")
    return [float(row.get_attribute("data-probability")) for row in rows]


def spectrum(browser):
    return json.loads(browser.find_element("id", "spectrum").get_attribute("data-values"))


def spectrum_of(image, row, column):
    with rasterio.open(image) as file:
        return file.read()[:, row, column] * 1e-4 - 0.1


def errors(browser):
    return [line for line in browser.get_log("browser") if line["level"] != "INFO"]


def test_the_page_opens_from_disk_without_an_error(opened):
    browser = opened()
    assert errors(browser) == []
    assert not browser.find_element("id", "error").is_displayed()
    titles = [each.text for each in browser.find_elements("css selector", ".legend .name")]
    assert titles == ["open water", "land", "ice"]
    assert all(len(np.unique(shown(browser, pane).reshape(-1, 3), axis=0)) > 3 for pane in PANES)


def test_at_full_zoom_every_pixel_has_the_colour_of_its_class(opened, classes):
    # Four screen pixels each, across the corner of four tiles, outside the hatching.
    browser = opened("#256,256,4")
    image = shown(browser, "class")
    rows, columns = pixels_under(browser, image)
    codes = classes["class"].values[np.ix_(rows, columns)]
    expected = np.array([COLOURS[code] for code in codes.ravel()]).reshape(*codes.shape, 3)
    # Tiles begin at whole pixels of the screen, so that an edge may be off by one.
    assert np.mean(np.all(image == expected, axis=-1)) > 0.98


def test_missing_pixels_are_striped_in_all_panes(opened):
    browser = opened("#15,45,8")
    for pane in PANES:
        image = shown(browser, pane)
        rows, columns = pixels_under(browser, image)
        inside = np.ix_((rows > 10) & (rows < 18), (columns > 31) & (columns < 58))
        found = np.unique(image[inside].reshape(-1, 3), axis=0)
        # Grey of the ground, of its lines, and between them.
        assert (np.ptp(found.astype(int), axis=1) == 0).all()


def test_panes_stay_in_step_when_one_is_zoomed_and_moved(opened, classes):
    browser = opened()
    before = view_of(browser)
    canvas = canvas_of(browser, "probability")
    origin = ActionChains(browser).move_to_element_with_offset(canvas, 60, 10)
    origin.perform()
    browser.execute_script(
        "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -960, bubbles: true, "
        "clientX: arguments[1], clientY: arguments[2], cancelable: true}))",
        canvas,
        canvas.rect["x"] + canvas.rect["width"] / 2 + 60,
        canvas.rect["y"] + canvas.rect["height"] / 2 + 10,
    )
    wait_for_tiles(browser)
    zoomed = view_of(browser)
    assert zoomed["scale"] == pytest.approx(16 * before["scale"])
    # What was under the pointer is still there, to a pixel of the screen as it was.
    under = before["x"] + 60 / before["scale"]
    assert zoomed["x"] + 60 / zoomed["scale"] == pytest.approx(under, abs=1 / before["scale"])
    ActionChains(browser).drag_and_drop_by_offset(canvas, 40, -20).perform()
    wait_for_tiles(browser)
    moved = view_of(browser)
    assert moved["x"] == pytest.approx(zoomed["x"] - 40 / zoomed["scale"], abs=1.0)
    assert moved["y"] == pytest.approx(zoomed["y"] + 20 / zoomed["scale"], abs=1.0)
    # The borders between classes are where the probability of the class shown is small.
    image = shown(browser, "class")
    rows, columns = pixels_under(browser, image)
    inside = np.ix_((rows >= 0) & (rows < 300), (columns >= 0) & (columns < 1200))
    codes = classes["class"].values[np.ix_(rows[inside[0].ravel()], columns[inside[1].ravel()])]
    water = np.all(image[inside] == COLOURS[10], axis=-1)
    assert np.mean(water == (codes == 10)) > 0.95
    assert browser.execute_script("return document.body.dataset.pixel") is None


def test_a_click_tells_class_probabilities_and_spectrum_of_the_pixel(opened, classes, image):
    row, column = 140, 700
    browser = opened(f"#{row + 0.5},{column + 0.5},6")
    ActionChains(browser).move_to_element(canvas_of(browser, "image")).click().perform()
    expect_pixel(browser, row, column)
    pixel = classes.isel(y=row, x=column)
    name = {10: "open water", 20: "land", 30: "ice"}[int(pixel["class"])]
    assert browser.find_element("id", "pixel-class").text == name
    # Half a step of the 254.
    away = np.array(probabilities(browser)) - pixel["class_probability"].values
    assert np.abs(away).max() <= 0.5 / 254 + 1e-4
    np.testing.assert_allclose(spectrum(browser), spectrum_of(image, row, column), rtol=1e-12)
    position = browser.find_element("id", "pixel-position").text
    assert position == f"row 141, column 701; x {pixel['x'].item():.0f}, y {pixel['y'].item():.0f}"
    given = np.argmax(pixel["class_probability"].values)
    deviation = np.sqrt(pixel["class_latent_variance"].values[given])
    said = browser.find_element("id", "pixel-uncertainty").text
    found = float(said.split("latent function ")[1].split(",")[0])
    # 2.3 % of the byte, and half of the second digit.
    assert found == pytest.approx(deviation, rel=0.023 + 0.05)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (299, 1299), (255, 1024), (256, 1023)])
def test_pixels_at_the_edges_of_tiles_have_their_own_spectra(opened, image, row, column):
    browser = opened()
    choose(browser, row, column)
    np.testing.assert_allclose(spectrum(browser), spectrum_of(image, row, column), rtol=1e-12)


def test_the_spectrum_is_drawn_over_the_training_values_of_the_class(opened):
    browser = opened()
    choose(browser, 100, 600)
    plot = browser.find_element("id", "spectrum")
    for name in ("wide", "narrow", "median", "spectrum"):
        assert plot.find_elements("class name", name)
    # B04 is not a feature of the model, so that the bands of quantiles break there.
    assert len(plot.find_elements("class name", "wide")) == 2
    labels = [each.text for each in plot.find_elements("tag name", "text")]
    assert {"B02", "B03", "B04", "B08"} <= set(labels)
    given = browser.find_element("id", "pixel-class").text
    assert browser.find_element("id", "spectrum-class").text == given


def test_spectra_of_every_fourth_pixel_say_whose_they_are(opened, site, image):
    browser = opened(address=site(4))
    choose(browser, 257, 1298)
    np.testing.assert_allclose(spectrum(browser), spectrum_of(image, 256, 1296), rtol=1e-12)
    assert "row 257, column 1297" in browser.find_element("id", "spectrum-place").text
    choose(browser, 128, 512)
    np.testing.assert_allclose(spectrum(browser), spectrum_of(image, 128, 512), rtol=1e-12)
    assert browser.find_element("id", "spectrum-place").text == ""


def test_a_pixel_without_a_class_and_one_outside_are_called_so(opened):
    browser = opened()
    choose(browser, 15, 40)
    assert browser.find_element("id", "pixel-class").text == "no class"
    assert probabilities(browser) == []
    assert spectrum(browser) == [None] * 4
    choose(browser, 15, 1250)
    assert browser.find_element("id", "pixel-outside").is_displayed()
    choose(browser, 15, 1150)
    assert not browser.find_element("id", "pixel-outside").is_displayed()


def test_pixels_outside_what_was_learned_are_hatched_until_that_is_turned_off(opened):
    browser = opened("#150,1250,4")
    hatched = shown(browser, "class")
    browser.find_element("id", "outside-choice").click()
    wait_for_tiles(browser)
    plain = shown(browser, "class")
    rows, columns = pixels_under(browser, plain)
    changed = np.any(hatched != plain, axis=-1)
    inside = (rows[:, None] >= 0) & (rows[:, None] < 300) & (columns < 1300)
    outside = inside & (columns > 1200)
    # Lines 1.5 pixels wide, 6 apart.
    assert 0.1 < changed[outside].mean() < 0.7
    assert changed[inside & (columns < 1200)].mean() < 0.01


def test_any_class_may_be_chosen_whose_probability_is_shown(opened, classes):
    browser = opened("#150,600,2")
    browser.find_element("css selector", '.legend button[data-class="2"]').click()
    wait_for_tiles(browser)
    choice = Select(browser.find_element("id", "probability-choice"))
    assert choice.first_selected_option.text == "ice"
    image = shown(browser, "probability").astype(int)
    rows, columns = pixels_under(browser, image)
    inside = (rows >= 0) & (rows < 300)
    p = classes["class_probability"].values[2][np.ix_(rows[inside], columns)]
    # The brightness of the colour scale rises with the probability.
    brightness = image[inside].sum(axis=-1)
    assert np.corrcoef(p.ravel(), brightness.ravel())[0, 1] > 0.97
    choice.select_by_visible_text("the class shown")
    wait_for_tiles(browser)
    assert not np.array_equal(shown(browser, "probability"), image)


def test_the_uncertainty_may_be_the_entropy(opened):
    browser = opened("#150,600,2")
    before = shown(browser, "uncertainty")
    # One digit, as the scale has.
    assert re.fullmatch(r"≤ 0\.\d", browser.find_element("id", "uncertainty-low").text)
    Select(browser.find_element("id", "uncertainty-choice")).select_by_value("entropy")
    wait_for_tiles(browser)
    assert not np.array_equal(shown(browser, "uncertainty"), before)
    assert browser.find_element("id", "uncertainty-high").text == "1.10 nats"


def test_keys_zoom_move_and_show_the_whole_map(opened):
    browser = opened()
    whole = view_of(browser)
    canvas = canvas_of(browser, "class")
    canvas.send_keys("+")
    assert view_of(browser)["scale"] == pytest.approx(2 * whole["scale"])
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert view_of(browser)["x"] > whole["x"]
    canvas.send_keys("0")
    assert view_of(browser) == pytest.approx(whole)
    canvas.send_keys(Keys.ENTER)
    expect_pixel(browser, 150, 650)


def test_one_pane_may_be_shown_alone(opened):
    browser = opened()
    before = canvas_of(browser, "class").size
    button = browser.find_element("css selector", "#pane-class .enlarge")
    button.click()
    wait_for_tiles(browser)
    assert canvas_of(browser, "class").size["width"] > 1.5 * before["width"]
    assert not canvas_of(browser, "image").is_displayed()
    button.click()
    wait_for_tiles(browser)
    assert canvas_of(browser, "image").is_displayed()


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_runs_over_the_edge(opened, width):
    browser = opened(width=width)
    choose(browser, 140, 700)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    for name in (*(f"pane-{pane}" for pane in PANES), "spectrum", "legend-title"):
        box = browser.find_element("id", name).rect
        assert box["width"] > 30
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_classes_alone_open_without_an_error(opened, class_map, tmp_path):
    (tmp_path / "alone.tif").write_bytes(class_map.read_bytes())
    page = build_image_site(raster_map(tmp_path / "alone.tif"), None, tmp_path / "site")
    browser = opened(address=page.as_uri())
    choose(browser, 100, 600)
    assert errors(browser) == []
    assert browser.find_element("id", "pixel-class").text in {"open water", "land", "ice"}


def test_a_folder_that_lacks_a_tile_says_so(opened, class_map, tmp_path):
    page = build_image_site(raster_map(class_map), None, tmp_path / "site")
    for path in (page.parent / "tiles" / "0").iterdir():
        path.unlink()
    browser = opened(address=page.as_uri())
    canvas_of(browser, "class").send_keys("+", "+", "+")
    error = browser.find_element("id", "error")
    wait(browser, error.is_displayed)
    assert "cannot be loaded" in error.text

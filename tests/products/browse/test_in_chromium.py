"""The pages in Chromium, opened from disk, with clicks and keys as a person would use them."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from undulatus.products.browse import build_site
from undulatus.products.panels import panel_names, read_acquisitions, scales_for
from undulatus.products.views import view_scene

selenium = pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

# Selenium leaves its sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

TIMEOUT = 60
"""Seconds: a busy machine may be slow."""

OFFSET_IN_PLOT = """
const view = [...Bokeh.index.roots].find((root) => root.model.name === arguments[0]);
const box = view.el.getBoundingClientRect();
const host = document.getElementById(arguments[0]).getBoundingClientRect();
return [view.frame.x_scale.compute(arguments[1]) + box.left - host.left - host.width / 2,
        view.frame.y_scale.compute(arguments[2]) + box.top - host.top - host.height / 2];
"""


SERIES = """
const found = Bokeh.documents.map((d) => d.get_model_by_name(arguments[0])).find((m) => m);
return Object.fromEntries(Object.entries(found.data).map(([name, column]) => [name, [...column]]));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory, maps, scene):
    return build_site(maps, scene, tmp_path_factory.mktemp("chromium") / "site").as_uri()


@pytest.fixture(scope="module")
def class_page(tmp_path_factory, class_maps, labelled_scene):
    folder = tmp_path_factory.mktemp("chromium") / "classes"
    return build_site(class_maps, labelled_scene, folder).as_uri()


@pytest.fixture
def opened(browser, page):
    """Return a function that opens the page with a hash, at a width, and waits for it."""

    def visit(moment="", width=1280, address=page):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(f"{address}{moment}")
        wait(browser, lambda: browser.execute_script("return document.body.dataset.ready"))
        wait(browser, lambda: shown(browser))
        return browser

    return visit


def wait(browser, condition):
    return WebDriverWait(browser, TIMEOUT, 0.05).until(lambda _: condition())


def shown(browser):
    """Return the time whose images are drawn."""
    return browser.execute_script("return document.body.dataset.shown || ''")


def text_of(browser, name):
    return with_plain_spaces(browser.find_element("id", name).text)


def with_plain_spaces(text):
    """Replace no-break spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def press(browser, *keys):
    for key in keys:
        ActionChains(browser).send_keys(key).perform()


def expect(browser, moment):
    """Wait until the images are those of a time; heading and address must name it."""
    wait(browser, lambda: shown(browser) == moment)
    assert text_of(browser, "time") == f"{moment.replace('T', ' ')} UTC"
    assert browser.current_url.endswith(f"#{moment}")


def click_cell(browser, hours, day):
    place = browser.find_element("id", "heatmap")
    noon = (np.datetime64(day, "ms") + np.timedelta64(12, "h")).astype(int).item()
    across, down = browser.execute_script(OFFSET_IN_PLOT, "heatmap", hours, noon)
    ActionChains(browser).move_to_element_with_offset(
        place, round(across), round(down)
    ).click().perform()


def colours(browser, panel, shape):
    """Return the colours on the screen at the middle of each pixel of a panel."""
    frame = browser.find_element("css selector", f"#panel-{panel} canvas")
    with Image.open(io.BytesIO(frame.screenshot_as_png)) as file:
        image = np.asarray(file.convert("RGB"))
    rows, columns = (
        ((np.arange(count) + 0.5) * size / count).astype(int)
        for count, size in zip(shape, image.shape, strict=False)
    )
    return image[np.ix_(rows, columns)]


def test_the_page_opens_from_disk_without_an_error(opened):
    browser = opened()
    assert [line for line in browser.get_log("browser") if line["level"] != "INFO"] == []
    assert browser.execute_script("return Bokeh.documents.length") == 3
    assert browser.find_element("id", "error").text == ""


def test_it_says_that_the_data_are_synthetic(opened):
    statement = opened().find_element("class name", "statement")
    assert statement.is_displayed()
    assert "Synthetic data." in statement.text
    assert "no satellite took these images" in statement.text


def test_the_address_names_the_acquisition(opened):
    browser = opened("#2010-01-02T13:30")
    expect(browser, "2010-01-02T13:30")
    browser.execute_script("location.hash = '2010-01-03T09:15'")
    expect(browser, "2010-01-03T09:15")
    # A time between two acquisitions gives the nearest; one after all, the last.
    browser.execute_script("location.hash = '2010-01-02T10:05'")
    expect(browser, "2010-01-02T10:00")
    browser.execute_script("location.hash = '2031-01-01T00:00'")
    expect(browser, "2010-01-03T23:45")


def test_a_click_shows_the_acquisition_of_the_cell(opened):
    browser = opened("#2010-01-01T12:00")
    click_cell(browser, 10.0 + 0.125, "2010-01-02")
    expect(browser, "2010-01-02T10:00")
    # In the gap of the first day, from 05:00 to 07:15, the nearest acquisition.
    click_cell(browser, 5.3, "2010-01-01")
    expect(browser, "2010-01-01T04:45")


@pytest.mark.parametrize("moment", ["2010-01-01T14:00", "2010-01-03T11:45"])
def test_every_panel_has_the_colours_of_its_data(opened, scene, maps, moment):
    browser = opened(f"#{moment}")
    expect(browser, moment)
    view = view_scene(scene, maps)
    everything = np.arange(len(view.times))
    chosen = np.flatnonzero(view.times == np.datetime64(moment))
    (acquisition,) = read_acquisitions(view, chosen, scales_for(view, everything))
    for name in panel_names(view):
        expected = acquisition.images[name]
        known = expected[..., 3] > 0
        assert np.array_equal(colours(browser, name, view.shape)[known], expected[known][:, :3])
        assert known.all() == (name in {"rgb", "ir", "l2", "truth"})


def test_at_night_the_rgb_panel_shows_the_infrared_and_says_so(opened):
    browser = opened("#2010-01-02T02:00")
    expect(browser, "2010-01-02T02:00")
    assert "infrared" in browser.find_element("css selector", "#panel-rgb .note").text
    rgb, infrared = (colours(browser, name, (20, 26))[:15] for name in ("rgb", "ir"))
    assert np.array_equal(rgb, infrared)


def test_keys_step_through_times_and_days(opened):
    browser = opened("#2010-01-02T12:00")
    for key, moment in (
        (Keys.ARROW_RIGHT, "2010-01-02T12:15"),
        (Keys.ARROW_DOWN, "2010-01-03T12:15"),
        (Keys.ARROW_DOWN, "2010-01-03T12:15"),
        (Keys.ARROW_LEFT, "2010-01-03T12:00"),
        (Keys.ARROW_UP, "2010-01-02T12:00"),
        (Keys.HOME, "2010-01-02T00:00"),
        (Keys.ARROW_LEFT, "2010-01-01T23:45"),
        (Keys.HOME, "2010-01-01T00:00"),
        (Keys.ARROW_LEFT, "2010-01-01T00:00"),
        (Keys.END, "2010-01-01T23:45"),
    ):
        press(browser, key)
        expect(browser, moment)


def test_j_steps_through_the_list_from_the_largest_difference(opened, maps, scene):
    browser = opened()
    listed = browser.find_elements("css selector", "#differences button")
    both = (maps["cloud_mask"] != 255) & scene["cloud_mask_l2"].isin([0, 1])
    differ = (maps["cloud_mask"] != scene["cloud_mask_l2"]).where(both).mean(("y", "x")).values
    times = maps["time"].values
    for button in listed[:3]:
        press(browser, "j")
        moment = button.text[:16].replace(" ", "T")
        expect(browser, moment)
        share = differ[times == np.datetime64(moment)].item()
        assert with_plain_spaces(button.text).endswith(f"{100 * share:.1f} %")
        assert f"agree on {100 * (1 - share):.1f} %" in text_of(browser, "description")
        assert button.get_attribute("aria-current") == "true"
    listed[0].click()
    expect(browser, str(times[np.argmax(differ)])[:16])


def test_description_and_labels_are_those_of_the_acquisition(opened, maps):
    browser = opened("#2010-01-02T12:00")
    at_noon = maps["cloud_mask"].sel(time="2010-01-02T12:00")
    cloud = f"{100 * float(at_noon.where(at_noon != 255).mean()):.1f} %"
    text = text_of(browser, "description")
    assert "solar zenith angle" in text
    assert f"model {cloud}" in text
    panel = browser.find_element("css selector", "#panel-model canvas")
    label = with_plain_spaces(panel.get_attribute("aria-label"))
    assert label == f"model mask, 2010-01-02 12:00 UTC, {cloud} cloud"
    assert browser.find_element("id", "description").get_attribute("aria-live") == "polite"


def test_play_runs_until_it_is_paused(opened):
    browser = opened("#2010-01-01T22:00")
    play = browser.find_element("id", "play")
    play.click()
    # Across midnight, where the images of the next day are loaded.
    wait(browser, lambda: shown(browser) >= "2010-01-02T00:30")
    play.click()
    assert play.text == "Play"
    paused = shown(browser)
    # More than five frames at eight a second.
    time.sleep(0.7)
    assert shown(browser) == paused


def test_a_click_on_a_panel_shows_the_series_of_its_pixel(opened, maps):
    browser = opened("#2010-01-02T12:00")
    panel = browser.find_element("css selector", "#panel-ir canvas")
    row, column = 4, 21
    size = panel.size
    ActionChains(browser).move_to_element_with_offset(
        panel,
        round(((column + 0.5) / 26 - 0.5) * size["width"]),
        round(((row + 0.5) / 20 - 0.5) * size["height"]),
    ).click().perform()
    wait(
        browser,
        lambda: browser.execute_script("return document.body.dataset.pixel") == f"{row} {column}",
    )
    assert f"Row {row + 1}, column {column + 1}" in text_of(browser, "pixel-description")
    pixel = maps["cloud_probability"].isel(y=row, x=column)
    when, values = browser.execute_script(SERIES, "series-all-values").values()
    assert np.array_equal(np.array(when, "datetime64[ms]"), pixel["time"].values)
    # Half a step of the 255 levels.
    assert np.abs(np.array(values) - pixel.values).max() <= 0.5 / 254 + 1e-6
    hours, values = browser.execute_script(SERIES, "series-day-values").values()
    day = pixel.sel(time="2010-01-02")
    assert np.array_equal(hours, np.arange(96) / 4)
    assert np.abs(np.array(values) - day.values).max() <= 0.5 / 254 + 1e-6


def test_a_typed_pixel_is_shown_and_a_missing_one_has_no_value(opened):
    browser = opened()
    for name, number in (("row", 4), ("column", 5)):
        box = browser.find_element("id", name)
        box.clear()
        box.send_keys(str(number), Keys.TAB)
    wait(browser, lambda: browser.execute_script("return document.body.dataset.pixel") == "3 4")
    label = browser.find_element("id", "series-day").get_attribute("aria-label")
    assert label.endswith("missing")


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_runs_over_the_edge(opened, width):
    browser = opened(width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    for name in ("heatmap", "series-day", "series-all", "panel-model", "play"):
        box = browser.find_element("id", name).rect
        assert box["width"] > 30
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_a_map_without_its_scene_opens_without_an_error(opened, tmp_path, maps):
    address = build_site(maps, None, tmp_path / "site", end="2010-01-01").as_uri()
    browser = opened("#2010-01-01T12:00", address=address)
    expect(browser, "2010-01-01T12:00")
    assert "Made without the scene" in browser.find_element("tag name", "header").text
    assert not browser.find_element("id", "next-difference").is_displayed()
    assert [line for line in browser.get_log("browser") if line["level"] != "INFO"] == []


def test_reduced_motion_means_the_slowest_speed(opened):
    browser = opened()
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        opened()
        assert browser.find_element("id", "speed").get_attribute("value") == "1"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


# Maps of classes


def test_a_page_of_classes_opens_without_an_error_and_describes_an_acquisition(
    opened, class_page, class_maps, labelled_scene
):
    browser = opened("#2010-01-02T12:00", address=class_page)
    assert [line for line in browser.get_log("browser") if line["level"] != "INFO"] == []
    codes = class_maps["class"].sel(time="2010-01-02T12:00")
    known = codes != 255
    shares = {
        name: 100 * float((codes == code).where(known).mean())
        for code, name in ((2, "sea"), (3, "land"), (9, "cloud"))
    }
    listed = sorted(shares, key=shares.get, reverse=True)
    text = text_of(browser, "description")
    expected = ", ".join(f"{name} {shares[name]:.1f} %" for name in listed if shares[name])
    assert f"Model: {expected} of the pixels." in text
    label = labelled_scene["surface"].sel(time="2010-01-02T12:00")
    agree = 100 * float((codes == label).where(known).mean())
    assert f"They agree on {agree:.1f} %." in text
    panel = browser.find_element("css selector", "#panel-model canvas")
    aria = with_plain_spaces(panel.get_attribute("aria-label"))
    assert aria == f"model classes, 2010-01-02 12:00 UTC, {expected}"


def test_every_panel_of_a_page_of_classes_has_the_colours_of_its_data(
    opened, class_page, class_maps, labelled_scene
):
    moment = "2010-01-02T12:00"
    browser = opened(f"#{moment}", address=class_page)
    view = view_scene(labelled_scene, class_maps)
    chosen = np.flatnonzero(view.times == np.datetime64(moment))
    scales = scales_for(view, np.arange(len(view.times)))
    (acquisition,) = read_acquisitions(view, chosen, scales)
    assert {"label", "model", "probability"} <= set(panel_names(view))
    for name in panel_names(view):
        expected = acquisition.images[name]
        known = expected[..., 3] > 0
        assert np.array_equal(colours(browser, name, view.shape)[known], expected[known][:, :3])


def test_the_calendar_shows_the_share_of_the_class_that_is_chosen(opened, class_page, class_maps):
    browser = opened(address=class_page)
    known = class_maps["class"].where(class_maps["class"] != 255)
    chooser = browser.find_element("id", "share-of")
    assert chooser.get_attribute("value") == "model-2"
    for place, code in ((2, 9), (0, 2)):
        browser.execute_script(
            "arguments[0].value = arguments[1];arguments[0].dispatchEvent(new Event('change'));",
            chooser,
            f"model-{place}",
        )
        table = browser.execute_script(
            "const named = (name) => Bokeh.documents.map((d) => d.get_model_by_name(name))"
            ".find((m) => m);"
            "return [[...named('cells').data.image[0]], named('share-colours').high];"
        )
        shares = (known == code).where(known.notnull()).mean(("y", "x"))
        cells = np.array(table[0], float).reshape(3, 96)
        # The second day has no gap.
        assert np.allclose(cells[1], shares.sel(time="2010-01-02"), rtol=1e-6)
        assert np.isnan(cells[0, 20:30]).all()
        # The scale ends at a whole tenth above the largest share.
        assert 0.0 <= table[1] - float(shares.max()) < 0.1 + 1e-6
        name = browser.find_element("id", "heatmap").get_attribute("aria-label")
        assert f"Share of {('sea', 'land', 'cloud')[place]} " in name


def test_the_series_of_a_pixel_stacks_the_probabilities_of_all_classes(
    opened, class_page, class_maps
):
    browser = opened("#2010-01-02T12:00", address=class_page)
    found = browser.execute_script(SERIES, "series-day-values")
    pixel = class_maps["class_probability"].isel(y=10, x=13).sel(time="2010-01-02")
    assert np.array_equal(found["x"], np.arange(96) / 4)
    edges = np.array([found[f"edge{number}"] for number in range(4)])
    # Three bytes, each off by half a step of the 255 levels, and their sum.
    assert np.abs(np.diff(edges, axis=0) - pixel.values).max() <= 1.5 / 254
    assert np.abs(edges[-1] - 1.0).max() < 1e-12
    at_noon = pixel.sel(time="2010-01-02T12:00")
    likeliest = str(at_noon["class_name"].values[np.argmax(at_noon.values)])
    name, value = text_of(browser, "pixel-now").removeprefix("Now: ").split(",")[0].split()
    assert name == likeliest
    # Two decimals of a byte.
    assert abs(float(value) - float(at_noon.max())) <= 0.005 + 0.5 / 254
    whole = browser.execute_script(SERIES, "series-all-values")
    assert len(whole["x"]) == class_maps.sizes["time"]


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_of_a_page_of_classes_runs_over_the_edge(opened, class_page, width):
    browser = opened(width=width, address=class_page)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_map_of_classes_without_its_scene_opens_without_an_error(opened, tmp_path, class_maps):
    address = build_site(class_maps, None, tmp_path / "site", end="2010-01-01").as_uri()
    browser = opened("#2010-01-01T12:00", address=address)
    expect(browser, "2010-01-01T12:00")
    assert not browser.find_element("id", "next-difference").is_displayed()
    assert [line for line in browser.get_log("browser") if line["level"] != "INFO"] == []

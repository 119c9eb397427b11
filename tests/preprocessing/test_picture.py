"""The text of a stage: what it says, and what is wrong with one."""

from __future__ import annotations

import pytest

from tvmopt.errors import InputError
from tvmopt.preprocessing.asked import named, stages
from tvmopt.preprocessing.picture import KEYS, Picture, parse, written


def test_every_key_is_read() -> None:
    found = parse(
        "image:resize=256,crop=224x240,filter=Bicubic,from=480x640,scale=1/255,mean=0.5,std=0.1/0.2/0.3,"
        "layout=nchw,dtype=uint8,pixels=bgr,model=rgb,pad=zero,centre=floor"
    )
    assert found == Picture(
        256, (224, 240), "bicubic", (480, 640), 1 / 255, (0.5,), (0.1, 0.2, 0.3), "NCHW", "bgr", "rgb", True, "floor"
    )
    boxed = parse("image:letterbox=640,fill=114,place=first")
    assert (boxed.letterbox, boxed.fill, boxed.place) == ((640, 640), 114, "first")
    assert found.named | boxed.named == set(KEYS)


def test_defaults() -> None:
    assert parse("image:") == Picture()
    assert parse("image:resize=224x224").resize == (224, 224)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("audio:rate=16000", "no preprocessing 'audio'"),
        ("image:rezise=256", "did you mean resize?"),
        ("image:resize", "resize has no value"),
        ("image:resize=0", "'0' is no value of resize"),
        ("image:resize=99999", "no value of resize"),
        ("image:resize=2x3x4", "no value of resize"),
        ("image:resize=-1", "no value of resize"),
        ("image:crop=abc", "no value of crop"),
        ("image:filter=area", "nearest, box, bilinear"),
        ("image:scale=1/0", "no value of scale"),
        ("image:scale=nan", "no value of scale"),
        ("image:mean=1/2", "no value of mean"),
        ("image:mean=inf", "no value of mean"),
        ("image:std=0", "above 0"),
        ("image:std=0.1/0/0.1", "above 0"),
        ("image:dtype=float32", "uint8: pixels are bytes"),
        ("image:pixels=cmyk", "rgb, bgr or grey"),
        ("image:crop=224,crop=225", "crop is given twice"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    message = str(error.value)
    assert told in message and "where: " in message and "fix:   " in message


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InputError) as error:
        parse("image:resize=0,colour=1,std=x")
    assert len(error.value.others) == 2


@pytest.mark.parametrize(
    ("given", "resize", "wanted"),
    [
        ((480, 640), 256, (256, 341)),
        ((640, 480), 256, (341, 256)),
        ((256, 256), 256, (256, 256)),
        ((1, 1000), 2, (2, 2000)),
        ((333, 500), 224, (224, 336)),
        ((480, 640), (100, 50), (100, 50)),
        ((480, 640), None, (480, 640)),
    ],
)
def test_the_shorter_side(
    given: tuple[int, int], resize: int | tuple[int, int] | None, wanted: tuple[int, int]
) -> None:
    assert Picture(resize=resize).resized(given) == wanted


def test_mappings_and_texts_are_the_same() -> None:
    options = {"resize": 256, "crop": (224, 224), "mean": [0.485, 0.456, 0.406], "scale": 1 / 255, "pad": "zero"}
    assert parse(written(options)) == parse("image:resize=256,crop=224,mean=0.485/0.456/0.406,pad=zero")
    assert stages({"x": options}) == {"x": written(options)} and stages(options) == {"": written(options)}
    assert stages(None) == {}


def test_stages_of_the_command_line() -> None:
    assert named(["image:resize=2"]) == {"": "image:resize=2"}
    assert named(["a=b=image:crop=2", "c=image:@f.json"]) == {"a=b": "image:crop=2", "c": "image:@f.json"}
    with pytest.raises(InputError, match="two stages"):
        named(["image:resize=2", "image:crop=2"])


@pytest.mark.parametrize("asked", [3, ["image:"], {"x": 3}])
def test_what_is_no_stage(asked: object) -> None:
    with pytest.raises(InputError, match="is a"):
        stages(asked)  # type: ignore[arg-type]

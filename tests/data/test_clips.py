from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from cudt.data.clips import Clip, Frame, decode, find_clips
from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.errors import UserError
from tests.videos import drift, noise, write_frames, write_video


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def clip_of(path: Path) -> Clip:
    """The only clip of a video or a folder of frames."""
    (clip,) = find_clips(path) if path.is_dir() else [Clip(path.name, (path,))]
    return clip


def frames_of(path: Path, size: int = 16) -> tuple[list[Frame], list[str]]:
    """The decoded frames and the notes."""
    notes: list[str] = []
    return list(decode(clip_of(path), size, notes.append)), notes


def error_of(path: Path) -> str:
    """The error, which is always one line."""
    with pytest.raises(UserError) as error:
        frames_of(path)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- finding clips


def test_each_video_and_each_folder_with_frames_is_a_clip_at_any_depth(tmp_path):
    touch(tmp_path, "b.avi", "A.MP4", "walk/1.JPG", "walk/2.tiff", "deep/er/9.png", "deep/er/x.mkv")
    clips = find_clips(tmp_path)
    found = {clip.name: [file.name for file in clip.files] for clip in clips}
    assert found == {
        "A.MP4": ["A.MP4"],
        "b.avi": ["b.avi"],
        "deep/er": ["9.png"],
        "deep/er/x.mkv": ["x.mkv"],
        "walk": ["1.JPG", "2.tiff"],
    }
    assert [clip.name for clip in clips if clip.is_video] == ["A.MP4", "b.avi", "deep/er/x.mkv"]
    assert {clip.path for clip in clips} == {tmp_path / name for name in found}


def test_hidden_files_ground_truth_and_other_files_are_skipped(tmp_path):
    clutter = (
        "._001.tif",
        ".DS_Store",
        "notes.txt",
        "001.npy",
        "tif",
        ".cache/001.tif",
        "Test001_gt/001.bmp",
    )
    touch(tmp_path, "Test001/001.tif", *clutter, *(f"Test001/{name}" for name in clutter))
    (tmp_path / "folder.avi").mkdir()
    assert [(clip.name, len(clip.files)) for clip in find_clips(tmp_path)] == [("Test001", 1)]


def test_files_and_folders_are_in_numerical_order(tmp_path):
    touch(
        tmp_path,
        *(f"clip{clip}/{frame}.jpg" for clip in (10, 9, 100) for frame in (10, 2, 1, 100, 20)),
    )
    clips = find_clips(tmp_path)
    assert [clip.name for clip in clips] == ["clip9", "clip10", "clip100"]
    assert [file.stem for file in clips[0].files] == ["1", "2", "10", "20", "100"]


# ---------------------------------------------------------------- grey frames of one size


SHAPES = [(64, 96), (9, 7), (240, 16), (24, 24)]


@pytest.mark.parametrize("shape", SHAPES)
def test_frames_are_converted_and_resized_like_pillow_does(shape, tmp_path):
    pictures = noise(0, 2, *shape, 3)
    write_frames(tmp_path, pictures, "png")
    for frame, picture in zip(frames_of(tmp_path, 24)[0], pictures, strict=True):
        pillow = Image.fromarray(picture).convert("L").resize((24, 24), Image.Resampling.BILINEAR)
        assert np.abs(frame - np.asarray(pillow, float)).max() <= 2


@pytest.mark.parametrize("shape", SHAPES)
def test_frames_are_exactly_those_of_torchvision(shape, tmp_path):
    survive_torchvision_mismatch()
    from torchvision.transforms import v2

    pictures = noise(0, 2, *shape, 3)
    write_frames(tmp_path, pictures, "png")
    transform = v2.Compose(
        [v2.ToDtype(torch.float32), v2.Grayscale(), v2.Resize((24, 24), antialias=True)]
    )
    for frame, picture in zip(frames_of(tmp_path, 24)[0], pictures, strict=True):
        expected = transform(torch.from_numpy(picture).permute(2, 0, 1))[0].round().clamp(0, 255)
        assert np.array_equal(frame, expected.to(torch.uint8).numpy())


def test_grey_pixels_are_unchanged(tmp_path):
    shades: np.ndarray[Any, Any] = np.arange(256, dtype=np.uint8).reshape(16, 16)
    write_frames(tmp_path, shades[None], "tif")
    assert np.array_equal(frames_of(tmp_path)[0][0], shades)


def test_several_images_in_one_file_are_refused(tmp_path):
    first, *others = (Image.fromarray(frame) for frame in noise(0, 3, 8, 8))
    first.save(tmp_path / "1.tif", save_all=True, append_images=others)
    with pytest.raises(
        UserError, match=r"1\.tif: 3 images in one file; save each one as a separate file"
    ):
        frames_of(tmp_path)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA", "1", "CMYK"])
def test_every_8_bit_mode_of_an_image_gives_the_same_frame(mode, tmp_path):
    stripes = np.tile(np.array([[0, 255]], np.uint8), (16, 8))
    Image.fromarray(stripes).convert(mode).save(tmp_path / "1.tif")
    (frame,), _ = frames_of(tmp_path)
    assert np.abs(frame.astype(int) - stripes).max() <= 1


@pytest.mark.parametrize("name", ["clip.avi", "a b %03d [x].avi", "CLIP.AVI"])
def test_a_video_gives_its_frames_in_order(name, tmp_path):
    shades = [0, 40, 80, 255, 120]
    colours = np.stack([np.full((18, 22, 3), shade, np.uint8) for shade in shades])
    frames, notes = frames_of(write_video(tmp_path / name, colours, "ffv1", "bgr0"))
    assert [frame.mean() for frame in frames] == pytest.approx(shades, abs=1)
    assert notes == []


# ---------------------------------------------------------------- damaged frames


def cut(content: bytes) -> bytes:
    return content[: len(content) * 2 // 3]


@pytest.mark.parametrize("suffix", ["tif", "jpg"])
@pytest.mark.parametrize("damage", [cut, lambda _: b"a text"], ids=["cut", "text"])
def test_a_frame_that_cannot_be_read_is_an_error_with_its_file(
    damage: Callable[[bytes], bytes], suffix, tmp_path
):
    write_frames(tmp_path, noise(0, 3, 20, 20), suffix)
    bad = tmp_path / f"002.{suffix}"
    bad.write_bytes(damage(bad.read_bytes()))
    message = error_of(tmp_path)
    assert message.startswith(f"{bad}: cannot be read (")
    assert message.endswith("download it again, or delete it to skip this frame")
    bad.unlink()
    assert len(frames_of(tmp_path)[0]) == 2


@pytest.mark.parametrize(
    ("values", "suffix", "mode"), [(np.uint16, "tif", "I;16"), (np.float32, "tif", "F")]
)
def test_an_image_that_is_not_8_bit_is_an_error_with_its_file(values, suffix, mode, tmp_path):
    write_frames(tmp_path, noise(0, 1, 8, 8).astype(values), suffix)
    expected = (
        f"{tmp_path}/001.{suffix}: not an 8-bit image (Pillow mode '{mode}'); convert it to 8 bits"
    )
    assert error_of(tmp_path) == expected


def test_frames_of_several_sizes_are_noted_and_resized(tmp_path):
    write_frames(tmp_path, noise(0, 2, 8, 10))
    write_frames(tmp_path, noise(0, 1, 30, 20), first=3)
    frames, notes = frames_of(tmp_path)
    assert {frame.shape for frame in frames} == {(16, 16)}
    assert notes == [f"{tmp_path}: frames of 2 sizes (10×8, 20×30); all were resized to 16×16"]


# ---------------------------------------------------------------- damaged videos


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "whole.avi", drift(0, 20))


def test_the_frames_before_the_end_of_a_truncated_video_are_used_with_a_note(video, tmp_path):
    whole, _ = frames_of(video)
    content, broken = video.read_bytes(), tmp_path / "broken.avi"
    counts = []
    # The frames end at the index; some copies end just after the start of a frame.
    last = content.rindex(b"idx1")
    begun = [
        match.end() + 4 + few for match in re.finditer(b"00dc", content[:last]) for few in (0, 1, 2)
    ]
    for end in sorted({*range(0, last - 8, 97), *begun}):
        broken.write_bytes(content[:end])
        try:
            frames, notes = frames_of(broken)
        except UserError as error:
            assert str(error).startswith(f"{broken}: cannot be decoded (")  # noqa: PT017
            counts.append(0)
            continue
        assert np.array_equal(frames, whole[: len(frames)])
        assert len(frames) < 20
        (note,) = notes
        assert note.startswith(f"{broken}: damaged (")
        assert note.endswith(f"; using {len(frames)} of 20 frames; download it again to use all")
        counts.append(len(frames))
    assert counts == sorted(counts)
    assert len(set(counts)) > 10


def test_damage_that_the_decoder_conceals_ends_the_video(video, tmp_path):
    whole, _ = frames_of(video)
    content = bytearray(video.read_bytes())
    thirteenth = [match.start() for match in re.finditer(b"00dc", content)][12]
    content[thirteenth + 100 : thirteenth + 108] = b"\xff" * 8
    (tmp_path / "bad.avi").write_bytes(content)
    frames, notes = frames_of(tmp_path / "bad.avi")
    assert np.array_equal(frames, whole[:12])
    assert notes == [
        f"{tmp_path}/bad.avi: damaged (incomplete frame); using 12 of 20 frames; download it "
        "again to use all"
    ]


def without_pictures(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(
            np.zeros((1, 800), np.int16), format="s16", layout="mono"
        )
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))


BAD_VIDEOS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a text": (
        lambda path: path.write_text("a text"),
        "cannot be decoded (Invalid data found when processing input)",
    ),
    "empty": (lambda path: path.touch(), "cannot be decoded ("),
    "sound": (without_pictures, "contains no video stream"),
    "not there": (lambda path: None, "cannot be decoded (No such file or directory)"),
}


@pytest.mark.parametrize(("make", "message"), BAD_VIDEOS.values(), ids=BAD_VIDEOS)
def test_a_video_without_frames_is_an_error_with_its_file(make, message, tmp_path, capfd):
    make(tmp_path / "bad.avi")
    assert error_of(tmp_path / "bad.avi").startswith(f"{tmp_path}/bad.avi: {message}")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "content",
    [
        b"ffconcat version 1.0\nfile ok.avi\n",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nok.avi\n#EXT-X-ENDLIST\n",
    ],
)
def test_a_playlist_does_not_pass_as_a_video(content, tmp_path):
    """It names other files, or addresses on the network."""
    write_video(tmp_path / "ok.avi", drift(0, 3))
    (tmp_path / "list.avi").write_bytes(content)
    assert error_of(tmp_path / "list.avi").startswith(
        f"{tmp_path / 'list.avi'}: cannot be decoded ("
    )

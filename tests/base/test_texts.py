import os

import pytest

from fanin._base.texts import parse_json, parse_toml, read_text, short


def test_a_text_file_is_read_up_to_a_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes("ä\r\nb\n".encode())
    assert read_text(path) == "ä\nb\n"
    path.write_bytes(b"\xef\xbb\xbf" + "ä\ufeff".encode())  # a byte-order mark, as editors write
    assert read_text(path) == "ä\ufeff"
    path.write_bytes(bytes(2 << 20))
    assert len(read_text(path, limit=2 << 20)) == 2 << 20
    with pytest.raises(ValueError, match="file has more than 1 MiB"):
        read_text(path, limit=1 << 20)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        read_text(path)


def test_a_pipe_is_refused_and_does_not_hold_the_process_up(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe is not a regular file"):
        read_text(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        read_text(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nowhere")


@pytest.mark.parametrize("parse", [parse_toml, parse_json])
def test_deep_nesting_is_an_error_of_the_text(parse):
    assert parse("a = [[1]]" if parse is parse_toml else '{"a": [[1]]}') == {"a": [[1]]}
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(("a = " if parse is parse_toml else "") + "[" * 100_000)
    with pytest.raises(ValueError):  # noqa: PT011, the parser's own sentence
        parse("{")


def test_long_values_are_cut_in_messages():
    assert short("x") == "'x'"
    assert short("x" * 1000) == f"'{'x' * 100}'…"
    assert len(short(list(range(1000)))) == 101

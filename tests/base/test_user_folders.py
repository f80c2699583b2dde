from pathlib import Path

from fanin._base.user_folders import cache_folder, data_folder


def test_the_variables_of_xdg_go_first_then_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("XDG_DATA_HOME", "relative, which the specification tells to ignore")
    assert cache_folder() == Path("/cache/fanin")
    assert data_folder() == tmp_path / ".local" / "share" / "fanin"


def test_a_user_whom_the_system_does_not_know_has_none(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987_654_321)
    assert cache_folder() is None
    assert data_folder() is None

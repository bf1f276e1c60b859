"""Fixtures: the command line called in an empty folder, with no settings of the caller."""

import pytest

from hybridmem.cli.main import main


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("HYBRIDMEM", "HYBRIDMEM_EMBEDDER"):
        monkeypatch.delenv(name, raising=False)

    def call(*words, code=0):
        assert main([str(word) for word in words]) == code
        return capsys.readouterr()

    return call


@pytest.fixture
def filled(run):
    run("add", "Ana lives in Porto.", "--id", "porto", "--embedder", "none", "--metadata", '{"lang": "en"}')
    run("add", "Ana has moved to Lisbon.", "--id", "lisbon", "--embedder", "none", "--supersedes", "porto")
    run("add", "Ben drinks tea.", "--id", "tea", "--embedder", "none", "-n", "ben")
    return run

# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which of apt's files name a repository, in all the ways that sources.list(5) has."""

import pytest

from host import apt_sources as rival_sources

URI = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"


def naming(root):
    return [str(path) for path in rival_sources.naming(URI, "/", "amd64", root)]


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    return tmp_path


# As NVIDIA publishes it.
PUBLISHED = """\
deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg] \
https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /
#deb [signed-by=/usr/share/keyrings/x.gpg] https://nvidia.github.io/x/experimental/deb/$(ARCH) /
"""
STANZA = """\
# A comment
Types: deb
URIs: https://elsewhere.test/
 {URI}/
Suites: /
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 xxxx
"""
NAMED = {
    "sources.list": f"deb {URI} /",
    "sources.list.d/a.list": PUBLISHED,
    "sources.list.d/b.list": f"\n  deb-src [ arch=amd64 trusted=yes ] {URI}/ /\n",
    "sources.list.d/c.sources": STANZA.replace("{URI}", URI),
    "sources.list.d/d.sources": f"Types: deb\nURIs: x:/\nSuites: /\n\ntypes: deb\nuris: {URI}\n"
    "suites: / x\nenabled: yes",
}
OTHERS = {
    "sources.list": f"# deb {URI} /\ndeb http://archive.test/ubuntu noble main",
    "sources.list.d/a.list": f"deb {URI} ./\ndeb {URI}-other /\n",
    "sources.list.d/b.list.disabled": f"deb {URI} /",
    "sources.list.d/c.sources": f"Enabled: no\nTypes: deb\nURIs: {URI}\nSuites: /\n",
    "sources.list.d/d.sources": f"# URIs: {URI}\nTypes: deb\nURIs: x:/\nSuites: /\n",
    "sources.list.d/gpu-ci-x.sources": f"Types: deb\nURIs: {URI}\nSuites: /\n",
}


@pytest.mark.parametrize(("name", "text"), NAMED.items())
def test_file_that_names_it_is_found(tree, name, text):
    (tree / "etc/apt" / name).write_text(text)
    assert naming(tree) == [f"/etc/apt/{name}"]


@pytest.mark.parametrize(("name", "text"), OTHERS.items())
def test_others_are_none_of_it(tree, name, text):
    (tree / "etc/apt" / name).write_text(text)
    assert naming(tree) == []


def test_machine_without_lists(tmp_path):
    assert naming(tmp_path) == []

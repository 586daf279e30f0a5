"""This script exports today's networks to ONNX as their users do, for benchmarks/real_networks.py.

    python benchmarks/real_exports.py FOLDER [--others] [--only NAME,...]

It measures nothing. With `--others` it exports 32 more networks of timm, for which nothing was made or chosen. It uses
both exporters of torch, several operator sets, half precision and quantisation. It writes FOLDER/NAME.onnx for each
network whose file does not exist yet, and names those that cannot be exported, with the reason. It needs torch,
torchvision, timm, onnxscript, onnxruntime and onnxconverter-common, and nothing of this project, so that it can run in
another environment. Weights are random with fixed seeds. The statistics of batch normalisation are those of random
inputs, so that activations keep their magnitude.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

TIMM = {
    "mobilenetv2_100": 224, "mobilenetv3_large_100": 224, "mobilenetv4_conv_small": 224, "efficientnet_b0": 224,
    "convnext_atto": 224, "vit_tiny_patch16_224": 224, "mobilevit_xxs": 256, "ghostnet_100": 224, "regnety_008": 224,
}  # fmt: skip

OTHERS = {
    "coat_lite_tiny": 224, "convnextv2_atto": 224, "cspdarknet53": 256, "davit_tiny": 224, "densenet121": 224,
    "dla34": 224, "edgenext_xx_small": 256, "efficientvit_b0": 224, "ese_vovnet19b_dw": 224, "fastvit_t8": 256,
    "hgnetv2_b0": 224, "hrnet_w18_small": 224, "inception_v3": 299, "lcnet_050": 224, "levit_128s": 224,
    "maxvit_pico_rw_256": 256, "mixer_b16_224": 224, "mobilenetv4_hybrid_medium": 224, "mobileone_s0": 224,
    "poolformer_s12": 224, "pvt_v2_b0": 224, "regnetx_004": 224, "repvit_m0_9": 224, "res2net50_26w_4s": 224,
    "resmlp_12_224": 224, "resnext50_32x4d": 224, "rexnet_100": 224, "seresnet50": 224, "starnet_s1": 224,
    "swin_tiny_patch4_window7_224": 224, "tf_efficientnet_lite0": 224, "xcit_nano_12_p8_224": 224,
}  # fmt: skip


class Block(nn.Sequential):
    """A block that has two convolutions, as in a U-Net."""

    def __init__(self, given: int, made: int) -> None:
        layers = [layer(n, made) for n in (given, made) for layer in (_conv, _norm)]
        super().__init__(*layers)


def _conv(given: int, made: int) -> nn.Module:
    return nn.Conv2d(given, made, 3, padding=1, bias=False)


def _norm(_: int, made: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(made), nn.ReLU())


class UNet(nn.Module):
    """The network of Ronneberger, Fischer and Brox, "U-Net" (2015), which here is a quarter as wide and has padding."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.down = nn.ModuleList(Block(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(Block(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for i in reversed(range(len(self.up))):
            x = self.join[i](torch.cat([kept[i], self.up[i](x)], 1))
        return self.last(x)


def espcn() -> nn.Module:
    """Make the network of Shi et al., "Real-Time Single Image and Video Super-Resolution" (2016), section 3.2.

    It enlarges an image three times.
    """
    layers = [nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers, nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3))


def ds_cnn() -> nn.Module:
    """Make DS-CNN of Zhang et al., "Hello Edge: Keyword Spotting on Microcontrollers" (2017), convolving along time."""

    def separable() -> list[nn.Module]:
        one = [nn.Conv1d(64, 64, 3, padding=1, groups=64, bias=False), nn.BatchNorm1d(64), nn.ReLU()]
        return [*one, nn.Conv1d(64, 64, 1, bias=False), nn.BatchNorm1d(64), nn.ReLU()]

    first = [nn.Conv1d(40, 64, 9, 2, 4, bias=False), nn.BatchNorm1d(64), nn.ReLU()]
    rest = [layer for _ in range(4) for layer in separable()]
    return nn.Sequential(*first, *rest, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 12))


class Recurrent(nn.Module):
    """A network that has convolutions, a bidirectional LSTM and a GRU over columns, as text recognisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.GELU())
        self.lstm = nn.LSTM(64 * 8, 64, bidirectional=True)
        self.gru = nn.GRU(128, 64, batch_first=True)
        self.last = nn.Linear(64, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = self.stem(x).flatten(1, 2).permute(2, 0, 1)
        return self.last(self.gru(self.lstm(columns)[0].transpose(0, 1))[0]).log_softmax(-1)


class YoloHead(nn.Module):
    """A network that has a backbone with SiLU and pooling pyramids and a head that decodes boxes, like YOLO of 2023."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128)
        self.backbone = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU())
                for a, b in pairwise(widths)
            )
        )
        self.pools = nn.ModuleList(nn.MaxPool2d(5, 1, 2) for _ in range(3))
        self.boxes, self.classes = nn.Conv2d(512, 64, 1), nn.Conv2d(512, 20, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.backbone(x)]
        for pool in self.pools:
            parts.append(pool(parts[-1]))
        x = torch.cat(parts, 1)
        count = x.shape[2] * x.shape[3]
        sides = self.boxes(x).view(x.shape[0], 4, 16, count).softmax(2)
        sides = (sides * torch.arange(16.0).view(1, 1, 16, 1)).sum(2)
        centres = torch.stack(torch.meshgrid(*(torch.arange(n) + 0.5 for n in x.shape[2:]), indexing="ij")).flatten(1)
        low, high = centres - sides[:, :2], centres + sides[:, 2:]
        return torch.cat([(low + high) / 2, high - low, self.classes(x).flatten(2).sigmoid()], 1)


def timm_model(name: str) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False)


def vision_model(name: str) -> nn.Module:
    import torchvision

    if name.startswith("deeplab"):
        return torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None)
    return torchvision.models.get_model(name, weights=None)


def steady(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Return the network for inference. It has running statistics of random inputs, so that values keep their size."""
    torch.manual_seed(0)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(2, *shape[1:]))
    return model.eval()


def export(model: nn.Module, shape: tuple[int, ...], path: Path, *, opset: int, dynamo: bool, free: bool) -> None:
    """Export a network by one of torch's exporters. With `free`, the batch axis has a name and no fixed size."""
    given = torch.randn(*shape)
    names = {"input_names": ["input"], "output_names": ["output"]}
    if dynamo:
        shapes = ({0: torch.export.Dim("batch", min=1, max=64)},) if free else None
        given = given.repeat(2, *[1] * (given.ndim - 1)) if free else given
        torch.onnx.export(model, (given,), str(path), opset_version=opset, dynamo=True, dynamic_shapes=shapes,
                          external_data=False, **names)  # fmt: skip
    else:
        axes = {"input": {0: "batch"}} if free else None
        torch.onnx.export(model, (given,), str(path), opset_version=opset, dynamo=False, dynamic_axes=axes, **names)


def by(make: Callable[[], nn.Module], *shape: int, opset: int = 17, dynamo: bool = False, free: bool = False):
    """Return a function that writes the file of a network."""
    return lambda path: export(steady(make(), shape), shape, path, opset=opset, dynamo=dynamo, free=free)


def exported() -> dict[str, Callable[[Path], None]]:
    """Return the functions that write the files, by name."""
    found = {
        name: by(lambda name=name: timm_model(name), 1, 3, size, size, free=i % 2 == 0, opset=13 if i == 0 else 10 + i)
        for i, (name, size) in enumerate(TIMM.items())
        if name != "vit_tiny_patch16_224"
    }
    found["vit_tiny_patch16_224"] = by(lambda: timm_model("vit_tiny_patch16_224"), 1, 3, 224, 224)
    for name, size in TIMM.items():
        found[f"{name}-dynamo"] = by(lambda name=name: timm_model(name), 1, 3, size, size, opset=20, dynamo=True,
                                     free=name.endswith("0"))  # fmt: skip
    return found | {
        "shufflenet_v2_x1_0": by(lambda: vision_model("shufflenet_v2_x1_0"), 1, 3, 224, 224, opset=13, free=True),
        "deeplabv3_mobilenet_v3_large": by(lambda: vision_model("deeplab"), 1, 3, 224, 224, opset=16),
        "unet": by(UNet, 1, 3, 256, 256, opset=12, free=True),
        "espcn": by(espcn, 1, 1, 120, 160, opset=18, dynamo=True),
        "ds_cnn": by(ds_cnn, 1, 40, 98, opset=14),
        "recurrent": by(Recurrent, 1, 1, 32, 128, opset=15),
        "recurrent-dynamo": by(Recurrent, 1, 1, 32, 128, opset=18, dynamo=True),
        "yolo_head": by(YoloHead, 1, 3, 320, 320, opset=16, free=True),
    }


def others() -> dict[str, Callable[[Path], None]]:
    """Return the functions that write the files of the networks for which nothing was made or chosen, by name."""
    return {name: by(lambda name=name: timm_model(name), 1, 3, size, size) for name, size in OTHERS.items()}


def derived(folder: Path) -> dict[str, Callable[[Path], None]]:
    """Return the functions that derive files from that of mobilenetv2_100, by name."""
    source = folder / "mobilenetv2_100.onnx"

    def half(path: Path, keep: bool) -> None:
        from onnxconverter_common import float16

        onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=keep), path)

    def quantized(path: Path, form: str, signed: bool) -> None:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        class Reader(CalibrationDataReader):
            def __init__(self) -> None:
                rng = np.random.default_rng(0)
                self.left = [{"input": rng.standard_normal((1, 3, 224, 224)).astype(np.float32)} for _ in range(4)]

            def get_next(self):
                return self.left.pop() if self.left else None

        kind = QuantType.QInt8 if signed else QuantType.QUInt8
        how = {"quant_format": QuantFormat[form], "activation_type": kind, "weight_type": QuantType.QInt8}
        quantize_static(source, path, Reader(), per_channel=signed, **how)

    def dynamic(path: Path) -> None:
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(source, path)

    return {
        "mobilenetv2_100-half": lambda path: half(path, False),
        "mobilenetv2_100-half-inside": lambda path: half(path, True),
        "mobilenetv2_100-qdq-u8s8": lambda path: quantized(path, "QDQ", False),
        "mobilenetv2_100-qdq-s8s8": lambda path: quantized(path, "QDQ", True),
        "mobilenetv2_100-qoperator": lambda path: quantized(path, "QOperator", False),
        "mobilenetv2_100-dynamic": dynamic,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--others", action="store_true", help="those for which nothing was made or chosen")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    networks = others() if asked.others else {**exported(), **derived(asked.folder)}
    for name, write in networks.items():
        path = asked.folder / f"{name}.onnx"
        if path.exists() or (asked.only and name not in asked.only.split(",")):
            continue
        try:
            write(path)
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        except Exception as error:  # each exporter has its own exceptions; the other networks are still exported
            path.unlink(missing_ok=True)
            failed += 1
            print(f"{name}: not exported: {(str(error).splitlines() or [''])[0][:200]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

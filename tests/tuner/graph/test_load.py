"""Loading: what a model is, and one clear line for everything that cannot be built."""

from __future__ import annotations

import hashlib
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.tuner.graph.networks import Net
from tuner.errors import BadInput
from tuner.graph import TensorInfo, load_exported, load_onnx
from tuner.module import OnnxReference


def simple(net: Net) -> str:
    return net.op("Relu", net.conv(net.input(1, 3, 8, 8), (3, 4), pads=[1, 1, 1, 1]))


def refused(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        load_onnx(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_model_says_what_it_is(tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "small.onnx", simple(net))
    model = load_onnx(path)
    assert model.name == "small"
    assert model.inputs == (TensorInfo("x", (1, 3, 8, 8), "float32"),)
    assert model.outputs == (TensorInfo("relu_1", (1, 4, 8, 8), "float32"),)
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "/conv_0/Conv" in model.node_names.values()


def test_input_names_need_not_be_identifiers(tmp_path: Path) -> None:
    net = Net()
    x = net.input(1, 4, name="serving default:0/image.1")
    path = net.save(tmp_path / "m.onnx", net.op("Relu", x))
    assert load_onnx(path).inputs[0].name == "serving default:0/image.1"


def test_weights_listed_as_inputs_are_weights(tmp_path: Path) -> None:
    net = Net()
    out = simple(net)
    net.inputs += [helper.make_tensor_value_info(w.name, TensorProto.FLOAT, list(w.dims)) for w in net.weights]
    assert [t.name for t in load_onnx(net.save(tmp_path / "m.onnx", out)).inputs] == ["x"]


def test_weights_in_another_file_are_read_and_part_of_the_digest(tmp_path: Path) -> None:
    net = Net()
    model = net.model(simple(net))
    digests = set()
    for i in range(2):
        folder = tmp_path / str(i)
        folder.mkdir()
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.full((4, 3, 3, 3), i, np.float32), "w0"))
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, str(folder / "m.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0)
        digests.add(load_onnx(folder / "m.onnx").sha256)
    assert len(digests) == 2
    (tmp_path / "1" / "weights.bin").unlink()
    assert "weights.bin" in refused(tmp_path / "1" / "m.onnx")


def test_constants_of_nodes_in_another_file_are_part_of_the_digest(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    digests = set()
    for i in range(2):
        folder = tmp_path / str(i)
        folder.mkdir()
        value = onnx.numpy_helper.from_array(np.full(4, i, np.float32), "value")
        onnx.external_data_helper.set_external_data(value, "value.bin")
        (folder / "value.bin").write_bytes(value.raw_data)
        value.ClearField("raw_data")
        value.data_location = TensorProto.EXTERNAL
        nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Add", ["x", "c"], ["y"])]
        model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        digests.add(load_onnx(folder / "m.onnx").sha256)
    assert len(digests) == 2


def with_weights_beside(folder: Path, location: str = "weights.bin") -> Path:
    folder.mkdir(parents=True)
    net = Net()
    model = net.model(simple(net))
    onnx.save(model, str(folder / "m.onnx"), save_as_external_data=True, location=location, size_threshold=0)
    return folder / "m.onnx"


def test_weights_behind_links_are_read(tmp_path: Path) -> None:
    """As caches of downloaded models have them, in folders of any name; the referee reads them too."""
    stored = with_weights_beside(tmp_path / "мешок" / "blobs")
    link = tmp_path / "снимок" / "模型.onnx"
    link.parent.mkdir()
    link.symlink_to(stored)
    (link.parent / "weights.bin").symlink_to(stored.parent / "weights.bin")
    assert load_onnx(link).sha256 == load_onnx(stored).sha256
    x = {name: np.ones(shape, np.float32) for name, shape in ((t.name, t.shape) for t in load_onnx(link).inputs)}
    wanted, found = OnnxReference(stored)(x), OnnxReference(link)
    assert found.referee == "onnxruntime"
    for name, value in found(x).items():
        np.testing.assert_array_equal(value, wanted[name])


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname"])
def test_weights_outside_of_the_models_folder_are_refused(tmp_path: Path, location: str) -> None:
    path = with_weights_beside(tmp_path / "m")
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        entry.value = location if entry.key == "location" else entry.value
    path.write_bytes(model.SerializeToString())
    assert "outside of the model's folder" in refused(path)


def test_weights_that_end_too_early_are_named(tmp_path: Path) -> None:
    path = with_weights_beside(tmp_path / "m")
    weights = path.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert "ends before the tensor" in refused(path)


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.onnx")
    assert "no such file" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 64, b"PK\x03\x04" + b"z" * 100])
def test_a_file_that_is_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert "not an ONNX model" in refused(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path: Path, share: float) -> None:
    net = Net()
    path = net.save(tmp_path / "m.onnx", simple(net))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    refused(path)


def test_an_output_whose_shape_depends_on_the_data(tmp_path: Path) -> None:
    net = Net()
    out = net.op("Cast", net.op("NonZero", net.input(2, 3)), to=TensorProto.FLOAT)
    assert f"output '{out}'" in refused(net.save(tmp_path / "m.onnx", out))


def test_an_unknown_operator_names_node_and_type(tmp_path: Path) -> None:
    net = Net()
    message = refused(net.save(tmp_path / "m.onnx", net.op("FancyConv", net.input(1, 3))))
    assert "/fancyconv_0/FancyConv" in message
    assert "'FancyConv'" in message


def test_an_operator_of_an_unknown_domain(tmp_path: Path) -> None:
    net = Net()
    message = refused(net.save(tmp_path / "m.onnx", net.op("Relu", net.input(1, 3), domain="acme")))
    assert "'acme'" in message


def test_an_operator_that_the_importer_fails_on_names_the_node(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    net = Net()
    x = net.input(1, 4, 8)
    weight = net.weight(4, 4, 3)
    out = net.op("Conv", x, weight, kernel_shape=[3], auto_pad="SAME_BOGUS")
    assert "/conv_0/Conv" in refused(net.save(tmp_path / "m.onnx", out))
    assert capfd.readouterr() == ("", "")  # the error is all there is to say


WINDOWS = {
    "Conv": lambda net, x: net.conv(x, (4, 8), kernel=(3, 1)),
    "MaxPool": lambda net, x: net.op("MaxPool", x, kernel_shape=[1, 4]),
    "AveragePool": lambda net, x: net.op("AveragePool", x, kernel_shape=[4, 4], pads=[1, 0, 0, 0]),
    "a grouped Conv": lambda net, x: net.op("Conv", x, net.weight(4, 1, 5, 5), kernel_shape=[5, 5], group=4),
    "with indices": lambda net, x: net.op("MaxPool", x, outputs=2, kernel_shape=[3, 3]),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_window_that_is_larger_than_its_input(tmp_path: Path, kind: str, capfd: pytest.CaptureFixture) -> None:
    """An image that is too small for the network."""
    net = Net()
    message = refused(net.save(tmp_path / "m.onnx", net.op("Relu", WINDOWS[kind](net, net.input(1, 4, 2, 3)))))
    assert f"{net.nodes[0].name!r}" in message
    assert "larger than its padded input of 2 x 3" in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.STRING])
def test_a_dtype_of_an_input(tmp_path: Path, dtype: int) -> None:
    net = Net()
    message = refused(net.save(tmp_path / "m.onnx", net.op("Identity", net.input(1, 3, dtype=dtype))))
    assert "'x'" in message
    assert TensorProto.DataType.Name(dtype).lower() in message


def test_a_dtype_of_a_weight_names_the_node(tmp_path: Path) -> None:
    net = Net(opset=19)
    zero = net.constant(np.zeros((), ml_dtypes.float8_e4m3fn))
    out = net.op("QuantizeLinear", net.input(1, 3), net.scalar(0.5), zero)
    message = refused(net.save(tmp_path / "m.onnx", out))
    assert "/quantizelinear_0/QuantizeLinear" in message
    assert "float8e4m3fn" in message


def test_an_invalid_model(tmp_path: Path) -> None:
    net = Net()
    net.input(1, 3)
    assert "not a valid ONNX model" in refused(net.save(tmp_path / "m.onnx", net.op("Relu", "nobody")))


def test_a_cycle(tmp_path: Path) -> None:
    net = Net()
    out = net.op("Relu", net.op("Add", net.input(1, 3), "relu_1"))
    message = refused(net.save(tmp_path / "m.onnx", out))
    assert "not a valid ONNX model" in message
    assert "'relu_1'" in message


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "m.onnx", simple(net))
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        assert "cannot be read" in refused(path)
    else:
        pytest.skip("this user may read everything")


def test_an_exported_program() -> None:
    torch = pytest.importorskip("torch")

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.norm = torch.nn.BatchNorm2d(8)
            self.fc = torch.nn.Linear(8, 5)

        def forward(self, image):  # type: ignore[no-untyped-def]
            y = torch.nn.functional.silu(self.norm(self.conv(image)))
            return self.fc(torch.nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))

    module = Small().eval()
    with torch.no_grad():
        module.norm.running_mean.uniform_(-1, 1)
        module.norm.running_var.uniform_(0.5, 2)
    program = torch.export.export(module, (torch.zeros(2, 3, 9, 7),))
    model = load_exported(program, "small")
    assert [t.name for t in model.inputs] == ["image"]
    assert model.outputs[0].shape == (2, 5)
    assert model.sha256 != load_exported(torch.export.export(Small().eval(), (torch.zeros(2, 3, 9, 7),))).sha256


def test_a_selection_of_nothing_is_refused_by_the_nodes_name(tmp_path: Path) -> None:
    net = Net()
    values = net.op("TopK", net.input(3, 4), net.constant(np.array([0], np.int64)), outputs=2)
    message = refused(net.save(tmp_path / "m.onnx", values))
    assert "(TopK) cannot be converted: k is 0" in message

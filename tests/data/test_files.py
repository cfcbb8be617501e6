import contextlib
import gzip
import io
import os
import pickle
import struct
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formats import (
    equal,
    idx,
    pixels,
    write_cifar10_binary,
    write_cifar10_python,
    write_cifar100_binary,
    write_cifar100_python,
    write_mnist,
    write_svhn,
)
from hypothesis import given
from hypothesis import strategies as st

from spcp import data
from spcp.data.files import CORRUPTIONS
from spcp.data.mat import read_mat
from spcp.data.plain_pickle import load_plain_pickle


def test_cifar10_binary(tmp_path: Path) -> None:
    x, y = write_cifar10_binary(tmp_path / "c")
    test = data.read_cifar(tmp_path / "c", "test")
    assert equal(test.x, x)
    assert equal(test.y, y)
    assert test.class_names[3] == "cat"
    train = data.read_cifar(str(tmp_path / "c"), "train")
    assert len(train) == 100
    assert equal(train.x[20:40], pixels(20, 3, 32, 32, seed=2))  # the second batch follows the first
    assert set(data.histogram(train).values()) == {10}


def test_cifar10_golden_record(tmp_path: Path) -> None:
    """The format as its authors describe it: label, 1024 red, 1024 green, 1024 blue, each row by row."""
    record = bytes([7]) + bytes(range(256)) * 4 + bytes([10]) * 1024 + bytes([20]) * 1024
    (tmp_path / "test_batch.bin").write_bytes(record)
    x, label = data.read_cifar(tmp_path, "test")[0]
    assert label == 7
    assert x[:, 0, 5].tolist() == [5, 10, 20]
    assert x[0, 1, 0] == 32


def test_cifar100_binary_takes_fine_labels(tmp_path: Path) -> None:
    x, y = write_cifar100_binary(tmp_path / "c")
    test = data.read_cifar(tmp_path / "c", "test")
    assert test.name == "cifar100"
    assert equal(test.x, x)
    assert equal(test.y, y)
    assert test.class_names[42] == "class42"


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar10_python(tmp_path: Path, protocol: int) -> None:
    x, y = write_cifar10_python(tmp_path / "c", protocol)
    test = data.read_cifar(tmp_path / "c", "test")
    assert equal(test.x, x)
    assert equal(test.y, y)
    assert len(data.read_cifar(tmp_path / "c", "train")) == 50


def test_cifar10_python_as_python_2_wrote_it(tmp_path: Path) -> None:
    """The official files come from Python 2, whose strings are bytes and which calls numpy's core `numpy.core`."""
    array = bytes(range(256)) * 12
    blob = (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<I", len(array)) + array + b"tbU\x06labelsq\x07]q\x08K\x06au."
    )
    (tmp_path / "test_batch").write_bytes(blob)
    test = data.read_cifar(tmp_path, "test")
    assert test.y.tolist() == [6]
    assert test.x.flatten().numpy().tobytes() == array


def test_cifar100_python(tmp_path: Path) -> None:
    x, y = write_cifar100_python(tmp_path / "c")
    test = data.read_cifar(tmp_path / "c", "test")
    assert equal(test.x, x)
    assert equal(test.y, y)
    assert test.class_names[7] == "n7"
    assert data.read(tmp_path / "c").class_names[7] == "n7"


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/spcp-was-here",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Evil()),
        pickle.dumps({b"data": Evil(), b"labels": []}),
        pickle.dumps({b"data": np.array([Evil()], dtype=object), b"labels": []}),
        b"cbuiltins\neval\n(V__import__('os').getcwd()\ntR.",
        b"cnumpy\nload\n(V/etc/passwd\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(K\x00K\x00tR(K\x01(M\xff\xff\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7ftNNNtb.",
        b"c_codecs\nencode\n(Vabc\nVutf-7\ntR.",
        pickle.dumps({b"data": np.zeros(3, np.uint8)}, 2).replace(b"K\x03\x85", b"K\x04\x85"),  # of another shape
        b"\x80\x04\x95",  # cut short
        b"",
        b"not a pickle",
    ],
)
def test_a_hostile_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(data.DataError, match=r"test_batch: not a pickle of plain values"):
        data.read_cifar(tmp_path, "test")
    assert not Path("/tmp/spcp-was-here").exists()


def peak_of(read: Callable[[], Any]) -> int:
    """The most memory, in bytes, that Python and numpy hold at a time while `read` fails with a DataError."""
    tracemalloc.start()
    try:
        with pytest.raises(data.DataError):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x0f.",  # a place in the memo: Python would make room for all before it, 4 GB
        b"Np268435455\n.",
        b"\x80\x04\x8e\x00\x00\x00\x00\x02\x00\x00\x00.",  # a string of 8 GiB
        b"\x80\x02\x8b\xff\xff\xff\x7f.",  # an integer of 2 GiB
    ],
)
def test_a_small_pickle_does_not_take_much_memory(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "small").write_bytes(content)
    assert peak_of(lambda: load_plain_pickle(tmp_path / "small")) < 1 << 22


def test_dictionaries_that_hold_the_same_twice_are_read_once(tmp_path: Path) -> None:
    """Sixty levels: who follows every path through them never comes back."""
    value: Any = {}
    for _ in range(60):
        value = {b"a": value, b"b": value}
    (tmp_path / "nested").write_bytes(pickle.dumps(value, 2))
    assert load_plain_pickle(tmp_path / "nested").keys() == {b"a", b"b"}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_data_error(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(data.DataError):
            load_plain_pickle(Path(file.name))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(3073 * 2 - 1), "not whole records of 3073"),
        (b"", "not whole records"),
        (bytes([10]) + bytes(3072), "a label is 10"),
    ],
)
def test_damaged_cifar(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(data.DataError, match=f"test_batch.bin.*{message}"):
        data.read_cifar(tmp_path, "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "no dictionary with 'data' and 'labels'"),
        ({b"data": pixels(3, 3072)}, "no dictionary with 'data' and 'labels'"),
        ({b"data": pixels(3, 3071), b"labels": [1, 2, 3]}, "'data' is not N x 3072 bytes"),
        ({b"data": pixels(3, 3072).astype(np.int64), b"labels": [1, 2, 3]}, "'data' is not N x 3072 bytes"),
        ({b"data": np.dtype("u1"), b"labels": []}, "a type that is no array's"),
    ],
)
def test_cifar_python_of_other_things(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, 2))
    with pytest.raises(data.DataError, match=f"test_batch: .*{message}"):
        data.read_cifar(tmp_path, "test")


def test_cifar100_with_other_class_names(tmp_path: Path) -> None:
    write_cifar100_binary(tmp_path / "cifar-100-binary", names=99)
    with pytest.raises(data.DataError, match="names 99 classes, but CIFAR-100 has 100; download it again"):
        data.read_cifar(tmp_path / "cifar-100-binary", "test")


def test_cifar10c_of_another_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.zeros(10, np.int64))
    for corruption in CORRUPTIONS:
        np.save(tmp_path / f"{corruption}.npy", np.zeros((10, 32, 32), np.uint8))
    with pytest.raises(data.DataError, match=r"npy: \(10, 32, 32\) of uint8, not 10 x 32 x 32 x 3 bytes"):
        data.read_cifar10c(tmp_path)


def test_cifar_python_with_fewer_labels(tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": pixels(3, 3072), b"labels": [1, 2]}, 2))
    with pytest.raises(data.DataError, match=r"test_batch: not one integer label for each of the 3 images"):
        data.read_cifar(tmp_path, "test")


def test_cifar_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(data.DataError, match="no CIFAR files here; expected one of the folders cifar-10-batches-bin"):
        data.read_cifar(tmp_path, "test")
    write_cifar10_binary(tmp_path / "c")
    (tmp_path / "c" / "data_batch_3.bin").unlink()
    with pytest.raises(data.DataError, match=r"data_batch_3.bin: there is no such file"):
        data.read_cifar(tmp_path / "c", "train")
    with pytest.raises(data.DataError, match="split must be"):
        data.read_cifar(tmp_path / "c", "val")  # type: ignore[arg-type]


def test_cifar10c(tmp_path: Path) -> None:
    n = 90
    np.save(tmp_path / "labels.npy", np.tile(np.arange(n) % 10, 5).astype(np.uint8))
    for k, name in enumerate(CORRUPTIONS):
        stack = np.zeros((5 * n, 32, 32, 3), np.uint8)
        stack[..., 0], stack[..., 1], stack[..., 2] = (
            k,
            (np.arange(5 * n) // n + 1)[:, None, None],
            (np.arange(5 * n) % n)[:, None, None],
        )
        np.save(tmp_path / f"{name}.npy", stack)
    shifted = data.read_cifar10c(tmp_path)
    assert len(shifted) == n
    corruption, severity, image = shifted.x[:, :, 0, 0].T.tolist()
    assert image == list(range(n))  # each image once, in order
    assert corruption == [i % 15 for i in range(n)]
    assert severity == [1 + i // 15 % 5 for i in range(n)]
    assert shifted.y.tolist() == [i % 10 for i in range(n)]


@pytest.mark.parametrize("compressed", [True, False])
def test_mnist(tmp_path: Path, compressed: bool) -> None:
    write_mnist(tmp_path, compressed=compressed)
    test = data.read_mnist(tmp_path, "test")
    assert equal(test.x, pixels(20, 28, 28, seed=31)[:, None])
    assert test.y.tolist() == [i % 10 for i in range(20)]
    assert equal(data.read_mnist(tmp_path, "train").x, pixels(20, 28, 28, seed=30)[:, None])
    assert equal(data.read(tmp_path).x, test.x.numpy())  # type: ignore[union-attr]


def test_idx_golden(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]))
    assert data.read_idx(tmp_path / "a").tolist() == [[1, 2, 3], [4, 5, 6]]


good = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG" + good[4:], "starts with 89 50 4e 47, which is not an idx file"),
        (good[:-1], "promises 6 values, but it has 5"),
        (good + b"\0", "promises 6 values, but it has more"),
        (good[:6], "ends within its header"),
        (gzip.compress(good, mtime=0)[:-9], "damaged gzip file"),
        (b"\x1f\x8b" + bytes(20), "damaged gzip file"),
        (gzip.compress(good[:12] + bytes(50_000_000), mtime=0), "but it has more"),  # a bomb: 50 MB of 6 values
        (b"", "starts with , which is not"),
        (b"\0\0\x08\x04" + b"\xff" * 16, "its header promises"),
    ],
)
def test_damaged_idx(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(data.DataError, match=message):
        data.read_idx(tmp_path / "file")


def test_mnist_with_labels_of_another_length(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(19, np.uint8))))
    with pytest.raises(data.DataError, match=r"images of shape \(20, 28, 28\) do not go with labels of shape \(19,\)"):
        data.read_mnist(tmp_path, "test")
    with pytest.raises(data.DataError, match="none of train-images-idx3-ubyte, "):
        data.read_mnist(tmp_path / "..", "train")


def test_svhn(tmp_path: Path) -> None:
    x, y = write_svhn(tmp_path / "test_32x32.mat")
    test = data.read_svhn(tmp_path / "test_32x32.mat")
    assert equal(test.x, x.transpose(0, 3, 1, 2))
    assert equal(test.y, y)  # the file says 10 for 0
    assert len(data.read(tmp_path / "test_32x32.mat")) == 20


def test_damaged_svhn(tmp_path: Path) -> None:
    from scipy.io import savemat

    path = tmp_path / "test_32x32.mat"
    write_svhn(path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(data.DataError, match=r"test_32x32.mat: cannot be read as a MATLAB file"):
        data.read_svhn(path)
    savemat(path, {"X": pixels(32, 32, 3, 4)})
    with pytest.raises(data.DataError, match="has no array 'y'"):
        data.read_svhn(path)
    savemat(path, {"X": pixels(32, 32, 3, 4), "y": np.ones((3, 1))})
    with pytest.raises(data.DataError, match="with 3 labels"):
        data.read_svhn(path)
    savemat(path, {"X": pixels(32, 32, 3, 2), "y": np.array([[1.0], [np.nan]])})
    with pytest.raises(data.DataError, match="a label is nan"):
        data.read_svhn(path)
    savemat(path, {"X": pixels(32, 32, 3, 2) * 1j, "y": np.ones((2, 1))})
    with pytest.raises(data.DataError, match="not of real numbers"):
        data.read_svhn(path)
    savemat(path, {"y": np.ones((2, 1))}, format="4")
    with pytest.raises(data.DataError, match="not a MATLAB file of version 5; save it with -v7"):
        data.read_svhn(path)
    with pytest.raises(data.DataError, match=r"none.mat: there is no such file"):
        data.read_svhn(tmp_path / "none.mat")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f4", "f8", ">f8"])
def test_mat_files_as_scipy_writes_them(tmp_path: Path, dtype: str, compressed: bool) -> None:
    """Small numbers are stored within their tag, and doubles that are whole as bytes; other things are passed over."""
    from scipy.io import savemat

    arrays = {"X": pixels(2, 3, 4).astype(dtype), "y": np.array([[7]], dtype)}
    others = {"text": "hello", "cell": np.array(["a", 2], object), "struct": {"a": 1.5}, "none": np.zeros((0, 3))}
    savemat(tmp_path / "a.mat", others | arrays, do_compression=compressed)
    read = read_mat(tmp_path / "a.mat", {"X", "y", "none", "missing"})
    assert read.keys() == {"X", "y", "none"}
    for name, array in arrays.items():
        assert read[name].dtype == np.dtype(dtype).newbyteorder("=")
        np.testing.assert_array_equal(read[name], array)
    assert read["none"].shape == (0, 3)


def test_mat_files_of_the_other_byte_order(tmp_path: Path) -> None:
    def element(kind: int, content: bytes) -> bytes:
        return struct.pack(">2I", kind, len(content)) + content + bytes(-len(content) % 8)

    numbers = np.arange(6.0).astype(">f8").reshape(3, 2)
    parts = (element(6, struct.pack(">2I", 6, 0)), element(5, struct.pack(">2i", 2, 3)), element(1, b"y"))
    matrix = element(14, b"".join(parts) + element(9, numbers.tobytes()))
    (tmp_path / "a.mat").write_bytes(bytes(124) + b"\x01\x00MI" + matrix)
    np.testing.assert_array_equal(read_mat(tmp_path / "a.mat", {"y"})["y"], [[0, 2, 4], [1, 3, 5]])


def test_damaged_mat_files_end_in_one_sentence(tmp_path: Path) -> None:
    """Cut anywhere, and with any byte of the headers changed."""
    path = tmp_path / "a.mat"
    write_svhn(path, count=1)
    whole = path.read_bytes()
    for i in range(len(whole) - 1, 0, -211):
        path.write_bytes(whole[:i])
        with pytest.raises(data.DataError, match=r"a\.mat: "):
            data.read_svhn(path)
    from scipy.io import savemat

    savemat(path, {"X": pixels(32, 32, 3, 1), "y": np.ones((1, 1))})
    plain = path.read_bytes()
    for at in (*range(124, 200), *range(len(plain) - 64, len(plain))):
        for value in (1, 255):
            path.write_bytes(plain[:at] + bytes([value]) + plain[at + 1 :])
            with contextlib.suppress(data.DataError):
                assert len(data.read_svhn(path)) == 1


def test_a_small_mat_file_does_not_take_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = bytes(124) + b"\x00\x01IM"
    sizes = struct.pack("<4i", 32, 32, 3, 1 << 28)
    matrix = struct.pack("<4I", 6, 8, 9, 0) + struct.pack("<2I", 5, 16) + sizes + struct.pack("<I4s", 1 << 16 | 1, b"X")
    matrix += struct.pack("<2I", 2, (1 << 32) - 8)
    (tmp_path / "declared.mat").write_bytes(header + struct.pack("<2I", 14, len(matrix)) + matrix)
    monkeypatch.setattr("spcp.data.mat._LARGEST", 1 << 22)
    bomb = zlib.compress(bytes(1 << 26))
    (tmp_path / "bomb.mat").write_bytes(header + struct.pack("<2I", 15, len(bomb)) + bomb)
    for name in ("declared.mat", "bomb.mat"):
        assert peak_of(lambda name=name: data.read_svhn(tmp_path / name)) < 1 << 24  # type: ignore[misc]


@pytest.mark.parametrize("shape", [(4, 8, 9), (4, 8, 9, 3), (4, 3, 8, 9), (4, 8, 9, 1)])
def test_npz_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = pixels(*shape)
    np.savez_compressed(tmp_path / "a.npz", images=x, labels=np.arange(4)[:, None])
    read = data.read_arrays(tmp_path / "a.npz")
    planar = x[:, None] if x.ndim == 3 else x if shape[1] == 3 else x.transpose(0, 3, 1, 2)
    assert equal(read.x, planar)
    assert read.y.tolist() == [0, 1, 2, 3]


def test_npz_of_other_things(tmp_path: Path) -> None:
    x = pixels(4, 8, 8)
    np.savez(tmp_path / "a.npz", images=x.astype(np.int64), class_names=np.array(["cat", "dog"]), labels=np.zeros(4))
    assert equal(data.read_arrays(tmp_path / "a.npz").x, x[:, None])
    np.savez(tmp_path / "a.npz", images=x.astype(np.int64) * 100)
    with pytest.raises(data.DataError, match=r"torch.int64 samples are neither images of 0 to 255 nor floats"):
        data.read_arrays(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.ones((3, 4), complex))
    with pytest.raises(data.DataError, match="complex128 samples are neither"):
        data.read_arrays(tmp_path / "a.npz")


def test_npz_halves(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", x_train=pixels(4, 8, 8), y_train=np.ones(4), x_test=pixels(2, 8, 8), y_test=np.zeros(2)
    )
    assert len(data.read_arrays(tmp_path / "a.npz", "train")) == 4
    assert data.read(tmp_path / "a.npz", "test")[0][1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_embeddings(tmp_path: Path, dtype: torch.dtype) -> None:
    from safetensors.torch import save_file

    x, y = torch.randn(5, 16).to(dtype), torch.tensor([0, 1, 2, 1, 0])
    save_file({"embeddings": x, "labels": y}, tmp_path / "a.safetensors")
    read = data.read_arrays(tmp_path / "a.safetensors")
    assert torch.equal(read.x, x.float())
    assert torch.equal(read.y, y)
    if dtype != torch.bfloat16:
        np.savez(tmp_path / "a.npz", features=x.numpy())
        assert torch.equal(data.read_arrays(tmp_path / "a.npz").x, x.float())
        assert set(data.read_arrays(tmp_path / "a.npz").y.tolist()) == {-1}


def test_damaged_arrays(tmp_path: Path) -> None:
    def fails(message: str, name: str = "a.npz") -> None:
        with pytest.raises(data.DataError, match=message):
            data.read_arrays(tmp_path / name)

    np.savez(tmp_path / "a.npz", images=np.array([Evil(), None], dtype=object))
    fails("cannot be read.*pickle")
    np.savez(tmp_path / "a.npz", pictures=pixels(2, 4, 4))
    fails(r"holds \['pictures'\]; call the samples one of image")
    np.savez(tmp_path / "a.npz", images=pixels(2, 4, 4), labels=np.zeros(3))
    fails("2 samples but 3 labels")
    np.savez(tmp_path / "a.npz", images=pixels(2, 4, 4), labels=[0.5, 1])
    fails("labels must be whole numbers")
    np.savez(tmp_path / "a.npz", x=np.array([[0.0, 1.0], [np.nan, 1.0]]))
    fails("sample 1 is not finite")
    np.savez(tmp_path / "a.npz", x=np.arange(3.0))
    fails("neither images")
    buffer = io.BytesIO()
    np.savez(buffer, x=pixels(100, 4, 4))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue()[:900])
    fails("a.npz: cannot be read")
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 30)
    fails("a.safetensors: (damaged|cannot)", "a.safetensors")
    fails("there is no such file", "b.npz")

"""Reads a GGUF file: its keys as raw bytes, and its tensors. Writes it again with other tensor data."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, ARRAY = 8, 9
ALIGNMENT = 32


class Tensor:
    def __init__(self, name, shape, kind, offset):
        self.name, self.shape, self.kind, self.offset = name, shape, kind, offset
        self.n_in, self.n = shape[0], 1
        for n in shape:
            self.n *= n


class File:
    """tensors: in the order of the file. data(tensor, n_bytes): the weights of a tensor."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes = f.read()
        self.at = 4
        _, n_tensors, self.n_keys = self.take("<IQQ")
        start = self.at
        for _ in range(self.n_keys):
            self.text()
            self.skip_value(*self.take("<I"))
        self.keys = self.bytes[start : self.at]
        self.tensors = [self.tensor() for _ in range(n_tensors)]
        self.start = (self.at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def take(self, form):
        values = struct.unpack_from(form, self.bytes, self.at)
        self.at += struct.calcsize(form)
        return values

    def text(self):
        (n,) = self.take("<Q")
        self.at += n
        return self.bytes[self.at - n : self.at].decode()

    def skip_value(self, kind):
        if kind == TEXT:
            self.text()
        elif kind == ARRAY:
            item, n = self.take("<IQ")
            if item == TEXT:
                for _ in range(n):
                    self.text()
            else:
                self.at += n * SIZES[item]
        else:
            self.at += SIZES[kind]

    def tensor(self):
        name, (n_dims,) = self.text(), self.take("<I")
        return Tensor(name, self.take("<%dQ" % n_dims), *self.take("<IQ"))

    def data(self, tensor, n_bytes):
        return self.bytes[self.start + tensor.offset :][:n_bytes]

    def write(self, path, parts):
        """Writes the file with the same keys. parts: for each tensor the number of its type, and its weights."""
        infos, offset = b"", 0
        for t, (kind, data) in zip(self.tensors, parts):
            name = t.name.encode()
            infos += struct.pack("<Q", len(name)) + name
            infos += struct.pack("<I%dQIQ" % len(t.shape), len(t.shape), *t.shape, kind, offset)
            offset += len(data) + -len(data) % ALIGNMENT
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), self.n_keys) + self.keys + infos
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % ALIGNMENT))
            for _, data in parts:
                f.write(data + bytes(-len(data) % ALIGNMENT))

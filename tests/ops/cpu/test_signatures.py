"""The table of signatures agrees with the C sources."""

import ctypes

import pytest
import torch

import c_sources
from fairseq_sparse.ops.cpu.signatures import KERNELS, Pointer

NUMBERS = {
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
C_NAMES = {number: name for name, number in NUMBERS.items()}
POINTERS = {
    "float *": torch.float32,
    "double *": torch.float64,
    "int32_t *": torch.int32,
    "int64_t *": torch.int64,
    "uint16_t *": torch.bfloat16,
    "uint8_t *": torch.uint8,
}


def test_every_kernel_has_a_signature():
    assert len(KERNELS) > 5
    assert list(KERNELS) == list(c_sources.functions())


@pytest.mark.parametrize("name", KERNELS)
def test_a_signature_is_that_of_the_c_source(name):
    function, signature = c_sources.functions()[name], KERNELS[name]
    assert list(signature.parameters) == [parameter for parameter, _ in function.parameters]
    for parameter, declared in function.parameters:
        kind = signature.parameters[parameter]
        if isinstance(kind, Pointer):
            assert kind.dtype is POINTERS[declared], parameter
        elif issubclass(kind, ctypes.Structure):
            assert f"{kind.__name__} *" == declared
        else:
            assert kind is NUMBERS[declared], parameter
    assert function.parameters[-1] == ("threads", "int")
    assert signature.result is {"void": None, **NUMBERS}[function.result]


@pytest.mark.parametrize("name", KERNELS)
def test_every_pointer_has_a_size(name):
    kinds = KERNELS[name].parameters
    pointers = [parameter for parameter, kind in kinds.items() if isinstance(kind, Pointer)]
    arguments = dict.fromkeys(kinds, 1) | dict.fromkeys(pointers, torch.ones(2))
    for parameter in set(kinds) - set(pointers):
        if issubclass(kinds[parameter], ctypes.Structure):
            arguments[parameter] = kinds[parameter]()
    assert set(KERNELS[name].sizes(**arguments)) == set(pointers)


def test_structs_are_those_of_the_c_sources():
    declared = c_sources.structs()
    kinds = {kind for signature in KERNELS.values() for kind in signature.parameters.values()}
    structs = [
        kind for kind in kinds if not isinstance(kind, Pointer) and hasattr(kind, "_fields_")
    ]
    for struct in structs:
        fields = []
        for name, kind in struct._fields_:
            length = f"[{kind._length_}]" if issubclass(kind, ctypes.Array) else ""
            number = kind._type_ if length else kind
            fields.append((name, C_NAMES[number] + length))
        assert fields == declared[struct.__name__]
    assert len(structs) > 2

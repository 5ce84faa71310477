"""The messages parsed from the `.proto` files, compared with the protobuf compiler's."""

import subprocess

import pytest
from google.protobuf import descriptor_pb2

from dta import messages

NAMES = ("dta/v1/collector.proto", "dta/v1/translator.proto")


def test_as_the_compiler_reads_them(tmp_path):
    out = tmp_path / "descriptors"
    arguments = [f"-I{messages._FOLDER}", "--include_imports", f"--descriptor_set_out={out}", *NAMES]
    subprocess.run(["protoc", *arguments], check=True)
    compiled = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    read = {file.name: file for file in messages.files(NAMES)}
    assert {file.name for file in compiled.file} == set(read)
    for file in compiled.file:
        assert str(read[file.name]) == str(file)


@pytest.mark.parametrize("text", ["option a = 1;", "message A { map<string, A> m = 1; }", "message A { reserved 1; }", "?"])
def test_what_is_not_understood_is_refused(text):
    with pytest.raises(ValueError):
        messages.parse("a.proto", text)

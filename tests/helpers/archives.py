"""Archives for tests, made from dictionaries of the members' names and contents."""

import io
import tarfile
import zipfile


def tar(members: dict[str, bytes], compression: str = "gz") -> bytes:
    """Return a tar, compressed unless ``compression`` is empty; names of folders end in /."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=f"w:{compression}") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return content.getvalue()


def text(lines: list[str], end: str = "\n", encoding: str = "utf-8") -> bytes:
    return "".join(line + end for line in lines).encode(encoding)


def sgm(sentences: list[str], end: str = "\n") -> bytes:
    """Return documents of segments, as in WMT's and IWSLT's sets, from escaped sentences."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<srcset setid="mini" srclang="any">']
    for start in range(0, len(sentences), 2):
        lines += [
            f'<doc docid="talk.{start}" genre="talks">',
            "<title>Not a sentence</title>",
            "<p>",
        ]
        for number, sentence in enumerate(sentences[start : start + 2], start=1):
            lines.append(f'<seg id="{number}"> {sentence} </seg>')
        lines += ["</p>", "</doc>"]
    return text([*lines, "</srcset>"], end)

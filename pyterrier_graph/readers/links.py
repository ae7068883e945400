"""Addresses of links: anchors of the same file, other files of the folder, and all that is outside."""

from posixpath import dirname, join, normpath
from urllib.parse import unquote, urlsplit

from pyterrier_graph.readers.outline import Outline


def follow(outline: Outline, address: str | None, endings: tuple[str, ...] = ()) -> None:
    """Marks a link to an address, such as ``"../guide.md#install"``.

    Args:
        outline: What the link is added to; the address is relative to its ``docno``, or to the folder if it begins
            with a slash.
        address: What the file says; None if it says nothing.
        endings: What may be missing at the end of the address, such as ``".md"`` or ``"/index.md"``.
    """
    if address is None:
        return
    try:
        scheme, host, path, _, fragment = urlsplit(address.strip())
    except ValueError:
        outline.counts["links that are no address"] += 1
        return
    path, fragment = unquote(path), unquote(fragment.partition(":~:")[0])
    target = normpath(join(dirname(outline.docno), path)) if path[:1] != "/" else normpath(path).lstrip("/")
    if scheme or host or target.startswith(".."):
        outline.counts["links out of the files"] += 1
    elif not path or target == outline.docno:
        outline.link(fragment)
    else:
        refer_to_file(outline, target, fragment, endings)


def refer_to_file(outline: Outline, target: str, fragment: str = "", endings: tuple[str, ...] = ()) -> None:
    """Marks a reference to a file of the folder, or to an anchor in it."""
    paths = [normpath(f"{target}{ending}".lstrip("/")) for ending in ("", *endings)]
    outline.refer(*(f"{path}#{fragment}" for path in paths if fragment), *paths, address=target)

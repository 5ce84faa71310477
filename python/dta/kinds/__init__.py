"""The kinds of stores, one file for each: what its memory is, and what it is asked, of region files and of collectors.

What reads a region follows the rules of the collector's own readers (`crates/memory/src/reader/`): it copies the elements of its
keys out of the memory first, and judges the copy, as a NIC writes meanwhile.
"""

from .append import AppendStore
from .key_increment import KeyIncrementStore
from .key_write import KeyWriteStore
from .postcarding import PostcardingStore
from .sketch_merge import SketchMergeStore

__all__ = ["AppendStore", "KeyIncrementStore", "KeyWriteStore", "PostcardingStore", "SketchMergeStore"]

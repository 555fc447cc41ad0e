"""Objects that neither `pickle` nor `copy` may take."""

from typing import NoReturn


class Uncopied:
    """Stands for open files, and maybe for the lock on them: a copy would be a second owner."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: pass its path and open it there (with mode='r' "
            "where it is open for writing)"
        )
